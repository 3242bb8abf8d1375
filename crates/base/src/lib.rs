//! Foundations of all crates: errors that a user can act on, files, limits, progress, and safe output of text.
//!
//! Nothing here knows attention, models or benchmarks.

/// Prints a line on standard error, and ignores failures: `std`'s macro panics if the other end of a pipe is closed (`spattn eval 2>&1 |
/// head -1`). Control characters are escaped, so that no name in the line can control a terminal, and lines are cut to
/// [`text::LONGEST_LINE`].
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
pub mod interrupt;
pub mod memory;
pub mod meter;
pub mod pace;
pub mod privacy;
pub mod text;
