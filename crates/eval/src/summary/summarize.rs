//! From cells to summary rows: means, intervals, and differences to `full`.
//!
//! The result does not depend on the order of the records, in any bit: everything is summed in the order of the examples.

use rayon::prelude::*;

use super::cells::{SummaryCell, group, perplexity, place};
use super::columns::SummaryRow;
use super::times::{RowTimes, prevailing};
use crate::records::costs::FetchedBytes;
use crate::records::fidelity::{Fidelity, FidelitySpread, Spread};
use crate::records::record::Record;
use crate::records::text_scores::{Choice, Likelihood};
use spattn_stats::ratios::{self, Window};
use spattn_stats::{Estimate, Level};
use spattn_tasks::likelihood::Measure;

/// One row for each (model, task, length, method, params, protocol).
///
/// Rows are sorted by model, protocol, task, length, and then method: `full` first, then as in `order` (pairs of method and params, as the
/// user gave them), then in natural order of name and params. If a sample occurs twice, the record with the smaller key counts. Differences
/// are to `full` with the same model, protocol, task and length, on common samples; for `full` itself they are 0.
pub fn summarize(records: &[Record], order: &[(String, String)]) -> Vec<SummaryRow> {
    rows(&group(records, order))
}

/// The rows of cells, in their order; `full` is looked for among them.
pub fn rows(cells: &[SummaryCell]) -> Vec<SummaryRow> {
    let of_place = |cells: &[SummaryCell]| -> Vec<SummaryRow> {
        let around = prevailing(cells);
        cells.par_iter().map(|cell| row(cell, cell.reference(cells), RowTimes::of(cell, around))).collect()
    };
    let places: Vec<&[SummaryCell]> = cells.chunk_by(|a, b| place(a.head()) == place(b.head())).collect();
    places.into_par_iter().flat_map_iter(of_place).collect()
}

fn row(cell: &SummaryCell, reference: Option<&SummaryCell>, times: RowTimes) -> SummaryRow {
    let (score, delta) = (score(cell), reference.and_then(|full| delta(cell, full)));
    let Record { model, task, length, method, params, protocol, .. } = cell.head();
    let (cost1, cost2) = (mean_of_known(cell, |r| r.cost1), cell.mean(|r| r.cost2));
    let of_fidelity = |of: fn(&FidelitySpread) -> Spread| {
        MeanSpread::new(cell, |r| Some(of(r.fidelity.as_ref()?.spread.as_ref()?)))
    };
    let density = MeanSpread::new(cell, |r| r.density_spread.as_deref().copied());
    let latency = times.conditions.as_ref().and_then(|conditions| conditions.latency);
    let (error, recall) = (of_fidelity(|f| f.output_error), of_fidelity(|f| f.recall));
    let dropped = of_fidelity(|f| f.dropped_mass);
    let likelihoods = cell.likelihoods();
    let over_text = |of: fn(&[&Likelihood]) -> f64| (!likelihoods.is_empty()).then(|| of(&likelihoods));
    let right = |of: fn(&Choice) -> usize| {
        mean_of_known(cell, |r| r.choice.as_ref().map(|c| 100.0 * f64::from(u8::from(of(c) == c.right))))
    };
    SummaryRow {
        model: model.to_string(),
        task: task.to_string(),
        length: *length,
        method: method.to_string(),
        params: params.to_string(),
        settings: cell.head().settings(),
        protocol: protocol.to_string(),
        n: cell.records.len(),
        score: score.mean,
        ci_low: score.low(),
        ci_high: score.high(),
        delta_full: delta.map(|d| d.mean),
        delta_low: delta.and_then(|d| d.low()),
        delta_high: delta.and_then(|d| d.high()),
        density: cell.mean(|r| r.density),
        cost1,
        cost2,
        cost_total: cost1.map(|cost1| cost1 + cost2),
        aux_bits: mean_of_known(cell, |r| r.aux_bits),
        kv_bytes_per_token: mean_of_known(cell, |r| r.kv_bytes_per_token),
        shared_bytes_per_token: mean_of_known(cell, |r| r.shared_bytes_per_token),
        select_bytes_per_token: mean_of_known(cell, |r| r.select_bytes_per_token),
        free_share: mean_of_known(cell, |r| r.free_share),
        output_error: fidelity(cell, |f| Some(f.mean_error())),
        recall: fidelity(cell, |f| Some(f.mean_recall())),
        prefill_s: times.prefill_s,
        decode_ms_per_token: times.step_ms.map(|ms| ms.mean),
        kv_bytes_held: bytes_held(cell),
        density_target: cell.head().density_target(),
        density_sparse_layers: cell.mean(|r| r.density_sparse_layers),
        density_min: density.min,
        density_median: density.median,
        density_max: density.max,
        output_error_min: error.min,
        output_error_median: error.median,
        output_error_max: error.max,
        recall_min: recall.min,
        recall_median: recall.median,
        recall_max: recall.max,
        dropped_mass: fidelity(cell, Fidelity::mean_dropped_mass),
        dropped_mass_min: dropped.min,
        dropped_mass_median: dropped.median,
        dropped_mass_max: dropped.max,
        measure: cell.measure(),
        // A text with very few words can have a perplexity beyond the range of numbers.
        word_perplexity: over_text(|l| perplexity(l, |l| l.words)).filter(|x| x.is_finite()),
        bits_per_byte: over_text(|l| nll(l) / std::f64::consts::LN_2 / total(l, |l| l.bytes)),
        kl_mean: over_text(|l| l.iter().map(|l| l.kl_sum).sum::<f64>() / total(l, |l| l.tokens)),
        kl_p99: over_text(kl_p99),
        same_top: over_text(|l| 100.0 * total(l, |l| l.same_top) / total(l, |l| l.tokens)),
        acc: right(|c| c.most_likely),
        acc_norm: right(|c| c.most_likely_by_length),
        kv_tokens_held: tokens_held(cell),
        index_s: times.index_s,
        decode_ms_low: times.step_ms.and_then(|ms| ms.low()),
        decode_ms_high: times.step_ms.and_then(|ms| ms.high()),
        timed: times.conditions.map(|conditions| conditions.to_string()),
        is_timed_apart: times.is_apart,
        contexts: cell.sample(|r| r.score).contexts(),
        detectable: reference.and_then(|full| detectable(cell, full)),
        latency,
        select_ms_per_token: times.parts_ms.map(|[select, ..]| select),
        attend_ms_per_token: times.parts_ms.map(|[_, attend, _]| attend),
        weights_ms_per_token: times.parts_ms.map(|[.., weights]| weights),
        picked_density: mean_of_known(cell, |r| r.comparable?.picked_density),
        cost1_sparse_layers: mean_of_known(cell, |r| Some(r.comparable?.cost1)),
        cost2_sparse_layers: mean_of_known(cell, |r| Some(r.comparable?.cost2)),
        cost2_picked: mean_of_known(cell, |r| r.comparable?.cost2_picked),
        cost1_published: mean_of_known(cell, |r| Some(r.comparable?.cost1_published)),
        shared_bytes_resident: mean_of_known(cell, |r| Some(r.comparable?.shared_bytes_resident)),
        bytes_share: reference.and_then(|full| bytes_share(cell, full)),
        fetched_memory_per_token: mean_of_known(cell, of_memory),
        fetched_disk_per_token: mean_of_known(cell, |r| Some(of_pages(r)?.disk)),
        page_hits: mean_of_known(cell, |r| r.fetched_per_token.as_deref()?.hits()),
        fetched_bus_per_token: mean_of_known(cell, |r| r.fetched_per_token.as_deref()?.bus),
        missed_share: mean_of_known(cell, |r| r.missed_share.as_deref().copied()),
        index_share: mean_of_known(cell, |r| Some(r.aux_bits? / f64::from(r.kv_bits.filter(|bits| *bits > 0)?))),
    }
}

/// Bytes read for a token over those that dense attention reads, on the examples of which both are known.
fn bytes_share(cell: &SummaryCell, full: &SummaryCell) -> Option<f64> {
    let pairs = cell.pairs(full).into_iter();
    let known = pairs.filter_map(|(_, ours, dense)| Some((ours.kv_bytes_per_token?, dense.kv_bytes_per_token?)));
    let (ours, dense) = known.fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    (dense > 0.0).then(|| ours / dense)
}

/// The score over all examples.
fn score(cell: &SummaryCell) -> Estimate {
    let found = match cell.measure() {
        Measure::Perplexity => perplexity_estimate(cell),
        Measure::Score => spattn_stats::score(&cell.sample(|r| r.score)).map(|score| score.scaled(100.0)),
    };
    found.unwrap_or(Estimate { mean: 0.0, ends: None })
}

/// The difference of the score to the reference's, over the examples that both have.
fn delta(cell: &SummaryCell, full: &SummaryCell) -> Option<Estimate> {
    let delta = match cell.measure() {
        Measure::Perplexity => perplexity_difference(cell, full, Level::SINGLE),
        Measure::Score => {
            spattn_stats::difference(&cell.differences(full, |r| r.score)).map(|delta| delta.scaled(100.0))
        }
    }?;
    // A difference to itself is zero, and not by chance, so it has no interval.
    Some(if cell.head().is_reference() { Estimate { ends: None, ..delta } } else { delta })
}

/// The difference in points that would be found.
pub(super) fn detectable(cell: &SummaryCell, full: &SummaryCell) -> Option<f64> {
    if cell.head().is_reference() || cell.measure() != Measure::Score {
        return None;
    }
    spattn_stats::least_detectable(&cell.differences(full, |r| r.score)).map(|difference| 100.0 * difference)
}

// ---- perplexity ----

fn nll(likelihoods: &[&Likelihood]) -> f64 {
    likelihoods.iter().map(|l| l.nll).sum()
}

/// Sum of a count, at least 1.
fn total(likelihoods: &[&Likelihood], count: fn(&Likelihood) -> usize) -> f64 {
    likelihoods.iter().map(|l| count(l)).sum::<usize>().max(1) as f64
}

/// The nats and tokens of a record's window.
fn window(r: &Record) -> Option<Window> {
    r.likelihood.as_ref().map(|l| Window { nats: l.nll, units: l.tokens as f64 })
}

pub fn perplexity_estimate(cell: &SummaryCell) -> Option<Estimate> {
    let windows = cell.contexts().iter().zip(&cell.records).filter_map(|(context, r)| Some((*context, window(r)?)));
    ratios::perplexity_interval(&windows.collect::<Vec<_>>())
}

/// The difference of the perplexities on common windows, with an interval that is as sure as the level says.
pub(crate) fn perplexity_difference(cell: &SummaryCell, other: &SummaryCell, level: Level) -> Option<Estimate> {
    perplexity_less_at(cell, 1.0, other, level)
}

/// The perplexity less `factor` times another one on common windows, with its 95 % interval; `factor` is above 0.
pub fn perplexity_less(cell: &SummaryCell, factor: f64, other: &SummaryCell) -> Option<Estimate> {
    perplexity_less_at(cell, factor, other, Level::SINGLE)
}

fn perplexity_less_at(cell: &SummaryCell, factor: f64, other: &SummaryCell, level: Level) -> Option<Estimate> {
    let pairs = cell.pairs(other).into_iter();
    let windows =
        pairs.filter_map(|(context, ours, theirs)| Some((context, window(ours)?, window(theirs)?.times(factor))));
    ratios::perplexity_difference_at(&windows.collect::<Vec<_>>(), level)
}

/// The 99th percentile over all scored tokens.
fn kl_p99(likelihoods: &[&Likelihood]) -> f64 {
    // Tokens without a listed divergence have none.
    let unlisted = |l: &Likelihood| l.tokens.saturating_sub(l.kl.len());
    let mut all: Vec<f64> = likelihoods.iter().flat_map(|l| l.kl.iter().copied()).collect();
    all.extend(std::iter::repeat_n(0.0, likelihoods.iter().map(|l| unlisted(l)).sum()));
    if all.is_empty() {
        return 0.0;
    }
    all.sort_by(f64::total_cmp);
    spattn_stats::quantile(&all, 0.99)
}

/// What a record fetched in pages, if its KV cache was read so.
fn of_pages(record: &Record) -> Option<&FetchedBytes> {
    record.fetched_per_token.as_deref().filter(|fetched| fetched.bus.is_none())
}

/// Returns what a record fetched from the faster memory; `None` if nothing is kept there.
fn of_memory(record: &Record) -> Option<f64> {
    let fetched = record.fetched_per_token.as_deref()?;
    (fetched.bus.is_none() || fetched.memory > 0.0).then_some(fetched.memory)
}

/// Mean over the records that have it.
fn mean_of_known(cell: &SummaryCell, of: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = cell.records.iter().filter_map(|r| of(r)).collect();
    (!values.is_empty()).then(|| spattn_stats::mean(&values))
}

/// Mean over the records that have it.
fn bytes_held(cell: &SummaryCell) -> Option<f64> {
    mean_of_known(cell, |r| r.kv_bytes_held.map(|bytes| bytes as f64))
}

/// Mean over the records that have it, if anything was let go in any of them.
fn tokens_held(cell: &SummaryCell) -> Option<f64> {
    let evicts = cell.records.iter().filter_map(|r| r.kv_tokens).any(|kv| kv.is_evicting());
    mean_of_known(cell, |r| r.kv_tokens.map(|kv| kv.held)).filter(|_| evicts)
}

fn fidelity(cell: &SummaryCell, of: impl Fn(&Fidelity) -> Option<f64>) -> Option<f64> {
    mean_of_known(cell, |r| of(r.fidelity.as_ref()?))
}

/// Means over the records with a spread.
struct MeanSpread {
    min: Option<f64>,
    median: Option<f64>,
    max: Option<f64>,
}

impl MeanSpread {
    fn new(cell: &SummaryCell, of: impl Fn(&Record) -> Option<Spread>) -> Self {
        let mean = |part: fn(Spread) -> f64| mean_of_known(cell, |r| of(r).map(part));
        Self { min: mean(|s| s.min), median: mean(|s| s.median), max: mean(|s| s.max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::costs::KvTokens;
    use crate::records::testing::record;

    fn method(name: &str, params: &str, sample: usize, score: f64) -> Record {
        Record {
            params: params.into(),
            key: format!("{name}{params}{sample}"),
            ..record("ruler/vt", name, sample, score)
        }
    }

    #[test]
    fn full_comes_first_then_the_given_order_then_the_rest() {
        let records =
            [("topk", "k=64"), ("topk", "k=8"), ("quest", ""), ("full", "")].map(|(m, p)| method(m, p, 0, 1.0));
        let order = [("quest".to_owned(), String::new())];
        let rows = summarize(&records, &order);
        let listed: Vec<_> = rows.iter().map(|r| format!("{}{}", r.method, r.params)).collect();
        assert_eq!(listed, ["full", "quest", "topkk=8", "topkk=64"]);
    }

    #[test]
    fn differences_are_taken_on_common_samples() {
        let mut records: Vec<_> = (0..4).map(|i| method("full", "", i, 1.0)).collect();
        records.extend((2..6).map(|i| method("topk", "", i, if i < 4 { 0.5 } else { 1.0 })));
        let rows = summarize(&records, &[]);
        assert_eq!((rows[1].n, rows[1].score, rows[1].delta_full), (4, 75.0, Some(-50.0)));
        assert_eq!(rows[0].delta_full, Some(0.0));
        assert_eq!(summarize(&records[4..], &[])[0].delta_full, None);
    }

    #[test]
    fn shares_are_of_what_dense_attention_reads_and_stores() {
        let of = |name: &str, sample, bytes, bits| Record {
            kv_bytes_per_token: bytes,
            aux_bits: Some(3300.0),
            kv_bits: bits,
            ..method(name, "", sample, 1.0)
        };
        let records = [
            of("full", 0, Some(1000.0), Some(2048)),
            of("full", 1, Some(3000.0), Some(2048)),
            of("topk", 0, Some(500.0), Some(2048)),
            of("topk", 1, Some(300.0), None),
            // Only what both have is compared.
            of("topk", 2, Some(9e9), Some(1024)),
            of("quest", 0, None, None),
        ];
        let rows = summarize(&records, &[]);
        let shares = |name: &str| {
            let row = rows.iter().find(|row| row.method == name).unwrap();
            (row.bytes_share, row.index_share)
        };
        assert!(close(shares("topk").0, 800.0 / 4000.0));
        assert!(close(shares("topk").1, (3300.0 / 2048.0 + 3300.0 / 1024.0) / 2.0), "of what says how large keys are");
        assert_eq!((shares("full").0, shares("quest")), (Some(1.0), (None, None)));
        assert!(summarize(&records[2..3], &[])[0].bytes_share.is_none(), "of nothing dense");
    }

    #[test]
    fn pages_are_averaged_over_the_records_that_have_them() {
        let of = |sample, memory, disk| Record {
            fetched_per_token: Some(FetchedBytes { memory, disk, bus: None }.into()),
            ..method("topk", "", sample, 1.0)
        };
        let rows =
            summarize(&[of(0, 300.0, 100.0), of(1, 0.0, 0.0), of(2, 100.0, 300.0), method("topk", "", 3, 1.0)], &[]);
        assert!(
            close(rows[0].fetched_memory_per_token, 400.0 / 3.0) && close(rows[0].fetched_disk_per_token, 400.0 / 3.0)
        );
        assert!(close(rows[0].page_hits, 0.5), "nothing fetched is no ratio: {:?}", rows[0].page_hits);
        assert_eq!(summarize(&[method("topk", "", 3, 1.0)], &[])[0].page_hits, None);
        let of_bus = |sample, bytes| Record {
            fetched_per_token: Some(FetchedBytes { memory: 0.0, disk: 0.0, bus: Some(bytes) }.into()),
            ..method("topk", "", sample, 1.0)
        };
        let row = summarize(&[of_bus(0, 10.0), of_bus(1, 30.0)], &[]).remove(0);
        assert!(close(row.fetched_bus_per_token, 20.0));
        assert_eq!((row.fetched_memory_per_token, row.fetched_disk_per_token, row.page_hits), (None, None, None));
        // What a GPU has cached did not cross the bus.
        let kept = Record {
            fetched_per_token: Some(FetchedBytes { memory: 30.0, disk: 0.0, bus: Some(10.0) }.into()),
            ..method("topk", "", 0, 1.0)
        };
        let row = summarize(&[kept], &[]).remove(0);
        assert!(close(row.fetched_memory_per_token, 30.0) && close(row.page_hits, 0.75));
        assert!(close(row.fetched_bus_per_token, 10.0) && row.fetched_disk_per_token.is_none());
    }

    #[test]
    fn misses_are_averaged_where_tokens_are_selected_ahead() {
        let of = |sample, missed: Option<f64>| Record {
            missed_share: missed.map(Box::new),
            ..method("double_sparsity", "", sample, 1.0)
        };
        let row = summarize(&[of(0, Some(0.25)), of(1, Some(0.75)), of(2, None)], &[]).remove(0);
        assert!(close(row.missed_share, 0.5), "{:?}", row.missed_share);
        assert_eq!(summarize(&[of(0, None)], &[])[0].missed_share, None);
    }

    #[test]
    fn other_lengths_and_protocols_are_other_rows() {
        let mut records = vec![method("full", "", 0, 1.0), method("topk", "", 0, 0.0)];
        records.push(Record { protocol: "decode".into(), ..method("topk", "", 0, 1.0) });
        records.push(Record { length: 512, ..method("topk", "", 0, 1.0) });
        let deltas: Vec<_> =
            summarize(&records, &[]).iter().map(|r| (r.protocol.clone(), r.length, r.delta_full)).collect();
        let at = |p: &str, length, delta| (p.to_owned(), length, delta);
        assert_eq!(
            deltas,
            [
                at("decode", 4096, None),
                at("question", 512, None),
                at("question", 4096, Some(0.0)),
                at("question", 4096, Some(-100.0))
            ]
        );
    }

    #[test]
    fn perplexity_is_of_the_sums_and_its_difference_is_paired() {
        use crate::records::testing::perplexity;
        let mut records = vec![perplexity("full", 0, 1.0), perplexity("full", 1, 3.0)];
        records.extend([perplexity("topk", 0, 1.5), perplexity("topk", 1, 3.5), perplexity("topk", 2, 9.0)]);
        let long = records[1].likelihood.as_mut().unwrap();
        (long.nll, long.tokens, long.kl) = (900.0, 300, vec![0.5; 5]);
        let rows = summarize(&records, &[]);
        assert!((rows[0].score - 2.5f64.exp()).abs() < 1e-9, "1,000 nats over 400 tokens: {}", rows[0].score);
        // The long window is 0.375 nats above the mean over all tokens, the short one equally far below; Student's t for two.
        let half: f64 = 2.0 * 0.375 * 12.706_204_736_174_694;
        assert!(close(rows[0].ci_low, (2.5 - half).exp()) && close(rows[0].ci_high, (2.5 + half).exp()), "{rows:?}");
        let delta = rows[1].delta_full.unwrap();
        assert!((delta - (2.5f64.exp() - 2.5f64.exp())).abs() < 1e-9, "common windows only: {delta}");
        assert!(close(rows[0].word_perplexity, (1000.0f64 / 100.0).exp()));
        assert!(close(rows[0].bits_per_byte, 1000.0 / 800.0 / std::f64::consts::LN_2));
        assert!(close(rows[0].kl_mean, 2.0 / 400.0) && close(rows[0].same_top, 45.0));
        assert!(close(rows[0].kl_p99, 0.5), "the greatest 5 of 400: {:?}", rows[0].kl_p99);
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9 * expected)
    }

    #[test]
    fn one_example_has_no_interval_and_what_all_get_right_is_not_certain() {
        let rows = |n: usize| -> Vec<SummaryRow> {
            let records: Vec<Record> =
                (0..n).flat_map(|i| [method("full", "", i, 1.0), method("topk", "", i, 1.0)]).collect();
            summarize(&records, &[])
        };
        let one = rows(1);
        assert_eq!((one[1].score, one[1].ci_low, one[1].ci_high), (100.0, None, None));
        assert_eq!((one[1].delta_full, one[1].delta_low, one[1].detectable), (Some(0.0), None, None));
        let twenty = rows(20);
        assert!(close(twenty[1].ci_low, 83.156_652_901_691_46) && twenty[1].ci_high == Some(100.0), "{:?}", twenty[1]);
        assert!(close(twenty[1].delta_high, 16.112_515_805_282_83), "{:?}", twenty[1]);
        assert_eq!((twenty[0].delta_full, twenty[0].delta_low, twenty[0].detectable), (Some(0.0), None, None));
    }

    /// Five depths of each of four samples. `right` says by its number whether a sample is right.
    fn needles(seed: u64, right: impl Fn(usize) -> bool) -> Vec<Record> {
        let make = |i: usize| Record {
            seed,
            key: format!("{seed} {i}"),
            depth: Some(25.0 * (i % 5) as f64),
            references: vec![format!("{seed} {}", i / 5)].into(),
            ..record("needle/number", "topk", i, f64::from(u8::from(right(i / 5))))
        };
        (0..20).map(make).collect()
    }

    #[test]
    fn depths_of_a_sample_are_one_context_in_old_records_as_in_new() {
        let old = needles(1, |sample| sample % 2 == 0);
        let new: Vec<Record> = old.iter().map(|r| Record { context: Some(r.sample / 5 * 5), ..r.clone() }).collect();
        let apart: Vec<Record> = old.iter().map(|r| Record { depth: None, ..r.clone() }).collect();
        let row = |records: &[Record]| summarize(records, &[]).remove(0);
        assert_eq!((row(&old).n, row(&old).contexts, row(&new).contexts, row(&apart).contexts), (20, 4, 4, 20));
        assert_eq!(row(&old), row(&new));
        assert!(row(&old).ci_low < row(&apart).ci_low && row(&old).ci_high > row(&apart).ci_high);
        let mut reversed = old.clone();
        reversed.reverse();
        assert_eq!(row(&reversed), row(&old));
        // If a depth is out of order, nothing says which examples belong together.
        let mut odd = old.clone();
        odd[7].depth = Some(25.0);
        assert_eq!(row(&odd).contexts, 20);
        let one: Vec<Record> = old[..5].to_vec();
        assert_eq!((row(&one).n, row(&one).ci_low), (5, None));
    }

    #[test]
    fn an_example_of_a_file_is_the_same_under_every_seed() {
        let generated = [needles(1, |_| true), needles(2, |_| true)].concat();
        assert_eq!(summarize(&generated, &[])[0].contexts, 8);
        let asked: Vec<Record> = generated
            .iter()
            .map(|r| Record { references: vec![r.sample.to_string()].into(), task: "jsonl:rows".into(), ..r.clone() })
            .collect();
        let row = &summarize(&asked, &[])[0];
        assert_eq!((row.n, row.contexts), (40, 4));
    }

    #[test]
    fn accuracies_are_shares_of_questions_whose_right_option_is_most_likely() {
        // The third option is right. It is the most likely in three of four cases, and by length in two.
        let options =
            [([-3.0, -2.0, -1.0], 1), ([-3.0, -2.0, -1.0], 9), ([-3.0, -2.0, -1.5], 9), ([-1.0, -2.0, -3.0], 9)];
        let row = |count: usize| {
            let of = |(i, (likelihoods, characters)): (usize, &([f64; 3], usize))| Record {
                choice: Some(Choice::new(likelihoods.to_vec(), vec![9, 9, *characters], 2).into()),
                ..method("topk", "", i, 1.0)
            };
            let mut records: Vec<Record> = options.iter().enumerate().take(count).map(of).collect();
            records.push(method("topk", "", 4, 1.0));
            summarize(&records, &[]).remove(0)
        };
        assert_eq!((row(4).acc, row(4).acc_norm), (Some(75.0), Some(50.0)));
        assert_eq!((row(0).acc, row(0).acc_norm), (None, None));
    }

    #[test]
    fn closeness_to_exact_attention_is_averaged_over_layers_and_examples() {
        let spread = |x: f64| Spread { min: x, median: 2.0 * x, max: 3.0 * x };
        // Two layers each. The third example was not compared.
        let compared = |sample, [error, recall, dropped]: [[f64; 2]; 3], x: f64| Record {
            density_spread: Some(spread(x).into()),
            fidelity: Some(Box::new(Fidelity {
                output_error: error.to_vec(),
                recall: recall.to_vec(),
                dropped_mass: dropped.to_vec(),
                spread: Some(FidelitySpread {
                    output_error: spread(10.0 * x),
                    recall: spread(100.0 * x),
                    dropped_mass: spread(1000.0 * x),
                }),
                heads: None,
            })),
            ..method("topk", "", sample, 1.0)
        };
        let records = [
            compared(0, [[0.25, 0.75], [1.0, 0.5], [0.125, 0.125]], 1.0),
            compared(1, [[0.5, 1.5], [0.5, 0.5], [0.5, 0.25]], 3.0),
            method("topk", "", 2, 1.0),
        ];
        let row = summarize(&records, &[]).remove(0);
        assert_eq!((row.output_error, row.recall, row.dropped_mass), (Some(0.75), Some(0.625), Some(0.25)));
        let spreads = [
            ([row.density_min, row.density_median, row.density_max], 1.0),
            ([row.output_error_min, row.output_error_median, row.output_error_max], 10.0),
            ([row.recall_min, row.recall_median, row.recall_max], 100.0),
            ([row.dropped_mass_min, row.dropped_mass_median, row.dropped_mass_max], 1000.0),
        ];
        for (found, unit) in spreads {
            assert_eq!(found, [2.0, 4.0, 6.0].map(|x| Some(unit * x)));
        }
        let none = summarize(&records[2..], &[]).remove(0);
        assert_eq!((none.output_error, none.recall_max, none.dropped_mass), (None, None, None));
        assert!(close(none.cost_total, 0.11), "0.01 for scores and 0.1 for attention");
    }

    #[test]
    fn tokens_held_are_told_where_any_were_let_go() {
        let row = |held: [Option<f64>; 2]| {
            let of = |(i, held): (usize, Option<f64>)| Record {
                kv_tokens: held.map(|held| KvTokens { held, context: 100 }),
                ..method("snapkv", "", i, 1.0)
            };
            summarize(&held.into_iter().enumerate().map(of).collect::<Vec<_>>(), &[]).remove(0).kv_tokens_held
        };
        assert_eq!(row([Some(100.0), Some(40.0)]), Some(70.0));
        assert_eq!(row([None, Some(40.0)]), Some(40.0));
        assert_eq!((row([Some(100.0), Some(100.0)]), row([None, None])), (None, None));
    }

    #[test]
    fn a_repeated_sample_counts_once() {
        let mut other = method("full", "", 0, 0.0);
        other.key = "0 comes before".into();
        let rows = summarize(&[method("full", "", 0, 1.0), other], &[]);
        assert_eq!((rows[0].n, rows[0].score), (1, 0.0));
    }

    #[test]
    fn no_records_make_no_rows() {
        assert!(summarize(&[], &[]).is_empty());
    }
}
