//! The disk tier: the keys and values of a prefix in a file, read through a cache of pages in memory.
//!
//! While a prompt is read, one layer of it is in memory at a time ([`DiskPrefill`]): for each chunk of the prompt, the layer's tokens so
//! far are read back, the chunk's tokens are added, and their pages are written. So a prompt of `n` chunks is read back `(n - 1) / 2`
//! times. The finished prefix is a [`KvSource`] ([`DiskKv`]) that is read by pages.
//!
//! The file has no name, so the operating system removes it when it is closed, however the process ends.

use std::any::Any;
use std::ops::{AddAssign, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kv::layer::LayerKv;
use crate::kv::page_cache::{Page, PageCache};
use crate::kv::page_file::{PAGE, PageFile, Storage};
use crate::kv::page_ledger::{PageLedger, Paging};
use crate::kv::shape::KvShape;
use crate::kv::source::{Fetched, KvPlace, KvSource, VisitRows};
use crate::kv::tier::{KvError, Tier};
use spattn_base::disk::unnamed_file;

/// The folder for prefixes of one shape on disk, and the memory for their pages.
#[derive(Debug)]
pub struct DiskTier {
    folder: PathBuf,
    shape: KvShape,
    layers: usize,
    shared: Arc<Shared>,
    files: AtomicU64,
}

/// The state that all prefixes of a tier share.
#[derive(Debug)]
struct Shared {
    cache: PageCache,
    written: AtomicU64,
    /// Bytes of layers that were read back during prefill.
    read_back: AtomicU64,
}

/// What was actually read from and written to disk; it depends on threads and on what ran before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Number of bytes written.
    pub written: u64,
    /// Bytes of layers that were read back during prefill.
    pub read_back: u64,
    /// Number of pages requested.
    pub pages: u64,
    /// Number of requested pages that were in memory.
    pub hits: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl AddAssign for DiskUse {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.read_back += other.read_back;
        self.pages += other.pages;
        self.hits += other.hits;
        // Models differ in the size of a page: keep the largest.
        self.page_bytes = self.page_bytes.max(other.page_bytes);
    }
}

/// The space that a prefix on disk takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskNeed {
    /// Bytes on disk.
    pub disk: usize,
    /// Bytes of memory for pages: the limit, or less if all its pages take less.
    pub pages: usize,
    /// Bytes of memory for the digests of the pages.
    pub digests: usize,
    /// Bytes of memory for each sequence's ledger of the pages that it used.
    pub of_sequence: usize,
}

impl DiskNeed {
    /// The space for a prefix of `tokens` tokens, with `memory` bytes for pages.
    pub fn new(shape: KvShape, layers: usize, tokens: usize, memory: usize) -> Self {
        let [disk, digests] = PageFile::bytes(shape, layers, tokens);
        let (page, most) = (PageFile::page_bytes(shape).max(1), PageCache::new(memory, shape).most());
        // The number of pages that the cache holds tells how much memory a page takes, overhead included.
        let pages = memory.min((disk / page).saturating_mul(memory.div_ceil(most)));
        let of_sequence = most.min(disk / page).saturating_mul(PageLedger::bytes_per_page());
        Self { disk, pages, digests, of_sequence }
    }
}

impl DiskTier {
    /// A tier with files in `folder`, and `memory` bytes for pages.
    pub fn new(folder: &Path, memory: usize, shape: KvShape, layers: usize) -> Self {
        let cache = PageCache::new(memory, shape);
        let shared = Shared { cache, written: AtomicU64::new(0), read_back: AtomicU64::new(0) };
        Self { folder: folder.to_owned(), shape, layers, shared: Arc::new(shared), files: AtomicU64::new(0) }
    }

    /// Starts a prefix of `tokens` tokens.
    ///
    /// # Errors
    /// If no file can be created for it.
    pub fn begin(&self, tokens: usize) -> Result<DiskPrefill, KvError> {
        let file = unnamed_file(&self.folder).map_err(|e| KvError::Unwritten {
            layer: 0,
            tier: Tier::Disk,
            why: format!("no file can be made in {}: {e}", self.folder.display()),
        })?;
        Ok(self.begin_in(Box::new(file), tokens))
    }

    /// Like [`begin`](Self::begin), in an existing file.
    fn begin_in(&self, storage: Box<dyn Storage>, tokens: usize) -> DiskPrefill {
        let file = PageFile::new(storage, self.shape, self.layers);
        let id = self.files.fetch_add(1, Ordering::Relaxed);
        DiskPrefill::of(DiskKv { file, tokens: 0, id, shared: self.shared.clone() }, tokens)
    }

    /// Returns what was read and written so far.
    pub fn used(&self) -> DiskUse {
        let Shared { cache, written, read_back } = self.shared.as_ref();
        let [pages, hits] = cache.counts();
        let [written, read_back] = [written, read_back].map(|bytes| bytes.load(Ordering::Relaxed));
        DiskUse { written, read_back, pages, hits, page_bytes: PageFile::page_bytes(self.shape) as u64 }
    }
}

/// A prefix during prefill, of which one layer is in memory at a time.
#[derive(Debug)]
pub struct DiskPrefill {
    kv: DiskKv,
    /// The layer in memory.
    layer: LayerKv,
}

impl DiskPrefill {
    /// Continues from the first `kept` tokens of a prefix to `tokens` tokens.
    pub fn after(mut kv: DiskKv, kept: usize, tokens: usize) -> Self {
        kv.tokens = kept.min(kv.tokens);
        // The page of the first new token may hold other tokens after the kept ones.
        kv.shared.cache.forget(kv.id, kv.tokens);
        Self::of(kv, tokens)
    }

    fn of(kv: DiskKv, tokens: usize) -> Self {
        let KvShape { kv_heads, d, dtype } = kv.file.shape();
        Self { layer: LayerKv::new(dtype, kv_heads, d, tokens), kv }
    }

    /// Number of tokens that all layers have.
    pub fn tokens(&self) -> usize {
        self.kv.tokens
    }

    /// Loads a layer with the tokens that all layers have, so that tokens can be added. The additions are lost unless the layer is
    /// [stored](Self::store).
    ///
    /// # Errors
    /// If the layer cannot be read back.
    pub fn load(&mut self, layer: usize) -> Result<&mut LayerKv, KvError> {
        let tokens = self.kv.tokens;
        self.kv.file.read_layer(layer, tokens, &mut self.layer).map_err(|why| self.kv.unread(layer, why))?;
        let bytes = tokens.div_ceil(PAGE) * self.kv.file.shape().kv_heads * PageFile::page_bytes(self.kv.file.shape());
        self.kv.shared.read_back.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(&mut self.layer)
    }

    /// Writes the tokens added to the layer that was [loaded](Self::load) last.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn store(&mut self, layer: usize) -> Result<(), KvError> {
        let written = self.kv.file.write_layer(layer, self.kv.tokens, &self.layer);
        let written = written.map_err(|why| KvError::Unwritten { layer, tier: Tier::Disk, why })?;
        self.kv.shared.written.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the number of tokens that all layers have, at the end of a chunk.
    pub fn end_chunk(&mut self, tokens: usize) {
        self.kv.tokens = tokens;
    }

    /// Returns the finished prefix, of which nothing is in memory.
    pub fn finish(self) -> DiskKv {
        self.kv
    }
}

/// A finished prefix on disk.
#[derive(Debug)]
pub struct DiskKv {
    file: PageFile,
    tokens: usize,
    /// Number of the file among those of its tier.
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for DiskKv {
    fn drop(&mut self) {
        self.shared.cache.forget(self.id, 0);
    }
}

impl DiskKv {
    fn page(&self, at: KvPlace, page: usize) -> Result<Page, KvError> {
        self.shared.cache.page(self.id, &self.file, at, page).map_err(|why| self.unread(at.layer, why))
    }

    fn unread(&self, layer: usize, why: String) -> KvError {
        KvError::Unread { layer, tier: Tier::Disk, why }
    }
}

impl KvSource for DiskKv {
    fn shape(&self) -> KvShape {
        self.file.shape()
    }

    fn layers(&self) -> usize {
        self.file.layers()
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn tier(&self, _: usize) -> Tier {
        Tier::Disk
    }

    fn paging(&self) -> Option<Paging> {
        let page_bytes = PageFile::page_bytes(self.shape()) as u64;
        Some(Paging { page_bytes, in_memory: self.shared.cache.most() })
    }

    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        assert!(tokens.end <= self.tokens, "tokens {tokens:?} of {}", self.tokens);
        if tokens.is_empty() {
            return Ok(Fetched::default());
        }
        let (pages, d) = (tokens.start / PAGE..tokens.end.div_ceil(PAGE), self.shape().d);
        for number in pages.clone() {
            let page = self.page(at, number)?;
            let first = number * PAGE;
            let own = tokens.start.max(first) - first..tokens.end.min(first + PAGE) - first;
            visit(page.head(0).slice(own.clone(), d), page.head(1).slice(own, d));
        }
        Ok(Fetched::pages(std::iter::once(pages.start as u32..pages.end as u32).collect()))
    }

    /// Takes a page from the cache only once for consecutive tokens of the page.
    fn gather(&self, at: KvPlace, tokens: &[u32], out: &mut LayerKv) -> Result<Fetched, KvError> {
        let (mut last, mut pages, d) = (None::<(usize, Page)>, Vec::<Range<u32>>::new(), self.shape().d);
        for token in tokens {
            let token = *token as usize;
            assert!(token < self.tokens, "token {token} of {}", self.tokens);
            let number = token / PAGE;
            let page = match &last {
                Some((at, page)) if *at == number => page,
                _ => {
                    match pages.last_mut() {
                        Some(run) if run.end == number as u32 => run.end += 1,
                        _ => pages.push(number as u32..number as u32 + 1),
                    }
                    &last.insert((number, self.page(at, number)?)).1
                }
            };
            let own = token % PAGE..token % PAGE + 1;
            out.keys.extend(page.head(0).slice(own.clone(), d));
            out.values.extend(page.head(1).slice(own, d));
        }
        Ok(Fetched::pages(pages))
    }

    fn into_any(self: Box<Self>) -> Option<Box<dyn Any>> {
        Some(self)
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        let KvShape { kv_heads, d, dtype } = self.shape();
        let layer = |number: usize| {
            let mut kv = LayerKv::new(dtype, kv_heads, d, self.tokens);
            let read = self.file.read_layer(number, self.tokens, &mut kv);
            read.map(|()| kv).map_err(|why| self.unread(number, why))
        };
        (0..self.layers()).map(layer).collect()
    }
}

/// Writes layers to an unnamed file in the folder for temporary files, in chunks of `chunk` tokens as in prefill.
#[cfg(test)]
pub(crate) fn on_disk(layers: &[LayerKv], chunk: usize, memory: usize) -> (DiskTier, DiskKv) {
    let (shape, tokens) = (layers[0].shape(), layers[0].tokens());
    let tier = DiskTier::new(&std::env::temp_dir(), memory, shape, layers.len());
    let mut prefill = tier.begin(tokens).unwrap();
    tests::add_all(&mut prefill, layers, chunk).unwrap();
    (tier, prefill.finish())
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
