//! Records for tests of this crate and of crates above it.

use std::collections::BTreeMap;

use super::interning::Interned;
use super::record::Record;
use super::text_scores::Likelihood;
use spattn_attention::FIRST_REVISION;
use spattn_tasks::likelihood::Measure;
use spattn_tasks::metrics::Metric;

/// A plausible record, for tests of everything that is made from records.
pub fn record(task: &str, method: &str, sample: usize, score: f64) -> Record {
    Record {
        key: format!("{task}/{method}/{sample}"),
        model: "builtin".into(),
        task: task.into(),
        length: 4096,
        sample,
        seed: 1,
        context: None,
        example_sha256: None,
        method: method.into(),
        revision: FIRST_REVISION,
        params: "".into(),
        settings: Interned::default(),
        protocol: "question".into(),
        source: "grammar".into(),
        question: "question".into(),
        prediction: "answer".into(),
        thought: None,
        repeats: Box::default(),
        references: vec!["answer".to_owned()].into(),
        all_classes: Interned::default(),
        score,
        other_scores: BTreeMap::new(),
        depth: None,
        metric: Some(Metric::StringMatchAll),
        first_line: false,
        cut_tokens: None,
        measure: Measure::Score,
        prompt_tokens: 4050,
        prefix_tokens: 4000,
        new_tokens: 10,
        max_new_tokens: 40,
        stopped: true,
        bos_tokens: Some(1),
        density: if method == "full" { 1.0 } else { 0.1 },
        density_sparse_layers: if method == "full" { 1.0 } else { 0.05 },
        comparable: None,
        cost1: Some(0.01),
        cost2: 0.1,
        aux_bits: Some(32.0),
        kv_bits: Some(2048),
        kv_bytes_per_token: Some(4096.0),
        shared_bytes_per_token: None,
        select_bytes_per_token: None,
        missed_share: None,
        fetched_per_token: None,
        free_share: None,
        kv_bytes_held: Some(1 << 20),
        kv_tokens: None,
        prefill_s: 1.0,
        prefill_reused_s: 0.0,
        reused_tokens: 0,
        index_s: 0.0,
        index_reused_s: 0.0,
        conditions: None,
        decode_s: 0.5,
        select_s: None,
        attend_s: None,
        weights_s: None,
        solo: None,
        steps: 60,
        solved: None,
        density_by_layer: Box::default(),
        density_spread: None,
        fidelity: None,
        likelihood: None,
        choice: None,
    }
}

/// A plausible record of perplexity: 100 tokens with a mean negative log-likelihood.
pub fn perplexity(method: &str, sample: usize, nats: f64) -> Record {
    let likelihood = Likelihood {
        nll: 100.0 * nats,
        tokens: 100,
        words: 50,
        bytes: 400,
        same_top: 90,
        kl_sum: 1.0,
        kl: vec![0.01; 100],
    };
    Record {
        measure: Measure::Perplexity,
        prediction: "".into(),
        max_new_tokens: 0,
        likelihood: Some(likelihood.into()),
        ..record("ppl/text", method, sample, nats.exp())
    }
}
