//! Shared by methods that search a graph of keys: the width of the search, selection, and cost.

use std::fmt;
use std::str::FromStr;

use crate::cost::Cost;
use crate::index::graph::{Beam, Scored};
use crate::index::workspaces::Workspaces;
use crate::kv::{KvError, MOST_TOKENS};
use crate::scored::granularity::Granularity;
use crate::{Selection, Step};
use spattn_kernels::linear;

/// Largest number of links of a key that can be requested: memory is allocated for all of them.
pub(super) const MOST_LINKS: usize = 1024;

/// Number of keys that a search holds: a number, or a multiple of `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchWidth {
    /// `4k`, but at most `k + 256`: with a large `k`, relatively fewer further keys find as much.
    Usual,
    Keys(usize),
    TimesK(usize),
}

impl SearchWidth {
    pub(super) const EXPECTED: &'static str = "a whole number from 1, or a multiple of k such as 4k";

    /// [`SearchWidth::Usual`], as lists of parameters show it.
    pub(super) const USUAL: &'static str = "4k to k+256";
    const MOST_BEYOND: usize = 256;

    /// Number of keys to hold if `k` are wanted; at least `k`.
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

/// Scores the candidates that left the window since the graph was built; counts the cost. Their numbers follow those of
/// the graph's nodes.
fn scored_behind(step: &Step<'_>, query: &[f32], cost: &mut Cost) -> Result<Vec<Scored>, KvError> {
    let behind = step.candidates.start + step.indexed.len()..step.candidates.end;
    if behind.is_empty() {
        return Ok(Vec::new());
    }
    let keys = step.all_keys().slice(behind.clone());
    cost.score_flops += 2 * (behind.len() * step.d) as u64;
    cost.kv_bytes += keys.bytes() as u64;
    let mut scores = vec![0.0; behind.len()];
    linear::scores(query, &keys.to_f32()?, step.d, &mut scores);
    Ok((step.indexed.len() as u32..).zip(scores).map(|(node, score)| Scored { node, score }).collect())
}

/// Selects all candidates for every query; scores none.
pub(super) fn pick_all(step: &Step<'_>, per: Granularity) -> Selection {
    per.all(step)
}

/// Writes the scores of the given nodes.
type Score<'a> = dyn FnMut(&[u32], &mut [f32]) + 'a;

/// Selects the `k` best tokens that `search` finds in a graph of `nodes` nodes, for each query that selects; counts the
/// cost. Tokens are ascending.
///
/// `search` gets a workspace and the function that scores nodes.
///
/// # Errors
/// If keys of the prefix cannot be read.
pub(super) fn search_each(
    step: &Step<'_>,
    per: Granularity,
    k: usize,
    nodes: usize,
    beams: &Workspaces<Beam>,
    cost: &mut Cost,
    search: impl Fn(&mut Beam, &mut Score<'_>) -> Vec<Scored> + Sync,
) -> Result<Selection, KvError> {
    let selection = per.by_query(step, cost, |query, cost| {
        beams.with(|| Beam::new(nodes), |beam| pick(step, query, k, beam, cost, &search))
    })?;
    if per.asks_each(step.group()) {
        step.leave_to_attention(&selection, cost);
    }
    Ok(selection)
}

fn pick(
    step: &Step<'_>,
    query: &[f32],
    k: usize,
    beam: &mut Beam,
    cost: &mut Cost,
    search: impl FnOnce(&mut Beam, &mut Score<'_>) -> Vec<Scored>,
) -> Result<Vec<u32>, KvError> {
    if k == 0 {
        return Ok(Vec::new());
    }
    // A search cannot fail. After an error all nodes get the lowest score, so that it ends; its result is dropped.
    let mut failure = None;
    let (indexed, mut read) = (step.keys.slice(step.indexed.clone()), 0);
    let mut score = |nodes: &[u32], out: &mut [f32]| {
        read += indexed.bytes_of(nodes);
        if failure.is_none() {
            failure = step.score_indexed(query, nodes, out).err();
        }
        if failure.is_some() {
            out.fill(f32::NEG_INFINITY);
        }
    };
    let mut found = if step.indexed.is_empty() { Vec::new() } else { search(beam, &mut score) };
    if let Some(failure) = failure {
        return Err(failure);
    }
    found.extend(scored_behind(step, query, cost)?);
    found.sort_by(|a, b| b.cmp(a));
    let effort = std::mem::take(&mut beam.effort);
    cost.score_flops += 2 * step.d as u64 * effort.scored;
    cost.kv_bytes += read as u64;
    cost.aux_bytes += effort.bytes();
    found.truncate(k);
    let first = step.candidates.start as u32;
    let mut tokens: Vec<u32> = found.iter().map(|f| f.node + first).collect();
    tokens.sort_unstable();
    Ok(tokens)
}
