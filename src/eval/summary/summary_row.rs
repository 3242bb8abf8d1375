//! One line of `summary.csv`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::eval::records::timing::Latency;
use spattn_tasks::likelihood::Measure;

/// One line of `summary.csv`: a method on a task at a length, under one protocol.
///
/// The fields are in the order of the columns, on which other programs rely. Scores, intervals and differences are in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// Model id as given.
    pub model: String,
    /// Full task name.
    pub task: String,
    /// The requested length in tokens; 0 if a file fixes it.
    pub length: usize,
    /// The method's name without parameters.
    pub method: String,
    /// Canonical parameters.
    pub params: String,
    /// All parameters by key, as far as the records have them; not a column.
    #[serde(skip)]
    pub settings: BTreeMap<String, String>,
    /// Where sparse attention started.
    pub protocol: String,
    /// Number of examples.
    pub n: usize,
    /// Mean score, percent.
    pub score: f64,
    /// Lower end of the 95 % interval of the mean; empty if all examples share one context.
    pub ci_low: Option<f64>,
    /// Upper end of the interval.
    pub ci_high: Option<f64>,
    /// Mean difference to `full` on the same examples; empty if `full` was not run.
    pub delta_full: Option<f64>,
    /// Lower end of the paired 95 % interval of that difference; empty for `full` itself.
    pub delta_low: Option<f64>,
    /// Upper end of the interval.
    pub delta_high: Option<f64>,
    /// Mean density.
    pub density: f64,
    /// Mean scoring cost.
    pub cost1: f64,
    /// Mean attention cost.
    pub cost2: f64,
    /// `cost1 + cost2`.
    pub cost_total: f64,
    /// Auxiliary bits per token per KV head.
    pub aux_bits: f64,
    /// Bytes read per step; empty without steps.
    pub kv_bytes_per_token: Option<f64>,
    /// Mean relative output error; only with `--fidelity`.
    pub output_error: Option<f64>,
    /// Mean recall; only with `--fidelity`.
    pub recall: Option<f64>,
    /// Mean seconds of the shared prefill.
    pub prefill_s: f64,
    /// Milliseconds per step, by `latency`: the mean share, or the median of steps alone; empty without steps.
    pub decode_ms_per_token: Option<f64>,
    /// Mean bytes of K and V kept at the end, over the records that have it.
    #[serde(default)]
    pub kv_bytes_held: Option<f64>,
    /// The requested density, if the budget is one; compare with `density_sparse_layers`.
    pub density_target: Option<f64>,
    /// Mean density of the layers that are not dense by policy.
    pub density_sparse_layers: f64,
    /// Mean over examples of the smallest density of a query head, in layers that are not dense by policy.
    pub density_min: Option<f64>,
    /// Mean over examples of the median density of these heads.
    pub density_median: Option<f64>,
    /// Mean over examples of the largest density of these heads.
    pub density_max: Option<f64>,
    /// As `density_min`, for the output error; only with `--fidelity`, as all that follow.
    pub output_error_min: Option<f64>,
    /// As `density_median`.
    pub output_error_median: Option<f64>,
    /// As `density_max`.
    pub output_error_max: Option<f64>,
    /// As `density_min`, for the recall.
    pub recall_min: Option<f64>,
    /// As `density_median`.
    pub recall_median: Option<f64>,
    /// As `density_max`.
    pub recall_max: Option<f64>,
    /// Mean exact attention mass of the tokens not attended.
    pub dropped_mass: Option<f64>,
    /// As `density_min`, for the dropped mass.
    pub dropped_mass_min: Option<f64>,
    /// As `density_median`.
    pub dropped_mass_median: Option<f64>,
    /// As `density_max`.
    pub dropped_mass_max: Option<f64>,
    /// What `score`, its interval and its difference are: `score` in percent, or `perplexity`, for which less is better.
    #[serde(default)]
    pub measure: Measure,
    /// Perplexity of the same text by words; this and the next four only for perplexity tasks.
    pub word_perplexity: Option<f64>,
    /// Negative log-likelihood in bits per byte of text.
    pub bits_per_byte: Option<f64>,
    /// Mean KL divergence from `full` over all scored tokens, in nats.
    pub kl_mean: Option<f64>,
    /// The divergence's 99th percentile over all scored tokens.
    pub kl_p99: Option<f64>,
    /// Percentage of scored tokens at which the most probable token is also that of `full`.
    pub same_top: Option<f64>,
    /// Percentage of questions whose right option is the most likely one; only if options are scored.
    pub acc: Option<f64>,
    /// `acc` by log-likelihood over characters.
    pub acc_norm: Option<f64>,
    /// Mean tokens whose K and V are kept at the end, over layers and KV heads; empty if nothing was evicted.
    #[serde(default)]
    pub kv_tokens_held: Option<f64>,
    /// Mean seconds to build the index, as if for this row alone.
    #[serde(default)]
    pub index_s: f64,
    /// Lower end of the 95 % interval of `decode_ms_per_token` over examples.
    #[serde(default)]
    pub decode_ms_low: Option<f64>,
    /// Upper end of the interval.
    #[serde(default)]
    pub decode_ms_high: Option<f64>,
    /// The conditions of the times; empty if the records lack them.
    #[serde(default)]
    pub timed: Option<String>,
    /// Whether most rows of its task and length were timed under other conditions; not a column.
    #[serde(skip)]
    pub is_timed_apart: bool,
    /// The number of contexts that the examples ask about. Contexts are independent, and intervals are over them.
    #[serde(default)]
    pub contexts: usize,
    /// The true difference to `full`, in points, that 80 % of such runs would detect; only for scores.
    #[serde(default)]
    pub detectable: Option<f64>,
    /// Bytes per token of what all heads share; see [`Record::shared_bytes_per_token`](crate::eval::records::record::Record::shared_bytes_per_token).
    #[serde(default)]
    pub shared_bytes_per_token: Option<f64>,
    /// Bytes per token for selections; see
    /// [`Record::select_bytes_per_token`](crate::eval::records::record::Record::select_bytes_per_token).
    #[serde(default)]
    pub select_bytes_per_token: Option<f64>,
    /// Share of tokens attended in addition to the budget; see [`Record::free_share`](crate::eval::records::record::Record::free_share).
    #[serde(default)]
    pub free_share: Option<f64>,
    /// The kind of `decode_ms_per_token`: `shared` or `solo`; empty in old records.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// For shares, the milliseconds of selecting tokens; empty, like the next two, if they were not measured separately.
    #[serde(default)]
    pub select_ms_per_token: Option<f64>,
    /// For shares, the milliseconds of attending.
    #[serde(default)]
    pub attend_ms_per_token: Option<f64>,
    /// For shares, the milliseconds of the rest.
    #[serde(default)]
    pub weights_ms_per_token: Option<f64>,
    /// Mean share of the context that was selected; see [`PublishedCosts`](crate::eval::records::costs::PublishedCosts), as for the next
    /// five. Empty in old records.
    #[serde(default)]
    pub picked_density: Option<f64>,
    /// Mean scoring cost without dense layers.
    #[serde(default)]
    pub cost1_sparse_layers: Option<f64>,
    /// Mean attention cost without dense layers.
    #[serde(default)]
    pub cost2_sparse_layers: Option<f64>,
    /// Mean attention cost without dense layers and static tokens.
    #[serde(default)]
    pub cost2_picked: Option<f64>,
    /// Mean scoring cost without dense layers and projections onto shared hyperplanes.
    #[serde(default)]
    pub cost1_published: Option<f64>,
    /// Bytes of what all heads share, stored once; `shared_bytes_per_token` counts reading them each time.
    #[serde(default)]
    pub shared_bytes_resident: Option<f64>,
}
