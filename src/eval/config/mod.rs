//! What a user asked for: settings as they are given, and the configuration of a run that they resolve to.

pub(crate) mod bounds;
pub(crate) mod file;
pub mod flag;
pub(crate) mod flags;
pub(crate) mod methods;
pub mod protocol;
pub mod run_config;
pub mod settings;
pub mod shipped;
pub mod value;
