//! The methods, one file each, and their registry.
//!
//! To add a method: write its file and add its [`MethodEntry`] to [`METHODS`]. Nothing else in the
//! program knows a method by name.

mod full;
mod hip;
mod oracle_sampling;
mod quest;
mod random;
mod streaming_llm;
mod topk;

use std::sync::Arc;

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
pub const METHODS: &[MethodEntry] =
    &[full::ENTRY, topk::ENTRY, oracle_sampling::ENTRY, random::ENTRY, streaming_llm::ENTRY, quest::ENTRY, hip::ENTRY];

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
    Ok(Configured { name: entry.name, params, policy, method })
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
