//! Checks that a stored record can come from a run: every number must be within its range.
//!
//! Files get edited, merged and truncated; a score of 7 would falsify every mean that includes it.

use super::costs::{FetchedBytes, KvTokens, PublishedCosts};
use super::fidelity::Fidelity;
use super::record::{Answer, Record};
use super::text_scores::{Choice, Likelihood};
use spattn_attention::kv::MOST_TOKENS;
use spattn_tasks::likelihood::Measure;

/// The tolerance for rounding errors of a share.
const ROUNDING: f64 = 1e-6;
/// An upper bound: more than any time, cost or number of bytes of a run, and small enough for sums
/// over all records.
const MOST: f64 = 1e15;
/// The tolerance for rounding errors of a divergence, which is a sum over many probabilities.
const DIVERGENCE_ROUNDING: f64 = 1e-3;

impl Record {
    /// Checks that every number is within its bounds.
    ///
    /// # Errors
    /// The first field that is out of bounds, with its value and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let names = [("model", &self.model), ("task", &self.task), ("method", &self.method)];
        let names = names.map(|(name, text)| (name, text.as_str()));
        for (name, text) in [("key", self.key.as_str())].into_iter().chain(names) {
            if text.is_empty() {
                return Err(format!("`{name}` is empty"));
            }
        }
        match self.measure {
            Measure::Score => share("score", self.score)?,
            Measure::Perplexity => at_least("score", self.score, 1.0 - ROUNDING)?,
        }
        self.other_scores.iter().try_for_each(|(name, score)| share(&format!("other_scores.{name}"), *score))?;
        self.depth.iter().try_for_each(|depth| within("depth", *depth, 0.0, 100.0))?;
        let shares = [("density", self.density), ("density_sparse_layers", self.density_sparse_layers)];
        shares.into_iter().try_for_each(|(name, value)| share(name, value))?;
        let amounts = [
            ("cost1", self.cost1.unwrap_or(0.0)),
            ("cost2", self.cost2),
            ("aux_bits", self.aux_bits.unwrap_or(0.0)),
            ("prefill_s", self.prefill_s),
            ("prefill_reused_s", self.prefill_reused_s),
            ("index_s", self.index_s),
            ("index_reused_s", self.index_reused_s),
            ("decode_s", self.decode_s),
        ];
        amounts.into_iter().try_for_each(|(name, value)| amount(name, value))?;
        let bytes = [
            ("kv_bytes_per_token", self.kv_bytes_per_token),
            ("shared_bytes_per_token", self.shared_bytes_per_token),
            ("select_bytes_per_token", self.select_bytes_per_token),
        ];
        bytes.into_iter().try_for_each(|(name, value)| value.map_or(Ok(()), |value| amount(name, value)))?;
        self.kv_tokens.iter().try_for_each(KvTokens::check)?;
        self.fetched_per_token.as_deref().map_or(Ok(()), FetchedBytes::check)?;
        self.comparable.iter().try_for_each(PublishedCosts::check)?;
        self.check_times()?;
        self.free_share.iter().try_for_each(|value| share("free_share", *value))?;
        self.missed_share.iter().try_for_each(|value| share("missed_share", **value))?;
        shares_of("density_by_layer", &self.density_by_layer)?;
        if let Some(spread) = self.density_spread.as_deref() {
            shares_of("density_spread", &[spread.min, spread.median, spread.max])?;
        }
        at_most("prefix_tokens", self.prefix_tokens, "prompt_tokens", self.prompt_tokens)?;
        // Old records lack this number.
        if self.max_new_tokens > 0 {
            at_most("new_tokens", self.new_tokens, "max_new_tokens", self.max_new_tokens)?;
        }
        let limit = self.thought.as_ref().map_or(0, |thought| thought.limit);
        at_most("thought.limit", limit, "max_new_tokens", self.max_new_tokens)?;
        self.repeats.iter().enumerate().try_for_each(|(at, answer)| self.check_repeat(at, answer))?;
        self.fidelity.as_deref().map_or(Ok(()), Fidelity::check)?;
        self.likelihood.as_deref().map_or(Ok(()), Likelihood::check)?;
        self.choice.as_deref().map_or(Ok(()), Choice::check)
    }
}

impl Record {
    /// Checks one of several answers.
    fn check_repeat(&self, at: usize, answer: &Answer) -> Result<(), String> {
        let name = |field: &str| format!("repeats[{at}].{field}");
        share(&name("score"), answer.score)?;
        answer.other_scores.iter().try_for_each(|(of, score)| share(&name(&format!("other_scores.{of}")), *score))?;
        at_most(&name("new_tokens"), answer.new_tokens, "max_new_tokens", self.max_new_tokens)
    }
}

impl PublishedCosts {
    fn check(&self) -> Result<(), String> {
        self.picked_density.iter().try_for_each(|value| share("comparable.picked_density", *value))?;
        let amounts = [
            ("comparable.cost1", self.cost1),
            ("comparable.cost2", self.cost2),
            ("comparable.cost2_picked", self.cost2_picked.unwrap_or(0.0)),
            ("comparable.cost1_published", self.cost1_published),
            ("comparable.shared_bytes_resident", self.shared_bytes_resident),
        ];
        amounts.into_iter().try_for_each(|(name, value)| amount(name, value))
    }
}

impl FetchedBytes {
    fn check(&self) -> Result<(), String> {
        amount("fetched_per_token.memory", self.memory)?;
        amount("fetched_per_token.disk", self.disk)?;
        self.bus.map_or(Ok(()), |bytes| amount("fetched_per_token.bus", bytes))
    }
}

impl KvTokens {
    fn check(&self) -> Result<(), String> {
        at_most("kv_tokens.context", self.context, "the tokens that can be read", MOST_TOKENS)?;
        let context = self.context as f64;
        match self.held >= -ROUNDING && self.held <= context * (1.0 + ROUNDING) {
            true => Ok(()),
            false => {
                Err(format!("`kv_tokens.held` is {}, not from 0 to `kv_tokens.context`, {context}", shown(self.held)))
            }
        }
    }
}

impl Record {
    /// Checks the times of steps, and that the parts of a share add up to it.
    fn check_times(&self) -> Result<(), String> {
        let parts = [("select_s", self.select_s), ("attend_s", self.attend_s), ("weights_s", self.weights_s)];
        parts.into_iter().try_for_each(|(name, value)| value.map_or(Ok(()), |value| amount(name, value)))?;
        if let (Some(select), Some(attend), Some(weights)) = (self.select_s, self.attend_s, self.weights_s) {
            let sum = select + attend + weights;
            if (sum - self.decode_s).abs() > ROUNDING * self.decode_s.max(1.0) {
                return Err(format!("`decode_s` is {}, but its parts add up to {sum}", self.decode_s));
            }
        }
        self.solo.as_deref().map_or(Ok(()), |solo| all("solo.ms", &solo.ms, amount))
    }
}

impl Fidelity {
    fn check(&self) -> Result<(), String> {
        all("fidelity.output_error", &self.output_error, amount)?;
        shares_of("fidelity.recall", &self.recall)?;
        shares_of("fidelity.dropped_mass", &self.dropped_mass)
    }
}

impl Likelihood {
    fn check(&self) -> Result<(), String> {
        within("likelihood.nll", self.nll, -ROUNDING, MOST)?;
        at_most("likelihood.same_top", self.same_top, "likelihood.tokens", self.tokens)?;
        let least = -DIVERGENCE_ROUNDING * self.tokens as f64;
        within("likelihood.kl_sum", self.kl_sum, least, MOST)?;
        all("likelihood.kl", &self.kl, |name, x| within(name, x, -DIVERGENCE_ROUNDING, MOST))
    }
}

impl Choice {
    fn check(&self) -> Result<(), String> {
        let options = self.log_likelihoods.len();
        if self.characters.len() != options {
            return Err(format!("`choice.characters` has {} values for {options} options", self.characters.len()));
        }
        all("choice.log_likelihoods", &self.log_likelihoods, |name, x| within(name, x, f64::MIN, ROUNDING))?;
        let chosen = [
            ("choice.right", self.right),
            ("choice.most_likely", self.most_likely),
            ("choice.most_likely_by_length", self.most_likely_by_length),
        ];
        match chosen.into_iter().find(|(_, index)| *index >= options) {
            None => Ok(()),
            Some((name, index)) => Err(format!("`{name}` is {index}, of {options} options counted from 0")),
        }
    }
}

fn within(name: &str, value: f64, least: f64, most: f64) -> Result<(), String> {
    match value >= least && value <= most {
        true => Ok(()),
        false => Err(format!("`{name}` is {}, not from {least} to {most}", shown(value))),
    }
}

fn at_least(name: &str, value: f64, least: f64) -> Result<(), String> {
    match value >= least && value.is_finite() {
        true => Ok(()),
        false => Err(format!("`{name}` is {}, not a number from {}", shown(value), least.round())),
    }
}

/// A time, a cost or a number of bytes.
fn amount(name: &str, value: f64) -> Result<(), String> {
    match (0.0..=MOST).contains(&value) {
        true => Ok(()),
        false => Err(format!("`{name}` is {}, not a number from 0 to {MOST:e}", shown(value))),
    }
}

/// A number as text, without hundreds of digits.
fn shown(value: f64) -> String {
    if value.is_finite() && value.abs() > MOST { format!("{value:e}") } else { value.to_string() }
}

fn share(name: &str, value: f64) -> Result<(), String> {
    match (-ROUNDING..=1.0 + ROUNDING).contains(&value) {
        true => Ok(()),
        false => Err(format!("`{name}` is {}, not from 0 to 1", shown(value))),
    }
}

fn shares_of(name: &str, values: &[f64]) -> Result<(), String> {
    all(name, values, share)
}

fn all(name: &str, values: &[f64], check: impl Fn(&str, f64) -> Result<(), String>) -> Result<(), String> {
    values.iter().try_for_each(|value| check(name, *value))
}

fn at_most(name: &str, value: usize, limit_name: &str, limit: usize) -> Result<(), String> {
    match value <= limit {
        true => Ok(()),
        false => Err(format!("`{name}` is {value}, more than `{limit_name}`, {limit}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::records::fidelity::Spread;
    use crate::records::record::Thought;
    use crate::records::testing::{perplexity, record};
    use crate::records::timing::Solo;

    fn answer(score: f64, new_tokens: usize) -> Answer {
        Answer {
            prediction: "a".into(),
            thought: None,
            score,
            other_scores: BTreeMap::new(),
            new_tokens,
            stopped: true,
        }
    }

    #[test]
    fn what_no_run_records_is_named() {
        assert_eq!(record("vt", "full", 0, 1.0).check(), Ok(()));
        assert_eq!(perplexity("topk", 0, 3.0).check(), Ok(()));
        type Spoil = fn(&mut Record);
        let held = |held: f64| Some(KvTokens { held, context: 100 });
        assert_eq!(Record { kv_tokens: held(100.0), ..record("vt", "full", 0, 1.0) }.check(), Ok(()));
        let cases: [(&str, Spoil); 38] = [
            ("`kv_tokens.held` is 1e300, not from 0 to `kv_tokens.context`, 100", |r| {
                r.kv_tokens = Some(KvTokens { held: 1e300, context: 100 });
            }),
            ("`kv_tokens.held` is -5, not", |r| r.kv_tokens = Some(KvTokens { held: -5.0, context: 100 })),
            ("`kv_tokens.held` is 101, not", |r| r.kv_tokens = Some(KvTokens { held: 101.0, context: 100 })),
            ("`kv_tokens.held` is NaN, not", |r| r.kv_tokens = Some(KvTokens { held: f64::NAN, context: 100 })),
            ("`kv_tokens.context` is 18446744073709551615, more than", |r| {
                r.kv_tokens = Some(KvTokens { held: 1.0, context: usize::MAX });
            }),
            ("`missed_share` is 1.5, not", |r| r.missed_share = Some(1.5.into())),
            ("`cost2` is 1e308, not a number from 0 to 1e15", |r| r.cost2 = 1e308),
            ("`prefill_s` is 1e308, not", |r| r.prefill_s = 1e308),
            ("`kv_bytes_per_token` is 1e308, not", |r| r.kv_bytes_per_token = Some(1e308)),
            ("`fetched_per_token.memory` is -1, not a number from 0", |r| {
                r.fetched_per_token = Some(FetchedBytes { memory: -1.0, disk: 0.0, bus: None }.into());
            }),
            ("`fetched_per_token.disk` is NaN, not a number from 0", |r| {
                r.fetched_per_token = Some(FetchedBytes { memory: 0.0, disk: f64::NAN, bus: None }.into());
            }),
            ("`fetched_per_token.bus` is -2, not a number from 0", |r| {
                r.fetched_per_token = Some(FetchedBytes { memory: 0.0, disk: 0.0, bus: Some(-2.0) }.into());
            }),
            ("`solo.ms` is 1e308, not", |r| r.solo = Some(Solo { steps: 1, ms: vec![1e308].into() }.into())),
            ("`score` is 7, not from 0 to 1", |r| r.score = 7.0),
            ("`score` is -0.1", |r| r.score = -0.1),
            ("`score` is NaN", |r| r.score = f64::NAN),
            ("`density` is -3, not from 0 to 1", |r| r.density = -3.0),
            ("`density_sparse_layers` is 1.5", |r| r.density_sparse_layers = 1.5),
            ("`cost1` is -1, not a number from 0", |r| r.cost1 = Some(-1.0)),
            ("`decode_s` is inf", |r| r.decode_s = f64::INFINITY),
            ("`select_s` is -1, not a number from 0", |r| r.select_s = Some(-1.0)),
            ("`decode_s` is 0.5, but its parts add up to 0.75", |r| {
                (r.select_s, r.attend_s, r.weights_s) = (Some(0.25), Some(0.25), Some(0.25));
            }),
            ("`solo.ms` is NaN, not", |r| r.solo = Some(Solo { steps: 1, ms: vec![1.0, f64::NAN].into() }.into())),
            ("`depth` is 101, not from 0 to 100", |r| r.depth = Some(101.0)),
            ("`other_scores.f1` is 2", |r| r.other_scores = [("f1".to_owned(), 2.0)].into()),
            ("`density_by_layer` is 2", |r| r.density_by_layer = [0.5, 2.0].into()),
            ("`density_spread` is -1", |r| r.density_spread = Some(Spread { min: -1.0, median: 0.0, max: 1.0 }.into())),
            ("`prefix_tokens` is 5000, more than `prompt_tokens`, 4050", |r| r.prefix_tokens = 5000),
            ("`thought.limit` is 41, more than `max_new_tokens`, 40", |r| {
                r.thought = Some(Thought { text: String::new(), limit: 41 }.into());
            }),
            ("`repeats[1].score` is 2", |r| r.repeats = [answer(1.0, 3), answer(2.0, 3)].into()),
            ("`repeats[0].new_tokens` is 41", |r| r.repeats = [answer(1.0, 41)].into()),
            ("`new_tokens` is 41, more than `max_new_tokens`, 40", |r| r.new_tokens = 41),
            ("`key` is empty", |r| r.key.clear()),
            ("`score` is 0.5, not a number from 1", |r| *r = Record { score: 0.5, ..perplexity("topk", 0, 3.0) }),
            ("`likelihood.same_top` is 101", |r| {
                *r = perplexity("topk", 0, 3.0);
                r.likelihood.as_mut().unwrap().same_top = 101;
            }),
            ("`choice.right` is 2, of 2 options", |r| {
                r.choice = Some(Choice::new(vec![-1.0, -2.0], vec![1, 1], 2).into())
            }),
            ("`choice.log_likelihoods` is 1", |r| r.choice = Some(Choice::new(vec![-1.0, 1.0], vec![1, 1], 0).into())),
            ("`fidelity.recall` is 3", |r| {
                let of = vec![0.5];
                r.fidelity = Some(Box::new(Fidelity {
                    output_error: of.clone(),
                    recall: vec![3.0],
                    dropped_mass: of,
                    spread: None,
                    heads: None,
                }));
            }),
        ];
        for (expected, spoil) in cases {
            let mut record = record("vt", "full", 0, 1.0);
            spoil(&mut record);
            let what = record.check().unwrap_err();
            assert!(what.starts_with(expected), "{what}");
        }
    }
}
