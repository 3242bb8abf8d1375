//! `spattn sweep`: runs a whole matrix, and continues if a part of it fails.

use anyhow::Result;
use clap::Args;

use super::exit::Done;
use super::launch::{LaunchArgs, launch_sweep};
use super::matrix::OnFailure;
use super::run_args::RunArgs;
use spattn_eval::config::run_config::RunConfig;

/// Run a matrix: models, tasks, lengths, protocols, seeds and methods with grids.
///
/// CONFIG has the keys of a config of `eval`, of which model, seed, sparse_from, sink, local and dense_layers may be
/// lists; every combination is run. Keys that it leaves out are those of the config `quick`. An example is prefilled once
/// for all methods and protocols. Parts that cannot be run are left out and listed at the end (exit status 1). A sweep that
/// was stopped is resumed with --out DIR --resume. With --launch a scheduler runs it in shards on many machines.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn sweep kl-grid
  spattn sweep my-matrix.toml --dry-run
  spattn sweep protocols --model ./checkpoint --sparse-from decode --sparse-from last:32 --out results/protocols
  spattn sweep budgets --shard 1/2 --out results/budgets-1
  spattn sweep big.toml --launch slurm --jobs 32 --sbatch 'partition=gpu,gres=gpu:1,time=4:00:00' --out /shared/big")]
pub struct SweepArgs {
    /// The matrix: a TOML file, or a shipped config (`spattn list configs`); flags override it
    ///
    /// Example: spattn sweep my-matrix.toml
    #[arg(value_name = "CONFIG")]
    config: String,

    /// Print what would run, with estimated time and memory, and run nothing
    ///
    /// Example: spattn sweep kl-grid --dry-run
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    launch: LaunchArgs,

    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Runs the matrix and prints its table, or prints what would run.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`](spattn_base::error::UsageError); failed parts of the matrix; whatever stops the
/// rest.
pub fn run_sweep(args: SweepArgs) -> Result<Done> {
    if args.launch.is_asked() {
        return launch_sweep(args.launch, args.run, &args.config, args.dry_run);
    }
    let configs = RunConfig::resolve(args.run.over(Some(&args.config))?)?;
    let run = args.run.into_request("sweep", configs, OnFailure::GoOn)?;
    if args.dry_run { run.describe() } else { run.run_matrix() }
}
