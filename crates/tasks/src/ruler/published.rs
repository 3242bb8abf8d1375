//! The published generator's fixed shuffles, for `positions = "published"`.
//!
//! For every example, RULER shuffles with a new `random.Random(42)` of CPython, so lists of equal length always get the same order. In
//! `qa`, the depth of the document with the answer depends only on the number of documents; in `cwe` and `fwe`, the answer's words
//! have the same places in every example. This file reproduces that order: the Mersenne Twister (Matsumoto and Nishimura 1998) with
//! CPython's seeding and its documented shuffle.

/// The published `random_seed`.
pub const SEED: u32 = 42;

const SIZE: usize = 624;
const MIDDLE: usize = 397;

/// The order into which `random.Random(42).shuffle` puts `0..count`.
pub fn order(count: usize) -> Vec<usize> {
    let mut twister = Twister::new(SEED);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, twister.below(last + 1));
    }
    order
}

struct Twister {
    state: [u32; SIZE],
    next: usize,
}

impl Twister {
    /// Seeds from a key of one word, like CPython for small integers.
    fn new(key: u32) -> Self {
        let mut state = Self::from_word(19_650_218);
        let mut i = 1;
        for _ in 0..SIZE {
            let mixed = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_664_525);
            state[i] = (state[i] ^ mixed).wrapping_add(key);
            i = Self::advance(&mut state, i);
        }
        for _ in 0..SIZE - 1 {
            let mixed = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_566_083_941);
            state[i] = (state[i] ^ mixed).wrapping_sub(i as u32);
            i = Self::advance(&mut state, i);
        }
        state[0] = 0x8000_0000;
        Self { state, next: SIZE }
    }

    fn from_word(word: u32) -> [u32; SIZE] {
        let mut state = [word; SIZE];
        for i in 1..SIZE {
            let before = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i as u32);
        }
        state
    }

    fn advance(state: &mut [u32; SIZE], i: usize) -> usize {
        if i + 1 < SIZE {
            return i + 1;
        }
        state[0] = state[SIZE - 1];
        1
    }

    fn word(&mut self) -> u32 {
        if self.next == SIZE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..SIZE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % SIZE] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + MIDDLE) % SIZE] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// A number in `0..bound`: draws just enough bits until the result is below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        let bits = usize::BITS - bound.leading_zeros();
        loop {
            let drawn = (self.word() >> (32 - bits)) as usize;
            if drawn < bound {
                return drawn;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cpythons() {
        // Four calls of random.Random(42).getrandbits(32).
        let mut twister = Twister::new(42);
        let words: Vec<u32> = (0..4).map(|_| twister.word()).collect();
        assert_eq!(words, [2_746_317_213, 478_163_327, 107_420_369, 3_184_935_163]);
    }

    #[test]
    fn shuffles_are_cpythons() {
        // l = list(range(n)); random.Random(42).shuffle(l)
        assert_eq!(order(5), [3, 1, 2, 4, 0]);
        assert_eq!(order(200)[..5], [66, 187, 101, 193, 111]);
        for (count, first_goes_to) in
            [(20, 18), (40, 29), (60, 26), (80, 50), (120, 84), (200, 55), (400, 234), (800, 625)]
        {
            assert_eq!(order(count).iter().position(|&i| i == 0), Some(first_goes_to), "{count}");
        }
        assert!(order(0).is_empty() && order(1) == [0]);
    }
}
