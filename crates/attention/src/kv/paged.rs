//! A source for tests: pages of tokens in a file, where reads can be made to fail.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

use crate::kv::{Fetched, KvDtype, KvError, KvPlace, KvShape, KvSource, LayerKv, Tier, TierBytes, VisitRows};
use spattn_kernels::Rows;

/// Number of tokens in a page.
pub(crate) const PAGE: usize = 16;

/// When reading fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Never.
    Nothing,
    /// Whenever this page of this layer is read.
    Page {
        /// The layer.
        layer: usize,
        /// The page.
        page: usize,
    },
    /// Only at this read, counted from 0 over all layers and KV heads. Later reads succeed, so an error that was dropped is not
    /// reported by another read.
    OneRead(usize),
}

/// Pages of [`PAGE`] tokens in a file, `[layer][kv_head][page][keys, values]`, as 16-bit floats.
#[derive(Debug)]
pub(crate) struct PagedFile {
    file: File,
    path: PathBuf,
    shape: KvShape,
    layers: usize,
    tokens: usize,
    broken: Broken,
    reads: Arc<AtomicUsize>,
}

impl Drop for PagedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl PagedFile {
    /// Writes layers of 16-bit floats to a new file.
    pub(crate) fn new(layers: &[LayerKv], broken: Broken) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("spattn-pages-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let (shape, tokens) = (layers[0].shape(), layers[0].tokens());
        let part = Self::part_numbers(shape) * KvDtype::F16.bytes();
        for (kv, head) in layers.iter().flat_map(|kv| (0..shape.kv_heads).map(move |head| (kv, head))) {
            for first in (0..tokens).step_by(PAGE) {
                for store in [&kv.keys, &kv.values] {
                    let of_page = first..(first + PAGE).min(tokens);
                    let Rows::F16(rows) = store.head(head).slice(of_page, shape.d) else { unreachable!() };
                    let mut bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                    bytes.resize(part, 0);
                    file.write_all(&bytes).unwrap();
                }
            }
        }
        Self { file, path, shape, layers: layers.len(), tokens, broken, reads: Arc::default() }
    }

    /// Number of elements of the keys, or of the values, of a page.
    fn part_numbers(shape: KvShape) -> usize {
        PAGE * shape.d
    }

    /// Number of bytes of a page.
    pub(crate) fn page_bytes(shape: KvShape) -> u64 {
        (2 * Self::part_numbers(shape) * KvDtype::F16.bytes()) as u64
    }

    /// Number of pages read so far; can be read even after the source is dropped.
    pub(crate) fn reads(&self) -> Arc<AtomicUsize> {
        self.reads.clone()
    }

    fn read_page(&self, at: KvPlace, page: usize) -> Result<Vec<f16>, String> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.broken {
            Broken::Page { layer, page: broken } if (layer, broken) == (at.layer, page) => {
                return Err(format!("page {page} is gone"));
            }
            Broken::OneRead(failing) if read == failing => return Err("the file is gone".to_owned()),
            _ => {}
        }
        let pages = self.tokens.div_ceil(PAGE);
        let number = (at.layer * self.shape.kv_heads + at.kv_head) * pages + page;
        let mut raw = vec![0; Self::page_bytes(self.shape) as usize];
        let place = number as u64 * Self::page_bytes(self.shape);
        self.file.read_exact_at(&mut raw, place).map_err(|e| e.to_string())?;
        Ok(raw.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]])).collect())
    }
}

impl KvSource for PagedFile {
    fn shape(&self) -> KvShape {
        self.shape
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn tier(&self, _: usize) -> Tier {
        Tier::Disk
    }

    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        assert!(tokens.end <= self.tokens, "tokens {tokens:?} of {}", self.tokens);
        let mut bytes = 0;
        for page in tokens.start / PAGE..tokens.end.div_ceil(PAGE) {
            let error = |why: String| KvError::Unread { layer: at.layer, tier: Tier::Disk, why };
            let numbers = self.read_page(at, page).map_err(error)?;
            bytes += Self::page_bytes(self.shape);
            let own = tokens.start.max(page * PAGE) - page * PAGE..tokens.end.min((page + 1) * PAGE) - page * PAGE;
            let (keys, values) = numbers.split_at(Self::part_numbers(self.shape));
            let [keys, values] = [keys, values].map(|part| Rows::F16(part).slice(own.clone(), self.shape.d));
            visit(keys, values);
        }
        Ok(TierBytes::of(Tier::Disk, bytes).into())
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        unreachable!("tests do not extend a paged prefix")
    }
}
