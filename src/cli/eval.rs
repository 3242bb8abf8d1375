//! `spattn eval`: run methods on tasks, write records, print the table.

use anyhow::Result;
use clap::Args;

use super::exit::Done;
use super::matrix::OnFailure;
use super::run_args::RunArgs;
use spattn_eval::config::run_config::RunConfig;

/// Evaluate methods on tasks and print one table: score, interval, density and cost.
///
/// Every example is prefilled once; all methods and budgets run from that one prefix. Records are appended to the
/// output folder as they finish. Without arguments this runs `configs/quick.toml` on the built-in model, in under a
/// minute on two cores.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn eval
  spattn eval --task ruler --length 4096 --samples 25 -m 'topk:k={16,64,256}' -m quest
  spattn eval --model Qwen/Qwen2.5-0.5B-Instruct --task jsonl:niah.jsonl -m topk:ratio=0.02 --out results/qwen")]
pub struct EvalArgs {
    /// Run matrix to start from: a TOML file, or a shipped config; flags override it
    ///
    /// Example: --config my-matrix.toml
    #[arg(long, value_name = "FILE")]
    config: Option<String>,

    /// Print what would run, with estimated time and memory, and run nothing
    ///
    /// No weights are read or downloaded. It fails where the run would. If so few examples cannot tell whether a method is safe, it says
    /// how many could.
    ///
    /// Example: spattn eval --model ./checkpoint --task ruler/vt --length 16K --dry-run
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Runs the evaluation and prints its table.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`](spattn_base::error::UsageError); otherwise whatever stops the run.
pub fn run_eval(args: EvalArgs) -> Result<Done> {
    let config = RunConfig::resolve_single(args.run.over(args.config.as_deref())?)?;
    let run = args.run.into_request("eval", vec![config], OnFailure::Stop)?;
    if args.dry_run { run.describe() } else { run.run_matrix() }
}
