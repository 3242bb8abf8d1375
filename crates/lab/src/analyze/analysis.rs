//! The definition of an analysis: an observation of documents, and the methods that it examines.

use anyhow::Result;

use super::findings::Findings;
use super::reading::{Document, Loaded};
use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, expand_grid};
use spattn_base::error::UsageError;
use spattn_eval::calibration::supply::supply;
use spattn_model::OpenModel;

/// An analysis: an observation that papers report.
pub struct Analysis {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    /// The papers' tables and figures that show it.
    pub reference: &'static str,
    /// The methods to examine if the user names none; empty for analyses of exact attention alone.
    pub methods: &'static [&'static str],
    /// Starts the observation, before any document is read.
    pub(super) start: fn(&Setup<'_>) -> Result<Box<dyn Observation>>,
}

/// An observation that is computed from documents.
pub trait Observation {
    /// Adds a document.
    ///
    /// # Errors
    /// If a method cannot be examined.
    fn observe(&mut self, document: &Document) -> Result<()>;

    /// Returns the results.
    fn finish(self: Box<Self>) -> Findings;
}

/// The settings of observations.
pub struct Setup<'a> {
    /// The model that reads the documents.
    pub loaded: &'a Loaded,
    /// The number of first tokens that count as the sink.
    pub sink: usize,
    /// The methods that the user named, with their calibration.
    pub methods: &'a [Method],
    /// Number of random draws.
    pub draws: usize,
    /// Seed of the random draws.
    pub seed: u64,
}

/// A method: its spec and its configuration.
#[derive(Debug, Clone)]
pub struct Method {
    /// The spec, without grids.
    pub spec: MethodSpec,
    /// The configured method.
    pub configured: Configured,
}

impl Method {
    /// Reads specs, expands their grids and supplies calibrations for the model.
    ///
    /// # Errors
    /// If the model has layers that analyses do not support, if a spec is wrong, if a method is sparse in prefill or moves positions, or
    /// if a method needs a calibration that the model does not have.
    pub fn read_all(specs: &[String], policy: &Policy, model: &OpenModel) -> Result<Vec<Self>> {
        let mut all = Self::parse_all(specs, policy, model)?;
        for method in &mut all {
            supply(std::slice::from_mut(&mut method.configured), model, None)?;
        }
        Ok(all)
    }

    /// Does the same as [`read_all`](Self::read_all) without calibrations, which suffices to tell whether the methods can be examined.
    pub(super) fn parse_all(specs: &[String], policy: &Policy, model: &OpenModel) -> Result<Vec<Self>> {
        if let Some(reason) = model.dimensions.layer_specs().beyond_plain().first() {
            return Err(UsageError::new(format!("analyses do not support {reason} of {}", model.id)).into());
        }
        let mut all = Vec::new();
        for spec in specs {
            for spec in expand_grid(spec)? {
                let configured = configure(&spec, policy)?;
                let dense = configured.policy.dense(model.dimensions.config().layers);
                configured.policy.schedule.check(&dense)?;
                all.push(Self { spec, configured });
            }
        }
        all.iter().try_for_each(Self::check)?;
        Ok(all)
    }

    fn check(&self) -> Result<(), UsageError> {
        let refused = |why: &str| {
            let what = format!("method `{}` {why}", self.configured.label());
            Err(UsageError::new(what).hint("name one that selects tokens in decoding: spattn list methods"))
        };
        if self.configured.reader.is_some() || self.configured.method.decodes_densely() {
            return refused("is sparse in prefill, but analyses read prompts densely");
        }
        match self.configured.method.positions() {
            spattn_attention::Positions::Original => Ok(()),
            _ => refused("moves positions, which analyses do not support"),
        }
    }

    /// Returns the method with another `seed` for what it draws once for all heads; unchanged if it has no seed or the user set one.
    ///
    /// # Errors
    /// Never for a method that was read for this model.
    pub(super) fn drawn_anew(&self, draw: usize, model: &OpenModel) -> Result<Configured> {
        const SEED: &str = "seed";
        let has_seed = self.configured.settings.iter().any(|setting| setting.key == SEED);
        if !has_seed || self.spec.params.iter().any(|(key, _)| key == SEED) {
            return Ok(self.configured.clone());
        }
        let mut spec = self.spec.clone();
        spec.params.push((SEED.to_owned(), (draw + 1).to_string()));
        let mut drawn = [configure(&spec, &self.configured.policy)?];
        supply(&mut drawn, model, None)?;
        let [Configured { method, settings, .. }] = drawn;
        Ok(Configured { method, settings, ..self.configured.clone() })
    }
}
