//! The methods, one file each, and their registry.
//!
//! To add a method: write its file and add its [`MethodEntry`] to [`METHODS`]. Nothing else in the
//! program knows a method by name.

mod a_shape;
mod bigbird;
mod double_sparsity;
mod flexprefill;
mod full;
mod graph_search;
mod h2o;
mod hash_attention;
mod hip;
mod hyper_attention;
mod infllm;
mod knn;
mod lines;
mod loki;
mod lsh_bits;
mod magicpig;
mod minference;
mod oracle_sampling;
mod planes;
mod pqcache;
mod prefill_only;
mod quest;
mod random;
mod reformer;
mod retrieval_attention;
mod signatures;
mod snapkv;
mod sparq;
mod streaming_llm;
mod topk;
mod topk_norm;
mod topp;
mod vertical_slash;

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use super::calibration::Calibration;
use super::{AnyMethod, Configured, DenseLayers, Mask, Masks, MethodSpec, Params, Picks, Policy, Selection, Step};
use crate::error::UsageError;
use crate::kv::MOST_TOKENS;

/// What the command line knows of a method.
pub struct MethodEntry {
    /// Bare name in specs.
    pub name: &'static str,
    /// One line for `spattn list methods`.
    pub about: &'static str,
    /// Where the method is published, in a few words.
    pub reference: &'static str,
    /// Own parameters with defaults and meaning.
    pub params: &'static [ParamInfo],
    /// Parameter values of `preset=paper` and the like; `matched` exists for every method.
    pub presets: &'static [Preset],
    /// Reads the own parameters.
    pub build: fn(&mut Params) -> Result<Arc<dyn AnyMethod>, UsageError>,
}

impl MethodEntry {
    /// The presets: the published ones, then `matched`, which every method has.
    pub fn all_presets(&self) -> impl Iterator<Item = &Preset> {
        self.presets.iter().chain([&MATCHED])
    }

    /// In which phases its default form is sparse.
    pub fn phase(&self) -> &'static str {
        let spec = MethodSpec { name: self.name.to_owned(), params: Vec::new() };
        match (self.build)(&mut Params::new(&spec)) {
            Ok(method) if method.decodes_densely() => "prefill",
            Ok(method) if method.prefill_pattern().is_some() => "prefill and decode",
            _ => "decode",
        }
    }

    /// For which heads it makes a selection.
    pub fn granularity(&self) -> &'static str {
        let has = |key: &str| self.params.iter().any(|p| p.key == key);
        match (has(Granularity::INFO.key), has(Granularity::REDUCE.key)) {
            (true, true) => "each query head, or a GQA group (per, reduce)",
            (true, false) => "each query head, or a GQA group (per)",
            _ if self.params.is_empty() => "none: all is attended",
            _ => "fixed by the method",
        }
    }
}

/// A parameter as listed.
pub struct ParamInfo {
    /// Key in a spec.
    pub key: &'static str,
    /// Value if not given.
    pub default: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
}

/// Named parameter values with the place they come from.
pub struct Preset {
    /// `paper` or `repo`.
    pub name: &'static str,
    /// Own parameters and policy keys.
    pub values: &'static [(&'static str, &'static str)],
    /// Where these values are stated.
    pub source: &'static str,
}

/// The preset that every method has: what is not given in the spec is as for all methods of the run.
const MATCHED: Preset = Preset {
    name: "matched",
    values: &[],
    source: "the default: own parameters as listed; sink, local and dense layers as for all methods of the run",
};

/// All methods, in the order in which they are listed.
pub const METHODS: &[MethodEntry] = &[
    full::ENTRY,
    topk::ENTRY,
    topk_norm::ENTRY,
    topp::ENTRY,
    oracle_sampling::ENTRY,
    random::ENTRY,
    streaming_llm::ENTRY,
    a_shape::ENTRY,
    bigbird::ENTRY,
    vertical_slash::ENTRY,
    minference::ENTRY,
    flexprefill::ENTRY,
    hyper_attention::ENTRY,
    reformer::ENTRY,
    snapkv::ENTRY,
    h2o::ENTRY,
    infllm::ENTRY,
    quest::ENTRY,
    magicpig::ENTRY,
    double_sparsity::ENTRY,
    loki::ENTRY,
    sparq::ENTRY,
    hip::ENTRY,
    lsh_bits::ENTRY,
    hash_attention::ENTRY,
    knn::ENTRY,
    pqcache::ENTRY,
    retrieval_attention::ENTRY,
];

/// How the artefacts are made that methods need, in the order in which they are made.
pub const CALIBRATIONS: &[Calibration] =
    &[double_sparsity::CALIBRATION, loki::CALIBRATION, hash_attention::CALIBRATION];

/// Parameters that every method takes.
pub const POLICY_PARAMS: &[ParamInfo] = &[
    ParamInfo { key: "sink", default: "4", about: "first tokens, always attended" },
    ParamInfo { key: "local", default: "64", about: "last tokens of the prefix, always attended" },
    ParamInfo { key: "dense_layers", default: "none", about: "layers left dense: 0+1, 0-2, 0+50%" },
    ParamInfo {
        key: "density",
        default: "-",
        about: "instead of the method's own budget: share of the context attended, static tokens included, in layers \
                that are not dense",
    },
    ParamInfo {
        key: "preset",
        default: "matched",
        about: "paper | repo | matched: published settings, or the harness's",
    },
];

/// Looks a method up and reads its parameters; policy keys not given in the spec come from `policy`.
///
/// # Errors
/// Unknown method, preset or parameter, or a value out of range.
pub fn configure(spec: &MethodSpec, policy: &Policy) -> Result<Configured, UsageError> {
    let entry = METHODS
        .iter()
        .find(|m| m.name == spec.name)
        .ok_or_else(|| UsageError::unknown("method", &spec.name, METHODS.iter().map(|m| m.name)))?;
    let mut params = Params::new(spec);
    if let Some(name) = params.take("preset") {
        params.fill(preset(entry, &name)?);
    }
    let method = (entry.build)(&mut params)?;
    let policy = read_policy(&mut params, policy)?;
    // A method without parameters (the dense reference) has nothing that sink or window could change.
    if !entry.params.is_empty() {
        note_policy(&mut params, &policy);
    }
    let settings = params.finish()?;
    let named = settings.iter().filter(|s| s.is_named).map(|s| format!("{}={}", s.key, s.value));
    let params = named.collect::<Vec<_>>().join(",");
    Ok(Configured { name: entry.name, params, settings, policy, method, artefact: None })
}

fn preset(entry: &MethodEntry, name: &str) -> Result<&'static [(&'static str, &'static str)], UsageError> {
    entry.all_presets().find(|p| p.name == name).map(|p| p.values).ok_or_else(|| {
        let known: Vec<&str> = entry.all_presets().map(|p| p.name).collect();
        UsageError::new(format!("method `{}` has no preset `{name}`", entry.name))
            .hint(format!("its presets: {}", known.join(", ")))
    })
}

fn read_policy(params: &mut Params, default: &Policy) -> Result<Policy, UsageError> {
    let mut number = |key, default| match params.take(key) {
        None => Ok(default),
        Some(text) => params.parse_within(key, &text, 0..=MOST_TOKENS),
    };
    let (sink, local) = (number("sink", default.sink)?, number("local", default.local)?);
    let dense_layers = match params.take("dense_layers") {
        None => default.dense_layers.clone(),
        Some(text) => DenseLayers::parse(&text)?,
    };
    Ok(Policy { sink, local, dense_layers })
}

/// Policy keys are named where they differ from the program's default, so that equal cells have equal names.
fn note_policy(params: &mut Params, policy: &Policy) {
    let default = Policy::default();
    params.note_unless_default("sink", &policy.sink, &default.sink);
    params.note_unless_default("local", &policy.local, &default.local);
    params.note_unless_default("dense_layers", &policy.dense_layers, &default.dense_layers);
}

/// How many of a head's `d` channels: a number or a share such as `d/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    Count(usize),
    Share(usize),
}

impl Channels {
    fn read(params: &mut Params, key: &'static str, default: Self) -> Result<Self, UsageError> {
        params.get(key, default, "a whole number from 1, or a share such as d/8")
    }

    /// The number, if it is given as one; see [`Method::channels_asked`](super::Method::channels_asked).
    fn asked(self, key: &'static str) -> Option<(&'static str, usize)> {
        match self {
            Self::Count(n) => Some((key, n)),
            Self::Share(_) => None,
        }
    }

    /// The number for heads of width `d`; from 1 to `d`.
    fn of(self, d: usize) -> usize {
        match self {
            Self::Count(n) => n.min(d),
            Self::Share(parts) => (d / parts).max(1),
        }
    }
}

impl FromStr for Channels {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let positive = |text: &str| text.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n)).ok_or(());
        match (text, text.strip_prefix("d/")) {
            ("d", _) => Ok(Self::Share(1)),
            (_, Some(parts)) => positive(parts).map(Self::Share),
            (_, None) => positive(text).map(Self::Count),
        }
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Share(1) => f.write_str("d"),
            Self::Share(parts) => write!(f, "d/{parts}"),
        }
    }
}

/// What the seed of a method should be.
const SEED: &str = "a whole number from 0 to 18446744073709551615";

/// Whether each query head of a GQA group has a selection of its own, or the group has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granularity {
    QueryHead,
    /// Its scores are those of its heads, reduced.
    KvHead(Reduce),
}

/// How the scores of a group become one; the mean picks what the sum picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reduce {
    Sum,
    Max,
}

impl Granularity {
    const INFO: ParamInfo = ParamInfo {
        key: "per",
        default: "query_head",
        about: "query_head | kv_head: a selection for each query head, or one for the GQA group",
    };

    const REDUCE: ParamInfo = ParamInfo {
        key: "reduce",
        default: "sum",
        about: "with per=kv_head: sum | max of the group's scores (the mean picks what the sum does)",
    };

    /// Reads `per` and `reduce`.
    fn read(params: &mut Params) -> Result<Self, UsageError> {
        let per = Self::read_per(params)?;
        let is_reduced = params.is_given(Self::REDUCE.key);
        let reduce = match params.choice(Self::REDUCE.key, &["sum", "max"])? {
            "max" => Reduce::Max,
            _ => Reduce::Sum,
        };
        match per {
            Self::KvHead(_) => Ok(Self::KvHead(reduce)),
            Self::QueryHead if is_reduced => {
                Err(UsageError::new("`reduce` says how a GQA group comes to one selection, and none was asked for")
                    .hint("add per=kv_head, or leave out reduce"))
            }
            Self::QueryHead => Ok(Self::QueryHead),
        }
    }

    /// Reads `per` alone, for methods whose common selection is not made from scores.
    fn read_per(params: &mut Params) -> Result<Self, UsageError> {
        Ok(match params.choice(Self::INFO.key, &["query_head", "kv_head"])? {
            "kv_head" => Self::KvHead(Reduce::Sum),
            _ => Self::QueryHead,
        })
    }

    /// What the query heads `[group][n]` have to say: each for itself, or what the group's reduce to.
    fn merged(self, heads: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        match self {
            Self::QueryHead => heads,
            Self::KvHead(reduce) => heads.into_iter().reduce(|a, b| reduce.pair(a, &b)).into_iter().collect(),
        }
    }

    /// Tokens chosen for each of what [`merged`](Self::merged) gave.
    fn selection(self, mut tokens: Vec<Vec<u32>>) -> Selection {
        match self {
            Self::QueryHead => Selection::PerHead(tokens.into_iter().map(Picks::softmax).collect()),
            Self::KvHead(_) => Selection::Shared(Picks::softmax(tokens.pop().unwrap_or_default())),
        }
    }

    /// What each query head of a group has, or what `add` makes of all of them.
    fn reduced<T>(self, heads: Vec<T>, add: impl Fn(T, &T) -> T) -> Vec<T> {
        match self {
            Self::QueryHead => heads,
            Self::KvHead(_) => heads.into_iter().reduce(|sum, head| add(sum, &head)).into_iter().collect(),
        }
    }

    /// Masks of the query heads, or the only one of the group.
    fn masks(self, mut masks: Vec<Mask>) -> Masks {
        match self {
            Self::QueryHead => Masks::PerHead(masks),
            Self::KvHead(_) => Masks::Shared(masks.pop().expect("the group's mask")),
        }
    }

    /// No token, for a group of so many query heads.
    fn nothing(self, group: usize) -> Selection {
        self.selection(vec![Vec::new(); group])
    }

    /// `search` by each query of the group, or once by their sum, whose scores are the sums of theirs; for methods
    /// that [`read_per`](Self::read_per).
    fn by_query(self, step: &Step<'_>, mut search: impl FnMut(&[f32]) -> Vec<u32>) -> Selection {
        match self {
            Self::QueryHead => {
                Selection::PerHead((0..step.group()).map(|h| Picks::softmax(search(step.query(h)))).collect())
            }
            Self::KvHead(_) => {
                let sum = Reduce::Sum.apply(step.queries, step.d);
                Selection::Shared(Picks::softmax(search(&sum)))
            }
        }
    }

    /// `select` on the scores `[group][n]` of each query head, or once on what the group's reduce to.
    fn select(self, scores: &[f32], group: usize, mut select: impl FnMut(&[f32]) -> Vec<u32>) -> Selection {
        let n = scores.len() / group;
        match self {
            Self::QueryHead => {
                Selection::PerHead((0..group).map(|h| Picks::softmax(select(&scores[h * n..][..n]))).collect())
            }
            Self::KvHead(reduce) => Selection::Shared(Picks::softmax(select(&reduce.apply(scores, n)))),
        }
    }
}

impl Reduce {
    /// Scores `[group][n]` to `[n]`.
    fn apply(self, scores: &[f32], n: usize) -> Vec<f32> {
        scores[n..].chunks_exact(n).fold(scores[..n].to_vec(), |reduced, head| self.pair(reduced, head))
    }

    /// Two of a group to one.
    fn pair(self, mut reduced: Vec<f32>, head: &[f32]) -> Vec<f32> {
        let pairs = reduced.iter_mut().zip(head);
        match self {
            Self::Sum => pairs.for_each(|(r, x)| *r += x),
            Self::Max => pairs.for_each(|(r, x)| *r = r.max(*x)),
        }
        reduced
    }
}

/// Tokens of some pages (blocks) of `page` tokens, cut over the candidates; the last one may be shorter.
fn page_tokens(pages: &[u32], page: usize, candidates: &Range<usize>) -> Vec<u32> {
    let tokens = |p: &u32| {
        let start = candidates.start + *p as usize * page;
        start as u32..(start + page).min(candidates.end) as u32
    };
    pages.iter().flat_map(tokens).collect()
}

/// How many different tokens there are.
fn distinct(tokens: impl IntoIterator<Item = u32>) -> usize {
    tokens.into_iter().collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests;
