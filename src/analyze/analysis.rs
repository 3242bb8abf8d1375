//! What an analysis is: an observation of documents, with the methods that it looks at.

use anyhow::Result;

use super::findings::Findings;
use super::reading::{Document, Loaded};
use crate::eval::calibration::calibrate::supply;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, expand_grid};
use spattn_base::error::UsageError;
use spattn_model::OpenModel;

/// One of the papers' observations.
pub struct Analysis {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// The papers' tables and figures that show it.
    pub reference: &'static str,
    /// Methods that it looks at if the user names none; nothing for those that look at exact attention alone.
    pub methods: &'static [&'static str],
    /// An observation that has seen nothing.
    pub(super) start: fn(&Setup<'_>) -> Result<Box<dyn Observation>>,
}

/// What is computed of documents that were read.
pub trait Observation {
    /// Takes a document in.
    ///
    /// # Errors
    /// If a method cannot be looked at.
    fn observe(&mut self, document: &Document) -> Result<()>;

    /// What was found.
    fn finish(self: Box<Self>) -> Findings;
}

/// What observations are told before they start.
pub struct Setup<'a> {
    /// The model that reads.
    pub loaded: &'a Loaded,
    /// First tokens that count as the sink.
    pub sink: usize,
    /// Methods that the user named, with what they learned.
    pub methods: &'a [Method],
    /// Draws of what is drawn.
    pub draws: usize,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// A method as it was written, and as it runs.
#[derive(Debug, Clone)]
pub struct Method {
    /// As it was written, without grids.
    pub spec: MethodSpec,
    /// As it runs.
    pub configured: Configured,
}

impl Method {
    /// Reads specs with their grids, and gives methods what they have to have learned about the model.
    ///
    /// # Errors
    /// If a spec is wrong, a method attends at other positions than tokens were read at or decodes densely, or the model has no
    /// calibration for one that needs it.
    pub fn read_all(specs: &[String], policy: &Policy, model: &OpenModel) -> Result<Vec<Self>> {
        let mut all = Self::parse_all(specs, policy, model)?;
        for method in &mut all {
            supply(std::slice::from_mut(&mut method.configured), model, None)?;
        }
        Ok(all)
    }

    /// As [`read_all`](Self::read_all), without what methods have to have learned: enough to say that they can be looked at.
    pub(super) fn parse_all(specs: &[String], policy: &Policy, model: &OpenModel) -> Result<Vec<Self>> {
        if let Some(reason) = model.dimensions.layer_specs().beyond_plain().first() {
            return Err(
                UsageError::new(format!("what is looked at here does not know {reason} of {}", model.id)).into()
            );
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
            Err(UsageError::new(what).hint("look at one that picks tokens in decoding: spattn list methods"))
        };
        if self.configured.reader.is_some() || self.configured.method.decodes_densely() {
            return refused("is about how a prompt is read, and prompts are read densely here");
        }
        match self.configured.method.positions() {
            spattn_attention::Positions::Original => Ok(()),
            _ => refused("attends at other positions than tokens were read at"),
        }
    }

    /// The same with another draw of what is drawn once for all heads, if it has such a parameter and the user did not set it.
    ///
    /// # Errors
    /// None for a method that was read for this model.
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
