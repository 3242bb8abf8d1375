//! Runs a matrix: settings, examples under many methods, records, and what is computed from records.
//!
//! Each module imports only from those before it:
//!
//! 1. [`folder`]: a results folder on disk, its writer, and the files that this program wrote;
//! 2. [`records`]: records and the file in which they are stored;
//! 3. [`config`]: what a user asked for; [`summary`]: means, differences and self-checks of records;
//! 4. [`examples`]: one example before it is run;
//! 5. [`plan`]: what to run, on which shard, in how much memory;
//! 6. [`run`]: the loop over examples;
//! 7. [`calibration`]: calibration of methods.
//!
//! Nothing here knows how results are drawn.

#[macro_use]
extern crate spattn_base;

pub mod calibration;
pub mod config;
pub mod examples;
pub mod folder;
pub mod plan;
pub mod program;
pub mod records;
pub mod run;
pub mod summary;
