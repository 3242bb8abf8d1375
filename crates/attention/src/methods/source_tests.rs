//! Every method over a source that keeps pages in a file: the same bits as in memory, and an error wherever a read fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tail_tests::GROWING;
use super::tests::{ORDINARY, Turn, calibrated, configured, noise, random_kv, random_stats};
use crate::calibration::collector::PrefillChunk;
use crate::kv::paged::{Broken, PAGE, PagedFile};
use crate::kv::{KvDtype, KvError, KvShape, LayerKv, Prefix, Tier};
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::{Configured, IndexCache, Policy, PromptStats, RecentQueries, StartError, Tail};
use spattn_kernels::pieces::PIECE;

const TOKENS: usize = 6 * PAGE + 5;
const LAYERS: usize = 2;
const GROUP: usize = 2;
const SHAPE: KvShape = KvShape { kv_heads: 2, d: 32, dtype: KvDtype::F16 };
const HEADS: usize = SHAPE.kv_heads * GROUP;

/// Specs whose ways of reading are in no other list: grouped positions, and what is solved with the tail in the index.
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

/// A method, with what it needs to know of the prompt: statistics, and with `queries` the last queries.
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

    /// Every method of the registry, and methods whose index grows.
    fn all() -> Vec<Self> {
        let ordinary = ORDINARY.iter().map(|spec| Self::new(spec, Tail::default(), true));
        let growing = GROWING.iter().chain(&FURTHER).map(|spec| Self::new(spec, Tail::Indexed, false));
        ordinary.chain(growing).collect()
    }

    /// Three steps at all layers.
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
        let (of_steps, of_index) = (std::mem::take(&mut cost.fetched), sequence.index_reads());
        assert_eq!(of_steps.sum() + of_index.fetched.sum(), of_steps.disk + of_index.fetched.disk);
        Ok(Decoded {
            outputs,
            error: error.into_iter().map(f64::to_bits).collect(),
            solved: sequence.solved().map(str::to_owned),
            cost: format!("{cost:?}, {:?}", sequence.aux_bits()),
            read: of_steps.disk + of_index.fetched.disk,
            workspace: of_index.workspace,
        })
    }
}

/// What three steps gave, to the bit, and what was read for them.
#[derive(Debug)]
struct Decoded {
    outputs: Vec<u32>,
    error: Vec<u64>,
    solved: Option<String>,
    cost: String,
    /// Bytes from disk.
    read: u64,
    /// Bytes of the largest buffer of an index that was built.
    workspace: usize,
}

#[test]
fn pages_on_disk_give_the_bits_of_memory_and_are_counted() {
    for case in Case::all() {
        let expected = case.decode(in_memory()).unwrap();
        let (prefix, reads) = in_file(Broken::Nothing);
        let got = case.decode(prefix).unwrap();
        assert_eq!((expected.read, expected.workspace), (0, 0), "{}: rows in memory are lent", case.name);
        assert_eq!(got.solved, expected.solved, "{}", case.name);
        assert_eq!((got.outputs, got.error), (expected.outputs, expected.error), "{}", case.name);
        assert_eq!(got.cost, expected.cost, "{}", case.name);
        let pages = reads.load(Ordering::Relaxed) as u64;
        assert!(got.read > 0, "{}", case.name);
        // Comparing with exact attention reads too, and is not counted.
        assert!(got.read <= pages * PagedFile::page_bytes(SHAPE), "{}", case.name);
        assert!(got.read.is_multiple_of(PagedFile::page_bytes(SHAPE)), "{}: {}", case.name, got.read);
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

/// A context of more than one piece is attended piece by piece, as in memory, and read so too.
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
