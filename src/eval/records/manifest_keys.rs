//! Keys of a run's manifest that are read back when a folder is resumed.

/// Name of the manifest within a run's folder.
pub const MANIFEST: &str = "manifest.json";

/// Key of the manifest that holds everything that determines results; a list where a matrix has several models, seeds
/// or protocols. A resumed run may add to it, but not change one.
pub const IDENTITY: &str = "identity";

/// Key of the manifest that holds, by kind, the hash of what methods were calibrated with. A resumed run may add
/// a kind, but not change one.
pub const CALIBRATION: &str = "calibration";

/// Key of the manifest that holds, by task, a digest of what its examples are made of ([`Task::inputs`](spattn_tasks::Task::inputs)).
pub const INPUTS: &str = "inputs";

/// Key of the manifest that holds what was said of the tasks and the plan: which rows were left out, a line each.
pub const NOTES: &str = "notes";

/// Parts of an identity that folders from before they were kept do not have: a model's configuration, and how its tokenizer
/// makes prompts and ends answers.
pub const CONTENT: [&str; 2] = ["config", "tokens"];
