//! Tokens that are selected while the layer before computes, and fetched from host memory meanwhile.
//!
//! A fetch takes most of a millisecond or more here, and the kernel that needs it is enqueued some microseconds later. So the bits would
//! change if attention did not wait for the fetch, if copies did not wait for the lists, or if copies overwrote what is still attended.

use spattn::attention::{Configured, IndexCache, Sequence};
use spattn::cost::{Cost, LayerCosts};
use spattn::kernels::cpu::topk::argmax;
use spattn::kernels::cuda::{
    Attention, AttentionWorkspace, Buffer, Cache, Gpu, HostDeviceVec, LayerRule, Pages, Prefix, Scores, Storage, Tail,
    TokenListLayout, TokenLists, Tokens, Unit, Weights,
};
use spattn::model::decoder::Decoder;
use spattn::model::device::Device;
use spattn::model::engine::Stream;
use spattn::model::tensors::Weights as ModelWeights;

use super::golden_model::{Golden, load};
use super::host_tier::{both, both_random, without_bus};
use super::several::{assert_same, bits, small_models, tokens, with_prompt};
use super::{
    CUDA, Kv, STORAGES, assert_alike, assert_close, cache, fetch, gpu, method, noise, pick_there, run_in_steps, scale,
    scores_like, send,
};

/// Copies a buffer to pinned host memory.
pub(super) fn pinned(gpu: &Gpu, there: &Buffer) -> Buffer {
    let mut here = gpu.alloc_on_host(there.bytes()).unwrap();
    gpu.copy(there, 0, &mut here, 0, there.bytes()).unwrap();
    here
}

/// A prefix, a tail and queries, for two heads with their own keys.
struct Material {
    prefix: Kv,
    storage: Storage,
    there: [Buffer; 2],
    tail: Buffer,
    queries: Buffer,
}

const D: usize = 128;
const PREFIX: usize = 60_000;
const TOTAL: usize = PREFIX + 5;

impl Material {
    fn new(gpu: &Gpu, storage: Storage) -> Self {
        let prefix = Kv::new(2, PREFIX, D, 700, storage);
        let there = prefix.send(gpu, PREFIX, storage);
        let tail = send(gpu, &Kv::new(2, 5, D, 702, storage).within(0, 1, 8), storage);
        let queries = send(gpu, &noise(2 * D, 704), storage);
        Self { prefix, storage, there, tail, queries }
    }

    fn tail(&self) -> Tail<'_> {
        Tail { buffer: &self.tail, layers: 1, capacity: 8, kv_heads: 2, d: D, storage: self.storage }
    }

    fn cache<'a>(&'a self, kv: &'a [Buffer; 2]) -> Cache<'a> {
        cache(kv, PREFIX, &self.prefix, self.storage)
    }

    /// Attends a few static tokens and the lists, for both heads.
    fn attend(&self, gpu: &Gpu, lists: &TokenLists, kv: &[Buffer; 2]) -> Vec<u32> {
        let tail = self.tail();
        let mut attention = Attention::new(1, 2, (2, 2 * lists.most()), gpu.processors());
        for head in 0..2 {
            let tokens = Tokens { sink: 4, recent: TOTAL - 1, total: TOTAL, picked: &[] };
            let unit = Unit { row: 0, head, queries: 1, kv_head: head, tail: &tail, tokens, weights: Weights::Softmax };
            attention.add_list(0, &unit, lists.list(0, head), PREFIX);
        }
        let of = Prefix { cache: self.cache(kv), tokens: PREFIX, layer: 0, scale: scale(D), rule: LayerRule::PLAIN };
        let mut room = AttentionWorkspace::default();
        let prepared = gpu.prepare(&mut attention, &mut room, D).unwrap();
        let mut out = send(gpu, &[f32::NAN; 2 * D], self.storage);
        let mut wide = gpu.upload(&[f32::NAN; 2 * D]).unwrap();
        gpu.attend(&prepared, &of, &self.queries, 2 * D, &mut out, Some(&mut wide)).unwrap();
        bits(&fetch(gpu, &wide, 2 * D, Storage::F32))
    }
}

/// Selects half of the tokens after the first four, some of them from the tail.
fn select(gpu: &Gpu, seed: u64, lists: &mut TokenLists, (chosen, scores): (&HostDeviceVec<u32>, &mut Scores)) {
    let pages = Pages { tokens: 4..TOTAL - 1, size: 1 };
    scores.resize(gpu, 1, 2, pages.count()).unwrap();
    scores.upload(gpu, &scores_like("noise", 2 * pages.count(), seed)).unwrap();
    lists.resize(gpu, TokenListLayout::new(2, PREFIX / 2), vec![TOTAL - 1]).unwrap();
    gpu.top_pages(scores, (chosen, None), 0, &pages, lists).unwrap();
}

/// Lists are selected, fetched and attended again and again, two of them in turn, and the host waits for nothing.
#[test]
#[ignore = "needs a GPU"]
fn attention_of_fetched_tokens_is_that_of_the_prefix() {
    let gpu = gpu();
    for storage in STORAGES {
        let material = Material::new(&gpu, storage);
        let below = material.there.each_ref().map(|there| pinned(&gpu, there));
        let (mut chosen, mut scores) = (HostDeviceVec::default(), Scores::default());
        chosen.set(&gpu, vec![PREFIX as u32 / 2]).unwrap();
        let mut lists = [TokenLists::default(), TokenLists::default()];
        let mut begin = |lists: &mut TokenLists, seed: u64| {
            select(&gpu, seed, lists, (&chosen, &mut scores));
            let tail = material.tail();
            gpu.fetch_tokens(lists, &material.cache(&below), PREFIX, &[tail.cache(0)], None).unwrap();
        };
        let before = gpu.fetches();
        begin(&mut lists[0], 710);
        for turn in 1..7 {
            let [ahead, own] = if turn % 2 == 1 { [1, 0] } else { [0, 1] };
            begin(&mut lists[ahead], 710 + turn);
            gpu.await_tokens(&mut lists[own]).unwrap();
            let ours = material.attend(&gpu, &lists[own], &below);
            let mut plain = TokenLists::default();
            plain.keep(&gpu, &lists[own], 0).unwrap();
            assert!(ours == material.attend(&gpu, &plain, &material.there), "{storage:?}, turn {turn}");
        }
        assert_eq!(gpu.fetches() - before, 7);
        // Nothing was fetched for the new selection; dropping the lists waits for the fetches that are still running.
        select(&gpu, 720, &mut lists[0], (&chosen, &mut scores));
        let mut plain = TokenLists::default();
        plain.keep(&gpu, &lists[0], 0).unwrap();
        assert!(material.attend(&gpu, &lists[0], &below) == material.attend(&gpu, &plain, &material.there));
    }
}

#[test]
#[ignore = "needs a GPU"]
#[should_panic(expected = "nothing waits for the tokens that are fetched")]
fn tokens_that_nobody_waits_for_are_not_attended() {
    let gpu = gpu();
    let material = Material::new(&gpu, Storage::Bf16);
    let (mut chosen, mut scores, mut lists) = (HostDeviceVec::default(), Scores::default(), TokenLists::default());
    chosen.set(&gpu, vec![PREFIX as u32 / 2]).unwrap();
    select(&gpu, 730, &mut lists, (&chosen, &mut scores));
    let tail = material.tail();
    gpu.fetch_tokens(&mut lists, &material.cache(&material.there), PREFIX, &[tail.cache(0)], None).unwrap();
    material.attend(&gpu, &lists, &material.there);
}

#[test]
#[ignore = "needs a GPU"]
fn tokens_of_lists_that_others_lack_are_counted() {
    let gpu = gpu();
    for (size, tokens, chosen) in
        [(1, 4..300, [10, 0, 296]), (16, 4..1001, [9, 63, 62]), (1, 10..900_000, [100_000, 3, 899_990])]
    {
        let pages = Pages { tokens: tokens.clone(), size };
        let of = |seed: u64, chosen: &[usize]| {
            pick_there(&gpu, &scores_like("noise", 6 * pages.count(), seed), chosen, &pages)
        };
        let (wanted, picked) = (of(740, &chosen), of(750, &[chosen[1], chosen[0], chosen[2]]));
        let offset = 3;
        let before = vec![7u64; offset + 3];
        let counters: Vec<Buffer> = (0..2).map(|_| gpu.upload(&before).unwrap()).collect();
        let of_rows = [&counters[0], &counters[1], &counters[0]];
        gpu.count_missing([&wanted, &picked], 0..tokens.end, &of_rows, offset, &mut HostDeviceVec::default()).unwrap();
        let mut expected = [before.clone(), before];
        for (row, run) in [0, 1, 0].into_iter().enumerate() {
            for list in 0..2 {
                let [asked, held] = [&wanted, &picked].map(|lists| lists.download(&gpu, row, list).unwrap());
                let held: std::collections::HashSet<u32> = held.into_iter().collect();
                expected[run][offset] += asked.len() as u64;
                expected[run][offset + 1] += asked.iter().filter(|token| !held.contains(token)).count() as u64;
            }
        }
        for (counters, expected) in counters.iter().zip(&expected) {
            let mut counted = vec![0u64; expected.len()];
            gpu.download(counters, 0, &mut counted).unwrap();
            assert_eq!(&counted, expected, "{chosen:?} of {tokens:?} by {size}");
        }
    }
}

/// Methods that select ahead: from the prefix alone, from all tokens, and beside dense layers.
const AHEAD: [&str; 4] = [
    "double_sparsity:kind=random,channels=d/2,k=16,offload=true",
    "double_sparsity:kind=random,channels=d/2,k=20,per=kv_head,offload=true",
    "double_sparsity:kind=random,channels=d/2,k=16,local=0,tail=indexed,offload=true",
    "double_sparsity:kind=random,channels=d,k=16,offload=true,dense_layers=0",
];

/// Returns the logits after each step, in which every method has as many rows as `steps` says, and the sequences. All tokens are those of a
/// prompt.
pub(super) fn stepped(
    golden: &Golden,
    methods: &[Configured],
    prefix: usize,
    steps: &[usize],
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    stepped_beyond(golden, methods, (prefix, golden.prompt.len()), steps)
}

/// Like [`stepped`]; tokens after the first `prompt` count as generated.
pub(super) fn stepped_beyond(
    golden: &Golden,
    methods: &[Configured],
    (prefix, prompt): (usize, usize),
    steps: &[usize],
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    let (decoder, n) = (&golden.decoder, golden.prompt.len());
    let read = decoder.prefill(&golden.prompt[..prefix], n).unwrap().prefix;
    let mut indexes = IndexCache::new(read, decoder.dtype(), 0).with_prompt(prompt);
    let mut forks: Vec<Sequence> =
        methods.iter().map(|method| indexes.fork(method, false).unwrap().counting_misses()).collect();
    let (mut logits, mut at) = (Vec::new(), prefix);
    for rows in steps {
        let tokens = &golden.prompt[at..at + rows];
        let mut streams: Vec<Stream<'_>> = forks.iter_mut().map(|fork| Stream { fork, tokens }).collect();
        logits.push(decoder.step(&mut streams, n).unwrap());
        at += rows;
    }
    decoder.collect_device_counters(&mut forks).unwrap();
    (logits, forks)
}

fn fetches(golden: &Golden) -> usize {
    golden.decoder.cuda().unwrap().device().fetches()
}

/// Checks that steps with a prefix in host memory give the same as in GPU memory, and how often they fetched.
fn check_tiers(
    what: &str,
    [one, below]: &[Golden; 2],
    specs: &[&str],
    prefix: usize,
    (steps, fetched): (&[usize], usize),
) {
    let methods: Vec<Configured> = specs.iter().map(|spec| method(spec)).collect();
    let before = [one, below].map(fetches);
    let (expected, others) = stepped(one, &methods, prefix, steps);
    let (ours, forks) = stepped(below, &methods, prefix, steps);
    assert_eq!([one, below].map(fetches), [before[0], before[1] + fetched], "{what}: how often tokens were fetched");
    for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        for ((ours, expected), spec) in ours.iter().zip(expected).zip(specs) {
            assert_same(ours, expected, &format!("{what}, {spec}, step {step}"));
        }
    }
    for ((fork, other), spec) in forks.iter().zip(&others).zip(specs) {
        assert_eq!(without_bus(fork.costs()), without_bus(other.costs()), "{what}, {spec}");
        if spec.contains("offload") {
            let cost = fork.costs().total(|_| true);
            assert!(cost.wanted_tokens > 0 && fork.selects_on_device(), "{what}, {spec}: {cost:?}");
        }
    }
}

/// Each step fetches half of 24,000 tokens for each of eight heads: 49 MB of keys and values a layer, which take a millisecond, longer than
/// a layer computes.
#[test]
#[ignore = "needs a GPU"]
fn long_contexts_are_fetched_as_they_are_attended_in_the_memory_of_the_gpu() {
    let mut both = both_random(|config| (config.heads, config.kv_heads, config.head_dim) = (8, 4, 128));
    both.iter_mut().for_each(|golden| golden.prompt = tokens(24_100, 5));
    for (spec, layers) in [
        ("double_sparsity:kind=random,channels=d/4,k=12000,offload=true", 4),
        ("double_sparsity:kind=random,channels=d/4,ratio=0.5,per=kv_head,offload=true", 4),
        ("double_sparsity:kind=random,channels=d/4,k=12000,local=0,tail=indexed,offload=true", 4),
        ("double_sparsity:kind=random,channels=d/4,k=12000,sink=0,local=0,offload=true,dense_layers=0+3", 3),
    ] {
        // Steps of several rows do not fetch.
        check_tiers(spec, &both, &[spec], 24_000, (&[1, 1, 20, 1, 1, 1, 3, 1, 1], 7 * layers));
    }
    // Together with other methods in the same steps; nothing is fetched for methods that select together.
    let beside =
        ["full", AHEAD[1], "topk:k=200", "double_sparsity:kind=random,channels=d/4,k=12000,offload=true", "quest:k=64"];
    check_tiers("beside others", &both, &beside, 24_000, (&[1, 2, 1, 1], 3 * 4 * 2));
    let together = [12_000, 9000].map(|k| format!("double_sparsity:kind=random,channels=d/4,k={k},offload=true"));
    check_tiers("together", &both, &together.each_ref().map(String::as_str), 24_000, (&[1, 2, 1], 0));
}

#[test]
#[ignore = "needs a GPU"]
fn models_of_all_kinds_fetch_alike() {
    for (kind, dimensions, weights) in small_models() {
        let load = |weights: &ModelWeights| Decoder::load(&dimensions, weights, CUDA).unwrap();
        let (one, mut below) = (load(&weights), load(&weights));
        below.keep_kv_on_host(None);
        let both = [with_prompt(one), with_prompt(below)];
        for spec in AHEAD {
            // Four steps have one row; all layers but the first fetch.
            check_tiers(kind, &both, &[spec], 600, (&[1, 1, 40, 1, 1], 4 * 4));
        }
    }
}

/// Heads have few channels in f32, with biases and with queries that grow.
#[test]
#[ignore = "needs a GPU"]
fn narrow_heads_are_fetched_alike() {
    for name in ["llama3", "qwen2", "ministral3"] {
        let both = both(name);
        let (layers, prefix) = (both[0].decoder.config().layers, both[0].prompt.len() - 90);
        for spec in AHEAD {
            check_tiers(name, &both, &[spec], prefix, (&[1, 1, 40, 1, 1, 1], 5 * (layers - 1)));
        }
    }
}

/// Asserts that costs are equal, except that nearly equal scores may change the misses by a few.
fn assert_costs(ours: &LayerCosts, expected: &LayerCosts, what: &str) {
    let mut plain = [ours.clone(), expected.clone()];
    for layer in 0..ours.layers().len() {
        let [a, b] = plain.each_mut().map(|costs| {
            let cost: &mut Cost = costs.layer_mut(layer);
            let misses = [cost.wanted_tokens, cost.missed_tokens];
            (cost.wanted_tokens, cost.missed_tokens) = (0, 0);
            misses
        });
        assert!(a[0] == b[0] && a[1].abs_diff(b[1]) <= 2 + b[1] / 50, "{what}, layer {layer}: {a:?} and {b:?}");
    }
    assert_alike(&plain[0], &plain[1], what);
}

/// Steps have one row or several.
#[test]
#[ignore = "needs a GPU"]
fn tokens_and_costs_are_those_of_the_cpu() {
    for model in ["llama3", "qwen2", "ministral3"] {
        let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(model, device));
        let methods = AHEAD.map(method);
        for rows in [1, 7] {
            let of = |golden: &Golden| run_in_steps(&cuda, golden, &methods, (false, false), (rows, true));
            let ((ours, forks), (expected, others)) = (of(&cuda), of(&cpu));
            for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                for ((ours, expected), spec) in ours.iter().zip(expected).zip(AHEAD) {
                    let what = format!("{model} {spec}, {rows} rows, step {step}");
                    assert_close(ours, expected, 2e-3, &what);
                    assert_eq!(argmax(ours), argmax(expected), "{what}");
                }
            }
            for ((fork, other), spec) in forks.iter().zip(&others).zip(AHEAD) {
                let missed = other.costs().total(|_| true).missed_share();
                assert!(missed.is_some_and(|share| share > 0.0), "{model} {spec}: {missed:?}");
                assert_costs(fork.costs(), other.costs(), &format!("{model} {spec}, {rows} rows"));
                assert!(fork.selects_on_device() && !other.selects_on_device(), "{model} {spec}");
            }
        }
    }
}
