//! Every method over a source that keeps pages in a file gives the same bits as in memory, and an error wherever a read fails. Over a
//! quantised prefix it gives the same bits as over the numbers that the codes stand for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tail_tests::GROWING;
use super::tests::{ORDINARY, Turn, calibrated, configured, noise, random_kv, random_stats};
use crate::calibration::collector::PrefillChunk;
use crate::kv::paged::{Broken, PAGE, PagedFile};
use crate::kv::{
    DiskTier, KvDtype, KvError, KvShape, KvSource, LayerKv, Prefix, PrefixDtype, QuantisedKv, Tier, TierBytes, on_disk,
};
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::{Configured, IndexCache, Policy, PromptStats, RecentQueries, StartError, Tail};
use spattn_kernels::pieces::PIECE;

const TOKENS: usize = 6 * PAGE + 5;
const LAYERS: usize = 2;
const GROUP: usize = 2;
const SHAPE: KvShape = KvShape { kv_heads: 2, d: 32, dtype: KvDtype::F16 };
const HEADS: usize = SHAPE.kv_heads * GROUP;

/// Specs that read in ways that no other list covers: at grouped positions, and for a density that is solved with an indexed tail.
const FURTHER: [&str; 3] =
    ["hip:k=12,self_extend=4,self_extend_window=8,b_k=3", "topk:density=0.3", "vattention:density=0.3,per=kv_head"];

fn layers() -> Vec<LayerKv> {
    (0..LAYERS).map(|layer| random_kv(SHAPE.dtype, SHAPE.kv_heads, TOKENS, SHAPE.d, 40 + layer as u64)).collect()
}

fn in_memory() -> Arc<Prefix> {
    Prefix::new(layers())
}

/// The same prefix in a file, and how many pages of it were read.
fn in_file(broken: Broken) -> (Arc<Prefix>, Arc<AtomicUsize>) {
    let source = PagedFile::new(&layers(), broken);
    let reads = source.reads();
    let specs = LayerSpecs::uniform(LAYERS, AttentionSpec::of_width(SHAPE.d));
    (Prefix::from_source(specs, Box::new(source)), reads)
}

/// A method, and the prompt's last queries if it gets them.
struct Case {
    name: String,
    method: Configured,
    recent: RecentQueries,
}

impl Case {
    fn new(spec: &str, tail: Tail, queries: bool) -> Self {
        let policy = Policy { sink: 2, local: 5, tail, ..Policy::default() };
        let method = calibrated(configured(spec, &policy), LAYERS, HEADS, SHAPE.kv_heads, SHAPE.d);
        let mut recent = RecentQueries::default();
        for (layer, kv) in layers().iter().enumerate().filter(|_| queries) {
            let rows = noise(RecentQueries::COUNT * HEADS * SHAPE.d, 555 + layer as u64);
            recent.observe(&PrefillChunk::new(layer, TOKENS - RecentQueries::COUNT, &rows, HEADS, kv)).unwrap();
        }
        Self { name: format!("{spec}, tail={tail}, queries: {queries}"), method, recent }
    }

    fn stats(&self) -> PromptStats {
        random_stats(&self.method.method, &in_memory(), HEADS)
    }

    /// The same case on a prefix that is stored as `dtype`.
    fn stored_as(mut self, dtype: PrefixDtype) -> Self {
        self.method.policy.kv_dtype = dtype;
        self
    }

    /// Every method of the registry, and methods whose index grows.
    fn all() -> Vec<Self> {
        let ordinary = ORDINARY.iter().map(|spec| Self::new(spec, Tail::default(), true));
        let growing = GROWING.iter().chain(&FURTHER).map(|spec| Self::new(spec, Tail::Indexed, false));
        ordinary.chain(growing).collect()
    }

    /// Decodes three steps at all layers.
    fn decode(&self, prefix: Arc<Prefix>) -> Result<Decoded, StartError> {
        let cache = IndexCache::new(prefix, SHAPE.dtype, 1).with_stats(self.stats()).with_rotation(Arc::new(Turn));
        let mut sequence = cache.with_queries(self.recent.clone()).fork(&self.method, true)?;
        let (width, mut outputs) = (SHAPE.kv_heads * SHAPE.d, Vec::new());
        for (step, layer) in (0..3).flat_map(|step| (0..LAYERS).map(move |layer| (step, layer))) {
            let (mut out, seed) = (vec![f32::NAN; GROUP * width], 9000 + 10 * step + layer as u64);
            let [query, key, value] = [GROUP * width, width, width].map(|n| noise(n, seed.wrapping_mul(7) + n as u64));
            sequence.step(layer, &query, &key, &value, &mut out)?;
            outputs.extend(out.iter().map(|x| x.to_bits()));
        }
        let error = sequence.fidelity().unwrap().output_error().concat();
        let mut cost = sequence.costs().total(|_| true);
        let kv_bytes = std::mem::take(&mut cost.kv_bytes);
        let (of_steps, of_index) = (std::mem::take(&mut cost.fetched), sequence.index_reads());
        Ok(Decoded {
            outputs,
            error: error.into_iter().map(f64::to_bits).collect(),
            solved: sequence.solved().map(str::to_owned),
            cost: format!("{cost:?}, {:?}", sequence.aux_bits()),
            kv_bytes,
            held: sequence.kv_bytes_held(),
            of_steps,
            of_index: of_index.fetched,
            workspace: of_index.workspace,
        })
    }
}

/// Results of three steps, to the bit, and what was read for them.
#[derive(Debug)]
struct Decoded {
    outputs: Vec<u32>,
    error: Vec<u64>,
    solved: Option<String>,
    /// All counters but the next two.
    cost: String,
    kv_bytes: u64,
    held: u64,
    /// Bytes that steps fetched.
    of_steps: TierBytes,
    /// Bytes that the index took.
    of_index: TierBytes,
    /// Bytes of the largest buffer of an index that was built.
    workspace: usize,
}

impl Decoded {
    /// Bytes from disk, where there is no other tier.
    fn read(&self) -> u64 {
        assert_eq!(self.of_steps.sum() + self.of_index.sum(), self.of_steps.disk + self.of_index.disk);
        self.of_steps.disk + self.of_index.disk
    }
}

#[test]
fn pages_on_disk_give_the_bits_of_memory_and_are_counted() {
    for case in Case::all() {
        let expected = case.decode(in_memory()).unwrap();
        let (prefix, reads) = in_file(Broken::Nothing);
        let got = case.decode(prefix).unwrap();
        assert_eq!((expected.read(), expected.workspace), (0, 0), "{}: rows in memory are lent", case.name);
        let read = got.read();
        assert_eq!(got.solved, expected.solved, "{}", case.name);
        assert_eq!((got.outputs, got.error), (expected.outputs, expected.error), "{}", case.name);
        assert_eq!(
            (got.cost, got.kv_bytes, got.held),
            (expected.cost, expected.kv_bytes, expected.held),
            "{}",
            case.name
        );
        let pages = reads.load(Ordering::Relaxed) as u64;
        assert!(read > 0, "{}", case.name);
        // The comparison with exact attention reads too, and is not counted.
        assert!(read <= pages * PagedFile::page_bytes(SHAPE), "{}", case.name);
        assert!(read.is_multiple_of(PagedFile::page_bytes(SHAPE)), "{}: {read}", case.name);
        // An index is built from the keys or values of a KV head at most, as 32-bit floats.
        assert!(got.workspace <= 2 * TOKENS * SHAPE.d * size_of::<f32>(), "{}: {}", case.name, got.workspace);
    }
}

#[test]
fn a_read_that_fails_is_an_error_whatever_it_is_for() {
    const TRIED: usize = 9;
    for case in Case::all() {
        let (prefix, reads) = in_file(Broken::Nothing);
        case.decode(prefix).unwrap();
        let all = reads.load(Ordering::Relaxed);
        for tried in 0..TRIED {
            let failing = tried * (all - 1) / (TRIED - 1);
            let error = case.decode(in_file(Broken::OneRead(failing)).0).expect_err(&case.name);
            let StartError::Kv(KvError::Unread { layer, tier, why }) = error else { panic!("{}: {error}", case.name) };
            assert_eq!(
                (tier, why.as_str()),
                (Tier::Disk, "the file is gone"),
                "{}: read {failing} of {all}",
                case.name
            );
            assert!(layer < LAYERS, "{}", case.name);
        }
    }
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_that_names_layer_and_tier() {
    for spec in ["full", "topk:k=9", "quest:k=20", "streaming_llm:window=20", "topk:density=0.3", "knn:k=9", "hip:k=9"]
    {
        let case = Case::new(spec, Tail::default(), false);
        let error = case.decode(in_file(Broken::Page { layer: 1, page: 0 }).0).unwrap_err();
        let expected = KvError::Unread { layer: 1, tier: Tier::Disk, why: "page 0 is gone".to_owned() };
        assert_eq!(error, StartError::Kv(expected), "{spec}");
    }
    let case = Case::new("full", Tail::default(), false);
    let error = case.decode(in_file(Broken::Page { layer: 0, page: 3 }).0).unwrap_err();
    assert_eq!(error.to_string(), "the KV cache of layer 0 could not be read from disk: page 3 is gone");
}

/// A context of more than one piece is read and attended piece by piece, as in memory.
#[test]
fn long_contexts_have_the_same_bits_and_need_no_buffer_of_all_tokens() {
    let shape = KvShape { kv_heads: 1, d: 8, dtype: KvDtype::F16 };
    let kv = vec![random_kv(shape.dtype, shape.kv_heads, 2 * PIECE + 9, shape.d, 3)];
    let decode = |prefix: Arc<Prefix>, spec: &str| {
        let mut sequence =
            IndexCache::new(prefix, shape.dtype, 1).fork(&configured(spec, &Policy::default()), false).unwrap();
        let mut out = vec![f32::NAN; GROUP * shape.d];
        let [query, key, value] = [GROUP * shape.d, shape.d, shape.d].map(|n| noise(n, n as u64));
        sequence.step(0, &query, &key, &value, &mut out).unwrap();
        (out.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), sequence.index_reads().workspace)
    };
    for spec in ["full", "topk:k=9", "quest:k=64", "topk_norm:k=9"] {
        let specs = LayerSpecs::uniform(1, AttentionSpec::of_width(shape.d));
        let file = Prefix::from_source(specs, Box::new(PagedFile::new(&kv, Broken::Nothing)));
        let ((expected, _), (got, workspace)) = (decode(Prefix::new(kv.clone()), spec), decode(file, spec));
        assert_eq!(got, expected, "{spec}");
        assert!(workspace < 1000 * shape.d * size_of::<f32>(), "{spec}: {workspace}");
    }
}

// ---- the tier on disk ----

/// A prefix that was written in chunks as a prompt is read, with a cap on the pages in memory.
fn kept(layers: &[LayerKv], memory: usize) -> (Arc<Prefix>, DiskTier) {
    let (tier, kv) = on_disk(layers, 40, memory);
    let specs = LayerSpecs::uniform(layers.len(), AttentionSpec::of_width(layers[0].shape().d));
    (Prefix::from_source(specs, Box::new(kv)), tier)
}

#[test]
fn the_tier_on_disk_gives_the_bits_of_memory_for_every_method_and_cap() {
    for case in Case::all() {
        let expected = case.decode(in_memory()).unwrap();
        let of_cap = |memory: usize| {
            let got = case.decode(kept(&layers(), memory).0).unwrap();
            assert_eq!(got.solved, expected.solved, "{}", case.name);
            assert_eq!((&got.outputs, &got.error), (&expected.outputs, &expected.error), "{}", case.name);
            assert_eq!((&got.cost, got.kv_bytes), (&expected.cost, expected.kv_bytes), "{}", case.name);
            (got.of_steps, got.of_index)
        };
        let [(none, first), (few, second), (all, third)] = [1, 15_000, 1 << 20].map(of_cap);
        assert_eq!((first, first.host), (second, 0), "{}: an index is read as if nothing was in memory", case.name);
        assert_eq!(first, third, "{}", case.name);
        assert_eq!([few.sum(), all.sum()], [none.sum(); 2], "{}: a cap changes where pages are, not which", case.name);
        assert!(none.disk >= few.disk && few.disk >= all.disk, "{}: {none:?}, {few:?}, {all:?}", case.name);
        // If all pages fit into memory, each is read once.
        let pages = (LAYERS * SHAPE.kv_heads * TOKENS.div_ceil(PAGE)) as u64;
        assert!(all.disk <= pages * PagedFile::page_bytes(SHAPE), "{}: {all:?}", case.name);
        assert!(none.sum() + first.sum() > 0, "{}", case.name);
    }
}

/// Steps of long contexts, whose KV heads several threads share.
#[test]
fn threads_change_no_bit_and_no_count_of_the_tier_on_disk() {
    let shape = KvShape { kv_heads: 4, d: 8, dtype: KvDtype::Bf16 };
    let kv =
        vec![random_kv(shape.dtype, shape.kv_heads, 5000, shape.d, 3), random_kv(shape.dtype, 4, 5000, shape.d, 4)];
    let decode = |threads: usize, prefix: Arc<Prefix>, spec: &str| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut cache = IndexCache::new(prefix, shape.dtype, 1).with_rotation(Arc::new(Turn));
            let mut sequence = cache.fork(&configured(spec, &Policy::default()), false).unwrap();
            let (width, mut bits) = (shape.kv_heads * shape.d, Vec::new());
            for (step, layer) in (0..4).flat_map(|step| (0..2).map(move |layer| (step, layer))) {
                let mut out = vec![f32::NAN; GROUP * width];
                let [query, key, value] =
                    [GROUP * width, width, width].map(|n| noise(n, (10 * step + layer + n) as u64));
                sequence.step(layer, &query, &key, &value, &mut out).unwrap();
                bits.extend(out.iter().map(|x| x.to_bits()));
            }
            (bits, sequence.costs().total(|_| true).fetched, sequence.index_reads().fetched)
        })
    };
    for spec in ["full", "topk:k=99", "quest:k=640", "topk:density=0.1", "streaming_llm:window=700"] {
        let (expected, nothing, _) = decode(2, Prefix::new(kv.clone()), spec);
        assert_eq!(nothing, TierBytes::default());
        // A third of the pages fit into memory.
        let of = |threads| decode(threads, kept(&kv, 350_000).0, spec);
        let alone = of(1);
        assert_eq!(alone.0, expected, "{spec}");
        assert!(alone.1.disk > 0, "{spec}");
        for threads in [2, 5] {
            assert_eq!(of(threads), alone, "{spec}: {threads} threads");
        }
    }
}

/// A sequence that runs alone on one thread finds in the shared cache what its counters say.
#[test]
fn what_a_sequence_counts_is_what_it_reads_where_nothing_else_does() {
    let shape = KvShape { kv_heads: 1, d: 16, dtype: KvDtype::F32 };
    let kv: Vec<LayerKv> = (0..3).map(|seed| random_kv(shape.dtype, 1, 900, shape.d, seed)).collect();
    for (spec, memory) in
        [("full", 1 << 20), ("full", 60_000), ("topk:k=40", 1 << 20), ("topk:k=40", 100_000), ("random:k=40", 150_000)]
    {
        let (prefix, tier) = kept(&kv, memory);
        let mut sequence =
            IndexCache::new(prefix, shape.dtype, 1).fork(&configured(spec, &Policy::default()), false).unwrap();
        for (step, layer) in (0..9).flat_map(|step| (0..3).map(move |layer| (step, layer))) {
            let mut out = vec![f32::NAN; GROUP * shape.d];
            let [query, key, value] =
                [GROUP * shape.d, shape.d, shape.d].map(|n| noise(n, (10 * step + layer + n) as u64));
            sequence.step(layer, &query, &key, &value, &mut out).unwrap();
        }
        let (used, counted) = (tier.used(), sequence.costs().total(|_| true).fetched);
        assert_eq!(sequence.index_reads().fetched, TierBytes::default(), "{spec} has no index");
        assert!(counted.disk > 0 && counted.device == 0);
        assert_eq!(counted.host, used.hits * used.page_bytes, "{spec}, {memory} bytes");
        assert_eq!(counted.sum(), used.pages * used.page_bytes, "{spec}, {memory} bytes");
    }
}

// ---- quantised prefixes ----

/// The numbers that the codes of a quantised prefix stand for, as a prefix in memory.
fn decoded(dtype: PrefixDtype) -> Arc<Prefix> {
    let source: Box<dyn KvSource> = Box::new(QuantisedKv::new(&in_memory(), dtype).unwrap());
    Prefix::new(source.into_layers().unwrap())
}

/// Bytes of keys and values that three steps of all layers read of tokens that are not codes, if each step attends them all: the last 5 of
/// the prefix, and the 1, 2 or 3 behind it.
fn plain_bytes() -> u64 {
    let rows = (3 * (TOKENS % 32) + 1 + 2 + 3) * 2 * LAYERS * SHAPE.kv_heads;
    (rows * SHAPE.d * 2) as u64
}

#[test]
fn quantised_prefixes_give_the_bits_of_the_numbers_that_their_codes_stand_for() {
    for dtype in [PrefixDtype::F8, PrefixDtype::Q8, PrefixDtype::Q4, PrefixDtype::Q2] {
        let numbers = decoded(dtype);
        for case in Case::all() {
            let expected = case.decode(numbers.clone()).unwrap();
            let (name, static_tail) = (case.name.clone(), case.method.policy.tail == Tail::Exact);
            let whole_rows = !case.method.has_moving_candidates() && static_tail;
            let got = case.stored_as(dtype).decode(in_memory()).unwrap();
            assert_eq!(got.solved, expected.solved, "{name}, {dtype}");
            assert_eq!(got.outputs, expected.outputs, "{name}, {dtype}");
            assert_eq!(got.cost, expected.cost, "{name}, {dtype}");
            assert_eq!(got.read(), 0, "{name}: nothing is fetched from another tier");
            // A row of 16-bit numbers has 64 bytes; a row of codes has 1 byte of ranges for every 8 numbers.
            let row = match dtype {
                PrefixDtype::F8 => 32,
                PrefixDtype::Q8 => 36,
                PrefixDtype::Q4 => 20,
                _ => 12,
            };
            assert!(
                got.kv_bytes * 64 >= expected.kv_bytes * row && got.kv_bytes <= expected.kv_bytes,
                "{name}, {dtype}"
            );
            assert!(got.held * 64 >= expected.held * row && got.held < expected.held, "{name}, {dtype}");
            if whole_rows && dtype != PrefixDtype::F8 {
                let plain = plain_bytes();
                assert_eq!(64 * (got.kv_bytes - plain), row * (expected.kv_bytes - plain), "{name}, {dtype}");
            }
        }
    }
}

/// Fidelity is measured against exact attention of the model: `full` on codes has an error, larger with fewer bits.
#[test]
fn the_error_of_a_quantised_prefix_is_that_to_exact_attention() {
    let of = |dtype: PrefixDtype| {
        let case = Case::new("full", Tail::default(), false).stored_as(dtype);
        let errors = case.decode(in_memory()).unwrap().error;
        errors.iter().map(|bits| f64::from_bits(*bits)).sum::<f64>() / errors.len() as f64
    };
    let [exact, q8, f8, q4, q2] =
        [PrefixDtype::Model, PrefixDtype::Q8, PrefixDtype::F8, PrefixDtype::Q4, PrefixDtype::Q2].map(of);
    assert!(exact < 1e-6 && q8 > 1e-4, "{exact} {q8}");
    assert!(q8 < f8 && f8 < q4 && q4 < q2 && q2 < 1.0, "{q8} {f8} {q4} {q2}");
}

/// Each storage type has its own copy and indexes, made once. Exact rows beside them are those of a run without copies.
#[test]
fn methods_on_several_storages_share_a_prefix_and_not_their_indexes() {
    let mut cache = IndexCache::new(in_memory(), SHAPE.dtype, 1).with_rotation(Arc::new(Turn));
    // Two pages of four tokens: the bounds of 2-bit codes soon select others.
    const SPEC: &str = "quest:k=8,page=4";
    let out = |cache: &mut IndexCache, dtype: PrefixDtype| {
        let case = Case::new(SPEC, Tail::default(), false).stored_as(dtype);
        let mut sequence = cache.fork(&case.method, false).unwrap();
        let (width, mut bits) = (SHAPE.kv_heads * SHAPE.d, Vec::new());
        for step in 0..8 {
            let mut out = vec![f32::NAN; GROUP * width];
            let [query, key, value] = [GROUP * width, width, width].map(|n| noise(n, (97 * step + n) as u64));
            sequence.step(0, &query, &key, &value, &mut out).unwrap();
            bits.extend(out.iter().map(|x| x.to_bits()));
        }
        (bits, sequence.kv_bits())
    };
    let alone = |dtype| out(&mut IndexCache::new(in_memory(), SHAPE.dtype, 1), dtype);
    for dtype in [PrefixDtype::Q2, PrefixDtype::Model, PrefixDtype::Q4, PrefixDtype::Q2] {
        let (bits, of_token) = out(&mut cache, dtype);
        assert_eq!((bits, of_token), (alone(dtype).0, 8 * 2 * 64), "{dtype}");
    }
    let index_of = |cache: &mut IndexCache, dtype: PrefixDtype| {
        let case = Case::new(SPEC, Tail::default(), false).stored_as(dtype);
        cache.fork(&case.method, false).unwrap().index_time()
    };
    let known = index_of(&mut cache, PrefixDtype::Q4);
    assert_eq!(known.reused, known.whole, "the copy and its index were there");
    assert!(cache.into_prefix().is_some(), "no copy holds on to the prefix");
}
