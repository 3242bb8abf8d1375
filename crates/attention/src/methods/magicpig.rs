//! `magicpig`: samples tokens by locality-sensitive hashing and weights them by their probability (MagicPIG, Chen et al. 2024).
//!
//! Keys are centred, `k̄ = k − mean(K)`, and stored in `L` hash tables by `K` signs of random projections each. A
//! decode step hashes the query and reads one bucket of each table. A token is sampled if it shares the query's code in
//! at least two tables, which happens with probability `u`:
//!
//! ```text
//! p = 1 − arccos(cos(q, k̄))/π        that one sign agrees
//! u = 1 − (1 − p^K)^L − L·p^K·(1 − p^K)^(L−1)        (eq. 10)
//! ```
//!
//! The softmax over the sample with logits `s·q·k − ln u` is a self-normalised importance estimate of the candidates'
//! attention (eq. 11). Logits use raw keys: centring would shift all of them by the same amount.
//!
//! **Hyperplanes** are drawn once from the parameter `seed` and shared by all layers, heads and examples, as in the paper
//! (§4.4); `seed=1..5` gives other draws. Neither the index nor the bytes of a step include them: one shared matrix stays
//! in the cores' caches (384 KB at the paper's size). `shared_bytes` counts them as if every KV head read them anew.
//!
//! **`density=`** solves L for all heads of an example: the least for which the expected share of sampled candidates
//! (`u`) meets the density, over the angles between the last queries of the prefix and its keys. K is as given;
//! otherwise it is the largest up to 10 that needs no more tables than the largest published setting.
//!
//! **`simple_lsh`** is the transform of eq. 8, after centring: `k̄` gets a further coordinate `√(r² − ‖k̄‖²)` with
//! `r = max‖k̄‖`, and `q` a zero. Then `cos = q·k̄/(‖q‖·r)`, and `p` orders tokens by `q·k̄`, not by angle. The paper
//! found that it does not help and leaves it out.
//!
//! **Corner cases.** A zero vector (all keys equal, centred) has no angle. Its code is 0 in every table, and the
//! query's is 0 with probability `2^−K`, so `p = 1/2`. The cosine is clamped to ±1, and `p` has a lower bound that
//! single precision can tell from 0, so no logit is infinite.
//!
//! **Dense layers.** All publications leave layers dense (0, 16, 32, 48, as far as a model has them), and so do the presets.
//! By default they are those of the run, as for all methods. Without any, deep models lose much, and a warning says so.
//!
//! **`attend_on=host`** is the system of the paper (§4.4): on a GPU, tables, keys and values stay in host memory. The GPU hashes keys once
//! and queries at each step. The host looks codes up and attends the sampled tokens into partial softmaxes, which the GPU merges with those
//! of the static tokens. Tables, codes and samples are those of `attend_on=device`. On a CPU both settings do the same.
//!
//! Each query head of a GQA group samples with its own query from the tables of its KV head, as in the authors' code. A
//! union over the group is not offered: the heads use the same hyperplanes, so their collisions are dependent, and the
//! probability of the union, which the weights need, has no closed form for more than two heads.

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod law;
mod probability;
mod tables;

pub use self::law::CollisionLaw;
use self::probability::{LogProbability, agreement, sampling_probability};
use self::tables::{CodeRows, Codes, CollisionCounter, HashTables, Shape};
use super::ParamInfo;
use super::planes::RandomPlanes;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::index::workspaces::Workspaces;
use crate::kv::{CollectedRows, KvError};
use crate::methods::entry::{MethodEntry, Preset, SEED};
use crate::prefill::mask::{RowHead, RowMask};
use crate::scored::granularity::try_each_head;
use crate::{
    DeviceForm, HeadPrefix, Histogram, IndexBuilder, Method, Params, PrefillPattern, Probe, ProbeHead, QueryBlock,
    Role, SelectedTokens, Selection, Solved, StaticTokens, Step, TailRule, Tuned, Weighting, least_reaching,
};

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use spattn_base::error::UsageError;
use spattn_kernels::hyperplanes::Hyperplanes;
use spattn_kernels::{Rows, linear};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "magicpig",
    role: Role::Method,
    about: "tokens sampled by LSH collisions, weighted by 1/probability",
    reference: "MagicPIG (Chen et al. 2024, arXiv:2410.16179)",
    params: &[
        ParamInfo { key: "K", default: "10", about: "hyperplanes of a table, 1 to 16: more pick fewer tokens" },
        ParamInfo {
            key: "L",
            default: "150",
            about: "tables: more pick more tokens; published (K,L): (10,150) (9,120) (8,75), (10,220) for short and \
                    (11,300) for long contexts",
        },
        ParamInfo { key: "min_collisions", default: "2", about: "2 | 1: tables in which a sampled token collides" },
        ParamInfo { key: "center", default: "true", about: "true | false: subtract the candidates' mean key" },
        ParamInfo { key: "simple_lsh", default: "false", about: "false | true: order by inner product, not by angle" },
        ParamInfo { key: "u_floor", default: "0", about: "added to a token's probability before 1/u, 0 to 1" },
        ParamInfo { key: "seed", default: "1", about: "draw of the hyperplanes, which all heads share" },
        ParamInfo {
            key: "attend_on",
            default: "device",
            about: "device | host: where a GPU run with --kv-tier host samples and attends what it sampled; a CPU run is alike",
        },
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("K", "10"), ("L", "150"), ("sink", "4"), ("local", "64"), ("dense_layers", "0-48/16")],
            source: "MagicPIG §5: (10,150), 4 sink and 64 local tokens, layers 0 and 16 kept dense, and of a model with 80 layers \
                     0, 16, 32 and 48 (Table 5): every 16th up to 48, as far as a model has them, as in its code",
        },
        Preset {
            name: "repo",
            values: &[
                ("K", "10"),
                ("L", "150"),
                ("u_floor", "1e-4"),
                ("sink", "4"),
                ("local", "64"),
                ("dense_layers", "0-48/16"),
            ],
            source: "MagicPIG's code, models/attnserver.py and library/sparse_attention: 1e-4 is added to u; dense \
                     layers 0, 16, 32, 48, as far as a model has them (0, 16 and 32 of 40); an earlier version has 64, too",
        },
    ],
    build: |params| Ok(Arc::new(MagicPig::read(params)?)),
};

/// The method: sampling by SimHash collisions.
struct MagicPig {
    /// `K`; `None` if it is solved together with `L`.
    bits: Option<usize>,
    /// `L`.
    tables: Tuned<usize>,
    hashing: Hashing,
    u_floor: f64,
    /// Whether the host samples and attends if a GPU runs the model.
    attends_on_host: bool,
    planes: RandomPlanes,
    /// Table of `ln u`; `None` until `K` and `L` are known.
    log_probability: Option<Arc<LogProbability>>,
}

/// How keys are hashed, and how many collisions make a sampled token.
#[derive(Debug, Clone, Copy)]
struct Hashing {
    min_collisions: u8,
    center: bool,
    simple_lsh: bool,
    seed: u64,
}

impl MagicPig {
    /// Default of `K`, and the largest `K` that is tried if it is solved with `L`.
    const DEFAULT_BITS: usize = 10;
    /// Tables of the largest published setting, (11,300).
    const PUBLISHED_TABLES: usize = 300;
    /// Largest `L` that may be asked for, or is tried for a given `K`.
    const MOST_TABLES: usize = 4000;

    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let is_chosen = params.is_given("density") && !params.is_given("K");
        let bits =
            if is_chosen { None } else { Some(params.get_within("K", Self::DEFAULT_BITS, 1..=Shape::MOST_BITS)?) };
        let tables = params.tuned_within("L", 150, 1..=Self::MOST_TABLES)?;
        let min_collisions = if params.choice("min_collisions", &["2", "1"])? == "1" { 1 } else { 2 };
        if let Tuned::Value(tables) = tables
            && tables < usize::from(min_collisions)
        {
            return Err(params.bad_value("L", &tables.to_string(), "at least min_collisions, which is 2 by default"));
        }
        let center = params.choice("center", &["true", "false"])? == "true";
        let simple_lsh = params.choice("simple_lsh", &["false", "true"])? == "true";
        let u_floor = params.get_minor_as("u_floor", 0.0f64, "a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&u_floor) {
            return Err(params.bad_value("u_floor", &u_floor.to_string(), "from 0 to 1"));
        }
        let seed = params.get_minor_as("seed", 1u64, SEED)?;
        let hashing = Hashing { min_collisions, center, simple_lsh, seed };
        let attends_on_host = params.choice("attend_on", &["device", "host"])? == "host";
        Ok(Self { attends_on_host, ..Self::new(bits, tables, hashing, u_floor) })
    }

    fn new(bits: Option<usize>, tables: Tuned<usize>, hashing: Hashing, u_floor: f64) -> Self {
        // With a density the shape is not known yet; the solved method draws its own hyperplanes.
        let shape = match tables {
            Tuned::Value(tables) => Some(Shape { bits: bits.unwrap_or(Self::DEFAULT_BITS), tables }),
            Tuned::Density(_) => None,
        };
        let planes = RandomPlanes::new(shape.map_or(0, Shape::planes), hashing.seed);
        let log_probability = shape.map(|shape| Arc::new(LogProbability::new(shape, hashing.min_collisions, u_floor)));
        Self { bits, tables, hashing, u_floor, attends_on_host: false, planes, log_probability }
    }

    /// `K` and `L`, as given or solved.
    fn shape(&self) -> Shape {
        Shape { bits: self.bits.unwrap_or(Self::DEFAULT_BITS), tables: self.tables.value() }
    }

    /// The shape that is expected to sample a share `wanted` of the candidates, given their probabilities `p` of agreement.
    fn shape_for(&self, wanted: f64, agreements: &Histogram) -> Shape {
        let fewest = usize::from(self.hashing.min_collisions);
        let sampled = |shape| agreements.mean(|p| sampling_probability(shape, self.hashing.min_collisions, p));
        let with = |bits, most| {
            let tables = least_reaching(fewest..=most, wanted, |tables| sampled(Shape { bits, tables }));
            Shape { bits, tables }
        };
        if let Some(bits) = self.bits {
            return with(bits, Self::MOST_TABLES);
        }
        let mut ladder = (1..=Self::DEFAULT_BITS).rev().map(|bits| with(bits, Self::PUBLISHED_TABLES));
        let reaches = |shape: &Shape| sampled(*shape) >= wanted;
        ladder.find(reaches).unwrap_or(Shape { bits: 1, tables: Self::PUBLISHED_TABLES })
    }

    /// The candidates' keys, and their mean if they are centred. Norms and hashes follow from the mean of all keys, so they
    /// are gone through up to three times.
    fn keys<'a>(&self, rows: &'a CollectedRows<'_>, d: usize) -> Keys<'a> {
        let mut keys = Keys { rows: rows.rows(), d, mean: None };
        if self.hashing.center {
            keys.mean = Some(keys.compute_mean());
        }
        keys
    }

    /// Probabilities `p` of agreement between the probe's queries and the candidates.
    fn agreements(&self, head: &ProbeHead<'_>) -> Result<Histogram, KvError> {
        let rows = head.prefix.candidate_keys().collect()?;
        let keys = self.keys(&rows, head.prefix.d);
        let lengths = keys.norms();
        let norms = if self.hashing.simple_lsh { Norms::Common(longest(&lengths)) } else { Norms::Each(lengths) };
        let geometry = Geometry { mean: keys.mean, norms };
        let tokens: Vec<u32> = (0..head.prefix.candidates.len() as u32).collect();
        let to_dot = head.prefix.scale.divisor() as f32;
        let mut queries = head.queries.chunks_exact(head.prefix.d);
        let mut agreements = Histogram::new();
        head.each_logits(|logits| {
            let dots: Vec<f32> = logits.iter().map(|x| x * to_dot).collect();
            let query = queries.next().expect("logits come query by query");
            let cosines = geometry.cosines(query, &dots, &tokens, [&geometry.norms; 2], &mut Cost::default());
            cosines.into_iter().for_each(|cos| agreements.add(agreement(cos)));
        })?;
        Ok(agreements)
    }

    /// The sampled tokens of one query head and their weights; `sides` is the query's hash. Exact products with sampled
    /// keys are counted as attention, not here.
    fn picks(
        &self,
        step: &Step<'_>,
        head: usize,
        sides: &[u64],
        index: &HashIndex,
        state: &Sampling,
        cost: &mut Cost,
    ) -> Result<SelectedTokens, KvError> {
        let least = self.hashing.min_collisions;
        let counter = || CollisionCounter::new(index.tables.tokens());
        let mut sampled = state.counters.with(counter, |c| c.sample(&index.tables, sides, least, &mut cost.aux_bytes));
        let behind = index.tables.tokens() as u32;
        sampled.extend(state.tail.codes.sample(sides, state.tail.codes.tokens(), least).map(|t| t + behind));
        cost.aux_bytes += state.tail.codes.bytes() as u64;
        // The counts of all tokens, written once and read once.
        cost.select_bytes += 2 * u64::from(behind);
        let first = step.candidates.start as u32;
        let tokens: Vec<u32> = sampled.iter().map(|t| t + first).collect();
        let [dots, scores] = step.exact_scores_for_attention(head, &tokens)?;
        let norms = [&index.geometry.norms, &state.tail.norms];
        let cosines = index.geometry.cosines(step.query(head), &dots, &sampled, norms, cost);
        let log_u = self.log_probability.as_ref().expect("K and L were solved before the decode step");
        let log_u = cosines.into_iter().map(|cos| log_u.at(cos)).collect();
        Ok(SelectedTokens { tokens, weighting: Weighting::LogBias(log_u), scores })
    }

    /// The vectors `[token][planes.d()]` by which `keys: [token][d]` are hashed, and their norms.
    fn hashed(&self, geometry: &Geometry, keys: &[f32], d: usize) -> (Vec<f32>, Norms) {
        let keys = Keys { rows: Rows::F32(keys), d, mean: geometry.mean.clone() };
        let norms = keys.norms();
        match geometry.norms {
            Norms::Each(_) => (keys.centred(0..norms.len()), Norms::Each(norms)),
            Norms::Common(longest) => (keys.simple_lsh(0..norms.len(), &norms, longest), Norms::Common(longest)),
        }
    }
}

/// The index over the candidates of one KV head.
struct HashIndex {
    planes: Arc<Hyperplanes>,
    tables: HashTables,
    geometry: Geometry,
}

/// State of a sequence.
struct Sampling {
    counters: Workspaces<CollisionCounter>,
    tail: HashedTail,
    /// The codes of the next step's queries, `[query][table]`, if a device hashed them.
    codes: Vec<u16>,
}

/// Tokens that left the window since the prefix was read, hashed with its mean and, for `simple_lsh`, its longest key.
struct HashedTail {
    codes: CodeRows,
    norms: Norms,
}

/// How hashed vectors follow from keys.
struct Geometry {
    /// Mean of the keys; `None` if they are not centred.
    mean: Option<Vec<f32>>,
    norms: Norms,
}

/// Norms of the hashed vectors.
enum Norms {
    /// `‖k̄_i‖` of each token.
    Each(Vec<f32>),
    /// The common norm `r` after the transform of eq. 8.
    Common(f32),
}

impl Norms {
    /// The norms of some tokens, those behind the prefix numbered on in the tail. They lie far apart: read by themselves, many are on their way
    /// at the same time.
    fn of_tokens([prefix, tail]: [&Self; 2], tokens: &[u32]) -> Vec<f32> {
        match (prefix, tail) {
            (Self::Common(length), _) | (_, Self::Common(length)) => vec![*length; tokens.len()],
            (Self::Each(prefix), Self::Each(tail)) => {
                let norm = |token: &u32| {
                    let token = *token as usize;
                    prefix.get(token).copied().unwrap_or_else(|| tail[token - prefix.len()])
                };
                tokens.iter().map(norm).collect()
            }
        }
    }
}

impl Method for MagicPig {
    type Index = HashIndex;
    type State = Sampling;

    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(density) = self.tables.density() else { return Ok(None) };
        let wanted = probe.tokens(density) / probe.candidates() as f64;
        let agreements = Histogram::pooled(probe.measure(|head| self.agreements(head))?);
        let Shape { bits, tables } = self.shape_for(wanted, &agreements);
        let method = Self::new(Some(bits), Tuned::Value(tables), self.hashing, self.u_floor);
        let method = Self { attends_on_host: self.attends_on_host, ..method };
        Ok(Some(Solved { method, params: format!("K={bits},L={tables}") }))
    }

    /// Leaves out what only matters in each step (how many tables a token has to collide in, and its weight) and planes, which follow from
    /// shape and seed. Includes `attends_on_host`, because a GPU that makes tables for the host may round keys near a plane to other codes.
    fn index_key(&self) -> IndexKey {
        let Self { bits, tables, hashing, u_floor: _, attends_on_host, planes: _, log_probability: _ } = self;
        let Hashing { min_collisions: _, center, simple_lsh, seed } = hashing;
        IndexKey::new((*bits, *tables, *center, *simple_lsh, *seed, *attends_on_host))
    }

    /// Needs all keys at the same time: their mean, and with `simple_lsh` the longest of them, enters each hash.
    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<HashIndex, KvError> {
        let rows = prefix.candidate_keys().collect()?;
        let (keys, shape) = (self.keys(&rows, prefix.d), self.shape());
        let norms = keys.norms();
        let width = prefix.d + usize::from(self.hashing.simple_lsh);
        let planes = self.planes.of_width(width);
        let (codes, norms) = if self.hashing.simple_lsh {
            let longest = longest(&norms);
            let vectors = |range| keys.simple_lsh(range, &norms, longest);
            (Codes::hash(shape, &planes, keys.tokens(), vectors), Norms::Common(longest))
        } else {
            (Codes::hash(shape, &planes, keys.tokens(), |range| keys.centred(range)), Norms::Each(norms))
        };
        Ok(HashIndex { planes, tables: HashTables::new(&codes), geometry: Geometry { mean: keys.mean, norms } })
    }

    /// Bytes of tables, mean and norms; the hyperplanes are shared by all KV heads and not counted.
    fn index_bytes(&self, index: &HashIndex) -> usize {
        let Geometry { mean, norms } = &index.geometry;
        let norms = match norms {
            Norms::Each(norms) => norms.len(),
            Norms::Common(_) => 1,
        };
        index.tables.bytes() + (norms + mean.as_ref().map_or(0, Vec::len)) * size_of::<f32>()
    }

    fn start(&self, index: &HashIndex) -> Sampling {
        let norms = match index.geometry.norms {
            Norms::Each(_) => Norms::Each(Vec::new()),
            Norms::Common(longest) => Norms::Common(longest),
        };
        let tail = HashedTail { codes: CodeRows::new(self.shape()), norms };
        Sampling { counters: Workspaces::new(), tail, codes: Vec::new() }
    }

    fn state_bytes(&self, state: &Sampling) -> usize {
        let norms = match &state.tail.norms {
            Norms::Each(norms) => size_of_val(norms.as_slice()),
            Norms::Common(_) => 0,
        };
        state.tail.codes.bytes() + norms
    }

    fn select(
        &self,
        step: &Step<'_>,
        index: &HashIndex,
        state: &mut Sampling,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        let new = step.candidates.start + index.tables.tokens() + state.tail.codes.tokens()..step.candidates.end;
        if !new.is_empty() {
            let (vectors, norms) = self.hashed(&index.geometry, &step.all_keys().slice(new).to_f32()?, step.d);
            state.tail.codes.push(&index.planes, &vectors);
            if let (Norms::Each(all), Norms::Each(new)) = (&mut state.tail.norms, norms) {
                all.extend(new);
            }
        }
        let sides = match std::mem::take(&mut state.codes) {
            codes if codes.is_empty() => index.hash_queries(step),
            codes => {
                codes.chunks_exact(codes.len() / step.group()).flat_map(|own| self.shape().sides_of(own)).collect()
            }
        };
        index.count_hashing(step, cost);
        let (words, state) = (index.planes.words(), &*state);
        let pick =
            |head: usize, cost: &mut Cost| self.picks(step, head, &sides[head * words..][..words], index, state, cost);
        Ok(Selection::PerHead(try_each_head(step.group(), step.context.tokens, cost, pick)?))
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        match (self.tables, &self.log_probability) {
            (Tuned::Value(_), Some(_)) => Some(PrefillPattern::Rows(self)),
            _ => None,
        }
    }

    fn attends_on_host(&self) -> bool {
        self.attends_on_host
    }

    fn take_codes(&self, state: &mut Sampling, codes: &[u16]) {
        state.codes = codes.to_vec();
    }

    fn index_builder(&self) -> Option<&dyn IndexBuilder> {
        (self.attends_on_host && self.can_hash_on_device()).then_some(self as _)
    }

    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        let mut reasons = Vec::new();
        if self.attends_on_host {
            reasons.push(HostReason::AttendsOnHost);
            reasons.extend(self.bits_reason());
        }
        if self.hashing.simple_lsh {
            reasons.push(HostReason::setting("simple_lsh", true));
        }
        if self.log_probability.is_none() {
            reasons.push(HostReason::UnsolvedDensity);
        }
        if reasons.is_empty() { Ok(self) } else { Err(reasons) }
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Indexed("new keys are hashed as the prefix's are, by its mean; their codes are compared one by one")
    }
}

/// Prefill row by row. The mean by which keys are centred is computed once for a block of rows, from the candidates of
/// its first row: it hardly changes from row to row.
impl RowMask for MagicPig {
    fn begin(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(())
    }

    fn take_in(&self, _: &mut (dyn Any + Send + Sync), _: &RowHead<'_>, _: Range<usize>) {}

    fn picks(&self, block: &QueryBlock<'_>, head: &RowHead<'_>, _: &dyn Any, cost: &mut Cost) -> Vec<Selection> {
        let (d, group) = (block.d, block.group);
        let of_row = |row: usize| StaticTokens::sliding(block.policy, block.first + row + 1);
        let (first, last) = (of_row(0), of_row(block.rows - 1));
        let (sink, all) = (last.sink, last.sink..last.recent);
        if all.is_empty() {
            return vec![Selection::PerHead(vec![SelectedTokens::softmax(Vec::new()); group]); block.rows];
        }
        let learned = if first.sink < first.recent { first.sink..first.recent } else { all.clone() };
        let mut keys = Keys { rows: head.keys.slice(learned, d), d, mean: None };
        keys.mean = self.hashing.center.then(|| keys.compute_mean());
        let keys = Keys { rows: head.keys.slice(all, d), ..keys };
        let norms = keys.norms();
        let norms = if self.hashing.simple_lsh { Norms::Common(longest(&norms)) } else { Norms::Each(norms) };
        let geometry = Geometry { mean: keys.mean, norms };
        let planes = self.planes.of_width(d + usize::from(self.hashing.simple_lsh));
        let mut codes = CodeRows::new(self.shape());
        codes.push(&planes, &self.hashed(&geometry, &keys.rows.to_f32(), d).0);
        let log_u = self.log_probability.as_ref().expect("K and L were solved before prefill");
        let pick = |row: usize, h: usize, cost: &mut Cost| {
            let query = &block.head(h)[row * d..][..d];
            let sides = side_bits(&planes, query, cost);
            let candidates = of_row(row).recent.saturating_sub(sink);
            let sampled: Vec<u32> = codes.sample(&sides, candidates, self.hashing.min_collisions).collect();
            let tokens: Vec<u32> = sampled.iter().map(|t| t + sink as u32).collect();
            let mut dots = vec![0.0; tokens.len()];
            linear::scores(query, &head.keys.gather(&tokens, d), d, &mut dots);
            let cosines = geometry.cosines(query, &dots, &sampled, [&geometry.norms; 2], cost);
            let log_u = cosines.into_iter().map(|cos| log_u.at(cos)).collect();
            SelectedTokens::weighted(tokens, Weighting::LogBias(log_u))
        };
        let of_group = |row: usize| Selection::PerHead((0..group).map(|h| pick(row, h, cost)).collect());
        (0..block.rows).map(of_group).collect()
    }
}

/// Side bits of one query `[d]`; counts the cost.
fn side_bits(planes: &Hyperplanes, query: &[f32], cost: &mut Cost) -> Vec<u64> {
    let (width, d) = (planes.d(), query.len());
    let mut padded = vec![0.0; width];
    padded[..d].copy_from_slice(query);
    let mut sides = vec![0; planes.words()];
    planes.side_bits(&padded, &mut sides);
    let flops = 2 * (width * planes.count()) as u64;
    cost.score_flops += flops;
    cost.projection_flops += flops;
    sides
}

impl HashIndex {
    /// Returns the side bits of the group's queries, `[group][words]`.
    fn hash_queries(&self, step: &Step<'_>) -> Vec<u64> {
        let width = self.planes.d();
        let mut queries = vec![0.0; step.group() * width];
        for (query, padded) in step.queries.chunks_exact(step.d).zip(queries.chunks_exact_mut(width)) {
            padded[..step.d].copy_from_slice(query);
        }
        let mut sides = vec![0; step.group() * self.planes.words()];
        self.planes.side_bits(&queries, &mut sides);
        sides
    }

    /// Counts the cost of hashing the group's queries, wherever they are hashed.
    fn count_hashing(&self, step: &Step<'_>, cost: &mut Cost) {
        let flops = 2 * (step.group() * self.planes.d() * self.planes.count()) as u64;
        cost.score_flops += flops;
        cost.projection_flops += flops;
        cost.shared_bytes += self.planes.bytes() as u64;
        cost.shared_uses += 1;
    }
}

impl Geometry {
    /// Cosines of `query` with the hashed vectors of the `sampled` tokens, whose `q·k` are `dots`; `norms` are those of
    /// the prefix and of the tail.
    fn cosines(&self, query: &[f32], dots: &[f32], sampled: &[u32], norms: [&Norms; 2], cost: &mut Cost) -> Vec<f64> {
        let query_norm = norm(query);
        let mut shift = [0.0];
        if let Some(mean) = &self.mean {
            linear::scores(query, mean, query.len(), &mut shift);
            cost.score_flops += 2 * query.len() as u64;
            cost.aux_bytes += size_of_val(mean.as_slice()) as u64;
        }
        cost.aux_bytes += match &self.norms {
            Norms::Each(_) => size_of_val(sampled) as u64,
            Norms::Common(_) => size_of::<f32>() as u64,
        };
        let cosine = |(dot, key_norm): (&f32, f32)| {
            let lengths = query_norm * f64::from(key_norm);
            if lengths > 0.0 { f64::from(dot - shift[0]) / lengths } else { 0.0 }
        };
        dots.iter().zip(Norms::of_tokens(norms, sampled)).map(cosine).collect()
    }
}

/// The candidates' keys, and the mean to subtract from them.
struct Keys<'a> {
    rows: Rows<'a>,
    d: usize,
    mean: Option<Vec<f32>>,
}

impl Keys<'_> {
    /// Tokens that are converted to f32 at a time.
    const BLOCK: usize = 1024;

    fn tokens(&self) -> usize {
        self.rows.elements() / self.d
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let tokens = self.tokens();
        (0..tokens).step_by(Self::BLOCK).map(move |first| first..(first + Self::BLOCK).min(tokens))
    }

    fn compute_mean(&self) -> Vec<f32> {
        let mut sums = vec![0.0f64; self.d];
        for block in self.blocks() {
            for row in self.rows.slice(block, self.d).to_f32().chunks_exact(self.d) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
        }
        sums.into_iter().map(|sum| (sum / self.tokens().max(1) as f64) as f32).collect()
    }

    /// `k̄` of a range of tokens, `[token][d]`.
    fn centred(&self, range: Range<usize>) -> Vec<f32> {
        let mut rows = self.rows.slice(range, self.d).to_f32();
        if let Some(mean) = &self.mean {
            for row in rows.chunks_exact_mut(self.d) {
                row.iter_mut().zip(mean).for_each(|(x, m)| *x -= m);
            }
        }
        rows
    }

    /// `‖k̄‖` of all tokens.
    fn norms(&self) -> Vec<f32> {
        let blocks: Vec<Range<usize>> = self.blocks().collect();
        let norms = |block| self.centred(block).chunks_exact(self.d).map(|k| norm(k) as f32).collect::<Vec<f32>>();
        blocks.into_par_iter().flat_map_iter(norms).collect()
    }

    /// `[k̄, √(r² − ‖k̄‖²)]` of a range of tokens, `[token][d + 1]`, with `r` being `longest` (eq. 8).
    fn simple_lsh(&self, range: Range<usize>, norms: &[f32], longest: f32) -> Vec<f32> {
        let mut rows = Vec::with_capacity(range.len() * (self.d + 1));
        for (row, norm) in self.centred(range.clone()).chunks_exact(self.d).zip(&norms[range]) {
            rows.extend_from_slice(row);
            rows.push((longest * longest - norm * norm).max(0.0).sqrt());
        }
        rows
    }
}

fn longest(norms: &[f32]) -> f32 {
    norms.iter().copied().fold(0.0, f32::max)
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests;
