//! Compares packed rows with a short quantiser written from the definition.

use super::*;
use proptest::prelude::*;

/// `x` quantised to `bits` bits in the range from `low` to `high`, with both ends rounded outward to 16 bits.
fn quantised(x: f32, low: f32, high: f32, bits: u32) -> f32 {
    let all = || (0..=u16::MAX).map(f16::from_bits).filter(|h| h.is_finite()).map(f16::to_f32);
    let top = (2u32.pow(bits) - 1) as f32;
    let min = all().filter(|h| *h <= low).fold(f32::NEG_INFINITY, f32::max);
    let step = all().filter(|h| *h >= (high - min) / top).fold(f32::INFINITY, f32::min);
    let code = if step == 0.0 { 0.0 } else { ((x - min) / step).round_ties_even().clamp(0.0, top) };
    min + step * code
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32).map(|i| ((i * 2_654_435_761 + seed * 40_503) % 10_007) as f32 / 1000.0 - 4.0).collect()
}

fn read(rows: &PackedRows, tokens: Range<usize>, d: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; tokens.len() * d];
    rows.read(tokens, &mut out);
    out
}

fn packed(dtype: PrefixDtype, axis: Axis, d: usize, rows: &[f32]) -> PackedRows {
    let mut packed = PackedRows::empty(dtype, axis, (rows.len() / d, d), PackedRows::largest(dtype, rows));
    // Push two pieces of whole groups.
    let (first, rest) = rows.split_at((rows.len() / d / GROUP / 2 * GROUP) * d);
    packed.push(first);
    packed.push(rest);
    packed
}

const CODES: [(PrefixDtype, u32); 3] = [(PrefixDtype::Q8, 8), (PrefixDtype::Q4, 4), (PrefixDtype::Q2, 2)];

#[test]
fn each_channel_of_a_group_of_tokens_has_its_range() {
    let (d, tokens) = (5, 3 * GROUP);
    let mut rows = noise(tokens * d, 1);
    // Make the third channel far larger, as some channels of keys are.
    rows.iter_mut().skip(2).step_by(d).for_each(|x| *x *= 100.0);
    for (dtype, bits) in CODES {
        let of = packed(dtype, Axis::Channel, d, &rows);
        let got = read(&of, 0..tokens, d);
        for (at, x) in rows.iter().enumerate() {
            let (group, channel) = (at / d / GROUP, at % d);
            let of_group = rows[group * GROUP * d..][..GROUP * d].iter().skip(channel).step_by(d).copied();
            let (low, high) = (of_group.clone().fold(f32::MAX, f32::min), of_group.fold(f32::MIN, f32::max));
            assert_eq!(got[at], quantised(*x, low, high, bits), "{dtype} at {at}");
        }
    }
}

#[test]
fn each_group_of_channels_of_a_token_has_its_range() {
    // The last group has 16 channels.
    let (d, tokens) = (80, 7);
    let rows = noise(tokens * d, 2);
    for (dtype, bits) in CODES {
        let of = packed(dtype, Axis::Token, d, &rows);
        let got = read(&of, 0..tokens, d);
        for (row, got) in rows.chunks(d).zip(got.chunks(d)) {
            for (group, got) in row.chunks(GROUP).zip(got.chunks(GROUP)) {
                let (low, high) =
                    (group.iter().copied().fold(f32::MAX, f32::min), group.iter().copied().fold(f32::MIN, f32::max));
                let expected: Vec<f32> = group.iter().map(|x| quantised(*x, low, high, bits)).collect();
                assert_eq!(got, expected, "{dtype}");
            }
        }
    }
}

#[test]
fn any_tokens_are_read_as_all_are() {
    for (dtype, axis, d) in [
        (PrefixDtype::Q8, Axis::Channel, 6),
        (PrefixDtype::Q4, Axis::Channel, 7),
        (PrefixDtype::Q2, Axis::Token, 35),
        (PrefixDtype::F8, Axis::Token, 3),
    ] {
        let of = packed(dtype, axis, d, &noise(4 * GROUP * d, 3));
        let all = read(&of, 0..4 * GROUP, d);
        for tokens in [0..0, 0..1, 31..33, 32..64, 5..100, 127..128] {
            assert_eq!(read(&of, tokens.clone(), d), all[tokens.start * d..tokens.end * d], "{dtype}, {tokens:?}");
        }
    }
}

#[test]
fn bytes_are_those_of_codes_and_scales() {
    let (tokens, d) = (2 * GROUP, 64);
    let of = |dtype, axis| packed(dtype, axis, d, &noise(tokens * d, 4)).bytes();
    for (dtype, bits) in CODES {
        let codes = tokens * d * bits as usize / 8;
        assert_eq!(of(dtype, Axis::Channel), codes + 2 * d * 4, "{dtype}: 4 bytes a channel and group");
        assert_eq!(of(dtype, Axis::Token), codes + tokens * 2 * 4, "{dtype}: 4 bytes a token and group of channels");
        let [key, value] = dtype.coded_bytes(d);
        assert_eq!((tokens * key, tokens * value), (of(dtype, Axis::Channel), of(dtype, Axis::Token)), "{dtype}");
    }
    assert_eq!(of(PrefixDtype::F8, Axis::Token), tokens * d + 4);
    assert_eq!(PrefixDtype::F8.coded_bytes(d), [d, d]);
    // Parts of bytes count as whole ones: 3 channels of 4 bits and an eighth of the group's 12 bytes; one group of
    // channels.
    assert_eq!(PrefixDtype::Q4.coded_bytes(3), [2 + 1, 2 + 4]);
}

#[test]
fn floats_of_8_bits_are_the_nearest_of_all_that_there_are() {
    // The 127 magnitudes of e4m3, from its definition.
    let subnormal = (0..8).map(|m| m as f64 / 8.0 * 2f64.powi(-6));
    let normal = (1..16).flat_map(|e| (0..8).map(move |m| (1.0 + m as f64 / 8.0) * 2f64.powi(e - 7)));
    let known: Vec<f64> = subnormal.chain(normal).take(127).collect();
    assert_eq!(known.last(), Some(&448.0));
    known.iter().enumerate().for_each(|(code, x)| assert_eq!(f64::from(F8[code]), *x));
    for at in 0..20_000 {
        let x = (at as f32 * 0.37).sin() * (2.0f32).powi(at % 24 - 14);
        let got = f64::from(F8[f8_of(x) as usize]);
        let nearest = known.iter().map(|k| (k - f64::from(x).abs()).abs()).fold(f64::MAX, f64::min);
        assert_eq!((got - f64::from(x)).abs(), nearest, "{x}");
    }
    // Ties go to the even mantissa, and magnitudes beyond the largest become the largest.
    assert_eq!([17.0, 19.0, 500.0, -1e9, 0.0].map(|x| F8[f8_of(x) as usize]), [16.0, 20.0, 448.0, -448.0, 0.0]);
}

#[test]
fn the_largest_of_a_head_is_the_largest_float() {
    let rows = [0.5, -7.0, 3.5, 0.0];
    assert_eq!(read(&packed(PrefixDtype::F8, Axis::Token, 2, &rows), 0..2, 2), [0.5, -7.0, 3.5, 0.0]);
    let zeros = packed(PrefixDtype::F8, Axis::Token, 2, &[0.0; 4]);
    assert_eq!(read(&zeros, 0..2, 2), [0.0; 4]);
}

#[test]
fn numbers_beyond_16_bits_stay_finite_and_equal_ones_stay_equal() {
    for (dtype, _) in CODES {
        let huge = packed(dtype, Axis::Token, 4, &[-1e30, 0.0, 7.0, 1e30]);
        assert!(read(&huge, 0..1, 4).iter().all(|x| x.is_finite()), "{dtype}");
        let equal = packed(dtype, Axis::Token, 3, &[0.25; 3]);
        assert_eq!(read(&equal, 0..1, 3), [0.25; 3], "{dtype}");
    }
}

proptest! {
    #[test]
    fn no_number_is_off_by_more_than_half_a_step(
        rows in proptest::collection::vec(prop_oneof![-9.0f32..9.0, -1e-3f32..1e-3, Just(0.1f32), 900.0f32..1000.0], GROUP * 3),
        by_channel in any::<bool>(),
    ) {
        let axis = if by_channel { Axis::Channel } else { Axis::Token };
        for (dtype, _) in CODES {
            let of = packed(dtype, axis, 3, &rows);
            let PackedRows::Codes(codes) = &of else { unreachable!() };
            for (at, (x, y)) in rows.iter().zip(read(&of, 0..GROUP, 3)).enumerate() {
                let step = codes.ranges[if by_channel { at % 3 } else { at / 3 }].step.to_f32();
                prop_assert!((x - y).abs() <= 0.5001 * step + 1e-6 * x.abs(), "{dtype}: {x} {y}, a step of {step}");
            }
        }
    }
}
