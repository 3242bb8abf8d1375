//! Seeds: one value for each example, layer, KV head and position, so that runs are repeatable.

/// Mixes a number into a seed (splitmix64's finaliser over their combination).
pub fn mix_seed(seed: u64, value: u64) -> u64 {
    let mut z = seed ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The values from which the seed of a row (a token of a sequence) is derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSeed {
    /// Seed of the sequence.
    pub run: u64,
    /// Tokens in context, the row's own included.
    pub total: usize,
}

impl RowSeed {
    /// Returns the seed of the row at a KV head of a layer.
    pub fn of_head(self, layer: usize, kv_head: usize) -> u64 {
        mix_seed(head_seed(self.run, layer, kv_head), self.total as u64)
    }
}

pub(crate) fn head_seed(example: u64, layer: usize, kv_head: usize) -> u64 {
    mix_seed(mix_seed(example, layer as u64), kv_head as u64)
}
