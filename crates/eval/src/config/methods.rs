//! The methods of a run: specs and grids, multiplied by sinks, windows, dense layers, tails and types of stored keys and values.

use std::collections::HashSet;

use super::bounds::MOST_METHODS;
use super::protocol::Protocol;
use super::settings::Settings;
use super::value::{Given, alternatives, meanings};
use spattn_attention::kv::PrefixDtype;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, Policy, Schedule, expand_grid};
use spattn_base::error::UsageError;

/// Every combination of sink, window, dense layers, tail and KV storage type: the policies of methods whose specs set none.
fn policies(s: &Settings) -> Result<Vec<Policy>, UsageError> {
    let default = Policy::default();
    let sinks = alternatives("sink", s.sink.as_ref(), default.sink)?;
    let locals = alternatives("local", s.local.as_ref(), default.local)?;
    let dense = alternatives("dense_layers", s.dense_layers.as_ref(), Given::meant(default.dense_layers))?;
    let tails = alternatives("tail", s.tail.as_ref(), Given::meant(default.tail))?;
    let kv_dtypes = alternatives("kv_dtype", s.kv_dtype.as_ref(), Given::meant(default.kv_dtype))?;
    let counts = [locals.len(), dense.len(), tails.len(), kv_dtypes.len()];
    let count = counts.into_iter().fold(sinks.len(), usize::saturating_mul);
    if count > MOST_METHODS {
        return Err(UsageError::new(format!(
            "{count} combinations of `sink`, `local`, `dense_layers`, `tail` and `kv_dtype` were asked for"
        ))
        .hint(format!("a run has {MOST_METHODS} methods at most: split it into several runs")));
    }
    let mut policies = Vec::new();
    let tails = meanings(&tails)?;
    for dense_layers in meanings(&dense)? {
        for &tail in &tails {
            for &sink in &sinks {
                let of = |&local| Policy {
                    sink,
                    local,
                    dense_layers: dense_layers.clone(),
                    tail,
                    schedule: Schedule::default(),
                    local_layers: s.local_layers.unwrap_or_default(),
                    kv_dtype: PrefixDtype::default(),
                };
                policies.extend(locals.iter().map(of));
            }
        }
    }
    let with = |kv_dtype| policies.iter().map(move |policy| Policy { kv_dtype, ..policy.clone() });
    Ok(meanings(&kv_dtypes)?.into_iter().flat_map(with).collect())
}

/// The policy of methods whose specs set none.
///
/// # Errors
/// If there are several sinks, windows, dense layers, tails or KV storage types, or an invalid one.
pub fn only_policy(s: &Settings) -> Result<Policy, UsageError> {
    let mut policies = policies(s)?;
    match policies.len() {
        1 => Ok(policies.remove(0)),
        n => Err(UsageError::new(format!(
            "`sink`, `local`, `dense_layers`, `tail` and `kv_dtype` have {n} combinations"
        ))
        .hint("give one value of each, and set others in the methods' specs")),
    }
}

pub(super) fn resolve_methods(s: &Settings) -> Result<Vec<Configured>, UsageError> {
    let policies = policies(s)?;
    let reference = (s.no_full != Some(true)).then(|| "full".to_owned());
    let mut specs = Vec::new();
    for text in reference.iter().chain(s.methods.iter().flatten()) {
        specs.extend(expand_grid(text)?);
        let count = specs.len().saturating_mul(policies.len());
        if count > MOST_METHODS {
            let what = format!(
                "{count} methods were asked for, including `{text}`: grids, sinks, windows and dense layers multiply"
            );
            return Err(
                UsageError::new(what).hint(format!("a run has {MOST_METHODS} at most: split it into several runs"))
            );
        }
    }
    let mut methods: Vec<Configured> = Vec::new();
    let mut labels = HashSet::new();
    for (at, spec) in specs.iter().enumerate() {
        // The reference is exact, whatever storage type the other methods have.
        let is_exact = at == 0 && reference.is_some();
        for policy in &policies {
            let exact = is_exact.then(|| Policy { kv_dtype: PrefixDtype::Model, ..policy.clone() });
            let method = configure(spec, exact.as_ref().unwrap_or(policy))?;
            if labels.insert(method.label()) {
                methods.push(method);
            }
        }
    }
    if methods.is_empty() {
        return Err(UsageError::new("no method is left to run").hint("give one with -m, or leave out --no-full"));
    }
    Ok(methods)
}

pub(super) fn check_prefill(protocol: Protocol, methods: &[Configured]) -> Result<(), UsageError> {
    if protocol != Protocol::Prefill {
        if let Some(m) = methods.iter().find(|m| m.reader.is_some()) {
            let what = format!(
                "`{}` names a prefill method, but with --sparse-from {protocol} the prefix is read densely",
                m.label()
            );
            return Err(UsageError::new(what).hint("use --sparse-from prefill, or remove the part before `>`"));
        }
        return match methods.iter().find(|m| m.method.decodes_densely()) {
            None => Ok(()),
            Some(m) => Err(UsageError::new(format!(
                "method `{}` is sparse in prefill only, so it cannot run with --sparse-from {protocol}",
                m.label()
            ))
            .hint("use --sparse-from prefill; after a dense prefill this method is full attention")),
        };
    }
    match methods.iter().find(|m| m.reads().method.prefill_pattern().is_none()) {
        None => Ok(()),
        Some(m) => Err(UsageError::new(format!(
            "method `{}` has no prefill pattern, so it cannot run with --sparse-from prefill",
            m.label()
        ))
        .hint(
            "write full>... to use it in decoding only, or use --sparse-from decode, question or last:N; `spattn list methods` says which are sparse in prefill (not those with a density that is solved on the prompt itself)",
        )),
    }
}
