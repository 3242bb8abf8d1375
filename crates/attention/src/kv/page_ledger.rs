//! Which pages a sequence would find in memory if it had the memory for pages to itself.
//!
//! Which pages are in the shared cache when a sequence requests them depends on other sequences, on threads and on earlier examples.
//! Records must not (decision 41), so each sequence keeps its own ledger: a least recently used set of as many pages as the cache holds,
//! without their contents, and empty at the sequence's first step.

use std::ops::Range;

use crate::kv::lru::Lru;
use crate::kv::tier::TierBytes;

/// How a source that reads pages caches them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// Bytes of a page, which holds keys and values of some tokens of one KV head.
    pub page_bytes: u64,
    /// Number of pages in memory at a time.
    pub in_memory: usize,
}

impl Paging {
    /// Bytes of pages that are all read from disk.
    pub(crate) fn all_from_disk(self, pages: &[Range<u32>]) -> TierBytes {
        TierBytes {
            disk: pages.iter().map(|run| run.len() as u64).sum::<u64>() * self.page_bytes,
            ..TierBytes::default()
        }
    }
}

/// The pages that a sequence used most recently.
#[derive(Debug)]
pub(crate) struct PageLedger {
    paging: Paging,
    used: Lru<(u32, u32, u32), ()>,
}

impl PageLedger {
    /// The ledger of a sequence that has taken no step yet.
    pub(crate) fn new(paging: Paging) -> Self {
        Self { paging, used: Lru::new(paging.in_memory) }
    }

    /// Counts requested pages of a KV head, in the order of the requests: pages among the most recently used come from host memory,
    /// others from disk.
    pub(crate) fn count(&mut self, layer: usize, kv_head: usize, pages: &[Range<u32>]) -> TierBytes {
        let mut bytes = TierBytes::default();
        for page in pages.iter().cloned().flatten() {
            let key = (layer as u32, kv_head as u32, page);
            match self.used.get(&key) {
                Some(()) => bytes.host += self.paging.page_bytes,
                None => {
                    self.used.put(key, ());
                    bytes.disk += self.paging.page_bytes;
                }
            }
        }
        bytes
    }

    /// Largest number of bytes that the ledger takes per page.
    pub(crate) const fn bytes_per_page() -> usize {
        Lru::<(u32, u32, u32), ()>::entry_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a list that is searched from its end.
        #[test]
        fn pages_from_memory_are_the_last_ones_used(
            in_memory in 1_usize..9,
            asked in prop::collection::vec((0_usize..2, 0_usize..2, 0_u32..5, 0_u32..4), 0..60),
        ) {
            let mut ledger = PageLedger::new(Paging { page_bytes: 10, in_memory });
            let (mut used, mut expected) = (Vec::new(), TierBytes::default());
            let mut counted = TierBytes::default();
            for (layer, kv_head, first, pages) in asked {
                let run = first..first + pages;
                counted += ledger.count(layer, kv_head, std::slice::from_ref(&run));
                for page in run {
                    let key = (layer, kv_head, page);
                    // The other pages that were used since this one.
                    let since = used.iter().rev().take_while(|own| **own != key);
                    let others: std::collections::BTreeSet<_> = since.collect();
                    match used.contains(&key) && others.len() < in_memory {
                        true => expected.host += 10,
                        false => expected.disk += 10,
                    }
                    used.push(key);
                }
            }
            prop_assert_eq!(counted, expected);
        }
    }

    #[test]
    fn without_memory_all_pages_are_read() {
        let paging = Paging { page_bytes: 7, in_memory: 3 };
        assert_eq!(paging.all_from_disk(&[0..4, 2..3]), TierBytes { disk: 35, ..TierBytes::default() });
    }
}
