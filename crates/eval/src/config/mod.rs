//! What a user asks for: the settings as they were given, and the configuration of a run that they resolve to.
//!
//! `flags` is the table of all flags and keys. From its rows come [`settings`], which users give, with the types of [`value`], and
//! [`run_config`], which a run gets. [`mod@file`] parses config files; [`shipped`] has those that come with the program.
//! [`foreign_flags`] has flags of other programs. The program's `cli` parses the arguments.

pub mod bounds;
pub mod file;
pub mod flag;
pub(crate) mod flags;
pub mod foreign_flags;
pub mod kv_tier;
pub mod methods;
pub mod protocol;
pub mod run_config;
pub mod settings;
pub mod shipped;
pub mod thinking;
pub mod value;
mod yaml;
