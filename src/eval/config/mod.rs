//! The user's request: settings as given, and the configuration of a run that they resolve to.

pub(crate) mod file;
pub(crate) mod methods;
pub mod protocol;
pub mod run_config;
pub mod settings;
