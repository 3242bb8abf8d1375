//! `--until-certain`: a run that adds examples until each verdict is told, or a bound is reached.
//!
//! Each look takes the number of examples that the first open verdict is estimated to need, but at least a quarter more than the last
//! look and at most twice as many. The verdict holds however often one looks (`VerdictRule::is_any_time`), so the choice of looks cannot
//! make it wrong. All methods get all examples, so the records are those of a run with that many examples from the start.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::adaptive::AdaptiveSource;
use crate::cli::verdict_flags::LookBounds;
use spattn_base::error::UsageError;
use spattn_eval::records::record::Record;
use spattn_eval::summary::cells::group;
use spattn_eval::summary::summarize;
use spattn_eval::summary::verdicts::{KvBits, VerdictRule, judge};
use spattn_lab::tune::Batch;
use spattn_tasks::Task;
use spattn_tasks::likelihood::Measure;

/// Why no more examples are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Certain,
    Samples,
    Time,
    NoMoreExamples,
}

/// Adds examples until each verdict is reached.
#[derive(Debug)]
pub(in crate::cli) struct UntilCertain {
    rule: VerdictRule,
    bounds: LookBounds,
    labels: Vec<String>,
    records: Vec<Record>,
    /// The number of examples of each task and length at the first look.
    first: usize,
    /// The last batch that was asked for.
    asked: Option<Look>,
    begun: Instant,
    /// Why no more examples are added, and how many verdicts are still open.
    ending: Option<(Ending, usize)>,
}

/// A batch of examples that was asked for.
#[derive(Debug, Clone, Copy)]
struct Look {
    samples: usize,
    /// The number of records before this look; at the first look `usize::MAX`, as a resumed run may add none.
    records_before: usize,
}

impl UntilCertain {
    /// Starts a run of the methods with these labels, with `first` examples at the first look.
    pub(in crate::cli) fn new(rule: VerdictRule, bounds: LookBounds, labels: Vec<String>, first: usize) -> Self {
        let rule = VerdictRule { is_any_time: true, ..rule };
        let (records, begun) = (Vec::new(), Instant::now());
        Self { rule, bounds, labels, records, first, asked: None, begun, ending: None }
    }

    /// The number of open verdicts, and the smallest number of examples of each task that would close one, if known.
    fn open(&self) -> (usize, Option<usize>) {
        let cells = group(&self.records, &[]);
        let tables = judge(&summarize::rows(&cells), &cells, self.rule, &KvBits::new());
        let open: Vec<Option<usize>> = tables.iter().flat_map(|table| table.open()).collect();
        (open.len(), open.iter().flatten().copied().min())
    }

    /// The number of examples at the next look, after `samples` examples that took `elapsed` in all; or why there is none.
    fn after(&self, samples: usize, elapsed: Duration) -> Result<usize, (Ending, usize)> {
        let (open, needed) = self.open();
        if open == 0 {
            return Err((Ending::Certain, 0));
        }
        let most = self.bounds.samples.unwrap_or(usize::MAX);
        if samples >= most {
            return Err((Ending::Samples, open));
        }
        let (least, twice) = (samples + samples.div_ceil(4), samples.saturating_mul(2));
        let wanted = needed.unwrap_or(twice).clamp(least, twice).min(most);
        let Some(time) = self.bounds.time else { return Ok(wanted) };
        // As many more as fit into the remaining time at the pace so far.
        let pace = samples as f64 / elapsed.as_secs_f64().max(1e-3);
        let room = (time.saturating_sub(elapsed).as_secs_f64() * pace) as usize;
        if room == 0 { Err((Ending::Time, open)) } else { Ok(wanted.min(samples + room)) }
    }

    /// How the run ended, in a line; `None` if it was interrupted.
    pub(in crate::cli) fn ending(&self) -> Option<String> {
        let (ending, open) = self.ending?;
        let samples = self.asked?.samples;
        let verdicts = if open == 1 { "1 verdict is".to_owned() } else { format!("{open} verdicts are") };
        Some(match ending {
            Ending::Certain => format!("every verdict is told with -n {samples}"),
            Ending::Samples => format!("{verdicts} open at --max-samples {samples}"),
            Ending::Time => format!("{verdicts} open after --max-time, with -n {samples}"),
            Ending::NoMoreExamples => format!("{verdicts} open, and the tasks have no more examples"),
        })
    }
}

impl AdaptiveSource for UntilCertain {
    fn check(&self, tasks: &[Box<dyn Task>]) -> Result<()> {
        let has_no_score = |task: &&dyn Task| task.likelihood().is_some_and(|t| t.measure() != Measure::Score);
        match tasks.iter().map(AsRef::as_ref).find(has_no_score) {
            None => Ok(()),
            Some(task) => Err(UsageError::new(format!("{} is not scored in points", task.name()))
                .hint("leave out --until-certain: for perplexities the number of windows is given by -n")
                .into()),
        }
    }

    fn take(&mut self, records: &[Record]) {
        self.records.extend_from_slice(records);
    }

    fn next(&mut self, tasks: &[Box<dyn Task>]) -> Option<Batch> {
        let next = match self.asked {
            None => Ok(self.first.max(stored_samples(&self.records, tasks))),
            Some(Look { samples, records_before }) => match records_before == self.records.len() {
                true => Err((Ending::NoMoreExamples, self.open().0)),
                false => self.after(samples, self.begun.elapsed()),
            },
        };
        match next {
            Ok(samples) => {
                // The first look need not add records: a resumed run may have all of them.
                let records_before = if self.asked.is_some() { self.records.len() } else { usize::MAX };
                self.asked = Some(Look { samples, records_before });
                Some(Batch { labels: self.labels.clone(), samples })
            }
            Err(ending) => {
                self.ending = Some(ending);
                None
            }
        }
    }
}

/// The largest number of examples that stored records have of any task.
fn stored_samples(records: &[Record], tasks: &[Box<dyn Task>]) -> usize {
    let cells =
        |record: &Record| tasks.iter().find(|task| task.name() == record.task.as_str()).map_or(1, |t| t.cells());
    records.iter().map(|record| record.sample / cells(record).max(1) + 1).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;
    use spattn_tasks::{TaskOptions, resolve};

    fn tasks() -> Vec<Box<dyn Task>> {
        resolve(&["ruler/vt".to_owned()], &TaskOptions::default()).unwrap()
    }

    /// Runs a source on examples. `lost` says whether a method fails on one. Returns the looks and the ending.
    fn looks(mut source: UntilCertain, available: usize, lost: impl Fn(&str, usize) -> bool) -> (Vec<usize>, String) {
        let (tasks, mut looks, mut done) = (tasks(), Vec::new(), 0);
        while let Some(Batch { labels, samples }) = source.next(&tasks) {
            looks.push(samples);
            let until = samples.min(available);
            for i in done..until {
                let of = |method: &str| record("ruler/vt", method, i, f64::from(u8::from(!lost(method, i))));
                let new: Vec<Record> = labels.iter().map(|label| of(label)).chain([of("full")]).collect();
                source.take(&new);
            }
            done = until.max(done);
        }
        (looks, source.ending().unwrap())
    }

    fn source(limit: f64, most: usize) -> UntilCertain {
        let bounds = LookBounds { samples: Some(most), time: None };
        let rule = VerdictRule { limit, ..VerdictRule::default() };
        UntilCertain::new(rule, bounds, ["quest", "h2o", "topk"].map(str::to_owned).to_vec(), 10)
    }

    #[test]
    fn examples_are_added_until_each_verdict_is_told() {
        let (found, ending) = looks(source(10.0, 1000), usize::MAX, |method, i| method == "h2o" && i % 2 == 0);
        assert!(
            found[0] == 10 && found.windows(2).all(|pair| pair[1] > pair[0] && pair[1] <= 2 * pair[0]),
            "{found:?}"
        );
        let last = *found.last().unwrap();
        assert!((40..80).contains(&last), "46 equal examples prove a loss below 10 points of one method: {found:?}");
        assert_eq!(ending, format!("every verdict is told with -n {last}"));
        // Oracles are not judged, so no examples are added for one.
        let (again, _) = looks(source(10.0, 1000), usize::MAX, |method, i| {
            (method == "h2o" && i % 2 == 0) || (method == "topk" && i % 9 == 0)
        });
        assert_eq!(again, found);
    }

    #[test]
    fn a_bound_ends_it_with_what_is_open() {
        let (found, ending) = looks(source(1.0, 60), usize::MAX, |_, _| false);
        assert_eq!((found.last(), ending.as_str()), (Some(&60), "2 verdicts are open at --max-samples 60"));
        let (found, ending) = looks(source(1.0, 1000), 25, |_, _| false);
        assert_eq!(ending, "2 verdicts are open, and the tasks have no more examples", "{found:?}");
        let late = LookBounds { samples: None, time: Some(Duration::from_nanos(1)) };
        let mut source = UntilCertain { bounds: late, ..source(1.0, 60) };
        source.begun = Instant::now() - Duration::from_secs(1);
        let (found, ending) = looks(source, usize::MAX, |_, _| false);
        assert_eq!((found, ending.as_str()), (vec![10], "2 verdicts are open after --max-time, with -n 10"));
    }

    #[test]
    fn a_resumed_run_goes_on_where_it_was() {
        let mut source = source(1.0, 60);
        for i in 0..40 {
            source.take(&["full", "quest", "h2o", "topk"].map(|method| record("ruler/vt", method, i, 1.0)));
        }
        let (found, _) = looks(source, usize::MAX, |_, _| false);
        assert_eq!(found, [40, 60]);
    }
}
