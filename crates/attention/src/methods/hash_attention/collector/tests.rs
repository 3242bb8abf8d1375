use super::super::super::tests::noise;
use super::lesson::{STRETCH, most_waiting};
use super::*;
use crate::kv::{KvDtype, LayerKv};

fn trainer(spec: &str, model: &ModelShape) -> Trainer {
    let spec = crate::expand_grid(&format!("{NAME}:{spec}")).unwrap().remove(0);
    let settings = Settings::read(&mut Params::new(&spec)).unwrap();
    Trainer::new(&Assignment { rotation: None, model, seed: 1, tokens: 100, text: TextKind::Tasks }, settings)
}

/// The weight of eq. 4, and how a share of it is distributed by attention.
#[test]
fn wanted_tokens_weigh_as_the_settings_say() {
    let model = ModelShape { weights_sha256: "x".into(), layers: 1, heads: 1, kv_heads: 1, head_dim: 8 };
    let wanted = [(3, 0.7), (5, 0.2), (9, 0.1)].map(|(key, share)| Largest { key, share });
    let weights = |spec: &str, context: usize| -> Vec<f32> {
        trainer(spec, &model).settings.weigh(&wanted, context).iter().map(|w| w.weight).collect()
    };
    assert_eq!(weights("preset=paper", 9000), [20.0; 3]);
    assert_eq!(weights("preset=paper,alpha=3,beta=0.5", 100), [53.0; 3]);
    let by_share = weights("mass=0.5,alpha=8,beta=0.25", 16);
    for (weight, share) in by_share.iter().zip([0.7, 0.2, 0.1]) {
        assert!((f64::from(*weight) - 12.0 * (0.5 + 0.5 * 3.0 * share)).abs() < 1e-5, "{by_share:?}");
    }
}

/// Held-out loss and cosines equal those of loops over the nets' outputs.
#[test]
fn loss_and_cosines_on_held_out_text_are_those_of_the_definitions() {
    let (d, n) = (8, 420);
    let model = ModelShape { weights_sha256: "x".into(), layers: 1, heads: 2, kv_heads: 1, head_dim: d };
    let mut kv = LayerKv::new(KvDtype::F32, 1, d, n);
    (0..n as u64).for_each(|t| kv.append(&noise(d, 500 + t), &noise(d, 9_900 + t)));
    let queries: Vec<f32> = (0..2 * n as u64).flat_map(|i| noise(d, 20_000 + i)).collect();
    let chunk = PrefillChunk::new(0, 0, &queries, 2, &kv).on_host().unwrap();
    for nets in ["kv_head", "query_head"] {
        let spec = format!("bits=6,top=5,sink=2,local=3,alpha=7,mass=0.5,scale=0.4,mean=pairs,key_nets={nets}");
        let mut trainer = trainer(&spec, &model);
        trainer.examine(&chunk).unwrap();
        trainer.examine_waiting();
        trainer.examine(&chunk).unwrap();
        let lesson = &trainer.exams.lessons[0];
        let asked = lesson.ask_all(&trainer.settings);
        let found = &trainer.examined.as_ref().unwrap().soft[0];
        let learner = &trainer.layers[0][0].nets;
        let (mut loss, mut pairs, mut cosines, mut count) = (0.0, 0.0, [0.0; 3], 0.0);
        for h in 0..2 {
            let key_net = &learner.keys[if nets == "kv_head" { 0 } else { h }];
            for (i, wanted) in asked.wanted[h].iter().enumerate() {
                let query = &asked.queries[h][i * d..][..d];
                let soft_query = learner.queries[h].forward(query).signature;
                for key in 0..asked.seen[i] {
                    let own = &asked.keys[key * d..][..d];
                    let soft = key_net.forward(own).signature;
                    let inner: f64 = soft_query.iter().zip(&soft).map(|(a, b)| f64::from(a * b)).sum();
                    let p = 1.0 / (1.0 + (-0.4 * inner).exp());
                    pairs += 1.0;
                    let Some(w) = wanted.iter().find(|w| w.key as usize == key) else {
                        loss -= (1.0 - p).ln();
                        continue;
                    };
                    loss -= 7.0 * (0.5 + 0.5 * 5.0 * f64::from(w.share)) * p.ln();
                    let sign = |x: &[f32]| x.iter().map(|x| x.signum()).collect::<Vec<f32>>();
                    let of = |a: &[f32], b: &[f32]| {
                        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
                        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
                    };
                    let all = [of(query, own), of(&soft_query, &soft), of(&sign(&soft_query), &sign(&soft))];
                    cosines.iter_mut().zip(all).for_each(|(sum, x)| *sum += x);
                    count += 1.0;
                }
            }
        }
        assert!((found.loss() - loss / pairs).abs() < 1e-4, "{nets}: {} instead of {}", found.loss(), loss / pairs);
        for (ours, sum) in found.cosines().into_iter().zip(cosines) {
            assert!((ours - sum / count).abs() < 1e-4, "{nets}: {ours} instead of {}", sum / count);
        }
        let csv = trainer.held_out().unwrap();
        assert_eq!(csv.lines().count(), 1 + 2, "{csv}");
        assert!(csv.lines().nth(1).unwrap().starts_with("learned,6,0,"), "{csv}");
    }
}

/// The wanted keys equal those of a sort of all tokens between sink and window by `a` or `a·‖v‖`.
#[test]
fn queries_want_the_largest_tokens_that_are_not_static() {
    let (d, n, top) = (8, 90, 5);
    let model = ModelShape { weights_sha256: "x".into(), layers: 1, heads: 2, kv_heads: 1, head_dim: d };
    let mut kv = LayerKv::new(KvDtype::F32, 1, d, n);
    let scaled = |seed: usize| noise(d, seed as u64).iter().map(|x| x * (1 + seed % 7) as f32).collect::<Vec<f32>>();
    (0..n).for_each(|t| kv.append(&noise(d, 500 + t as u64), &scaled(900 + t)));
    let queries: Vec<f32> = (0..2 * n).flat_map(|i| scaled(2000 + i)).collect();
    let chunk = PrefillChunk::new(0, 0, &queries, 2, &kv).on_host().unwrap();
    let (keys, values) = (kv.keys.head(0).to_f32(), kv.values.head(0).to_f32());
    let positions = [40, 60, 89];
    let mut answers = Vec::new();
    for (spec, sink, local) in
        [("sink=3,local=10", 3, 10), ("sink=3,local=10,label=av", 3, 10), ("label=av,sink=0,local=1", 0, 1)]
    {
        let trainer = trainer(&format!("top={top},{spec}"), &model);
        let stretch = Stretch { layer: 0, first: 0, tokens: n };
        let lesson = trainer.lessons(&chunk, vec![(stretch, vec![positions.to_vec()])]).remove(0);
        let asked = lesson.ask_all(&trainer.settings);
        let mut answer = Vec::new();
        for head in 0..2 {
            for (i, position) in positions.iter().enumerate() {
                let query = chunk.query(*position, head);
                let score = |t: usize| -> f64 {
                    let product = |c: usize| f64::from(query[c]) * f64::from(keys[t * d + c]);
                    let square: f64 = values[t * d..][..d].iter().map(|v| f64::from(*v).powi(2)).sum();
                    let norm = if spec.contains("label=av") { square.sqrt() } else { 1.0 };
                    ((0..d).map(product).sum::<f64>() / (d as f64).sqrt()).exp() * norm
                };
                let mut order: Vec<usize> = (sink..position + 1 - local).collect();
                assert_eq!(asked.seen[i], order.len(), "{spec}");
                order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
                order.truncate(top);
                order.sort_unstable();
                let total: f64 = order.iter().map(|t| score(*t)).sum();
                let wanted = &asked.wanted[head][i];
                let found: Vec<usize> = wanted.iter().map(|w| w.key as usize + sink).collect();
                assert_eq!(found, order, "{spec}, head {head}, position {position}");
                for (w, t) in wanted.iter().zip(&order) {
                    assert!((f64::from(w.share) - score(*t) / total).abs() < 1e-5, "{spec}");
                }
                answer.push(found);
            }
        }
        answers.push(answer);
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2], "the settings matter");
}

#[test]
fn the_curve_is_told_as_means_over_all_heads_of_its_points() {
    // A point holds sums over its heads.
    let point = |tokens, loss, recall, mass, heads| Point { tokens, loss, found: Found { recall, mass }, heads };
    let told = Point::told(&[point(300, 3.0, 1.0, 2.0, 2), point(400, 5.0, 3.0, 0.5, 8)], 64);
    let expected = "from token      300: loss 0.8000, recall@64 0.400, of its attention 0.250; text not yet learned";
    assert_eq!(told, expected);
    assert!(Point::told(&[point(0, 0.0, 0.0, 0.0, 0)], 64).contains("loss 0.0000"), "no head learned yet");
}

#[test]
fn means_are_of_what_was_added() {
    let mut mean = Mean::default();
    assert_eq!(mean.value(), Found::default());
    mean.add(Found { recall: 0.5, mass: 1.0 });
    mean.add(Found { recall: 1.0, mass: 0.25 });
    assert_eq!(mean.value(), Found { recall: 0.75, mass: 0.625 });
}

/// Keys, values and queries of a long prompt: three layers of two KV heads, two queries for each.
struct Prompt {
    layers: Vec<(LayerKv, Vec<f32>)>,
    tokens: usize,
}

const LAYERS: usize = 3;
const WIDTH: usize = 8;

fn wide_model() -> ModelShape {
    ModelShape { weights_sha256: "x".into(), layers: LAYERS, heads: 4, kv_heads: 2, head_dim: WIDTH }
}

impl Prompt {
    fn new(tokens: usize, seed: u64) -> Self {
        let of_layer = |layer: u64| {
            let rows = |what: u64, heads: usize| noise(tokens * heads * WIDTH, 100 * seed + 10 * layer + what);
            let mut kv = LayerKv::new(KvDtype::F32, 2, WIDTH, tokens);
            let (keys, values) = (rows(0, 2), rows(1, 2));
            keys.chunks(2 * WIDTH).zip(values.chunks(2 * WIDTH)).for_each(|(key, value)| kv.append(key, value));
            (kv, rows(2, 4))
        };
        Self { layers: (0..LAYERS as u64).map(of_layer).collect(), tokens }
    }

    /// The first `end` tokens' keys and values of a layer.
    fn up_to(&self, layer: usize, end: usize) -> LayerKv {
        let mut kv = LayerKv::new(KvDtype::F32, 2, WIDTH, end);
        let of = |store: &crate::kv::KvStore| [0, 1].map(|head| store.head(head).to_f32());
        let (keys, values) = (of(&self.layers[layer].0.keys), of(&self.layers[layer].0.values));
        let row = |rows: &[Vec<f32>; 2], t: usize| rows.each_ref().map(|r| &r[t * WIDTH..][..WIDTH]).concat();
        (0..end).for_each(|t| kv.append(&row(&keys, t), &row(&values, t)));
        kv
    }

    /// Has a trainer learn or examine it in chunks of `chunk` tokens.
    fn teach(&self, trainer: &mut Trainer, chunk: usize, learns: bool) {
        for first in (0..self.tokens).step_by(chunk) {
            let end = (first + chunk).min(self.tokens);
            for layer in 0..LAYERS {
                let kv = self.up_to(layer, end);
                let queries = &self.layers[layer].1[first * 4 * WIDTH..end * 4 * WIDTH];
                let chunk = PrefillChunk::new(layer, first, queries, 4, &kv);
                if learns { trainer.observe(&chunk) } else { trainer.examine(&chunk) }.unwrap();
            }
        }
        trainer.end_prompt(self.tokens);
    }
}

/// State and result of a trainer after three prompts and an examination.
fn taught(spec: &str, most_waiting: usize, chunk: usize, threads: usize) -> (Collected, Collected) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut trainer = trainer(spec, &wide_model());
    trainer.most_waiting = most_waiting;
    pool.install(|| {
        for (seed, tokens) in [(1, 4500), (2, 300), (3, 2100)] {
            Prompt::new(tokens, seed).teach(&mut trainer, chunk, true);
        }
        Prompt::new(2500, 4).teach(&mut trainer, chunk, false);
    });
    (trainer.checkpoint(), Box::new(trainer).finish())
}

/// The reference trains one layer at a time on one thread.
#[test]
fn nets_do_not_depend_on_threads_on_what_waits_or_on_the_chunks_of_a_device() {
    for kind in ["label=a", "label=av,key_nets=query_head,decay=none"] {
        let spec = format!("bits=8,top=8,steps=3,queries=12,rate=0.01,sink=2,local=5,{kind}");
        let alone = taught(&spec, 0, STRETCH, 1);
        assert!(alone.1.held_out.as_ref().is_some_and(|table| table.lines().count() > LAYERS), "{alone:?}");
        assert_eq!(alone.0.settings["steps"], "18", "three steps in each of six stretches");
        for (most_waiting, chunk, threads) in
            [(MOST_WAITING, STRETCH, 1), (MOST_WAITING, STRETCH, 5), (0, STRETCH, 3), (700_000, STRETCH, 2)]
        {
            let other = taught(&spec, most_waiting, chunk, threads);
            assert!(other == alone, "{kind}: {most_waiting} bytes, chunks of {chunk}, {threads} threads");
        }
        // A device reads four times as many tokens at once.
        assert!(taught(&spec, MOST_WAITING, 4 * STRETCH, 4) == alone, "{kind}: chunks of a device");
    }
}

#[test]
fn no_more_waits_than_is_stated() {
    let mut trainer = trainer("steps=2,queries=16,top=8", &wide_model());
    let prompt = Prompt::new(5000, 1);
    let all = most_waiting(&wide_model(), 5000);
    // A layer of the last chunk has 2 KV heads of 5,000 keys, and at most 32 queries of 4 heads.
    let layer = 4 * 2 * 5000 * (WIDTH + 1) + 4 * 4 * 32 * WIDTH + 2 * 32 * 8;
    for most in [usize::MAX, 2 * layer, 0] {
        trainer.most_waiting = most;
        let mut waited = Vec::new();
        for end in [2048, 4096, 5000] {
            let first = (end - 1) / STRETCH * STRETCH;
            for layer in 0..LAYERS {
                let (kv, width) = (prompt.up_to(layer, end), 4 * WIDTH);
                let queries = &prompt.layers[layer].1[first * width..end * width];
                trainer.observe(&PrefillChunk::new(layer, first, queries, 4, &kv)).unwrap();
                waited.push(trainer.waiting.bytes());
            }
        }
        let found = *waited.iter().max().unwrap();
        assert!(found <= most.max(layer) && found <= all, "{most}: {found} of {all}");
        assert!(!trainer.waiting.lessons.is_empty(), "something waits");
        trainer.end_prompt(5000);
        assert_eq!((trainer.waiting.bytes(), trainer.waiting.lessons.len()), (0, 0));
    }
    let large = ModelShape { weights_sha256: "x".into(), layers: 32, heads: 32, kv_heads: 8, head_dim: 128 };
    assert_eq!(most_waiting(&large, 8192), MOST_WAITING);
}
