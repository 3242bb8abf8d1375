//! A cache of prefixes that were read, by their tokens. It knows nothing about models: the caller chooses what is cached.

/// A cache of values by token list. The least recently inserted value makes room for a new one.
///
/// A match is taken out of the cache, because a prefix that is continued changes, and one that a run leaves incomplete
/// must not be found again. The calls for an example, in order: [`take_longest_match`](Self::take_longest_match),
/// [`make_room`](Self::make_room) before new memory is allocated, and [`insert`](Self::insert) once the prefix is
/// complete.
#[derive(Debug)]
pub struct PrefixCache<V> {
    capacity: usize,
    /// The entries, the least recently inserted first.
    entries: Vec<(Vec<u32>, V)>,
}

/// A cached prefix that has its first tokens in common with a query.
#[derive(Debug, PartialEq, Eq)]
pub struct PrefixMatch<V> {
    /// The number of first tokens in common.
    pub common: usize,
    /// The number of tokens of the cached prefix, at least `common`.
    pub tokens: usize,
    /// The value that was cached for all of its tokens.
    pub value: V,
}

impl<V> PrefixCache<V> {
    /// Makes an empty cache for at most `capacity` prefixes.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a cache holds at least one prefix");
        Self { capacity, entries: Vec::new() }
    }

    /// The number of cached prefixes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no prefix is cached.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Caches the value of a prefix and returns it. If the cache is full, drops the least recently inserted prefix.
    pub fn insert(&mut self, tokens: Vec<u32>, value: V) -> &mut V {
        self.make_room();
        self.entries.push((tokens, value));
        &mut self.entries.last_mut().expect("it was just inserted").1
    }

    /// Takes out the prefix that has the most first tokens in common with `tokens`, among those that `is_usable`; of
    /// equals, the most recently inserted. `None` if even that has fewer than `at_least` tokens in common.
    pub fn take_longest_match(
        &mut self,
        tokens: &[u32],
        at_least: usize,
        is_usable: impl Fn(&V) -> bool,
    ) -> Option<PrefixMatch<V>> {
        let usable = self.entries.iter().enumerate().filter(|(_, (_, value))| is_usable(value));
        let (common, at) = usable.map(|(at, (cached, _))| (common_beginning(cached, tokens), at)).max()?;
        if common < at_least {
            return None;
        }
        let (cached, value) = self.entries.remove(at);
        Some(PrefixMatch { common, tokens: cached.len(), value })
    }

    /// Drops the prefixes that were inserted first until one more fits. Call this before allocating memory for a new prefix.
    pub fn make_room(&mut self) {
        let over = (self.entries.len() + 1).saturating_sub(self.capacity);
        self.entries.drain(..over);
    }

    /// Drops all prefixes.
    pub fn release(&mut self) {
        self.entries.clear();
    }
}

/// The number of first tokens that both lists have in common.
fn common_beginning(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cache as it is specified, without regard to speed.
    #[derive(Default)]
    struct Naive(Vec<(Vec<u32>, usize)>);

    impl Naive {
        fn common(a: &[u32], b: &[u32]) -> usize {
            (0..=a.len().min(b.len())).rev().find(|n| a[..*n] == b[..*n]).unwrap()
        }

        /// The number of tokens in common, the number of tokens of the cached prefix, and its value.
        fn take(&mut self, tokens: &[u32], at_least: usize) -> Option<(usize, usize, usize)> {
            let mut best: Option<(usize, usize)> = None;
            for at in 0..self.0.len() {
                let (cached, value) = &self.0[at];
                let common = Self::common(cached, tokens);
                let is_best = best.is_none_or(|(of_best, _)| common >= of_best);
                if is_usable(value) && is_best {
                    best = Some((common, at));
                }
            }
            let (common, at) = best.filter(|(common, _)| *common >= at_least)?;
            let (cached, value) = self.0.remove(at);
            Some((common, cached.len(), value))
        }
    }

    fn is_usable(value: &usize) -> bool {
        !value.is_multiple_of(5)
    }

    proptest! {
        #[test]
        fn a_cache_gives_what_a_naive_list_gives(
            capacity in 1usize..5,
            at_least in 0usize..4,
            calls in prop::collection::vec((any::<bool>(), prop::collection::vec(0u32..2, 0..6)), 0..40),
        ) {
            let (mut cache, mut naive) = (PrefixCache::new(capacity), Naive::default());
            for (number, (inserts, tokens)) in calls.into_iter().enumerate() {
                if inserts {
                    prop_assert_eq!(*cache.insert(tokens.clone(), number), number);
                    naive.0.push((tokens, number));
                    let len = naive.0.len();
                    naive.0 = naive.0.split_off(len.saturating_sub(capacity));
                } else {
                    let found = cache.take_longest_match(&tokens, at_least, is_usable);
                    let found = found.map(|found| (found.common, found.tokens, found.value));
                    prop_assert_eq!(found, naive.take(&tokens, at_least));
                }
                prop_assert_eq!(&cache.entries, &naive.0);
            }
        }
    }

    #[test]
    fn room_is_made_by_releasing_the_oldest() {
        let mut cache = PrefixCache::new(2);
        cache.make_room();
        cache.insert(vec![1], 'a');
        cache.make_room();
        assert_eq!(cache.len(), 1, "there was room");
        cache.insert(vec![2], 'b');
        cache.make_room();
        assert_eq!(cache.entries, [(vec![2], 'b')]);
        cache.release();
        assert!(cache.is_empty() && cache.take_longest_match(&[2], 0, |_| true).is_none());
    }
}
