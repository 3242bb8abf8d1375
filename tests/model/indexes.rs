//! The recall of searched indexes on the built-in model, with keys of a real prefill and queries of the tokens after it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use spattn::attention::methods::configure;
use spattn::attention::{
    Context, HeadPrefix, Policy, PromptNeed, PromptStats, Selection, SparseLayerRank, Step, expand_grid,
};
use spattn::cost::Cost;
use spattn::kernels::cpu::Rows;
use spattn::kv::KvRows;
use spattn::model::Model;
use spattn::model::engine::Prefill;
use spattn::model::source::ModelSource;
use spattn::model::tokenizer::TokenizerOptions;
use spattn::tasks::text::essays::Essays;

const TOKENS: usize = 2000;
/// The number of last tokens whose queries search the index.
const ASKING: usize = 16;
/// The number of tokens between the candidates and the searching tokens. They are always attended.
const LOCAL: usize = 64;
const SINK: usize = 4;

struct Scene {
    model: Model,
    prefill: Prefill,
    stats: PromptStats,
    /// The queries of the searching tokens, by layer, as `[token][head][d]`.
    queries: Vec<Vec<f32>>,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let model = Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let text = Essays::Grammar.reader(0xe5a1, 7).text(TOKENS);
    let mut ids = model.tokenizer.encode_text(&text, true).unwrap();
    ids.truncate(TOKENS);
    let read = ids.len() - ASKING;
    let prompt_needs: BTreeSet<PromptNeed> =
        configure(&expand_grid("retrieval_attention").unwrap()[0], &Policy::default())
            .unwrap()
            .method
            .prompt_needs()
            .into_iter()
            .collect();
    let mut stats = PromptStats::new(&prompt_needs, model.decoder.prompt_shape(read));
    model.decoder.prefill_observed(&ids[..read], ids.len(), &mut |chunk| stats.observe(chunk)).unwrap();
    let mut queries = vec![Vec::new(); model.shape().layers];
    let prefill = model
        .decoder
        .prefill_observed(&ids, ids.len(), &mut |chunk| {
            let width = chunk.heads * chunk.d();
            let asking = read.saturating_sub(chunk.first).min(chunk.tokens());
            queries[chunk.layer].extend_from_slice(&chunk.queries()?[asking * width..]);
            Ok(())
        })
        .unwrap();
    Scene { model, prefill, stats, queries }
});

/// The tokens selected for each query of each layer, and the total cost.
fn picks(spec: &str) -> (Vec<Vec<u32>>, Cost) {
    let Scene { model, prefill, stats, queries } = &*SCENE;
    let (shape, tokens) = (model.shape(), prefill.prefix.tokens());
    let (d, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let method = configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap().method;
    let candidates = SINK..tokens - ASKING - LOCAL;
    let (mut picks, mut cost) = (Vec::new(), Cost::default());
    for (layer, queries) in queries.iter().enumerate() {
        for kv_head in 0..shape.kv_heads {
            let kv = prefill.prefix.layer(layer).unwrap();
            let (keys, values) = (kv.keys.head(kv_head), kv.values.head(kv_head));
            let (dtype, prompt, seed) = (model.decoder.dtype(), stats.head(layer, kv_head), 17);
            let span = candidates.clone();
            let prefix = HeadPrefix {
                layer,
                depth: SparseLayerRank::default(),
                rotation: None,
                kv_head,
                keys: KvRows::lent(keys, d),
                values: KvRows::lent(values, d),
                d,
                scale: prefill.prefix.spec(layer).scale,
                dtype,
                candidates: span,
                prompt,
                seed,
            };
            let index = method.build(&prefix).unwrap();
            let mut state = method.start(index.as_ref());
            for asking in 0..ASKING {
                let first = (asking * shape.heads + kv_head * group) * d;
                let step = Step {
                    layer,
                    depth: SparseLayerRank { rank: layer, of: shape.layers, ..SparseLayerRank::default() },
                    kv_head,
                    queries: &queries[first..first + group * d],
                    d,
                    scale: prefix.scale,
                    keys: KvRows::lent(keys, d),
                    values: KvRows::lent(values, d),
                    tail_keys: Rows::F32(&[]),
                    tail_values: Rows::F32(&[]),
                    dtype: spattn::kv::KvDtype::F32,
                    indexed: candidates.clone(),
                    candidates: candidates.clone(),
                    has_moving_candidates: false,
                    context: Context::new(tokens - ASKING + asking + 1, &candidates),
                    grouped: None,
                    generated: asking,
                    seed,
                };
                match method.select(&step, index.as_ref(), state.as_mut(), &mut cost).unwrap() {
                    Selection::PerHead(heads) => picks.extend(heads.into_iter().map(|p| p.tokens)),
                    Selection::Shared(_) => panic!("a set for each query head"),
                }
            }
        }
    }
    (picks, cost)
}

/// The share of the exact top-k that a method selects, as mean and as the minimum over layers; and its share of all inner products.
fn recall(spec: &str, exact: &str) -> (f64, f64, f64) {
    let ((found, cost), (wanted, scan)) = (picks(spec), picks(exact));
    let share = |(found, wanted): (&Vec<u32>, &Vec<u32>)| {
        wanted.iter().filter(|t| found.binary_search(t).is_ok()).count() as f64 / wanted.len() as f64
    };
    let shares: Vec<f64> = found.iter().zip(&wanted).map(share).collect();
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len() as f64;
    let layers = SCENE.model.shape().layers;
    let least = shares.chunks(shares.len() / layers).map(mean).fold(1.0, f64::min);
    (mean(&shares), least, cost.score_flops as f64 / scan.score_flops as f64)
}

#[test]
fn graphs_find_what_a_scan_finds_by_scoring_a_part() {
    for (spec, exact) in [
        ("knn:k=64", "topk:k=64"),
        ("knn:k=16", "topk:k=16"),
        ("knn:k=400", "topk:k=400"),
        ("retrieval_attention", "topk:k=100"),
        ("retrieval_attention:k=400", "topk:k=400"),
    ] {
        let (mean, least, share) = recall(spec, exact);
        println!("{spec}: recall {mean:.4}, least of a layer {least:.4}, inner products {share:.3}");
        assert!(mean >= 0.95 && least >= 0.9 && share < 1.0, "{spec}: {mean}, {least}, {share}");
    }
}

#[test]
fn quantised_keys_find_more_with_more_bits() {
    let of = |spec: &str| recall(spec, "topk:k=200").0;
    let (few, some, many) = (of("pqcache:k=200,bits=2"), of("pqcache:k=200"), of("pqcache:k=200,subspaces=16,bits=8"));
    println!("recall {few:.3}, {some:.3}, {many:.3}");
    assert!(few + 0.02 < some && some + 0.1 < many, "{few}, {some}, {many}");
}
