//! `vertical_slash`: prefill along the vertical and diagonal lines that the prompt's last queries attend most (HiP's
//! AVD; MInference's vertical-slash head, Jiang et al. 2024, §3.2 and Algorithm 2).
//!
//! The attention of the last `snapshot` queries is summed by token and by distance. All rows of the prompt attend the
//! `vertical` best tokens and the `slash` best distances, beside the sink and a window (the A-shape of AVD). Nothing is
//! stored: decoding is dense. HiP's tables decode either densely or by the A-shape alone, which is `a_shape`.
//!
//! Decisions where the papers leave room:
//! - Lines are single tokens. MInference's kernel attends the whole block of 64 keys that a diagonal crosses.
//! - Tokens within the sink and distances within the window are attended anyway, so they are no candidates.
//! - MInference votes with the last 64 queries; HiP does not give a number.
//! - A density is met with equally many verticals and slashes, or by verticals alone if `slash` is given.

use std::sync::Arc;

use super::ParamInfo;
use super::lines::{Lines, Static, all_pairs, best, of_each_head, ranked, votes_of_last};
use super::prefill_only::PrefillOnly;
use crate::cost::Cost;
use crate::kv::MOST_TOKENS;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::{
    AddedLines, BlockMask, LineVotes, LinedMask, Policy, PromptMask, PromptPlan, QueryBlock, Role, Tuned,
    least_reaching,
};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "vertical_slash",
    role: Role::Method,
    about: "vertical and diagonal lines that the prompt's last queries attend, sink and window (AVD)",
    reference: "a baseline of HiP (AVD; arXiv:2406.09827), after MInference (Jiang et al. 2024, arXiv:2407.02490)",
    params: &[
        ParamInfo { key: "vertical", default: "256", about: "tokens that all rows attend, beyond the sinks" },
        ParamInfo { key: "slash", default: "256", about: "distances at which all rows attend, beyond the window" },
        ParamInfo { key: "snapshot", default: "64", about: "last queries of the prompt, whose attention decides" },
        Granularity::INFO,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("vertical", "4096"), ("slash", "4096"), ("local", "2048")],
            source: "HiP Table 2, AVD 2k, 4k+4k: read as a window of 2k, 4k verticals and 4k diagonals",
        },
        Preset {
            name: "repo",
            values: &[("vertical", "1000"), ("slash", "6096"), ("snapshot", "64"), ("sink", "30"), ("local", "100")],
            source: "MInference's code, its default head: 1,000 verticals with the first 30, 6,096 slashes with the last 100",
        },
    ],
    build: |params| {
        let vertical = params.tuned_within("vertical", 256, 0..=MOST_TOKENS)?;
        let slash = match vertical {
            Tuned::Density(_) if !params.is_given("slash") => {
                params.take("slash");
                None
            }
            _ => Some(params.get_within("slash", 256, 0..=MOST_TOKENS)?),
        };
        let snapshot = params.get_minor("snapshot", 64)?;
        Ok(Arc::new(PrefillOnly(VerticalSlash { vertical, slash, snapshot, per: Granularity::read_per(params)? })))
    },
};

/// Lines chosen by the votes of the last queries.
struct VerticalSlash {
    vertical: Tuned<usize>,
    /// If not given, as many as there are verticals.
    slash: Option<usize>,
    snapshot: usize,
    per: Granularity,
}

impl VerticalSlash {
    /// Chooses the lines of each mask of a KV head, by the votes of each of its query heads.
    fn lines(&self, votes: Vec<LineVotes>, fixed: Static) -> Vec<Lines> {
        self.per.reduced(votes, LineVotes::with).iter().map(|votes| self.lines_of(votes, fixed)).collect()
    }

    fn lines_of(&self, votes: &LineVotes, fixed: Static) -> Lines {
        let tokens = votes.vertical.len();
        let (of_tokens, of_distances) = (fixed.sink..tokens, fixed.window.min(tokens)..tokens);
        let density = match (self.vertical, self.slash) {
            (Tuned::Value(count), slash) => {
                let vertical = best(&votes.vertical, of_tokens, count);
                return Lines::new(&vertical, &best(&votes.slash, of_distances, slash.unwrap_or(count)), fixed);
            }
            (Tuned::Density(density), _) => density,
        };
        let (vertical, slashes) = (ranked(&votes.vertical, of_tokens), ranked(&votes.slash, of_distances));
        let lines = |count: usize| {
            let slash = self.slash.unwrap_or(count);
            Lines::new(&vertical[..count.min(vertical.len())], &slashes[..slash.min(slashes.len())], fixed)
        };
        let wanted = density * all_pairs(tokens) as f64;
        lines(least_reaching(0..=tokens, wanted, |count| lines(count).pairs(tokens) as f64))
    }
}

impl PromptMask for VerticalSlash {
    fn query_rows(&self) -> usize {
        64
    }

    fn last_queries(&self) -> Option<usize> {
        Some(self.snapshot)
    }

    fn plan<'p>(&'p self, prompt: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        let votes = of_each_head(prompt.group, cost, |head, cost| votes_of_last(prompt, head, self.snapshot, cost));
        let lines = self.lines(votes, Static::new(prompt.policy, prompt.end()));
        Box::new(move |block| self.per.masks(lines.iter().map(|lines| lines.mask(block)).collect()))
    }

    fn lined(&self) -> Option<&dyn LinedMask> {
        Some(self)
    }
}

impl LinedMask for VerticalSlash {
    fn searched(&self) -> Option<&dyn BlockMask> {
        None
    }

    fn voters(&self) -> usize {
        self.snapshot
    }

    fn starts(&self, block: &QueryBlock<'_>) -> Vec<usize> {
        Static::new(block.policy, block.end()).starts(block)
    }

    fn choose(&self, votes: Vec<LineVotes>, policy: &Policy) -> Vec<AddedLines> {
        let tokens = votes.first().map_or(0, |votes| votes.vertical.len());
        self.lines(votes, Static::new(policy, tokens)).into_iter().map(Lines::into_added).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::prefill::testing::{D, Layer, assert_sees, is_static, plain, score_flops, softmax_up_to};

    /// The `count` indexes of `range` with the largest sums, the largest first.
    fn best(sums: &[f64], range: std::ops::Range<usize>, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = range.collect();
        order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
        order.truncate(count);
        order
    }

    /// Verticals and slashes of some heads that choose together, by the definition.
    fn lines(
        layer: &Layer,
        heads: &[usize],
        (vertical, slash, snapshot): (usize, usize, usize),
        policy: &Policy,
    ) -> [Vec<usize>; 2] {
        let n = layer.tokens();
        let (mut by_token, mut by_distance) = (vec![0.0; n], vec![0.0; n]);
        for (head, position) in heads.iter().flat_map(|head| (n.saturating_sub(snapshot)..n).map(move |p| (*head, p))) {
            for (token, weight) in softmax_up_to(layer, position, head).into_iter().enumerate() {
                by_token[token] += weight;
                by_distance[position - token] += weight;
            }
        }
        [best(&by_token, policy.sink.min(n)..n, vertical), best(&by_distance, policy.local.max(1).min(n)..n, slash)]
    }

    #[test]
    fn rows_see_the_lines_that_the_last_queries_attend_most() {
        for (tokens, heads, kv_heads) in [(150, 4, 2), (40, 2, 1), (7, 1, 1)] {
            let layer = Layer::new(tokens, heads, kv_heads);
            for (counts, (sink, local), per) in [
                ((6, 5, 64), (4, 20), "query_head"),
                ((9, 3, 5), (0, 0), "query_head"),
                ((0, 8, 10), (2, 3), "query_head"),
                ((7, 0, 1), (2, 3), "query_head"),
                ((6, 5, 30), (3, 7), "kv_head"),
                ((500, 500, 500), (3, 7), "query_head"),
            ] {
                let policy = Policy { sink, local, ..Policy::default() };
                let (vertical, slash, snapshot) = counts;
                let spec = format!("vertical_slash:vertical={vertical},slash={slash},snapshot={snapshot},per={per}");
                let group = heads / kv_heads;
                let chosen: Vec<[Vec<usize>; 2]> = (0..heads)
                    .map(|head| match per {
                        "query_head" => lines(&layer, &[head], counts, &policy),
                        _ => {
                            let first = head / group * group;
                            lines(&layer, &(first..first + group).collect::<Vec<_>>(), counts, &policy)
                        }
                    })
                    .collect();
                assert_sees(&layer, &spec, &policy, |head, position| {
                    let [vertical, slashes] = &chosen[head];
                    plain((0..=position).filter(|token| {
                        is_static(&policy, position, *token)
                            || vertical.contains(token)
                            || slashes.contains(&(position - token))
                    }))
                });
            }
        }
    }

    #[test]
    fn the_votes_of_the_last_queries_are_paid_for() {
        let layer = Layer::new(150, 4, 2);
        for (snapshot, rows) in [(64, 64), (10, 10), (1000, 150)] {
            let spec = format!("vertical_slash:snapshot={snapshot}");
            assert_eq!(score_flops(&layer, &spec, &Policy::default()), 4 * rows * 150 * 2 * D);
        }
    }

    #[test]
    fn a_needle_is_kept_for_rows_that_do_not_vote() {
        let unit = |at: usize, size: f32| (0..D).map(|c| if c == at { size } else { 0.0 }).collect::<Vec<f32>>();
        let keys: Vec<Vec<f32>> = (0..300).map(|t| unit(if t == 50 { 0 } else { 1 + t % 7 }, 9.0)).collect();
        let layer = Layer::of(&keys, &vec![unit(0, 6.0); 300]);
        let policy = Policy { sink: 0, local: 4, ..Policy::default() };
        assert_sees(&layer, "vertical_slash:vertical=1,slash=0", &policy, |_, position| {
            plain((0..=position).filter(|token| *token == 50 || position - token < 4))
        });
    }
}
