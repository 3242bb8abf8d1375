//! How many tokens of a prefix in host memory a GPU's caches hold. The caches themselves are in `crates/cuda`.

use super::shape::KvShape;
use spattn_kernels::{GPU_KEY_CACHE_BYTES, GPU_SLOT_BYTES};

/// What a GPU's cache holds of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedPart {
    /// Its key and value, which attention reads.
    KeyAndValue,
    /// Its key, which selection scores.
    Key,
}

impl CachedPart {
    /// Divides the memory for a sequence's caches: for keys and values, and for keys that selection scores. If selection `scores_keys`, these
    /// get three quarters, because a search scores several times as many keys as are selected.
    pub fn divide(bytes: usize, scores_keys: bool) -> [(Self, usize); 2] {
        let for_keys = if scores_keys { bytes - bytes / 4 } else { 0 };
        [(Self::KeyAndValue, bytes - for_keys), (Self::Key, for_keys)]
    }

    /// Returns the least memory that has room for the caches when it is [divided](Self::divide); `of` says how much each needs.
    pub fn least(scores_keys: bool, of: impl Fn(Self) -> usize) -> usize {
        match scores_keys {
            true => (4 * of(Self::KeyAndValue)).max((4 * of(Self::Key)).div_ceil(3)),
            false => of(Self::KeyAndValue),
        }
    }
}

/// A GPU's caches of one kind for one sequence: `bytes` of its memory, divided among the KV heads of all layers that select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSlots {
    /// Bytes for all caches together, including their tables.
    pub bytes: usize,
    /// The number of KV heads that have a cache, over all layers.
    pub heads: usize,
    /// The number of tokens of the prefix.
    pub tokens: usize,
    /// The shape of its keys and values.
    pub shape: KvShape,
    /// Whether a slot has a token's key alone, or its key and value.
    pub part: CachedPart,
}

impl TokenSlots {
    /// Returns the bytes of a KV head's cache without slots: the slot number of each token, and its counters.
    fn fixed_bytes(&self) -> usize {
        let slot_numbers = self.tokens * size_of::<u32>();
        match self.part {
            CachedPart::KeyAndValue => slot_numbers + 2 * size_of::<u64>(),
            // And a bit for each token, in words.
            CachedPart::Key => slot_numbers + self.tokens.div_ceil(32) * size_of::<u32>() + GPU_KEY_CACHE_BYTES,
        }
    }

    fn slot_bytes(&self) -> usize {
        let row = match self.part {
            CachedPart::KeyAndValue => self.shape.row_bytes(),
            CachedPart::Key => self.shape.d * self.shape.dtype.bytes(),
        };
        row + GPU_SLOT_BYTES
    }

    /// Returns how many tokens each KV head can hold, at most all of the prefix; 0 if the caches do not fit.
    pub fn of_head(&self) -> usize {
        let each = self.bytes / self.heads.max(1);
        (each.saturating_sub(self.fixed_bytes()) / self.slot_bytes()).min(self.tokens)
    }

    /// Returns the least `bytes` with which each KV head can hold a token.
    pub fn least_bytes(&self) -> usize {
        self.heads * (self.fixed_bytes() + self.slot_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvDtype;

    #[test]
    fn slots_are_as_many_as_bytes_have_room_for() {
        let shape = KvShape { kv_heads: 8, d: 128, dtype: KvDtype::Bf16 };
        let part = CachedPart::KeyAndValue;
        let of = |bytes: usize| TokenSlots { bytes, heads: 256, tokens: 131_072, shape, part };
        // 2 GiB for 256 heads are 8 MiB each. 512 KiB hold slot numbers; a slot takes 512 bytes for a key and a value, and 16 more.
        assert_eq!(of(2 << 30).of_head(), ((8 << 20) - 4 * 131_072 - 16) / 528);
        let least = of(0).least_bytes();
        assert_eq!((of(least).of_head(), of(least - 1).of_head(), of(0).of_head()), (1, 0, 0));
        assert_eq!(of(1 << 50).of_head(), 131_072, "no more than there are tokens");
        // A key alone takes 256 bytes and 16 more, beside slot numbers, a bit for each token, and counters.
        let keys = TokenSlots { part: CachedPart::Key, ..of(2 << 30) };
        assert_eq!(keys.of_head(), ((8 << 20) - 4 * 131_072 - 131_072 / 8 - 144) / 272);
    }

    #[test]
    fn memory_is_divided_where_keys_are_scored() {
        assert_eq!(CachedPart::divide(1001, false).map(|(_, bytes)| bytes), [1001, 0]);
        assert_eq!(CachedPart::divide(1001, true), [(CachedPart::KeyAndValue, 250), (CachedPart::Key, 751)]);
        let needed = |keys: usize| move |part| if part == CachedPart::Key { keys } else { 250 };
        assert_eq!([751, 752].map(|keys| CachedPart::least(true, needed(keys))), [1002, 1003]);
        assert_eq!(CachedPart::least(false, needed(751)), 250);
        for keys in [1, 749, 750, 751, 752, 2000] {
            let [(_, rest), (_, for_keys)] = CachedPart::divide(CachedPart::least(true, needed(keys)), true);
            assert!(rest >= 250 && for_keys >= keys, "{keys}: {rest} and {for_keys}");
        }
    }
}
