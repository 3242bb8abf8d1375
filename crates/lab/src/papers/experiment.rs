//! Experiments on claims: what was tried to find out whether a result is the paper's, the model's, the method's or the program's, and what it
//! means. What came out is a test on the item's cells, like a claim's own; which of the stated meanings applies is its verdict.

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
    /// What a yes means.
    pub yes: Meaning,
    /// What a no means.
    pub no: Meaning,
    /// The run that it is about; the small pretrained model's if not given.
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
    /// The meaning, in plain words and without numbers: those are computed.
    pub says: String,
}

/// What a result is due to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The paper's words: they are stronger than its measurement, or leave open what was measured.
    Paper,
    /// The model: its attention is not like that of the paper's models, or it is too small.
    Model,
    /// The method itself.
    Method,
    /// A setting that is not the paper's: text, length, calibration.
    Setting,
    /// The budget: with more tokens it is as the claim says.
    Budget,
    /// This program.
    Program,
}

impl Cause {
    /// All of them, in the order of pages.
    pub const ALL: [Self; 6] = [Self::Paper, Self::Model, Self::Method, Self::Setting, Self::Budget, Self::Program];

    /// In words.
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
    /// The answer: yes if all comparisons are confirmed, no if none is and some are contradicted.
    pub answer: ClaimVerdict,
    /// The smallest number of examples, documents or turns of what was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// What was compared.
    pub why: Vec<String>,
    /// What the answer means; `None` if there is no plain answer.
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
    /// With what is missing.
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
    /// The answer in a word.
    pub fn word(&self) -> &'static str {
        match self.answer {
            ClaimVerdict::Holds => "yes",
            ClaimVerdict::DoesNotHold => "no",
            ClaimVerdict::HoldsInPart => "in part",
            ClaimVerdict::NotTested => "not run yet",
            _ => "cannot be told",
        }
    }

    /// What the result is due to, by this experiment.
    pub fn due_to(&self) -> Option<Cause> {
        self.means.as_ref().and_then(|means| means.due_to)
    }
}
