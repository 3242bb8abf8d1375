//! Rotary position embedding (RoPE): frequencies of each scaling variant, tables of cos and sin, and rotation.
//!
//! All variants follow the arithmetic of the reference implementation (Hugging Face transformers) and round to `f32` at the same places: at
//! position 100,000, one unit in the last place of a frequency changes the angle by several thousandths. The first channels of a head, or
//! all of them, are rotated in pairs of two halves or of neighbours ([`RopePairs`]). [`config`](super::config) parses the parameters.

use std::f64::consts::PI;

use rayon::prelude::*;

use super::config::{RopeConfig, RopeScaling, YarnScaling};
use super::families::RopePairs;
use spattn_attention::Rotation;

/// The frequencies of one of a model's rotary embeddings.
#[derive(Debug, Clone)]
pub struct Rope {
    config: RopeConfig,
    rotated: usize,
    max_positions: usize,
    pairs: RopePairs,
}

impl Rope {
    /// RoPE for heads whose first `rotated` channels (an even number) are rotated, in pairs of two halves. `max_positions` is
    /// `max_position_embeddings` of the config, which is the trained length for `dynamic` scaling.
    pub fn new(config: &RopeConfig, rotated: usize, max_positions: usize) -> Self {
        Self { config: config.clone(), rotated, max_positions, pairs: RopePairs::Halves }
    }

    /// The same with other pairs of channels.
    pub fn with_pairs(self, pairs: RopePairs) -> Self {
        Self { pairs, ..self }
    }

    /// The number of rotated channels of a head.
    pub fn rotated(&self) -> usize {
        self.rotated
    }

    /// The longest sequence up to which its [frequencies](Self::frequencies) do not change as it grows; `None` if they never do.
    ///
    /// Only those of `dynamic` scaling change. The reference recomputes them from the length of each forward pass and leaves cached keys
    /// unchanged. So prompt tokens are rotated with the frequencies for the prompt's length, and each generated token with those for the
    /// length up to and including it.
    pub fn fixed_up_to(&self) -> Option<usize> {
        match self.config.scaling {
            RopeScaling::Dynamic { .. } => Some(self.max_positions),
            _ => None,
        }
    }

    /// The length whose [frequencies](Self::frequencies) rotate the token at `position`, which is in a prompt of `prompt_tokens` or after
    /// it.
    ///
    /// For `longrope` it is the prompt's length, however long the answer is. The reference would recompute everything when an answer grows
    /// beyond the trained length.
    pub fn length_at(&self, prompt_tokens: usize, position: usize) -> usize {
        match self.fixed_up_to() {
            Some(_) => prompt_tokens.max(position + 1),
            None => prompt_tokens,
        }
    }

    /// Whether sequences of two lengths have the same [frequencies](Self::frequencies).
    pub fn same_for(&self, one: usize, other: usize) -> bool {
        match &self.config.scaling {
            RopeScaling::Dynamic { .. } => one.max(self.max_positions) == other.max(self.max_positions),
            RopeScaling::LongRope(scaling) => scaling.is_long(one) == scaling.is_long(other),
            _ => true,
        }
    }

    /// The inverse frequencies (radians per position, one for each pair of channels) for a sequence of `sequence_length` tokens, and the
    /// factor on cos and sin.
    pub fn frequencies(&self, sequence_length: usize) -> (Vec<f32>, f32) {
        let theta = self.config.theta;
        match &self.config.scaling {
            RopeScaling::Default => (self.inverse(theta), 1.0),
            RopeScaling::Linear { factor } => {
                let factor = *factor as f32;
                (self.inverse(theta).into_iter().map(|f| f / factor).collect(), 1.0)
            }
            RopeScaling::Dynamic { factor } => (self.inverse(self.dynamic_theta(*factor, sequence_length)), 1.0),
            RopeScaling::Yarn(yarn) => (self.yarn(yarn), yarn_attention_factor(yarn) as f32),
            RopeScaling::LongRope(scaling) => {
                let periods = self.periods(theta).zip(scaling.factors(sequence_length));
                (
                    periods.map(|(period, factor)| 1.0 / (*factor as f32 * period)).collect(),
                    scaling.attention_factor as f32,
                )
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let band = Llama3Band {
                    factor: *factor as f32,
                    low: *low_freq_factor,
                    high: *high_freq_factor,
                    original: *original_max_positions as f64,
                };
                (self.inverse(theta).into_iter().map(|f| band.scale(f)).collect(), 1.0)
            }
        }
    }

    /// Writes cos and sin (one for each pair of channels) for one position in a sequence of `sequence_length` tokens.
    pub fn row(&self, position: usize, sequence_length: usize, cos: &mut [f32], sin: &mut [f32]) {
        let (inverse, scaling) = self.frequencies(sequence_length);
        fill_row(&inverse, scaling, position, cos, sin);
    }

    /// `theta^(2i/d)` for each pair `i`.
    fn periods(&self, theta: f64) -> impl Iterator<Item = f32> {
        // The reference computes powers in f32. Rounding an f64 once agrees to the last place, on any platform.
        let (d, theta) = (self.rotated, f64::from(theta as f32));
        (0..d / 2).map(move |i| theta.powf(f64::from((2 * i) as f32 / d as f32)) as f32)
    }

    fn inverse(&self, theta: f64) -> Vec<f32> {
        self.periods(theta).map(|p| 1.0 / p).collect()
    }

    /// The base of NTK scaling for a sequence longer than the trained length.
    fn dynamic_theta(&self, factor: f64, sequence_length: usize) -> f64 {
        let (theta, d) = (self.config.theta, self.rotated as f64);
        if sequence_length <= self.max_positions || self.rotated <= 2 {
            return theta;
        }
        let lengths = factor as f32 * sequence_length as f32 / self.max_positions as f32;
        let stretch = lengths - (factor - 1.0) as f32;
        let grown = f64::from(stretch).powf(f64::from((d / (d - 2.0)) as f32)) as f32;
        f64::from(theta as f32 * grown)
    }

    /// YaRN: "NTK by parts" of Peng et al. 2023, §3.2.
    fn yarn(&self, yarn: &YarnScaling) -> Vec<f32> {
        let (low, high) = yarn_ramp(yarn, self.rotated, self.config.theta);
        let factor = yarn.factor as f32;
        let blend = |(i, period): (usize, f32)| {
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            (1.0 / (factor * period)) * (1.0 - keep) + (1.0 / period) * keep
        };
        self.periods(self.config.theta).enumerate().map(blend).collect()
    }
}

fn yarn_attention_factor(yarn: &YarnScaling) -> f64 {
    let grow = |mscale: f64| if yarn.factor <= 1.0 { 1.0 } else { 0.1 * mscale * yarn.factor.ln() + 1.0 };
    if let Some(stated) = yarn.attention_factor {
        return stated;
    }
    match (yarn.mscale, yarn.mscale_all_dim) {
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => grow(one) / grow(all),
        _ => grow(1.0),
    }
}

/// First and last pair of YaRN's ramp, from unchanged frequencies to divided ones.
fn yarn_ramp(yarn: &YarnScaling, rotated: usize, theta: f64) -> (f64, f64) {
    let d = rotated as f64;
    let pair_of =
        |rotations: f64| d * (yarn.original_max_positions as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (pair_of(yarn.beta_fast), pair_of(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(d - 1.0));
    // A ramp of width zero would divide by zero.
    if low == high { (low, high + 0.001) } else { (low, high) }
}

struct Llama3Band {
    factor: f32,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3Band {
    fn scale(&self, frequency: f32) -> f32 {
        let wavelength = (2.0 * PI) as f32 / frequency;
        if wavelength < (self.original / self.high) as f32 {
            frequency
        } else if wavelength > (self.original / self.low) as f32 {
            frequency / self.factor
        } else {
            let smooth = (self.original as f32 / wavelength - self.low as f32) / (self.high - self.low) as f32;
            (1.0 - smooth) * frequency / self.factor + smooth * frequency
        }
    }
}

/// Cos and sin for positions `0..len`, computed once and extended on demand.
///
/// The frequencies are those for one sequence length. If they depend on it ([`Rope::fixed_up_to`]), a longer sequence needs another table.
#[derive(Debug, Clone)]
pub struct RopeTable {
    inverse: Vec<f32>,
    scaling: f32,
    pairs: RopePairs,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Positions for each unit of parallel work.
const PIECE: usize = 256;

impl RopeTable {
    /// An empty table with the frequencies of a sequence of `sequence_length` tokens.
    pub fn new(rope: &Rope, sequence_length: usize) -> Self {
        let (inverse, scaling) = rope.frequencies(sequence_length);
        Self { inverse, scaling, pairs: rope.pairs, cos: Vec::new(), sin: Vec::new() }
    }

    /// Number of positions in the table.
    pub fn len(&self) -> usize {
        self.cos.len().checked_div(self.inverse.len()).unwrap_or(0)
    }

    /// Whether the table holds no position yet.
    pub fn is_empty(&self) -> bool {
        self.cos.is_empty()
    }

    /// Extends the table to positions `0..positions`, if it is shorter.
    pub fn grow(&mut self, positions: usize) {
        let (have, half) = (self.len(), self.inverse.len());
        if positions <= have {
            return;
        }
        self.cos.resize(positions * half, 0.0);
        self.sin.resize(positions * half, 0.0);
        let new =
            self.cos[have * half..].par_chunks_exact_mut(half).zip(self.sin[have * half..].par_chunks_exact_mut(half));
        let (inverse, scaling) = (&self.inverse, self.scaling);
        new.enumerate().with_min_len(PIECE).for_each(|(i, (cos, sin))| fill_row(inverse, scaling, have + i, cos, sin));
    }

    /// Rotates one head in place for `position`, which must be below [`len`](Self::len).
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        apply(x, self.cos(position), self.sin(position), self.pairs);
    }

    /// Cos for one position, with a value for each pair of channels. The position must be below [`len`](Self::len).
    pub fn cos(&self, position: usize) -> &[f32] {
        let half = self.inverse.len();
        &self.cos[position * half..(position + 1) * half]
    }

    /// Sin for one position, with a value for each pair of channels. The position must be below [`len`](Self::len).
    pub fn sin(&self, position: usize) -> &[f32] {
        let half = self.inverse.len();
        &self.sin[position * half..(position + 1) * half]
    }
}

/// Moves rotated heads to other positions, with the frequencies that they were rotated with.
#[derive(Debug, Clone)]
pub struct Turn {
    inverse: Vec<f32>,
    pairs: RopePairs,
}

impl Turn {
    /// The rotation for heads of a sequence that grows from a prompt of `prompt_tokens` to `tokens`. `None` if the frequencies change
    /// within it, since then no single turn maps one position to another.
    pub fn new(rope: &Rope, prompt_tokens: usize, tokens: usize) -> Option<Self> {
        let fixed = rope.fixed_up_to().is_none_or(|limit| tokens <= limit);
        fixed.then(|| Self { inverse: rope.frequencies(prompt_tokens).0, pairs: rope.pairs })
    }
}

impl Rotation for Turn {
    fn turn_back(&self, x: &mut [f32], positions: usize) {
        self.turn_rows_back(x, x.len(), positions);
    }

    fn turn_rows_back(&self, rows: &mut [f32], d: usize, positions: usize) {
        let (sin, cos): (Vec<f32>, Vec<f32>) =
            self.inverse.iter().map(|frequency| (positions as f32 * frequency).sin_cos()).unzip();
        let backwards: Vec<f32> = sin.into_iter().map(|sin| -sin).collect();
        rows.chunks_exact_mut(d).for_each(|row| apply(row, &cos, &backwards, self.pairs));
    }
}

fn fill_row(inverse: &[f32], scaling: f32, position: usize, cos: &mut [f32], sin: &mut [f32]) {
    for ((frequency, cos), sin) in inverse.iter().zip(cos).zip(sin) {
        let (s, c) = (position as f32 * frequency).sin_cos();
        (*cos, *sin) = (c * scaling, s * scaling);
    }
}

/// Rotates one head in place: the first `2n` channels of `x`, for `n` values in `cos` and in `sin`.
pub fn apply(x: &mut [f32], cos: &[f32], sin: &[f32], pairs: RopePairs) {
    let (x, n) = (&mut x[..2 * cos.len()], cos.len());
    match pairs {
        RopePairs::Halves => {
            let (first, second) = x.split_at_mut(n);
            for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        }
        RopePairs::Neighbours => {
            for ((pair, c), s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LongRopeScaling;

    fn plain(theta: f64) -> RopeConfig {
        RopeConfig { theta, scaling: RopeScaling::Default }
    }

    #[test]
    fn rotation_keeps_the_norm_and_depends_on_distance_only() {
        let rope = Rope::new(&plain(10_000.0), 8, 64);
        let mut table = RopeTable::new(&rope, 64);
        table.grow(64);
        let q: Vec<f32> = (0..8).map(|i| (i as f32 * 0.7).sin()).collect();
        let k: Vec<f32> = (0..8).map(|i| (i as f32 * 1.3).cos()).collect();
        let dot_at = |m: usize, n: usize| {
            let (mut a, mut b) = (q.clone(), k.clone());
            table.rotate(&mut a, m);
            table.rotate(&mut b, n);
            a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>()
        };
        assert!((dot_at(5, 3) - dot_at(50, 48)).abs() < 1e-5);
        assert!((dot_at(9, 9) - dot_at(0, 0)).abs() < 1e-5);
        assert!((dot_at(5, 3) - dot_at(5, 4)).abs() > 1e-3);
    }

    #[test]
    fn turning_back_is_being_rotated_at_an_earlier_position() {
        let yarn = YarnScaling {
            factor: 4.0,
            original_max_positions: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            attention_factor: None,
            truncate: true,
        };
        for scaling in [RopeScaling::Default, RopeScaling::Yarn(yarn), RopeScaling::Dynamic { factor: 2.0 }] {
            let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling }, 16, 400);
            let mut table = RopeTable::new(&rope, 400);
            table.grow(400);
            let plain: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin() + 0.2).collect();
            let at = |position: usize| {
                let mut x = plain.clone();
                table.rotate(&mut x, position);
                x
            };
            for (from, back) in [(399, 0), (399, 1), (300, 257), (77, 77)] {
                let turn = Turn::new(&rope, 400, 400).unwrap();
                let mut turned = at(from);
                turn.turn_back(&mut turned, back);
                for (a, b) in turned.iter().zip(at(from - back)) {
                    assert!((a - b).abs() < 1e-4, "{a} against {b}");
                }
                let (mut rows, mut other) = ([at(from), plain.clone()].concat(), plain.clone());
                turn.turn_back(&mut other, back);
                turn.turn_rows_back(&mut rows, 16, back);
                assert_eq!(rows, [turned, other].concat(), "rows turn as they do alone");
            }
        }
    }

    #[test]
    fn nothing_turns_where_frequencies_change_with_the_length() {
        let scaling = RopeScaling::Dynamic { factor: 2.0 };
        let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling }, 16, 100);
        assert!(Turn::new(&rope, 100, 100).is_some() && Turn::new(&rope, 100, 101).is_none());
    }

    #[test]
    fn pairs_are_half_a_head_apart() {
        let mut x = vec![1.0, 0.0, 0.0, 0.0];
        apply(&mut x, &[0.0, 1.0], &[1.0, 0.0], RopePairs::Halves);
        assert_eq!(x, [0.0, 0.0, 1.0, 0.0]);
        let mut x = vec![1.0, 0.0, 1.0, 0.0];
        apply(&mut x, &[0.0, 1.0], &[1.0, 0.0], RopePairs::Neighbours);
        assert_eq!(x, [0.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn channels_behind_the_rotated_ones_stay_as_they_are() {
        for pairs in [RopePairs::Halves, RopePairs::Neighbours] {
            let rope = Rope::new(&plain(10_000.0), 4, 64).with_pairs(pairs);
            let mut table = RopeTable::new(&rope, 64);
            table.grow(64);
            let head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            let mut x = head;
            table.rotate(&mut x, 9);
            assert!(x[..4].iter().zip(&head).all(|(a, b)| (a - b).abs() > 1e-3) && x[4..] == head[4..], "{x:?}");
            Turn::new(&rope, 64, 64).unwrap().turn_back(&mut x, 9);
            assert!(x.iter().zip(&head).all(|(a, b)| (a - b).abs() < 1e-5), "{x:?}");
        }
    }

    #[test]
    fn long_factors_are_those_of_prompts_beyond_the_trained_length() {
        let scaling = LongRopeScaling {
            short_factor: vec![1.0; 4],
            long_factor: vec![2.0; 4],
            original_max_positions: 100,
            attention_factor: 1.5,
        };
        let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling: RopeScaling::LongRope(scaling) }, 8, 400);
        let plain = Rope::new(&plain(10_000.0), 8, 400).frequencies(1).0;
        assert_eq!(rope.frequencies(100), (plain.clone(), 1.5));
        assert_eq!(rope.frequencies(101), (plain.iter().map(|f| f / 2.0).collect(), 1.5));
        assert!(rope.same_for(1, 100) && !rope.same_for(100, 101) && rope.same_for(101, 400));
        // An answer keeps the frequencies of its prompt.
        assert_eq!((rope.length_at(90, 120), rope.fixed_up_to()), (90, None));
        assert_eq!(Turn::new(&rope, 90, 120).unwrap().inverse, plain);
    }

    #[test]
    fn a_table_grows_without_changing_what_it_has() {
        let rope = Rope::new(&plain(500_000.0), 16, 64);
        let (mut small, mut large) = (RopeTable::new(&rope, 64), RopeTable::new(&rope, 64));
        small.grow(3);
        small.grow(2);
        assert_eq!(small.len(), 3);
        small.grow(40);
        large.grow(40);
        assert_eq!(small.cos, large.cos);
        let (mut cos, mut sin) = ([0.0; 8], [0.0; 8]);
        rope.row(39, 40, &mut cos, &mut sin);
        assert_eq!((&cos[..], &sin[..]), (large.cos(39), large.sin(39)));
    }

    #[test]
    fn dynamic_frequencies_change_only_beyond_the_trained_length() {
        let scaling = RopeScaling::Dynamic { factor: 2.0 };
        let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling }, 16, 100);
        assert_eq!(rope.fixed_up_to(), Some(100));
        assert_eq!(rope.frequencies(1), rope.frequencies(100));
        assert_ne!(rope.frequencies(100), rope.frequencies(101));
    }
}
