//! The quality of the shipped calibrations on the built-in model, with real prefills and real queries.
//!
//! The tests do not depend on the values in the shipped files, but only on whether they fit the shipped model.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::LazyLock;
use std::time::Duration;

use spattn::attention::artefact::Artefact;
use spattn::attention::methods::{CALIBRATIONS, configure};
use spattn::attention::{
    Configured, Context, HeadPrefix, IndexCache, Policy, PromptHead, Selection, Sequence, SparseLayerRank, Step,
    expand_grid,
};
use spattn::cost::Cost;
use spattn::eval::calibration::calibrate::{CalibrationOrder, CalibrationOutcome, CalibrationPlan, Text};
use spattn::eval::calibration::checkpoints::Checkpoints;
use spattn::eval::calibration::supply::supply;
use spattn::eval::examples::token_counter::Counter;
use spattn::kernels::cpu::Rows;
use spattn::kernels::cpu::topk::top_k;
use spattn::kv::KvRows;
use spattn::kv::quantised::QuantisedRows;
use spattn::model::Model;
use spattn::model::calibration::CalibrationPlace;
use spattn::model::engine::{Prefill, Stream};
use spattn::model::source::ModelSource;
use spattn::model::tokenizer::TokenizerOptions;
use spattn::tasks::seed::example_seed;
use spattn::tasks::text::essays::Essays;
use spattn::tasks::{Task, TaskOptions, resolve};

static MODEL: LazyLock<Model> =
    LazyLock::new(|| Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap());

/// Text that no calibration reads.
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

/// Mean recall over layers and heads while more tokens are read after a prefix of essays.
fn recall(cache: &mut IndexCache, prefill: &Prefill, unread: &[u32], spec: &str) -> f64 {
    let mut fork: Sequence = cache.fork(&configured(spec), true).unwrap();
    let prompt = prefill.prefix.tokens() + unread.len();
    MODEL.decoder.step(&mut [Stream { fork: &mut fork, tokens: unread }], prompt).unwrap();
    let heads = fork.fidelity().unwrap().recall().concat();
    heads.iter().sum::<f64>() / heads.len() as f64
}

#[test]
fn calibrated_channels_and_components_find_more_than_random_channels() {
    let all = tokens(2000);
    let (read, unread) = all.split_at(1960);
    let prefill = MODEL.decoder.prefill(read, all.len()).unwrap();
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
    MODEL
        .decoder
        .prefill_observed(&ids, ids.len(), &mut |chunk| {
            let chunk = chunk.on_host()?;
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
            Ok(())
        })
        .unwrap();
    let mean = correlations.iter().sum::<f64>() / correlations.len() as f64;
    let least = correlations.iter().copied().fold(1.0, f64::min);
    assert_eq!(correlations.len(), model.layers * model.heads);
    assert!(mean > 0.98 && least > 0.95, "mean {mean}, least {least}");
}

#[test]
fn what_is_observed_is_what_is_cached() {
    // More than a chunk, so positions must continue in the next chunk.
    let ids = tokens(2500);
    let (mut seen, mut order) = (Vec::new(), Vec::new());
    let prefill = MODEL
        .decoder
        .prefill_observed(&ids, ids.len(), &mut |chunk| {
            order.push((chunk.first, chunk.layer));
            let chunk = chunk.on_host()?;
            assert_eq!(chunk.queries().len(), chunk.tokens() * chunk.heads * chunk.d());
            if chunk.layer == 3 {
                seen.extend(chunk.keys(1));
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, prefill.prefix.layer(3).unwrap().keys.head(1).to_f32());
    let layers = MODEL.shape().layers;
    assert_eq!(order.len(), 2 * layers);
    assert!(order.is_sorted() && order[layers].0 > 0);
    assert_eq!(prefill.logits, MODEL.decoder.prefill(&ids, ids.len()).unwrap().logits);
}

/// Prompts of an evaluation, which no calibration reads.
fn evaluated_prompts(length: usize) -> Vec<Vec<u32>> {
    let names = ["ruler/niah_multikey_1", "ruler/vt", "ruler/cwe", "ruler/fwe", "ruler/qa_synth"].map(str::to_owned);
    let prompt = |task: Box<dyn Task>| {
        let seed = example_seed(42, task.name(), length, 0);
        let example = task.example(length, 0, seed, &Counter(&MODEL.tokenizer)).unwrap();
        MODEL.tokenizer.encode_prompt(&example.user_turn(), &example.answer_prefix).unwrap().ids
    };
    resolve(&names, &TaskOptions::default()).unwrap().into_iter().map(prompt).collect()
}

/// The number of tokens at the end of a prompt whose queries select. The prefix ends before them.
const ASKED: usize = 24;

/// The share of the exact top 64 that each method selects in each layer, by number and by attention weight: means over prompts, KV heads
/// and the last tokens' queries.
fn found_of_the_top_64(prompts: &[Vec<u32>], specs: &[&str]) -> Vec<Vec<[f64; 2]>> {
    let methods: Vec<Configured> = specs.iter().map(|spec| configured(spec)).collect();
    let exact = configured("topk:k=64");
    let (layers, d) = (MODEL.shape().layers, MODEL.shape().head_dim);
    let mut sums = vec![vec![([0.0; 2], 0); layers]; specs.len()];
    for ids in prompts {
        MODEL
            .decoder
            .prefill_observed(ids, ids.len(), &mut |chunk| {
                if chunk.end() < ids.len() {
                    return Ok(());
                }
                let chunk = chunk.on_host()?;
                let candidates = 4..ids.len() - ASKED - 64;
                for kv_head in 0..MODEL.shape().kv_heads {
                    let (keys, values) = (chunk.kv().keys.head(kv_head), chunk.kv().values.head(kv_head));
                    let (layer, dtype, seed) = (chunk.layer, MODEL.decoder.dtype(), 1);
                    let (span, prompt) = (candidates.clone(), PromptHead::default());
                    let prefix = HeadPrefix {
                        layer,
                        depth: SparseLayerRank::default(),
                        rotation: None,
                        kv_head,
                        keys: KvRows::lent(keys, d),
                        values: KvRows::lent(values, d),
                        d,
                        scale: chunk.scale(),
                        dtype,
                        candidates: span,
                        prompt,
                        seed,
                    };
                    let indexes: Vec<_> = methods.iter().map(|m| m.method.build(&prefix).unwrap()).collect();
                    for token in chunk.tokens() - ASKED..chunk.tokens() {
                        let group = MODEL.shape().group();
                        let queries: Vec<f32> =
                            (0..group).flat_map(|h| chunk.query(token, kv_head * group + h)).copied().collect();
                        let step = Step {
                            layer,
                            depth: SparseLayerRank::default(),
                            kv_head,
                            queries: &queries,
                            d,
                            scale: chunk.scale(),
                            keys: KvRows::lent(keys, d),
                            values: KvRows::lent(values, d),
                            tail_keys: Rows::F32(&[]),
                            tail_values: Rows::F32(&[]),
                            dtype,
                            indexed: candidates.clone(),
                            candidates: candidates.clone(),
                            context: Context::new(chunk.first + token + 1, &candidates),
                            has_moving_candidates: false,
                            grouped: None,
                            generated: 0,
                            seed,
                        };
                        let picks = |method: &Configured, index: &dyn Any| {
                            let mut state = method.method.start(index);
                            match method.method.select(&step, index, state.as_mut(), &mut Cost::default()).unwrap() {
                                Selection::PerHead(heads) => heads,
                                Selection::Shared(_) => panic!("a selection for each query head"),
                            }
                        };
                        let wanted = picks(&exact, exact.method.build(&prefix).unwrap().as_ref());
                        let attention: Vec<Vec<f64>> = wanted
                            .iter()
                            .enumerate()
                            .map(|(head, wanted)| {
                                let key = |t: &u32| keys.slice(*t as usize..*t as usize + 1, d).to_f32();
                                let logits: Vec<f32> = wanted
                                    .tokens
                                    .iter()
                                    .map(|t| step.scale.factor() * dot(step.query(head), &key(t)))
                                    .collect();
                                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                                let weights: Vec<f64> = logits.iter().map(|l| f64::from(l - most).exp()).collect();
                                weights.iter().map(|w| w / weights.iter().sum::<f64>()).collect()
                            })
                            .collect();
                        for (i, (method, index)) in methods.iter().zip(&indexes).enumerate() {
                            for ((picked, wanted), shares) in
                                picks(method, index.as_ref()).iter().zip(&wanted).zip(&attention)
                            {
                                for (token, share) in wanted.tokens.iter().zip(shares) {
                                    let found = f64::from(u8::from(picked.tokens.contains(token)));
                                    sums[i][layer].0[0] += found / wanted.tokens.len() as f64;
                                    sums[i][layer].0[1] += found * share;
                                }
                                sums[i][layer].1 += 1;
                            }
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
    }
    let mean = |layers: Vec<([f64; 2], usize)>| layers.into_iter().map(|(s, n)| s.map(|s| s / n as f64)).collect();
    sums.into_iter().map(mean).collect()
}

#[test]
fn learned_signatures_find_more_than_random_planes_of_as_many_bits() {
    const SPECS: [&str; 6] = [
        "hash_attention:ratio=0.0625",
        "lsh_bits:bits=32,ratio=0.0625",
        "lsh_bits:bits=32,ratio=0.0625,center=true",
        "lsh_bits:bits=256,ratio=0.0625",
        // Two bf16 vectors of 64 channels for a page of 64 tokens are 32 bits for each token.
        "quest:page=64,ratio=0.0625",
        "quest:page=16,ratio=0.0625",
    ];
    for length in [1024, 2048, 4096] {
        let found = found_of_the_top_64(&evaluated_prompts(length), &SPECS);
        let mean =
            |spec: usize, what: usize| found[spec].iter().map(|f| f[what]).sum::<f64>() / found[spec].len() as f64;
        for (what, name) in ["recall@64", "of its attention"].iter().enumerate() {
            for (i, spec) in SPECS.iter().enumerate() {
                let by_layer: Vec<String> = found[i].iter().map(|f| format!("{:.2}", f[what])).collect();
                println!("{length:>5} {name:<16} {spec:<42} {:.3}  {}", mean(i, what), by_layer.join(" "));
            }
        }
        assert!(mean(0, 0) > 1.2 * mean(1, 0), "{length}: {found:?}");
    }
}

/// Trains on a few prompts, until `stop_after` blocks are done.
fn train(seed: u64, checkpoints: &Checkpoints, stop_after: usize) -> anyhow::Result<Option<CalibrationOutcome>> {
    let orders = CalibrationOrder::parse(&["hash_attention:steps=2,top=16,queries=8".to_owned()])?;
    let texts: [Text; 1] = [orders[0].calibration.reading.text.into()];
    let plan = CalibrationPlan { orders: &orders, texts: &texts, tokens: 1500, length: 400, held_out: 1, seed };
    plan.run(&MODEL, Some(checkpoints), |done, _| match done >= stop_after {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
}

#[test]
fn a_training_that_was_stopped_goes_on_to_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let start = Checkpoints { gap: Duration::MAX, ..Checkpoints::new(folder.path()) };
    let resume = Checkpoints { resume: true, ..start.clone() };
    let error = |result: anyhow::Result<Option<CalibrationOutcome>>| result.err().unwrap().to_string();
    assert!(error(train(5, &resume, usize::MAX)).starts_with("there is no checkpoint to resume from: no "));
    let whole = train(5, &start, usize::MAX).unwrap().unwrap();
    assert!(whole.blocks > 3, "{} blocks", whole.blocks);
    assert!(!start.file("hash_attention").exists(), "too few blocks for a checkpoint");
    assert!(train(5, &start, 1).unwrap().is_none());
    assert!(train(5, &resume, 3).unwrap().is_none());
    assert!(error(train(6, &resume, usize::MAX)).contains("begun with seed 5"));
    let resumed = train(5, &resume, usize::MAX).unwrap().unwrap();
    assert_eq!((resumed.blocks, resumed.tokens), (whole.blocks, whole.tokens));
    assert!(resumed.made[0].bytes == whole.made[0].bytes && resumed.made[0].notes == whole.made[0].notes);
    assert!(train(6, &start, usize::MAX).unwrap().unwrap().made[0].bytes != whole.made[0].bytes);
}
