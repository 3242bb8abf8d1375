//! The values that a cell of a paper's table can have: numbers of records.

use serde::{Deserialize, Serialize};

use spattn_eval::records::fidelity::Fidelity;
use spattn_eval::records::record::Record;
use spattn_eval::records::timing::{Solo, TimingConditions};

/// A number of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// The score in percent, or the perplexity.
    Score,
    /// Share of the context attended, all layers.
    Density,
    /// Share of the context attended, without dense layers.
    DensitySparseLayers,
    /// Share of the context selected, without dense layers and static tokens.
    PickedDensity,
    /// FLOPs of scoring over those of full attention, all layers.
    Cost1,
    /// FLOPs of scoring over those of full attention, without dense layers.
    Cost1SparseLayers,
    /// As `cost1_sparse_layers`, also without projections onto shared hyperplanes.
    Cost1Published,
    /// FLOPs of attending over those of full attention, all layers.
    Cost2,
    /// FLOPs of attending over those of full attention, without dense layers.
    Cost2SparseLayers,
    /// As `cost2_sparse_layers`, also without static tokens.
    Cost2Picked,
    /// The sum of `cost1_published` and `cost2_picked`.
    CostPublished,
    /// Auxiliary memory in bits per token and KV head.
    AuxBits,
    /// Bytes of K, V and auxiliary data read per token.
    KvBytesPerToken,
    /// Milliseconds of a step of the method alone, from `[latency]`'s records; missing if the host selected tokens for a GPU.
    StepMs,
    /// Bytes that all heads and layers share, stored once.
    SharedBytesResident,
    /// Relative error of the attention output; needs `fidelity`.
    OutputError,
    /// Share of the exact top tokens that was attended; needs `fidelity`.
    Recall,
    /// Exact attention mass that was not attended; needs `fidelity`.
    DroppedMass,
    /// KL divergence from dense attention in nats per token; for perplexity tasks.
    KlMean,
    /// Percentage of tokens at which the most probable token is that of dense attention; for perplexity tasks.
    SameTop,
}

impl Value {
    /// Returns the number of a record, before [`scale`](Self::scale); `None` if it was not measured.
    pub fn of(self, r: &Record) -> Option<f64> {
        match self {
            Self::Score => Some(r.score),
            Self::Density => Some(r.density),
            Self::DensitySparseLayers => Some(r.density_sparse_layers),
            Self::PickedDensity => r.comparable?.picked_density,
            Self::Cost1 => r.cost1,
            Self::Cost1SparseLayers => Some(r.comparable?.cost1),
            Self::Cost1Published => Some(r.comparable?.cost1_published),
            Self::Cost2 => Some(r.cost2),
            Self::Cost2SparseLayers => Some(r.comparable?.cost2),
            Self::Cost2Picked => r.comparable?.cost2_picked,
            Self::CostPublished => Some(r.comparable?.cost1_published + r.comparable?.cost2_picked?),
            Self::AuxBits => r.aux_bits,
            Self::KvBytesPerToken => r.kv_bytes_per_token,
            Self::StepMs => solo_of_the_method(r).and_then(Solo::median),
            Self::SharedBytesResident => Some(r.comparable?.shared_bytes_resident),
            Self::OutputError => r.fidelity.as_deref().map(Fidelity::mean_error),
            Self::Recall => r.fidelity.as_deref().map(Fidelity::mean_recall),
            Self::DroppedMass => r.fidelity.as_ref()?.mean_dropped_mass(),
            Self::KlMean => r.likelihood.as_ref().map(|l| l.kl_sum / l.tokens.max(1) as f64),
            Self::SameTop => r.likelihood.as_ref().map(|l| l.same_top as f64 / l.tokens.max(1) as f64),
        }
    }

    /// Whether it is a score, which is between 0 and 1 for each example.
    pub fn is_score(self) -> bool {
        self == Self::Score
    }

    /// Returns the factor for display.
    pub fn scale(self, percent: bool) -> f64 {
        if percent || matches!(self, Self::Score | Self::SameTop) { 100.0 } else { 1.0 }
    }

    /// Returns the name, for axes.
    pub fn label(self, percent: bool) -> String {
        let text = match self {
            Self::Score => return "score, %".to_owned(),
            Self::SameTop => return "same first token as dense, %".to_owned(),
            Self::Density => "density",
            Self::DensitySparseLayers => "density without dense layers",
            Self::PickedDensity => "share of the context picked",
            Self::Cost1 => "cost1",
            Self::Cost1SparseLayers => "cost1 without dense layers",
            Self::Cost1Published => "cost1 as published",
            Self::Cost2 => "cost2",
            Self::Cost2SparseLayers => "cost2 without dense layers",
            Self::Cost2Picked => "cost2 of picked tokens",
            Self::CostPublished => "cost as published",
            Self::AuxBits => "auxiliary bits per token",
            Self::KvBytesPerToken => "bytes read per token",
            Self::StepMs => "step alone, ms",
            Self::SharedBytesResident => "bytes shared",
            Self::OutputError => "output error",
            Self::Recall => "recall",
            Self::DroppedMass => "dropped mass",
            Self::KlMean => "KL divergence from dense",
        };
        if percent { format!("{text}, %") } else { text.to_owned() }
    }
}

fn solo_of_the_method(record: &Record) -> Option<&Solo> {
    let is_of_the_host = record.conditions.as_deref().is_some_and(TimingConditions::is_of_the_host);
    record.solo.as_deref().filter(|_| !is_of_the_host)
}
