//! Compares tokens selected ahead, and the misses among them, with a naive selection by the same queries.

use std::sync::Arc;

use super::index_cache::IndexCache;
use super::sequence::{MIN_PARALLEL_TOKENS, Sequence};
use crate::cost::Cost;
use crate::kv::{KvDtype, LayerKv, Prefix, on_disk};
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::types::policy::{Policy, Tail};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const GROUP: usize = 2;
const HEADS: usize = KV_HEADS * GROUP;
const D: usize = 8;
const TOKENS: usize = 100;
const K: usize = 7;

/// Numbers that 16-bit labels hold exactly.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 37 + seed * 1013) as f32 * 0.61).sin() * 512.0).round() / 512.0).collect()
}

fn keys_of(layer: usize, token: usize) -> Vec<f32> {
    noise(KV_HEADS * D, 10_000 * (layer + 1) + token)
}

fn layers(tokens: usize) -> Vec<LayerKv> {
    let of_layer = |layer| {
        let mut kv = LayerKv::new(KvDtype::F32, KV_HEADS, D, tokens);
        (0..tokens).for_each(|token| kv.append(&keys_of(layer, token), &noise(KV_HEADS * D, 777_000 + token)));
        kv
    };
    (0..LAYERS).map(of_layer).collect()
}

/// The queries of a row of a step at layer 1: its own, and those computed ahead from the input of layer 0.
struct Row {
    own: Vec<f32>,
    ahead: Vec<f32>,
}

impl Row {
    fn new(number: usize) -> Self {
        Self { own: noise(HEADS * D, 300 + number), ahead: noise(HEADS * D, 600 + number) }
    }

    fn predicted_rightly(self) -> Self {
        Self { ahead: self.own.clone(), ..self }
    }
}

fn spec(params: &str) -> String {
    format!("double_sparsity:kind=random,channels=d,label_bits=16,k={K},{params}")
}

fn fork_of(prefix: Arc<Prefix>, spec: &str, tail: Tail) -> Sequence {
    let policy = Policy { sink: 1, local: 2, tail, ..Policy::default() };
    let method = crate::methods::configure(&crate::expand_grid(spec).unwrap()[0], &policy).unwrap();
    IndexCache::new(prefix, KvDtype::F32, 1).fork(&method, false).unwrap()
}

fn fork(params: &str) -> Sequence {
    fork_of(Prefix::new(layers(TOKENS)), &spec(params), Tail::Exact)
}

/// A prefix on disk.
fn with_prefix_on_disk<T>(tokens: usize, memory: usize, work: impl FnOnce(Arc<Prefix>) -> T) -> T {
    let (_tier, source) = on_disk(&layers(tokens), 64, memory);
    let specs = LayerSpecs::uniform(LAYERS, AttentionSpec::of_width(D));
    work(Prefix::from_source(specs, Box::new(source)))
}

/// Feeds rows through both layers, all rows through one layer before any reaches the next; returns the outputs at layer 1.
fn step(fork: &mut Sequence, rows: &[Row]) -> Vec<Vec<f32>> {
    let attend = |fork: &mut Sequence, layer: usize, row: &Row| {
        let mut out = vec![f32::NAN; HEADS * D];
        let token = fork.tokens();
        fork.step(layer, &row.own, &keys_of(layer, token), &noise(KV_HEADS * D, token), &mut out).unwrap();
        out
    };
    rows.iter().for_each(|row| drop(attend(fork, 0, row)));
    if fork.selects_ahead_at(1) {
        fork.set_queries_ahead(1, rows.iter().map(|row| row.ahead.clone()));
    }
    rows.iter().map(|row| attend(fork, 1, row)).collect()
}

/// The best candidates of a query head at layer 1, or of its whole group if `together`.
fn best(queries: &[f32], head: usize, together: bool) -> Vec<usize> {
    let of_group = head / GROUP * GROUP..(head / GROUP + 1) * GROUP;
    let heads = if together { of_group } else { head..head + 1 };
    let score = |token: &usize| -> f64 {
        let keys = keys_of(1, *token);
        let key = &keys[head / GROUP * D..][..D];
        let of_head =
            |head: usize| queries[head * D..][..D].iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
        heads.clone().flat_map(of_head).sum()
    };
    let mut tokens: Vec<usize> = (1..TOKENS - 2).collect();
    tokens.sort_by(|a, b| score(b).total_cmp(&score(a)));
    tokens.truncate(K);
    tokens
}

/// Number of misses of a row, over all heads that select.
fn naive_misses(row: &Row, together: bool) -> usize {
    let of_head = |head: usize| {
        let (own, ahead) = (best(&row.own, head, together), best(&row.ahead, head, together));
        own.iter().filter(|token| !ahead.contains(token)).count()
    };
    (0..HEADS).step_by(if together { GROUP } else { 1 }).map(of_head).sum()
}

fn counted(fork: &Sequence, layer: usize) -> (u64, u64) {
    let Cost { wanted_tokens, missed_tokens, .. } = fork.costs().layers()[layer];
    (wanted_tokens, missed_tokens)
}

#[test]
fn misses_are_what_own_queries_would_select_and_those_ahead_did_not() {
    for (params, together) in [("per=query_head", false), ("per=kv_head", true)] {
        let mut fork = fork(&format!("offload=true,{params}")).counting_misses();
        let rows: Vec<Row> = (0..6).map(Row::new).collect();
        // Rows in one step, then one by one.
        let (first, rest) = rows.split_at(4);
        step(&mut fork, first);
        rest.chunks(1).for_each(|row| drop(step(&mut fork, row)));
        let lists = if together { KV_HEADS } else { HEADS };
        let missed: usize = rows.iter().map(|row| naive_misses(row, together)).sum();
        assert!(missed > 0 && missed < 6 * lists * K, "{params}: {missed}");
        assert_eq!(counted(&fork, 1), ((6 * lists * K) as u64, missed as u64), "{params}");
        assert_eq!(counted(&fork, 0), (0, 0), "the first layer selects by its own queries");
        let share = fork.costs().total(|_| true).missed_share().unwrap();
        assert!((share - missed as f64 / (6 * lists * K) as f64).abs() < 1e-12);
    }
}

#[test]
fn queries_that_are_predicted_rightly_miss_nothing_and_attend_the_same() {
    let rows = || (0..3).map(|i| Row::new(i).predicted_rightly()).collect::<Vec<_>>();
    let (mut ahead, mut own) = (fork("offload=true").counting_misses(), fork("offload=false").counting_misses());
    assert_eq!(step(&mut ahead, &rows()), step(&mut own, &rows()));
    assert_eq!(counted(&ahead, 1), ((3 * HEADS * K) as u64, 0));
    assert_eq!(counted(&own, 1), (0, 0), "nothing is selected ahead, so nothing is missed");
    assert_eq!(own.costs().total(|_| true).missed_share(), None);
}

/// Counting misses reads labels, and keys if picks are scored again; neither is a cost of the method. It makes labels of new tokens only
/// once.
#[test]
fn counting_misses_changes_nothing_else() {
    for (params, tail) in
        [("rescore=none", Tail::Exact), ("rescore=exact,k2=3", Tail::Exact), ("rescore=none", Tail::Indexed)]
    {
        let stepped = |counts: bool| {
            with_prefix_on_disk(TOKENS, 4 << 10, |prefix| {
                let fork = fork_of(prefix, &spec(&format!("offload=true,{params}")), tail);
                let mut fork = if counts { fork.counting_misses() } else { fork };
                let rows: Vec<Row> = (0..9).map(Row::new).collect();
                let attended: Vec<_> = rows.chunks(3).map(|rows| step(&mut fork, rows)).collect();
                (attended, fork.costs().total(|_| true))
            })
        };
        let (attended, cost) = stepped(true);
        assert!(cost.missed_tokens > 0 && cost.fetched.disk > 0, "{params}, {tail}");
        assert_eq!((attended, Cost { wanted_tokens: 0, missed_tokens: 0, ..cost }), stepped(false), "{params}, {tail}");
    }
}

/// Two rows with equal queries ahead but different own queries: all pages that the second needs are in memory.
#[test]
fn pages_are_those_of_the_tokens_that_are_selected_ahead() {
    let second_step = |params: &str| {
        with_prefix_on_disk(1600, 4 << 20, |prefix| {
            let mut fork = fork_of(prefix, &spec(params), Tail::Exact).counting_misses();
            step(&mut fork, &[Row::new(0)]);
            let before = fork.costs().layers()[1].fetched;
            step(&mut fork, &[Row { own: Row::new(1).own, ahead: Row::new(0).ahead }]);
            let all = fork.costs().layers()[1].fetched;
            assert!(before.disk > 0, "{params}");
            all.disk - before.disk
        })
    };
    assert_eq!(second_step("offload=true"), 0);
    assert!(second_step("offload=false") > 0, "the second row's own queries select other pages");
}

#[test]
fn threads_change_nothing() {
    let stepped = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let prefix = Prefix::new(layers(MIN_PARALLEL_TOKENS + 5));
            let mut fork = fork_of(prefix, &spec("offload=true"), Tail::Exact).counting_misses();
            let attended = step(&mut fork, &[Row::new(1), Row::new(2)]);
            (attended, fork.costs().clone())
        })
    };
    let one = stepped(1);
    assert!(one.1.total(|_| true).missed_tokens > 0);
    assert_eq!(one, stepped(4));
}

#[test]
fn queries_ahead_that_nobody_computed_are_an_error() {
    let mut fork = fork("offload=true");
    let row = Row::new(0);
    let (keys, mut out) = (keys_of(1, TOKENS), vec![0.0; HEADS * D]);
    let error = fork.step(1, &row.own, &keys, &keys, &mut out).unwrap_err().to_string();
    assert!(error.contains("by queries that this run does not compute ahead"), "{error}");
}
