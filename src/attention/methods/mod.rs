//! The methods, one file each, and their registry.
//!
//! To add a method: write its file and add its [`MethodEntry`] to [`METHODS`]. Nothing else in the
//! program knows a method by name.

mod double_sparsity;
mod full;
mod graph_search;
mod hip;
mod knn;
mod loki;
mod magicpig;
mod oracle_sampling;
mod pqcache;
mod quest;
mod random;
mod retrieval_attention;
mod sparq;
mod streaming_llm;
mod topk;
mod topk_norm;
mod topp;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::calibration::Calibration;
use super::{AnyMethod, Configured, DenseLayers, MethodSpec, Params, Policy};
use crate::error::UsageError;

/// What the command line knows of a method.
pub struct MethodEntry {
    /// Bare name in specs.
    pub name: &'static str,
    /// One line for `spattn list methods`.
    pub about: &'static str,
    /// Own parameters with defaults and meaning.
    pub params: &'static [ParamInfo],
    /// Parameter values of `preset=paper` and the like; `matched` exists for every method.
    pub presets: &'static [Preset],
    /// Reads the own parameters.
    pub build: fn(&mut Params) -> Result<Arc<dyn AnyMethod>, UsageError>,
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

/// All methods, in the order in which they are listed.
pub const METHODS: &[MethodEntry] = &[
    full::ENTRY,
    topk::ENTRY,
    topk_norm::ENTRY,
    topp::ENTRY,
    oracle_sampling::ENTRY,
    random::ENTRY,
    streaming_llm::ENTRY,
    quest::ENTRY,
    magicpig::ENTRY,
    double_sparsity::ENTRY,
    loki::ENTRY,
    sparq::ENTRY,
    hip::ENTRY,
    knn::ENTRY,
    pqcache::ENTRY,
    retrieval_attention::ENTRY,
];

/// How the artefacts are made that methods need, in the order in which they are made.
pub const CALIBRATIONS: &[Calibration] = &[double_sparsity::CALIBRATION, loki::CALIBRATION];

/// Parameters that every method takes.
pub const POLICY_PARAMS: &[ParamInfo] = &[
    ParamInfo { key: "sink", default: "4", about: "first tokens, always attended" },
    ParamInfo { key: "local", default: "64", about: "last tokens of the prefix, always attended" },
    ParamInfo { key: "dense_layers", default: "none", about: "layers left dense: 0+1, 0-2, 0+50%" },
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
    let mut canonical = params.finish()?;
    // A method without parameters (the dense reference) has nothing that sink or window could change.
    if !entry.params.is_empty() {
        canonical.extend(policy_differences(&policy));
    }
    let params = canonical.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
    Ok(Configured { name: entry.name, params, policy, method, artefact: None })
}

fn preset(entry: &MethodEntry, name: &str) -> Result<&'static [(&'static str, &'static str)], UsageError> {
    if name == "matched" {
        return Ok(&[]);
    }
    entry.presets.iter().find(|p| p.name == name).map(|p| p.values).ok_or_else(|| {
        let known: Vec<&str> = entry.presets.iter().map(|p| p.name).chain(["matched"]).collect();
        UsageError::new(format!("method `{}` has no preset `{name}`", entry.name))
            .hint(format!("its presets: {}", known.join(", ")))
    })
}

fn read_policy(params: &mut Params, default: &Policy) -> Result<Policy, UsageError> {
    let mut number = |key, default| match params.take(key) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| params.bad_value(key, &text, "usize")),
    };
    let (sink, local) = (number("sink", default.sink)?, number("local", default.local)?);
    let dense_layers = match params.take("dense_layers") {
        None => default.dense_layers.clone(),
        Some(text) => DenseLayers::parse(&text)?,
    };
    Ok(Policy { sink, local, dense_layers })
}

/// Policy keys that differ from the program's default, so that equal cells have equal names.
fn policy_differences(policy: &Policy) -> Vec<(&'static str, String)> {
    let default = Policy::default();
    let pairs = [
        ("sink", policy.sink.to_string(), policy.sink != default.sink),
        ("local", policy.local.to_string(), policy.local != default.local),
        ("dense_layers", policy.dense_layers.to_string(), policy.dense_layers != default.dense_layers),
    ];
    pairs.into_iter().filter(|(_, _, differs)| *differs).map(|(key, value, _)| (key, value)).collect()
}

/// How many of a head's `d` channels: a number (all, if it is above `d`) or a share such as `d/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    Count(usize),
    Share(usize),
}

impl Channels {
    fn read(params: &mut Params, key: &'static str, default: Self) -> Result<Self, UsageError> {
        let channels = params.get(key, default);
        channels.map_err(|e| e.hint(format!("`{key}` should be a whole number from 1, or a share such as d/8")))
    }

    /// The number for heads of width `d`; at least 1.
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
        let positive = |text: &str| text.parse().ok().filter(|n| *n > 0).ok_or(());
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

/// How scores of a GQA group become one selection; see [`Granularity::reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granularity {
    QueryHead,
    KvHead,
}

impl Granularity {
    const INFO: ParamInfo = ParamInfo {
        key: "per",
        default: "query_head",
        about: "query_head | kv_head: a selection for each query head, or one (scores summed) for the GQA group",
    };

    fn read(params: &mut Params) -> Result<Self, UsageError> {
        Ok(match params.choice("per", &["query_head", "kv_head"])? {
            "kv_head" => Self::KvHead,
            _ => Self::QueryHead,
        })
    }

    /// `search` by each query of the group, or once by their sum, whose scores are the sums of theirs.
    fn by_query(self, step: &super::Step<'_>, mut search: impl FnMut(&[f32]) -> Vec<u32>) -> super::Selection {
        use super::{Picks, Selection};
        match self {
            Self::QueryHead => {
                Selection::PerHead((0..step.group()).map(|h| Picks::softmax(search(step.query(h)))).collect())
            }
            Self::KvHead => {
                let mut sum = step.query(0).to_vec();
                for head in 1..step.group() {
                    sum.iter_mut().zip(step.query(head)).for_each(|(s, x)| *s += x);
                }
                Selection::Shared(Picks::softmax(search(&sum)))
            }
        }
    }

    /// `select` on the scores `[group][n]` of each query head, or once on their sum over the group.
    fn select(self, scores: &[f32], group: usize, mut select: impl FnMut(&[f32]) -> Vec<u32>) -> super::Selection {
        use super::{Picks, Selection};
        let n = scores.len() / group;
        match self {
            Self::QueryHead => {
                Selection::PerHead((0..group).map(|h| Picks::softmax(select(&scores[h * n..][..n]))).collect())
            }
            Self::KvHead => {
                let mut sum = scores[..n].to_vec();
                for head in scores[n..].chunks_exact(n) {
                    sum.iter_mut().zip(head).for_each(|(s, x)| *s += x);
                }
                Selection::Shared(Picks::softmax(select(&sum)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
