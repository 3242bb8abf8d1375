//! `train-rows`: writes the rows that the built-in model is trained on (`scripts/train_builtin/`).
//!
//! [`spattn_tasks::training_rows`] makes the rows.

mod tokens;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use rayon::prelude::*;
use serde_json::json;

use spattn_base::disk::WholeFile;
use spattn_base::error::UsageError;
use spattn_tasks::text;
use spattn_tasks::training_rows::{Books, Encoder, Trainer};
use tokens::PieceEncoder;

/// Write training rows for a small model: contexts with many questions, in the tasks' own prompts.
///
/// A plan names the batches: one a line, `LENGTH ROWS [FAMILY]`. Every row is made from the seed, its length and its
/// number alone, so a part of a plan gives the same rows as the whole. No row shares a seed with an evaluated example.
#[derive(Debug, Parser)]
#[command(after_help = "Format: one line of JSON (families, special tokens), then for every batch three u32 (number in
the plan, rows, length), the rows' families as u8, token ids as u16 and token classes as u8, all little-endian
and padded with 0 to the length. Classes: 0 none, 1 prompt, 2 answer, 3 copy, 4 counted answer, 5 text.

Example: train-rows --tokenizer tokenizer.json --books books/ --plan plan.txt --out rows.bin")]
struct Args {
    /// Tokenizer of the model that is trained
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,

    /// The batches, one a line: `LENGTH ROWS [FAMILY]`, such as `4096 16` or `1024 8 niah`
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,

    /// Folder of running text, *.txt; without it there are no rows of text
    #[arg(long, value_name = "DIR")]
    books: Option<PathBuf>,

    /// Number of the plan's first batch to write
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    from: usize,

    /// Seed of the rows
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,

    /// Where to write; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Write rows as lines of JSON, with their text, instead
    #[arg(long)]
    jsonl: bool,
}

fn main() -> ExitCode {
    let Err(error) = write_rows(&Args::parse()) else { return ExitCode::SUCCESS };
    let is_closed = |e: &io::Error| e.kind() == ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(is_closed) {
        // The reader has closed the pipe, as in `train-rows ... | head`.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error:#}");
    match error.downcast_ref::<UsageError>() {
        Some(UsageError { hint, .. }) => {
            hint.iter().for_each(|hint| eprintln!("  hint: {hint}"));
            ExitCode::from(2)
        }
        None => ExitCode::FAILURE,
    }
}

/// One line of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch {
    /// Number of its line, from 0.
    number: usize,
    /// Tokens of a row.
    length: usize,
    /// Number of rows.
    rows: usize,
    /// The family of all rows; `None` draws one for each row.
    family: Option<String>,
}

/// The number of batches that are made in parallel.
const AT_ONCE: usize = 32;
/// Row numbers reserved for each batch, so that all rows have different numbers. Also the most rows of a batch.
const ROWS_A_BATCH: usize = 1 << 16;

/// The output: standard output, or a file that gets its name when it is complete.
enum Output {
    File(WholeFile),
    Stdout(BufWriter<io::Stdout>),
}

impl Output {
    fn create(file: Option<&Path>) -> Result<Self, UsageError> {
        let Some(path) = file else { return Ok(Self::Stdout(BufWriter::new(io::stdout()))) };
        let cannot = |e: io::Error| UsageError::new(e.to_string()).hint("choose another --out file");
        WholeFile::create(path).map(Self::File).map_err(cannot)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Stdout(stdout) => stdout.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Stdout(mut stdout) => stdout.flush(),
        }
    }
}

fn write_rows(args: &Args) -> Result<()> {
    let plan = parse_plan(&text::read(&args.plan)?, &args.plan)?;
    let trainer = Trainer::new(args.books.as_deref().map(Books::from_folder).transpose()?.unwrap_or_default())?;
    let encoder = PieceEncoder::new(&text::read(&args.tokenizer)?)
        .map_err(|e| UsageError::new(format!("{}: {e}", args.tokenizer.display())))?;
    let mut out = Output::create(args.out.as_deref())?;
    if !args.jsonl {
        let header = json!({ "families": trainer.families(), "bos": encoder.bos(), "eos": encoder.eos() });
        out.write_all(format!("{header}\n").as_bytes())?;
    }
    // One thread writes finished batches while the others make further ones.
    let (send, receive) = sync_channel::<Vec<Vec<u8>>>(2);
    std::thread::scope(|scope| {
        let write = move || -> Result<()> {
            for group in receive {
                group.iter().try_for_each(|bytes| out.write_all(bytes))?;
            }
            Ok(out.finish()?)
        };
        let writer = std::thread::Builder::new().spawn_scoped(scope, write).context("cannot start a thread")?;
        for group in plan.get(args.from..).unwrap_or_default().chunks(AT_ONCE) {
            let batches = encode_batches(group, &trainer, &encoder, args)?;
            if send.send(batches).is_err() {
                // The writer has failed; `join` below returns its error.
                break;
            }
        }
        drop(send);
        writer.join().map_err(|_| anyhow!("the thread that writes the rows panicked"))?
    })
}

/// Parses a plan; `path` names it in errors.
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

/// A row as tokens, and as a line of JSON if `--jsonl` is given.
struct EncodedRow {
    family: u8,
    /// The token ids, all below 65,536, which [`PieceEncoder::new`] checks.
    ids: Vec<u32>,
    classes: Vec<u8>,
    line: Vec<u8>,
}

/// The bytes of each batch of a group, in the format that `--help` describes.
fn encode_batches(group: &[Batch], trainer: &Trainer, encoder: &PieceEncoder, args: &Args) -> Result<Vec<Vec<u8>>> {
    let wanted: Vec<(&Batch, usize)> = group.iter().flat_map(|b| (0..b.rows).map(move |row| (b, row))).collect();
    let rows: Vec<EncodedRow> = wanted
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
            Ok(EncodedRow { family: row.family as u8, ids, classes, line })
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
        for EncodedRow { ids, .. } in &rows {
            bytes.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes()));
            bytes.resize(bytes.len() + 2 * (batch.length - ids.len()), 0);
        }
        for EncodedRow { classes, .. } in &rows {
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
