//! Scorers: a prediction and its references in, a number in 0..=1 out.

use serde::{Deserialize, Serialize};

/// How a prediction is scored; names are those of the command line (`--metric`) and of task files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// RULER: share of the references found in the prediction, case-insensitively.
    StringMatchAll,
    /// RULER: 1 if any reference is found in the prediction, case-insensitively.
    StringMatchPart,
}
