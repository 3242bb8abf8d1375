//! Which times of records may be averaged, and their means.
//!
//! A time depends on what else was measured, on how many sequences took a step together, on threads and on the machine
//! ([`TimingConditions`]). Only times under equal conditions are averaged. Rows that were timed under other conditions than most rows
//! around them are marked.

use std::collections::{BTreeMap, HashMap};

use super::cells::SummaryCell;
use crate::records::interning::Interned;
use crate::records::record::Record;
use crate::records::timing::{Latency, Solo, TimingConditions};
use spattn_stats::ratios::rate_interval;
use spattn_stats::{Estimate, Sample, median_interval};

/// The times of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowTimes {
    /// The mean seconds of reading the prefix.
    pub prefill_s: f64,
    /// The mean seconds of building the index, as if for this row alone.
    pub index_s: f64,
    /// Milliseconds per step after the prefix, with the 95 % interval over examples. For shares, the time of all steps over their number,
    /// so that long generations weigh more; for methods timed alone, the median over examples. `None` if there were no steps.
    pub step_ms: Option<Estimate>,
    /// For shares, the milliseconds of selecting, attending and the rest; `None` if they were not measured separately.
    pub parts_ms: Option<[f64; 3]>,
    /// The conditions of the times; `None` if the records lack them.
    pub conditions: Option<TimingConditions>,
    /// Whether no record of the row was timed under the conditions of most rows around it.
    pub is_apart: bool,
}

/// The conditions under which most records of some cells were timed; of equally frequent ones, the first in their order.
pub fn prevailing<'a>(cells: impl IntoIterator<Item = &'a SummaryCell<'a>>) -> Option<&'a TimingConditions> {
    // Most records share few conditions in memory, so records are first counted by address.
    let mut said: HashMap<Option<usize>, (Option<&TimingConditions>, usize)> = HashMap::new();
    for record in cells.into_iter().flat_map(|cell| cell.records.iter().copied()) {
        let at = record.conditions.as_ref().map(Interned::address);
        said.entry(at).or_insert((record.conditions.as_deref(), 0)).1 += 1;
    }
    let mut counts: BTreeMap<Option<&TimingConditions>, usize> = BTreeMap::new();
    for (conditions, count) in said.into_values() {
        *counts.entry(conditions).or_default() += count;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most)?.0
}

impl RowTimes {
    /// The times of a cell's records under the conditions `around`, those of most rows around it. If it has no such records, those under
    /// its own most frequent conditions.
    pub fn of(cell: &SummaryCell, around: Option<&TimingConditions>) -> Self {
        let is_there = cell.records.iter().any(|r| r.conditions.as_deref() == around);
        let conditions = if is_there { around } else { prevailing([cell]) };
        let timed: Vec<(_, &Record)> = (cell.contexts().iter().copied().zip(cell.records.iter().copied()))
            .filter(|(_, r)| r.conditions.as_deref() == conditions)
            .collect();
        let mean = |of: fn(&Record) -> f64| timed.iter().map(|(_, r)| of(r)).sum::<f64>() / timed.len().max(1) as f64;
        let is_solo = conditions.and_then(|c| c.latency) == Some(Latency::Solo);
        let solo = || {
            let alone =
                timed.iter().filter_map(|(context, r)| Some((*context, r.solo.as_deref().and_then(Solo::median)?)));
            median_interval(&Sample::new(alone))
        };
        let shared = || {
            let steps = timed.iter().map(|(context, r)| (*context, 1000.0 * r.decode_s, r.steps as f64));
            rate_interval(&steps.collect::<Vec<_>>())
        };
        Self {
            prefill_s: mean(|r| r.prefill_s),
            index_s: mean(|r| r.index_s),
            step_ms: if is_solo { solo() } else { shared() },
            parts_ms: if is_solo { None } else { parts_ms(timed.iter().map(|(_, r)| *r)) },
            conditions: conditions.cloned(),
            is_apart: !is_there,
        }
    }
}

/// Milliseconds per step of selecting, attending and the rest; `None` if a record lacks them.
fn parts_ms<'r>(records: impl Iterator<Item = &'r Record> + Clone) -> Option<[f64; 3]> {
    let steps = records.clone().map(|r| r.steps).sum::<usize>() as f64;
    let of = |part: fn(&Record) -> Option<f64>| Some(1000.0 * records.clone().map(part).sum::<Option<f64>>()? / steps);
    let parts = [of(|r| r.select_s)?, of(|r| r.attend_s)?, of(|r| r.weights_s)?];
    (steps > 0.0).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;
    use crate::summary::cells::group;

    fn under(fidelity: bool, together: usize) -> Option<TimingConditions> {
        let (latency, cpu, gpu, select_on) = (None, None, None, None);
        Some(TimingConditions {
            fidelity,
            together,
            latency,
            threads: 2,
            simd: "avx2".into(),
            cpu,
            gpu,
            select_on,
            kv: None,
        })
    }

    fn timed(method: &str, sample: usize, conditions: Option<TimingConditions>, decode_s: f64) -> Record {
        Record { conditions: conditions.map(Into::into), decode_s, steps: 10, ..record("vt", method, sample, 1.0) }
    }

    #[test]
    fn times_under_other_conditions_are_not_averaged() {
        let plain = |sample| timed("full", sample, under(false, 8), 1.0);
        let records = [plain(0), plain(1), timed("full", 2, under(false, 1), 100.0)];
        let cells = group(&records, &[]);
        let times = RowTimes::of(&cells[0], prevailing(&cells));
        assert_eq!(times.step_ms.map(|ms| ms.mean), Some(100.0));
        assert_eq!((times.conditions, times.is_apart), (under(false, 8), false));
    }

    #[test]
    fn a_row_that_was_timed_otherwise_is_apart() {
        let mut records: Vec<Record> = (0..3).map(|i| timed("full", i, under(false, 2), 1.0)).collect();
        records.push(timed("topk", 0, under(true, 2), 2.0));
        let cells = group(&records, &[]);
        let apart: Vec<bool> = cells.iter().map(|cell| RowTimes::of(cell, prevailing(&cells)).is_apart).collect();
        assert_eq!(apart, [false, true]);
    }

    #[test]
    fn long_generations_count_for_what_they_are_and_nothing_has_no_time() {
        let short = Record { decode_s: 1.0, steps: 1, ..record("vt", "full", 0, 1.0) };
        let long = Record { decode_s: 1.0, steps: 9, ..record("vt", "full", 1, 1.0) };
        let none = Record { decode_s: 0.0, steps: 0, ..record("vt", "topk", 0, 1.0) };
        let records = [short, long, none];
        let cells = group(&records, &[]);
        let times: Vec<_> = cells.iter().map(|cell| RowTimes::of(cell, None).step_ms.map(|ms| ms.mean)).collect();
        assert_eq!(times, [Some(200.0), None]);
    }

    /// Conditions in which step times have this meaning.
    fn taken(latency: Option<Latency>) -> Option<TimingConditions> {
        under(false, 2).map(|conditions| TimingConditions { latency, ..conditions })
    }

    #[test]
    fn alone_the_median_over_examples_counts() {
        let medians = [5.0, 1.0, 9.0, 2.0, 100.0, 3.0];
        let alone = |(i, ms): (usize, &f64)| Record {
            // The median of these times is `ms`.
            solo: Some(Solo { steps: 16, ms: vec![*ms, ms + 7.0, ms - 1.0].into() }.into()),
            select_s: Some(0.1),
            attend_s: Some(0.1),
            weights_s: Some(0.8),
            ..timed("full", i, taken(Some(Latency::Solo)), 1.0)
        };
        let records: Vec<Record> = medians.iter().enumerate().map(alone).collect();
        let cells = group(&records, &[]);
        let times = RowTimes::of(&cells[0], prevailing(&cells));
        assert_eq!(times.step_ms, Some(Estimate { mean: 4.0, ends: Some((1.0, 100.0)) }));
        assert_eq!(times.parts_ms, None, "those are of the share");
    }

    #[test]
    fn shares_have_parts_and_are_not_mixed_with_other_times() {
        let share = |sample, latency| Record {
            select_s: Some(0.1),
            attend_s: Some(0.3),
            weights_s: Some(0.6),
            ..timed("full", sample, taken(latency), 1.0)
        };
        let shared = Some(Latency::Shared);
        let records = [share(0, shared), share(1, shared), timed("full", 2, taken(None), 9.0)];
        let cells = group(&records, &[]);
        let times = RowTimes::of(&cells[0], prevailing(&cells));
        assert_eq!((times.step_ms.map(|ms| ms.mean), times.parts_ms), (Some(100.0), Some([10.0, 30.0, 60.0])));
        let some = [share(0, shared), Record { select_s: None, ..share(1, shared) }];
        let cells = group(&some, &[]);
        assert_eq!(RowTimes::of(&cells[0], prevailing(&cells)).parts_ms, None, "not of some of the steps");
    }

    #[test]
    fn prefill_and_indexes_are_means_over_the_records_timed_alike() {
        let taking = |sample, conditions, prefill_s, index_s| {
            let record = timed("full", sample, conditions, 1.0);
            Record { prefill_s, index_s, ..record }
        };
        let alike = |sample, prefill_s, index_s| taking(sample, under(false, 8), prefill_s, index_s);
        let records = [alike(0, 1.0, 2.0), alike(1, 4.0, 9.0), taking(2, under(true, 8), 100.0, 100.0)];
        let cells = group(&records, &[]);
        let times = RowTimes::of(&cells[0], prevailing(&cells));
        assert_eq!((times.prefill_s, times.index_s), (2.5, 5.5));
    }
}
