//! Masks and costs of prefill against Algorithm 1 in plain loops, row by row.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::super::tests::configured;
use super::reference::{Ensemble, Found, Keys, Listing, Row, sampled};
use super::tests::{PLACES, Shape, ensembles};
use crate::calibration::collector::PrefillChunk;
use crate::cost::Cost;
use crate::kv::{KvDtype, LayerKv};
use crate::types::seed::head_seed;
use crate::{AttentionSpec, LayerSpecs};
use crate::{
    Configured, LayerShare, Mask, Masks, Policy, PrefillPattern, QueryBlock, SoftmaxScale, SparsePrefill, mix_seed,
};
use spattn_kernels::Rows;

const D: usize = 4;
/// Seed of the context.
const SEED: u64 = 3;

/// Keys and queries of a prompt at one layer: small whole numbers, so that products are exact in any order.
struct Prompt {
    tokens: usize,
    kv_heads: usize,
    group: usize,
    /// `[token][D]` for each KV head.
    keys: Vec<Vec<f32>>,
    /// `[token][head][D]`.
    queries: Vec<f32>,
}

impl Prompt {
    fn new(shape: Shape, tokens: usize, kv_heads: usize, group: usize, seed: u64) -> Self {
        let queries = shape.queries(tokens * kv_heads * group, D, seed + 1000);
        let keys = (0..kv_heads as u64).map(|head| shape.keys(tokens, D, 10 * seed + head)).collect();
        Self { tokens, kv_heads, group, keys, queries }
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn query(&self, position: usize, head: usize) -> &[f32] {
        &self.queries[(position * self.heads() + head) * D..][..D]
    }

    /// `[head of the group][row][D]`.
    fn rows(&self, kv_head: usize, (first, rows): (usize, usize)) -> Vec<f32> {
        let heads = kv_head * self.group..(kv_head + 1) * self.group;
        let row = |head: usize| (first..first + rows).flat_map(move |position| self.query(position, head));
        heads.flat_map(row).copied().collect()
    }

    fn block<'a>(
        &'a self,
        method: &'a Configured,
        (first, rows): (usize, usize),
        kv_head: usize,
        queries: &'a [f32],
    ) -> QueryBlock<'a> {
        QueryBlock {
            layer: 0,
            kv_head,
            group: queries.len() / (rows * D),
            queries,
            rows,
            first,
            d: D,
            scale: SoftmaxScale::inverse_root(D),
            keys: Rows::F32(&self.keys[kv_head][..(first + rows) * D]),
            grouped: None,
            policy: &method.policy,
            share: LayerShare::default(),
            seed: head_seed(SEED, 0, kv_head),
        }
    }

    fn by_head(&self, masks: Masks) -> Vec<Mask> {
        match masks {
            Masks::Shared(mask) => vec![mask; self.group],
            Masks::PerHead(masks) => masks,
        }
    }

    /// The method's masks of a block of rows at one KV head, one for each query head, with their cost.
    fn masks(&self, method: &Configured, rows: (usize, usize), kv_head: usize) -> (Vec<Mask>, Cost) {
        let Some(PrefillPattern::Blocks(mask)) = method.method.prefill_pattern() else { panic!("no mask") };
        let (queries, mut cost) = (self.rows(kv_head, rows), Cost::default());
        let masks = mask.masks(&self.block(method, rows, kv_head, &queries), &mut cost);
        (self.by_head(masks), cost)
    }

    /// The masks of all blocks of rows at one KV head, for a method that plans the whole prompt.
    fn planned(&self, method: &Configured, kv_head: usize) -> (Vec<Vec<Mask>>, Cost) {
        let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else { panic!("no plan") };
        let (all, mut cost) = (self.rows(kv_head, (0, self.tokens)), Cost::default());
        let plan = mask.plan(&self.block(method, (0, self.tokens), kv_head, &all), &mut cost);
        let of_block = |first: usize| {
            let rows = (first, mask.query_rows().min(self.tokens - first));
            let queries = self.rows(kv_head, rows);
            self.by_head(plan(&self.block(method, rows, kv_head, &queries)))
        };
        ((0..self.tokens).step_by(mask.query_rows()).map(of_block).collect(), cost)
    }

    /// Cost of reading the whole prompt in chunks of about 50 rows.
    fn cost(&self, method: &Configured) -> Cost {
        let mut sparse = SparsePrefill::new(method, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), SEED).unwrap();
        let mut kv = LayerKv::new(KvDtype::F32, self.kv_heads, D, self.tokens);
        let width = self.heads() * D;
        let rows = sparse.chunk_rows(50);
        for (chunk, queries) in self.queries.chunks(rows * width).enumerate() {
            for token in chunk * rows..chunk * rows + queries.len() / width {
                let key: Vec<f32> = self.keys.iter().flat_map(|keys| &keys[token * D..][..D]).copied().collect();
                kv.append(&key, &key);
            }
            let mut out = vec![0.0; queries.len()];
            let chunk = PrefillChunk::new(0, chunk * rows, queries, self.heads(), &kv);
            sparse.attend(&chunk, &mut out).unwrap();
        }
        sparse.into_costs().total(|_| true)
    }
}

/// Parameters and policy of a run.
#[derive(Debug, Clone)]
struct Case {
    k: usize,
    b_q: usize,
    b_sq: usize,
    search: Listing,
    /// Position of the representative, by name.
    place: &'static str,
    is_shared: bool,
    /// Whether the last row of each stride is scored instead of the first.
    last_rows: bool,
    /// Whether each row has its own window.
    row_windows: bool,
    ensemble: Ensemble,
    sink: usize,
    local: usize,
}

/// The tokens that the rows of a block see, by head and row, and the number of products that finding them takes.
struct Expected {
    seen: Vec<Vec<Vec<usize>>>,
    products: u64,
}

impl Case {
    fn spec(&self) -> String {
        let Self { k, b_q, b_sq, search: Listing { b_k, b_sk, top_r, last_keys, aligned, .. }, place, .. } = self;
        let choose = |chosen: bool, text: &str| if chosen { text.to_owned() } else { String::new() };
        let chosen = choose(self.is_shared, ",per=kv_head")
            + &choose(self.last_rows, ",query_offset=last")
            + &choose(self.row_windows, ",window=row")
            + &choose(*last_keys, ",key_offset=last")
            + &choose(*aligned, ",chunks=aligned");
        let top_r = top_r.map_or(String::new(), |r| format!(",top_r={r}"));
        let blocks = format!("b_q={b_q},b_sq={b_sq},b_k={b_k},b_sk={b_sk}");
        format!("hip:k={k},{blocks},representative={place}{top_r}{chosen}{}", self.ensemble.spec())
    }

    fn policy(&self) -> Policy {
        Policy { sink: self.sink, local: self.local, ..Policy::default() }
    }

    fn method(&self) -> Configured {
        configured(&self.spec(), &self.policy())
    }

    /// Rows see the sink, the blocks that the sampled rows find, and all tokens from their window on.
    fn expected(&self, prompt: &Prompt, (first, rows): (usize, usize), kv_head: usize) -> Expected {
        // The row whose window ends the candidates.
        let decisive = if self.row_windows { first + rows - 1 } else { first };
        let window = |position: usize| (position + 1).saturating_sub(self.local).min(position);
        let sink = self.sink.min((decisive + 1).saturating_sub(self.local));
        let keys = Keys { keys: &prompt.keys[kv_head], d: D, candidates: sink..window(decisive).max(sink) };
        let start = |position: usize| match self.row_windows {
            true => window(position),
            false => keys.candidates.end,
        };
        let of_head = |head: usize| {
            let row = move |row: usize| Row {
                query: prompt.query(first + row, kv_head * prompt.group + head),
                end: start(first + row),
                keys: None,
            };
            sampled(0..rows, self.b_sq, self.last_rows).into_iter().map(row).collect::<Vec<Row>>()
        };
        let searched: Vec<Vec<Row>> = match self.is_shared {
            true => vec![(0..prompt.group).flat_map(of_head).collect()],
            false => (0..prompt.group).map(of_head).collect(),
        };
        let keep = self.k.div_ceil(self.search.b_k);
        let seed = mix_seed(head_seed(SEED, 0, kv_head), first as u64);
        let found = |(head, rows): (usize, &Vec<Row>)| {
            let mut rng = ChaCha8Rng::seed_from_u64(mix_seed(seed, head as u64));
            self.search.elect(&keys, rows, keep, &self.ensemble, &mut rng)
        };
        let found: Vec<Found> = searched.iter().enumerate().map(found).collect();
        let sees = |head: usize, position: usize, token: usize| {
            let blocks = &found[if self.is_shared { 0 } else { head }].blocks;
            let is_picked = blocks.iter().any(|block| self.search.tokens(&keys, *block).contains(&token));
            token <= position && (token < sink || is_picked || token >= start(position))
        };
        let of_row = |head: usize, row: usize| (0..=first + row).filter(|t| sees(head, first + row, *t)).collect();
        let seen = (0..prompt.group).map(|head| (0..rows).map(|row| of_row(head, row)).collect()).collect();
        Expected { seen, products: found.iter().map(|found| found.products).sum() }
    }

    fn check(&self, prompt: &Prompt) {
        let method = self.method();
        let (mut flops, mut attended) = (0, 0);
        for first in (0..prompt.tokens).step_by(self.b_q) {
            let rows = self.b_q.min(prompt.tokens - first);
            for kv_head in 0..prompt.kv_heads {
                let (masks, cost) = prompt.masks(&method, (first, rows), kv_head);
                let expected = self.expected(prompt, (first, rows), kv_head);
                for (head, seen) in expected.seen.iter().enumerate() {
                    assert_eq!(&seen_by_rows(&masks[head], first), seen, "rows from {first}, head {head} of {kv_head}");
                }
                let products = 2 * self.search.top_r.unwrap_or(D) as u64 * expected.products;
                assert_eq!(cost.score_flops, products, "rows from {first}");
                flops += products;
                attended += expected.seen.iter().flatten().map(Vec::len).sum::<usize>() as u64;
            }
        }
        let whole = prompt.cost(&method);
        assert_eq!((whole.score_flops, whole.attended_tokens), (flops, attended), "the whole prompt");
    }
}

/// The tokens that each row of a block sees by its mask.
fn seen_by_rows(mask: &Mask, first: usize) -> Vec<Vec<usize>> {
    let sees = |row: usize, token: usize| {
        let is_on_slash = || mask.slashes.iter().any(|distance| token + distance == first + row);
        token >= mask.starts[row] || mask.common.contains(&(token as u32)) || is_on_slash()
    };
    (0..mask.starts.len()).map(|row| (0..=first + row).filter(|t| sees(row, *t)).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn masks_and_costs_are_those_of_the_listing(
        tokens in 1usize..170, (kv_heads, group) in (1usize..3, 1usize..4), k in 1usize..60,
        (b_q, b_sq) in (1usize..40).prop_flat_map(|b_q| (Just(b_q), 1..=b_q.min(6))),
        (b_k, b_sk) in (1usize..6).prop_flat_map(|b_k| (Just(b_k), 1..=b_k)),
        place in 0usize..7, top_r in prop::option::of(1..D),
        (is_shared, last_rows, row_windows, last_keys, aligned) in any::<(bool, bool, bool, bool, bool)>(),
        (sink, local) in (0usize..6, 0usize..30),
        ensemble in ensembles(),
        shape in prop::sample::select(&Shape::OF_WHOLE_NUMBERS), seed in 0u64..1 << 40,
    ) {
        let (name, at) = PLACES[place];
        let search = Listing { b_k, b_sk, place: at, top_r, last_keys, aligned };
        let case =
            Case { k, b_q, b_sq, search, place: name, is_shared, last_rows, row_windows, ensemble, sink, local };
        case.check(&Prompt::new(shape, tokens, kv_heads, group, seed));
    }
}

/// A case in which every parameter matters, with small budgets, so that the tree is deep.
fn ordinary() -> Case {
    let search = Listing::ordinary();
    Case {
        k: 12,
        b_q: 16,
        b_sq: 2,
        search,
        place: "middle",
        is_shared: false,
        last_rows: false,
        row_windows: false,
        ensemble: Ensemble::NONE,
        sink: 4,
        local: 8,
    }
}

#[test]
fn each_parameter_alone_is_that_of_the_listing() {
    let ordinary = ordinary();
    let search = |of: &dyn Fn(&mut Listing)| {
        let mut search = ordinary.search.clone();
        of(&mut search);
        Case { search, ..ordinary.clone() }
    };
    let mut cases: Vec<Case> =
        PLACES.iter().map(|(place, at)| Case { place, ..search(&|s: &mut Listing| s.place = *at) }).collect();
    cases.extend([1, 3, 7, 16].map(|b_sq| Case { b_sq, ..ordinary.clone() }));
    cases.extend([1, 5, 64].map(|b_q| Case { b_q, b_sq: 1, ..ordinary.clone() }));
    cases.extend([1, 2, 3].map(|b_sk| search(&|s| (s.b_k, s.b_sk) = (3, b_sk))));
    cases.extend([1, 2, 3].map(|r| search(&|s| s.top_r = Some(r))));
    cases.extend([1, 5, 30, 100].map(|k| Case { k, ..ordinary.clone() }));
    cases.push(Case { is_shared: true, ..ordinary.clone() });
    cases.push(Case { last_rows: true, b_sq: 3, ..ordinary.clone() });
    cases.push(search(&|s| (s.b_k, s.b_sk, s.last_keys) = (3, 2, true)));
    cases.extend([5, 20].map(|k| Case { k, ..search(&|s| s.aligned = true) }));
    cases.extend([0, 3, 8, 40].map(|local| Case { row_windows: true, local, ..ordinary.clone() }));
    cases.extend([(1, false), (2, false), (4, false), (1, true)].map(|(theta_vote, tau)| {
        let ensemble = Ensemble { n_e: 4, theta_vote, r_e: 3.0, tau };
        Case { ensemble, ..ordinary.clone() }
    }));
    for shape in Shape::OF_WHOLE_NUMBERS {
        let prompt = Prompt::new(shape, 150, 2, 3, 5);
        cases.iter().for_each(|case| case.check(&prompt));
    }
}

/// Share of the rows with `token` among their candidates whose head 0 sees it.
fn share_that_sees(case: &Case, prompt: &Prompt, token: usize) -> f64 {
    let method = case.method();
    let (mut rows_with, mut all) = (0, 0);
    for first in (0..prompt.tokens - case.b_q).step_by(case.b_q).filter(|first| token + case.local < *first) {
        let (masks, _) = prompt.masks(&method, (first, case.b_q), 0);
        let sees = seen_by_rows(&masks[0], first).iter().filter(|seen| seen.contains(&token)).count();
        (rows_with, all) = (rows_with + sees, all + case.b_q);
    }
    assert!(all > 0);
    rows_with as f64 / all as f64
}

#[test]
fn every_row_sees_a_cluster_that_one_of_the_sampled_rows_looks_at() {
    // A cluster of 32 tokens contains the representative of some branch in every round.
    let mut prompt = Prompt::new(Shape::Random, 320, 1, 1, 9);
    (40..72).for_each(|token| prompt.keys[0][token * D] = 50.0);
    let with_looking = |row: usize| {
        let mut queries = prompt.queries.clone();
        let look = |(position, query): (usize, &mut [f32])| query[0] = if position % 16 == row { 3.0 } else { 0.0 };
        queries.chunks_exact_mut(D).enumerate().for_each(look);
        Prompt { queries, keys: prompt.keys.clone(), ..prompt }
    };
    let case = Case { k: 32, ..ordinary() };
    let share = |row: usize| share_that_sees(&case, &with_looking(row), 56);
    assert_eq!((share(0), share(6), share(14)), (1.0, 1.0, 1.0), "any sampled row, not the first alone");
    assert!(share(7) < 1.0, "rows between the sampled ones are not looked at (b_sq=2)");
}

/// Lines added to a case's masks, by parameter name.
#[derive(Debug, Clone, Copy)]
struct Lines {
    vertical: usize,
    slash: usize,
    snapshot: usize,
}

impl Lines {
    /// Tokens and distances with the most softmax weight of the last queries of some heads, computed one by one.
    fn chosen(self, case: &Case, prompt: &Prompt, heads: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let n = prompt.tokens;
        let (mut by_token, mut by_distance) = (vec![0.0; n], vec![0.0; n]);
        for (head, position) in heads.iter().flat_map(|h| (n.saturating_sub(self.snapshot)..n).map(move |p| (*h, p))) {
            let keys = &prompt.keys[head / prompt.group];
            let logit = |token: usize| -> f64 {
                let pairs = prompt.query(position, head).iter().zip(&keys[token * D..][..D]);
                pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (D as f64).sqrt()
            };
            let weights: Vec<f64> = (0..=position).map(|token| logit(token).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (token, weight) in weights.iter().enumerate() {
                by_token[token] += weight / sum;
                by_distance[position - token] += weight / sum;
            }
        }
        let best = |sums: &[f64], first: usize, count: usize| {
            let mut order: Vec<usize> = (first.min(n)..n).collect();
            order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
            order.truncate(count);
            order
        };
        (best(&by_token, case.sink, self.vertical), best(&by_distance, case.local.max(1), self.slash))
    }

    fn check(self, case: &Case, prompt: &Prompt) {
        let Self { vertical, slash, snapshot } = self;
        let spec = format!("{},vd=true,vertical={vertical},slash={slash},snapshot={snapshot}", case.spec());
        let method = configured(&spec, &case.policy());
        let mut flops = 0;
        for kv_head in 0..prompt.kv_heads {
            let heads: Vec<usize> = (kv_head * prompt.group..(kv_head + 1) * prompt.group).collect();
            let (masks, cost) = prompt.planned(&method, kv_head);
            // The last queries of each head are multiplied with all keys.
            let mut products = (heads.len() * snapshot.min(prompt.tokens) * prompt.tokens) as u64;
            for (block, masks) in masks.iter().enumerate() {
                let first = block * case.b_q;
                let without = case.expected(prompt, (first, case.b_q.min(prompt.tokens - first)), kv_head);
                products += without.products;
                for (head, rows) in without.seen.iter().enumerate() {
                    let voting = if case.is_shared { heads.as_slice() } else { &heads[head..head + 1] };
                    let (verticals, slashes) = self.chosen(case, prompt, voting);
                    let sees = |row: usize, token: &usize| {
                        let is_lined = verticals.contains(token) || slashes.contains(&(first + row - token));
                        is_lined || rows[row].contains(token)
                    };
                    let of_row = |row: usize| (0..=first + row).filter(|token| sees(row, token)).collect();
                    let expected: Vec<Vec<usize>> = (0..rows.len()).map(of_row).collect();
                    assert_eq!(seen_by_rows(&masks[head], first), expected, "{spec}: rows from {first}");
                }
            }
            assert_eq!(cost.score_flops, 2 * D as u64 * products, "{spec}");
            flops += cost.score_flops;
        }
        assert_eq!(prompt.cost(&method).score_flops, flops, "{spec}: the whole prompt");
    }
}

#[test]
fn lines_that_the_last_queries_attend_most_are_added() {
    let prompt = Prompt::new(Shape::Noise, 130, 2, 2, 6);
    let ordinary = ordinary();
    for case in [
        ordinary.clone(),
        Case { is_shared: true, ..ordinary.clone() },
        Case { row_windows: true, local: 3, ..ordinary.clone() },
        Case { b_q: 50, sink: 0, local: 0, ..ordinary },
    ] {
        for (vertical, slash, snapshot) in [(5, 7, 20), (9, 0, 128), (0, 9, 1), (500, 500, 500)] {
            Lines { vertical, slash, snapshot }.check(&case, &prompt);
        }
    }
}
