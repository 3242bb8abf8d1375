//! A map of bounded size that lets go of what was used least recently.

use std::collections::HashMap;
use std::hash::Hash;

/// No entry.
const NONE: u32 = u32::MAX;

/// A map of at most so many entries: one more replaces the least recently used one.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    places: HashMap<K, u32>,
    entries: Vec<Entry<K, V>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    most: usize,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    /// `None` while the entry is free.
    value: Option<V>,
    /// The entry that was used next after this one.
    newer: u32,
    older: u32,
}

impl<K: Hash + Eq + Copy, V> Lru<K, V> {
    /// An empty map of `most` entries at most, and of one at least.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.clamp(1, NONE as usize - 1);
        Self { places: HashMap::new(), entries: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE, most }
    }

    /// Bytes that an entry takes beside what its value refers to, at most.
    pub(crate) const fn entry_bytes() -> usize {
        // A hash table is at least half full; each of its places has a byte of its own.
        size_of::<Entry<K, V>>() + 2 * (size_of::<(K, u32)>() + 1)
    }

    /// The value of a key, which is then the most recently used one.
    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        let place = *self.places.get(key)?;
        self.unlink(place);
        self.link_newest(place);
        self.entries[place as usize].value.as_ref()
    }

    /// Puts in a value as the most recently used one, in place of an earlier one of the same key.
    pub(crate) fn put(&mut self, key: K, value: V) {
        if let Some(place) = self.places.get(&key).copied() {
            self.unlink(place);
            self.link_newest(place);
            self.entries[place as usize].value = Some(value);
            return;
        }
        if self.places.len() == self.most {
            self.remove(self.oldest);
        }
        let entry = Entry { key, value: Some(value), newer: NONE, older: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places.insert(key, place);
        self.link_newest(place);
    }

    /// Lets go of the entries whose keys are not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let leaving: Vec<u32> = self.places.iter().filter(|(key, _)| !keep(key)).map(|(_, place)| *place).collect();
        leaving.into_iter().for_each(|place| self.remove(place));
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    fn remove(&mut self, place: u32) {
        self.unlink(place);
        let entry = &mut self.entries[place as usize];
        entry.value = None;
        self.places.remove(&entry.key);
        self.free.push(place);
    }

    fn unlink(&mut self, place: u32) {
        let Entry { newer, older, .. } = self.entries[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        let entry = &mut self.entries[place as usize];
        (entry.newer, entry.older) = (NONE, older);
        match older {
            NONE => self.oldest = place,
            older => self.entries[older as usize].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, written down without regard to speed: the most recently used entry last.
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
        assert_eq!(lru.entries.len(), 2, "places are used again");
    }
}
