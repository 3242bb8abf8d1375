//! Self-Extend against queries and keys that are rotated to the positions it defines, with Algorithm 1 and attention in plain loops.

use std::sync::Arc;

use super::super::tests::{Turn, assert_close, configured, noise, none, rotated};
use super::reference::{Keys, Listing, Row, sampled};
use crate::kv::{KvDtype, KvStore, LayerKv, Prefix};
use crate::prefill::testing::{D, Layer, SEED};
use crate::{Configured, DenseLayers, IndexCache, Policy, Rotation, Sequence, Tail};

const KV_HEADS: usize = 2;
const GROUP: usize = 2;
const HEADS: usize = KV_HEADS * GROUP;

/// Queries, keys and values before rotation.
struct Text {
    tokens: usize,
    dtype: KvDtype,
    /// `[token][KV head][D]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[token][head][D]`.
    queries: Vec<f32>,
}

/// Parameters and policy of a run.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// Far tokens that share a position.
    group: usize,
    neighbours: usize,
    k: usize,
    sink: usize,
    local: usize,
    is_shared: bool,
    /// Whether each row of a prompt has its own window.
    row_windows: bool,
}

const CASE: Case = Case { group: 4, neighbours: 20, k: 12, sink: 4, local: 8, is_shared: false, row_windows: false };
/// Query rows of a block in prefill, and their stride.
const BLOCK: (usize, usize) = (16, 2);

impl Case {
    /// Groups and windows with boundaries at every kind of position; the context ends with `tokens` tokens.
    fn all(tokens: usize) -> Vec<Self> {
        let mut cases: Vec<Self> = [(1, 20), (2, 20), (3, 20), (3, 7), (8, 20), (5, 1), (2, 1), (7, 33), (1000, 20)]
            .map(|(group, neighbours)| Self { group, neighbours, ..CASE })
            .to_vec();
        cases.extend([tokens - 1, tokens, tokens + 1].map(|neighbours| Self { neighbours, ..CASE }));
        cases.push(Self { is_shared: true, ..CASE });
        cases.push(Self { k: 1000, ..CASE });
        cases.push(Self { sink: 0, local: 0, ..CASE });
        cases.extend([1, 30].map(|local| Self { row_windows: true, local, ..CASE }));
        cases.push(Self { row_windows: true, is_shared: true, ..CASE });
        cases
    }

    fn spec(&self) -> String {
        let Self { group, neighbours, k, .. } = self;
        let per = if self.is_shared { "kv_head" } else { "query_head" };
        let window = if self.row_windows { "row" } else { "block" };
        let (b_q, b_sq) = BLOCK;
        format!(
            "hip:k={k},r_m=1,b_q={b_q},b_sq={b_sq},per={per},window={window},self_extend={group},\
             self_extend_window={neighbours}"
        )
    }

    fn method(&self) -> Configured {
        configured(&self.spec(), &Policy { sink: self.sink, local: self.local, ..none() })
    }

    /// Self-Extend's distance between a query and a key.
    fn distance(&self, query: usize, key: usize) -> usize {
        if query - key < self.neighbours {
            return query - key;
        }
        query / self.group + self.neighbours - self.neighbours / self.group - key / self.group
    }

    fn listing() -> Listing {
        Listing { b_k: 2, ..Listing::ordinary() }
    }
}

impl Text {
    fn new(tokens: usize) -> Self {
        let (keys, values) = (noise(tokens * KV_HEADS * D, 1), noise(tokens * KV_HEADS * D, 2));
        Self { tokens, dtype: KvDtype::F32, keys, values, queries: noise(tokens * HEADS * D, 3) }
    }

    fn query(&self, position: usize, head: usize) -> &[f32] {
        &self.queries[(position * HEADS + head) * D..][..D]
    }

    /// Rows `[head][D]` of a token, rotated to its position.
    fn rotated(rows: &[f32], heads: usize, position: usize) -> Vec<f32> {
        rows[position * heads * D..][..heads * D].chunks(D).flat_map(|row| rotated(row, position)).collect()
    }

    /// The first `tokens` tokens as stored.
    fn stored(&self, tokens: usize) -> LayerKv {
        let mut kv = LayerKv::new(self.dtype, KV_HEADS, D, tokens);
        for t in 0..tokens {
            kv.append(&Self::rotated(&self.keys, KV_HEADS, t), &self.values[t * KV_HEADS * D..][..KV_HEADS * D]);
        }
        kv
    }

    fn layer(&self) -> Layer {
        let queries = (0..self.tokens).flat_map(|t| Self::rotated(&self.queries, HEADS, t)).collect();
        Layer { kv: self.stored(self.tokens), queries, heads: HEADS }
    }

    fn fork(&self, method: &Configured, prefix_tokens: usize) -> Sequence {
        IndexCache::new(Prefix::new(vec![self.stored(prefix_tokens)]), self.dtype, SEED)
            .with_rotation(Arc::new(Turn))
            .fork(method, false)
            .unwrap()
    }

    fn step(&self, fork: &mut Sequence, position: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; HEADS * D];
        let (queries, key) =
            (Self::rotated(&self.queries, HEADS, position), Self::rotated(&self.keys, KV_HEADS, position));
        fork.step(0, &queries, &key, &self.values[position * KV_HEADS * D..][..KV_HEADS * D], &mut out).unwrap();
        out
    }

    /// The keys of a KV head as an unrotated query at `position` sees them; those after its own token are meaningless.
    fn keys_seen(&self, case: &Case, kv_head: usize, position: usize) -> Vec<f32> {
        let key = |token: usize| {
            let mut key = self.keys[(token * KV_HEADS + kv_head) * D..][..D].to_vec();
            Turn.turn_back(&mut key, case.distance(position, token.min(position)));
            key
        };
        (0..self.tokens).flat_map(key).collect()
    }

    /// Attention of one query over `tokens`.
    fn attention(&self, case: &Case, (position, head): (usize, usize), tokens: &[usize]) -> Vec<f32> {
        let (kv_head, query) = (head / GROUP, self.query(position, head));
        let keys = self.keys_seen(case, kv_head, position);
        let weight = |token: &usize| {
            let pairs = query.iter().zip(&keys[token * D..][..D]);
            (pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = tokens.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let value = |token: usize, c: usize| f64::from(self.values[(token * KV_HEADS + kv_head) * D + c]);
        let channel = |c: usize| tokens.iter().zip(&weights).map(|(t, w)| w * value(*t, c)).sum::<f64>() / sum;
        (0..D).map(|c| channel(c) as f32).collect()
    }

    /// The tokens that rows at `positions` of a query head (or of its group, if it shares a mask) find among
    /// `candidates`. Rows see no candidates from `end` on.
    fn found(
        &self,
        case: &Case,
        positions: &[usize],
        head: usize,
        candidates: std::ops::Range<usize>,
        end: impl Fn(usize) -> usize,
    ) -> Vec<usize> {
        let kv_head = head / GROUP;
        let heads = if case.is_shared { kv_head * GROUP..(kv_head + 1) * GROUP } else { head..head + 1 };
        let seen: Vec<Vec<f32>> = positions.iter().map(|position| self.keys_seen(case, kv_head, *position)).collect();
        let row = |head: usize| {
            positions.iter().zip(&seen).map(move |(position, keys)| (self.query(*position, head), *position, keys))
        };
        let rows: Vec<Row> = heads
            .flat_map(row)
            .map(|(query, position, keys)| Row { query, end: end(position), keys: Some(keys) })
            .collect();
        let listing = Case::listing();
        let keys = Keys { keys: &[], d: D, candidates };
        let found = listing.search(&keys, &rows, case.k.div_ceil(listing.b_k));
        found.blocks.into_iter().flat_map(|block| listing.tokens(&keys, block)).collect()
    }
}

#[test]
fn a_step_searches_and_attends_at_grouped_positions() {
    const PREFIX: usize = 130;
    let text = Text::new(PREFIX + 14);
    for case in Case::all(PREFIX + 10) {
        let mut fork = text.fork(&case.method(), PREFIX);
        for position in PREFIX..text.tokens {
            let out = text.step(&mut fork, position);
            let recent = PREFIX - case.local;
            for (head, out) in out.chunks(D).enumerate() {
                let picks = text.found(&case, &[position], head, case.sink..recent, |_| usize::MAX);
                let tokens: Vec<usize> = (0..case.sink).chain(picks).chain(recent..position + 1).collect();
                let expected = text.attention(&case, (position, head), &tokens);
                assert_close(out, &expected, 2e-5, &format!("{case:?}, token {position}, head {head}"));
            }
        }
    }
}

#[test]
fn rows_of_a_prompt_are_searched_and_attend_at_grouped_positions() {
    let text = Text::new(150);
    let (b_q, b_sq) = BLOCK;
    for case in Case::all(text.tokens) {
        let (out, _) = text.layer().attend_moved(&case.method(), 50, Some(Arc::new(Turn)));
        for first in (0..text.tokens).step_by(b_q) {
            let end = (first + b_q).min(text.tokens);
            let window = |position: usize| (position + 1).saturating_sub(case.local).min(position);
            let last = window(if case.row_windows { end - 1 } else { first });
            let sink = case.sink.min((if case.row_windows { end } else { first + 1 }).saturating_sub(case.local));
            let candidates = sink..last.max(sink);
            let start = |position: usize| if case.row_windows { window(position) } else { candidates.end };
            let rows: Vec<usize> = sampled(first..end, b_sq, false);
            for head in 0..HEADS {
                let picks = text.found(&case, &rows, head, candidates.clone(), start);
                for position in first..end {
                    let is_seen = |token: &usize| *token < sink || picks.contains(token) || *token >= start(position);
                    let tokens: Vec<usize> = (0..=position).filter(is_seen).collect();
                    let expected = text.attention(&case, (position, head), &tokens);
                    let out = &out[(position * HEADS + head) * D..][..D];
                    assert_close(out, &expected, 2e-5, &format!("{case:?}, row {position}, head {head}"));
                }
            }
        }
    }
}

#[test]
fn dense_layers_attend_all_tokens_at_grouped_positions() {
    let text = Text::new(600);
    for (group, neighbours) in [(4, 20), (3, 1), (2, 500), (9, 600)] {
        let case = Case { group, neighbours, ..CASE };
        let mut method = case.method();
        method.policy.dense_layers = DenseLayers::parse("0").unwrap();
        let (read, costs) = text.layer().attend_moved(&method, 320, Some(Arc::new(Turn)));
        assert_eq!(costs.total(|_| true).density(), 1.0);
        let mut fork = text.fork(&method, 590);
        for position in [0, 1, 19, 20, 21, 255, 256, 400, 501].into_iter().chain(590..600) {
            let all: Vec<usize> = (0..=position).collect();
            let stepped = if position < 590 { Vec::new() } else { text.step(&mut fork, position) };
            for head in 0..HEADS {
                let expected = text.attention(&case, (position, head), &all);
                let what = format!("{case:?}, token {position}, head {head}");
                assert_close(&read[(position * HEADS + head) * D..][..D], &expected, 2e-5, &what);
                if position >= 590 {
                    assert_close(&stepped[head * D..][..D], &expected, 2e-5, &what);
                }
            }
        }
        assert_eq!(fork.costs().total(|_| true).density(), 1.0);
    }
}

#[test]
fn a_row_of_a_prompt_attends_what_a_step_at_its_place_does() {
    let text = Text::new(140);
    let policy = Policy { sink: 3, local: 9, tail: Tail::Indexed, ..none() };
    for more in ["", ",per=kv_head", ",top_r=5", ",n_e=3,r_e=0"] {
        let spec = format!("hip:k=14,b_q=1,b_sq=1,r_m=1,self_extend=3,self_extend_window=25{more}");
        let method = configured(&spec, &policy);
        let (out, _) = text.layer().attend_moved(&method, 40, Some(Arc::new(Turn)));
        for position in (1..text.tokens).filter(|position| *position < 40 || position % 7 == 0) {
            let stepped = text.step(&mut text.fork(&method, position), position);
            assert_close(&out[position * HEADS * D..][..HEADS * D], &stepped, 2e-5, &format!("{spec}, row {position}"));
        }
    }
}

#[test]
fn groups_of_one_token_and_windows_over_all_tokens_change_no_bit() {
    let text = Text::new(140);
    let outputs = |more: &str| {
        let policy = Policy { sink: 4, local: 8, ..none() };
        let method = configured(&format!("hip:k=12,b_q=16{more}"), &policy);
        let mut fork = text.fork(&method, 120);
        let steps: Vec<f32> = (120..140).flat_map(|position| text.step(&mut fork, position)).collect();
        let (rows, costs) = text.layer().attend_moved(&method, 40, Some(Arc::new(Turn)));
        (steps, rows, fork.costs().total(|_| true), costs.total(|_| true))
    };
    let plain = outputs("");
    for more in [",self_extend=1,self_extend_window=10", ",self_extend=4,self_extend_window=140", ",self_extend=4"] {
        assert_eq!(outputs(more), plain, "{more}");
    }
    assert_ne!(outputs(",self_extend=4,self_extend_window=10").1, plain.1);
}

#[test]
fn keys_of_16_bits_are_turned_as_those_of_32() {
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let text = Text { dtype, ..Text::new(120) };
        let rounded = text.stored(120);
        let row = |store: &KvStore, token: usize| -> Vec<f32> {
            (0..KV_HEADS).flat_map(|head| store.head(head).slice(token..token + 1, D).to_f32()).collect()
        };
        let step = |dtype: KvDtype| {
            let mut kv = LayerKv::new(dtype, KV_HEADS, D, 119);
            (0..119).for_each(|t| kv.append(&row(&rounded.keys, t), &row(&rounded.values, t)));
            let mut cache = IndexCache::new(Prefix::new(vec![kv]), dtype, SEED).with_rotation(Arc::new(Turn));
            let (mut fork, mut out) = (cache.fork(&CASE.method(), false).unwrap(), vec![f32::NAN; HEADS * D]);
            let queries = Text::rotated(&text.queries, HEADS, 119);
            fork.step(0, &queries, &row(&rounded.keys, 119), &row(&rounded.values, 119), &mut out).unwrap();
            out
        };
        assert_close(&step(dtype), &step(KvDtype::F32), 1e-6, "the same numbers");
    }
}
