use super::*;
use crate::{Accumulator, attend_list, attend_range};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers that bf16 represents exactly, so that with bf16 products only weights are rounded.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| bf16::from_f32(rng.random_range(-2.0..2.0)).to_f32()).collect()
}

/// The largest error of an output: rounding a weight to bf16 changes it by at most 2^-9 of its value, and values are below
/// 2.
fn bound(precision: MatmulPrecision) -> f32 {
    match precision {
        MatmulPrecision::F32 => 2e-5,
        MatmulPrecision::Bf16 => 2.0 / 512.0 + 2e-5,
    }
}

/// Computes attention row by row with the decode kernel, which has its own reference.
fn row_by_row(q: &[f32], kv: &[(Vec<f16>, Vec<f16>)], heads: usize, d: usize, rows: usize, scale: f32) -> Vec<f32> {
    let tokens = kv[0].0.len() / d;
    let group = heads / kv.len();
    let mut out = vec![0.0; q.len()];
    for i in 0..rows {
        for h in 0..heads {
            let at = (i * heads + h) * d;
            let query: Vec<f32> = q[at..at + d].iter().map(|x| x * scale).collect();
            let (k, v) = &kv[h / group];
            let seen = 0..tokens - rows + i + 1;
            let mut acc = Accumulator::new(1, d);
            attend_range(&query, Rows::F16(k).slice(seen.clone(), d), Rows::F16(v).slice(seen, d), &mut acc);
            acc.finish(&mut out[at..at + d]);
        }
    }
    out
}

#[test]
fn a_sight_is_of_the_tokens_that_it_sees() {
    let single = |place: usize, log_weight: f32| ScatteredToken { place, log_weight };
    let visibility = [
        RowVisibility::new(0, 0..0),
        RowVisibility::new(7, 7..7),
        RowVisibility::new(3, 9..14),
        RowVisibility::new(0, 1..3),
        RowVisibility { common: 2, stretch: 20..22, singles: vec![single(4, 0.0), single(19, 0.5)] },
        RowVisibility { common: 0, stretch: 5..5, singles: vec![single(0, 1.0), single(4, -1.0)] },
    ];
    for sight in visibility {
        let seen: Vec<ScatteredToken> = sight.each().collect();
        assert_eq!((RowVisibility::of(&seen), seen.len()), (sight.clone(), sight.tokens()));
    }
}

#[test]
fn equals_row_by_row_attention() {
    for (tokens, rows, heads, kv_heads, d) in
        [(1, 1, 2, 1, 64), (130, 130, 4, 2, 64), (500, 97, 2, 2, 32), (300, 50, 8, 1, 128), (150, 150, 1, 1, 20)]
    {
        let q = noise(rows * heads * d, 1);
        let half = |seed| noise(tokens * d, seed).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let kv: Vec<_> = (0..kv_heads as u64).map(|h| (half(2 + h), half(20 + h))).collect();
        let scale = 1.0 / (d as f32).sqrt();
        let expected = row_by_row(&q, &kv, heads, d, rows, scale);
        for precision in MatmulPrecision::ALL {
            let pack =
                |(k, v): &(Vec<f16>, Vec<f16>)| PackedHead::for_precision(precision, Rows::F16(k), Rows::F16(v), d);
            let packed: Vec<_> = kv.iter().map(pack).collect();
            let mut out = vec![f32::NAN; q.len()];
            causal_attention(&q, &packed, heads, scale, &mut out);
            for (a, b) in out.iter().zip(&expected) {
                assert!((a - b).abs() < bound(precision), "{precision}, tokens {tokens} d {d}: {a} against {b}");
            }
        }
    }
}

#[test]
fn rows_see_the_front_and_a_stretch_of_their_own() {
    let (tokens, d, heads, rows) = (700, 64, 2, 70);
    let (q, half) =
        (noise(rows * heads * d, 1), |seed| noise(tokens * d, seed).into_iter().map(f16::from_f32).collect::<Vec<_>>());
    let (k, v) = (half(2), half(3));
    // Every third token, packed. Stretches start within the front, far after it, or are empty.
    let packed_tokens: Vec<u32> = (0..tokens as u32).step_by(3).collect();
    let gather = |rows: &[f16]| Rows::F16(rows).gather(&packed_tokens, d);
    let (packed_k, packed_v) = (gather(&k), gather(&v));
    let shapes = [(40, 40, 9), (5, 130, 40), (0, 150, 1), (130, 130, 0), (128, 128, 0), (1, 90, 38)];
    for (precision, (common, begin, length)) in
        MatmulPrecision::ALL.into_iter().flat_map(|precision| shapes.map(|shape| (precision, shape)))
    {
        let kv = PackedHead::for_precision(precision, Rows::F32(&packed_k), Rows::F32(&packed_v), d);
        let visibility: Vec<RowVisibility> =
            (0..rows).map(|i| RowVisibility::new(common, begin + i / 2..begin + i / 2 + length)).collect();
        let mut out = vec![f32::NAN; q.len()];
        (0..heads).for_each(|head| block_attention(&q, (head, heads), &kv, &visibility, 0.125, &mut out));
        for (i, sight) in visibility.iter().enumerate() {
            let seen: Vec<u32> = (0..common).chain(sight.stretch.clone()).map(|at| packed_tokens[at]).collect();
            assert_eq!(seen.len(), sight.tokens());
            for h in 0..heads {
                let at = (i * heads + h) * d;
                let query: Vec<f32> = q[at..at + d].iter().map(|x| x * 0.125).collect();
                let (mut acc, mut row) = (Accumulator::new(1, d), vec![0.0; d]);
                attend_list(&query, Rows::F16(&k), Rows::F16(&v), &seen, &[], &mut acc);
                acc.finish(&mut row);
                for (a, b) in out[at..at + d].iter().zip(&row) {
                    assert!((a - b).abs() < bound(precision), "row {i} of {common}, {begin}: {a} against {b}");
                }
            }
        }
    }
}

#[test]
fn rows_see_single_tokens_with_their_weights() {
    let (tokens, d, rows) = (500, 32, 60);
    let (q, k, v) = (noise(rows * d, 1), noise(tokens * d, 2), noise(tokens * d, 3));
    // Each row has its own single tokens, over several blocks; some rows see nothing else.
    let shapes = [(3, 450..460), (0, 470..470), (130, 400..500), (40, 499..500)];
    for (precision, (common, stretch)) in
        MatmulPrecision::ALL.into_iter().flat_map(|precision| shapes.clone().map(|shape| (precision, shape)))
    {
        let kv = PackedHead::for_precision(precision, Rows::F32(&k), Rows::F32(&v), d);
        let sight = |i: usize| {
            let places = (common..stretch.start).skip(i % 7).step_by(3 + i * 4);
            let singles = places.map(|place| ScatteredToken { place, log_weight: ((place % 5) as f32 - 2.0) * 0.7 });
            RowVisibility { singles: singles.collect(), ..RowVisibility::new(common, stretch.clone()) }
        };
        let visibility: Vec<RowVisibility> = (0..rows).map(sight).collect();
        let mut out = vec![f32::NAN; q.len()];
        block_attention(&q, (0, 1), &kv, &visibility, 0.2, &mut out);
        for (i, sight) in visibility.iter().enumerate() {
            let mut seen: Vec<(usize, f64)> = (0..common).chain(stretch.clone()).map(|at| (at, 0.0)).collect();
            seen.extend(sight.singles.iter().map(|single| (single.place, f64::from(single.log_weight))));
            assert_eq!(seen.len(), sight.tokens());
            let weight = |(at, bias): &(usize, f64)| {
                let pairs = q[i * d..][..d].iter().zip(&k[at * d..]);
                (pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * 0.2 + bias).exp()
            };
            let sum: f64 = seen.iter().map(weight).sum();
            for c in 0..d {
                let expected: f64 = seen.iter().map(|s| weight(s) * f64::from(v[s.0 * d + c])).sum::<f64>() / sum;
                let got = out[i * d + c];
                assert!(
                    (got - expected as f32).abs() < bound(precision),
                    "row {i}, {common}: {got} against {expected}"
                );
            }
        }
    }
}

/// Computes the outputs of the rows of one head in double precision, one after the other.
fn naively(q: &[f32], k: &[f32], v: &[f32], d: usize, window: usize, (scale, cap, sink): (f64, f64, f64)) -> Vec<f32> {
    let (rows, tokens) = (q.len() / d, k.len() / d);
    let of_row = |i: usize| {
        let end = tokens - rows + i + 1;
        let seen: Vec<usize> = (0..end).filter(|t| end - t <= window).collect();
        let weight = |t: &usize| {
            let pairs = q[i * d..][..d].iter().zip(&k[t * d..]);
            let logit = scale * pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            (cap * (logit / cap).tanh()).exp()
        };
        let sum: f64 = seen.iter().map(weight).sum::<f64>() + sink.exp();
        let channel = |c: usize| seen.iter().map(|t| weight(t) * f64::from(v[t * d + c])).sum::<f64>() / sum;
        (0..d).map(|c| channel(c) as f32).collect::<Vec<f32>>()
    };
    (0..rows).flat_map(of_row).collect()
}

#[test]
fn caps_windows_and_sinks_are_as_computed_naively() {
    let (tokens, rows, d) = (700, 90, 32);
    let (q, k, v) = (noise(rows * d, 1), noise(tokens * d, 2), noise(tokens * d, 3));
    let (both_q, mut checked) = (q.chunks(d).flat_map(|row| [row, row].concat()).collect::<Vec<f32>>(), 0);
    for precision in MatmulPrecision::ALL {
        let packed = [PackedHead::for_precision(precision, Rows::F32(&k), Rows::F32(&v), d)];
        for (window, cap, sinks) in [
            (usize::MAX, Some(1.5), [-1e9f32, 2.0]),
            (1, None, [0.5, -3.0]),
            (33, Some(0.7), [4.0, 0.0]),
            (600, None, [30.0, 1.0]),
            (90, Some(50.0), [-1e9, -1e9]),
        ] {
            let rule = LogitRule { scale: 0.3, soft_cap: cap, sinks: &sinks };
            let mut out = vec![f32::NAN; both_q.len()];
            sliding_attention(&both_q, &packed, (2, window), rule, &mut out);
            for (head, sink) in sinks.iter().enumerate() {
                let numbers = (0.3, f64::from(cap.unwrap_or(1e9)), f64::from(*sink));
                let expected = naively(&q, &k, &v, d, window, numbers);
                let got = out.chunks(d).skip(head).step_by(2).flatten();
                for (a, b) in got.zip(&expected) {
                    assert!((a - b).abs() < bound(precision), "{precision}, {window}, {rule:?}: {a} against {b}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, MatmulPrecision::ALL.len() * 5 * 2 * rows * d);
}

#[test]
fn threads_do_not_change_a_bit() {
    let (tokens, heads, d) = (333, 4, 64);
    let q = noise(tokens * heads * d, 3);
    let (k, v) = (noise(tokens * d, 4), noise(tokens * d, 5));
    let packed = [PackedHead::new(Rows::F32(&k), Rows::F32(&v), d)];
    let run = |threads| {
        let mut out = vec![0.0; q.len()];
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| causal_attention(&q, &packed, heads, 0.125, &mut out));
        out
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn a_row_is_the_same_bits_alone_and_among_others() {
    let (tokens, heads) = (333, 4);
    for d in [16, 40, 64, 72] {
        let q = noise(tokens * heads * d, 3);
        let (k, v) = (noise(tokens * d, 4), noise(tokens * d, 5));
        let packed = |tokens: usize| {
            let rows = |x: &[f32]| x[..tokens * d].to_vec();
            let (k, v) = (rows(&k), rows(&v));
            [PackedHead::for_precision(MatmulPrecision::F32, Rows::F32(&k), Rows::F32(&v), d)]
        };
        let mut together = vec![f32::NAN; q.len()];
        causal_attention(&q, &packed(tokens), heads, 0.125, &mut together);
        for row in (0..tokens).step_by(7).chain([127, 128, tokens - 1]) {
            let of_row = row * heads * d..(row + 1) * heads * d;
            let mut alone = vec![f32::NAN; heads * d];
            causal_attention(&q[of_row.clone()], &packed(row + 1), heads, 0.125, &mut alone);
            assert_eq!(alone, together[of_row], "row {row} of width {d}");
        }
    }
}
