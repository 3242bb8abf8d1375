//! Calibration of `hash_attention`: trains the nets while text is read (§4.2).
//!
//! Each chunk of a prefill gives a few training steps to each KV head and its group, independently of others. A step
//! draws some of the chunk's queries; each of them sees the keys of all tokens up to it, without sink and window, which
//! no method has to find; the `top` largest of these are wanted. A prompt is read once, so a measurement before the
//! first step on a chunk is on text never trained on: these measurements are the learning curve. At the end the nets,
//! rounded as they are stored, are measured on further prompts.
//!
//! **Presets.** `preset=paper` trains as published: one step of Adam for each chunk, at a constant rate of 1e-3,
//! weights `α + β·context` (eq. 4), the mean over pairs, inputs and logits unscaled, labels by `a·‖v‖`, a key net for
//! each query head. The paper leaves α, β, the rate, the mean and the number of queries in a step (128) open; they are
//! those of the authors' code. `preset=repo` also has that code's labels (the 32 largest by `a`). The kind of nets and
//! the static tokens come from the method's preset of the same name. `preset=tuned` trained the built-in model's nets.
//! It distributes most of the wanted tokens' weight by their shares of attention (`mass`), with an unchanged mean. On
//! the built-in model, nets trained alike but with `mass=0` find as many of the wanted tokens, but more often than
//! random hyperplanes they miss the one token that a question is about: at 4,096 tokens and 1/16 of them, six tasks
//! score 72 % with `mass=0` and 94 % with `mass=0.8` (99 % densely; 10 examples a task).
//!
//! All random numbers follow from the seed, the layer and the number of tokens read, not from earlier draws. So
//! training that resumes from a checkpoint gives the same nets.
//!
//! **Threads.** The nets of a KV head of a layer learn from nothing but its own queries and keys. These are copied while a
//! prompt is read ([`Lesson`]), up to a [bound](lesson::MOST_WAITING), and then all KV heads of all layers learn at once, each on
//! one thread and in the order of the prompt. So the nets do not depend on the number of threads or on the bound.
//!
//! Training runs on the CPU, in stretches of 2,048 tokens even if a device reads more at once. If it ran elsewhere, only the matrix product
//! and the logistic function of [`training`](super::training) could give other results.

mod held_out;
mod lesson;
mod settings;

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::super::ParamInfo;
use super::super::planes::RandomPlanes;
use super::super::signatures::{Signatures, Ties, pack_signs, words_of};
use super::net::SignNet;
use super::training::{Adam, Batch, Gradients, GroupNets, Shape, SoftNet};
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape, NamedTensor, Precision};
use crate::calibration::collector::{
    Assignment, Calibration, Collected, Collector, HostChunk, PrefillChunk, Reading, ReadingText, TextKind,
};
use crate::kv::KvError;
use crate::methods::hash_attention::kind::{BITS, KEY_NETS, LABEL, NAME, TEXT};
use crate::{Params, mix_seed};
use lesson::{Asked, Keys, Lesson, MOST_WAITING, Stretch, Waiting};
pub(super) use settings::training_of;
use settings::{Largest, Settings};
use spattn_kernels::topk::top_k;

pub(in super::super) const CALIBRATION: Calibration = Calibration {
    kind: NAME,
    about: "nets that map keys and queries to bits",
    params: &[
        ParamInfo {
            key: "preset",
            default: "tuned",
            about: "tuned | paper | repo: what the other settings are if not given, as for the built-in model, as the \
                    paper has it, or as its code",
        },
        BITS,
        LABEL,
        KEY_NETS,
        ParamInfo {
            key: TEXT,
            default: "tasks",
            about: "tasks | general: what is read if no text is given: training rows that are like the tasks, or running text \
                    (general with preset=paper and preset=repo)",
        },
        ParamInfo { key: "steps", default: "16", about: "steps of gradient descent on each chunk of a prompt" },
        ParamInfo { key: "queries", default: "64", about: "queries of the chunk in a step" },
        ParamInfo { key: "top", default: "64", about: "largest tokens that a query should find" },
        ParamInfo { key: "rate", default: "0.004", about: "step size at first" },
        ParamInfo { key: "decay", default: "linear", about: "linear | none: the rate falls to 0 by the end, or stays" },
        ParamInfo {
            key: "standardise",
            default: "true",
            about: "true | false: keys and queries brought to mean 0 and deviation 1 by channel; false as published",
        },
        ParamInfo { key: "alpha", default: "20", about: "weight of a wanted token, at any length of context" },
        ParamInfo { key: "beta", default: "0", about: "added to it for every token of context" },
        ParamInfo {
            key: "mass",
            default: "0.8",
            about: "0 to 1: how much of a wanted token's weight follows its share of attention; 0 as published",
        },
        ParamInfo { key: "scale", default: "0.3", about: "factor of the signatures' inner product in the loss" },
        ParamInfo {
            key: "mean",
            default: "weights",
            about: "weights | pairs: the loss is a mean by weight, or over pairs as published",
        },
        ParamInfo { key: "sink", default: "4", about: "first tokens, which no query has to find" },
        ParamInfo { key: "local", default: "64", about: "last tokens, which no query has to find" },
        ParamInfo {
            key: "against",
            default: "-",
            about: "bits of random planes to compare with on held-out text, such as 32+256 (those of the nets)",
        },
    ],
    reading: Reading { text: ReadingText::Rows, tokens: 500_000, length: 8192, held_out: 8 },
    text: Some(|spec| match Settings::read(&mut Params::new(spec))?.text {
        TextKind::General => Ok(ReadingText::Essays),
        TextKind::Tasks => Ok(ReadingText::Rows),
    }),
    start: |assignment, params| {
        let settings = Settings::read(params)?;
        settings.check_text(params, assignment.text)?;
        Ok(Box::new(Trainer::new(assignment, settings)))
    },
    import: Some(super::import::import),
    waiting: lesson::most_waiting,
};

/// A query is trained on only if it sees at least this many times the wanted tokens.
const LEAST_SEEN: usize = 2;
/// Recall is measured with a budget of 1/16 of the context, but at least as many tokens as are wanted.
const PICKED_SHARE: usize = 16;
/// Queries of a chunk on which recall is measured, in training and after it.
const WATCHED: usize = 8;
const EXAMINED: usize = 32;
/// Order of ties when recall is measured.
const TIES: Ties = Ties::Seeded(1);
/// Number of points of the learning curve that are reported.
const POINTS: usize = 8;

/// Nets in training, `[layer][kv_head]`, and the measurements of them.
struct Trainer {
    model: ModelShape,
    settings: Settings,
    seed: u64,
    planned_tokens: usize,
    tokens_read: usize,
    layers: Vec<Vec<Learner>>,
    curve: Vec<Point>,
    /// Lessons to learn, and those to examine.
    waiting: Waiting,
    exams: Waiting,
    /// The most bytes of each.
    most_waiting: usize,
    /// Measurements on held-out text; `None` before it is read.
    examined: Option<Examined>,
}

/// Nets of one group, with the optimiser's moments.
#[derive(Debug, Clone, PartialEq)]
struct Learner {
    nets: GroupNets,
    keys: Vec<Adam>,
    queries: Vec<Adam>,
    /// Whether inputs have been standardised.
    standardised: bool,
}

/// A point of the learning curve: sums over heads and layers, measured on a chunk before training on it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    tokens: usize,
    loss: f64,
    found: Found,
    heads: usize,
}

impl Point {
    /// One line with the means over some points; `top` tokens were wanted.
    fn told(points: &[Self], top: usize) -> String {
        let heads = points.iter().map(|p| p.heads).sum::<usize>().max(1) as f64;
        let mean = |of: fn(&Self) -> f64| points.iter().map(of).sum::<f64>() / heads;
        let (loss, recall, mass) = (mean(|p| p.loss), mean(|p| p.found.recall), mean(|p| p.found.mass));
        let from = points[0].tokens;
        format!(
            "from token {from:>8}: loss {loss:.4}, recall@{top} {recall:.3}, of its attention {mass:.3}; text not yet learned"
        )
    }
}

/// The share of the wanted tokens that was found: by number, and by attention.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Found {
    recall: f64,
    mass: f64,
}

struct Examined {
    nets: Vec<Vec<UsedNets>>,
    learned: Vec<Mean>,
    /// Sums for the soft signatures that training sees, by layer.
    soft: Vec<SoftSums>,
    random: Vec<Random>,
}

/// Nets of one group as the method uses them.
#[derive(Clone)]
struct UsedNets {
    keys: Vec<SignNet>,
    queries: Vec<SignNet>,
}

/// Random signatures of one number of bits, and what they found in each layer.
struct Random {
    bits: usize,
    planes: RandomPlanes,
    found: Vec<Mean>,
}

/// Sums of the loss, and of cosines between queries and the tokens that they attend most.
#[derive(Debug, Clone, Copy, Default)]
struct SoftSums {
    loss: f64,
    /// KV heads over which the loss is summed.
    groups: usize,
    /// Cosines of queries and keys, of their soft signatures, and of the signs of these.
    cosines: [f64; 3],
    pairs: usize,
}

impl SoftSums {
    fn loss(&self) -> f64 {
        self.loss / self.groups.max(1) as f64
    }

    fn cosines(&self) -> [f64; 3] {
        self.cosines.map(|sum| sum / self.pairs.max(1) as f64)
    }

    fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.groups += other.groups;
        self.cosines.iter_mut().zip(other.cosines).for_each(|(sum, x)| *sum += x);
        self.pairs += other.pairs;
    }

    /// The loss and cosines of some queries of a group.
    fn of(nets: &GroupNets, asked: &Asked<'_>, settings: &Settings, d: usize) -> Self {
        let loss = nets.loss(&asked.batch(settings), settings.rule).0;
        let mut sums = Self { loss, groups: 1, ..Self::default() };
        let bits = settings.kind.bits;
        let soft = |net: &SoftNet, x: &[f32]| net.forward(x).signature;
        let keys: Vec<Vec<f32>> = nets.keys.iter().map(|net| soft(net, asked.keys)).collect();
        for (h, net) in nets.queries.iter().enumerate() {
            let (queries, keys) = (soft(net, &asked.queries[h]), of_head(&keys, h));
            for (i, wanted) in asked.wanted[h].iter().enumerate() {
                let query = (&asked.queries[h][i * d..][..d], &queries[i * bits..][..bits]);
                for key in nearest(wanted) {
                    let key = (&asked.keys[key * d..][..d], &keys[key * bits..][..bits]);
                    let signs = |x: &[f32]| x.iter().map(|x| if *x > 0.0 { 1.0 } else { -1.0 }).collect::<Vec<f32>>();
                    let cosines =
                        [cosine(query.0, key.0), cosine(query.1, key.1), cosine(&signs(query.1), &signs(key.1))];
                    sums.cosines.iter_mut().zip(cosines).for_each(|(sum, x)| *sum += x);
                    sums.pairs += 1;
                }
            }
        }
        sums
    }
}

/// Number of tokens whose cosine with a query is measured: those that it attends most (HashAttention, Table 7).
const NEAREST: usize = 32;

fn nearest(wanted: &[Largest]) -> impl Iterator<Item = usize> {
    let mut order: Vec<&Largest> = wanted.iter().collect();
    order.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.key.cmp(&b.key)));
    order.into_iter().take(NEAREST).map(|wanted| wanted.key as usize)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (sum(a, a) * sum(b, b)).sqrt();
    if lengths > 0.0 { sum(a, b) / lengths } else { 0.0 }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: Found,
    count: usize,
}

impl Mean {
    fn add(&mut self, found: Found) {
        self.sum.recall += found.recall;
        self.sum.mass += found.mass;
        self.count += 1;
    }

    fn value(self) -> Found {
        let count = self.count.max(1) as f64;
        Found { recall: self.sum.recall / count, mass: self.sum.mass / count }
    }
}

impl Trainer {
    fn new(assignment: &Assignment<'_>, settings: Settings) -> Self {
        let model = assignment.model.clone();
        let shape = Shape { d: model.head_dim, bits: settings.kind.bits };
        let learner = |layer: usize, kv_head: usize| {
            let seed = mix_seed(mix_seed(assignment.seed, layer as u64), kv_head as u64);
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut net = || SoftNet::new(shape, || rng.random());
            let key_nets = settings.kind.key_nets(model.group());
            let keys = (0..key_nets).map(|_| net()).collect();
            let nets = GroupNets { keys, queries: (0..model.group()).map(|_| net()).collect() };
            let adam = Adam::new(shape.parameters());
            Learner {
                nets,
                keys: vec![adam.clone(); key_nets],
                queries: vec![adam; model.group()],
                standardised: false,
            }
        };
        let layers = (0..model.layers).map(|l| (0..model.kv_heads).map(|h| learner(l, h)).collect()).collect();
        Self {
            model,
            settings,
            seed: assignment.seed,
            planned_tokens: assignment.tokens,
            tokens_read: 0,
            layers,
            curve: Vec::new(),
            waiting: Waiting::default(),
            exams: Waiting::default(),
            most_waiting: MOST_WAITING,
            examined: None,
        }
    }

    /// Number of static tokens, at both ends.
    fn statics(&self) -> usize {
        self.settings.sink + self.settings.local
    }

    /// Number of tokens that must precede a query for it to be trained on.
    fn least(&self) -> usize {
        self.statics() + LEAST_SEEN * self.settings.top
    }

    /// Draws `count` positions of the stretch that have `least` tokens before them; ascending and distinct, so possibly
    /// fewer. Empty if there is no such position.
    fn positions(&self, stretch: Stretch, least: usize, count: usize, draw: u64) -> Vec<usize> {
        let from = least.saturating_sub(stretch.first);
        if from >= stretch.tokens {
            return Vec::new();
        }
        let position = mix_seed(self.seed, (self.tokens_read + stretch.first) as u64);
        let mut rng = ChaCha8Rng::seed_from_u64(mix_seed(mix_seed(position, stretch.layer as u64), draw));
        let mut positions: Vec<usize> = (0..count).map(|_| rng.random_range(from..stretch.tokens)).collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// For each stretch of a chunk that has positions with `least` tokens before them, the positions of each of `draws` draws of `count`.
    fn drawn(
        &self,
        chunk: &PrefillChunk<'_>,
        least: usize,
        count: usize,
        draws: impl Iterator<Item = u64> + Clone,
    ) -> Vec<(Stretch, Vec<Vec<usize>>)> {
        let of = |stretch| draws.clone().map(|draw| self.positions(stretch, least, count, draw)).collect::<Vec<_>>();
        let stretches = Stretch::all(chunk.layer, chunk.first, chunk.tokens());
        stretches.map(|stretch| (stretch, of(stretch))).filter(|(_, draws)| !draws[0].is_empty()).collect()
    }

    /// Learns the waiting lessons: all KV heads of all layers in parallel, each its lessons in order.
    fn learn(&mut self) {
        let lessons = std::mem::take(&mut self.waiting).lessons;
        let points: Vec<usize> = lessons.iter().map(|lesson| self.point_of(lesson)).collect();
        let (settings, kv_heads) = (&self.settings, self.model.kv_heads);
        let rates: Vec<f32> = lessons.iter().map(|lesson| self.rate_of(lesson)).collect();
        let mut pieces: Vec<(&mut Learner, Vec<(usize, Lesson)>)> =
            self.layers.iter_mut().flatten().map(|learner| (learner, Vec::new())).collect();
        for (number, lesson) in lessons.into_iter().enumerate() {
            pieces[lesson.stretch.layer * kv_heads + lesson.kv_head].1.push((number, lesson));
        }
        pieces.retain(|(_, lessons)| !lessons.is_empty());
        let of_piece = |(learner, lessons): (&mut Learner, Vec<(usize, Lesson)>)| -> Vec<(usize, (f64, Found))> {
            lessons
                .into_iter()
                .map(|(number, lesson)| (number, learner.learn(&lesson, settings, rates[number])))
                .collect()
        };
        let mut learned: Vec<(usize, (f64, Found))> =
            pieces.into_par_iter().with_max_len(1).flat_map_iter(of_piece).collect();
        // The curve's sums are added in the order of reading, which no scheduling of threads changes.
        learned.sort_unstable_by_key(|(number, _)| *number);
        for (number, (loss, found)) in learned {
            let point = &mut self.curve[points[number]];
            point.loss += loss;
            point.found.recall += found.recall;
            point.found.mass += found.mass;
            point.heads += 1;
        }
    }

    /// The point of the learning curve that a lesson counts towards.
    fn point_of(&mut self, lesson: &Lesson) -> usize {
        let tokens = self.tokens_read + lesson.stretch.first;
        self.curve.iter().rposition(|point| point.tokens == tokens).unwrap_or_else(|| {
            self.curve.push(Point { tokens, loss: 0.0, found: Found::default(), heads: 0 });
            self.curve.len() - 1
        })
    }

    /// The rate at which a lesson is learned.
    fn rate_of(&self, lesson: &Lesson) -> f32 {
        let progress = (self.tokens_read + lesson.stretch.first) as f64 / self.planned_tokens.max(1) as f64;
        self.settings.rate * if self.settings.decays { (1.0 - progress).max(0.0) as f32 } else { 1.0 }
    }
}

impl Trainer {
    /// The keys of one KV head that queries of a chunk may see.
    fn keys(&self, chunk: &HostChunk<'_>, kv_head: usize) -> Keys {
        let d = chunk.d();
        let range = self.settings.sink.min(chunk.end())..chunk.end();
        let rows = chunk.kv().keys.head(kv_head).slice(range.clone(), d).to_f32();
        let further = match self.settings.kind.by_norm {
            false => vec![0.0; range.len()],
            true => {
                let values = chunk.kv().values.head(kv_head).slice(range, d).to_f32();
                let squares = values.chunks_exact(d).map(|v| v.iter().map(|x| x * x).sum::<f32>());
                // exp(s·q·k)·‖v‖ orders keys as q·k + ln‖v‖/s does.
                let divisor = chunk.scale().divisor() as f32;
                squares.map(|square| divisor * 0.5 * square.max(f32::MIN_POSITIVE).ln()).collect()
            }
        };
        Keys { rows, further }
    }

    /// The lessons of a chunk, by stretch and KV head: the queries at the positions of each draw, and the keys.
    fn lessons(&self, chunk: &HostChunk<'_>, drawn: Vec<(Stretch, Vec<Vec<usize>>)>) -> Vec<Lesson> {
        let keys: Vec<Arc<Keys>> =
            (0..chunk.kv_heads()).into_par_iter().map(|head| Arc::new(self.keys(chunk, head))).collect();
        let of_stretch = |(stretch, draws): (Stretch, Vec<Vec<usize>>)| {
            let mut positions = draws.concat();
            positions.sort_unstable();
            positions.dedup();
            let draws = Arc::new(draws);
            let of_head = |(kv_head, keys): (usize, &Arc<Keys>)| Lesson {
                stretch,
                kv_head,
                keys: keys.clone(),
                queries: self.queries(chunk, stretch, kv_head, &positions),
                positions: positions.clone(),
                draws: draws.clone(),
                sink: self.settings.sink,
                statics: self.statics(),
                d: chunk.d(),
                divisor: chunk.scale().divisor() as f32,
            };
            keys.iter().enumerate().map(of_head).collect::<Vec<_>>()
        };
        drawn.into_par_iter().flat_map_iter(of_stretch).collect()
    }

    /// The queries `[position][d]` at some positions of a stretch, for each head of a group.
    fn queries(&self, chunk: &HostChunk<'_>, stretch: Stretch, kv_head: usize, positions: &[usize]) -> Vec<Vec<f32>> {
        let (group, before) = (self.model.group(), stretch.first - chunk.first);
        let of = |head: usize| positions.iter().flat_map(move |p| chunk.query(before + p, head)).copied().collect();
        (kv_head * group..(kv_head + 1) * group).map(of).collect()
    }

    /// Standardises the inputs of a layer's nets by all tokens up to the end of the first stretch that they see.
    fn standardise(&mut self, chunk: &HostChunk<'_>, stretch: Stretch, lessons: &[Lesson]) {
        let all: Vec<usize> = (0..stretch.tokens).collect();
        let mut learners = std::mem::take(&mut self.layers[stretch.layer]);
        for (kv_head, learner) in learners.iter_mut().enumerate().filter(|(_, learner)| !learner.standardised) {
            let of = |lesson: &&Lesson| (lesson.stretch, lesson.kv_head) == (stretch, kv_head);
            let Some(lesson) = lessons.iter().find(of) else { continue };
            learner.nets.keys.iter_mut().for_each(|net| net.standardise(lesson.rows()));
            let queries = self.queries(chunk, stretch, kv_head, &all);
            learner.nets.queries.iter_mut().zip(&queries).for_each(|(net, queries)| net.standardise(queries));
            learner.standardised = true;
        }
        self.layers[stretch.layer] = learners;
    }
}

impl Learner {
    /// Learns a lesson; returns the loss and recall before the first step.
    fn learn(&mut self, lesson: &Lesson, settings: &Settings, rate: f32) -> (f64, Found) {
        let labels = lesson.labels(settings);
        let mut before = (0.0, Found::default());
        for (i, positions) in lesson.draws.iter().enumerate() {
            let asked = lesson.ask(&labels, positions);
            let batch = asked.batch(settings);
            let gradients = if i == 0 {
                let (loss, gradients) = self.nets.loss(&batch, settings.rule);
                before = (loss, watched(&self.nets, &asked));
                gradients
            } else {
                self.nets.gradients(&batch, settings.rule)
            };
            self.step(&gradients, rate);
        }
        before
    }

    /// One step of all nets.
    fn step(&mut self, gradients: &Gradients, rate: f32) {
        let all = self.tensors_mut().zip(gradients.keys.iter().chain(&gradients.queries));
        all.for_each(|((net, adam), gradient)| adam.step(&mut net.parameters, gradient, rate));
    }

    /// The key nets and then the query nets, with their moments: the state of a checkpoint.
    fn tensors(&self) -> impl Iterator<Item = (&SoftNet, &Adam)> {
        let queries = self.nets.queries.iter().zip(&self.queries);
        self.nets.keys.iter().zip(&self.keys).chain(queries)
    }

    fn tensors_mut(&mut self) -> impl Iterator<Item = (&mut SoftNet, &mut Adam)> {
        let queries = self.nets.queries.iter_mut().zip(&mut self.queries);
        self.nets.keys.iter_mut().zip(&mut self.keys).chain(queries)
    }
}

/// The share of the wanted keys that the nets find in their present state, averaged over a few queries of every head.
fn watched(nets: &GroupNets, asked: &Asked<'_>) -> Found {
    let bits = nets.queries[0].shape.bits;
    let packed = |net: &SoftNet, x: &[f32]| -> Vec<u32> {
        net.forward(x).signature.chunks_exact(bits).flat_map(pack_signs).collect()
    };
    // Spread over the drawn positions, which are ascending.
    let every = asked.seen.len().div_ceil(WATCHED);
    let of_net = |net: &SoftNet| Signatures::new(&packed(net, asked.keys), words_of(bits));
    let keys: Vec<Signatures> = nets.keys.iter().map(of_net).collect();
    let mut mean = Mean::default();
    for (h, net) in nets.queries.iter().enumerate() {
        let queries = packed(net, &asked.queries[h]);
        asked.found_by(h, of_head(&keys, h), &queries, every, |found| mean.add(found));
    }
    mean.value()
}

/// The net or signatures of a query head: its own, or those that the group shares.
fn of_head<T>(nets: &[T], head: usize) -> &T {
    if nets.len() == 1 { &nets[0] } else { &nets[head] }
}

impl Asked<'_> {
    /// The batch with the wanted keys weighted.
    fn batch(&self, settings: &Settings) -> Batch<'_> {
        let of_query = |(wanted, context): (&Vec<Largest>, &usize)| settings.weigh(wanted, *context);
        let of_head = |head: &Vec<Vec<Largest>>| head.iter().zip(&self.context).map(of_query).collect();
        Batch {
            keys: self.keys.into(),
            queries: self.queries.clone(),
            seen: self.seen.clone(),
            wanted: self.wanted.iter().map(of_head).collect(),
        }
    }

    /// Calls `tell` with the share of the wanted keys among the nearest `1/PICKED_SHARE` of the context (or as many
    /// keys as are wanted), for every `every`-th query of a head; `queries: [query][word]`.
    fn found_by(&self, head: usize, keys: &Signatures, queries: &[u32], every: usize, mut tell: impl FnMut(Found)) {
        let words = queries.len() / self.seen.len().max(1);
        for query in (0..self.seen.len()).step_by(every.max(1)) {
            let scores = keys.scores(&queries[query * words..][..words], 1, TIES);
            let wanted = &self.wanted[head][query];
            let budget = self.context[query].div_ceil(PICKED_SHARE).max(wanted.len());
            let picked = top_k(&scores[..self.seen[query]], budget);
            let found = || wanted.iter().filter(|w| picked.binary_search(&w.key).is_ok());
            let mass = found().map(|w| f64::from(w.share)).sum();
            tell(Found { recall: found().count() as f64 / wanted.len() as f64, mass });
        }
    }
}

impl Collector for Trainer {
    fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        let (least, steps) = (self.least(), self.settings.steps as u64);
        let drawn = self.drawn(chunk, least, self.settings.queries, 0..steps);
        let Some(first) = drawn.first().map(|(stretch, _)| *stretch) else { return Ok(()) };
        let chunk = &chunk.on_host()?;
        let lessons = self.lessons(chunk, drawn);
        if self.settings.standardises {
            self.standardise(chunk, first, &lessons);
        }
        if !self.waiting.has_room(&lessons, self.most_waiting) {
            self.learn();
        }
        self.waiting.add(lessons);
        Ok(())
    }

    fn end_prompt(&mut self, tokens: usize) {
        self.learn();
        self.examine_waiting();
        self.tokens_read += tokens;
    }

    fn examine(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        let least = self.least().max(PICKED_SHARE * self.settings.top);
        let drawn = self.drawn(chunk, least, EXAMINED, std::iter::once(u64::MAX));
        if drawn.is_empty() {
            return Ok(());
        }
        let lessons = self.lessons(&chunk.on_host()?, drawn);
        if !self.exams.has_room(&lessons, self.most_waiting) {
            self.examine_waiting();
        }
        self.exams.add(lessons);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Collected {
        let nets = self.examined.as_ref().map_or_else(|| self.used_nets(), |e| e.nets.clone());
        let mut tensors = Vec::new();
        for (layer, heads) in nets.into_iter().enumerate() {
            let (keys, queries): (Vec<_>, Vec<_>) = heads.into_iter().map(|nets| (nets.keys, nets.queries)).unzip();
            tensors.extend(SignNet::tensors(&keys.concat(), layer, "key"));
            tensors.extend(SignNet::tensors(&queries.concat(), layer, "query"));
        }
        Collected { tensors, settings: self.settings.told(), notes: self.notes(), held_out: self.held_out() }
    }

    fn checkpoint(&self) -> Collected {
        let mut tensors = Vec::new();
        for (layer, heads) in self.layers.iter().enumerate() {
            for (kv_head, learner) in heads.iter().enumerate() {
                for (net, (soft, adam)) in learner.tensors().enumerate() {
                    let state = [&soft.parameters, &adam.first, &adam.second, &soft.mean, &soft.factor];
                    tensors.extend(STATE.iter().zip(state).map(|(what, values)| NamedTensor {
                        name: state_name(layer, kv_head, net, what),
                        shape: vec![values.len()],
                        values: values.clone(),
                        precision: Precision::F32,
                    }));
                }
            }
        }
        let mut settings = self.settings.told();
        let steps = self.layers[0].first().map_or(0, |l| l.queries[0].steps);
        let standardised = self.layers[0].first().is_some_and(|l| l.standardised);
        let point =
            |p: &Point| format!("{} {:?} {:?} {:?} {}", p.tokens, p.loss, p.found.recall, p.found.mass, p.heads);
        let curve: Vec<String> = self.curve.iter().map(point).collect();
        settings.extend([
            ("steps".to_owned(), steps.to_string()),
            ("standardised".to_owned(), standardised.to_string()),
            ("curve".to_owned(), curve.join(";")),
        ]);
        Collected { tensors, settings, ..Collected::default() }
    }

    fn restore(&mut self, checkpoint: &Artefact) -> Result<(), ArtefactError> {
        for (key, value) in self.settings.told() {
            checkpoint.check_setting(&key, &value)?;
        }
        let steps = checkpoint.setting("steps")?.parse().map_err(|_| checkpoint.malformed("steps"))?;
        let standardised = checkpoint.setting("standardised")? == "true";
        let curve = checkpoint.setting("curve")?;
        let points = curve.split(';').filter(|p| !p.is_empty()).map(Point::parse);
        self.curve = points.collect::<Option<_>>().ok_or_else(|| checkpoint.malformed("curve"))?;
        self.tokens_read = checkpoint.info().tokens;
        for (layer, heads) in self.layers.iter_mut().enumerate() {
            for (kv_head, learner) in heads.iter_mut().enumerate() {
                learner.standardised = standardised;
                for (net, (soft, adam)) in learner.tensors_mut().enumerate() {
                    adam.steps = steps;
                    let state =
                        [&mut soft.parameters, &mut adam.first, &mut adam.second, &mut soft.mean, &mut soft.factor];
                    for (what, values) in STATE.iter().zip(state) {
                        *values = checkpoint.read(&state_name(layer, kv_head, net, what), &[values.len()])?;
                    }
                }
            }
        }
        Ok(())
    }
}

const STATE: [&str; 5] = ["parameters", "first_moment", "second_moment", "mean", "factor"];

/// Name of a tensor of the state; key nets are numbered first.
fn state_name(layer: usize, kv_head: usize, net: usize, what: &str) -> String {
    format!("layers.{layer}.{kv_head}.{net}.{what}")
}

impl Point {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (tokens, loss) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let found = Found { recall: words.next()?.parse().ok()?, mass: words.next()?.parse().ok()? };
        Some(Self { tokens, loss, found, heads: words.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests;
