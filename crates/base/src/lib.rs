//! What every crate of spattn stands on: errors that a user can act on, files, limits, and text on its way to a terminal.
//!
//! Nothing here knows of attention, models or benchmarks.

/// Prints a line on standard error, whether or not anybody can read it: `std`'s own ends the program with a panic where
/// the other end of a pipe is closed (`spattn eval 2>&1 | head -1`). Whatever names are in it, no terminal takes commands from it, and
/// no line is longer than [`text::LONGEST_LINE`].
#[macro_export]
macro_rules! eprintln {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", $crate::text::for_log(&format!($($line)*)));
    }};
}

pub mod clock;
pub mod disk;
pub mod error;
pub mod foreign;
pub mod given;
pub mod memory;
pub mod privacy;
pub mod text;
