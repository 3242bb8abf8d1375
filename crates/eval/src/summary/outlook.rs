//! What verdicts will be able to say. This depends on the number of examples and is known before anything runs.
//!
//! The rule of [`spattn_stats::verdict`] is applied to a method that loses nothing, and to one that loses everything.

use serde::Serialize;

use super::verdicts::VerdictRule;
use spattn_stats::verdict::{Limit, Prospect, Verdict};
use spattn_stats::{Estimate, LEAST_CONTEXTS, Level, Sample};

/// More examples are not considered: with so many, a verdict is possible at any limit that can be asked for.
pub const MOST_EXAMPLES: usize = 1_000_000;

/// The possible verdicts on the mean over some places (tasks at a length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VerdictOutlook {
    /// Whether a method that loses nothing can be called safe.
    pub can_be_safe: bool,
    /// Whether a method that loses everything can be called not safe.
    pub can_be_not_safe: bool,
    /// The number of contexts, over all places, from which a method that loses nothing can be called safe; `None` if it already can, or
    /// if more are needed than anybody would run.
    pub contexts_needed: Option<usize>,
}

/// The outlook for scores. `places` has the number of examples of each context, by place; `comparisons` is the number of settings that
/// are judged together. `None` without examples, or with more than can matter.
pub fn of_scores(places: &[Vec<usize>], rule: VerdictRule, comparisons: usize) -> Option<VerdictOutlook> {
    let examples: usize = places.iter().flatten().sum();
    if examples == 0 || examples > MOST_EXAMPLES {
        return None;
    }
    let limit = Limit { loss: rule.limit / 100.0, level: Level::with(rule.confidence, comparisons) };
    let of_all = |difference: f64| -> Option<Verdict> {
        let samples: Vec<Sample> = places.iter().map(|sizes| alike(sizes, difference)).collect();
        let judged = if rule.is_any_time { limit.judge_at_any_time(&samples) } else { limit.judge(&samples) };
        judged.map(|judged| judged.verdict)
    };
    Some(outlook(of_all(0.0)?, of_all(-1.0)?, limit.fewest_contexts()))
}

/// The outlook for a perplexity over this many contexts; `None` if there are none.
pub fn of_perplexity(contexts: usize, rule: VerdictRule, comparisons: usize) -> Option<VerdictOutlook> {
    let limit = Limit { loss: rule.limit, level: Level::with(rule.confidence, comparisons) };
    let of_loss = |loss: f64| limit.judge_interval(Estimate { mean: loss, ends: Some((loss, loss)) }, contexts).verdict;
    // Methods that lose nothing, or a hundred times the limit, equally on each text: no spread is smaller.
    (contexts > 0).then(|| outlook(of_loss(0.0), of_loss(100.0 * rule.limit), Some(LEAST_CONTEXTS)))
}

/// A difference that is the same on all examples of contexts with these sizes.
fn alike(sizes: &[usize], difference: f64) -> Sample {
    let examples = sizes.iter().enumerate().flat_map(|(context, size)| std::iter::repeat_n(context, *size));
    Sample::new(examples.map(|context| (context, difference)))
}

/// Makes the outlook. It needs `fewest` contexts if present ones are too few to tell how many would be enough.
fn outlook(without_loss: Verdict, with_all_lost: Verdict, fewest: Option<usize>) -> VerdictOutlook {
    let contexts_needed = match without_loss {
        Verdict::TooFew { would_show: Prospect::Unknown, .. } => fewest,
        Verdict::TooFew { contexts_needed, .. } => contexts_needed,
        _ => None,
    };
    VerdictOutlook {
        can_be_safe: matches!(without_loss, Verdict::Safe { .. }),
        can_be_not_safe: matches!(with_all_lost, Verdict::NotSafe { .. }),
        contexts_needed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(limit: f64, is_any_time: bool) -> VerdictRule {
        VerdictRule { limit, is_any_time, ..VerdictRule::default() }
    }

    fn apart(tasks: usize, n: usize) -> Vec<Vec<usize>> {
        vec![vec![1; n]; tasks]
    }

    /// The expected number is found by counting up from 1 with the verdict itself, as a run would find it.
    #[test]
    fn the_number_named_is_the_smallest_with_which_it_can_be_told() {
        for (points, comparisons, tasks, is_any_time) in
            [(1.0, 1, 1, false), (5.0, 3, 2, false), (30.0, 1, 4, false), (10.0, 2, 1, true), (30.0, 3, 2, true)]
        {
            let rule = rule(points, is_any_time);
            let can = |n: usize| of_scores(&apart(tasks, n), rule, comparisons).unwrap().can_be_safe;
            let smallest = (1..2000).find(|n| can(*n)).unwrap();
            for planned in [2, smallest / 2, smallest - 1].into_iter().filter(|n| *n > 0) {
                let found = of_scores(&apart(tasks, planned), rule, comparisons).unwrap();
                let named = found.contexts_needed.map(|all| all.div_ceil(tasks));
                assert_eq!((found.can_be_safe, named), (false, Some(smallest)), "{points} points, -n {planned}");
            }
        }
    }

    #[test]
    fn two_examples_tell_nothing_and_a_few_more_what_is_not_safe() {
        let of = |tasks, n| of_scores(&apart(tasks, n), rule(1.0, false), 1).unwrap();
        assert_eq!((of(1, 2).can_be_safe, of(1, 2).can_be_not_safe), (false, false));
        assert_eq!((of(1, 8).can_be_safe, of(1, 8).can_be_not_safe), (false, true));
        assert_eq!((of(1, 2).contexts_needed, of(1, 400).contexts_needed), (Some(381), None));
        assert!(of(1, 400).can_be_safe && of(4, 100).can_be_safe && !of(1, 100).can_be_safe);
        assert_eq!(of_scores(&[], rule(1.0, false), 1), None);
        assert_eq!(of_scores(&[vec![2_000_000]], rule(1.0, false), 1), None);
    }

    #[test]
    fn questions_about_one_document_do_not_count_for_several() {
        let shared = of_scores(&[vec![100; 4]], rule(1.0, false), 1).unwrap();
        assert!(!shared.can_be_safe && !shared.can_be_not_safe && shared.contexts_needed > Some(4), "{shared:?}");
    }

    #[test]
    fn a_perplexity_takes_five_texts() {
        let of = |contexts| of_perplexity(contexts, rule(1.0, false), 2).map(|it| (it.can_be_safe, it.can_be_not_safe));
        assert_eq!([0, 4, 5].map(of), [None, Some((false, false)), Some((true, true))]);
        assert_eq!(of_perplexity(4, rule(1.0, false), 2).unwrap().contexts_needed, Some(5));
    }
}
