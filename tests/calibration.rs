//! What the shipped calibration is worth on the built-in model: real prefills, real queries.
//!
//! Nothing here depends on the values in the shipped files, only on their fitting the shipped model.

use std::sync::LazyLock;

use spattn::attention::artefact::Artefact;
use spattn::attention::methods::{CALIBRATIONS, configure};
use spattn::attention::{Configured, Fork, IndexCache, Policy, expand_grid};
use spattn::eval::calibration::supply;
use spattn::kernels::cpu::topk::top_k;
use spattn::kv::quantised::QuantisedRows;
use spattn::model::Model;
use spattn::model::calibration::CalibrationPlace;
use spattn::model::decoder::{Prefill, Stream};
use spattn::model::source::ModelSource;
use spattn::model::tokenizer::TokenizerOptions;
use spattn::tasks::text::essays::Essays;

static MODEL: LazyLock<Model> =
    LazyLock::new(|| Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap());

/// Text that calibration never reads.
fn tokens(count: usize) -> Vec<u32> {
    let text = Essays::Grammar.reader(0xe5a1, 7).text(count);
    let mut ids = MODEL.tokenizer.encode_text(&text, true).unwrap();
    ids.truncate(count);
    ids
}

fn configured(spec: &str) -> Configured {
    let mut methods = [configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap()];
    supply(&mut methods, &MODEL, None).unwrap();
    let [method] = methods;
    method
}

#[test]
fn every_kind_is_shipped_for_the_shipped_model_and_small() {
    let mut total = 0;
    for calibration in CALIBRATIONS {
        let bytes = CalibrationPlace::Embedded.read(calibration.kind).unwrap().expect("shipped");
        total += bytes.len();
        let artefact = Artefact::parse(calibration.kind, bytes).unwrap();
        artefact.check(calibration.kind, &MODEL.shape()).unwrap();
        assert!(artefact.info().tokens >= 10_000 && !artefact.info().data.is_empty(), "{:?}", artefact.info());
    }
    assert!(total <= 4 << 20, "{total} bytes");
    assert!(configured("loki").artefact.is_some() && configured("topk").artefact.is_none());
}

/// Mean recall over layers and heads while some tokens are read after a prefix of essays.
fn recall(cache: &mut IndexCache, prefill: &Prefill, unread: &[u32], spec: &str) -> f64 {
    let mut fork: Fork = cache.fork(&configured(spec), true);
    let prompt = prefill.prefix.tokens() + unread.len();
    MODEL.decoder.step(&mut [Stream { fork: &mut fork, tokens: unread }], prompt);
    let heads = fork.fidelity().unwrap().recall().concat();
    heads.iter().sum::<f64>() / heads.len() as f64
}

#[test]
fn calibrated_channels_and_components_find_more_than_random_channels() {
    let all = tokens(2000);
    let (read, unread) = all.split_at(1960);
    let prefill = MODEL.decoder.prefill(read, all.len());
    let mut cache = IndexCache::new(prefill.prefix.clone(), MODEL.decoder.dtype(), 1);
    let mut recall = |spec: &str| recall(&mut cache, &prefill, unread, spec);
    for channels in ["d/16", "d/8", "d/4"] {
        let mut of =
            |kind: &str| recall(&format!("double_sparsity:channels={channels},label_bits=16,k=64,kind={kind}"));
        let (random, qk, q) = (of("random"), of("qk"), of("q"));
        assert!(qk > random + 0.02 && q > random + 0.02, "{channels}: random {random}, qk {qk}, q {q}");
        let loki = recall(&format!("loki:rank={channels},k=64"));
        assert!(loki > random + 0.02, "{channels}: random {random}, loki {loki}");
    }
}

fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let mean = |x: &[f32]| x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let centred = a.iter().zip(b).map(|(x, y)| (f64::from(*x) - ma, f64::from(*y) - mb));
    let (ab, aa, bb) = centred.fold((0.0, 0.0, 0.0), |s, (x, y)| (s.0 + x * y, s.1 + x * x, s.2 + y * y));
    ab / (aa * bb).sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[test]
fn labels_in_four_bits_score_as_labels_in_sixteen_on_the_models_keys() {
    let model = MODEL.shape();
    let (d, group) = (model.head_dim, model.heads / model.kv_heads);
    let bytes = CalibrationPlace::Embedded.read("double_sparsity").unwrap().unwrap();
    let artefact = Artefact::parse("shipped", bytes).unwrap();
    let mut correlations = Vec::new();
    let ids = tokens(1500);
    MODEL.decoder.prefill_observed(&ids, ids.len(), &mut |chunk| {
        let means = artefact.read(&format!("layers.{}.qk", chunk.layer), &[model.heads, d]).unwrap();
        let last = chunk.tokens() - 1;
        for head in 0..model.heads {
            let channels = top_k(&means[head * d..][..d], d / 8);
            let label = |row: &[f32]| -> Vec<f32> { channels.iter().map(|c| row[*c as usize]).collect() };
            let labels: Vec<f32> = chunk.keys(head / group).chunks(d).flat_map(label).collect();
            let query = label(chunk.query(last, head));
            let exact: Vec<f32> = labels.chunks(channels.len()).map(|row| dot(&query, row)).collect();
            let mut few_bits = vec![0.0; exact.len()];
            QuantisedRows::new(&labels, channels.len(), 4).scores(&query, &mut few_bits);
            correlations.push(correlation(&exact, &few_bits));
        }
    });
    let mean = correlations.iter().sum::<f64>() / correlations.len() as f64;
    let least = correlations.iter().copied().fold(1.0, f64::min);
    assert_eq!(correlations.len(), model.layers * model.heads);
    assert!(mean > 0.98 && least > 0.95, "mean {mean}, least {least}");
}

#[test]
fn what_is_observed_is_what_is_cached() {
    // Longer than a chunk, so that positions have to go on.
    let ids = tokens(2500);
    let (mut seen, mut order) = (Vec::new(), Vec::new());
    let prefill = MODEL.decoder.prefill_observed(&ids, ids.len(), &mut |chunk| {
        order.push((chunk.first, chunk.layer));
        assert_eq!(chunk.queries.len(), chunk.tokens() * chunk.heads * chunk.d());
        if chunk.layer == 3 {
            seen.extend(chunk.keys(1));
        }
    });
    assert_eq!(seen, prefill.prefix.layer(3).keys.head(1).to_f32());
    let layers = MODEL.shape().layers;
    assert_eq!(order.len(), 2 * layers);
    assert!(order.is_sorted() && order[layers].0 > 0);
    assert_eq!(prefill.logits, MODEL.decoder.prefill(&ids, ids.len()).logits);
}
