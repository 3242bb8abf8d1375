use super::grid::{Asked, ladders};
use super::*;
use spattn_attention::Policy;
use spattn_eval::records::testing::record;
use spattn_tasks::{TaskOptions, resolve};

/// Returns the score of a method that loses every second example if `k < least`, and every twelfth if `k < 2 * least`.
fn score(k: usize, sample: usize, least: usize) -> f64 {
    let is_lost = if k < least { sample.is_multiple_of(2) } else { k < 2 * least && sample.is_multiple_of(12) };
    f64::from(u8::from(!is_lost))
}

/// Runs a batch as a runner would, and passes its records to `tuning`.
fn run(batch: &Batch, known: &mut Vec<(String, usize)>, tuning: &mut Tuning, least: usize, available: usize) {
    for sample in 0..batch.samples.min(available) {
        for label in batch.labels.iter().map(String::as_str).chain([REFERENCE]) {
            if known.contains(&(label.to_owned(), sample)) {
                continue;
            }
            known.push((label.to_owned(), sample));
            for task in ["ruler/vt", "ruler/cwe"] {
                let (method, params) = label.split_once(':').unwrap_or((label, ""));
                let k = params.strip_prefix("k=").map_or(usize::MAX, |k| k.parse().unwrap());
                let made = record(task, method, sample, score(k, sample, least));
                let density = (k as f64 / 1024.0).clamp(LEAST_DENSITY, 1.0);
                tuning.take(&[Record { params: params.into(), density, ..made }]);
            }
        }
    }
}

/// The smallest budgets attend the static tokens, too: below `k=4` all attend the same.
const LEAST_DENSITY: f64 = 4.0 / 1024.0;

#[test]
fn budgets_that_attend_the_same_are_one() {
    let mut known = Vec::new();
    let asked = Asked { parameter: "k", range: Some("1..512"), steps: 10 };
    let mut tuning = Tuning::new(GOAL, ladders(&["topk".to_owned()], asked, &Policy::default()).unwrap());
    while let Some(batch) = tuning.next(&tasks()) {
        run(&batch, &mut known, &mut tuning, 0, usize::MAX);
    }
    let method = &tuning.outcome().methods[0];
    // Nothing is lost, so the smallest candidate wins. It stands for budgets 1 to 4; the allowed error is that of ten
    // candidates.
    assert_eq!(method.alike, [AlikeBudgets { smallest: "1".to_owned(), largest: "4".to_owned() }]);
    assert_eq!((method.rows[0].text.as_str(), method.candidates), ("4", 10));
    assert_eq!((method.spec.as_deref(), method.answer), (Some("topk:k=4"), Answer::Lowest { at: 0 }));
    assert!((method.error - 0.05 / 10.0).abs() < 1e-12);
    let run_to = |label: &str| known.iter().filter(|(of, _)| of == label).count();
    assert!(run_to("topk:k=1") <= FIRST_LOOK && run_to("topk:k=4") > FIRST_LOOK, "no more are spent on it");
}

fn tasks() -> Vec<Box<dyn Task>> {
    resolve(&["ruler/vt".to_owned(), "ruler/cwe".to_owned()], &TaskOptions::default()).unwrap()
}

fn tuning(goal: Goal) -> Tuning {
    let asked = Asked { parameter: "k", range: Some("4..512"), steps: 8 };
    Tuning::new(goal, ladders(&["topk".to_owned()], asked, &Policy::default()).unwrap())
}

fn searched(mut tuning: Tuning, least: usize, available: usize) -> (TuneOutcome, Vec<(String, usize)>) {
    let mut known = Vec::new();
    while let Some(batch) = tuning.next(&tasks()) {
        run(&batch, &mut known, &mut tuning, least, available);
    }
    (tuning.outcome(), known)
}

const GOAL: Goal = Goal { limit: 0.15, confidence: 0.95, most_samples: 512 };

#[test]
fn the_smallest_budget_is_found_with_few_records() {
    let (outcome, known) = searched(tuning(GOAL), 60, usize::MAX);
    let method = &outcome.methods[0];
    let Answer::Smallest { at, below } = method.answer else { panic!("{method:?}") };
    assert_eq!((method.rows[at].text.as_str(), method.rows[below].text.as_str()), ("64", "32"));
    assert_eq!(method.spec.as_deref(), Some("topk:k=64"));
    assert!(method.candidates == 8 && (method.error - 0.05 / 8.0).abs() < 1e-12);
    // At most the reference and three of the eight candidates are run on all samples.
    let most = known.iter().map(|(_, sample)| sample + 1).max().unwrap();
    assert!(known.len() < 5 * most, "{} records of {most} samples", known.len());
    assert_eq!(outcome.places, ["ruler/cwe at 4096", "ruler/vt at 4096"]);
}

#[test]
fn records_that_are_there_change_no_answer() {
    let (whole, known) = searched(tuning(GOAL), 60, usize::MAX);
    let mut resumed = tuning(GOAL);
    let all = Batch { labels: known.iter().map(|(label, _)| label.clone()).collect(), samples: 500 };
    run(&all, &mut Vec::new(), &mut resumed, 60, usize::MAX);
    assert_eq!(searched(resumed, 60, usize::MAX).0, whole);
}

#[test]
fn a_search_ends_where_there_are_no_more_examples() {
    let (outcome, known) = searched(tuning(GOAL), 60, 11);
    assert_eq!(known.iter().map(|(_, sample)| *sample).max(), Some(10));
    assert!(matches!(outcome.methods[0].answer, Answer::Open { .. }), "{:?}", outcome.methods[0].answer);
    assert!(outcome.methods[0].rows.iter().all(|row| row.n <= 11));
}

#[test]
fn what_is_allowed_at_most_is_kept_to() {
    let (outcome, known) = searched(tuning(Goal { limit: 0.01, most_samples: 20, ..GOAL }), 60, usize::MAX);
    assert_eq!(known.iter().map(|(_, sample)| *sample).max(), Some(19));
    let Answer::Open { needed: Some(needed), .. } = outcome.methods[0].answer else { panic!("{outcome:?}") };
    let fewest = fewest_samples(&Goal { limit: 0.01, ..GOAL }, 2, 8).unwrap();
    assert!(needed >= fewest && fewest > 200, "{needed} {fewest}");
}

#[test]
fn greater_budgets_that_lose_more_are_told() {
    let mut tuning = tuning(Goal { most_samples: 64, ..GOAL });
    let mut known = Vec::new();
    while let Some(batch) = tuning.next(&tasks()) {
        run(&batch, &mut known, &mut tuning, 60, usize::MAX);
    }
    assert_eq!(tuning.outcome().methods[0].contradictions, []);
    // Now the largest budget loses everything.
    let mut tuning = self::tuning(Goal { most_samples: 64, ..GOAL });
    while let Some(batch) = tuning.next(&tasks()) {
        for sample in 0..batch.samples {
            for label in batch.labels.iter().map(String::as_str).chain([REFERENCE]) {
                let (method, params) = label.split_once(':').unwrap_or((label, ""));
                for task in ["ruler/vt", "ruler/cwe"] {
                    let made = record(task, method, sample, f64::from(u8::from(params != "k=512")));
                    let k = params.strip_prefix("k=").map_or(1024.0, |k| k.parse::<f64>().unwrap());
                    tuning.take(&[Record { params: params.into(), density: k / 1024.0, ..made }]);
                }
            }
        }
    }
    let method = &tuning.outcome().methods[0];
    assert_eq!(method.answer, Answer::Lowest { at: 0 });
    let [pair] = method.contradictions.as_slice() else { panic!("{:?}", method.contradictions) };
    assert_eq!((pair.smaller + 2, pair.by), (method.rows.len(), 1.0));
}
