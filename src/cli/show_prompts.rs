//! `spattn data show`: prints prompts as a model reads them.

use std::fmt::Write;

use anyhow::Result;
use clap::Args;

use super::numbers;
use super::output::print;
use super::prompt_args::{PromptArgs, PromptModel};
use spattn_eval::config::protocol::Protocol;
use spattn_eval::examples::token_counter::Counter;
use spattn_eval::examples::truncate::{TruncatedExample, check_said, fit};
use spattn_model::tokenizer::Tokenizer;

/// Print the prompts of a task, or of rows of your own, as the model reads them.
///
/// Each prompt is divided into context, question and start of the answer, with the chat template around them, and the answers that it is
/// scored by. Nothing is run: only the model's config and tokenizer are used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn data show --task jsonl:my-questions.jsonl
  spattn data show --task ruler/vt --length 4096 --samples 2 --whole
  spattn data show --task jsonl:my-questions.jsonl --model Qwen/Qwen2.5-0.5B-Instruct")]
pub struct ShowArgs {
    #[command(flatten)]
    prompts: PromptArgs,

    /// Length in tokens, prompt and answer together: 1K if not given. Prompts of LongBench and its kin are cut to it; rows of your own are
    /// never cut
    ///
    /// Example: --length 4096
    #[arg(short = 'l', long, value_name = "N", value_parser = numbers::tokens, allow_negative_numbers = true)]
    length: Option<usize>,

    /// Examples of each task
    ///
    /// Example: --samples 3
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = numbers::samples, allow_negative_numbers = true)]
    samples: usize,

    /// Print long parts as a whole; otherwise their middle is left out
    ///
    /// Example: --whole | less
    #[arg(long)]
    whole: bool,
}

/// The tokens of generated examples if the user gives no length.
const SHORT: usize = 1024;

/// Prints the prompts, by task and index.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`](spattn_base::error::UsageError); files that cannot be read.
pub fn show_prompts(args: &ShowArgs) -> Result<()> {
    let tasks = args.prompts.tasks()?;
    let PromptModel { tokenizer, context } = args.prompts.model()?;
    let counter = Counter(&tokenizer);
    for task in &tasks {
        let length = match () {
            () if task.is_sized() => args.length.unwrap_or(SHORT),
            () if task.is_cut() => args.length.unwrap_or(0),
            () => 0,
        };
        let count = task.available().unwrap_or(usize::MAX).min(args.samples.saturating_mul(task.cells()));
        for index in 0..count {
            let example = fit(task.example(length, index, args.prompts.seed, &counter)?, context, &tokenizer)?;
            check_said(&example.example, &example.prompt, &tokenizer)?;
            print(&shown(&example, task.available(), &tokenizer, args.whole))?;
        }
        task.notes().iter().for_each(|note| eprintln!("note: {note}"));
    }
    Ok(())
}

/// The text that shows one example.
fn shown(fitted: &TruncatedExample, available: Option<usize>, tokenizer: &Tokenizer, whole: bool) -> String {
    let TruncatedExample { example, prompt, .. } = fitted;
    let is_templated = !example.rules.plain && tokenizer.has_chat();
    let of = available.map_or(String::new(), |all| format!(" of {all}"));
    let (tokens, most) = (prompt.ids.len(), example.max_new_tokens);
    let mut text =
        format!("{}, example {}{of}: {tokens} tokens, then up to {most} new ones\n", example.task, example.index + 1);
    let _ = writeln!(text, "scored by {} against {}", example.metric, listed(&example.references));
    let _ = writeln!(text, "chat template: {}", if is_templated { "the model's" } else { "none" });
    let start_bytes = example.answer_start(is_templated).len();
    // Text that the template adds around the user's turn is shown with the part next to it.
    let question_at =
        (prompt.user_start + example.context.len().saturating_sub(prompt.user_cut)).min(prompt.text.len());
    let answer_at = (prompt.text.len() - start_bytes).max(question_at);
    let in_prefix = Protocol::Question.prefix_tokens(prompt, example.context.len());
    let answer_tokens = tokens - prompt.token_at(answer_at);
    for (name, part, count) in [
        ("context", &prompt.text[..question_at], in_prefix),
        ("question", &prompt.text[question_at..answer_at], (tokens - in_prefix).saturating_sub(answer_tokens)),
        ("start of the answer", &prompt.text[answer_at..], answer_tokens),
    ] {
        if !part.is_empty() {
            let part = if whole { part.to_owned() } else { shortened(part) };
            let _ = writeln!(text, "--- {name} ({count} tokens)\n{part}");
        }
    }
    text + "---\n"
}

/// Answers in quotes.
fn listed(references: &[String]) -> String {
    references.iter().map(|reference| format!("{reference:?}")).collect::<Vec<_>>().join(", ")
}

/// A text without its middle, if it is long.
fn shortened(text: &str) -> String {
    const KEPT: usize = 400;
    let count = text.chars().count();
    if count <= 2 * KEPT + 100 {
        return text.to_owned();
    }
    let at = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (&text[..at(KEPT)], &text[at(count - KEPT)..]);
    format!("{head}\n[... {} characters, shown with --whole ...]\n{tail}", count - 2 * KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_middle_of_a_long_text_is_left_out() {
        assert_eq!(shortened("short"), "short");
        let text = "é".repeat(2000);
        let shown = shortened(&text);
        assert!(shown.contains("[... 1200 characters") && shown.starts_with("éé") && shown.ends_with('é'));
        assert_eq!(shown.matches('é').count(), 800);
        assert_eq!(listed(&["a".to_owned(), "b \"c\"".to_owned()]), r#""a", "b \"c\"""#);
    }
}
