//! A method with its parameters and policy resolved.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::PrefillPattern;
use crate::backend::reasons::HostReason;
use crate::calibration::artefact::{Artefact, ArtefactError};
use crate::kv::KvShape;
use crate::method::AnyMethod;
use crate::spec::Setting;
use crate::types::attention_spec::{AttentionSpec, LayerSpecs, SpecReason};
use crate::types::policy::{KV_DTYPE, Policy, Tail};
use crate::types::role::Role;

/// The first value of [`Configured::revision`].
pub const FIRST_REVISION: u16 = 1;

/// A method with its parameters and policy resolved: what one cell of the evaluation matrix runs.
#[derive(Clone)]
pub struct Configured {
    /// Name without parameters, such as `topk`; with a separate reader `hip:k=512>topk`.
    pub name: String,
    /// Canonical `key=value,...`: always the budget; other parameters and the policy only if they are not the default.
    pub params: String,
    /// All parameters, defaults included.
    pub settings: Vec<Setting>,
    /// The policy: sink, window, dense layers and the rest.
    pub policy: Policy,
    /// Revision of its arithmetic, from 1: records of different revisions are never mixed. With a separate reader, the
    /// revisions of both are combined.
    pub revision: u16,
    /// The method itself.
    pub method: Arc<dyn AnyMethod>,
    /// SHA-256 of the artefact that the method was given, if it needs one.
    pub artefact: Option<String>,
    /// The method that reads the prompt if sparse attention starts with prefill; `None` if the method itself does.
    pub reader: Option<Arc<Configured>>,
}

impl Configured {
    /// The requested density, if the budget is one.
    pub fn asked_density(&self) -> Option<f64> {
        let density = self.settings.iter().find(|setting| setting.key == crate::spec::DENSITY)?;
        density.value.parse().ok()
    }

    /// Whether one launch can select for rows of both methods if they share an index: they are equal, or differ only in their [budget
    /// units](crate::DeviceForm::budget_units).
    pub(crate) fn picks_with(&self, other: &Self) -> bool {
        let is_in_number = || self.method.device_form().is_ok_and(|form| form.units_encode_budget());
        let are_alike_beside =
            || crate::spec::beside_budget(&self.settings).eq(crate::spec::beside_budget(&other.settings));
        let tails_alike = (self.policy.tail == Tail::Exact) == (other.policy.tail == Tail::Exact);
        let params_alike = self.params == other.params || is_in_number() && are_alike_beside();
        self.name == other.name && tails_alike && params_alike
    }

    /// The reasons why the method selects on the host when a GPU holds the prefix of a model of this shape: what its parameters, the shape
    /// or the policy require and no kernel does. Empty if it selects on the GPU.
    pub fn host_reasons(&self, shape: KvShape) -> Vec<HostReason> {
        let mut reasons = match self.method.device_form() {
            Ok(form) if self.method.manages_decoded_tokens() && !form.holds() => vec![HostReason::NoForm],
            Ok(form) => form.shape_reasons(shape),
            Err(reasons) => reasons,
        };
        let grows = self.method.device_form().is_ok_and(|form| form.grows(shape));
        let moves = self.policy.tail != Tail::Exact && !grows;
        for reason in HostReason::of_run(self.method.positions(), moves) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        reasons
    }

    /// Returns the method calibrated with `artefact`, which must fit the model; unchanged if neither the method nor its reader needs an
    /// artefact of that kind.
    ///
    /// # Errors
    /// If the artefact lacks what the method reads.
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

    /// The method that reads the prompt: the reader, or the method itself.
    pub fn reads(&self) -> &Self {
        self.reader.as_deref().unwrap_or(self)
    }

    /// The features of any layer's attention that the method cannot honour, in order, each once. The method must not run unless there are
    /// none.
    pub fn unsupported(&self, specs: &LayerSpecs) -> BTreeSet<SpecReason> {
        let own = specs.iter().flat_map(|spec| self.method.unsupported(spec));
        let in_windows = specs.selects_in_windows(&self.policy) && !self.can_select_in_windows();
        own.chain(in_windows.then_some(SpecReason::Selection)).collect()
    }

    /// Whether its selection can be cut to a layer's window. This requires that it depends only on the order or the positions of
    /// candidates, and that the candidates are those of the prefix.
    fn can_select_in_windows(&self) -> bool {
        let with_sinks = AttentionSpec { sinks: Some([].into()), ..AttentionSpec::of_width(1) };
        !self.has_moving_candidates() && self.method.unsupported(&with_sinks).is_empty()
    }

    /// Whether it is the dense reference, with which all methods are compared: `full` on keys and values as the model computes them.
    pub fn is_reference(&self) -> bool {
        self.role() == Role::Reference
    }

    /// Its role in comparisons.
    pub fn role(&self) -> Role {
        Role::of_setting(&self.name, &self.params)
    }

    /// Whether both read a prompt in the same way, so that they can share one prefill. The storage type that the prefix has afterwards does
    /// not matter.
    pub fn reads_as(&self, other: &Self) -> bool {
        let params = |reader: &Self| -> Vec<Setting> {
            reader.settings.iter().filter(|setting| setting.is_named && setting.key != KV_DTYPE).cloned().collect()
        };
        let of = |reader: &Self| (reader.name.clone(), params(reader), reader.artefact.clone());
        match (self.masks_prefill(), other.masks_prefill()) {
            (true, true) => of(self.reads()) == of(other.reads()),
            (own, others) => own == others,
        }
    }

    /// Whether its prefill is sparse where sparse prefill is enabled.
    pub fn masks_prefill(&self) -> bool {
        matches!(
            self.reads().method.prefill_pattern(),
            Some(PrefillPattern::Blocks(_) | PrefillPattern::Rows(_) | PrefillPattern::Whole(_))
        )
    }

    /// Whether the prefill mask needs the whole prompt of a layer at once.
    pub fn masks_whole_prompt(&self) -> bool {
        matches!(self.reads().method.prefill_pattern(), Some(PrefillPattern::Whole(_)))
    }

    /// Whether decoded tokens change its candidates.
    pub fn has_moving_candidates(&self) -> bool {
        self.method.manages_decoded_tokens() || self.policy.tail != Tail::Exact
    }

    /// Returns `name` or `name:params`, as a user would write it.
    pub fn label(&self) -> String {
        if self.params.is_empty() { self.name.to_owned() } else { format!("{}:{}", self.name, self.params) }
    }
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label())
    }
}
