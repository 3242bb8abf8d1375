//! A method with its parameters and policy resolved.

use std::sync::Arc;

use crate::PrefillPattern;
use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::method::AnyMethod;
use crate::spec::Setting;
use crate::types::policy::{Policy, Tail};

/// What [`Configured::revision`] begins with.
pub const FIRST_REVISION: u16 = 1;

/// A method with its parameters and policy resolved: what one cell of a run evaluates.
#[derive(Clone)]
pub struct Configured {
    /// Bare name, such as `topk`; behind a reader of its own `hip:k=512>topk`.
    pub name: String,
    /// Canonical `key=value,...`: what sets the budget always, other parameters and the policy only where
    /// they differ from the default.
    pub params: String,
    /// All parameters, those at their default too.
    pub settings: Vec<Setting>,
    /// Sink, window and dense layers.
    pub policy: Policy,
    /// Which form of its arithmetic this is, from 1 on: records of two forms are never taken for each other. With a reader
    /// of its own, both count.
    pub revision: u16,
    /// The method itself.
    pub method: Arc<dyn AnyMethod>,
    /// SHA-256 of the artefact it was given, if it needs one.
    pub artefact: Option<String>,
    /// Who reads the prompt where sparse attention starts with it; `None` if the method itself does.
    pub reader: Option<Arc<Configured>>,
}

impl Configured {
    /// Whether a device picks for rows of both by one launch, if they have the same index: nothing differs, or nothing but what rows'
    /// [numbers](device::DeviceForm::budget_units) say.
    pub(crate) fn picks_with(&self, other: &Self) -> bool {
        let is_in_number = || self.method.device_form().is_some_and(|form| form.units_encode_budget());
        let are_alike_beside =
            || crate::spec::beside_budget(&self.settings).eq(crate::spec::beside_budget(&other.settings));
        self.name == other.name && (self.params == other.params || is_in_number() && are_alike_beside())
    }

    /// The method with `artefact`, which is known to fit the model; as it is if neither it nor its reader needs that kind.
    ///
    /// # Errors
    /// If the artefact does not hold what the method reads.
    pub fn calibrated(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        let mut calibrated = self.clone();
        if let Some(reader) = &self.reader {
            calibrated.reader = Some(Arc::new(reader.calibrated(artefact)?));
        }
        if self.method.calibration() == Some(artefact.info().kind.as_str())
            && let Some(method) = self.method.calibrated(artefact)?
        {
            (calibrated.method, calibrated.artefact) = (method, Some(artefact.sha256().to_owned()));
        }
        Ok(calibrated)
    }

    /// The method and, if it has one, its reader.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.reader.as_deref())
    }

    /// Who reads a prompt from its first token on.
    pub fn reads(&self) -> &Self {
        self.reader.as_deref().unwrap_or(self)
    }

    /// Whether both read a prompt in the same way, so that they can go on from one reading.
    pub fn reads_as(&self, other: &Self) -> bool {
        let of = |reader: &Self| (reader.label(), reader.artefact.clone());
        match (self.masks_prefill(), other.masks_prefill()) {
            (true, true) => of(self.reads()) == of(other.reads()),
            (own, others) => own == others,
        }
    }

    /// Whether a prompt is read for it by a mask, where it may be.
    pub fn masks_prefill(&self) -> bool {
        matches!(
            self.reads().method.prefill_pattern(),
            Some(PrefillPattern::Blocks(_) | PrefillPattern::Rows(_) | PrefillPattern::Whole(_))
        )
    }

    /// Whether that mask needs all of the prompt at a layer at once.
    pub fn masks_whole_prompt(&self) -> bool {
        matches!(self.reads().method.prefill_pattern(), Some(PrefillPattern::Whole(_)))
    }

    /// Whether its candidates change as tokens follow the prefix.
    pub fn has_moving_candidates(&self) -> bool {
        self.method.manages_decoded_tokens() || self.policy.tail != Tail::Exact
    }

    /// `name` or `name:params`, as a user would write it.
    pub fn label(&self) -> String {
        if self.params.is_empty() { self.name.to_owned() } else { format!("{}:{}", self.name, self.params) }
    }
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label())
    }
}
