//! `spattn data`: works with data files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use rayon::prelude::*;
use serde_json::json;

use super::data_sets::{self, CheckArgs, FetchArgs, ListArgs};
use super::export_eval::{self, ExportEvalArgs};
use super::numbers;
use super::output::Export;
use super::setup::no_threads;
use spattn_base::error::UsageError;
use spattn_tasks::text;
use spattn_tasks::train::{Books, Encoder, PieceEncoder, Trainer};

/// Fetch and check published data sets; make and convert data files.
#[derive(Debug, Args)]
pub struct DataArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Fetch(FetchArgs),
    List(ListArgs),
    Check(CheckArgs),
    ExportEval(ExportEvalArgs),
    ExportTrain(ExportArgs),
}

/// Write training rows for a small model: contexts with many questions, in the tasks' own prompts.
///
/// A plan names the batches: one a line, `LENGTH ROWS [FAMILY]`. Every row is made from the seed, its length and its
/// number alone, so a part of a plan gives the same rows as the whole. No row shares a seed with an evaluated example.
#[derive(Debug, Args)]
#[command(after_help = "Format: one line of JSON (families, special tokens), then for every batch three u32 (number in
the plan, rows, length), the rows' families as u8, token ids as u16 and token classes as u8, all little-endian
and padded with 0 to the length. Classes: 0 none, 1 prompt, 2 answer, 3 copy, 4 counted answer, 5 text.

Example: spattn data export-train --tokenizer tokenizer.json --books books/ --plan plan.txt --out rows.bin")]
pub struct ExportArgs {
    /// Tokenizer of the model that is trained
    ///
    /// Example: --tokenizer train_data/tokenizer.json
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,

    /// The batches, one a line: LENGTH ROWS [FAMILY]
    ///
    /// Example: --plan plan.txt (with lines such as `4096 16` or `1024 8 niah`)
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,

    /// Folder of running text, *.txt; without it there are no rows of text
    ///
    /// Example: --books train_data/books
    #[arg(long, value_name = "DIR")]
    books: Option<PathBuf>,

    /// Number of the plan's first batch to write
    ///
    /// Example: --from 2000 (to go on after 2,000 batches)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = numbers::batch, allow_negative_numbers = true)]
    from: usize,

    /// Seed of the rows
    ///
    /// Example: --seed 7
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = numbers::seed, allow_negative_numbers = true)]
    seed: u64,

    /// Where to write; standard output if not given
    ///
    /// Example: --out rows.bin
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Write rows as lines of JSON, with their text, instead
    ///
    /// Example: --jsonl | head -1 | jq
    #[arg(long)]
    jsonl: bool,
}

/// Runs one of the subcommands.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; files that cannot be read or written.
pub fn run(args: DataArgs) -> Result<()> {
    match args.what {
        What::Fetch(args) => data_sets::fetch(&args),
        What::List(args) => data_sets::list(&args),
        What::Check(args) => data_sets::check(&args),
        What::ExportEval(args) => export_eval::run(&args),
        What::ExportTrain(args) => export_train(&args),
    }
}

/// One line of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch {
    number: usize,
    length: usize,
    rows: usize,
    family: Option<String>,
}

/// Batches made at once, so that all threads have rows to make.
const AT_ONCE: usize = 32;
/// The rows of a batch are numbered from its own multiple of this, so no two rows have the same number.
const ROWS_A_BATCH: usize = 1 << 16;

fn export_train(args: &ExportArgs) -> Result<()> {
    let plan = parse_plan(&text::read(&args.plan)?, &args.plan)?;
    let trainer = Trainer::new(args.books.as_deref().map(Books::from_folder).transpose()?.unwrap_or_default())?;
    let encoder = PieceEncoder::new(&text::read(&args.tokenizer)?)
        .map_err(|e| UsageError::new(format!("{}: {e}", args.tokenizer.display())))?;
    let mut out = Export::to(args.out.as_deref())?;
    if !args.jsonl {
        let header = json!({ "families": trainer.families(), "bos": encoder.bos(), "eos": encoder.eos() });
        writeln!(out, "{header}")?;
    }
    // Rows are generated while earlier ones are written.
    let (send, receive) = sync_channel::<Vec<Vec<u8>>>(2);
    std::thread::scope(|scope| {
        let write = move || -> Result<()> {
            for group in receive {
                group.iter().try_for_each(|bytes| out.write_all(bytes))?;
            }
            Ok(out.finish()?)
        };
        let writer = std::thread::Builder::new().spawn_scoped(scope, write).map_err(no_threads)?;
        for group in plan.get(args.from..).unwrap_or_default().chunks(AT_ONCE) {
            let made = make(group, &trainer, &encoder, args)?;
            if send.send(made).is_err() {
                break;
            }
        }
        drop(send);
        writer.join().map_err(|_| anyhow!("the writing thread failed"))?
    })
}

fn parse_plan(text: &str, path: &Path) -> Result<Vec<Batch>, UsageError> {
    let parse = |(number, line): (usize, &str)| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let size = |i: usize| fields.get(i).and_then(|f| f.parse().ok()).filter(|n| (1..ROWS_A_BATCH).contains(n));
        match (size(0), size(1)) {
            (Some(length), Some(rows)) if fields.len() <= 3 => {
                Ok(Batch { number, length, rows, family: fields.get(2).map(|f| (*f).to_owned()) })
            }
            _ => Err(UsageError::new(format!("{}:{}: not a batch: `{line}`", path.display(), number + 1))
                .hint("a line is LENGTH ROWS [FAMILY], such as `4096 16`")),
        }
    };
    text.lines().enumerate().map(parse).collect()
}

/// A row as tokens, and its JSON line if requested.
struct Made {
    family: u8,
    /// All below 65,536, which [`PieceEncoder`] guarantees.
    ids: Vec<u32>,
    classes: Vec<u8>,
    line: Vec<u8>,
}

/// The bytes of each batch of a group.
fn make(group: &[Batch], trainer: &Trainer, encoder: &PieceEncoder, args: &ExportArgs) -> Result<Vec<Vec<u8>>> {
    let wanted: Vec<(&Batch, usize)> = group.iter().flat_map(|b| (0..b.rows).map(move |row| (b, row))).collect();
    let rows: Vec<Made> = wanted
        .into_par_iter()
        .map(|(batch, number)| {
            let index = batch.number * ROWS_A_BATCH + number;
            let row = trainer.row(args.seed, index, batch.length, batch.family.as_deref(), encoder)?;
            let (ids, classes) = row.encode(encoder);
            let mut line = Vec::new();
            if args.jsonl {
                let segments: Vec<_> = row
                    .segments
                    .iter()
                    .map(|s| json!({ "text": s.text, "class": s.class as u8, "ends": s.ends }))
                    .collect();
                let family = &trainer.families()[row.family];
                let whole =
                    json!({ "family": family, "length": batch.length, "tokens": ids.len(), "segments": segments });
                serde_json::to_writer(&mut line, &whole)?;
                line.push(b'\n');
            }
            Ok(Made { family: row.family as u8, ids, classes, line })
        })
        .collect::<Result<_>>()?;
    let mut rows = rows.into_iter();
    let of_batch = |batch: &Batch| {
        let rows: Vec<_> = rows.by_ref().take(batch.rows).collect();
        if args.jsonl {
            return rows.into_iter().flat_map(|row| row.line).collect();
        }
        let mut bytes = Vec::with_capacity(12 + batch.rows * (1 + 3 * batch.length));
        for number in [batch.number, batch.rows, batch.length] {
            bytes.extend((number as u32).to_le_bytes());
        }
        bytes.extend(rows.iter().map(|row| row.family));
        for Made { ids, .. } in &rows {
            bytes.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes()));
            bytes.resize(bytes.len() + 2 * (batch.length - ids.len()), 0);
        }
        for Made { classes, .. } in &rows {
            bytes.extend_from_slice(classes);
            bytes.resize(bytes.len() + batch.length - classes.len(), 0);
        }
        bytes
    };
    Ok(group.iter().map(of_batch).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_and_mistakes_are_located() {
        let path = Path::new("plan.txt");
        let plan = parse_plan("256 4\n1024 1 niah\n", path).unwrap();
        assert_eq!(plan[1], Batch { number: 1, length: 1024, rows: 1, family: Some("niah".to_owned()) });
        let error = parse_plan("256 4\n1024\n", path).unwrap_err();
        assert_eq!(error.to_string(), "plan.txt:2: not a batch: `1024`");
    }
}
