//! Decoding over a source that keeps pages in a file: the same bits as in memory, and errors where a page cannot be read.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

use crate::kv::{KvDtype, KvError, KvPlace, KvShape, KvSource, LayerKv, Prefix, Tier, TierBytes, VisitRows};
use crate::types::attention_spec::{AttentionSpec, LayerSpecs};
use crate::{Configured, IndexCache, Policy, StartError};
use spattn_kernels::Rows;

const PAGE: usize = 16;
const TOKENS: usize = 16 * 6 + 5;
const LAYERS: usize = 2;
const SHAPE: KvShape = KvShape { kv_heads: 2, d: 8, dtype: KvDtype::F16 };
/// Bytes of the keys, or of the values, of a page.
const PART: usize = PAGE * SHAPE.d * 2;
const PAGES: usize = TOKENS.div_ceil(PAGE);

/// Pages of 16 tokens in a file, `[layer][kv_head][page][keys, values]`; one of them cannot be read.
#[derive(Debug)]
struct Paged {
    file: File,
    path: PathBuf,
    /// Layer and page.
    broken: Option<(usize, usize)>,
}

impl Drop for Paged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Paged {
    fn new(layers: &[LayerKv], broken: Option<(usize, usize)>) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("spattn-pages-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        for (kv, head) in layers.iter().flat_map(|kv| (0..SHAPE.kv_heads).map(move |head| (kv, head))) {
            for page in 0..PAGES {
                let tokens = page * PAGE..((page + 1) * PAGE).min(TOKENS);
                for store in [&kv.keys, &kv.values] {
                    let Rows::F16(rows) = store.head(head).slice(tokens.clone(), SHAPE.d) else { unreachable!() };
                    let mut bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                    bytes.resize(PART, 0);
                    file.write_all(&bytes).unwrap();
                }
            }
        }
        Self { file, path, broken }
    }
}

impl KvSource for Paged {
    fn shape(&self) -> KvShape {
        SHAPE
    }

    fn layers(&self) -> usize {
        LAYERS
    }

    fn tokens(&self) -> usize {
        TOKENS
    }

    fn tier(&self, _: usize) -> Tier {
        Tier::Disk
    }

    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<TierBytes, KvError> {
        let error = |why: String| KvError { layer: at.layer, tier: Tier::Disk, why };
        let mut bytes = 0;
        for page in tokens.start / PAGE..tokens.end.div_ceil(PAGE) {
            if self.broken == Some((at.layer, page)) {
                return Err(error(format!("page {page} is gone")));
            }
            let number = (at.layer * SHAPE.kv_heads + at.kv_head) * PAGES + page;
            let mut raw = [0; 2 * PART];
            self.file.read_exact_at(&mut raw, (number * 2 * PART) as u64).map_err(|e| error(e.to_string()))?;
            bytes += raw.len();
            let own = tokens.start.max(page * PAGE) - page * PAGE..tokens.end.min((page + 1) * PAGE) - page * PAGE;
            let numbers: Vec<f16> = raw.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]])).collect();
            let [keys, values] =
                [0, PART / 2].map(|first| Rows::F16(&numbers[first..][..PART / 2]).slice(own.clone(), SHAPE.d));
            visit(keys, values);
        }
        Ok(TierBytes::of(Tier::Disk, bytes as u64))
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        unreachable!("nobody goes on from it")
    }
}

fn row(width: usize, seed: usize) -> Vec<f32> {
    (0..width).map(|i| ((seed * 131 + i * 17) as f32 * 0.37).sin()).collect()
}

fn layers() -> Vec<LayerKv> {
    let width = SHAPE.kv_heads * SHAPE.d;
    let layer = |layer: usize| {
        let mut kv = LayerKv::new(SHAPE.dtype, SHAPE.kv_heads, SHAPE.d, TOKENS);
        for token in 0..TOKENS {
            kv.append(&row(width, layer * 1000 + 2 * token), &row(width, layer * 1000 + 2 * token + 1));
        }
        kv
    };
    (0..LAYERS).map(layer).collect()
}

fn paged(broken: Option<(usize, usize)>) -> Arc<Prefix> {
    let specs = LayerSpecs::uniform(LAYERS, AttentionSpec::of_width(SHAPE.d));
    Prefix::from_source(specs, Box::new(Paged::new(&layers(), broken)))
}

fn method(spec: &str) -> Configured {
    let policy = Policy { sink: 2, local: 5, ..Policy::default() };
    crate::methods::configure(&crate::expand_grid(spec).unwrap().remove(0), &policy).unwrap()
}

/// Outputs of three steps at all layers, and the bytes that were read from disk for them.
fn decode(prefix: Arc<Prefix>, spec: &str) -> Result<(Vec<f32>, u64), StartError> {
    let mut fork = IndexCache::new(prefix, SHAPE.dtype, 1).fork(&method(spec), true)?;
    let (width, mut all) = (SHAPE.kv_heads * SHAPE.d, Vec::new());
    for (step, layer) in (0..3).flat_map(|step| (0..LAYERS).map(move |layer| (step, layer))) {
        let (mut out, seed) = (vec![f32::NAN; 2 * width], 9000 + 10 * step + layer);
        fork.step(layer, &row(2 * width, seed), &row(width, seed + 1), &row(width, seed + 2), &mut out)?;
        all.extend(out);
    }
    let (error, cost) = (fork.fidelity().unwrap().output_error().concat(), fork.costs().total(|_| true));
    all.extend(error.into_iter().map(|x| x as f32));
    assert_eq!(cost.fetched.sum(), cost.fetched.disk);
    Ok((all, cost.fetched.disk))
}

const SPECS: [&str; 6] =
    ["full", "topk:k=9", "topk:k=9,tail=indexed", "quest:k=20", "streaming_llm:window=20", "topk:density=0.3"];

#[test]
fn pages_on_disk_give_the_bits_of_memory_and_are_counted() {
    for spec in SPECS {
        let (expected, lent) = decode(Prefix::new(layers()), spec).unwrap();
        let (outputs, read) = decode(paged(None), spec).unwrap();
        let bits = |outputs: &[f32]| outputs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&outputs), bits(&expected), "{spec}");
        assert!(lent == 0 && read > 0 && read.is_multiple_of(2 * PART as u64), "{spec}: {lent}, {read}");
    }
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_that_names_layer_and_tier() {
    for spec in SPECS {
        let error = decode(paged(Some((1, 0))), spec).unwrap_err();
        let expected = KvError { layer: 1, tier: Tier::Disk, why: "page 0 is gone".to_owned() };
        assert_eq!(error, StartError::Kv(expected), "{spec}");
    }
    let error = decode(paged(Some((0, 3))), "full").unwrap_err();
    assert_eq!(error.to_string(), "the KV cache of layer 0 could not be read from disk: page 3 is gone");
}
