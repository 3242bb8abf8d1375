//! How many tokens of a prefix in host memory a GPU's cache holds. The cache itself is in `crates/cuda`.

use super::shape::KvShape;
use spattn_kernels::GPU_SLOT_BYTES;

/// A GPU's caches for one sequence: `bytes` of its memory, divided among the KV heads of all layers that select.
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
}

impl TokenSlots {
    /// Returns the bytes of a KV head's cache without slots: the slot number of each token, and its counters.
    fn fixed_bytes(&self) -> usize {
        self.tokens * size_of::<u32>() + 2 * size_of::<u64>()
    }

    fn slot_bytes(&self) -> usize {
        self.shape.row_bytes() + GPU_SLOT_BYTES
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
        let of = |bytes: usize| TokenSlots { bytes, heads: 256, tokens: 131_072, shape };
        // 2 GiB for 256 heads are 8 MiB each. 512 KiB hold slot numbers; a slot takes 512 bytes for a key and a value, and 16 more.
        assert_eq!(of(2 << 30).of_head(), ((8 << 20) - 4 * 131_072 - 16) / 528);
        let least = of(0).least_bytes();
        assert_eq!((of(least).of_head(), of(least - 1).of_head(), of(0).of_head()), (1, 0, 0));
        assert_eq!(of(1 << 50).of_head(), 131_072, "no more than there are tokens");
    }
}
