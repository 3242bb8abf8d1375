//! Tests over all thirteen tasks: published templates, length, determinism.

use super::family::DEFINITIONS;
use super::testing::{Asked, Real, Subwords, Words, example, example_with, shared_data, task};
use super::*;
use crate::metrics::Metric;
use crate::{Example, Family, Positions, PromptCounter, TaskOptions};
use spattn_base::error::UsageError;

/// The published templates (NVIDIA/RULER @c3f5e3b, `scripts/data/synthetic/constants.py`) and answer prefixes.
const PUBLISHED: [(&str, &str, &str, usize); 5] = [
    (
        "niah",
        "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. I will quiz you about the {type_needle_v} afterwards.\n{context}\nWhat are all the special magic {type_needle_v} for {query} mentioned in the provided text?",
        " The special magic {type_needle_v} for {query} mentioned in the provided text are",
        128,
    ),
    (
        "vt",
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find all variables that are assigned the value {query} in the text above.",
        " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assigned the value {query}, they are: ",
        30,
    ),
    (
        "cwe",
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?",
        " Answer: The top 10 words that appear most often in the list are:",
        120,
    ),
    (
        "fwe",
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared words in the above coded text?",
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        50,
    ),
    (
        "qa",
        "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: {query}",
        " Answer:",
        32,
    ),
];

fn all() -> Vec<String> {
    let mut all: Vec<String> = Ruler.catalog().into_iter().map(|t| t.name).collect();
    all.retain(|name| name != "ruler/qa_1" && name != "ruler/qa_2");
    all
}

fn total(e: &Example, counter: &dyn PromptCounter) -> usize {
    counter.prompt_tokens(&e.user_turn(), &e.answer_prefix).unwrap() + e.max_new_tokens
}

#[test]
fn templates_are_the_published_ones_byte_for_byte() {
    for ((base, definition), (name, template, prefix, tokens)) in DEFINITIONS.iter().zip(PUBLISHED) {
        assert_eq!(base.name, name);
        assert_eq!(format!("{}{}", definition.context_template, definition.question_template), template);
        assert_eq!(definition.answer_prefix, prefix);
        assert_eq!(definition.tokens_to_generate, tokens);
        let metric = if name == "qa" { Metric::StringMatchPart } else { Metric::StringMatchAll };
        assert_eq!(definition.metric, metric);
    }
}

#[test]
fn every_context_ends_where_its_question_begins() {
    for name in all() {
        let e = example(&name, 2048, 0);
        assert!(e.context.ends_with('\n'), "{name}");
        assert!(
            e.question.starts_with("What ")
                || e.question.starts_with("Question: ")
                || e.question.starts_with("Answer the question")
        );
        assert!(!e.question.contains('{') && !e.answer_prefix.contains('{') && !e.context.contains('{'), "{name}");
        assert!(!e.references.is_empty() && e.references.iter().all(|r| !r.is_empty()));
    }
}

/// The least fill in percent. A needle of two UUIDs is about an eighth of 512 tokens, so that much may stay
/// free there.
fn least_percent(name: &str, length: usize) -> usize {
    if name == "ruler/niah_multikey_3" && length == 512 { 88 } else { 95 }
}

/// Checks `samples` examples of every task at each length; returns the tasks and lengths that did not fit.
fn check_lengths(counter: &dyn PromptCounter, lengths: &[usize], samples: usize) -> Vec<(String, usize)> {
    let mut too_short = Vec::new();
    for name in all() {
        let task = task(&name, &TaskOptions::default());
        for &length in lengths {
            for index in 0..samples {
                match task.example(length, index, 11, counter) {
                    Ok(e) => {
                        let total = total(&e, counter);
                        assert!(total <= length, "{name} at {length}: {total} tokens");
                        assert!(
                            total * 100 >= least_percent(&name, length) * length,
                            "{name} at {length}: only {total} tokens"
                        );
                    }
                    Err(e) => {
                        assert!(e.to_string().contains("cannot fit"), "{name} at {length}: {e}");
                        too_short.push((name.clone(), length));
                        break;
                    }
                }
            }
        }
    }
    too_short
}

#[test]
fn examples_fill_their_length_counted_in_words() {
    let too_short = check_lengths(&Words, &[512, 1024, 2048, 4096, 8192], 6);
    assert_eq!(too_short, [("ruler/vt".to_owned(), 512)]);
}

#[test]
fn examples_fill_their_length_counted_in_subwords() {
    let too_short = check_lengths(&Subwords, &[512, 1024, 2048, 4096, 8192], 6);
    let names: Vec<&str> = too_short.iter().map(|(name, _)| name.as_str()).collect();
    assert!(too_short.iter().all(|(_, length)| *length == 512), "{too_short:?}");
    assert!(names.iter().all(|n| ["ruler/vt", "ruler/cwe"].contains(n)), "{names:?}");
}

#[test]
fn examples_fill_their_length_with_a_real_tokenizer() {
    let Some(real) = Real::find() else { return };
    let too_short = check_lengths(&real, &[512, 1024, 2048, 4096], 4);
    assert!(too_short.iter().all(|(_, length)| *length == 512), "{too_short:?}");
}

#[test]
fn long_examples_fill_too() {
    assert!(check_lengths(&Words, &[131_072], 1).is_empty());
    assert!(check_lengths(&Subwords, &[65_536], 1).is_empty());
}

#[test]
fn no_task_spins_when_nothing_fits() {
    for name in all() {
        let task = task(&name, &TaskOptions::default());
        for length in [0, 1, 64] {
            let error = task.example(length, 0, 1, &Words).unwrap_err();
            let usage = error.downcast_ref::<UsageError>().expect("a usage error");
            assert!(usage.what.contains(&format!("task `{name}` cannot fit {length} tokens")), "{usage}");
            assert!(usage.hint.is_some());
        }
    }
}

#[test]
fn an_example_depends_on_seed_length_and_index_alone() {
    for name in all() {
        let once = task(&name, &TaskOptions::default());
        let first = once.example(2048, 5, 7, &Subwords).unwrap();
        let again = task(&name, &TaskOptions::default());
        for index in 0..3 {
            again.example(1024, index, 7, &Subwords).unwrap();
        }
        assert_eq!(again.example(2048, 5, 7, &Subwords).unwrap(), first, "{name}");
        assert_ne!(again.example(2048, 6, 7, &Subwords).unwrap().context, first.context, "{name}");
        assert_ne!(again.example(2048, 5, 8, &Subwords).unwrap().context, first.context, "{name}");
    }
}

#[test]
fn the_record_says_where_text_came_from() {
    assert_eq!(example("ruler/niah_single_1", 1024, 0).source, "words=petname");
    assert_eq!(example("ruler/niah_single_2", 1024, 0).source, "essays=grammar words=petname");
    assert_eq!(example("ruler/cwe", 2048, 0).source, "words=petname");
    let published = example_with("ruler/vt", 1024, 0, Positions::Published, &Words);
    assert_eq!(published.source, "generated positions=published");
    let Some(data) = shared_data() else { return };
    let options = TaskOptions { data: Some(data), ..TaskOptions::default() };
    let e = task("ruler/niah_single_2", &options).example(1024, 0, 1, &Words).unwrap();
    assert_eq!(e.source, "essays=PaulGrahamEssays.json words=wonderwords");
    assert_eq!(Ruler.expand("ruler", &options).unwrap()[11..], ["ruler/qa_1", "ruler/qa_2"]);
}

#[test]
fn published_essays_and_words_fill_too() {
    let Some(data) = shared_data() else { return };
    let options = TaskOptions { data: Some(data), ..TaskOptions::default() };
    for name in ["ruler/niah_single_2", "ruler/niah_multiquery", "ruler/cwe"] {
        let task = task(name, &options);
        for length in [1024, 8192, 131_072] {
            let e = task.example(length, 1, 2, &Subwords).unwrap();
            let total = total(&e, &Subwords);
            assert!(total <= length && total * 100 >= length * 95, "{name}: {total} of {length}");
        }
    }
}

/// Prints one example of every task to read:
/// `cargo test --release --lib tasks::ruler::tests::print -- --ignored --nocapture`
#[test]
#[ignore = "prints examples for reading"]
fn print_examples() {
    let options = TaskOptions { data: shared_data(), ..TaskOptions::default() };
    let mut names = all();
    names.extend(["ruler/qa_1".to_owned(), "ruler/qa_2".to_owned()]);
    for name in names {
        let length = if name == "ruler/qa_2" { 2048 } else { 1024 };
        let e = task(&name, &options).example(length, 0, 42, &Words).unwrap();
        println!("===== {name} ({}), {} words", e.source, total(&e, &Words));
        println!("{}⟦question⟧{}⟦prefix⟧{}⟦answers⟧{:?}\n", e.context, e.question, e.answer_prefix, e.references);
    }
}

#[test]
fn an_example_costs_few_countings() {
    for name in all() {
        for length in [2048, 8192, 65_536] {
            for index in 0..4 {
                let asked = Asked::default();
                let task = task(&name, &TaskOptions::default());
                task.example(length, index, 3, &asked).unwrap();
                let countings = asked.0.into_inner();
                assert!(countings <= 10, "{name} at {length}: {countings} countings");
            }
        }
    }
}
