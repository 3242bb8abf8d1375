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

/// Returns the documents of a prompt, if it numbers them as `Document 1:` and so on, each at the start of a line.
pub(super) fn parts(example: &Example, prompt: &PromptTokens) -> Vec<Part> {
    let context = example.context.as_str();
    let starts = starts(context);
    let ends = starts.iter().skip(1).copied().chain([context.trim_end().len()]);
    let ranges: Vec<Range<usize>> =
        starts.iter().copied().zip(ends).map(|(start, end)| start..end.max(start)).collect();
    let texts: Vec<&str> = ranges.iter().map(|range| &context[range.clone()]).collect();
    let is_right = right_ones(&texts, &example.question, &example.references);
    let part = |(range, is_right): (&Range<usize>, bool)| Part {
        tokens: prompt.token_of_user_byte(range.start)..prompt.token_of_user_byte(range.end),
        is_right,
    };
    ranges.iter().zip(is_right).map(part).collect()
}

/// Returns for each document whether it is right: of those that hold an answer, it has most words in common with the question. A common
/// word counts one over the number of documents that contain it, so a name counts more than `the`. Tied documents are all right.
fn right_ones(documents: &[&str], question: &str, answers: &[String]) -> Vec<bool> {
    let of_documents: Vec<BTreeSet<String>> = documents.iter().map(|text| words(text)).collect();
    let weight = |word: &String| 1.0 / of_documents.iter().filter(|words| words.contains(word)).count() as f64;
    let asked = words(question);
    let in_common = |(text, words): (&&str, &BTreeSet<String>)| {
        let has_answer = answers.iter().any(|answer| text.contains(answer.as_str()));
        has_answer.then(|| words.intersection(&asked).map(weight).sum::<f64>())
    };
    let scores: Vec<Option<f64>> = documents.iter().zip(&of_documents).map(in_common).collect();
    let most = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter().map(|score| score.is_some_and(|score| score >= most)).collect()
}

/// Returns the byte offsets where documents start.
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
    fn names_outweigh_words_that_many_documents_have() {
        let documents = [
            "Alma Selohart works as a detective. Writing about the end of the road is harder than it looks.",
            "Ingrid Dunorwell works as a detective at Rosolsystems.",
            "The job of the potter is what the town needs.",
            "The rule of the house is simple.",
        ];
        let question = "What is the job of Ingrid Dunorwell?";
        let answers = ["detective".to_owned()];
        // The first has three of the question's words (`the`, `of`, `is`), the second two.
        assert_eq!(right_ones(&documents, question, &answers), [false, true, false, false]);
        assert_eq!(right_ones(&documents, question, &["butcher".to_owned()]), [false; 4], "no document has the answer");
        let twice = [documents[1], documents[1], documents[3]];
        assert_eq!(right_ones(&twice, question, &answers), [true, true, false], "nothing tells them apart");
    }

    #[test]
    fn documents_begin_in_order_at_lines() {
        let text = "Given.\n\nDocument 1:\nSee Document 2:\nx\n\nDocument 2:\ny\n\nDocument 4:\nz";
        let found = starts(text);
        assert_eq!(found.iter().map(|at| &text[*at..at + 10]).collect::<Vec<_>>(), ["Document 1", "Document 2"]);
        assert_eq!(found[1], text.find("\n\nDocument 2").unwrap() + 2);
        assert!(starts("no documents").is_empty());
    }
}
