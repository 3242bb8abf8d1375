use super::super::tests::{configured, noise, none, prefix, random_kv, run, select};
use super::*;
use crate::calibration::artefact::{ArtefactInfo, FORMAT, write};
use crate::kv::{KvRows, LayerKv};
use crate::{PromptHead, SoftmaxScale, SparseLayerRank};
use spattn_kernels::Rows;

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> ModelShape {
    ModelShape { weights_sha256: String::new(), layers: 1, heads, kv_heads, head_dim }
}

#[test]
fn all_channels_in_16_bits_pick_exactly_what_topk_picks() {
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let kv = random_kv(dtype, 1, 300, 64, 3);
        let queries = noise(4 * 64, 8);
        for options in ["k=20", "k=20,per=kv_head"] {
            let exact = select(&format!("topk:{options}"), &kv, &queries, 4..280).0;
            let spec = format!("double_sparsity:channels=d,label_bits=16,{options}");
            assert_eq!(select(&spec, &kv, &queries, 4..280).0, exact, "{dtype:?}");
        }
    }
}

fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let mean = |x: &[f32]| x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let products = a.iter().zip(b).map(|(x, y)| ((f64::from(*x) - ma), (f64::from(*y) - mb)));
    let (ab, aa, bb) = products.fold((0.0, 0.0, 0.0), |s, (x, y)| (s.0 + x * y, s.1 + x * x, s.2 + y * y));
    ab / (aa * bb).sqrt()
}

#[test]
fn scores_of_few_bits_follow_those_of_sixteen() {
    // Two channels are far larger than the others and not centred at 0, as in real keys.
    let (n, d) = (700, 32);
    let mut keys = noise(n * d, 1);
    keys.chunks_mut(d).for_each(|k| (k[3], k[17]) = (30.0 + 8.0 * k[3], 5.0 * k[17] - 20.0));
    let queries = noise(d, 2);
    let rows = Rows::F32(&keys);
    let (layer, kv_head, dtype, prompt) = (0, 0, KvDtype::F32, PromptHead::default());
    let head = HeadPrefix {
        layer,
        depth: SparseLayerRank::default(),
        rotation: None,
        kv_head,
        keys: KvRows::lent(rows, d),
        values: KvRows::lent(rows, d),
        d,
        scale: SoftmaxScale::inverse_root(d),
        dtype,
        candidates: 0..n,
        prompt,
        seed: 0,
    };
    let asked = GroupQueries { layer, kv_head, queries: &queries, rows: 1, d, scale: head.scale };
    let scores = |bits: usize| {
        let scorer =
            LabelScores { channels: Channels::Share(2), bits, kind: Kind::Random, offload: false, rankings: None };
        label_scores(&asked, &scorer.build(&head).unwrap(), &mut Cost::default())
    };
    let (exact, four, two) = (scores(16), scores(4), scores(2));
    assert!(correlation(&exact, &four) > 0.98, "{}", correlation(&exact, &four));
    assert!(correlation(&exact, &two) > 0.8 && correlation(&exact, &two) < correlation(&exact, &four));
}

#[test]
fn labels_cost_what_is_stored_and_read() {
    let prefix = prefix(1, 1, 1280, 32);
    let cost = |spec: &str| {
        let (_, fork) = run(&prefix, spec, &none(), 2, 1);
        (fork.aux_bits(), fork.costs().total(|_| true))
    };
    // A channel of 128 tokens has a range of 8 bytes: half a bit a number.
    for (bits, stored) in [(4, 4.5), (2, 2.5), (16, 16.0)] {
        let (aux, cost) = cost(&format!("double_sparsity:channels=8,label_bits={bits},kind=random,k=16"));
        assert_eq!(aux, 8.0 * stored, "{bits} bits");
        assert_eq!(cost.aux_bytes as f64, 1280.0 * 8.0 * stored / 8.0, "labels are read once for the group");
        assert!((cost.cost1() - 8.0 / 64.0).abs() < 2e-3, "8 of 32 channels, and no values");
        assert_eq!(cost.kv_bytes, (2 * 16 + 1) * 2 * 32 * 4, "only picks and the own token are read");
    }
}

/// Two KV heads with two query heads each; KV head 0 has large queries at channels 1 and 5, large keys at 2.
fn planted() -> Artefact {
    let (tokens, d) = (40, 8);
    let mut queries = noise(tokens * 4 * d, 5);
    let mut kv = LayerKv::new(KvDtype::F32, 2, d, tokens);
    for (t, query) in queries.chunks_mut(4 * d).enumerate() {
        query[1] = 50.0;
        query[d + 5] = -80.0;
        let mut key = noise(2 * d, t as u64);
        key[2] = -30.0;
        key[5] = 0.0;
        key[d + 7] = 40.0;
        kv.append(&key, &key);
    }
    let model = shape(4, 2, d);
    let mut collector = super::super::tests::collector(NAME, &model, 0);
    collector.observe(&PrefillChunk::new(0, 0, &queries, 4, &kv)).unwrap();
    let Collected { tensors, settings, notes, .. } = collector.finish();
    assert!(notes[0].contains("of 8 channels carry"), "{notes:?}");
    let (kind, data) = (NAME.to_owned(), String::new());
    let info = ArtefactInfo { format: FORMAT, kind, model, data, seed: 0, blocks: 1, tokens, settings };
    Artefact::parse("planted", write(&info, &tensors)).unwrap()
}

#[test]
fn planted_channels_come_first_by_each_measure_summed_over_the_group() {
    let artefact = planted();
    let ranking = |kind, kv_head| {
        let scorer = LabelScores { channels: Channels::Share(4), bits: 4, kind, offload: false, rankings: None };
        scorer.with_rankings(&artefact).unwrap().ranking(0, kv_head, 8)
    };
    assert_eq!(ranking(Kind::Calibrated("q"), 0)[..2], [5, 1]);
    assert_eq!(ranking(Kind::Calibrated("k"), 0)[0], 2);
    // Means over the group: about 30·(0.75 + 0.75) at channel 2, 0.75·(50 + 0.75) at 1; keys are 0 at 5.
    assert_eq!(ranking(Kind::Calibrated("qk"), 0)[..2], [2, 1]);
    assert_eq!(ranking(Kind::Calibrated("qk"), 1)[0], 7);
    let mut random = ranking(Kind::Random, 0);
    assert_ne!(random, ranking(Kind::Random, 1));
    random.sort_unstable();
    assert_eq!(random, (0..8).collect::<Vec<_>>());
}

/// RoPE spreads a query that is large and constant in one channel over both channels of its pair.
#[test]
fn channels_are_measured_before_rope_as_the_authors_hooks_do() {
    let (tokens, d) = (200, 8);
    let forth = |x: &mut [f32], position: usize| {
        for pair in 0..d / 2 {
            let (sin, cos) = super::super::tests::angle(pair, d, position).sin_cos();
            let (a, b) = (f64::from(x[pair]), f64::from(x[pair + d / 2]));
            (x[pair], x[pair + d / 2]) = ((a * cos - b * sin) as f32, (b * cos + a * sin) as f32);
        }
    };
    let (mut queries, mut kv) = (Vec::new(), LayerKv::new(KvDtype::F32, 1, d, tokens));
    for t in 0..tokens {
        let (mut query, mut key) = (noise(d, t as u64), noise(d, 999 + t as u64));
        (query[1], key[6]) = (7.0, -9.0);
        forth(&mut query, t);
        forth(&mut key, t);
        queries.extend(query);
        kv.append(&key, &key);
    }
    let mut collector = super::super::tests::collector(NAME, &shape(1, 1, d), 0);
    collector.observe(&PrefillChunk::new(0, 0, &queries, 1, &kv)).unwrap();
    let Collected { tensors, .. } = collector.finish();
    let means = |name: &str| &tensors.iter().find(|t| t.name == format!("layers.0.{name}")).unwrap().values;
    let (q_pre, k_pre, q, k) = (means("q_pre"), means("k_pre"), means("q"), means("k"));
    assert!((q_pre[1] - 7.0).abs() < 1e-3 && (k_pre[6] - 9.0).abs() < 1e-3, "{q_pre:?} {k_pre:?}");
    assert!(q_pre[5] < 1.0 && k_pre[2] < 1.0, "the other halves of these pairs are noise");
    assert!(q[1] > 3.0 && q[5] > 3.0 && k[6] > 3.0 && k[2] > 3.0, "behind RoPE both halves are large: {q:?} {k:?}");
    let settings = |spec: &str| {
        let settings = configured(spec, &none()).settings;
        settings.into_iter().find(|s| s.key == "rope").map(|s| (s.value, s.is_named)).unwrap()
    };
    assert_eq!(settings("double_sparsity:kind=q"), ("pre".to_owned(), false));
    assert_eq!(settings("double_sparsity:kind=q,rope=post"), ("post".to_owned(), true));
    assert_eq!(settings("double_sparsity"), ("post".to_owned(), false));
}

#[test]
fn only_random_channels_need_no_artefact_and_others_get_theirs_checked() {
    let needs = |spec: &str| configured(spec, &none()).method.calibration();
    assert_eq!(needs("double_sparsity:kind=random"), None);
    assert_eq!(needs("double_sparsity:kind=k"), Some("double_sparsity"));
    let info = planted().info().clone();
    let empty = Artefact::parse("x", write(&info, &[])).unwrap();
    let error = configured("double_sparsity", &none()).calibrated(&empty).unwrap_err();
    assert_eq!(error.to_string(), "x: tensor `layers.0.qk` is missing");
}
