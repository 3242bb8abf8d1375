//! `double_sparsity`: selects by scores on a few channels that are chosen offline (Double Sparsity, Yang et al. 2024,
//! Algorithm 1 and §4).
//!
//! The index, a label cache, holds these channels of every candidate's key in 16, 4 or 2 bits. A decode step multiplies
//! them with the same channels of the query, which is not quantised.
//!
//! Calibration measures `|q_c·k_c|` on ordinary text, for query and key of the same token after RoPE, as the authors'
//! code does (§4.1 writes `S_c = Q_c·K_c`); the channels with the largest mean form the label. Their code measures
//! `|q_c|` and `|k_c|` before RoPE (`rope=pre`), where one channel of a rotated pair can be large alone; `rope=post`
//! measures them as they are cached. Channels are chosen for each KV head, since it has one label cache: under GQA,
//! `qk` and `q` are summed over the group. In [`QuantisedRows`] each channel has its own asymmetric range over 128
//! tokens. The authors' code has a range for each token's label, which takes more space than a narrow label itself.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape, NamedTensor, Precision};
use crate::calibration::collector::{Calibration, Collected, Collector, PrefillChunk, Reading, shares_in_words};
use crate::calibration::sums;
use crate::cost::Cost;
use crate::kv::quantised::{QuantisedRows, Rounding};
use crate::kv::{KvDtype, KvError, KvStore, quantised};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, ScorerCalibration, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::channels::Channels;
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::{GroupQueries, dots};
use crate::{Budget, HeadPrefix, Params, Role, Rotation, mix_seed};
use spattn_base::error::UsageError;

const NAME: &str = "double_sparsity";

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: NAME,
    role: Role::Method,
    about: "top-k by a few calibrated channels of the keys, kept in few bits (needs `spattn calibrate`)",
    reference: "Double Sparsity (Yang et al. 2024, arXiv:2408.07092)",
    params: &[
        ParamInfo {
            key: "channels",
            default: "d/4",
            about: "channels in the label: a number, or a share d/N of the head",
        },
        ParamInfo { key: "label_bits", default: "4", about: "16 | 4 | 2: bits a number in the label cache" },
        ParamInfo {
            key: "kind",
            default: "qk",
            about: "qk | q | k | random: what channels are chosen by; random needs no calibration",
        },
        ParamInfo {
            key: "rope",
            default: "post",
            about: "post | pre: whether q and k were measured with their positions; pre for kind=q and kind=k, as published",
        },
        OFFLOAD,
        ParamInfo { key: "k", default: "64", about: "tokens picked beyond the static ones" },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[
                ("channels", "d/4"),
                ("label_bits", "4"),
                ("kind", "qk"),
                ("ratio", "0.0625"),
                ("sink", "0"),
                ("local", "0"),
                ("tail", "indexed"),
            ],
            source: "Double Sparsity §4.2, Fig. 8 and Algorithm 1: a label cache of 1/16 of K in bytes, which 4-bit labels of d/4 \
                     channels are, 1/16 of the tokens, qk outliers, labels of new tokens appended",
        },
        Preset {
            name: "repo",
            values: &[
                ("channels", "d/2"),
                ("label_bits", "4"),
                ("kind", "q"),
                ("rope", "pre"),
                ("k", "256"),
                ("sink", "0"),
                ("local", "0"),
                ("dense_layers", "0+1"),
                ("tail", "indexed"),
            ],
            source: "Double Sparsity's code, longbench_ds.sh: half the channels by q, layers 0 and 1 dense, 4 bits (2 asked); \
                     labels of new tokens are appended",
        },
    ],
    build: |params| {
        let channels = Channels::read(params, "channels", Channels::Share(4))?;
        let bits: usize = params.get("label_bits", 4, "16, 4 or 2")?;
        if ![16, 4, 2].contains(&bits) {
            return Err(params.bad_value("label_bits", &bits.to_string(), "16, 4 or 2"));
        }
        let kind = Kind::read(params)?;
        let offload = params.choice(OFFLOAD.key, &["false", "true"])? == "true";
        let labels = LabelScores { channels, bits, kind, offload, rankings: None };
        Ok(Scored::read(params, labels, Choice::by_logits(Budget::Tokens(64)))?.method())
    },
};

const OFFLOAD: ParamInfo = ParamInfo {
    key: "offload",
    default: "false",
    about: "true | false: pick at each layer by the queries that the input of the layer before has in it, as tokens are picked that are \
            fetched ahead (Double Sparsity-Offload, §5)",
};

pub(super) const CALIBRATION: Calibration = Calibration {
    kind: NAME,
    about: "mean |q·k|, |q| and |k| of every channel",
    params: &[],
    reading: Reading::STATISTICS,
    text: None,
    import: None,
    waiting: |_, _| 0,
    start: |assignment, _| Ok(Box::new(ChannelMeans::new(assignment.model, assignment.rotation.clone()))),
};

/// Channels of each KV head, the most important first: `[layer][kv_head][d]`.
type Rankings = Vec<Vec<Vec<u32>>>;

/// Scores candidates by `q[C]·label`, `C` being the channels of the label.
#[derive(Clone)]
struct LabelScores {
    channels: Channels,
    bits: usize,
    kind: Kind,
    /// Whether tokens are selected ahead, so that they can be fetched while the layer before computes.
    offload: bool,
    /// The rankings from the artefact, with its hash; `None` before it is loaded.
    rankings: Option<(Arc<Rankings>, String)>,
}

impl Kind {
    /// Reads `kind` and `rope`. As in the authors' hooks, `q` and `k` are by default measured before RoPE, `qk` after it.
    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let kind = params.choice("kind", &["qk", "q", "k", "random"])?;
        let choices: &[&'static str] = if ["q", "k"].contains(&kind) { &["pre", "post"] } else { &["post"] };
        Ok(match (kind, params.choice("rope", choices)?) {
            ("qk", _) => Self::Calibrated("qk"),
            ("q", "pre") => Self::Calibrated("q_pre"),
            ("k", "pre") => Self::Calibrated("k_pre"),
            ("q", _) => Self::Calibrated("q"),
            ("k", _) => Self::Calibrated("k"),
            _ => Self::Random,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Ranked by this measure of the artefact.
    Calibrated(&'static str),
    /// In random order, for each layer and KV head, from [`RANDOM_CHANNELS_SEED`].
    Random,
}

/// Fixed seed: like calibrated channels, random ones are the same for all examples and runs.
const RANDOM_CHANNELS_SEED: u64 = 0x6c61_6265_6c73;

/// The label cache of one KV head.
struct Labels {
    channels: Vec<u32>,
    rows: LabelRows,
}

/// `[candidate][channel]`.
enum LabelRows {
    Half(KvStore),
    Quantised(QuantisedRows),
}

impl Scorer for LabelScores {
    type Index = Labels;

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        match self.kind {
            Kind::Calibrated(_) => Some(ScorerCalibration { kind: NAME, load: Self::with_rankings }),
            Kind::Random => None,
        }
    }

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.channels.asked("channels")
    }

    fn index_key(&self) -> IndexKey {
        let Self { channels, bits, kind, offload: _, rankings } = self;
        IndexKey::new((*channels, *bits, *kind, rankings.as_ref().map(|(_, sha256)| sha256.clone())))
    }

    fn grain(&self) -> usize {
        if self.bits == 16 { 1 } else { quantised::GROUP }
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Labels, KvError> {
        let mut labels = self.empty(prefix.into(), None);
        if let LabelRows::Half(rows) = &mut labels.rows {
            rows.truncate(0, prefix.candidates.len());
        }
        prefix.candidate_keys().each_block(self.grain(), |keys| labels.push(keys, prefix.d))?;
        Ok(labels)
    }

    fn growth(&self) -> Growth {
        Growth::Free("labels of new keys are appended (Algorithm 1)")
    }

    fn empty(&self, place: KvHeadId, _: Option<&Labels>) -> Labels {
        let mut channels = self.ranking(place.layer, place.kv_head, place.d);
        channels.truncate(self.channels.of(place.d));
        // In ascending order: with all channels, sums then equal exact scores to the bit.
        channels.sort_unstable();
        let rows = match self.bits {
            16 => LabelRows::Half(KvStore::new(half_type(place.dtype), 1, channels.len(), 0)),
            bits => LabelRows::Quantised(QuantisedRows::new(&[], channels.len(), bits)),
        };
        Labels { channels, rows }
    }

    fn append(&self, labels: &mut Labels, kept: usize, new: &NewTokens<'_>) {
        match &mut labels.rows {
            LabelRows::Half(rows) => rows.truncate(kept, kept),
            LabelRows::Quantised(rows) => rows.truncate(kept),
        }
        labels.push(new.keys, new.place.d);
    }

    fn index_bytes(&self, labels: &Labels) -> usize {
        match &labels.rows {
            LabelRows::Half(rows) => rows.stored_bytes(),
            LabelRows::Quantised(rows) => rows.bytes(),
        }
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Labels>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        Ok(label_scores(queries, segment.index, cost))
    }

    fn selects_ahead(&self) -> bool {
        self.offload
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl Labels {
    /// Appends the labels of `keys: [token][d]`.
    fn push(&mut self, keys: &[f32], d: usize) {
        let mut labels = gather(keys, d, &self.channels);
        match &mut self.rows {
            LabelRows::Half(rows) => {
                clamp_to(rows.dtype(), &mut labels);
                labels.chunks_exact(self.channels.len()).for_each(|row| rows.append(row));
            }
            LabelRows::Quantised(rows) => rows.push(&labels, Rounding::Nearest),
        }
    }
}

impl LabelScores {
    fn with_rankings(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        let Kind::Calibrated(measure) = self.kind else { return Ok(self.clone()) };
        let model = &artefact.info().model;
        let heads = if measure.starts_with('k') { model.kv_heads } else { model.heads };
        let rankings: Rankings = (0..model.layers)
            .map(|layer| {
                let means =
                    artefact.read_rows(&tensor_name(layer, measure), &[heads, model.head_dim], model.head_dim)?;
                let by_kv_head = means.chunks_exact(heads / model.kv_heads * model.head_dim);
                Ok(by_kv_head.map(|group| ranking(group, model.head_dim)).collect())
            })
            .collect::<Result<_, ArtefactError>>()?;
        Ok(Self { rankings: Some((Arc::new(rankings), artefact.sha256().to_owned())), ..self.clone() })
    }

    fn ranking(&self, layer: usize, kv_head: usize, d: usize) -> Vec<u32> {
        match self.kind {
            Kind::Calibrated(_) => {
                let (rankings, _) = self.rankings.as_ref().expect("a run calibrates its methods before it builds");
                rankings[layer][kv_head].clone()
            }
            Kind::Random => {
                let seed = mix_seed(mix_seed(RANDOM_CHANNELS_SEED, layer as u64), kv_head as u64);
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let mut keyed: Vec<(u64, u32)> = (0..d as u32).map(|c| (rng.next_u64(), c)).collect();
                keyed.sort_unstable();
                keyed.into_iter().map(|(_, channel)| channel).collect()
            }
        }
    }
}

/// Channels by their sum over the rows of `means: [head][d]`, the largest first; of equal ones the lower first.
fn ranking(means: &[f32], d: usize) -> Vec<u32> {
    let total = |c: u32| means.iter().skip(c as usize).step_by(d).map(|x| f64::from(*x)).sum::<f64>();
    let mut channels: Vec<u32> = (0..d as u32).collect();
    channels.sort_by(|&a, &b| total(b).total_cmp(&total(a)).then(a.cmp(&b)));
    channels
}

/// The given channels of every row, `[row][channel]`.
fn gather(rows: &[f32], d: usize, channels: &[u32]) -> Vec<f32> {
    rows.chunks_exact(d).flat_map(|row| channels.iter().map(|c| row[*c as usize])).collect()
}

/// Type of labels in 16 bits: that of the KV cache, or IEEE half precision if the cache has 32 bits.
fn half_type(dtype: KvDtype) -> KvDtype {
    match dtype {
        KvDtype::Bf16 => KvDtype::Bf16,
        KvDtype::F16 | KvDtype::F32 => KvDtype::F16,
    }
}

/// Clamps labels to the range of half precision, if that is their type.
fn clamp_to(dtype: KvDtype, labels: &mut [f32]) {
    const LARGEST_HALF: f32 = 65504.0;
    if dtype == KvDtype::F16 {
        labels.iter_mut().for_each(|x| *x = x.clamp(-LARGEST_HALF, LARGEST_HALF));
    }
}

/// `q[C]·label` of every candidate, `[query][candidate]`, with its cost. The labels are read once for all queries.
fn label_scores(queries: &GroupQueries<'_>, labels: &Labels, cost: &mut Cost) -> Vec<f32> {
    let width = labels.channels.len();
    let gathered = gather(queries.queries, queries.d, &labels.channels);
    match &labels.rows {
        LabelRows::Half(rows) => {
            cost.aux_bytes += (rows.tokens() * width * 2) as u64;
            dots(&gathered, rows.head(0), width, cost)
        }
        LabelRows::Quantised(rows) => {
            let mut scores = vec![0.0; queries.count() * rows.tokens()];
            rows.scores(&gathered, &mut scores);
            cost.aux_bytes += rows.bytes() as u64;
            // One multiply-add for each number, and two products for each range.
            cost.score_flops += (2 * queries.count() * width * (rows.tokens() + rows.groups())) as u64;
            scores
        }
    }
}

fn tensor_name(layer: usize, measure: &str) -> String {
    format!("layers.{layer}.{measure}")
}

// ---- calibration ----

/// Sums over tokens, for one KV head and its group of query heads.
#[derive(Debug, Clone)]
struct HeadSums {
    /// `|q_c·k_c|` of the same token, `[query head of the group][d]`.
    qk: Vec<f64>,
    /// `|q_c|`, `[query head of the group][d]`.
    q: Vec<f64>,
    /// `|k_c|`, `[d]`.
    k: Vec<f64>,
    /// `|q_c|` before RoPE, `[query head of the group][d]`.
    q_pre: Vec<f64>,
    /// `|k_c|` before RoPE, `[d]`.
    k_pre: Vec<f64>,
}

impl HeadSums {
    /// All sums, always in the same order.
    fn all(&self) -> impl Iterator<Item = &f64> {
        [&self.qk, &self.q, &self.k, &self.q_pre, &self.k_pre].into_iter().flatten()
    }

    /// All sums as in [`all`](Self::all), to be changed.
    fn all_mut(&mut self) -> impl Iterator<Item = &mut f64> {
        [&mut self.qk, &mut self.q, &mut self.k, &mut self.q_pre, &mut self.k_pre].into_iter().flatten()
    }

    /// Adds a token's queries `[query head of the group][d]` and key as they were before RoPE.
    fn add_unrotated(&mut self, mut queries: Vec<f32>, mut key: Vec<f32>, position: usize, rotation: &dyn Rotation) {
        rotation.turn_rows_back(&mut queries, key.len(), position);
        rotation.turn_back(&mut key, position);
        self.q_pre.iter_mut().zip(&queries).for_each(|(sum, q)| *sum += f64::from(q.abs()));
        self.k_pre.iter_mut().zip(&key).for_each(|(sum, k)| *sum += f64::from(k.abs()));
    }
}

/// Collects means of `|q_c·k_c|`, `|q_c|` and `|k_c|`.
struct ChannelMeans {
    model: ModelShape,
    /// The model's RoPE, to undo it; `None` if it changes with the length of the text.
    rotation: Option<Arc<dyn Rotation>>,
    /// `[layer][kv_head]`.
    sums: Vec<Vec<HeadSums>>,
    /// Tokens seen, by layer.
    tokens: Vec<usize>,
}

impl ChannelMeans {
    fn new(model: &ModelShape, rotation: Option<Arc<dyn Rotation>>) -> Self {
        let (d, group) = (model.head_dim, model.group());
        let (queries, key) = (vec![0.0; group * d], vec![0.0; d]);
        let head = HeadSums { qk: queries.clone(), q: queries.clone(), k: key.clone(), q_pre: queries, k_pre: key };
        Self {
            model: model.clone(),
            rotation,
            sums: vec![vec![head; model.kv_heads]; model.layers],
            tokens: vec![0; model.layers],
        }
    }

    /// The vectors that are multiplied, as noted in the artefact.
    fn pairs(&self) -> BTreeMap<String, String> {
        let pairs = "query and key of the same token, after RoPE; q_pre and k_pre before it";
        BTreeMap::from([("pairs".to_owned(), pairs.to_owned())])
    }

    /// Mean over tokens of one measure at one layer, `[head][d]`.
    fn tensor(&self, layer: usize, measure: &str, of: impl Fn(&HeadSums) -> &[f64]) -> NamedTensor {
        let tokens = self.tokens[layer].max(1) as f64;
        let mean = |sum: &f64| (sum / tokens) as f32;
        let values: Vec<f32> = self.sums[layer].iter().flat_map(|head| of(head).iter().map(mean)).collect();
        let shape = vec![values.len() / self.model.head_dim, self.model.head_dim];
        NamedTensor { name: tensor_name(layer, measure), shape, values, precision: Precision::F32 }
    }
}

impl Collector for ChannelMeans {
    fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        let chunk = &chunk.on_host()?;
        let (d, group, tokens) = (chunk.d(), self.model.group(), chunk.tokens());
        self.tokens[chunk.layer] += tokens;
        self.sums[chunk.layer].par_iter_mut().enumerate().for_each(|(kv_head, sums)| {
            for (t, key) in chunk.keys(kv_head).chunks_exact(d).enumerate() {
                if let Some(rotation) = &self.rotation {
                    let queries = (0..group).flat_map(|g| chunk.query(t, kv_head * group + g)).copied().collect();
                    sums.add_unrotated(queries, key.to_vec(), chunk.first + t, rotation.as_ref());
                }
                sums.k.iter_mut().zip(key).for_each(|(sum, k)| *sum += f64::from(k.abs()));
                for g in 0..group {
                    let query = chunk.query(t, kv_head * group + g);
                    let sums = sums.qk[g * d..].iter_mut().zip(&mut sums.q[g * d..]);
                    for ((qk, q), (x, k)) in sums.zip(query.iter().zip(key)) {
                        *qk += f64::from((x * k).abs());
                        *q += f64::from(x.abs());
                    }
                }
            }
        });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Collected {
        let of_layer = |layer: usize| {
            let mut tensors = vec![
                self.tensor(layer, "qk", |s| &s.qk),
                self.tensor(layer, "q", |s| &s.q),
                self.tensor(layer, "k", |s| &s.k),
            ];
            if self.rotation.is_some() {
                tensors.push(self.tensor(layer, "q_pre", |s| &s.q_pre));
                tensors.push(self.tensor(layer, "k_pre", |s| &s.k_pre));
            }
            tensors
        };
        let tensors = (0..self.model.layers).flat_map(of_layer).collect();
        let d = self.model.head_dim;
        let descending = |head: &HeadSums| {
            let mut summed: Vec<f64> = (0..d).map(|c| head.qk.iter().skip(c).step_by(d).sum()).collect();
            summed.sort_by(|a, b| b.total_cmp(a));
            summed
        };
        let masses: Vec<Vec<f64>> = self.sums.iter().flatten().map(descending).collect();
        let (channels, percents) = shares_in_words(&[d / 16, d / 8, d / 4, d / 2], d, &masses);
        Collected {
            tensors,
            settings: self.pairs(),
            notes: vec![format!("the first {channels} channels carry {percents} of mean |q·k| (mean over KV heads)")],
            held_out: None,
        }
    }

    fn checkpoint(&self) -> Collected {
        let of_layer = |(layer, heads): (usize, &Vec<HeadSums>)| {
            let sums = heads.iter().flat_map(HeadSums::all).copied();
            sums::tensor(sums_name(layer), std::iter::once(self.tokens[layer] as f64).chain(sums))
        };
        let tensors = self.sums.iter().enumerate().map(of_layer).collect();
        Collected { tensors, settings: self.pairs(), ..Collected::default() }
    }

    fn restore(&mut self, checkpoint: &Artefact) -> Result<(), ArtefactError> {
        self.pairs().iter().try_for_each(|(key, value)| checkpoint.check_setting(key, value))?;
        for (layer, (heads, tokens)) in self.sums.iter_mut().zip(&mut self.tokens).enumerate() {
            let mut read = 0.0;
            let sums = heads.iter_mut().flat_map(HeadSums::all_mut);
            sums::restore(checkpoint, &sums_name(layer), std::iter::once(&mut read).chain(sums))?;
            *tokens = read as usize;
        }
        Ok(())
    }
}

/// Name of the checkpoint's tensor with a layer's sums.
fn sums_name(layer: usize) -> String {
    format!("layers.{layer}.sums")
}

#[cfg(test)]
mod tests;
