//! The command line: one file a subcommand; arguments in, exit status out.

pub mod score;
