//! Experiments on claims, which show whether a result is due to the paper, the model, the method or the program. An experiment is a test on
//! the item's cells, like a claim's own; its verdict tells which of the stated meanings applies.

use serde::{Deserialize, Serialize};

use super::claims::{ClaimVerdict, Test};
use super::variant::Variant;
use spattn_base::error::UsageError;

/// An experiment on a claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The question, in plain words.
    pub asks: String,
    /// The test that answers it with yes or no.
    pub test: Test,
    /// The meaning of a yes.
    pub yes: Meaning,
    /// The meaning of a no.
    pub no: Meaning,
    /// The run that the experiment is on; the small pretrained model's if not given.
    #[serde(default = "on_a_pretrained_model")]
    pub variant: Variant,
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// What the result is due to; nothing if the answer only rules something out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_to: Option<Cause>,
    /// The meaning, in plain words and without numbers, since those are computed.
    pub says: String,
}

/// The cause of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The paper's words, which are stronger than its measurement or leave open what was measured.
    Paper,
    /// The model, whose attention is not like that of the paper's models, or which is too small.
    Model,
    /// The method itself.
    Method,
    /// A setting that differs from the paper's: text, length, calibration.
    Setting,
    /// The budget: with more tokens the claim holds.
    Budget,
    /// This program.
    Program,
}

impl Cause {
    /// All causes, in the order of the pages.
    pub const ALL: [Self; 6] = [Self::Paper, Self::Model, Self::Method, Self::Setting, Self::Budget, Self::Program];

    /// The cause in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Paper => "the paper's words",
            Self::Model => "the model",
            Self::Method => "the method",
            Self::Setting => "the setting here",
            Self::Budget => "the budget",
            Self::Program => "this program",
        }
    }
}

/// What an experiment found, as stored with the verdict on its claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The question.
    pub asks: String,
    /// The answer: yes if all comparisons are confirmed, no if none is confirmed and some are contradicted.
    pub answer: ClaimVerdict,
    /// The smallest number of examples, documents or turns of the cells that were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// What was compared.
    pub why: Vec<String>,
    /// What the answer means; `None` if it is neither yes nor no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<Meaning>,
}

fn on_a_pretrained_model() -> Variant {
    Variant::Real
}

impl Experiment {
    /// Checks that it compares something and that no text is empty.
    ///
    /// # Errors
    /// If something is missing, which the error names.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let texts = [("asks", &self.asks), ("yes.says", &self.yes.says), ("no.says", &self.no.says)];
        if let Some((key, _)) = texts.iter().find(|(_, text)| text.trim().is_empty()) {
            return Err(UsageError::new(format!("experiment: `{key}` is empty")).hint("write a text"));
        }
        self.test.check().map_err(|e| UsageError { what: format!("experiment: {}", e.what), ..e })
    }

    /// The meaning of an answer; `None` if it is neither yes nor no.
    pub fn meaning(&self, answer: ClaimVerdict) -> Option<&Meaning> {
        match answer {
            ClaimVerdict::Holds => Some(&self.yes),
            ClaimVerdict::DoesNotHold => Some(&self.no),
            _ => None,
        }
    }
}

impl Tried {
    /// Returns the answer in one word.
    pub fn word(&self) -> &'static str {
        match self.answer {
            ClaimVerdict::Holds => "yes",
            ClaimVerdict::DoesNotHold => "no",
            ClaimVerdict::HoldsInPart => "in part",
            ClaimVerdict::NotTested => "not run yet",
            _ => "cannot be told",
        }
    }

    /// Returns the cause of the result, according to this experiment.
    pub fn due_to(&self) -> Option<Cause> {
        self.means.as_ref().and_then(|means| means.due_to)
    }
}
