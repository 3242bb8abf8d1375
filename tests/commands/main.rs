//! The program as users run it, and scores and reports through the library: commands, output, files, signals, limits and errors.
//!
//! All files are one binary, so that the program is linked once and all tests run at the same time. `cargo test --test commands sweep::`
//! runs the tests of `sweep.rs`.

mod analyze;
mod benchmarks;
#[path = "../docs/cells.rs"]
mod cells;
mod cli;
mod damaged_files;
mod external;
mod files;
mod generation;
mod identity;
mod interop;
mod interrupts;
mod kv_dtype;
mod kv_tier;
mod launch;
mod limits;
mod longbench;
mod privacy;
mod program;
mod report;
mod report_command;
mod streams;
mod sweep;
mod terminal;
mod tune;
mod verdicts;
mod verify;
