//! The parts of a record that are computed from a run, and its key.

use std::time::Duration;

use super::method_result::MethodResult;
use super::score_text;
use crate::eval::config::protocol::Protocol;
use crate::eval::config::run_config::Variant;
use crate::eval::records::costs::PublishedCosts;
use crate::eval::records::record::{REFERENCE, Record};
use crate::eval::records::text_scores::{Choice, Likelihood};
use spattn_attention::{Configured, FIRST_REVISION};
use spattn_model::checksum::sha256_hex;
use spattn_tasks::likelihood::{Passage, Scoring};

/// The reading of a prefix that methods share.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SharedReading {
    /// How long it took, whenever that was.
    pub(super) time: Duration,
    /// How much of it was spent for an example before.
    pub(super) reused: Duration,
    /// Tokens that were not read again.
    pub(super) reused_tokens: usize,
}

/// The columns for published tables as far as they are known: of a prompt that a mask read, static tokens were not told
/// apart, and `full` picks everything.
pub(super) fn comparable(run: &MethodResult, variant: Variant, method: &Configured) -> PublishedCosts {
    let known = |value: Option<f64>| value.filter(|_| variant.protocol != Protocol::Prefill);
    let PublishedCosts { picked_density, cost2_picked, .. } = run.comparable;
    match method.name == REFERENCE {
        true => PublishedCosts { picked_density: Some(run.density), cost2_picked: Some(run.cost2), ..run.comparable },
        false => PublishedCosts {
            picked_density: known(picked_density),
            cost2_picked: known(cost2_picked),
            ..run.comparable
        },
    }
}

/// The record with what the sums say of the passage.
pub(super) fn scored_record(passage: &Passage, sums: &[score_text::Sums], record: Record) -> Record {
    match passage.scoring {
        Scoring::Perplexity => {
            let (text, sums) = (&passage.continuations[0], &sums[0]);
            let likelihood = Likelihood {
                nll: sums.nll,
                tokens: text.tokens.len(),
                words: text.words,
                bytes: text.bytes,
                same_top: sums.same_top,
                kl_sum: sums.kl_sum,
                kl: if sums.kl_sum > 0.0 { sums.kl.clone() } else { Vec::new() },
            };
            Record { score: (sums.nll / text.tokens.len() as f64).exp(), likelihood: Some(likelihood.into()), ..record }
        }
        Scoring::Choice { right, normalised } => {
            let choice = Choice::new(
                sums.iter().map(|s| -s.nll).collect(),
                passage.continuations.iter().map(|c| c.text.chars().count()).collect(),
                right,
            );
            let chosen = if normalised { choice.most_likely_by_length } else { choice.most_likely };
            Record {
                score: f64::from(u8::from(chosen == right)),
                prediction: passage.continuations[chosen].text.as_str().into(),
                references: vec![passage.continuations[right].text.clone()].into(),
                choice: Some(choice.into()),
                ..record
            }
        }
    }
}

/// Hash of all that determines a record; known before the example is made.
pub(super) fn record_key(identity: &str, task: &str, length: usize, index: usize, method: &Configured) -> String {
    let mut text = format!("{identity}\n{task}\n{length}\n{index}\n{}", method.label());
    if method.revision != FIRST_REVISION {
        text += &format!("\nrevision {}", method.revision);
    }
    for artefact in method.parts().filter_map(|part| part.artefact.as_ref()) {
        text += &format!("\n{artefact}");
    }
    sha256_hex(text.as_bytes())[..32].to_owned()
}
