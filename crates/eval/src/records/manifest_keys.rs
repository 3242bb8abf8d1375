//! Keys of a run's manifest that are read back when a folder is resumed.

/// Name of the manifest within a run's folder.
pub const MANIFEST: &str = "manifest.json";

/// Key of the manifest for everything that determines results; a list if a matrix has several models, seeds or protocols. A resumed run may
/// add to it, but not change an entry.
pub const IDENTITY: &str = "identity";

/// Key of the manifest for the hashes of calibrations, by kind. A resumed run may add a kind, but not change one.
pub const CALIBRATION: &str = "calibration";

/// Key of the manifest for the digests of what tasks' examples are made from ([`Task::inputs`](spattn_tasks::Task::inputs)), by task.
pub const INPUTS: &str = "inputs";

/// Key of the manifest for notes on the tasks and the plan, such as which rows were left out, one line each.
pub const NOTES: &str = "notes";

/// Key of the manifest that says that examples were added until verdicts were told, so that these have to hold at all looks.
pub const UNTIL_CERTAIN: &str = "until_certain";

/// Key of the manifest for what methods are held to, if the run was asked for a safe one. A resumed run that is asked for another replaces it.
pub const HELD_TO: &str = "held_to";

/// Parts of an identity that old folders lack: a model's configuration, and how its tokenizer makes prompts and ends answers.
pub const CONTENT: [&str; 2] = ["config", "tokens"];
