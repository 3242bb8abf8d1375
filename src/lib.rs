//! `spattn`: an evaluation harness for sparse attention.
//!
//! The library is built in floors; a module imports only from those below it
//! (see `ARCHITECTURE.md`):
//!
//! `error`, `version`, `clock`, `cost`, `disk`, `foreign`, `given`, `memory`, `privacy`, `text` → [`kernels`] → [`kv`] → [`attention`] → [`model`] → [`tasks`] → [`eval`] → [`analyze`], [`mod@bench`], [`launch`], [`tune`] → [`report`] → [`cli`].

/// Prints a line on standard error, whether or not anybody can read it: `std`'s own ends the program with a panic where
/// the other end of a pipe is closed (`spattn eval 2>&1 | head -1`). Whatever names are in it, no terminal takes commands from it, and
/// no line is longer than [`text::LONGEST_LINE`].
macro_rules! eprintln {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", $crate::text::for_log(&format!($($line)*)));
    }};
}

pub mod error;

pub mod clock;
pub mod cost;
pub mod disk;
pub mod foreign;
pub mod given;
pub mod kernels;
pub mod kv;
pub mod memory;
pub mod privacy;
pub mod text;
pub mod version;

pub mod attention;
pub mod model;
pub mod tasks;

pub mod eval;

pub mod analyze;
pub mod bench;
pub mod launch;
pub mod tune;

pub mod report;

pub mod cli;
