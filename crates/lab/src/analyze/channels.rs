//! Which channels contribute most to scores, offline and online (Double Sparsity Fig. 7).
//!
//! Online, channels are ranked by `Σᵢ |q_c·k_ic|` over the tokens that a query attends, summed over the query heads of a KV head, which
//! share one label cache. Offline, channels are ranked by the model's calibration (mean `|q_c·k_c|`, `kind=qk`). The overlap of `r`
//! channels is the share of the online top `r` that are in the offline top `r`; by chance it would be `r/d`. The tables also give the
//! shares of the sum that the online and the offline top `r` hold, and the overlap with a ranking by the document's own mean over its
//! steps. That shows how much any choice made before a step could share with it: what is missing there is not the calibration's fault.

use anyhow::Result;

use super::findings::{Drawing, Lines, Panel, Point, Tally, Unit};
use super::head::Head;
use super::{Analysis, Document, Findings, Observation, Setup};
use spattn_eval::calibration::supply::found;

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "channels",
    about: "channels with the largest share of scores: how concentrated they are, and whether offline and online choices agree",
    reference: "Double Sparsity Fig. 7",
    methods: &[],
    start: |setup| Ok(Box::new(Channels::new(setup)?)),
};

/// The divisors of `d` that give the numbers of channels `r` to compare.
const ONE_IN: [usize; 5] = [16, 8, 4, 2, 1];
const CALIBRATION: &str = "double_sparsity";

struct Channels {
    /// The channels of each layer and KV head, the most important first; `None` without a calibration.
    offline: Option<Vec<Vec<Vec<usize>>>>,
    /// The [`numbers`] of each step.
    tally: Tally,
    notes: Vec<String>,
}

impl Channels {
    fn new(setup: &Setup<'_>) -> Result<Self> {
        let model = &setup.loaded.model;
        let (c, mut notes) = (model.dimensions.config(), Vec::new());
        let artefact = found(CALIBRATION, model, None)?;
        let of_layer = |layer: usize, artefact: &spattn_attention::artefact::Artefact| -> Result<Vec<Vec<usize>>> {
            let means = artefact.read(&format!("layers.{layer}.qk"), &[c.heads, c.head_dim])?;
            let of_group = |group: &[f32]| ranked(&sums(group, c.head_dim));
            Ok(means.chunks_exact(c.heads / c.kv_heads * c.head_dim).map(of_group).collect())
        };
        let offline =
            artefact.map(|artefact| (0..c.layers).map(|layer| of_layer(layer, &artefact)).collect::<Result<_>>());
        if offline.is_none() {
            notes.push(format!(
                "{} has no calibration of {CALIBRATION}, so online channels are not compared with offline ones; make it with: spattn calibrate {CALIBRATION} --model {0}",
                model.id
            ));
        }
        Ok(Self { offline: offline.transpose()?, tally: Tally::default(), notes })
    }
}

/// Column sums of rows `[row][d]`.
fn sums(rows: &[f32], d: usize) -> Vec<f64> {
    (0..d).map(|c| rows.iter().skip(c).step_by(d).map(|x| f64::from(*x)).sum()).collect()
}

/// The channels by descending sum; ties by ascending channel.
fn ranked(sums: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]).then(a.cmp(b)));
    order
}

/// Returns for each step `Σᵢ |q_c·k_ic|` by channel, over the tokens attended and the query heads of the group.
fn online(head: &Head) -> Vec<Vec<f64>> {
    let d = head.d;
    let steps = head.queries.last().map_or(0, |query| query.step + 1);
    let mut all = vec![vec![0.0; d]; steps];
    // Σᵢ |q_c·k_ic| = |q_c|·Σᵢ |k_ic|. The sum over keys grows from step to step.
    let (mut absolute, mut seen) = (vec![0.0; d], 0);
    for query in &head.queries {
        for token in seen..query.tokens {
            absolute.iter_mut().zip(head.key(token)).for_each(|(sum, k)| *sum += f64::from(k.abs()));
        }
        seen = query.tokens;
        let out = all[query.step].iter_mut().zip(&query.vector).zip(&absolute);
        out.for_each(|((sum, q), k)| *sum += f64::from(q.abs()) * k);
    }
    all
}

/// Ranks channels by their share of a step's sum, averaged over the steps; the most important first.
fn ranked_over_steps(steps: &[Vec<f64>]) -> Vec<usize> {
    let mut shares = vec![0.0; steps.first().map_or(0, Vec::len)];
    for step in steps {
        let all = step.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        shares.iter_mut().zip(step).for_each(|(sum, x)| *sum += x / all);
    }
    ranked(&shares)
}

/// Returns four numbers for each of [`ONE_IN`]: first all overlaps with `offline` (NaN without it), then all shares of the sum, then all
/// overlaps with `own`, then all shares of the sum that `offline` holds.
fn numbers(online: &[f64], offline: Option<&[usize]>, own: &[usize]) -> Vec<f64> {
    let (order, all) = (ranked(online), online.iter().sum::<f64>().max(f64::MIN_POSITIVE));
    let counts = || ONE_IN.iter().map(|one_in| (online.len() / one_in).max(1));
    let common = |count: usize, other: &[usize]| {
        order[..count].iter().filter(|c| other[..count].contains(c)).count() as f64 / count as f64
    };
    let held = |channels: &[usize]| channels.iter().map(|c| online[*c]).sum::<f64>() / all;
    let overlap = |count: usize| offline.map_or(f64::NAN, |offline| common(count, offline));
    let kept = |count: usize| offline.map_or(f64::NAN, |offline| held(&offline[..count]));
    let share = |count: usize| held(&order[..count]);
    let numbers = counts().map(overlap).chain(counts().map(share));
    numbers.chain(counts().map(|count| common(count, own))).chain(counts().map(kept)).collect()
}

impl Observation for Channels {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let offline = &self.offline;
        let looked = document.each_head(|head| {
            let offline = offline.as_ref().map(|all| all[head.layer][head.kv_head].as_slice());
            let steps = online(head);
            let own = ranked_over_steps(&steps);
            let all: Vec<_> = steps.iter().map(|online| numbers(online, offline, &own)).collect();
            (head.layer, head.kv_head, all)
        })?;
        for (layer, kv_head, steps) in looked {
            steps.iter().for_each(|numbers| self.tally.add(&document.task, layer, kv_head, numbers));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { tally, notes, .. } = *self;
        let names: Vec<String> = ["overlap", "share", "own", "kept"]
            .iter()
            .flat_map(|of| ONE_IN.iter().map(move |one_in| format!("{of} d/{one_in}")))
            .collect();
        let columns: Vec<(&str, Unit)> = names.iter().map(|name| (name.as_str(), Unit::Share)).collect();
        let about = "Channels with the largest share of scores: overlap of offline and online choices, the online ones' share of |q·k|, their overlap with \
                     the document's own mean, and the offline ones' share";
        let title = format!("{about}; mean over KV heads, steps and documents");
        let by_layer = tally.layer_table("channels_by_layer", &title, &columns);
        let title = format!("{about}; by layer and KV head");
        let by_head = tally.head_table("channels_by_head", &title, ["layer", "kv_head"], &columns);
        let heads = tally.heads();
        let line = |from: usize| -> Vec<Point> {
            let point = |(at, one_in): (usize, &usize)| {
                let values = || heads.values().map(|numbers| 100.0 * numbers[from + at]);
                let ends = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
                let mean = tally.overall()?[from + at];
                mean.is_finite().then_some(Point { x: 100.0 / *one_in as f64, y: 100.0 * mean, ends: Some(ends) })
            };
            ONE_IN.iter().enumerate().filter_map(point).collect()
        };
        let chance = ONE_IN.iter().map(|one_in| Point::at(100.0 / *one_in as f64, 100.0 / *one_in as f64)).collect();
        let series = [
            ("overlap of offline and online", line(0)),
            ("share of |q·k|", line(ONE_IN.len())),
            ("overlap by chance", chance),
        ];
        let series = series.into_iter().filter(|(_, points)| !points.is_empty());
        let lines = Lines {
            name: "channels".to_owned(),
            title: "Channels chosen: range over KV heads".to_owned(),
            x_label: "channels (% of d)".to_owned(),
            y_label: "%".to_owned(),
            log_x: true,
            log_y: false,
            panels: vec![Panel {
                title: String::new(),
                series: series.map(|(name, points)| (name.to_owned(), points)).collect(),
            }],
        };
        Findings { tables: vec![by_layer, by_head], drawings: vec![Drawing::Lines(lines)], notes }
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    #[test]
    fn channels_are_ranked_by_sums_over_all_tokens_and_heads_of_the_group() {
        let head = drawn(20, 3, 16, 4);
        for (step, found) in online(&head).iter().enumerate() {
            let mut naive = [0.0; 16];
            for query in head.queries.iter().filter(|query| query.step == step) {
                for token in 0..query.tokens {
                    (0..16).for_each(|c| naive[c] += f64::from((query.vector[c] * head.key(token)[c]).abs()));
                }
            }
            assert!(found.iter().zip(naive).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {naive:?}");
        }
    }

    #[test]
    fn overlap_is_of_as_many_channels_and_shares_are_of_the_sum() {
        // The channels' ranking is 3, 2, 1, 0 online and 3, 0, 2, 1 offline.
        let found = numbers(&[1.0, 2.0, 3.0, 4.0], Some(&[3, 0, 2, 1]), &[1, 2, 3, 0]);
        assert_eq!(found[..5], [1.0, 1.0, 1.0, 0.5, 1.0]);
        assert_eq!(found[5..10], [0.4, 0.4, 0.4, 0.7, 1.0]);
        // The document's own ranking is 1, 2, 3, 0: of the online top two, 3 and 2, its top two share only 2.
        assert_eq!(found[10..15], [0.0, 0.0, 0.0, 0.5, 1.0]);
        // The offline channels 3 and 0 hold half of the sum.
        assert_eq!(found[15..], [0.4, 0.4, 0.4, 0.5, 1.0]);
        let without = numbers(&[1.0, 2.0], None, &[1, 0]);
        assert!(without[0].is_nan() && without[15].is_nan() && without[10] == 1.0);
    }

    #[test]
    fn a_documents_own_channels_are_by_shares_so_that_no_step_outweighs_others() {
        // Channel 2 has the largest sum because of one large step; channel 0 leads in two of the three steps.
        assert_eq!(ranked_over_steps(&[vec![9.0, 1.0, 0.0], vec![9.0, 1.0, 0.0], vec![0.0, 30.0, 70.0]]), [0, 2, 1]);
    }
}
