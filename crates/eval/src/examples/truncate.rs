//! Truncates prompts that are too long: cuts out the middle, as LongBench's `pred.py` does, or drops the end of the context, as the
//! benchmark ZeroSCROLLS does.
//!
//! The user's turn is tokenized without the chat template (with a BOS token if the model has one), truncated, and decoded to text. The
//! chat template is applied afterwards, so that the whole prompt may have a few tokens more.

use anyhow::Result;

use spattn_base::error::UsageError;
use spattn_model::OpenModel;
use spattn_model::tokenizer::{PromptTokens, Tokenizer};
use spattn_tasks::{Cut, Example};

/// The tokens of an example's prompt as the model reads it.
///
/// # Errors
/// The errors of [`Tokenizer::encode_prompt`].
pub fn encode(tokenizer: &Tokenizer, example: &Example) -> Result<PromptTokens, UsageError> {
    let user = example.user_turn();
    match example.rules.plain {
        true => tokenizer.encode_plain(&user, &example.answer_start(false)),
        false => tokenizer.encode_prompt(&user, &example.answer_start(tokenizer.has_chat())),
    }
}

/// Checks that the tokens contain some of the user's turn, and that the turn does not already contain a chat template.
///
/// # Errors
/// If no token of the user's turn is left, or it already contains a chat template.
pub fn check_said(example: &Example, prompt: &PromptTokens, tokenizer: &Tokenizer) -> Result<(), UsageError> {
    let user = example.user_turn();
    let said = prompt.user_start..prompt.user_start + user.len().saturating_sub(prompt.user_cut);
    if !prompt.offsets.iter().any(|(start, end)| start < end && *start < said.end && *end > said.start) {
        return Err(UsageError::new("the prompt has no tokens: there is nothing to answer")
            .hint("it is empty, or the normaliser of the model's tokenizer.json removes all of it"));
    }
    match example.rules.may_be_templated.then(|| tokenizer.markup_in(&user)).transpose()?.flatten() {
        None => Ok(()),
        Some(sign) => {
            let what = format!(
                "the prompt is in a chat template already (`{sign}`), and the model's template would be applied on top"
            );
            Err(UsageError::new(what).hint(
                "use jsonl:FILE:chat=false, or --no-chat for all tasks, to run prompts as they are; chat=true applies the template anyway",
            ))
        }
    }
}

/// Checks that a text is not so much longer than `most` tokens that tokenizing all of it would be a waste of time.
///
/// # Errors
/// If it is that much longer, or the tokenizer fails.
pub fn check_bytes(text: &str, model: &OpenModel, most: usize) -> Result<(), UsageError> {
    // Few texts have more bytes per token. Texts that pass are tokenized as a whole later and counted exactly.
    const BYTES: usize = 8;
    // A margin for the tokens that are added where pieces meet.
    let enough = most + most / 8 + 1024;
    if text.len() <= BYTES * enough || model.tokenizer.count_past(text, enough)? <= enough {
        return Ok(());
    }
    let what =
        format!("a text of {} bytes, more than {most} tokens, is beyond the context of {}", text.len(), model.id);
    Err(UsageError::new(what).hint("leave the row out"))
}

/// Cuts the user's turn to `keep` tokens if it has more, and returns the number of tokens cut out.
///
/// # Errors
/// If nothing would be left, or the tokenizer fails.
pub fn cut(example: &mut Example, keep: usize, tokenizer: &Tokenizer) -> Result<usize, UsageError> {
    match example.rules.cut.clone() {
        Cut::Nothing => Ok(0),
        Cut::Middle => cut_middle(example, keep, tokenizer),
        Cut::EndOfContext(separator) => cut_end(example, &separator, keep, tokenizer),
    }
}

fn too_few(example: &Example, keep: usize) -> UsageError {
    UsageError::new(format!("{}: no prompt can be cut to {keep} tokens", example.task))
        .hint("choose a greater --length")
}

/// Keeps half of the tokens from the start and half from the end.
///
/// If the kept end contains the whole question, the question stays as it is; otherwise the kept end becomes the question.
fn cut_middle(example: &mut Example, keep: usize, tokenizer: &Tokenizer) -> Result<usize, UsageError> {
    let ids = tokenizer.encode_text(&example.user_turn(), true)?;
    if ids.len() <= keep {
        return Ok(0);
    }
    let half = keep / 2;
    if half == 0 {
        return Err(too_few(example, keep));
    }
    let front = tokenizer.decode(&ids[..half])?;
    let back = tokenizer.decode(&ids[ids.len() - half..])?;
    match back.strip_suffix(example.question.as_str()) {
        Some(context) => example.context = front + context,
        None => (example.context, example.question) = (front, back),
    }
    Ok(ids.len() - 2 * half)
}

/// Keeps the separator and the question, and as much of the start of the context as fits.
fn cut_end(example: &mut Example, separator: &str, keep: usize, tokenizer: &Tokenizer) -> Result<usize, UsageError> {
    let all = tokenizer.encode_text(&example.user_turn(), true)?.len();
    if all <= keep {
        return Ok(0);
    }
    let end = tokenizer.encode_text(&format!("{separator}{}", example.question), false)?.len();
    let most_context = keep.checked_sub(end).filter(|most| *most > 0).ok_or_else(|| too_few(example, keep))?;
    let context = tokenizer.encode_text(&example.context, true)?;
    let kept = &context[..most_context.min(context.len())];
    example.context = tokenizer.decode(kept)? + separator;
    Ok(all.saturating_sub(kept.len() + end))
}

/// An example as it is run, truncated if necessary.
pub struct TruncatedExample {
    /// The example with the truncated prompt.
    pub example: Example,
    /// The tokens of its prompt.
    pub prompt: PromptTokens,
    /// The number of tokens cut out; `None` if the example's rules allow no cut.
    pub cut_tokens: Option<usize>,
}

/// Truncates an example, if its rules allow it, to `example.length` tokens (0 for no limit). Unless that length is beyond `context`,
/// prompt and answer are also made to fit into `context` tokens.
///
/// # Errors
/// The errors of [`cut`].
pub fn fit(example: Example, context: usize, tokenizer: &Tokenizer) -> Result<TruncatedExample, UsageError> {
    if example.rules.cut == Cut::Nothing {
        return Ok(TruncatedExample { prompt: encode(tokenizer, &example)?, example, cut_tokens: None });
    }
    let most = if example.length > context { usize::MAX } else { context };
    let most_prompt = most.saturating_sub(example.max_new_tokens);
    let mut keep = if example.length == 0 { most_prompt } else { most_prompt.min(example.length) };
    loop {
        let mut shorter = example.clone();
        let cut_tokens = Some(cut(&mut shorter, keep, tokenizer)?);
        let prompt = encode(tokenizer, &shorter)?;
        match prompt.ids.len().saturating_sub(most_prompt) {
            0 => return Ok(TruncatedExample { example: shorter, prompt, cut_tokens }),
            // The excess comes from the chat template, and from where the two halves meet.
            excess => keep = keep.saturating_sub(excess),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;
    use spattn_tasks::PromptRules;
    use spattn_tasks::metrics::Metric;

    fn tokenizer() -> Tokenizer {
        let files = ModelSource::parse("builtin").unwrap().resolve().unwrap();
        Tokenizer::load(&files, &files.config().unwrap(), TokenizerOptions::default()).unwrap()
    }

    fn example(context: &str, question: &str) -> Example {
        Example {
            task: "longbench/hotpotqa".to_owned(),
            length: 0,
            index: 0,
            context: context.to_owned(),
            question: question.to_owned(),
            answer_prefix: String::new(),
            references: vec!["x".to_owned()],
            all_classes: Vec::new(),
            metric: Metric::QaF1,
            also: Vec::new(),
            max_new_tokens: 10,
            depth: None,
            source: "test".to_owned(),
            rules: PromptRules { cut: Cut::Middle, ..PromptRules::default() },
        }
    }

    fn long(words: usize) -> String {
        (0..words).map(|i| format!("word{i} ")).collect()
    }

    #[test]
    fn tokens_are_counted_piece_by_piece_and_no_further_than_asked_for() {
        let tokenizer = tokenizer();
        let count = |text: &str, most: usize| tokenizer.count_past(text, most).unwrap();
        let exact = |text: &str| tokenizer.encode_text(text, false).unwrap().len();
        let short = "A house by the sea, é段\u{1f600}.\n".repeat(100);
        assert_eq!((count(&short, usize::MAX), count("", 0)), (exact(&short), 0));
        // Several pieces, with and without white space.
        for text in [short.repeat(20), "段落".repeat(50_000), "x".repeat(200_000)] {
            let (counted, all, pieces) = (count(&text, usize::MAX), exact(&text), text.len() / (1 << 15) + 1);
            assert!(all <= counted + 2 * pieces && counted <= all + 2 * pieces, "{counted} of {all}");
        }
        let stopped = count(&short.repeat(1000), 1000);
        assert!(stopped > 1000 && stopped < exact(&short.repeat(25)), "{stopped}: one piece");
    }

    #[test]
    fn half_is_kept_from_either_end() {
        let tokenizer = tokenizer();
        let whole = example(&long(400), "And the question?");
        let ids = tokenizer.encode_text(&whole.user_turn(), true).unwrap();
        for keep in [2, 3, 99, 100, ids.len() - 1] {
            let mut cut = whole.clone();
            let gone = super::cut(&mut cut, keep, &tokenizer).unwrap();
            let half = keep / 2;
            assert_eq!(gone, ids.len() - 2 * half, "an odd number loses one more, as published");
            let front = tokenizer.decode(&ids[..half]).unwrap();
            let back = tokenizer.decode(&ids[ids.len() - half..]).unwrap();
            assert_eq!(cut.user_turn(), format!("{front}{back}"));
            assert!(half < 50 || cut.question == whole.question);
        }
        let mut same = whole.clone();
        assert_eq!(super::cut(&mut same, ids.len(), &tokenizer).unwrap(), 0);
        assert_eq!(same, whole);
        assert!(super::cut(&mut same, 1, &tokenizer).is_err());
    }

    #[test]
    fn a_question_that_is_cut_itself_is_all_that_is_kept_of_the_end() {
        let tokenizer = tokenizer();
        let mut cut = example("Before. ", &long(300));
        super::cut(&mut cut, 40, &tokenizer).unwrap();
        assert!(cut.context.starts_with("Before.") && cut.question.ends_with("word299 "));
        assert!(tokenizer.encode_text(&cut.question, false).unwrap().len() <= 21);
    }

    #[test]
    fn a_context_loses_its_end_and_says_so() {
        let tokenizer = tokenizer();
        let separator = "... [The rest of the text is omitted]\n\n";
        let rules = PromptRules { cut: Cut::EndOfContext(separator.to_owned()), ..PromptRules::default() };
        let whole = Example { rules, ..example(&long(400), "And the question?") };
        let ids = tokenizer.encode_text(&whole.context, true).unwrap();
        let end = tokenizer.encode_text(&format!("{separator}{}", whole.question), false).unwrap().len();
        let all = tokenizer.encode_text(&whole.user_turn(), true).unwrap().len();
        for keep in [end + 1, 100, all - 1] {
            let mut shorter = whole.clone();
            assert_eq!(cut(&mut shorter, keep, &tokenizer).unwrap(), all - keep);
            let front = tokenizer.decode(&ids[..keep - end]).unwrap();
            assert_eq!((shorter.context, &shorter.question), (format!("{front}{separator}"), &whole.question));
        }
        let mut same = whole.clone();
        assert_eq!(cut(&mut same, all, &tokenizer).unwrap(), 0);
        assert_eq!(same, whole);
        assert!(cut(&mut same, end, &tokenizer).unwrap_err().what.contains("no prompt can be cut"));
        let fitted = fit(Example { length: 100, ..whole.clone() }, 4096, &tokenizer).unwrap();
        assert!(fitted.example.user_turn().ends_with(&format!("{separator}And the question?")), "the question stays");
        assert!(fitted.prompt.ids.len() <= 104);
    }

    #[test]
    fn prompt_and_answer_fit_the_context_unless_a_longer_length_is_wanted() {
        let tokenizer = tokenizer();
        let tokens = |length: usize, context: usize| {
            let fitted = fit(Example { length, ..example(&long(400), "Q?") }, context, &tokenizer).unwrap();
            (fitted.prompt.ids.len(), fitted.cut_tokens.unwrap())
        };
        let (whole, none) = tokens(0, 100_000);
        assert_eq!(none, 0);
        let (cut, gone) = tokens(0, 200);
        assert!(cut <= 190 && cut > 180 && gone >= whole - 190, "{cut} {gone}");
        assert!(tokens(100, 200).0 <= 104);
        assert_eq!(tokens(50_000, 200), (whole, 0));
        let uncut = Example { rules: PromptRules::default(), ..example(&long(400), "Q?") };
        assert_eq!(fit(uncut, 200, &tokenizer).unwrap().cut_tokens, None);
    }

    proptest! {
        /// Truncation of any text never panics and never keeps too much.
        #[test]
        fn any_text_can_be_cut(context in ".{0,80}", question in "(.|\n|é|段){0,40}", keep in 2usize..60) {
            let tokenizer = tokenizer();
            let mut cut = example(&context, &question);
            let before = tokenizer.encode_text(&cut.user_turn(), true).unwrap().len();
            let gone = super::cut(&mut cut, keep, &tokenizer).unwrap();
            prop_assert_eq!(gone == 0, before <= keep);
            prop_assert!(before - gone <= keep);
        }
    }
}
