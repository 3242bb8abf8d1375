//! `spattn doctor`: what this machine and this build can do, and what is missing.

use anyhow::Result;
use clap::Args;

/// Show what this machine and build can do, and how to get what is missing.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON instead of text
    ///
    /// Example: spattn doctor --json
    #[arg(long)]
    json: bool,
}

/// Prints it.
pub fn run(_args: &DoctorArgs) -> Result<()> {
    Ok(())
}
