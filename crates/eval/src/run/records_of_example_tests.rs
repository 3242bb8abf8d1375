//! Tests of what a record says about its example, and of passages' sums.

use std::collections::BTreeMap;

use super::records_of_example::scored_record;
use super::score_text::Sums;
use super::testing::{Given, passage, run_one};
use crate::plan::given_prompts::passage_tokens;
use spattn_tasks::likelihood::{Measure, Passage, Scoring};
use spattn_tasks::metrics::Metric;
use spattn_tasks::{TaskOptions, resolve};

#[test]
fn a_record_has_all_that_its_example_says() {
    let (record, prompt, prefix_tokens) = run_one(|_| Box::new(Given::Question));
    let example = Given::question();
    assert!(!record.prediction.is_empty() && 0 < prefix_tokens && prefix_tokens < prompt.len());
    assert_eq!((record.task.as_str(), record.length, record.sample), ("given", 0, 0));
    assert_eq!((record.source.as_str(), record.question), ("by hand", example.question.into()));
    assert_eq!((record.references, record.all_classes), (example.references.into(), example.all_classes.into()));
    assert_eq!((record.score, record.metric, record.depth), (0.5, Some(Metric::StringMatchAll), Some(25.0)));
    assert_eq!(record.other_scores, BTreeMap::from([("string_match_part".to_owned(), 1.0)]));
    assert_eq!((record.first_line, record.cut_tokens, record.max_new_tokens), (true, Some(0), 3));
    assert_eq!((record.prompt_tokens, record.prefix_tokens), (prompt.len(), prefix_tokens));
    assert_eq!((record.bos_tokens, record.measure), (Some(1), Measure::Score));
}

#[test]
fn a_record_has_all_that_its_passage_says() {
    let (text, prompt, prefix_tokens) = run_one(|_| Box::new(Given::Passage(Scoring::Perplexity)));
    let likelihood = text.likelihood.clone().unwrap();
    assert_eq!((likelihood.words, likelihood.bytes), (2, " 1147 alone.".len()));
    assert!((text.score - (likelihood.nll / likelihood.tokens as f64).exp()).abs() < 1e-9 && text.score > 1.0);
    assert_eq!((text.measure, text.choice.is_none()), (Measure::Perplexity, true));

    let scoring = Scoring::Choice { right: 0, normalised: false };
    let (choice, same_prompt, _) = run_one(|_| Box::new(Given::Passage(scoring)));
    let scores = &choice.choice.as_ref().unwrap().log_likelihoods;
    let chosen = usize::from(scores[1] > scores[0]);
    assert_eq!(choice.score, [1.0, 0.0][chosen]);
    assert_eq!(choice.prediction, [" 1147 alone.", " a key that nobody has."][chosen]);
    assert_eq!((&choice.references, choice.measure), (&vec![" 1147 alone.".to_owned()].into(), Measure::Score));
    assert!(choice.likelihood.is_none());

    assert_eq!(prompt, same_prompt);
    for record in [text, choice] {
        assert_eq!((record.task.as_str(), record.length, record.sample), ("given", 0, 0));
        assert_eq!((record.source.as_str(), record.bos_tokens), ("by hand", Some(1)));
        assert_eq!((record.prompt_tokens, record.prefix_tokens), (prompt.len(), prefix_tokens));
    }
}

#[test]
fn an_answer_ends_where_the_model_ends_it() {
    let (record, ..) = run_one(|config| resolve(&config.tasks, &TaskOptions::default()).unwrap().remove(0));
    assert!(record.stopped && record.score == 1.0, "{record:?}");
    assert!(1 < record.new_tokens && record.new_tokens < record.max_new_tokens);
}

#[test]
fn sums_become_a_likelihood_or_a_choice() {
    let record = || crate::records::testing::record("given", "topk", 0, 0.0);
    let sums = |nll: f64, kl_sum: f64| Sums { nll, same_top: 2, kl_sum, kl: vec![kl_sum / 2.0; 2] };
    let mut text = passage(vec![1], 1);
    text.continuations.truncate(1);
    text.continuations[0].tokens = vec![3; 4];
    let made = scored_record(&text, &[sums(6.0, 0.5)], record());
    assert!((made.score - 1.5f64.exp()).abs() < 1e-12);
    let of = made.likelihood.unwrap();
    assert_eq!((of.nll, of.tokens, of.words, of.bytes), (6.0, 4, 1, 1));
    assert_eq!((of.same_top, of.kl_sum, of.kl), (2, 0.5, vec![0.25; 2]));
    let same = scored_record(&text, &[sums(6.0, 0.0)], record());
    assert!(same.likelihood.unwrap().kl.is_empty());

    let choose = |right, normalised| {
        let mut options = Passage { scoring: Scoring::Choice { right, normalised }, ..passage(vec![1], 1) };
        for (option, text) in options.continuations.iter_mut().zip(["é", "a long one", "none"]) {
            option.text = text.into();
        }
        let made = scored_record(&options, &[sums(1.0, 0.0), sums(2.0, 0.0), sums(4.0, 0.0)], record());
        (made.score, made.prediction, made.references, made.choice.unwrap())
    };
    let (score, prediction, references, choice) = choose(0, false);
    assert_eq!((score, prediction, references), (1.0, "é".into(), vec!["é".to_owned()].into()));
    assert_eq!((choice.log_likelihoods, choice.characters), (vec![-1.0, -2.0, -4.0], vec![1, 10, 4]));
    let (score, prediction, references, _) = choose(0, true);
    assert_eq!((score, prediction, references), (0.0, "a long one".into(), vec!["é".to_owned()].into()));
    assert_eq!((choose(1, true).0, choose(1, false).0), (1.0, 0.0));
    assert_eq!(passage_tokens(&passage(vec![1, 2, 3], 7)), 10, "with the longest");
}
