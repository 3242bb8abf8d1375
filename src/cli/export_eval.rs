//! `spattn data export-eval`: writes the examples of an evaluation as rows of text.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::exit::Done;
use super::interrupt;
use super::numbers;
use super::output::Export;
use super::prompt_args::{PromptArgs, PromptModel};
use spattn_base::error::UsageError;
use spattn_base::meter::Meter;
use spattn_base::text::shown_json;
use spattn_eval::examples::token_counter::Counter;
use spattn_tasks::{Example, PromptCounter, Task};

/// Write the examples that `spattn eval` would run, as rows in RULER's fields.
///
/// The same task, length, seed, data and tokenizer give the same examples as in an evaluation. Only the model's config and
/// tokenizer are used, to fill the lengths: weights need not be there, and are not downloaded.
#[derive(Debug, Args)]
#[command(after_help = "Format: one JSON object a line with index, task, input, answer_prefix, outputs, length (tokens
of the prompt and of the longest answer) and source. The model reads input and answer_prefix joined.
`spattn eval --task jsonl:FILE` runs such a file.

Example: spattn data export-eval --task ruler/vt --length 4096 --samples 50 --out vt.jsonl")]
pub struct ExportEvalArgs {
    #[command(flatten)]
    prompts: PromptArgs,

    /// Length in tokens, prompt and answer together; may be repeated
    ///
    /// Example: --length 4096,16K
    #[arg(short = 'l', long = "length", value_name = "N,...", required = true, value_delimiter = ',', value_parser = numbers::tokens, allow_negative_numbers = true)]
    lengths: Vec<usize>,

    /// Examples for each task and length
    ///
    /// Example: --samples 100
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = numbers::samples, allow_negative_numbers = true)]
    samples: usize,

    /// Where to write; standard output if not given
    ///
    /// Example: --out vt.jsonl
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// One line of the file.
#[derive(Debug, Serialize)]
struct Row<'a> {
    index: usize,
    task: &'a str,
    input: String,
    answer_prefix: &'a str,
    outputs: &'a [String],
    length: usize,
    source: &'a str,
}

impl<'a> Row<'a> {
    fn new(example: &'a Example, counter: &dyn PromptCounter) -> Result<Self> {
        let input = example.user_turn();
        Ok(Self {
            index: example.index,
            task: &example.task,
            length: counter.prompt_tokens(&input, &example.answer_prefix)? + example.max_new_tokens,
            input,
            answer_prefix: &example.answer_prefix,
            outputs: &example.references,
            source: &example.source,
        })
    }
}

/// Writes the rows, by task, length and index.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; files that cannot be read or written.
pub fn export_eval(args: &ExportEvalArgs) -> Result<Done> {
    let tasks = args.prompts.tasks()?;
    if let Some(file) = tasks.iter().find(|t| !t.is_sized()) {
        let what = format!("`{}` is a file of rows already: there is nothing to generate", file.name());
        return Err(UsageError::new(what)
            .hint("`spattn data show --task jsonl:FILE` prints its prompts; here give tasks that are generated, such as ruler/vt")
            .into());
    }
    let PromptModel { tokenizer, .. } = args.prompts.model()?;
    let counter = Counter(&tokenizer);
    let stop = Arc::new(AtomicBool::new(false));
    let kept = if args.out.is_some() { "no file was written" } else { "the rows so far are written" };
    interrupt::stop_within_grace(&stop, move || kept.to_owned())?;
    let mut out = Export::to(args.out.as_deref())?;
    // Rows printed on standard output show the progress themselves, so no meter is drawn.
    let mut meter = Meter::new(args.out.is_none(), "making the first example");
    let count = |task: &dyn Task| task.available().unwrap_or(usize::MAX).min(args.samples).saturating_mul(task.cells());
    let tokens: usize = args.lengths.iter().copied().fold(0, usize::saturating_add);
    let examples: usize = tasks.iter().map(|task| count(task.as_ref())).fold(0, usize::saturating_add);
    let (mut done, all) = (0, tokens.saturating_mul(examples));
    for task in &tasks {
        for &length in &args.lengths {
            for index in 0..count(task.as_ref()) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(interrupt::answer());
                }
                let example = task.example(length, index, args.prompts.seed, &counter)?;
                writeln!(out, "{}", shown_json(&serde_json::to_string(&Row::new(&example, &counter)?)?))?;
                done += length;
                meter.at(done as u64, all as u64, 0, || format!("{} {length}, example {}", task.name(), index + 1));
            }
        }
    }
    meter.end();
    out.finish()?;
    Ok(Done::Completed)
}
