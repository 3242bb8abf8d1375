//! What the papers observed about attention, measured on any model: what `spattn analyze` computes.
//!
//! A [`Reader`] reads prompts densely and keeps what an [`Observation`] looks at: keys and values of each layer, and the queries
//! of the last tokens. An observation takes documents in one after the other and ends with [`Findings`]. How these look is
//! decided above. A new observation is a file and an entry of [`ANALYSES`].

pub mod dump;
pub mod findings;
pub mod head;
pub mod picked;
pub mod units;

mod channels;
mod documents;
mod embeddings;
mod entropy;
mod estimation;
mod geometry;
mod layers;
mod locality;
mod mass;
mod reading;
mod recall;

use std::collections::BTreeSet;

use anyhow::Result;

pub use self::findings::Findings;
pub use self::reading::{Choices, Document, Loaded, Reader, Request};
use crate::eval::calibration::calibrate::supply;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, PromptNeed, expand_grid};
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
    start: fn(&Setup<'_>) -> Result<Box<dyn Observation>>,
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

/// All of them, in the order in which one reads them.
pub const ANALYSES: &[Analysis] = &[
    mass::ANALYSIS,
    geometry::ANALYSIS,
    estimation::ANALYSIS,
    entropy::ANALYSIS,
    documents::ANALYSIS,
    recall::ANALYSIS,
    embeddings::ANALYSIS,
    locality::ANALYSIS,
    layers::ANALYSIS,
    channels::ANALYSIS,
];

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
    fn parse_all(specs: &[String], policy: &Policy, model: &OpenModel) -> Result<Vec<Self>> {
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
    fn drawn_anew(&self, draw: usize, model: &OpenModel) -> Result<Configured> {
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

/// The analyses of these names, in the order of [`ANALYSES`]; all without a name.
///
/// # Errors
/// If there is none of a name.
pub fn select(names: &[String]) -> Result<Vec<&'static Analysis>, UsageError> {
    let known = || ANALYSES.iter().map(|analysis| analysis.name);
    if let Some(unknown) = names.iter().find(|name| !known().any(|known| known == name.as_str())) {
        return Err(UsageError { ..unknown_analysis(unknown) });
    }
    Ok(ANALYSES.iter().filter(|a| names.is_empty() || names.iter().any(|name| name == a.name)).collect())
}

fn unknown_analysis(name: &str) -> UsageError {
    let error = UsageError::unknown("analysis", name, ANALYSES.iter().map(|analysis| analysis.name));
    match error.hint {
        Some(hint) if hint.starts_with("did you mean") => UsageError { hint: Some(hint), ..error },
        _ => UsageError { hint: Some("`spattn list analyses` shows them".to_owned()), ..error },
    }
}

/// What one analysis found.
pub struct Found {
    /// Which.
    pub analysis: &'static Analysis,
    /// What.
    pub findings: Findings,
}

/// Observations that have started.
pub struct Running {
    analyses: Vec<(&'static Analysis, Box<dyn Observation>)>,
    needs: BTreeSet<PromptNeed>,
}

impl Running {
    /// Starts the observations of `analyses`, each with its own methods if the user named none.
    ///
    /// # Errors
    /// If one cannot be started on this model.
    pub fn start(analyses: &[&'static Analysis], setup: &Setup<'_>) -> Result<Self> {
        let (mut running, mut needs) = (Vec::new(), BTreeSet::new());
        for analysis in analyses {
            let own;
            let mut setup = Setup { ..*setup };
            if setup.methods.is_empty() {
                own = default_methods(analysis, &setup)?;
                setup.methods = &own;
            }
            if !analysis.methods.is_empty() {
                needs.extend(setup.methods.iter().flat_map(|method| method.configured.method.prompt_needs()));
            }
            running.push((*analysis, (analysis.start)(&setup)?));
        }
        Ok(Self { analyses: running, needs })
    }

    /// What methods ask to know of prompts.
    pub fn needs(&self) -> &BTreeSet<PromptNeed> {
        &self.needs
    }

    /// Shows a document to all.
    ///
    /// # Errors
    /// If a method cannot be looked at.
    pub fn observe(&mut self, document: &Document) -> Result<()> {
        self.analyses.iter_mut().try_for_each(|(_, observation)| observation.observe(document))
    }

    /// What was found.
    pub fn finish(self) -> Vec<Found> {
        let found =
            |(analysis, observation): (_, Box<dyn Observation>)| Found { analysis, findings: observation.finish() };
        self.analyses.into_iter().map(found).collect()
    }
}

/// The methods that an analysis looks at by itself; those that lack a calibration of this model are left out.
fn default_methods(analysis: &Analysis, setup: &Setup<'_>) -> Result<Vec<Method>> {
    let policy = Policy { sink: setup.sink, ..Policy::default() };
    let mut methods = Vec::new();
    for spec in analysis.methods {
        match Method::read_all(&[(*spec).to_owned()], &policy, &setup.loaded.model) {
            Ok(read) => methods.extend(read),
            Err(error) => eprintln!("note: {}: {spec} is left out: {error:#}", analysis.name),
        }
    }
    Ok(methods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn analyses_are_found_by_name_and_keep_their_order() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            select(&names).map(|found| found.iter().map(|a| a.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["recall", "mass"]).unwrap(), ["mass", "recall"]);
        assert_eq!(names(&[]).unwrap().len(), ANALYSES.len());
        assert_eq!(names(&["entropi"]).unwrap_err().hint.unwrap(), "did you mean `entropy`?");
        assert_eq!(names(&["x"]).unwrap_err().hint.unwrap(), "`spattn list analyses` shows them");
        assert_eq!(ANALYSES.iter().map(|a| a.name).collect::<BTreeSet<_>>().len(), ANALYSES.len());
    }
}
