//! Keys of a run's manifest that are read back when a folder is resumed.

/// The name of the manifest within a run's folder.
pub const MANIFEST: &str = "manifest.json";

/// The manifest's key for everything that determines results; a list if a matrix has several models, seeds or protocols. A resumed run may
/// add entries, but not change one.
pub const IDENTITY: &str = "identity";

/// The manifest's key for the hashes of calibrations, by kind. A resumed run may add a kind, but not change one.
pub const CALIBRATION: &str = "calibration";

/// The manifest's key for digests of what tasks make their examples from ([`Task::inputs`](spattn_tasks::Task::inputs)), by task.
pub const INPUTS: &str = "inputs";

/// The manifest's key for notes on the tasks and the plan, such as which rows were left out, one line each.
pub const NOTES: &str = "notes";

/// The manifest's key for whether examples were added until verdicts were certain, so that verdicts have to hold at all looks together.
pub const UNTIL_CERTAIN: &str = "until_certain";

/// The manifest's key for what methods are held to, if the run was to find a safe one. A resumed run that is asked for another limit
/// replaces it.
pub const HELD_TO: &str = "held_to";

/// Keys of an identity that old folders lack: the model's configuration, and how its tokenizer makes prompts and ends answers.
pub const CONTENT: [&str; 2] = ["config", "tokens"];
