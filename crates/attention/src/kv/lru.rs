//! A map of bounded size that evicts the least recently used entry.

use std::hash::Hash;

use lru::LruCache;

/// A map of at most `most` entries: one more replaces the least recently used one. Memory is allocated as entries are added, not in
/// advance.
#[derive(Debug)]
pub(crate) struct Lru<K: Hash + Eq, V> {
    entries: LruCache<K, V>,
    most: usize,
}

impl<K: Hash + Eq + Copy, V> Lru<K, V> {
    /// Creates an empty map for at most `most` entries, but at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: LruCache::unbounded(), most: most.max(1) }
    }

    /// Upper bound of the bytes that an entry takes, without what its value refers to.
    pub(crate) const fn entry_bytes() -> usize {
        // A separate node with two links, and the allocator's overhead. For each place in the hash table two pointers and a byte; after
        // growing, seven of sixteen places are in use.
        const NODE: usize = 2 * size_of::<usize>() + 16;
        const PLACES: usize = (2 * size_of::<usize>() + 1) * 16 / 7 + 1;
        size_of::<(K, V)>() + NODE + PLACES
    }

    /// Returns the value of a key, which becomes the most recently used one.
    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    /// Inserts a value as the most recently used one; it replaces an earlier value of the same key.
    pub(crate) fn put(&mut self, key: K, value: V) {
        if self.entries.len() == self.most && !self.entries.contains(&key) {
            self.entries.pop_lru();
        }
        self.entries.put(key, value);
    }

    /// Removes the entries for whose keys `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let leaving: Vec<K> = self.entries.iter().map(|(key, _)| *key).filter(|key| !keep(key)).collect();
        leaving.iter().for_each(|key| drop(self.entries.pop(key)));
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same map without regard to speed: the most recently used entry is last.
    #[derive(Default)]
    struct Naive(Vec<(u8, u32)>);

    impl Naive {
        fn get(&mut self, key: u8) -> Option<u32> {
            let at = self.0.iter().position(|(own, _)| *own == key)?;
            let entry = self.0.remove(at);
            self.0.push(entry);
            Some(entry.1)
        }

        fn put(&mut self, key: u8, value: u32, most: usize) {
            self.0.retain(|(own, _)| *own != key);
            if self.0.len() == most {
                self.0.remove(0);
            }
            self.0.push((key, value));
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_was_used_last(most in 1_usize..6, calls in prop::collection::vec((0_u8..4, 0_u8..9), 0..200)) {
            let (mut lru, mut naive) = (Lru::new(most), Naive::default());
            for (number, (call, key)) in (0_u32..).zip(calls) {
                match call {
                    0 | 1 => prop_assert_eq!(lru.get(&key).copied(), naive.get(key)),
                    2 => {
                        lru.put(key, number);
                        naive.put(key, number, most);
                    }
                    _ => {
                        lru.retain(|own| own % 3 != key % 3);
                        naive.0.retain(|(own, _)| own % 3 != key % 3);
                    }
                }
                prop_assert_eq!(lru.len(), naive.0.len());
            }
            for (key, value) in naive.0 {
                prop_assert_eq!(lru.get(&key), Some(&value));
            }
        }
    }

    #[test]
    fn what_is_let_go_of_is_dropped_at_once() {
        let value = std::sync::Arc::new(());
        let mut lru = Lru::new(2);
        (0..9).for_each(|key| lru.put(key, value.clone()));
        assert_eq!((lru.len(), std::sync::Arc::strong_count(&value)), (2, 3));
        lru.retain(|_| false);
        assert_eq!((lru.len(), std::sync::Arc::strong_count(&value)), (0, 1));
    }
}
