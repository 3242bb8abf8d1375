use super::*;
use crate::linear::scores_of;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-2.0..2.0)).collect()
}

/// Softmax attention in f64 over `tokens`; `bias` is subtracted from logits.
fn reference(q: &[f32], k: &[f32], v: &[f32], d: usize, tokens: &[u32], bias: &[f32]) -> Vec<f32> {
    q.chunks(d)
        .flat_map(|q| {
            let logits: Vec<f64> = tokens
                .iter()
                .enumerate()
                .map(|(i, &t)| {
                    let dot: f64 = q.iter().zip(&k[t as usize * d..]).map(|(a, b)| *a as f64 * *b as f64).sum();
                    dot - bias.get(i).copied().unwrap_or(0.0) as f64
                })
                .collect();
            let max = logits.iter().cloned().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
            let mut out = vec![0.0f64; d];
            for (l, &t) in logits.iter().zip(tokens) {
                for (o, x) in out.iter_mut().zip(&v[t as usize * d..]) {
                    *o += (l - max).exp() / total * *x as f64;
                }
            }
            out.into_iter().map(|x| x as f32).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn capped_logits_and_sinks_are_as_computed_naively() {
    let (g, d, tokens, cap) = (3, 16, 2 * PIECE + 77, 1.25);
    let (q, k, v) = (noise(g * d, 1), noise(tokens * d, 2), noise(tokens * d, 3));
    let sinks = [-2.0f32, 9.0, 0.5];
    let all: Vec<u32> = (0..tokens as u32).collect();
    // Another order, and a bias that is no part of what is capped.
    let (listed, bias): (Vec<u32>, Vec<f32>) = all.iter().rev().map(|t| (*t, (*t % 3) as f32)).unzip();
    for (tokens, bias) in [(&all, &[][..]), (&listed, &bias)] {
        let mut acc = Accumulator::new(g, d).with_soft_cap(Some(cap));
        match bias.is_empty() {
            true => attend_range(&q, Rows::F32(&k), Rows::F32(&v), &mut acc),
            false => attend_list(&q, Rows::F32(&k), Rows::F32(&v), tokens, bias, &mut acc),
        }
        (0..g).for_each(|h| acc.add_sink(h, sinks[h]));
        let mut out = vec![f32::NAN; g * d];
        acc.finish(&mut out);
        for h in 0..g {
            let weight = |(i, t): (usize, &u32)| {
                let pairs = q[h * d..][..d].iter().zip(&k[*t as usize * d..]);
                let x: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let cap = f64::from(cap);
                (cap * (x / cap).tanh() - f64::from(bias.get(i).copied().unwrap_or(0.0))).exp()
            };
            let weights: Vec<f64> = tokens.iter().enumerate().map(weight).collect();
            let sum = weights.iter().sum::<f64>() + f64::from(sinks[h]).exp();
            let channel = |c: usize| {
                let of = |(w, t): (&f64, &u32)| w * f64::from(v[*t as usize * d + c]);
                (weights.iter().zip(tokens).map(of).sum::<f64>() / sum) as f32
            };
            let expected: Vec<f32> = (0..d).map(channel).collect();
            assert_close(&out[h * d..][..d], &expected, &format!("head {h}, {} biases", bias.len()));
        }
    }
}

#[test]
fn a_sink_alone_gives_nothing() {
    let (mut acc, mut out) = (Accumulator::new(1, 2), [f32::NAN; 2]);
    acc.add_sink(0, -3.0);
    acc.finish(&mut out);
    assert_eq!(out, [0.0; 2]);
    assert!((acc.log_sum_exp(0) + 3.0).abs() < 1e-6);
}

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 2e-5, "{what}: {a} against {b}");
    }
}

#[test]
fn weighted_rows_are_added_in_their_order_however_wide_they_are() {
    for (d, n, count) in [
        (20, 30, 9),
        (64, 9, 4),
        (200, 9, 7),
        (WIDE, 3, 2),
        (WIDE + 1, 9, 8),
        (3 * WIDE + 77, 7, 6),
        (PIECE + 300, 3, 5),
    ] {
        let (rows, weights) = (noise(n * d, 4), noise(count, 5));
        let rows: Vec<bf16> = rows.into_iter().map(bf16::from_f32).collect();
        let tokens: Vec<u32> = (0..count as u32).map(|i| i * 5 % n as u32).collect();
        let mut out = noise(d, 6);
        let mut expected = out.clone();
        for (t, w) in tokens.iter().zip(&weights) {
            let row = &rows[*t as usize * d..][..d];
            expected.iter_mut().zip(row).for_each(|(sum, x)| *sum += w * x.to_f32());
        }
        weighted_list(Rows::Bf16(&rows), &tokens, &weights, &mut out);
        assert_eq!(out, expected, "{count} of {n} rows of {d}");
        // Three sets together equal each set by itself.
        let (weights, mut together) = (noise(3 * count, 7), noise(3 * d, 8));
        let mut apart = together.clone();
        for (weights, out) in weights.chunks_exact(count).zip(apart.chunks_exact_mut(d)) {
            weighted_list(Rows::Bf16(&rows), &tokens, weights, out);
        }
        weighted_lists(Rows::Bf16(&rows), &tokens, &weights, 3, &mut together);
        assert_eq!(together, apart, "three sets, {count} of {n} rows of {d}");
    }
}

fn check<T: Elem>(rows: impl Fn(&[T]) -> Rows<'_>) {
    for (g, d, n) in [(1, 64, 1), (2, 64, 300), (3, 32, 257), (8, 128, 1000), (5, 20, 77), (4, 16, 256)] {
        let (q, k, v) = (noise(g * d, 1), noise(n * d, 2), noise(n * d, 3));
        let k: Vec<T> = k.into_iter().map(T::from_f32).collect();
        let v: Vec<T> = v.into_iter().map(T::from_f32).collect();
        let (kf, vf): (Vec<f32>, Vec<f32>) =
            (k.iter().map(|x| x.to_f32()).collect(), v.iter().map(|x| x.to_f32()).collect());
        let all: Vec<u32> = (0..n as u32).collect();
        let mut acc = Accumulator::new(g, d);
        attend_range(&q, rows(&k), rows(&v), &mut acc);
        let mut out = vec![0.0; g * d];
        acc.finish(&mut out);
        assert_close(&out, &reference(&q, &kf, &vf, d, &all, &[]), "range");

        let picks: Vec<u32> = all.iter().copied().filter(|t| t % 3 != 1).collect();
        let bias: Vec<f32> = picks.iter().map(|t| (*t as f32 * 0.37).sin()).collect();
        let mut acc = Accumulator::new(g, d);
        attend_list(&q, rows(&k), rows(&v), &picks, &bias, &mut acc);
        acc.finish(&mut out);
        assert_close(&out, &reference(&q, &kf, &vf, d, &picks, &bias), "list with bias");
    }
}

#[test]
fn equals_plain_softmax_attention_in_every_type() {
    check::<f32>(|x| Rows::F32(x));
    check::<f16>(|x| Rows::F16(x));
    check::<bf16>(|x| Rows::Bf16(x));
}

#[test]
fn pieces_add_up_to_one_softmax_over_their_union() {
    let (g, d, n) = (2, 64, 700);
    let (q, k, v) = (noise(g * d, 4), noise(n * d, 5), noise(n * d, 6));
    let (keys, values) = (Rows::F32(&k), Rows::F32(&v));
    let picks: Vec<u32> = (4..600).step_by(7).collect();
    let mut acc = Accumulator::new(g, d);
    attend_range(&q, keys.slice(0..4, d), values.slice(0..4, d), &mut acc);
    attend_list(&q, keys, values, &picks, &[], &mut acc);
    attend_range(&q, keys.slice(600..n, d), values.slice(600..n, d), &mut acc);
    let mut out = vec![0.0; g * d];
    acc.finish(&mut out);
    let union: Vec<u32> = (0..4).chain(picks).chain(600..n as u32).collect();
    assert_close(&out, &reference(&q, &k, &v, d, &union, &[]), "union");
}

#[test]
fn merging_a_partial_result_equals_attending_it() {
    let (d, n) = (32, 90);
    let (q, k, v) = (noise(d, 7), noise(n * d, 8), noise(n * d, 9));
    let (keys, values) = (Rows::F32(&k), Rows::F32(&v));
    let mut part = Accumulator::new(1, d);
    attend_range(&q, keys.slice(50..n, d), values.slice(50..n, d), &mut part);
    let mut acc = Accumulator::new(1, d);
    attend_range(&q, keys.slice(0..50, d), values.slice(0..50, d), &mut acc);
    acc.merge_query(0, &part);
    let mut out = vec![0.0; d];
    acc.finish(&mut out);
    let all: Vec<u32> = (0..n as u32).collect();
    assert_close(&out, &reference(&q, &k, &v, d, &all, &[]), "merge");
}

/// Long ranges and lists are split in pieces. The sum keeps what was attended before, the last piece may be short, and the number of
/// threads changes no bit.
#[test]
fn long_contexts_are_attended_in_pieces_to_the_same_bits_on_any_threads() {
    let (g, d, n) = (3, 16, 2 * PIECE + 1001);
    let (q, k, v) = (noise(g * d, 11), noise(n * d, 12), noise(n * d, 13));
    let (keys, values) = (Rows::F32(&k), Rows::F32(&v));
    let first: Vec<u32> = (0..5).collect();
    let stretch: Vec<u32> = (5..n as u32).collect();
    let list: Vec<u32> = stretch.iter().rev().copied().filter(|t| t % 4 != 2).collect();
    let bias: Vec<f32> = list.iter().map(|t| (*t as f32 * 0.37).sin()).collect();
    assert!(list.len() > PIECE, "more than a piece");
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut outputs = [vec![0.0; g * d], vec![0.0; g * d]];
            for (i, out) in outputs.iter_mut().enumerate() {
                let mut acc = Accumulator::new(g, d);
                attend_list(&q, keys, values, &first, &[], &mut acc);
                match i {
                    0 => attend_range(&q, keys.slice(5..n, d), values.slice(5..n, d), &mut acc),
                    _ => attend_list(&q, keys, values, &list, &bias, &mut acc),
                }
                acc.finish(out);
            }
            outputs
        })
    };
    let [of_stretch, of_list] = on(1);
    assert_close(&of_stretch, &reference(&q, &k, &v, d, &[&first[..], &stretch].concat(), &[]), "stretch");
    let biases = [&[0.0; 5][..], &bias].concat();
    assert_close(&of_list, &reference(&q, &k, &v, d, &[&first[..], &list].concat(), &biases), "list");
    for threads in [2, 5] {
        assert_eq!(on(threads), [of_stretch.clone(), of_list.clone()], "{threads} threads");
    }
}

#[test]
fn identical_zero_and_huge_keys_give_numbers() {
    let d = 64;
    for fill in [0.0f32, 1.0, 1e4] {
        let (q, k, v) = (vec![fill; d], vec![fill; 300 * d], noise(300 * d, 10));
        let mut acc = Accumulator::new(1, d);
        attend_range(&q, Rows::F32(&k), Rows::F32(&v), &mut acc);
        let mut out = vec![f32::NAN; d];
        acc.finish(&mut out);
        assert!(out.iter().all(|x| x.is_finite()), "fill {fill}");
    }
}

#[test]
fn nothing_attended_is_zero_not_nan() {
    let mut out = vec![f32::NAN; 64];
    Accumulator::new(1, 64).finish(&mut out);
    assert!(out.iter().all(|x| *x == 0.0));
}

/// With several blocks and pieces, a soft cap, rows in another order, columns that fill no vector, and sums from before.
#[test]
fn known_scores_give_the_bits_that_reading_keys_gives() {
    fn check<T: Elem>(rows: impl Fn(&[T]) -> Rows<'_>) {
        for (d, n) in [(128, 1000), (64, 3), (20, 257), (7, 40), (100, 0), (16, PIECE + 1001)] {
            let (q, first) = (noise(d, 1), noise(d, 4));
            let [k, v]: [Vec<T>; 2] = [2, 3].map(|seed| noise(n * d, seed).into_iter().map(T::from_f32).collect());
            let listed: Vec<u32> = (0..n as u32).rev().filter(|t| t % 50 != 3).collect();
            let mut scores = vec![f32::NAN; listed.len()];
            scores_of(&q, &k, &listed, &mut scores);
            for (bias, cap) in [(true, None), (false, None), (true, Some(0.75))] {
                let of = |t: &u32| (*t as f32 * 0.37).sin();
                let bias: Vec<f32> = listed.iter().filter(|_| bias).map(of).collect();
                let partial = |attend: &dyn Fn(&mut Accumulator)| {
                    let mut acc = Accumulator::new(1, d).with_soft_cap(cap);
                    attend_range(&q, Rows::F32(&first), Rows::F32(&first), &mut acc);
                    attend(&mut acc);
                    let mut partial = vec![f32::NAN; 2 + d];
                    acc.write_partial(0, &mut partial);
                    partial.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let read = partial(&|acc| attend_list(&q, rows(&k), rows(&v), &listed, &bias, acc));
                let known = partial(&|acc| attend_scored(&scores, rows(&v), &listed, &bias, acc));
                assert_eq!(known, read, "{n} rows of {d}, {} biases, cap {cap:?}", bias.len());
            }
        }
    }
    check::<f32>(|x| Rows::F32(x));
    check::<f16>(|x| Rows::F16(x));
    check::<bf16>(|x| Rows::Bf16(x));
}

#[test]
#[should_panic(expected = "a token is not below 2")]
fn values_that_do_not_exist_are_not_attended() {
    attend_scored(&[0.0; 2], Rows::F32(&[1.0; 8]), &[1, 2], &[], &mut Accumulator::new(1, 4));
}

/// The parts of a context, some of them empty, have logits far apart, and are merged as those of another machine would be.
#[test]
fn partial_softmaxes_merge_into_the_softmax_of_all_tokens() {
    let (g, d, n) = (3, 24, 900);
    let (mut q, k, v) = (noise(g * d, 7), noise(n * d, 8), noise(n * d, 9));
    // Without the parts' maxima, the larger logits would overflow and the smaller ones would not count.
    q.iter_mut().for_each(|x| *x *= 6.0);
    let (keys, values) = (Rows::F32(&k), Rows::F32(&v));
    let bias: Vec<f32> = (0..n).map(|t| (t as f32 * 0.61).cos() - 2.0).collect();
    for ends in [vec![n], vec![0, n], vec![5, 5, 300, n], vec![1, 2, 3, 450, n, n]] {
        let mut merged = Accumulator::new(g, d);
        let mut first = 0;
        for end in ends.iter().copied() {
            let tokens: Vec<u32> = (first as u32..end as u32).collect();
            let mut part = Accumulator::new(g, d);
            attend_list(&q, keys, values, &tokens, &bias[first..end], &mut part);
            for h in 0..g {
                let mut partial = vec![f32::NAN; 2 + d];
                part.write_partial(h, &mut partial);
                assert_eq!(partial[0] == f32::NEG_INFINITY, tokens.is_empty());
                merged.merge_partial(h, &partial);
            }
            first = end;
        }
        let mut out = vec![f32::NAN; g * d];
        merged.finish(&mut out);
        let all: Vec<u32> = (0..n as u32).collect();
        assert_close(&out, &reference(&q, &k, &v, d, &all, &bias), &format!("parts that end at {ends:?}"));
    }
    let mut nothing = [f32::NAN; 26];
    Accumulator::new(1, d).write_partial(0, &mut nothing);
    assert!(nothing[0] == f32::NEG_INFINITY && nothing[1..].iter().all(|x| *x == 0.0));
}
