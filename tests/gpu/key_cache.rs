//! Keys of a prefix in host memory that a GPU caches for the search of `hip`: what is found, which keys are kept, and that results stay the
//! same.
//!
//! Queries and keys are small whole numbers, so that a naive search on the host has the same scores to the bit, and many of them tie.

use std::collections::{BTreeSet, HashSet};

use spattn::attention::Configured;
use spattn::cost::Cost;
use spattn::kernels::cuda::{
    Buffer, Cache, Gpu, HeldKey, HostDeviceVec, KeyCache, KeyCacheShape, Queries, SearchedKeys, Storage,
    TokenListLayout, TokenLists, Tree, TreeTails, TreeWorkspace,
};
use spattn::kv::TierBytes;
use spattn::model::decoder::Decoder;

use super::ahead::{pinned, stepped_beyond};
use super::golden_model::{Golden, load};
use super::several::{assert_same, small_models, with_prompt};
use super::token_cache::NaiveCache;
use super::{CUDA, Kv, cache, gpu, method, noise, send};

const KV_HEADS: usize = 2;
const PREFIX: usize = 3000;
const TAIL: usize = 64;
const FIRST: usize = 4;

/// Whole numbers from -4 to 4.
fn whole(count: usize, seed: u64) -> Vec<f32> {
    noise(count, seed).iter().map(|x| (4.0 * x).round()).collect()
}

/// Queries whose numbers change a little from step to step.
fn drifting(count: usize, step: u64) -> Vec<f32> {
    let (base, change) = (whole(count, 40), whole(count, 41 + step));
    base.iter().zip(&change).enumerate().map(|(i, (base, change))| if i % 7 == 0 { *change } else { *base }).collect()
}

fn whole_kv(tokens: usize, d: usize, seed: u64) -> Kv {
    let numbers = |seed| whole(KV_HEADS * tokens * d, seed);
    Kv { keys: numbers(seed), values: numbers(seed + 1), kv_heads: KV_HEADS, tokens, d }
}

/// A round of one list's search: the scored keys, counted from the first candidate, and whether they count.
struct Round {
    keys: Vec<u32>,
    counts: bool,
}

/// Searches as the paper does; returns all `rounds` rounds, and the tokens found, counted from the first candidate.
fn search(tree: &Tree, tokens: usize, keep: usize, rounds: u32, score: impl Fn(u32) -> f32) -> (Vec<Round>, Vec<u32>) {
    let blocks = tokens.div_ceil(tree.size);
    if keep >= blocks {
        let none = || Round { keys: Vec::new(), counts: false };
        return ((0..rounds).map(|_| none()).collect(), (0..tokens as u32).collect());
    }
    let bound = |j: usize| (2 * j * blocks + keep) / (2 * keep);
    let mut chunks: Vec<(usize, usize)> = (0..keep).map(|j| (bound(j), bound(j + 1) - bound(j))).collect();
    let mut all = Vec::new();
    for _ in 0..rounds {
        let halves = |(first, count): &(usize, usize)| {
            let half = count / 2;
            [(*first, half), (first + half, count - half)]
        };
        let branches: Vec<(usize, usize)> = chunks.iter().flat_map(halves).collect();
        let counts = branches.iter().enumerate().any(|(i, (_, count))| *count > i % 2);
        let keys_of = |(first, count): &(usize, usize)| -> Vec<u32> {
            if *count == 0 {
                return Vec::new();
            }
            let block = first + (tree.representative * (*count - 1) as f64 + 0.5) as usize;
            let (begin, end) = (block * tree.size, ((block + 1) * tree.size).min(tokens));
            let begin = if tree.last { (begin + tree.stride).min(end) - 1 } else { begin };
            (begin..end).step_by(tree.stride).map(|key| key as u32).collect()
        };
        let keys: Vec<Vec<u32>> = branches.iter().map(keys_of).collect();
        let best = |keys: &Vec<u32>| keys.iter().map(|key| score(*key)).fold(f32::NEG_INFINITY, f32::max);
        let scores: Vec<f32> = keys.iter().map(best).collect();
        let mut order: Vec<usize> = (0..branches.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        order.truncate(keep);
        order.sort_unstable();
        chunks = order.into_iter().map(|i| branches[i]).collect();
        all.push(Round { keys: keys.concat(), counts });
    }
    let tokens_of = |(block, _): &(usize, usize)| block * tree.size..((block + 1) * tree.size).min(tokens);
    (all, chunks.iter().flat_map(tokens_of).map(|token| token as u32).collect())
}

/// A naive key cache of one KV head.
struct NaiveKeys(NaiveCache);

impl NaiveKeys {
    /// Reads the keys of a search, the lists of which go through each round together. Returns how many were found.
    fn read(&mut self, lists: &[&Vec<Round>], slots: usize) -> u64 {
        let held: HashSet<u32> = self.0.slots.iter().flatten().map(|(token, _)| *token).collect();
        let (mut used, mut staged) = (BTreeSet::new(), BTreeSet::new());
        let (mut is_open, mut found) = (true, 0);
        for round in 0..lists[0].len() {
            let mut new = BTreeSet::new();
            for Round { keys, counts } in lists.iter().map(|list| &list[round]) {
                for token in keys.iter().map(|key| FIRST as u32 + key).filter(|token| *token < PREFIX as u32) {
                    if held.contains(&token) {
                        used.insert(token);
                    } else if !staged.contains(&token) {
                        new.insert(token);
                        continue;
                    }
                    found += u64::from(*counts);
                }
            }
            is_open &= staged.len() + new.len() <= slots;
            if is_open {
                staged.extend(new);
            }
        }
        let asked: Vec<u32> = used.into_iter().chain(staged).collect();
        if !lists[0].is_empty() {
            self.0.use_all(&[asked], PREFIX as u32);
        }
        found
    }

    fn tokens(&self) -> BTreeSet<u32> {
        self.0.slots.iter().flatten().map(|(token, _)| *token).collect()
    }
}

/// What is searched, with how large a cache.
struct Case {
    storage: Storage,
    d: usize,
    heads: usize,
    lists: usize,
    /// The blocks that each row keeps, and its candidates' end.
    rows: &'static [(usize, usize)],
    slots: usize,
    size: usize,
    stride: usize,
    last: bool,
    representative: f64,
}

const CASE: Case = Case {
    storage: Storage::Bf16,
    d: 128,
    heads: 8,
    lists: 8,
    rows: &[(20, PREFIX - 10)],
    slots: PREFIX,
    size: 2,
    stride: 1,
    last: false,
    representative: 0.5,
};

/// The buffers of a case.
struct Material {
    prefix: Kv,
    tail: Kv,
    there: [Buffer; 2],
    below: [Buffer; 2],
    behind: Vec<[Buffer; 2]>,
}

impl Case {
    fn tree(&self) -> Tree {
        let end = self.rows.iter().map(|(_, end)| *end).max().unwrap().min(PREFIX);
        Tree {
            tokens: FIRST..end,
            size: self.size,
            stride: self.stride,
            last: self.last,
            representative: self.representative,
        }
    }

    /// Whether rows have candidates of their own.
    fn has_tails(&self) -> bool {
        self.rows.iter().any(|(_, end)| *end != self.rows[0].1 || *end > PREFIX)
    }

    fn material(&self, gpu: &Gpu) -> Material {
        let (prefix, tail) = (whole_kv(PREFIX, self.d, 10), whole_kv(TAIL, self.d, 20));
        let there = prefix.send(gpu, PREFIX, self.storage);
        let behind = self.rows.iter().map(|_| tail.send(gpu, TAIL, self.storage)).collect();
        Material { below: there.each_ref().map(|there| pinned(gpu, there)), prefix, tail, there, behind }
    }

    /// Searches on the GPU; returns the tokens and the scored keys of each list.
    fn run(
        &self,
        gpu: &Gpu,
        material: &Material,
        queries: &[f32],
        (kv, cached): (&[Buffer; 2], Option<&KeyCache>),
        workspace: &mut TreeWorkspace,
    ) -> Vec<(Vec<u32>, u32)> {
        let (count, stride) = (self.rows.len(), self.heads * self.d);
        let queries = send(gpu, queries, self.storage);
        let (mut rows, mut keeps) = (HostDeviceVec::default(), HostDeviceVec::default());
        rows.set(gpu, (0..count as u32).collect()).unwrap();
        keeps.set(gpu, self.rows.iter().map(|(keep, _)| *keep as u32).collect()).unwrap();
        let queries = Queries { queries: &queries, stride, heads: self.heads, rows: &rows };
        let (prefix, ends) = (
            cache(kv, PREFIX, &material.prefix, self.storage),
            self.rows.iter().map(|(_, end)| *end).collect::<Vec<usize>>(),
        );
        let own: Vec<Cache<'_>> =
            material.behind.iter().map(|there| cache(there, TAIL, &material.tail, self.storage)).collect();
        let tails = self.has_tails().then_some(TreeTails { prefix_tokens: PREFIX, ends: &ends, keys: &own });
        let most = self.rows.iter().map(|(keep, end)| (keep * self.size).min(end - FIRST)).max().unwrap();
        let mut lists = TokenLists::default();
        lists.resize(gpu, TokenListLayout::new(self.lists, most).counted(), ends.clone()).unwrap();
        let keys = SearchedKeys { prefix: &prefix, tails, cached };
        gpu.search_tree(&queries, &keys, &self.tree(), &keeps, &mut lists, workspace).unwrap();
        let of_list =
            |(row, list)| (lists.download(gpu, row, list).unwrap(), lists.download_entries(gpu, row, list).unwrap());
        (0..count).flat_map(|row| (0..self.lists).map(move |list| (row, list))).map(of_list).collect()
    }

    /// Searches naively; returns each list's rounds and tokens.
    fn naive(&self, material: &Material, queries: &[f32]) -> Vec<(Vec<Round>, Vec<u32>)> {
        let (tree, d) = (self.tree(), self.d);
        let blocks = |end: usize| (end - FIRST).div_ceil(tree.size);
        let rounds_of = |(keep, end): &(usize, usize)| match *keep < blocks(*end) {
            true => blocks(*end).div_ceil(*keep).next_power_of_two().trailing_zeros(),
            false => 0,
        };
        let rounds = self.rows.iter().map(rounds_of).max().unwrap();
        let (group, each) = (self.heads / KV_HEADS, self.heads / self.lists);
        let of_list = |(row, list): (usize, usize)| {
            let kv_head = list * each / group;
            let score = |key: u32| {
                let token = FIRST + key as usize;
                let key = if token < PREFIX {
                    material.prefix.key(kv_head, token)
                } else {
                    material.tail.key(kv_head, token - PREFIX)
                };
                let product = |head: usize| -> f32 {
                    queries[(row * self.heads + head) * d..][..d].iter().zip(key).map(|(q, k)| q * k).sum()
                };
                (list * each..(list + 1) * each).map(product).fold(f32::NEG_INFINITY, f32::max)
            };
            let (keep, end) = self.rows[row];
            search(&tree, end - FIRST, keep, rounds, score)
        };
        (0..self.rows.len()).flat_map(|row| (0..self.lists).map(move |list| (row, list))).map(of_list).collect()
    }

    /// Checks several searches with one cache against searches without, and what the cache holds. Returns how many keys were found.
    fn check(&self, gpu: &Gpu, what: &str) -> u64 {
        let material = self.material(gpu);
        let shape =
            KeyCacheShape { kv_heads: KV_HEADS, d: self.d, storage: self.storage, tokens: PREFIX, slots: self.slots };
        let mut kept = KeyCache::new(gpu, shape).unwrap();
        let mut naive: Vec<NaiveKeys> = (0..KV_HEADS).map(|_| NaiveKeys(NaiveCache::new(self.slots))).collect();
        // The same workspace serves searches with and without a cache.
        let (mut workspace, mut all) = (TreeWorkspace::default(), 0);
        let row_bytes = self.d * self.storage.bytes();
        let mut keys = vec![0u8; KV_HEADS * PREFIX * row_bytes];
        gpu.download(&material.there[0], 0, &mut keys).unwrap();
        for step in 0..9 {
            let what = format!("{what}, step {step}");
            let queries = drifting(self.rows.len() * self.heads * self.d, step);
            let ours = self.run(gpu, &material, &queries, (&material.below, Some(&kept)), &mut workspace);
            let plain = self.run(gpu, &material, &queries, (&material.there, None), &mut workspace);
            let expected = self.naive(&material, &queries);
            for (list, (plain, (rounds, tokens))) in plain.iter().zip(&expected).enumerate() {
                let tokens: Vec<u32> = tokens.iter().map(|token| FIRST as u32 + token).collect();
                let scored = rounds.iter().filter(|round| round.counts).map(|round| round.keys.len()).sum::<usize>();
                assert_eq!(plain, &(tokens, scored as u32), "{what}, list {list}: the naive search");
            }
            assert!(ours == plain, "{what}: tokens or scored keys");
            let mut found = 0;
            for (kv_head, naive) in naive.iter_mut().enumerate() {
                let is_own = |list: usize| list % self.lists / (self.lists / KV_HEADS) == kv_head;
                let own: Vec<&Vec<Round>> = expected
                    .iter()
                    .enumerate()
                    .filter(|(list, _)| is_own(*list))
                    .map(|(_, (rounds, _))| rounds)
                    .collect();
                found += naive.read(&own, self.slots);
                let held = kept.download(gpu, kv_head).unwrap();
                let tokens: BTreeSet<u32> = held.iter().flatten().map(|held| held.token).collect();
                assert_eq!(tokens.len(), held.iter().flatten().count(), "{what}: a token in two slots");
                assert!(tokens == naive.tokens(), "{what}, KV head {kv_head}: what is kept");
                for HeldKey { token, key } in held.iter().flatten() {
                    let own = &keys[(kv_head * PREFIX + *token as usize) * row_bytes..][..row_bytes];
                    assert!(key == own, "{what}, KV head {kv_head}: the key of token {token}");
                }
            }
            assert_eq!(kept.take_hits(gpu).unwrap(), found, "{what}: keys that were found");
            all += found;
        }
        all
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_search_through_a_cache_finds_what_it_finds_without() {
    let gpu = gpu();
    let tails: &[(usize, usize)] = &[(20, PREFIX + 10), (33, PREFIX + 41), (9, PREFIX - 5)];
    let together: &[(usize, usize)] = &[(20, PREFIX - 10), (33, PREFIX - 10), (5000, PREFIX - 10)];
    let cases = [
        ("all keys fit", CASE),
        ("some fit", Case { slots: 700, ..CASE }),
        ("few fit", Case { slots: 200, ..CASE }),
        ("not even those of a round", Case { slots: 37, ..CASE }),
        ("one slot", Case { slots: 1, ..CASE }),
        ("a list for a group", Case { lists: KV_HEADS, d: 64, slots: 300, ..CASE }),
        ("no groups, f16", Case { storage: Storage::F16, heads: KV_HEADS, lists: KV_HEADS, slots: 120, ..CASE }),
        ("f32", Case { storage: Storage::F32, d: 64, slots: 400, ..CASE }),
        ("odd heads", Case { d: 80, slots: 400, ..CASE }),
        ("wide heads", Case { d: 256, heads: 4, lists: 4, slots: 250, ..CASE }),
        ("many queries in a list", Case { heads: 40, lists: KV_HEADS, slots: 150, ..CASE }),
        ("blocks of eight", Case { size: 8, stride: 3, last: true, representative: 0.0, slots: 500, ..CASE }),
        ("last blocks", Case { size: 5, stride: 2, representative: 1.0, slots: 500, ..CASE }),
        ("several rows", Case { rows: together, slots: 900, ..CASE }),
        ("several rows with tails", Case { rows: tails, slots: 900, ..CASE }),
        ("tails in f32", Case { rows: tails, storage: Storage::F32, lists: KV_HEADS, slots: 400, ..CASE }),
    ];
    for (what, case) in cases {
        let found = case.check(&gpu, what);
        assert!(found > 0 || case.slots < 100, "{what}: nothing was ever found");
    }
    // Nothing is searched, and nothing is read.
    let all: &[(usize, usize)] = &[(5000, PREFIX - 10)];
    assert_eq!(Case { rows: all, ..CASE }.check(&gpu, "all are kept"), 0);
}

#[test]
#[ignore = "needs a GPU"]
#[should_panic(expected = "a cache of another prefix")]
fn a_cache_of_another_prefix_is_refused() {
    let gpu = gpu();
    let material = CASE.material(&gpu);
    let shape = KeyCacheShape { kv_heads: KV_HEADS, d: 64, storage: CASE.storage, tokens: PREFIX, slots: 10 };
    let (kept, queries) = (KeyCache::new(&gpu, shape).unwrap(), drifting(CASE.heads * CASE.d, 0));
    CASE.run(&gpu, &material, &queries, (&material.below, Some(&kept)), &mut TreeWorkspace::default());
}

/// Loads the first small model, with so many bytes for caches below host memory; in GPU memory without.
fn loaded(cached: Option<usize>) -> Golden {
    let (_, dimensions, weights) = small_models().swap_remove(0);
    let mut decoder = Decoder::load(&dimensions, &weights, CUDA).unwrap();
    if let Some(bytes) = cached {
        decoder.keep_kv_on_host(Some(bytes));
    }
    with_prompt(decoder)
}

/// Settings together, whose rows share searches, or whose new tokens join the tree; each has caches of its own.
#[test]
#[ignore = "needs a GPU"]
fn answers_are_those_in_the_memory_of_the_gpu() {
    let specs = [
        "hip:k=64,r_m=4,offload=true",
        "hip:k=32,r_m=4,offload=true",
        "hip:k=32,b_k=4,per=kv_head,r_m=3,offload=true",
        "hip:k=16,r_m=1,tail=indexed,offload=true",
        "hip:k=48,r_m=3,local=0,tail=indexed,offload=true",
        "hip:k=48,r_m=3,tail=window:5,offload=true",
        "quest:k=64",
        "full",
    ];
    // A question of 23 tokens, and an answer of which three tokens are read at once.
    let (at, steps) = ((600, 623), [1, 1, 1, 20, 1, 1, 3, 1, 1, 1, 1, 1, 1]);
    let one = loaded(None);
    let below = [2 << 20, 1 << 30].map(|bytes| loaded(Some(bytes)));
    let all: Vec<Configured> = specs.iter().map(|spec| method(spec)).collect();
    let alone = specs.iter().map(|spec| vec![method(spec)]);
    for methods in alone.chain([all]) {
        let (expected, others) = stepped_beyond(&one, &methods, at, &steps);
        for (golden, size) in below.iter().zip(["small", "large"]) {
            let (ours, forks) = stepped_beyond(golden, &methods, at, &steps);
            for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                for ((ours, expected), method) in ours.iter().zip(expected).zip(&methods) {
                    assert_same(ours, expected, &format!("{size} caches, {}, step {step}", method.label()));
                }
            }
            for ((fork, other), method) in forks.iter().zip(&others).zip(&methods) {
                let of = |costs: Cost| Cost { fetched: TierBytes::default(), ..costs };
                let [ours, theirs] = [fork, other].map(|fork| of(fork.costs().total(|_| true)));
                assert_eq!(ours, theirs, "{size} caches, {}", method.label());
            }
        }
    }
}

/// Between two masks nothing crosses the bus but the static tokens of the prompt, even if caches are small.
#[test]
#[ignore = "needs a GPU"]
fn a_mask_that_is_attended_again_is_on_the_gpu() {
    for golden in [loaded(Some(2 << 20)), load_below("llama3")] {
        let method = method("hip:k=64,r_m=6,offload=true");
        let prefix = golden.prompt.len() - 90;
        let after = |steps: usize| {
            let (_, forks) = stepped_beyond(&golden, std::slice::from_ref(&method), (prefix, prefix), &vec![1; steps]);
            forks[0].costs().total(|_| true)
        };
        let costs: Vec<Cost> = (1..=8).map(after).collect();
        let refreshes: Vec<bool> = costs.windows(2).map(|pair| pair[1].score_flops > pair[0].score_flops).collect();
        assert!(refreshes.contains(&false), "no mask is attended again: {refreshes:?}");
        let (_, forks) = stepped_beyond(&golden, std::slice::from_ref(&method), (prefix, prefix), &[1]);
        let (layers, shape) = (forks[0].prefix().layers(), forks[0].prefix().shape());
        let exact = method.method.exact(&method.policy, prefix, prefix + 1);
        let fixed = (exact.sink + prefix - exact.recent.min(prefix)) * layers * shape.kv_heads * shape.row_bytes();
        for (pair, is_refresh) in costs.windows(2).zip(&refreshes) {
            let [bus, found] =
                [pair[1].fetched.host - pair[0].fetched.host, pair[1].fetched.device - pair[0].fetched.device];
            if !is_refresh {
                assert_eq!(bus, fixed as u64);
            }
            assert!(found > 0);
        }
    }
}

fn load_below(name: &str) -> Golden {
    let mut golden = load(name, CUDA);
    golden.decoder.keep_kv_on_host(Some(2 << 20));
    golden
}
