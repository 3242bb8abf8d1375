//! Pages of keys and values in memory: a bounded number of them, shared by all layers, KV heads and threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kv::lru::Lru;
use crate::kv::page_file::{PAGE, PageFile};
use crate::kv::shape::KvShape;
use crate::kv::source::KvPlace;
use crate::kv::store::KvStore;

/// A page in memory; readers hold it while they look at it.
pub(super) type Page = Arc<KvStore>;

/// A page of one of the files.
type Key = (u64, u32, u32, u32);

/// The pages that were read last.
///
/// A page that is not here is read while others may go on; two threads that miss the same page at the same time both read it. What is
/// here never changes what is read, only how long it takes.
#[derive(Debug)]
pub(super) struct PageCache {
    pages: Mutex<Lru<Key, Page>>,
    most: usize,
    requests: AtomicU64,
    hits: AtomicU64,
}

impl PageCache {
    /// A cache that takes `memory` bytes at most, and holds a page at least.
    pub(super) fn new(memory: usize, shape: KvShape) -> Self {
        let most = Self::pages(memory, shape);
        Self { pages: Mutex::new(Lru::new(most)), most, requests: AtomicU64::new(0), hits: AtomicU64::new(0) }
    }

    /// Pages that `memory` bytes have room for, with all that a page takes.
    fn pages(memory: usize, shape: KvShape) -> usize {
        // The two counts of an `Arc`, and what an allocator adds to the two allocations of a page.
        const ALLOCATED: usize = size_of::<KvStore>() + 2 * size_of::<usize>() + 32;
        let page = PageFile::page_bytes(shape) + ALLOCATED + Lru::<Key, Page>::entry_bytes();
        (memory / page).max(1)
    }

    /// The most pages that are here at a time.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Pages that were asked for so far, and how many of them were here.
    pub(super) fn counts(&self) -> [u64; 2] {
        [&self.requests, &self.hits].map(|count| count.load(Ordering::Relaxed))
    }

    /// A page of the file `id`, from here or else from `file`.
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

    /// Lets go of the pages of the file `id` with tokens from `token` on: they are written anew, or gone.
    pub(super) fn forget(&self, id: u64, token: usize) {
        let first = (token / PAGE) as u32;
        self.lock().retain(|(own, _, _, page)| *own != id || *page < first);
    }

    fn lock(&self) -> MutexGuard<'_, Lru<Key, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that are here.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}
