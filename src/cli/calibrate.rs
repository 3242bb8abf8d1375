//! `spattn calibrate`: learn about a model what some methods need to know, and keep it in files.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::eval::set_threads;
use crate::error::UsageError;
use crate::eval::calibration::{Made, Outcome, Plan, Text};
use crate::model::Model;
use crate::model::calibration::file_name;
use crate::model::source::ModelSource;
use crate::model::tokenizer::TokenizerOptions;
use crate::tasks::{TaskOptions, resolve};

/// Calibrate a model for the methods that need it: read some text, and write what they use to files.
///
/// `spattn eval` finds the files in the model's folder (in `calibration/`), or where its --calibration says. They fit
/// the very weights they were made from. The built-in model has its own inside the program.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn calibrate --model ./Llama-3.2-1B-Instruct
  spattn calibrate --method loki --model Qwen/Qwen2.5-0.5B-Instruct --data pile-sample.txt --out qwen-calibration
  spattn calibrate --out models/builtin/calibration      (the files that the program is built with)")]
pub struct CalibrateArgs {
    /// Method to calibrate for; may be repeated; all that need it if not given
    ///
    /// Example: --method double_sparsity --method loki
    #[arg(short = 'm', long = "method", value_name = "NAME")]
    methods: Vec<String>,

    /// Model: builtin, a folder, or a hub id
    ///
    /// Example: --model ./checkpoint
    #[arg(long, value_name = "builtin|DIR|HUB_ID[@REV]", default_value = "builtin")]
    model: String,

    /// File of running text to read; may be repeated; generated essays if neither this nor --task is given
    ///
    /// Example: --data books.txt
    #[arg(long = "data", value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Task whose prompts to read, none of which is ever evaluated; may be repeated
    ///
    /// Example: --task ruler/niah_single_2 --task ruler/vt
    #[arg(short = 't', long = "task", value_name = "TASK")]
    tasks: Vec<String>,

    /// Tokens to read, in all blocks together
    ///
    /// Example: --tokens 131072
    #[arg(long, value_name = "N", default_value_t = 32768)]
    tokens: usize,

    /// Tokens of a block: a sequence that is read by itself
    ///
    /// Example: --length 2048
    #[arg(short = 'l', long, value_name = "N", default_value_t = 4096)]
    length: usize,

    /// Seed of generated text, and of methods that draw
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// Where to write; `calibration` in the model's folder if not given
    ///
    /// Example: --out calibration
    #[arg(short = 'o', long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Threads to use; all cores if not given
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Show no progress
    ///
    /// Example: --quiet
    #[arg(short, long)]
    quiet: bool,
}

/// Reads the text and writes the files.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; files that cannot be read or written otherwise.
pub fn run(args: CalibrateArgs) -> Result<()> {
    let calibrations = Plan::calibrations(&args.methods)?;
    set_threads(args.threads)?;
    let source = ModelSource::parse(&args.model)?;
    let tasks = resolve(&args.tasks, &TaskOptions::default())?;
    let model = Model::load(&source, None, TokenizerOptions::default())?;
    model.notes.iter().for_each(|n| eprintln!("note: {n}"));
    let out = args.out.or_else(|| model.writable_calibration.clone()).ok_or_else(|| {
        UsageError::new(format!("{} has no folder to write to", model.id))
            .hint("give one with --out DIR, and to eval with --calibration DIR")
    })?;
    let mut texts = args.data.iter().map(|path| Text::file(path, &model)).collect::<Result<Vec<_>>>()?;
    texts.extend(tasks.into_iter().map(Text::Task));
    if texts.is_empty() {
        texts.push(Text::Generated);
    }
    let plan = Plan { calibrations, texts, tokens: args.tokens, length: args.length, seed: args.seed };
    plan.check(&model)?;
    std::fs::create_dir_all(&out).map_err(|e| {
        UsageError::new(format!("cannot write to the folder {}: {e}", out.display()))
            .hint("choose another --out folder")
    })?;
    let bar = progress_bar(args.quiet);
    let outcome = plan.run(&model, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    report(&outcome?, &model, &out)
}

/// Writes the files and says what they hold.
fn report(outcome: &Outcome, model: &Model, out: &Path) -> Result<()> {
    let Outcome { made, blocks, tokens, data, took } = outcome;
    let mut stdout = std::io::stdout().lock();
    let took = took.as_secs_f64();
    writeln!(stdout, "{}: {tokens} tokens in {blocks} blocks ({data}), {took:.1} s", model.id)?;
    for Made { kind, bytes, notes } in made {
        let path = out.join(file_name(kind));
        write_whole(&path, bytes)?;
        writeln!(stdout, "\n{kind}: {} ({:.0} KB)", path.display(), bytes.len() as f64 / 1e3)?;
        notes.iter().try_for_each(|note| writeln!(stdout, "  {note}"))?;
    }
    Ok(())
}

/// A reader finds the old file or the new one, never a part.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn progress_bar(quiet: bool) -> ProgressBar {
    let target = match quiet {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} blocks, {eta} left");
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
