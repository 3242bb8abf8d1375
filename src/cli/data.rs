//! `spattn data`: works with data files.

use anyhow::Result;
use clap::{Args, Subcommand};

use super::data_sets::{self, CheckArgs, DataListArgs, FetchArgs};
use super::exit::Done;
use super::export_eval::{self, ExportEvalArgs};
use super::show_prompts::{self, ShowArgs};

/// Fetch and check published data sets; show prompts, and write them to files.
#[derive(Debug, Args)]
pub struct DataArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Fetch(FetchArgs),
    List(DataListArgs),
    Check(CheckArgs),
    Show(ShowArgs),
    ExportEval(ExportEvalArgs),
}

/// Runs one of the subcommands.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`](spattn_base::error::UsageError); files that cannot be read or written.
pub fn run_data(args: DataArgs) -> Result<Done> {
    match args.what {
        What::Fetch(args) => data_sets::fetch(&args)?,
        What::List(args) => data_sets::list(&args)?,
        What::Check(args) => data_sets::check(&args)?,
        What::Show(args) => show_prompts::show_prompts(&args)?,
        What::ExportEval(args) => return export_eval::export_eval(&args),
    }
    Ok(Done::Completed)
}
