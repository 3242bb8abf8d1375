//! Tokens of a prefix in host memory that a GPU caches: which tokens these are, and that results stay the same.

use std::collections::HashSet;

use spattn::attention::Configured;
use spattn::cost::Cost;
use spattn::kernels::cuda::{
    Buffer, Gpu, HostDeviceVec, Pages, Scores, Storage, TokenCache, TokenCacheShape, TokenListLayout, TokenLists,
};
use spattn::kv::TierBytes;
use spattn::model::decoder::Decoder;
use spattn::model::tensors::Weights as ModelWeights;

use super::ahead::{pinned, stepped, stepped_beyond};
use super::golden_model::{Golden, load};
use super::several::{assert_same, small_models, with_prompt};
use super::{CUDA, Kv, cache, gpu, method, noise};

/// A naive cache of the least recently used kind: the slots of one KV head.
pub(super) struct NaiveCache {
    /// The token in each slot and the step of its last use.
    pub(super) slots: Vec<Option<(u32, usize)>>,
    step: usize,
}

impl NaiveCache {
    /// An empty cache.
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots], step: 0 }
    }

    /// Uses the tokens of some lists; returns how many of them were cached.
    pub(super) fn use_all(&mut self, lists: &[Vec<u32>], tokens: u32) -> u64 {
        self.step += 1;
        let step = self.step;
        let mut seen = HashSet::new();
        let asked: Vec<u32> =
            lists.iter().flatten().copied().filter(|token| *token < tokens && seen.insert(*token)).collect();
        let place_of = |slots: &[Option<(u32, usize)>], token: u32| {
            slots.iter().position(|slot| slot.is_some_and(|(own, _)| own == token))
        };
        let (there, missing): (Vec<u32>, Vec<u32>) =
            asked.into_iter().partition(|token| place_of(&self.slots, *token).is_some());
        for token in &there {
            let place = place_of(&self.slots, *token).expect("it is there");
            self.slots[place] = Some((*token, step));
        }
        // Slots not used in this step, the least recently used first; a slot that was never used is older than any.
        let used = |slot: &Option<(u32, usize)>| slot.map_or(0, |(_, used)| used);
        let mut free: Vec<usize> = (0..self.slots.len()).filter(|place| used(&self.slots[*place]) < step).collect();
        free.sort_by_key(|place| (used(&self.slots[*place]), *place));
        free.truncate(missing.len());
        // Slots older than the newest of these are taken first, in the order of slots.
        let newest = free.last().map_or(0, |place| used(&self.slots[*place]));
        free.sort_by_key(|place| (used(&self.slots[*place]) == newest, *place));
        for (place, token) in free.into_iter().zip(missing) {
            self.slots[place] = Some((token, step));
        }
        there.len() as u64
    }
}

const D: usize = 64;
const PREFIX: usize = 5000;
const LISTS: usize = 4;
const KV_HEADS: usize = 2;

/// Returns scores whose largest change a little from step to step.
fn drifting(step: u64, count: usize) -> Vec<f32> {
    let (base, first, second) = (noise(count, 900), noise(count, 901 + step), noise(count, 902 + step));
    base.iter().zip(&first).zip(&second).map(|((base, first), second)| base + 0.15 * (first + second)).collect()
}

/// A prefix in host memory, a tail, and lists.
struct Lists {
    prefix: Kv,
    below: [Buffer; 2],
    tail: [Buffer; 2],
    storage: Storage,
    lists: TokenLists,
    chosen: HostDeviceVec<u32>,
    scores: Scores,
}

impl Lists {
    fn new(gpu: &Gpu, storage: Storage, most: usize) -> Self {
        let prefix = Kv::new(KV_HEADS, PREFIX, D, 910, storage);
        let below = prefix.send(gpu, PREFIX, storage).each_ref().map(|there| pinned(gpu, there));
        let tail = Kv::new(KV_HEADS, 8, D, 911, storage).send(gpu, 8, storage);
        let mut chosen = HostDeviceVec::default();
        chosen.set(gpu, vec![most as u32]).unwrap();
        Self { prefix, below, tail, storage, lists: TokenLists::default(), chosen, scores: Scores::default() }
    }

    /// Selects for a step, and fetches through a cache.
    fn step(&mut self, gpu: &Gpu, step: u64, most: usize, kept: Option<&TokenCache>) {
        let pages = Pages { tokens: 3..PREFIX + 5, size: 1 };
        self.scores.resize(gpu, 1, LISTS, pages.count()).unwrap();
        self.scores.upload(gpu, &drifting(step, LISTS * pages.count())).unwrap();
        self.lists.resize(gpu, TokenListLayout::new(LISTS, most), vec![PREFIX + 5]).unwrap();
        gpu.top_pages(&self.scores, (&self.chosen, None), 0, &pages, &mut self.lists).unwrap();
        let Self { prefix, below, tail, storage, lists, .. } = self;
        let (prefix, tail) = (cache(below, PREFIX, prefix, *storage), cache(tail, 8, prefix, *storage));
        gpu.fetch_tokens(lists, &prefix, PREFIX, &[tail], kept).unwrap();
        gpu.await_tokens(lists).unwrap();
    }

    /// Returns the fetched keys and values of all tokens of all lists.
    fn fetched(&self, gpu: &Gpu) -> Vec<[Vec<u8>; 2]> {
        (0..LISTS).map(|list| self.lists.download_fetched(gpu, 0, list).unwrap()).collect()
    }

    fn downloaded(&self, gpu: &Gpu) -> Vec<Vec<u32>> {
        (0..LISTS).map(|list| self.lists.download(gpu, 0, list).unwrap()).collect()
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_cache_holds_the_tokens_used_last_and_fetches_what_it_lacks() {
    let gpu = gpu();
    // More slots than two lists of a KV head have tokens, fewer, fewer than one list has, more than a step selects tokens of the
    // prefix, and a single one.
    for (storage, most, slots) in [
        (Storage::Bf16, 300, 900),
        (Storage::F32, 300, 420),
        (Storage::F16, 300, 100),
        (Storage::Bf16, 2100, 4096),
        (Storage::Bf16, 40, 1),
    ] {
        let shape = TokenCacheShape { kv_heads: KV_HEADS, d: D, storage, tokens: PREFIX, slots };
        let mut kept = TokenCache::new(&gpu, shape).unwrap();
        let (mut ours, mut plain) = (Lists::new(&gpu, storage, most), Lists::new(&gpu, storage, most));
        let mut naive: Vec<NaiveCache> = (0..KV_HEADS).map(|_| NaiveCache::new(slots)).collect();
        let mut all = 0;
        for step in 0..12 {
            ours.step(&gpu, step, most, Some(&kept));
            plain.step(&gpu, step, most, None);
            let what = format!("{storage:?}, {most} tokens, {slots} slots, step {step}");
            let lists = ours.downloaded(&gpu);
            assert_eq!(lists, plain.downloaded(&gpu), "{what}");
            let each = LISTS / KV_HEADS;
            let expected: u64 =
                (0..KV_HEADS).map(|head| naive[head].use_all(&lists[head * each..][..each], PREFIX as u32)).sum();
            assert_eq!(kept.take_hits(&gpu).unwrap(), expected, "{what}: tokens that were found");
            assert!(ours.fetched(&gpu) == plain.fetched(&gpu), "{what}: what was fetched");
            all += expected;
        }
        assert!(all > 0 || slots < 2, "{storage:?}, {most} tokens, {slots} slots: nothing was ever found");
    }
}

/// Methods that select on the GPU, among them some whose selection serves several tokens, and whose search reads keys through a cache.
const KEPT: [&str; 10] = [
    "quest:k=64",
    "quest:k=64,per=kv_head",
    "hip:k=64,r_m=4",
    "hip:k=64,r_m=1,offload=true",
    "hip:k=48,b_k=4,b_sk=2,key_offset=last,per=kv_head,r_m=3,offload=true",
    "hip:k=32,r_m=2,representative=first,dense_layers=0",
    "hip:k=1000,r_m=2",
    "lsh_bits:k=40",
    "double_sparsity:kind=random,channels=d/2,k=40,offload=true",
    "double_sparsity:kind=random,channels=d/2,k=40,dense_layers=0",
];

/// Checks that the cache changes no result, and that the tokens found in it are those that did not cross the bus.
fn check_kept(what: &str, [without, with]: &[Golden; 2], spec: &str, prefix: usize, steps: &[usize]) -> TierBytes {
    let methods: Vec<Configured> = vec![method(spec)];
    // The last tokens count as generated, so that some attend the selection of an earlier one again.
    let prompt = prefix + steps.iter().sum::<usize>().saturating_sub(4);
    let (expected, others) = stepped_beyond(without, &methods, (prefix, prompt), steps);
    let (ours, forks) = stepped_beyond(with, &methods, (prefix, prompt), steps);
    for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        assert_same(&ours[0], &expected[0], &format!("{what}, {spec}, step {step}"));
    }
    let [own, other] = [&forks[0], &others[0]].map(|fork| fork.costs().total(|_| true));
    let plain = |cost: &Cost| Cost { fetched: TierBytes::default(), ..*cost };
    assert_eq!(plain(&own), plain(&other), "{what}, {spec}");
    assert_eq!((other.fetched.device, own.fetched.sum()), (0, other.fetched.host), "{what}, {spec}");
    own.fetched
}

#[test]
#[ignore = "needs a GPU"]
fn models_that_keep_tokens_say_what_they_say_without() {
    for (kind, dimensions, weights) in small_models() {
        let load = |cached: Option<usize>, weights: &ModelWeights| {
            let mut decoder = Decoder::load(&dimensions, weights, CUDA).unwrap();
            decoder.keep_kv_on_host(cached);
            with_prompt(decoder)
        };
        let small = [load(None, &weights), load(Some(1 << 20), &weights)];
        let large = [load(None, &weights), load(Some(1 << 30), &weights)];
        for spec in KEPT {
            let steps = [1, 1, 40, 1, 1, 1, 1];
            let [few, all] = [&small, &large].map(|both| check_kept(kind, both, spec, 600, &steps));
            assert!(all.device > 0, "{kind}, {spec}: nothing was found again");
            assert!(few.device <= all.device, "{kind}, {spec}: {} and {}", few.device, all.device);
        }
        // All keys are scored, so all cross the bus.
        assert_eq!(check_kept(kind, &large, "topk:k=40", 600, &[1, 1, 1]).device, 0, "{kind}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn golden_models_that_keep_tokens_say_what_they_say_without() {
    for name in ["llama3", "ministral3"] {
        let both = [None, Some(1 << 21)].map(|cached| {
            let mut golden = load(name, CUDA);
            golden.decoder.keep_kv_on_host(cached);
            golden
        });
        let prefix = both[0].prompt.len() - 90;
        for spec in KEPT {
            let fetched = check_kept(name, &both, spec, prefix, &[1, 1, 30, 1, 1, 1, 1, 1]);
            assert!(fetched.device > 0, "{name}, {spec}");
        }
    }
}

/// The same prompt runs twice, as in an evaluation; the second sequence finds nothing that the first one cached.
#[test]
#[ignore = "needs a GPU"]
fn a_sequence_begins_with_nothing() {
    let mut golden = load("llama3", CUDA);
    golden.decoder.keep_kv_on_host(Some(1 << 21));
    let prefix = golden.prompt.len() - 90;
    let found = || {
        let (logits, forks) = stepped(&golden, &[method("quest:k=64")], prefix, &[1, 1, 1]);
        (logits, forks[0].costs().total(|_| true).fetched)
    };
    let (first, second) = (found(), found());
    assert!(first == second && first.1.device > 0, "{:?} and {:?}", first.1, second.1);
}
