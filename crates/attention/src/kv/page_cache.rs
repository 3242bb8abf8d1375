//! A cache of pages of keys and values: a bounded number of pages in memory, shared by all layers, KV heads and threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kv::lru::Lru;
use crate::kv::page_file::{PAGE, PageFile};
use crate::kv::shape::KvShape;
use crate::kv::source::KvPlace;
use crate::kv::store::KvStore;

/// A page in memory; readers hold a reference while they use it.
pub(super) type Page = Arc<KvStore>;

/// Identifies a page of one of the files.
type Key = (u64, u32, u32, u32);

/// The most recently used pages.
///
/// While a missing page is read, other threads can continue; two threads that miss the same page at the same time both read it. The
/// cache never changes what is read, only how long it takes.
#[derive(Debug)]
pub(super) struct PageCache {
    pages: Mutex<Lru<Key, Page>>,
    most: usize,
    requests: AtomicU64,
    hits: AtomicU64,
}

impl PageCache {
    /// Creates a cache that takes at most `memory` bytes, but holds at least one page.
    pub(super) fn new(memory: usize, shape: KvShape) -> Self {
        let most = Self::pages(memory, shape);
        Self { pages: Mutex::new(Lru::new(most)), most, requests: AtomicU64::new(0), hits: AtomicU64::new(0) }
    }

    /// Number of pages that fit in `memory` bytes, with the overhead of each page.
    fn pages(memory: usize, shape: KvShape) -> usize {
        // The two counts of an `Arc`, and the overhead of the allocator for the two allocations of a page.
        const ALLOCATED: usize = size_of::<KvStore>() + 2 * size_of::<usize>() + 32;
        let page = PageFile::page_bytes(shape) + ALLOCATED + Lru::<Key, Page>::entry_bytes();
        (memory / page).max(1)
    }

    /// Largest number of pages in the cache.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Number of pages requested so far, and number of these that were in the cache.
    pub(super) fn counts(&self) -> [u64; 2] {
        [&self.requests, &self.hits].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns a page of the file `id`, from the cache or else from `file`.
    pub(super) fn page(&self, id: u64, file: &PageFile, at: KvPlace, page: usize) -> Result<Page, String> {
        let key = (id, at.layer as u32, at.kv_head as u32, page as u32);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(found) = self.lock().get(&key).cloned() {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        let read = Page::new(file.read_page(at, page)?);
        self.lock().put(key, read.clone());
        Ok(read)
    }

    /// Drops the pages of the file `id` with tokens from `token` on, because they are being rewritten or no longer exist.
    pub(super) fn forget(&self, id: u64, token: usize) {
        let first = (token / PAGE) as u32;
        self.lock().retain(|(own, _, _, page)| *own != id || *page < first);
    }

    fn lock(&self) -> MutexGuard<'_, Lru<Key, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of pages in the cache.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}
