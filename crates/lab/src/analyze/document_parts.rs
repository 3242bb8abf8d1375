//! The numbered documents within a prompt, and the one that the question is about.

use std::collections::BTreeSet;
use std::ops::Range;

use spattn_model::tokenizer::PromptTokens;
use spattn_tasks::Example;

/// A document within a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The document's tokens.
    pub tokens: Range<usize>,
    /// Whether the question is about this document.
    pub is_right: bool,
}

/// The documents of a prompt that numbers them: `Document 1:` and so on, each at the start of a line.
pub(super) fn parts(example: &Example, prompt: &PromptTokens) -> Vec<Part> {
    let context = example.context.as_str();
    let starts = starts(context);
    let ends = starts.iter().skip(1).copied().chain([context.trim_end().len()]);
    let ranges: Vec<Range<usize>> =
        starts.iter().copied().zip(ends).map(|(start, end)| start..end.max(start)).collect();
    let asked = words(&example.question);
    let in_common = |range: &Range<usize>| {
        let text = &context[range.clone()];
        let has_answer = example.references.iter().any(|answer| text.contains(answer.as_str()));
        has_answer.then(|| words(text).intersection(&asked).count())
    };
    let scores: Vec<Option<usize>> = ranges.iter().map(in_common).collect();
    let most = scores.iter().flatten().max();
    let part = |(range, score): (&Range<usize>, &Option<usize>)| Part {
        tokens: prompt.token_of_user_byte(range.start)..prompt.token_of_user_byte(range.end),
        is_right: score.is_some() && score.as_ref() == most,
    };
    ranges.iter().zip(&scores).map(part).collect()
}

/// The byte offsets where documents start.
fn starts(context: &str) -> Vec<usize> {
    let (mut starts, mut from) = (Vec::new(), 0);
    for number in 1.. {
        let mark = format!("Document {number}:\n");
        let begins_line = |at: usize| at == 0 || context.as_bytes()[at - 1] == b'\n';
        let found = context[from..].match_indices(&mark).map(|(at, _)| from + at).find(|at| begins_line(*at));
        let Some(at) = found else { break };
        starts.push(at);
        from = at + mark.len();
    }
    starts
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_begin_in_order_at_lines() {
        let text = "Given.\n\nDocument 1:\nSee Document 2:\nx\n\nDocument 2:\ny\n\nDocument 4:\nz";
        let found = starts(text);
        assert_eq!(found.iter().map(|at| &text[*at..at + 10]).collect::<Vec<_>>(), ["Document 1", "Document 2"]);
        assert_eq!(found[1], text.find("\n\nDocument 2").unwrap() + 2);
        assert!(starts("no documents").is_empty());
    }
}
