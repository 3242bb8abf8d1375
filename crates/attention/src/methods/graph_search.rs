//! What methods that search a graph of keys share: the width of their beam, picking, and counting the work.

use std::fmt;
use std::str::FromStr;

use crate::cost::Cost;
use crate::index::graph::{Beam, Scored};
use crate::index::workspaces::Workspaces;
use crate::kv::MOST_TOKENS;
use crate::scored::granularity::Granularity;
use crate::{Selection, Step};
use spattn_kernels::linear;

/// Links of a key that can be asked for: room is made for all of them.
pub(super) const MOST_LINKS: usize = 1024;

/// How many keys a search holds: a number, or a multiple of `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchWidth {
    /// `4k`, and of a large `k` no more than some keys beyond: a wide beam misses as little with less to spare.
    Usual,
    Keys(usize),
    TimesK(usize),
}

impl SearchWidth {
    pub(super) const EXPECTED: &'static str = "a whole number from 1, or a multiple of k such as 4k";

    /// [`SearchWidth::Usual`], for lists of parameters.
    pub(super) const USUAL: &'static str = "4k to k+256";
    const MOST_BEYOND: usize = 256;

    /// The number when `k` keys are wanted, which is the least.
    pub(super) fn of(self, k: usize) -> usize {
        match self {
            Self::Usual => (4 * k).min(k + Self::MOST_BEYOND),
            Self::Keys(n) => n.max(k),
            Self::TimesK(times) => times.saturating_mul(k),
        }
    }
}

impl FromStr for SearchWidth {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let positive = |text: &str| text.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n)).ok_or(());
        match text.strip_suffix('k') {
            Some(times) => positive(times).map(Self::TimesK),
            None => positive(text).map(Self::Keys),
        }
    }
}

impl fmt::Display for SearchWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str(Self::USUAL),
            Self::Keys(n) => write!(f, "{n}"),
            Self::TimesK(times) => write!(f, "{times}k"),
        }
    }
}

/// The candidates that left the window since the graph was made, each scored, with the cost; numbered behind its nodes.
fn scored_behind(step: &Step<'_>, query: &[f32], cost: &mut Cost) -> Vec<Scored> {
    let behind = step.candidates.start + step.indexed.len()..step.candidates.end;
    if behind.is_empty() {
        return Vec::new();
    }
    let keys = step.all_keys().slice(behind.clone());
    cost.score_flops += 2 * (behind.len() * step.d) as u64;
    cost.kv_bytes += (behind.len() * step.d * keys.elem_bytes()) as u64;
    let mut scores = vec![0.0; behind.len()];
    linear::scores(query, &keys.to_f32(), step.d, &mut scores);
    (step.indexed.len() as u32..).zip(scores).map(|(node, score)| Scored { node, score }).collect()
}

/// All candidates for every query, without looking at any.
pub(super) fn pick_all(step: &Step<'_>, per: Granularity) -> Selection {
    per.all(step)
}

/// Writes the scores of the nodes that it is given.
type Score<'a> = dyn FnMut(&[u32], &mut [f32]) + 'a;

/// The `k` best of what `search` finds in a graph of so many `nodes` for each query that picks, as tokens in ascending order,
/// with its cost.
///
/// `search` is given the memory of searches, and the function that scores candidates.
pub(super) fn search_each(
    step: &Step<'_>,
    per: Granularity,
    k: usize,
    nodes: usize,
    beams: &Workspaces<Beam>,
    cost: &mut Cost,
    search: impl Fn(&mut Beam, &mut Score<'_>) -> Vec<Scored> + Sync,
) -> Selection {
    let selection = per.by_query(step, cost, |query, cost| {
        beams.with(|| Beam::new(nodes), |beam| pick(step, query, k, beam, cost, &search))
    });
    if per.asks_each(step.group()) {
        step.leave_to_attention(&selection, cost);
    }
    selection
}

fn pick(
    step: &Step<'_>,
    query: &[f32],
    k: usize,
    beam: &mut Beam,
    cost: &mut Cost,
    search: impl FnOnce(&mut Beam, &mut Score<'_>) -> Vec<Scored>,
) -> Vec<u32> {
    if k == 0 {
        return Vec::new();
    }
    let mut found = match step.indexed.is_empty() {
        true => Vec::new(),
        false => search(beam, &mut |nodes, out| step.score_indexed(query, nodes, out)),
    };
    found.extend(scored_behind(step, query, cost));
    found.sort_by(|a, b| b.cmp(a));
    let effort = std::mem::take(&mut beam.effort);
    cost.score_flops += 2 * step.d as u64 * effort.scored;
    cost.kv_bytes += (step.d * step.keys.elem_bytes()) as u64 * effort.scored;
    cost.aux_bytes += effort.bytes();
    found.truncate(k);
    let first = step.candidates.start as u32;
    let mut tokens: Vec<u32> = found.iter().map(|f| f.node + first).collect();
    tokens.sort_unstable();
    tokens
}
