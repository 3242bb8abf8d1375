//! `spattn verify`: checks that the program computes a model correctly.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::interrupt;
use super::numbers;
use super::output::{print, print_json};
use super::run_flags::ThreadsFlag;
use spattn_base::error::{RunFailure, UsageError};
use spattn_base::meter::Meter;
use spattn_eval::config::value::parse_dtype;
use spattn_lab::verify::{Check, CheckResult, HfReference, Referee, Verification, Verified, write_reference};
use spattn_model::device::Device;
use spattn_model::source::ModelSource;

/// Check that spattn computes a model right: files, tokenizer, the decoder against itself, and all of it against transformers or candle.
///
/// Without a reference it checks what can be judged alone. With `--against hf`, or a file that scripts/verify_hf.py wrote where torch and
/// transformers are, it finds the tensor, the layer and the position that differ. With `--against candle` it compares logits and greedy
/// text with candle-transformers, for the models that this computes. Exit status: 0 all passed, 1 a check failed, 2 wrong
/// arguments, a model that cannot be opened, or no torch for `--against hf`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn verify --model ./Llama-3.2-1B-Instruct
  spattn verify --model ./Llama-3.2-1B-Instruct --against hf --python ./venv/bin/python
  python scripts/verify_hf.py Qwen/Qwen3-0.6B qwen.safetensors      (on another machine)
  spattn verify --model Qwen/Qwen3-0.6B --reference qwen.safetensors")]
pub struct VerifyArgs {
    /// Model: builtin, a folder, a GGUF file, or a hub id
    ///
    /// Example: --model ./checkpoint
    #[arg(long, value_name = "builtin|DIR|FILE|HUB_ID[@REV]", default_value = "builtin")]
    model: String,

    /// What transformers computed: a file that scripts/verify_hf.py wrote
    ///
    /// Example: --reference qwen.safetensors
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    reference: Option<PathBuf>,

    /// Compare with another program, which computes now: hf is Hugging Face transformers, candle is candle-transformers (in builds with the
    /// feature `candle`)
    ///
    /// Example: --against hf
    #[arg(long, value_name = "hf|candle")]
    against: Option<Against>,

    /// Python interpreter with torch and transformers, for --against hf
    ///
    /// Example: --python ./venv/bin/python
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,

    /// Tokens of the text for --against; 64 more than the model was trained for, 2112 at most, if not given
    ///
    /// Example: --tokens 8K
    #[arg(long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true, requires = "against")]
    tokens: Option<usize>,

    /// Storage type of weights, keys and values; the reference's, or f32, if not given
    ///
    /// Example: --dtype bf16
    #[arg(long, value_name = "bf16|f16|f32")]
    dtype: Option<String>,

    /// Where the model computes: cpu, or a GPU or several that divide its layers, then compared with the CPU (in builds with the feature `cuda`)
    ///
    /// Example: --device cuda
    #[arg(long, value_name = "cpu|cuda[:i,...]", default_value = "cpu")]
    device: String,

    /// Print JSON instead of a table
    ///
    /// Example: --json
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(super) threads: ThreadsFlag,
}

/// Programs to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    Hf,
    Candle,
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    model: &'a str,
    revision: &'a Option<String>,
    weights_sha256: &'a str,
    dtype: &'static str,
    device: &'a str,
    /// What computed the reference; `null` without one.
    reference: Option<&'a str>,
    passed: bool,
    checks: &'a [Check],
}

/// Verifies a model and prints what was found.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a [`RunFailure`] if a check failed.
pub fn run_verify(args: &VerifyArgs) -> Result<()> {
    interrupt::end_with(|| "there is no result; the same command starts from the beginning".to_owned());
    let source = ModelSource::parse(&args.model)?;
    let device = args.device.parse::<Device>()?.of_one_copy()?;
    let dtype = args.dtype.as_deref().map(parse_dtype).transpose()?;
    let reference = args.reference(&source)?;
    let referee = match &reference {
        Some(reference) => Some(Referee::Hf(reference)),
        None => args.candle()?,
    };
    let mut meter = Meter::new(args.json, "opening the model");
    let verified = Verification { source: &source, device, dtype, referee }.run(&mut |what, done, all| {
        meter.at(done as u64, all as u64, 0, || format!("check {} of {all}: {what}", done + 1));
    })?;
    meter.end();
    verified.notes.iter().for_each(|note| eprintln!("note: {note}"));
    if args.json {
        print_json(&serde_json::to_string_pretty(&printed(args, &verified))?)?;
    } else {
        print(&table(&verified))?;
    }
    conclude(&verified.checks)
}

impl VerifyArgs {
    /// The reference that transformers computed, if the model is compared with it.
    fn reference(&self, source: &ModelSource) -> Result<Option<HfReference>> {
        if let Some(path) = &self.reference {
            return Ok(Some(HfReference::read(path)?));
        }
        if let Some(tokens) = self.tokens.filter(|tokens| *tokens < 2) {
            let what = format!("--tokens is {tokens}: a text needs two");
            return Err(UsageError::new(what).hint("give --tokens a number from 2").into());
        }
        if self.against != Some(Against::Hf) {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        interrupt::remove_at_end(folder.path());
        let out = folder.path().join("reference.safetensors");
        let dtype = parse_dtype(self.dtype.as_deref().unwrap_or("f32"))?;
        write_reference(&self.python, source, dtype, self.tokens, &out)?;
        Ok(Some(HfReference::read(&out)?))
    }

    /// The referee candle, if the model is compared with it.
    #[cfg(feature = "candle")]
    fn candle(&self) -> Result<Option<Referee<'_>>, UsageError> {
        Ok((self.against == Some(Against::Candle)).then_some(Referee::Candle { tokens: self.tokens }))
    }

    /// An error if candle is asked for, because this build lacks it.
    #[cfg(not(feature = "candle"))]
    fn candle(&self) -> Result<Option<Referee<'_>>, UsageError> {
        match self.against {
            Some(Against::Candle) => Err(UsageError::new("--against candle: this build has no candle-transformers")
                .hint("build it in: cargo build --release --features candle")),
            _ => Ok(None),
        }
    }
}

fn printed<'a>(args: &'a VerifyArgs, verified: &'a Verified) -> Printed<'a> {
    Printed {
        model: &verified.model,
        revision: &verified.revision,
        weights_sha256: &verified.weights_sha256,
        dtype: verified.dtype.name(),
        device: &args.device,
        reference: verified.referee.as_deref(),
        passed: !verified.checks.iter().any(Check::is_failure),
        checks: &verified.checks,
    }
}

/// A line for each check, and below them what to do about those that failed.
fn table(verified: &Verified) -> String {
    let reference = verified.referee.as_deref();
    let against = reference.map_or("alone: no reference".to_owned(), |reference| format!("against {reference}"));
    let mut lines = vec![format!("{} in {}, {against}", verified.model, verified.dtype.name()), String::new()];
    lines.push(format!("{:<15} {:<8} {:<17} {}", "check", "result", "number (limit)", "found"));
    lines.push("─".repeat(80));
    for check in &verified.checks {
        let number = match (check.value, check.limit) {
            (Some(value), Some(limit)) => format!("{} ({})", short(value), short(limit)),
            _ => String::new(),
        };
        lines.push(format!("{:<15} {:<8} {number:<17} {}", check.name, check.result.name(), check.found));
        if let Some(advice) = check.advice.as_ref().filter(|_| check.result == CheckResult::Fail) {
            lines.push(format!("{:<15} look at: {advice}", ""));
        }
    }
    lines.push(String::new());
    if reference.is_none() {
        lines.push(
            "A reference says more: add --against hf, or --reference with a file by scripts/verify_hf.py (docs/verify.md)."
                .to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

/// A number in a few characters.
fn short(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e6 { format!("{number}") } else { format!("{number:.1e}") }
}

/// An error that names the failed checks, if any.
fn conclude(checks: &[Check]) -> Result<()> {
    let failed: Vec<&str> = checks.iter().filter(|check| check.is_failure()).map(|check| check.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let judged = checks.iter().filter(|check| matches!(check.result, CheckResult::Pass | CheckResult::Fail)).count();
    let what = format!("{} of {judged} checks failed: {}", failed.len(), failed.join(", "));
    let hint = "the first of them often explains the others; docs/verify.md says what each one means".to_owned();
    Err(RunFailure { what, hint }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 3.0, 1e-3, 0.25, 1e9].map(short), ["0", "3", "1.0e-3", "2.5e-1", "1.0e9"]);
    }
}
