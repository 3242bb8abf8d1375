//! What a user asked for: settings as they are given, and the configuration of a run that they resolve to.
//!
//! `flags` is the table of all flags and keys. From its rows [`settings`] makes what users give, with the types of [`value`], and
//! [`run_config`] what a run is told. [`mod@file`] reads configs, of which [`shipped`] are those of the program. [`foreign_flags`] has
//! what users of other programs type. How arguments are taken apart is in the program's `cli`.

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
