//! Compares two settings on the examples that both were run on, over the same tasks and lengths.
//!
//! The cells of a setting, one for each task and length, have equal weights. An example is easy or hard for all methods alike, so paired
//! differences are more precise than two separate means.

use super::cells::SummaryCell;
use super::summarize::perplexity_difference;
use spattn_stats::several::mean_of;
use spattn_stats::{Estimate, LEAST_CONTEXTS, Level, Sample};
use spattn_tasks::likelihood::Measure;

/// The mean difference of the scores in points, first minus second, with an interval of the level's confidence; for perplexities of a
/// single task and length, their difference. `None` if the settings have different tasks and lengths, or no common example.
pub fn difference(ours: &[&SummaryCell], theirs: &[&SummaryCell], level: Level) -> Option<Estimate> {
    let pairs = matched(ours, theirs)?;
    match (measure(&pairs)?, pairs.as_slice()) {
        (Measure::Perplexity, [(ours, theirs)]) => perplexity_difference(ours, theirs, level),
        (Measure::Perplexity, _) => None,
        (Measure::Score, _) => {
            let each = differences(&pairs)
                .iter()
                .map(|of| spattn_stats::difference_at(of, level))
                .collect::<Option<Vec<_>>>()?;
            mean_of(&each).map(|difference| difference.scaled(100.0))
        }
    }
}

/// The differences of the scores on common examples, first minus second, for each task and length. `None` if the settings have different
/// tasks and lengths, or perplexities.
pub fn score_differences(ours: &[&SummaryCell], theirs: &[&SummaryCell]) -> Option<Vec<Sample>> {
    let pairs = matched(ours, theirs)?;
    (measure(&pairs)? == Measure::Score).then(|| differences(&pairs))
}

/// Whether the first setting is better than the second beyond noise at a level; `None` if that cannot be told: there are too few common
/// examples, or there is no [`difference`].
pub fn is_better(ours: &[&SummaryCell], theirs: &[&SummaryCell], level: Level) -> Option<bool> {
    let pairs = matched(ours, theirs)?;
    match (measure(&pairs)?, pairs.as_slice()) {
        (Measure::Perplexity, [(ours, theirs)]) => {
            let difference = perplexity_difference(ours, theirs, level)?;
            let contexts = ours.differences(theirs, |_| 0.0).contexts();
            difference.high().filter(|_| contexts >= LEAST_CONTEXTS).map(|high| high < 0.0)
        }
        (Measure::Perplexity, _) => None,
        (Measure::Score, _) => spattn_stats::is_gain(&differences(&pairs), level),
    }
}

type Pair<'p, 'a, 'b> = (&'p SummaryCell<'a>, &'p SummaryCell<'b>);

/// Pairs the cells of each task and length; `None` if one setting has other tasks and lengths than the other.
fn matched<'p, 'a, 'b>(ours: &[&'p SummaryCell<'a>], theirs: &[&'p SummaryCell<'b>]) -> Option<Vec<Pair<'p, 'a, 'b>>> {
    let place = |cell: &SummaryCell| (cell.head().task.clone(), cell.head().length);
    let pair = |cell: &&'p SummaryCell<'a>| Some((*cell, *theirs.iter().find(|other| place(other) == place(cell))?));
    ours.iter().map(pair).collect::<Option<Vec<_>>>().filter(|_| ours.len() == theirs.len())
}

/// The measure that all cells share; `None` if they mix scores and perplexities, or there are no cells.
fn measure(pairs: &[Pair]) -> Option<Measure> {
    let first = pairs.first()?.0.measure();
    pairs.iter().all(|(ours, theirs)| ours.measure() == first && theirs.measure() == first).then_some(first)
}

fn differences(pairs: &[Pair]) -> Vec<Sample> {
    pairs.iter().map(|(ours, theirs)| ours.differences(theirs, |r| r.score)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record::Record;
    use crate::records::testing::{perplexity, record};
    use crate::summary::cells::group;

    /// Calls `use_it` with the cells of two methods, which are in the order of tasks.
    fn with<R>(records: &[Record], use_it: impl FnOnce(&[&SummaryCell], &[&SummaryCell]) -> R) -> R {
        let cells = group(records, &[]);
        let of = |method: &str| cells.iter().filter(|c| c.head().method == *method).collect::<Vec<_>>();
        use_it(&of("loki"), &of("quest"))
    }

    /// A task with `n` examples: only `loki` gets `gained` of them right, and only `quest` gets `lost` of them right.
    fn task(name: &str, gained: usize, lost: usize, n: usize) -> Vec<Record> {
        let score = |wrong: bool| f64::from(u8::from(!wrong));
        let of = |i: usize| {
            let (is_gained, is_lost) = (i < gained, (gained..gained + lost).contains(&i));
            [record(name, "loki", i, score(is_lost)), record(name, "quest", i, score(is_gained))]
        };
        (0..n).flat_map(of).collect()
    }

    fn told(records: &[Record], comparisons: usize) -> Option<bool> {
        with(records, |ours, theirs| is_better(ours, theirs, Level::of_each(comparisons)))
    }

    #[test]
    fn a_gain_is_told_by_the_examples_that_differ() {
        // McNemar's test: gains minus losses over the root of their sum, against the normal quantile: 6 / √6 = 2.45.
        let six = task("a", 6, 0, 20);
        assert_eq!((told(&six, 1), told(&six, 3), told(&six, 4)), (Some(true), Some(true), Some(false)));
        assert_eq!(told(&task("a", 6, 6, 20), 1), Some(false));
        assert_eq!(told(&task("a", 0, 6, 20), 1), Some(false), "a loss");
        assert_eq!(told(&task("a", 4, 0, 4), 1), None, "too few to tell");
        assert_eq!(with(&six, |ours, theirs| difference(ours, theirs, Level::SINGLE)).unwrap().mean, 30.0);
    }

    #[test]
    fn over_tasks_of_other_sizes_each_counts_alike() {
        // The mean of the gains: (4/10 + 0 + 2/40) / 3. Their variances under no difference: (4/10)/10, 0, (2/40)/40.
        let records = [task("a", 4, 0, 10), task("b", 0, 0, 20), task("c", 2, 0, 40)].concat();
        let errors = 0.45 / (0.04f64 + 0.05 / 40.0).sqrt();
        // This is 2.22 standard errors: more than the normal quantile of 2.5 % (1.96), less than that of 1.25 % (2.24).
        assert!((errors - 2.215).abs() < 1e-3, "{errors}");
        assert_eq!((told(&records, 1), told(&records, 2)), (Some(true), Some(false)));
        // The first task alone has 4 / √4 = 2, but four pairs are too few for the formula: the exact test has p = 6 %. Five are enough.
        assert_eq!((told(&task("a", 4, 0, 10), 1), told(&task("a", 5, 0, 10), 1)), (Some(false), Some(true)));
    }

    #[test]
    fn only_what_both_were_run_on_is_compared() {
        let mut records = task("a", 6, 0, 20);
        records.retain(|r| r.method != "quest" || r.sample >= 3);
        // Half of the gains are on examples that `quest` did not run on.
        assert_eq!(with(&records, |ours, theirs| difference(ours, theirs, Level::SINGLE)).unwrap().mean, 300.0 / 17.0);
        let other = [task("a", 6, 0, 20), task("b", 6, 0, 20)].concat();
        let lacking: Vec<Record> = other.iter().filter(|r| r.task == "a" || r.method == "loki").cloned().collect();
        assert_eq!(with(&lacking, |ours, theirs| difference(ours, theirs, Level::SINGLE)), None);
        assert_eq!(told(&lacking, 1), None, "another task is another thing");
    }

    #[test]
    fn less_perplexity_is_better_by_the_windows_that_both_read() {
        // Windows differ by nats; on each, the two methods differ by slightly more than 0.01.
        let nats = |i: usize| 1.0 + i as f64 / 4.0;
        let of = |i: usize| [perplexity("loki", i, nats(i)), perplexity("quest", i, nats(i) + 0.01 + i as f64 / 1e4)];
        let records: Vec<Record> = (0..8).flat_map(of).collect();
        assert_eq!(told(&records, 10), Some(true));
        let less = with(&records, |ours, theirs| difference(ours, theirs, Level::SINGLE)).unwrap();
        assert!(less.mean < 0.0 && less.high().unwrap() < 0.0, "{less:?}");
        assert_eq!(with(&records, |ours, theirs| is_better(theirs, ours, Level::SINGLE)), Some(false));
        assert_eq!(told(&records[..8], 1), None, "four windows");
    }
}
