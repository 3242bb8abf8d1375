use super::*;
use crate::kv::LayerKv;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHAPE: PromptShape = PromptShape { layers: 2, heads: 4, kv_heads: 2, d: 8, tokens: 53 };

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-2.0..2.0)).collect()
}

fn queries(layer: usize) -> Vec<f32> {
    noise(SHAPE.tokens * SHAPE.heads * SHAPE.d, layer as u64)
}

fn keys(layer: usize) -> Vec<f32> {
    noise(SHAPE.tokens * SHAPE.kv_heads * SHAPE.d, 10 + layer as u64)
}

fn query(layer: usize, token: usize, head: usize) -> Vec<f32> {
    queries(layer)[(token * SHAPE.heads + head) * SHAPE.d..][..SHAPE.d].to_vec()
}

fn dot(layer: usize, query_token: usize, head: usize, key_token: usize) -> f64 {
    let kv_head = head / (SHAPE.heads / SHAPE.kv_heads);
    let keys = keys(layer);
    let key = &keys[(key_token * SHAPE.kv_heads + kv_head) * SHAPE.d..][..SHAPE.d];
    query(layer, query_token, head).iter().zip(key).map(|(q, k)| f64::from(q * k)).sum()
}

/// Statistics read in chunks of `chunk` tokens and summed in blocks of 20.
fn gathered(needs: &[PromptNeed], chunk: usize) -> PromptStats {
    let stats = PromptStats::new(&needs.iter().copied().collect(), SHAPE);
    read(PromptStats { block: 20, ..stats }, 0, chunk)
}

/// Reads from token `from` to the end of the prefix.
fn read(mut stats: PromptStats, from: usize, chunk: usize) -> PromptStats {
    let PromptShape { layers, heads, kv_heads, d, tokens } = stats.shape;
    let mut caches: Vec<_> = (0..layers).map(|_| LayerKv::new(KvDtype::F32, kv_heads, d, tokens)).collect();
    for (layer, kv) in caches.iter_mut().enumerate() {
        keys(layer)[..from * kv_heads * d].chunks(kv_heads * d).for_each(|key| kv.append(key, key));
    }
    for first in (from..tokens).step_by(chunk) {
        let rows = first..(first + chunk).min(tokens);
        for (layer, kv) in caches.iter_mut().enumerate() {
            for key in keys(layer)[rows.start * kv_heads * d..rows.end * kv_heads * d].chunks(kv_heads * d) {
                kv.append(key, key);
            }
            let queries = &queries(layer)[rows.start * heads * d..rows.end * heads * d];
            stats.observe(&PrefillChunk::new(layer, first, queries, heads, kv)).unwrap();
        }
    }
    stats
}

const CHUNKS: [usize; 4] = [1, 7, 20, 100];

#[test]
fn queries_kept_are_the_last_ones_and_evenly_spread_ones() {
    for chunk in CHUNKS {
        let needs =
            [3, 5, 100].map(PromptNeed::LastQueries).into_iter().chain([1, 10, 200].map(PromptNeed::SampledQueries));
        let stats = gathered(&needs.collect::<Vec<_>>(), chunk);
        for (layer, kv_head, head) in [(0, 0, 1), (1, 1, 0)] {
            let place = stats.head(layer, kv_head);
            assert_eq!(place.group(), 2);
            let of = |tokens: &[u32]| -> Vec<f32> {
                tokens.iter().flat_map(|t| query(layer, *t as usize, 2 * kv_head + head)).collect()
            };
            assert_eq!(place.last_queries(3, head).to_f32(), of(&[50, 51, 52]));
            assert_eq!(place.last_queries(100, head).to_f32(), of(&(0..53).collect::<Vec<_>>()));
            let (positions, rows) = place.sampled_queries(10, head);
            assert_eq!(positions, [2, 7, 13, 18, 23, 29, 34, 39, 45, 50]);
            assert_eq!(rows.to_f32(), of(positions));
            assert_eq!(place.sampled_queries(1, head).0, [26]);
            assert_eq!(place.sampled_queries(200, head).0.len(), 53);
        }
    }
}

#[test]
fn prefixes_beside_each_other_have_the_heads_of_each_in_turn() {
    let needs = [PromptNeed::AttentionMass, PromptNeed::FollowingScores(3)];
    let stats = gathered(&needs, 9);
    let mut other = stats.clone();
    for own in other.gathered.values_mut() {
        match &mut own.layers[0] {
            LayerStats::Mass(heads) => heads.iter_mut().for_each(|head| head.closed[1] += 7.0),
            LayerStats::Following(heads) => heads.iter_mut().for_each(|head| head.scores[0][1] += 5.0),
            LayerStats::Queries(_) => unreachable!(),
        }
    }
    let all = PromptStats::beside(&[&stats, &other], 3).unwrap();
    for (sequence, own) in [&stats, &other, &stats].into_iter().enumerate() {
        for kv_head in 0..SHAPE.kv_heads {
            let (ours, own) = (all.head(0, sequence * SHAPE.kv_heads + kv_head), own.head(0, kv_head));
            assert_eq!(ours.group(), own.group());
            (0..own.group()).for_each(|head| assert_eq!(ours.attention_mass(head), own.attention_mass(head)));
            assert_eq!(ours.following_scores(3), own.following_scores(3));
        }
    }
    let queries = PromptStats::beside(&[&gathered(&[PromptNeed::LastQueries(3)], 9)], 2).unwrap();
    assert_eq!((queries.needs().count(), PromptStats::beside(&[], 2).is_none()), (0, true));
}

#[test]
fn attention_mass_is_the_sum_of_softmax_weights_and_sums_to_the_number_of_queries() {
    for chunk in CHUNKS {
        let stats = gathered(&[PromptNeed::AttentionMass], chunk);
        for (layer, kv_head, head) in [(0, 0, 0), (0, 1, 1), (1, 0, 1)] {
            let mut expected = vec![0.0f64; SHAPE.tokens];
            for t in 0..SHAPE.tokens {
                let logits: Vec<f64> =
                    (0..=t).map(|k| dot(layer, t, 2 * kv_head + head, k) / (SHAPE.d as f64).sqrt()).collect();
                let sum: f64 = logits.iter().map(|l| l.exp()).sum();
                expected.iter_mut().zip(logits).for_each(|(e, l)| *e += l.exp() / sum);
            }
            let mass = stats.head(layer, kv_head).attention_mass(head);
            for (m, e) in mass.iter().zip(&expected) {
                assert!((f64::from(*m) - e).abs() < 1e-4, "{m} against {e}");
            }
            let total: f64 = mass.iter().map(|m| f64::from(*m)).sum();
            assert!((total - SHAPE.tokens as f64).abs() < 1e-3, "{total}");
        }
    }
}

#[test]
fn following_scores_are_means_over_the_tokens_after() {
    for (chunk, n) in CHUNKS.into_iter().flat_map(|c| [(c, 1), (c, 6), (c, 30), (c, 500)]) {
        let stats = gathered(&[PromptNeed::FollowingScores(n)], chunk);
        for (layer, kv_head) in [(0, 1), (1, 0)] {
            let scores = stats.head(layer, kv_head).following_scores(n);
            for (token, score) in scores.iter().enumerate() {
                let followers = token + 1..(token + 1 + n).min(SHAPE.tokens);
                let count = (followers.len() * 2) as f64;
                let pairs = followers.flat_map(|t| [(t, 2 * kv_head), (t, 2 * kv_head + 1)]);
                let sum: f64 = pairs.map(|(t, head)| dot(layer, t, head, token)).sum();
                let mean = if count > 0.0 { sum / count } else { 0.0 };
                assert!((f64::from(*score) - mean).abs() < 1e-4, "chunk {chunk}, n {n}: {score} against {mean}");
            }
        }
    }
}

#[test]
fn what_is_kept_is_what_was_said_and_an_empty_prefix_keeps_nothing() {
    let needs = [
        PromptNeed::LastQueries(5),
        PromptNeed::SampledQueries(9),
        PromptNeed::AttentionMass,
        PromptNeed::FollowingScores(4),
    ];
    let stats = gathered(&needs, 11);
    for need in needs {
        let kept = stats.gathered[&need].layers.iter().map(|layer| match layer {
            LayerStats::Queries(stores) => stores.iter().map(KvStore::bytes).sum::<usize>(),
            LayerStats::Mass(heads) => heads.iter().map(|h| size_of_val(h.of_prefix()) + h.open.len()).sum(),
            LayerStats::Following(heads) => {
                heads.iter().map(|h| size_of_val(h.scores[0].as_slice()) + h.sums.len()).sum()
            }
        });
        assert_eq!(kept.sum::<usize>(), need.bytes(&SHAPE), "{need:?}");
    }
    let empty = PromptShape { tokens: 0, ..SHAPE };
    let stats = PromptStats::new(&needs.into_iter().collect(), empty);
    assert_eq!(stats.head(1, 1).attention_mass(0).len(), 0);
    assert_eq!(stats.head(0, 0).last_queries(5, 1).elements(), 0);
}

const NEEDS: [PromptNeed; 8] = [
    PromptNeed::LastQueries(5),
    PromptNeed::LastQueries(40),
    PromptNeed::SampledQueries(9),
    PromptNeed::SampledQueries(50),
    PromptNeed::AttentionMass,
    PromptNeed::FollowingScores(1),
    PromptNeed::FollowingScores(7),
    PromptNeed::FollowingScores(33),
];

/// All statistics of [`NEEDS`] that methods can read, as bits.
fn bits(stats: &PromptStats) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let mut add = |numbers: &[f32]| all.push(numbers.iter().map(|x| x.to_bits()).collect());
    for (layer, kv_head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let place = stats.head(layer, kv_head);
        for head in 0..2 {
            [5, 40].iter().for_each(|n| add(&place.last_queries(*n, head).to_f32()));
            for n in [9, 50] {
                let (positions, rows) = place.sampled_queries(n, head);
                add(&positions.iter().map(|p| *p as f32).collect::<Vec<_>>());
                add(&rows.to_f32());
            }
            add(place.attention_mass(head));
        }
        [1, 7, 33].iter().for_each(|n| add(place.following_scores(*n)));
    }
    all
}

#[test]
fn pieces_do_not_change_a_bit() {
    let whole = bits(&gathered(&NEEDS, 100));
    for chunk in CHUNKS {
        assert!(bits(&gathered(&NEEDS, chunk)) == whole, "chunks of {chunk}");
    }
}

#[test]
fn a_longer_prefix_that_is_gone_on_to_is_as_if_read_alone() {
    let needs: BTreeSet<PromptNeed> = NEEDS.into();
    let shape = |tokens| PromptShape { tokens, ..SHAPE };
    let alone = |tokens| bits(&read(PromptStats { block: 20, ..PromptStats::new(&needs, shape(tokens)) }, 0, 100));
    // Lengths within a block, at its end, and one token beyond; all in one block; and closer together than the
    // number of last queries.
    for lengths in [[17, 33, 53], [20, 40, 53], [19, 20, 21], [1, 2, 3], [39, 41, 44]] {
        for (chunk, back) in [(100, 0), (7, 0), (6, 4)] {
            let stats = PromptStats::of_nested(&needs, shape(lengths[0]), &lengths[1..]);
            let mut stats = read(PromptStats { block: 20, ..stats }, 0, chunk);
            assert!(bits(&stats) == alone(lengths[0]), "{lengths:?}");
            for pair in lengths.windows(2) {
                stats = stats.continued(&needs, pair[1]).unwrap();
                // Some tokens may be read again.
                stats = read(stats, pair[0] - back.min(pair[0]), chunk);
                assert!(bits(&stats) == alone(pair[1]), "{lengths:?}, chunks of {chunk}, {back} read again");
            }
        }
        // A planned length may be skipped.
        let stats = PromptStats::of_nested(&needs, shape(lengths[0]), &lengths[1..]);
        let stats = read(PromptStats { block: 20, ..stats }, 0, 100).continued(&needs, lengths[2]).unwrap();
        assert!(bits(&read(stats, lengths[0], 100)) == alone(lengths[2]), "{lengths:?}");
    }
}

#[test]
fn what_was_not_foreseen_is_not_gone_on_to() {
    let few = BTreeSet::from([PromptNeed::AttentionMass]);
    let stats = || PromptStats::of_nested(&few, PromptShape { tokens: 20, ..SHAPE }, &[30]);
    assert!(stats().continued(&few, 30).is_none(), "it was not read to its end");
    let read = || read(stats(), 0, 7);
    assert!(read().continued(&few, 30).is_some() && read().continued(&few, 31).is_none());
    let same = read().continued(&few, 20).unwrap();
    assert_eq!(same.head(1, 0).attention_mass(1), read().head(1, 0).attention_mass(1));
    assert!(read().continued(&BTreeSet::from(NEEDS), 30).is_none());
}

#[test]
fn threads_do_not_change_a_bit() {
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let stats = pool.install(|| gathered(&[PromptNeed::AttentionMass, PromptNeed::FollowingScores(9)], 20));
        let head = stats.head(1, 1);
        (head.attention_mass(1).to_vec(), head.following_scores(9).to_vec())
    };
    assert_eq!(with(1), with(2));
}
