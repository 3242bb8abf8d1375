//! Rows of one KV head as codes of a few bits, from which any token can be read.
//!
//! [`PackedRows`] are either codes between a minimum and a step, `x ≈ min + step · code`, as in KIVI (§3), or 8-bit floats (e4m3) with
//! one scale. The codes of a token are adjacent, so that gathering a token reads one row. This module knows nothing of prefixes or
//! layers. The codes of [`quantised`](crate::kv::quantised) have another format: they are stored channel by channel in groups of 128
//! tokens, for products with all of them, and their ranges are 32-bit floats.

use std::ops::Range;
use std::sync::LazyLock;

use half::f16;

use crate::kv::prefix_dtype::{GROUP, PrefixDtype, RANGE_BYTES};
use crate::kv::quantised::unpack;

/// What the numbers that share a range have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// A channel, over a group of tokens: for keys, in which a few channels are far larger than the rest.
    Channel,
    /// A token, over a group of channels: for values.
    Token,
}

/// Rows `[token][d]` of the keys, or of the values, of a KV head.
#[derive(Debug)]
pub(super) enum PackedRows {
    /// Codes with a range for each group.
    Codes(CodeRows),
    /// 8-bit floats with one scale.
    Floats(FloatRows),
}

impl PackedRows {
    /// Reserves room for `tokens` rows of `d` numbers. If one scale serves all numbers, `largest` is their [largest
    /// magnitude](Self::largest).
    ///
    /// # Panics
    /// If `dtype` packs nothing.
    pub(super) fn empty(dtype: PrefixDtype, axis: Axis, (tokens, d): (usize, usize), largest: f32) -> Self {
        match dtype {
            PrefixDtype::Model => panic!("the model's own type packs nothing"),
            PrefixDtype::F8 => Self::Floats(FloatRows::empty(tokens, d, largest)),
            PrefixDtype::Q8 => Self::Codes(CodeRows::empty(8, axis, tokens, d)),
            PrefixDtype::Q4 => Self::Codes(CodeRows::empty(4, axis, tokens, d)),
            PrefixDtype::Q2 => Self::Codes(CodeRows::empty(2, axis, tokens, d)),
        }
    }

    /// Returns the largest magnitude of some numbers if `dtype` has one scale for all, otherwise 0.
    pub(super) fn largest(dtype: PrefixDtype, numbers: &[f32]) -> f32 {
        match dtype {
            PrefixDtype::F8 => numbers.iter().fold(0.0, |most, x| x.abs().max(most)),
            _ => 0.0,
        }
    }

    /// Appends `rows: [token][d]`; if ranges are over tokens, whole groups of tokens.
    ///
    /// # Panics
    /// If the rows, or the groups, are not whole.
    pub(super) fn push(&mut self, rows: &[f32]) {
        match self {
            Self::Codes(packed) => packed.push(rows),
            Self::Floats(packed) => packed.codes.extend(rows.iter().map(|x| f8_of(x / packed.scale))),
        }
    }

    /// Decodes some tokens into numbers `[token][d]`.
    pub(super) fn read(&self, tokens: Range<usize>, out: &mut [f32]) {
        match self {
            Self::Codes(rows) => rows.read(tokens, out),
            Self::Floats(rows) => rows.read(tokens, out),
        }
    }

    /// Bytes of codes and scales.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Codes(rows) => rows.codes.len() + size_of_val(rows.ranges.as_slice()),
            Self::Floats(rows) => rows.codes.len() + size_of::<f32>(),
        }
    }
}

// The bytes counted for a range must be those that it takes.
const _: () = assert!(size_of::<CodeRange>() == RANGE_BYTES);

/// The range that codes are decoded with: `min + step · code`, both in 16 bits as in KIVI.
#[derive(Debug, Clone, Copy, Default)]
struct CodeRange {
    min: f16,
    step: f16,
}

impl CodeRange {
    /// Computes the range of some values, for codes up to `top`. Rounding to 16 bits only widens the range, so no value is off by more
    /// than half a step; values beyond 16 bits (above 65,504) are clamped.
    fn of(values: impl Iterator<Item = f32>, top: f32) -> Self {
        let ends = |(low, high): (f32, f32), x: f32| (low.min(x), high.max(x));
        let (low, high) = values.fold((f32::INFINITY, f32::NEG_INFINITY), ends);
        let min = floor16(low);
        Self { min, step: ceil16((high - min.to_f32()) / top) }
    }

    fn widened(self) -> [f32; 2] {
        [self.min.to_f32(), self.step.to_f32()]
    }
}

/// Returns the largest finite 16-bit number that is not above `x`, or the smallest of all.
fn floor16(x: f32) -> f16 {
    let most = f16::MAX.to_f32();
    let near = f16::from_f32(x.clamp(-most, most));
    match near.to_f32() > x {
        false => near,
        true if near.to_bits() & 0x7fff == 0 => f16::from_bits(0x8001),
        true if near.is_sign_negative() => f16::from_bits(near.to_bits() + 1).max(f16::MIN),
        true => f16::from_bits(near.to_bits() - 1),
    }
}

/// Returns the smallest finite 16-bit number that is not below `x`, which is not negative, or the largest of all.
fn ceil16(x: f32) -> f16 {
    let near = f16::from_f32(x.min(f16::MAX.to_f32()));
    match near.to_f32() < x {
        true => f16::from_bits(near.to_bits() + 1).min(f16::MAX),
        false => near,
    }
}

/// Returns the nearest code, up to `top`, of a value in a range.
fn code_of(x: f32, [min, step]: [f32; 2], top: f32) -> u8 {
    if step <= 0.0 {
        return 0;
    }
    ((x - min) / step).round_ties_even().clamp(0.0, top) as u8
}

/// Codes of 2, 4 or 8 bits.
#[derive(Debug)]
pub(super) struct CodeRows {
    bits: usize,
    axis: Axis,
    d: usize,
    /// The codes `[token][channel]`, from the lowest bits of a byte up. A token takes whole bytes.
    codes: Vec<u8>,
    /// The ranges `[group of tokens][channel]`, or `[token][group of channels]`.
    ranges: Vec<CodeRange>,
}

impl CodeRows {
    fn empty(bits: usize, axis: Axis, tokens: usize, d: usize) -> Self {
        let ranges = match axis {
            Axis::Channel => tokens.div_ceil(GROUP) * d,
            Axis::Token => tokens * d.div_ceil(GROUP),
        };
        let codes = Vec::with_capacity(tokens * (d * bits).div_ceil(8));
        Self { bits, axis, d, codes, ranges: Vec::with_capacity(ranges) }
    }

    fn push(&mut self, rows: &[f32]) {
        let unit = match self.axis {
            Axis::Channel => GROUP * self.d,
            Axis::Token => self.d,
        };
        assert!(rows.len().is_multiple_of(unit), "whole rows and groups");
        rows.chunks_exact(unit).for_each(|rows| match self.axis {
            Axis::Channel => self.push_by_channel(rows),
            Axis::Token => self.push_by_token(rows),
        });
    }

    fn top(&self) -> f32 {
        ((1u32 << self.bits) - 1) as f32
    }

    /// Packs a group of tokens, with a range for each channel.
    fn push_by_channel(&mut self, group: &[f32]) {
        let (d, top) = (self.d, self.top());
        let of_channel = |channel| CodeRange::of(group.iter().skip(channel).step_by(d).copied(), top);
        let ranges: Vec<CodeRange> = (0..d).map(of_channel).collect();
        let widened: Vec<[f32; 2]> = ranges.iter().map(|range| range.widened()).collect();
        for row in group.chunks_exact(d) {
            let codes: Vec<u8> = row.iter().zip(&widened).map(|(x, range)| code_of(*x, *range, top)).collect();
            self.push_codes(&codes);
        }
        self.ranges.extend(ranges);
    }

    /// Packs a token, with a range for each group of channels.
    fn push_by_token(&mut self, row: &[f32]) {
        let (mut codes, top) = (Vec::with_capacity(self.d), self.top());
        for group in row.chunks(GROUP) {
            let range = CodeRange::of(group.iter().copied(), top);
            codes.extend(group.iter().map(|x| code_of(*x, range.widened(), top)));
            self.ranges.push(range);
        }
        self.push_codes(&codes);
    }

    /// Appends the codes of a token.
    fn push_codes(&mut self, codes: &[u8]) {
        let of_byte = |codes: &[u8]| codes.iter().rev().fold(0u16, |byte, code| byte << self.bits | u16::from(*code));
        self.codes.extend(codes.chunks(8 / self.bits).map(|codes| of_byte(codes) as u8));
    }

    fn read(&self, tokens: Range<usize>, out: &mut [f32]) {
        let row_bytes = (self.d * self.bits).div_ceil(8);
        let codes = self.codes[tokens.start * row_bytes..tokens.end * row_bytes].chunks_exact(row_bytes);
        out.chunks_exact_mut(self.d).zip(codes).for_each(|(row, codes)| self.unpack(codes, row));
        match self.axis {
            Axis::Channel => self.scale_by_channel(tokens, out),
            Axis::Token => self.scale_by_token(tokens, out),
        }
    }

    fn unpack(&self, codes: &[u8], row: &mut [f32]) {
        match self.bits {
            8 => row.iter_mut().zip(codes).for_each(|(x, code)| *x = f32::from(*code)),
            bits => unpack(codes, bits, row),
        }
    }

    fn scale_by_channel(&self, tokens: Range<usize>, mut out: &mut [f32]) {
        let (mut first, mut of_group) = (tokens.start, Vec::with_capacity(self.d));
        while first < tokens.end {
            let group = first / GROUP;
            let end = tokens.end.min((group + 1) * GROUP);
            let (own, rest) = out.split_at_mut((end - first) * self.d);
            of_group.clear();
            of_group.extend(self.ranges[group * self.d..][..self.d].iter().map(|range| range.widened()));
            for row in own.chunks_exact_mut(self.d) {
                row.iter_mut().zip(&of_group).for_each(|(x, [min, step])| *x = min + step * *x);
            }
            (first, out) = (end, rest);
        }
    }

    fn scale_by_token(&self, tokens: Range<usize>, out: &mut [f32]) {
        let groups = self.d.div_ceil(GROUP);
        let ranges = self.ranges[tokens.start * groups..tokens.end * groups].chunks_exact(groups);
        for (row, ranges) in out.chunks_exact_mut(self.d).zip(ranges) {
            for (group, range) in row.chunks_mut(GROUP).zip(ranges) {
                let [min, step] = range.widened();
                group.iter_mut().for_each(|x| *x = min + step * *x);
            }
        }
    }
}

/// The largest 8-bit float (e4m3).
const F8_MAX: f32 = 448.0;

/// 8-bit floats with 4 bits of exponent and 3 of mantissa (e4m3, without infinities), and one scale that maps the number of the largest
/// magnitude to the largest float.
#[derive(Debug)]
pub(super) struct FloatRows {
    d: usize,
    scale: f32,
    codes: Vec<u8>,
}

impl FloatRows {
    fn empty(tokens: usize, d: usize, largest: f32) -> Self {
        // If all numbers are zero, or too small for a scale, all codes are zero.
        let scale = if largest / F8_MAX > f32::MIN_POSITIVE { largest / F8_MAX } else { 1.0 };
        Self { d, scale, codes: Vec::with_capacity(tokens * d) }
    }

    fn read(&self, tokens: Range<usize>, out: &mut [f32]) {
        let codes = &self.codes[tokens.start * self.d..tokens.end * self.d];
        out.iter_mut().zip(codes).for_each(|(x, code)| *x = self.scale * F8[*code as usize]);
    }
}

/// Returns the 8-bit float nearest to `x`, ties to even; the largest one for magnitudes beyond it.
fn f8_of(x: f32) -> u8 {
    let magnitude = x.abs().min(F8_MAX);
    // Below 2^-6 (subnormal numbers), the spacing stays that of the smallest exponent.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let eighths = (magnitude * (2.0f32).powi(3 - exponent)).round_ties_even();
    let code = (exponent + 6) * 8 + eighths as i32;
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// The value of each 8-bit float.
static F8: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|code| {
        let (sign, exponent, mantissa) = (if code < 128 { 1.0 } else { -1.0 }, (code >> 3 & 15) as i32, code & 7);
        let eighths = if exponent == 0 { mantissa } else { 8 + mantissa } as f32;
        sign * eighths * (2.0f32).powi(exponent.max(1) - 10)
    })
});

#[cfg(test)]
#[path = "packed_rows_tests.rs"]
mod tests;
