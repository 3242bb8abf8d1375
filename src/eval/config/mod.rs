//! What a user asked for: settings as they are given, and the configuration of a run that they resolve to.

pub(crate) mod file;
pub(crate) mod methods;
pub mod protocol;
pub mod run_config;
pub mod settings;
