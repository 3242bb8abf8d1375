//! The digest of an example's question, by which records are compared, paired, merged and resumed: never by a task's name.

use serde_json::{Value, json};

use super::example_input::ExampleInput;
use crate::records::record::Record;
use spattn_model::checksum::sha256_hex;
use spattn_tasks::likelihood::{Measure, Scoring};

/// The hexadecimal digits of a digest: 128 bits.
const DIGITS: usize = 32;

/// The digest of an example: all tokens read or scored, the references, how answers are scored, and where they end.
///
/// It is computed from JSON, so that it is the same on every machine and with every compiler version.
pub(crate) fn digest(material: &ExampleInput) -> String {
    let content = match material {
        ExampleInput::Prompt(fitted) => {
            let (e, rules) = (&fitted.example, &fitted.example.rules);
            let scoring = json!([e.references, e.all_classes, e.metric, e.also, rules.first_line]);
            json!([fitted.prompt.ids, scoring, e.max_new_tokens, rules.ends_at_line, rules.until])
        }
        ExampleInput::Passage(passage) => {
            let continuations: Vec<Value> =
                passage.continuations.iter().map(|c| json!([c.tokens, c.given, c.words, c.bytes])).collect();
            let scoring = match passage.scoring {
                Scoring::Perplexity => json!("perplexity"),
                Scoring::Choice { right, normalised } => json!(["choice", right, normalised]),
            };
            json!([passage.prompt, continuations, scoring])
        }
    };
    sha256_hex(content.to_string().as_bytes())[..DIGITS].to_owned()
}

/// Describes how a record's example differs from `material`; `None` if it does not, as far as the record tells.
pub(crate) fn difference(record: &Record, material: &ExampleInput) -> Option<String> {
    let is_same = match &record.example_sha256 {
        Some(then) => digest(material) == **then,
        None => false,
    };
    if is_same {
        return None;
    }
    let (then, now) = (Asked::of_record(record), Asked::of_material(material));
    let differing = then.0.iter().zip(&now.0).find_map(|((name, then), (_, now))| match (then, now) {
        (Some(then), Some(now)) if then != now => Some(format!("{name} was {}, is {}", short(then), short(now))),
        _ => None,
    });
    // If everything that the record contains is equal, the difference is in the prompt, which it does not contain.
    differing.or_else(|| record.example_sha256.is_some().then(|| "its text has changed".to_owned()))
}

/// The parts of an example that records contain, by name; `None` if a record lacks one.
struct Asked([(&'static str, Option<Value>); 6]);

impl Asked {
    fn new(values: [Option<Value>; 6]) -> Self {
        const NAMES: [&str; 6] = [
            "the question",
            "the answer key",
            "the metric",
            "the limit of tokens to generate",
            "the number of tokens to score",
            "the number of prompt tokens",
        ];
        let mut values = values.into_iter();
        Self(NAMES.map(|name| (name, values.next().flatten())))
    }

    fn of_record(r: &Record) -> Self {
        let is_scored = r.metric.is_some();
        Self::new([
            (!r.question.is_empty()).then(|| json!(&*r.question)),
            (r.measure == Measure::Score).then(|| json!(&*r.references)),
            r.metric.map(|metric| json!(metric)),
            (is_scored && r.max_new_tokens > 0).then(|| json!(r.max_new_tokens)),
            r.likelihood.as_deref().map(|l| json!(l.tokens)),
            Some(json!(r.prompt_tokens)),
        ])
    }

    fn of_material(material: &ExampleInput) -> Self {
        match material {
            ExampleInput::Prompt(fitted) => {
                let example = &fitted.example;
                Self::new([
                    Some(json!(elide_middle(&example.question))),
                    Some(json!(example.references)),
                    Some(json!(example.metric)),
                    Some(json!(example.max_new_tokens)),
                    None,
                    Some(json!(fitted.prompt.ids.len())),
                ])
            }
            ExampleInput::Passage(passage) => {
                let (key, scored) = match passage.scoring {
                    Scoring::Perplexity => (None, Some(passage.continuations[0].tokens.len())),
                    Scoring::Choice { right, .. } => (Some(json!([passage.continuations[right].text])), None),
                };
                let scored = scored.map(|tokens| json!(tokens));
                Self::new([None, key, None, None, scored, Some(json!(passage.prompt.len()))])
            }
        }
    }
}

/// A value as JSON, cut at the end.
fn short(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A text of at most about 500 characters, shortened in the middle.
pub(crate) fn elide_middle(text: &str) -> String {
    const HALF: usize = 250;
    let text = text.trim();
    let from = |at: usize| text.char_indices().nth(at).map(|(i, _)| i);
    let count = text.chars().count();
    match (count > 2 * HALF, from(HALF), from(count.saturating_sub(HALF))) {
        (true, Some(head), Some(tail)) => format!("{} … {}", &text[..head], &text[tail..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::truncate::TruncatedExample;
    use crate::records::testing::record;
    use spattn_model::tokenizer::PromptTokens;
    use spattn_tasks::likelihood::{Continuation, Passage};
    use spattn_tasks::metrics::Metric;
    use spattn_tasks::{Example, PromptRules};

    static ENDS: [String; 1] = [String::new()];

    fn prompt(change: impl Fn(&mut Example, &mut Vec<u32>)) -> ExampleInput {
        let mut example = Example {
            task: "jsonl:rows".to_owned(),
            length: 0,
            index: 3,
            context: "Alice is in Rome. ".to_owned(),
            question: "Where is Alice?".to_owned(),
            answer_prefix: String::new(),
            references: vec!["Rome".to_owned()],
            all_classes: Vec::new(),
            metric: Metric::StringMatchAll,
            also: Vec::new(),
            max_new_tokens: 8,
            depth: None,
            source: "rows.jsonl".to_owned(),
            rules: PromptRules::default(),
        };
        let mut ids = vec![1, 2, 3];
        change(&mut example, &mut ids);
        let prompt =
            PromptTokens { ids, offsets: Vec::new(), text: String::new(), user_start: 0, user_cut: 0, bos_count: 1 };
        ExampleInput::Prompt(Box::new(TruncatedExample { example, prompt, cut_tokens: None }))
    }

    fn passage(change: impl Fn(&mut Passage)) -> ExampleInput {
        let of = |text: &str| Continuation { tokens: vec![5, 6], given: 0, text: text.into(), words: 1, bytes: 4 };
        let mut passage = Passage {
            task: "mc/x".to_owned(),
            length: 0,
            index: 3,
            source: String::new(),
            prompt: vec![1, 2],
            continuations: vec![of("yes"), of("no")],
            scoring: Scoring::Choice { right: 0, normalised: false },
        };
        change(&mut passage);
        ExampleInput::Passage(passage)
    }

    /// The digest covers everything that determines a prompt, an answer or its score, but not names and positions.
    #[test]
    fn a_digest_is_of_content_alone() {
        let changed = [
            prompt(|_, ids| ids[1] = 7),
            prompt(|e, _| e.references = vec!["Oslo".to_owned()]),
            prompt(|e, _| e.all_classes = vec!["Oslo".to_owned()]),
            prompt(|e, _| e.metric = Metric::QaF1),
            prompt(|e, _| e.also = vec![Metric::QaF1]),
            prompt(|e, _| e.max_new_tokens = 9),
            prompt(|e, _| e.rules.first_line = true),
            prompt(|e, _| e.rules.ends_at_line = true),
            prompt(|e, _| e.rules.until = &ENDS),
            passage(|_| {}),
            passage(|p| p.prompt[0] = 9),
            passage(|p| p.continuations[1].tokens[0] = 9),
            passage(|p| p.continuations[1].given = 1),
            passage(|p| p.scoring = Scoring::Choice { right: 1, normalised: false }),
            passage(|p| p.scoring = Scoring::Choice { right: 0, normalised: true }),
            passage(|p| p.scoring = Scoring::Perplexity),
        ];
        let mut digests: Vec<String> = changed.iter().map(digest).collect();
        digests.push(digest(&prompt(|_, _| {})));
        let all = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all);
        let elsewhere = prompt(|e, _| (e.task, e.index, e.source) = ("jsonl:other".into(), 4, "other.jsonl".into()));
        assert_eq!(digest(&elsewhere), digest(&prompt(|_, _| {})));
    }

    #[test]
    fn a_difference_is_named() {
        let of = |material: &ExampleInput| Record {
            question: "Where is Alice?".into(),
            references: vec!["Rome".to_owned()].into(),
            metric: Some(Metric::StringMatchAll),
            max_new_tokens: 8,
            prompt_tokens: 3,
            example_sha256: Some(digest(material).into()),
            ..record("jsonl:rows", "full", 3, 1.0)
        };
        let recorded = of(&prompt(|_, _| {}));
        let old = Record { example_sha256: None, ..recorded.clone() };
        let told = |now: &ExampleInput| (difference(&recorded, now), difference(&old, now));
        assert_eq!(told(&prompt(|_, _| {})), (None, None));
        let both = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
        let oslo = prompt(|e, _| e.references = vec!["Oslo".to_owned()]);
        assert_eq!(told(&oslo), both(r#"the answer key was ["Rome"], is ["Oslo"]"#));
        let bob = prompt(|e, _| e.question = "Where is Bob?".to_owned());
        assert_eq!(told(&bob).1, both(r#"the question was "Where is Alice?", is "Where is Bob?""#).1);
        let f1 = prompt(|e, _| e.metric = Metric::QaF1);
        assert_eq!(told(&f1), both(r#"the metric was "string_match_all", is "qa_f1""#));
        let more = prompt(|e, _| e.max_new_tokens = 9);
        assert_eq!(told(&more), both("the limit of tokens to generate was 8, is 9"));
        let longer = prompt(|_, ids| ids.push(4));
        assert_eq!(told(&longer), both("the number of prompt tokens was 3, is 4"));
        // The record does not contain the prompt, so that only the digest shows the change.
        let other_text = prompt(|_, ids| ids[1] = 7);
        assert_eq!(told(&other_text), (Some("its text has changed".to_owned()), None));
    }

    #[test]
    fn long_questions_are_abridged() {
        let text = |n: usize| (0..n).map(|i| char::from_u32('à' as u32 + i as u32 % 20).unwrap()).collect::<String>();
        assert_eq!(elide_middle(&format!("  {}\n", text(500))), text(500));
        let long = text(501);
        let (head, tail): (String, String) = (long.chars().take(250).collect(), long.chars().skip(251).collect());
        assert_eq!(elide_middle(&long), format!("{head} … {tail}"));
    }
}
