//! Tables against brute force, probabilities against binomial sums and observed frequencies, budgets against the paper's Table 8.

use std::f64::consts::PI;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::planes::gaussians;
use super::*;
use crate::kv::{KvDtype, KvRows};
use crate::{Context, PromptHead, SoftmaxScale, SparseLayerRank, expand_grid};

/// Data of a test: one KV head and a group of queries.
struct Scene {
    keys: Vec<f32>,
    queries: Vec<f32>,
    d: usize,
}

impl Scene {
    fn tokens(&self) -> usize {
        self.keys.len() / self.d
    }

    fn prefix(&self) -> HeadPrefix<'_> {
        let keys = Rows::F32(&self.keys);
        let (candidates, prompt) = (0..self.tokens(), PromptHead::default());
        HeadPrefix {
            layer: 0,
            depth: SparseLayerRank::default(),
            rotation: None,
            kv_head: 0,
            keys: KvRows::lent(keys, self.d),
            values: KvRows::lent(keys, self.d),
            d: self.d,
            scale: SoftmaxScale::inverse_root(self.d),
            dtype: KvDtype::F32,
            candidates,
            prompt,
            seed: 0,
        }
    }

    fn step(&self) -> Step<'_> {
        let keys = Rows::F32(&self.keys);
        let candidates = 0..self.tokens();
        let context = Context::new(self.tokens() + 1, &candidates);
        let scale = SoftmaxScale::inverse_root(self.d);
        let (layer, kv_head, seed, d, queries) = (0, 0, 0, self.d, &self.queries);
        let tail_keys = Rows::F32(&[]);
        Step {
            layer,
            depth: SparseLayerRank::default(),
            kv_head,
            queries,
            d,
            scale,
            keys: KvRows::lent(keys, d),
            values: KvRows::lent(keys, d),
            tail_keys,
            tail_values: Rows::F32(&[]),
            dtype: KvDtype::F32,
            indexed: candidates.clone(),
            candidates,
            context,
            grouped: None,
            has_moving_candidates: false,
            generated: 0,
            seed,
        }
    }

    /// Sampled tokens and `ln u` of each, for every query head.
    fn select(&self, spec: &str) -> Vec<(Vec<u32>, Vec<f32>)> {
        self.select_counting(spec, &mut Cost::default())
    }

    fn select_counting(&self, spec: &str, cost: &mut Cost) -> Vec<(Vec<u32>, Vec<f32>)> {
        self.select_by(&method(spec), cost)
    }

    fn select_by(&self, method: &MagicPig, cost: &mut Cost) -> Vec<(Vec<u32>, Vec<f32>)> {
        let index = Method::build(method, &self.prefix()).unwrap();
        let mut state = Method::start(method, &index);
        let Selection::PerHead(heads) = Method::select(method, &self.step(), &index, &mut state, cost).unwrap() else {
            panic!("a selection for each query head")
        };
        let parts = |picks: SelectedTokens| match picks.weighting {
            Weighting::LogBias(log_u) => (picks.tokens, log_u),
            other => panic!("{other:?} instead of a log-bias"),
        };
        heads.into_iter().map(parts).collect()
    }

    /// Cosines of the first query with all keys, in `f64`, by the definitions.
    fn cosines(&self, center: bool, simple_lsh: bool) -> Vec<f64> {
        let (d, n) = (self.d, self.tokens());
        let mean: Vec<f64> =
            (0..d).map(|c| (0..n).map(|t| f64::from(self.keys[t * d + c])).sum::<f64>() / n as f64).collect();
        let shifted = |t: usize| -> Vec<f64> {
            (0..d).map(|c| f64::from(self.keys[t * d + c]) - if center { mean[c] } else { 0.0 }).collect()
        };
        let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let query: Vec<f64> = self.queries[..d].iter().map(|x| f64::from(*x)).collect();
        let keys: Vec<Vec<f64>> = (0..n).map(shifted).collect();
        let longest = keys.iter().map(|k| norm(k)).fold(0.0, f64::max);
        let cosine = |k: &Vec<f64>| {
            let length = if simple_lsh { longest } else { norm(k) };
            k.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>() / (norm(&query) * length)
        };
        keys.iter().map(cosine).collect()
    }
}

fn method(spec: &str) -> MagicPig {
    MagicPig::read(&mut Params::new(&expand_grid(spec).unwrap()[0])).unwrap()
}

/// The method with other hyperplanes. Its table of probabilities does not depend on them and is reused: computing it
/// takes longer than many samples.
fn redrawn(method: &MagicPig, seed: u64) -> MagicPig {
    let MagicPig { bits, tables, hashing, u_floor, .. } = *method;
    MagicPig {
        bits,
        tables,
        hashing: Hashing { seed, ..hashing },
        u_floor,
        attends_on_host: false,
        planes: RandomPlanes::new(method.shape().planes(), seed),
        log_probability: method.log_probability.clone(),
    }
}

/// P[at least `least` successes in `trials` trials of probability `c`], each term of the sum computed separately.
fn binomial_tail(trials: usize, c: f64, least: usize) -> f64 {
    let mut log_choose = 0.0;
    let mut sum = 0.0;
    for j in 0..=trials {
        if j >= least {
            let misses = if j == trials { 0.0 } else { (trials - j) as f64 * (-c).ln_1p() };
            sum += (log_choose + j as f64 * c.ln() + misses).exp();
        }
        log_choose += ((trials - j) as f64 / (j + 1) as f64).ln();
    }
    sum
}

mod lookup {
    use super::*;

    /// Small whole numbers: all projections are exact, ties included.
    fn whole_numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-3i32..=3) as f32).collect()
    }

    fn check(bits: usize, tables: usize, tokens: usize, d: usize) {
        let shape = Shape { bits, tables };
        let normals = whole_numbers(shape.planes() * d, 1);
        let (keys, query) = (whole_numbers(tokens * d, 2), whole_numbers(d, 3));
        let planes = Hyperplanes::new(&normals, d);
        let codes = Codes::hash(shape, &planes, tokens, |range| keys[range.start * d..range.end * d].to_vec());
        let built = HashTables::new(&codes);
        let mut sides = vec![0; planes.words()];
        planes.side_bits(&query, &mut sides);

        let side = |x: &[f32], plane: usize| {
            let normal = &normals[plane * d..][..d];
            x.iter().zip(normal).map(|(a, b)| a * b).sum::<f32>() > 0.0
        };
        let of_query: Vec<bool> = (0..shape.planes()).map(|plane| side(&query, plane)).collect();
        let collides = |key: &[f32], table: usize| {
            (table * bits..(table + 1) * bits).all(|plane| side(key, plane) == of_query[plane])
        };
        let expected: Vec<usize> =
            keys.chunks(d).map(|key| (0..tables).filter(|table| collides(key, *table)).count()).collect();

        let mut counted = vec![0; tokens];
        let read = built.visit_collisions(&sides, |token| counted[token] += 1);
        assert_eq!(counted, expected, "K={bits}, L={tables}, {tokens} tokens");
        let width = if tokens < 65_536 { 2 } else { 4 };
        assert_eq!(read, (2 * tables + expected.iter().sum::<usize>()) * width);
        assert_eq!(built.bytes(), tables * ((1 << bits) + 1 + tokens) * width);

        // Twice with one counter: the previous query leaves nothing behind.
        let mut counter = CollisionCounter::new(tokens);
        for least in [1, 2, 1, 2] {
            let sampled: Vec<u32> =
                (0..tokens).filter(|t| expected[*t] >= usize::from(least)).map(|t| t as u32).collect();
            let mut bytes = 0;
            assert_eq!(counter.sample(&built, &sides, least, &mut bytes), sampled);
            assert_eq!(bytes, read as u64);
        }
    }

    #[test]
    fn finds_exactly_the_tokens_whose_codes_agree() {
        for (bits, tables) in [(1, 2), (2, 130), (3, 65), (7, 40), (10, 150), (16, 8)] {
            for tokens in [1, 255, 256, 700] {
                check(bits, tables, tokens, 5);
            }
        }
    }

    #[test]
    fn numbers_are_16_bits_wide_below_65536_tokens() {
        check(6, 4, 65_535, 4);
        check(6, 4, 65_536, 4);
    }
}

mod probability {
    use super::super::probability::{at_least_one, at_least_two};
    use super::*;

    #[test]
    fn is_the_binomial_tail() {
        for tables in [2usize, 3, 10, 75, 150, 500] {
            for exponent in 0..120 {
                let c = 10f64.powf(-f64::from(exponent) / 10.0);
                for (u, least) in [(at_least_one(c, tables as f64), 1), (at_least_two(c, tables as f64), 2)] {
                    let exact = binomial_tail(tables, c, least);
                    assert!((u / exact - 1.0).abs() < 1e-7, "L={tables}, c={c}, {least}: {u} against {exact}");
                }
            }
        }
    }

    #[test]
    fn grows_with_agreement_and_with_tables_and_falls_with_bits() {
        let u = |p, bits, tables, least| {
            let m = method(&format!("magicpig:K={bits},L={tables},min_collisions={least}"));
            sampling_probability(m.shape(), m.hashing.min_collisions, p)
        };
        for least in [1, 2] {
            for step in 1..100 {
                let p = f64::from(step) / 100.0;
                let here = u(p, 10, 150, least);
                assert!(here > u(p - 0.01, 10, 150, least) || here == 1.0);
                assert!(here > u(p, 10, 140, least) || here == 1.0);
                assert!(here < u(p, 9, 150, least) || here == 1.0);
                assert!((0.0..=1.0).contains(&here));
            }
            assert_eq!(u(1.0, 10, 150, least), 1.0);
        }
        assert!(u(0.5, 10, 150, 1) > 10.0 * u(0.5, 10, 150, 2));
    }

    #[test]
    fn stays_a_finite_logit_at_every_angle() {
        assert_eq!(agreement(0.0), 0.5);
        assert_eq!(agreement(1.0 + 1e-6), 1.0);
        for spec in ["magicpig:K=16,L=2", "magicpig:K=16,L=500,min_collisions=1", "magicpig:K=1,L=500"] {
            for cos in [-2.0, -1.0, -0.999_999_9, -0.5] {
                let m = method(spec);
                let u = sampling_probability(m.shape(), m.hashing.min_collisions, agreement(cos));
                assert!((u.ln() as f32).is_finite(), "{spec} at {cos}");
            }
        }
    }
}

mod frequency {
    use super::*;

    const TOKENS: usize = 24;
    /// Draws of hyperplanes for each token; every token has its own, so tokens are independent.
    const DRAWS: usize = 300;

    /// Keys at many angles to the query, of different lengths, with a common offset.
    fn scene() -> Scene {
        const D: usize = 8;
        let noise = gaussians((TOKENS + 2) * D, 11);
        let (query, offset) = (&noise[..D], &noise[D..2 * D]);
        let key = |t: usize| {
            let along = -0.6 + 1.6 * t as f32 / TOKENS as f32;
            let length = 0.5 + (t % 5) as f32;
            let own = &noise[(2 + t) * D..][..D];
            (0..D).map(move |c| length * (along * query[c] + 0.5 * own[c]) + 0.5 * offset[c])
        };
        Scene { keys: (0..TOKENS).flat_map(key).collect(), queries: query.to_vec(), d: D }
    }

    /// Number of times that each token was sampled in its own draws.
    fn counts(scene: &Scene, spec: &str) -> Vec<f64> {
        let method = method(spec);
        let sampled = |token: usize, draw: usize| {
            let drawn = redrawn(&method, (token * DRAWS + draw) as u64);
            let (tokens, _) = scene.select_by(&drawn, &mut Cost::default()).remove(0);
            tokens.contains(&(token as u32))
        };
        (0..TOKENS).map(|t| (0..DRAWS).filter(|draw| sampled(t, *draw)).count() as f64).collect()
    }

    /// Pearson's statistic over tokens with at least 5 expected samples and 5 expected misses, and the number of these tokens.
    fn chi_square(counts: &[f64], u: &[f64]) -> (f64, f64) {
        let draws = DRAWS as f64;
        let usable = counts.iter().zip(u).filter(|(_, u)| draws * *u >= 5.0 && draws * (1.0 - *u) >= 5.0);
        usable.fold((0.0, 0.0), |(sum, n), (count, u)| {
            (sum + (count - draws * u).powi(2) / (draws * u * (1.0 - u)), n + 1.0)
        })
    }

    /// The 0.9999 quantile of χ² (Wilson and Hilferty's approximation, good to 2 % from 8 degrees on).
    fn quantile(degrees: f64) -> f64 {
        let a = 2.0 / (9.0 * degrees);
        degrees * (1.0 - a + 3.719 * a.sqrt()).powi(3)
    }

    #[test]
    fn of_sampling_is_the_probability() {
        let scene = scene();
        for (bits, tables, least, center, simple_lsh) in [
            (4, 10, 2, true, false),
            (4, 6, 1, true, false),
            (3, 8, 2, false, false),
            (3, 4, 1, false, false),
            (4, 12, 2, true, true),
            (4, 8, 1, false, true),
            (8, 75, 2, true, false),
        ] {
            let spec =
                format!("magicpig:K={bits},L={tables},min_collisions={least},center={center},simple_lsh={simple_lsh}");
            let counts = counts(&scene, &spec);
            let test = |least: usize, center, simple_lsh| {
                let p = scene.cosines(center, simple_lsh).into_iter().map(|cos| 1.0 - cos.acos() / PI);
                let u: Vec<f64> = p.map(|p| binomial_tail(tables, p.powi(bits), least)).collect();
                chi_square(&counts, &u)
            };
            let (statistic, degrees) = test(least, center, simple_lsh);
            assert!(degrees >= 8.0, "{spec}: {degrees} tokens can be judged");
            assert!(statistic < quantile(degrees), "{spec}: χ² = {statistic} at {degrees} degrees of freedom");
            // The same counts must reject the probabilities of other settings.
            for (statistic, degrees) in [
                test(3 - least, center, simple_lsh),
                test(least, !center, simple_lsh),
                test(least, center, !simple_lsh),
            ] {
                assert!(statistic > 2.0 * quantile(degrees), "{spec}: χ² = {statistic} for other probabilities");
            }
        }
    }

    #[test]
    fn makes_the_weighted_sum_unbiased() {
        let scene = scene();
        let logits = scene.step().exact_scores(scene.step().queries, &mut Cost::default()).unwrap();
        let weight = |token: u32| f64::from(scene.step().scale.factor() * logits[token as usize]).exp();
        let exact: f64 = (0..TOKENS as u32).map(weight).sum();
        for spec in
            ["magicpig:K=4,L=10", "magicpig:K=3,L=4,min_collisions=1,center=false", "magicpig:K=5,L=20,simple_lsh=true"]
        {
            let method = method(spec);
            let sums: Vec<(f64, f64)> = (0..3000)
                .map(|seed| {
                    let (tokens, log_u) = scene.select_by(&redrawn(&method, seed), &mut Cost::default()).remove(0);
                    let weighted = tokens.iter().zip(&log_u).map(|(t, u)| weight(*t) / f64::from(*u).exp()).sum();
                    (weighted, tokens.iter().map(|t| weight(*t)).sum())
                })
                .collect();
            let n = sums.len() as f64;
            let mean = sums.iter().map(|s| s.0).sum::<f64>() / n;
            let error = (sums.iter().map(|s| (s.0 - mean).powi(2)).sum::<f64>() / n / n).sqrt();
            assert!((mean - exact).abs() < 4.0 * error, "{spec}: {mean} ± {error} instead of {exact}");
            assert!(error < 0.1 * exact, "{spec}: {error} shows nothing");
            let unweighted = sums.iter().map(|s| s.1).sum::<f64>() / n;
            assert!((unweighted - exact).abs() > 4.0 * error, "{spec}: weights matter here");
        }
    }

    #[test]
    fn of_keys_without_an_angle_is_that_of_a_right_angle() {
        let scene = Scene { keys: [1.5, -2.0, 0.25].repeat(40), queries: vec![1.0, 2.0, 3.0], d: 3 };
        const SEEDS: usize = 2000;
        let u = binomial_tail(6, 0.125, 2);
        let mut times = 0.0;
        for seed in 0..SEEDS {
            let (tokens, log_u) = scene.select(&format!("magicpig:K=3,L=6,seed={seed}")).remove(0);
            assert!(tokens.is_empty() || tokens.len() == 40);
            assert!(log_u.iter().all(|log_u| (f64::from(*log_u) - u.ln()).abs() < 1e-6));
            times += f64::from(u8::from(!tokens.is_empty()));
        }
        let (expected, deviation) = (SEEDS as f64 * u, (SEEDS as f64 * u * (1.0 - u)).sqrt());
        assert!((times - expected).abs() < 4.0 * deviation, "{times} times, {expected} ± {deviation} expected");
    }
}

/// Opposite cones (the paper's Figure 2c): keys lie far on one side of the queries, spread around their mean.
mod geometry {
    use super::*;

    const TOKENS: usize = 8192;
    const QUERIES: usize = 8;
    /// The only fitted number: with spread in 100 directions, centred cosines have a deviation of 0.1, which reproduces Table 8.
    const D: usize = 100;

    fn cones() -> Scene {
        let row = |noise: &[f32], along: f32| -> Vec<f32> {
            noise.iter().enumerate().map(|(c, x)| x + if c == 0 { along } else { 0.0 }).collect()
        };
        let rows = |n: usize, along: f32, seed| -> Vec<f32> {
            gaussians(n * D, seed).chunks(D).flat_map(|noise| row(noise, along)).collect()
        };
        Scene { keys: rows(TOKENS, -8.0, 1), queries: rows(QUERIES, 8.0, 2), d: D }
    }

    /// Tokens sampled by a query on average, in percent of all.
    fn budget(scene: &Scene, spec: &str) -> f64 {
        let picks: usize = scene.select(spec).iter().map(|(tokens, _)| tokens.len()).sum();
        100.0 * picks as f64 / (TOKENS * QUERIES) as f64
    }

    /// The same by the cosines of all pairs and the binomial sum.
    fn expected(cosines: &[Vec<f64>], bits: i32, tables: usize) -> f64 {
        let u = |cos: &f64| binomial_tail(tables, (1.0 - cos.acos() / PI).powi(bits), 2);
        let sample = cosines.iter().flatten().step_by(16);
        100.0 * sample.clone().map(u).sum::<f64>() / sample.count() as f64
    }

    const TABLES: [usize; 6] = [75, 100, 120, 150, 200, 300];
    /// The paper's Table 8: K, and percent of tokens for each of [`TABLES`].
    const TABLE_8: [(i32, [f64; 6]); 5] = [
        (7, [14.0, 21.0, 27.0, 35.0, 48.0, 66.0]),
        (8, [5.0, 8.0, 11.0, 15.0, 22.0, 36.0]),
        (9, [1.6, 2.7, 4.0, 5.4, 8.5, 15.4]),
        (10, [0.5, 0.9, 1.5, 2.0, 3.0, 6.0]),
        (11, [0.15, 0.3, 0.5, 0.6, 1.0, 2.0]),
    ];

    #[test]
    fn of_opposite_cones_gives_the_budgets_of_table_8() {
        let scene = cones();
        let of_query = |q: usize| {
            Scene { keys: scene.keys.clone(), queries: scene.queries[q * D..][..D].to_vec(), d: D }.cosines(true, false)
        };
        let cosines: Vec<Vec<f64>> = (0..QUERIES).map(of_query).collect();
        let mut above = [100.0; 6];
        for (bits, published) in TABLE_8 {
            let mut before = 0.0;
            for ((tables, published), above) in TABLES.into_iter().zip(published).zip(&mut above) {
                let measured = budget(&scene, &format!("magicpig:K={bits},L={tables}"));
                let expected = expected(&cosines, bits, tables);
                let tokens = expected / 100.0 * (TOKENS * QUERIES) as f64;
                let what = format!("({bits},{tables}): {measured} %, by formula {expected} %, published {published} %");
                assert!((measured / expected - 1.0).abs() < 0.1 + 4.0 / tokens.sqrt(), "{what}");
                assert!((measured / published).ln().abs() < 1.5f64.ln(), "{what}");
                assert!(measured > before && measured < *above, "{what}: more tables, fewer bits");
                (before, *above) = (measured, measured);
            }
        }
    }

    #[test]
    fn of_opposite_cones_leaves_nothing_to_sample_without_centring() {
        let scene = cones();
        // §5.3: "less than 0.1 %".
        assert!(budget(&scene, "magicpig:K=10,L=150,center=false") < 0.1);
        assert!(budget(&scene, "magicpig:K=10,L=150") > 1.0);
    }
}

#[test]
fn costs_and_bytes_are_those_of_what_was_read_and_stored() {
    const D: usize = 32;
    let scene = Scene { keys: gaussians(1000 * D, 1), queries: gaussians(2 * D, 2), d: D };
    let mut cost = Cost::default();
    let picks: usize = scene.select_counting("magicpig:K=6,L=40", &mut cost).iter().map(|(t, _)| t.len()).sum();
    assert!(picks > 100);
    let hashing = 2 * 2 * D * 6 * 40;
    // Products with sampled keys count as attention.
    assert_eq!((cost.score_flops as usize, cost.kv_bytes), (hashing + 2 * 2 * D, 0));
    let magicpig = method("magicpig:K=6,L=40");
    let index = Method::build(&magicpig, &scene.prefix()).unwrap();
    let sides = index.hash_queries(&scene.step());
    let lookups: usize = sides.chunks(index.planes.words()).map(|s| index.tables.visit_collisions(s, |_| ())).sum();
    let (means, norms) = (2 * D * 4, picks * 4);
    assert_eq!(cost.aux_bytes as usize, lookups + means + norms);
    assert_eq!(cost.shared_bytes as usize, 6 * 40 * D * 4, "hyperplanes, once for the group");
    assert_eq!(cost.select_bytes, 2 * 2 * 1000, "a count of each token for each query");

    let bytes = |spec: &str| {
        let method = method(spec);
        Method::index_bytes(&method, &Method::build(&method, &scene.prefix()).unwrap())
    };
    let tables = 40 * (65 + 1000) * 2;
    assert_eq!(bytes("magicpig:K=6,L=40"), tables + 1000 * 4 + D * 4);
    assert_eq!(bytes("magicpig:K=6,L=40,center=false"), tables + 1000 * 4);
    assert_eq!(bytes("magicpig:K=6,L=40,simple_lsh=true"), tables + 4 + D * 4);
}

/// Tokens in the prefix and, where they leave the window, behind it.
#[test]
fn scores_are_products_with_the_scaled_query_to_the_bit() {
    const D: usize = 24;
    let scene = Scene { keys: gaussians(900 * D, 1), queries: gaussians(2 * D, 2), d: D };
    let magicpig = method("magicpig:K=4,L=30");
    let index = Method::build(&magicpig, &scene.prefix()).unwrap();
    let behind = gaussians(50 * D, 3);
    for behind in [&[][..], &behind] {
        let candidates = 0..900 + behind.len() / D;
        let step = Step { candidates, tail_keys: Rows::F32(behind), ..scene.step() };
        let mut state = Method::start(&magicpig, &index);
        let selected = Method::select(&magicpig, &step, &index, &mut state, &mut Cost::default()).unwrap();
        let Selection::PerHead(heads) = selected else { panic!("a selection for each query head") };
        let scaled: Vec<f32> = step.queries.iter().map(|q| q * step.scale.factor()).collect();
        let attended = Step { queries: &scaled, ..step.clone() };
        for (head, picks) in heads.iter().enumerate() {
            assert_eq!(picks.tokens.iter().any(|t| *t >= 900), !behind.is_empty());
            assert_eq!(picks.scores, attended.exact_scores_of(head, &picks.tokens).unwrap());
            let [dots, _] = step.exact_scores_for_attention(head, &picks.tokens).unwrap();
            assert_eq!(dots, step.exact_scores_of(head, &picks.tokens).unwrap());
        }
    }
}

#[test]
fn picks_do_not_depend_on_the_number_of_threads() {
    let scene = Scene { keys: gaussians(3000 * 24, 1), queries: gaussians(3 * 24, 2), d: 24 };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| scene.select("magicpig:K=5,L=30"))
    };
    assert!(!on(1)[0].0.is_empty());
    assert_eq!(on(1), on(5));
}

#[test]
fn codes_that_a_device_made_find_what_the_host_finds() {
    for (bits, tables) in [(2, 9), (3, 65), (7, 40), (10, 150), (15, 5), (16, 8)] {
        let scene = Scene { keys: gaussians(500 * 24, 1), queries: gaussians(3 * 24, 2), d: 24 };
        let method = method(&format!("magicpig:K={bits},L={tables},min_collisions=1,attend_on=host"));
        let (index, step) = (Method::build(&method, &scene.prefix()).unwrap(), scene.step());
        let sides = index.hash_queries(&step);
        let words = index.planes.words();
        let codes: Vec<u16> = sides.chunks_exact(words).flat_map(|own| method.shape().codes_of(own)).collect();
        let mut state = Method::start(&method, &index);
        let mut select = |codes: &[u16]| {
            let mut cost = Cost::default();
            Method::take_codes(&method, &mut state, codes);
            (Method::select(&method, &step, &index, &mut state, &mut cost).unwrap(), cost)
        };
        // Other codes find other tokens, and do not affect the next step.
        let own = select(&[]);
        let others: Vec<u16> = codes.iter().map(|code| code ^ 1).collect();
        assert_ne!(select(&others).0, own.0, "K={bits} L={tables}");
        assert_eq!(select(&codes), own, "K={bits} L={tables}");
        assert_eq!(select(&[]), own, "K={bits} L={tables}");
    }
}

#[test]
fn indexes_are_shared_by_what_does_not_change_them() {
    let key = |spec: &str| Method::index_key(&method(spec));
    assert_eq!(key("magicpig"), key("magicpig:min_collisions=1,u_floor=1e-4"));
    for other in ["K=9", "L=120", "center=false", "simple_lsh=true", "seed=2"] {
        assert_ne!(key("magicpig"), key(&format!("magicpig:{other}")));
    }
}
