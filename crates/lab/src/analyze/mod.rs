//! The papers' observations about attention, measured on any model (`spattn analyze`).
//!
//! A [`DocumentReader`] reads prompts densely and keeps the keys and values of each layer and the queries of the last tokens. An
//! [`Observation`] examines one document after the other and ends with [`Findings`], which other modules lay out. A new observation needs a
//! file here and an entry in [`ANALYSES`].

pub mod dump;
pub mod findings;
pub mod head;
pub mod picked;
pub mod units;

mod analysis;
mod channels;
mod document_parts;
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

pub use self::analysis::{Analysis, Method, Observation, Setup};
pub use self::findings::Findings;
pub use self::reading::{Choices, Document, DocumentReader, Loaded, Request};
use spattn_attention::{Policy, PromptNeed};
use spattn_base::error::UsageError;

/// All analyses, in the order to read them.
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

/// Returns the analyses with these names, in the order of [`ANALYSES`]; all of them if no name is given.
///
/// # Errors
/// If a name is unknown.
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

/// The result of one analysis.
pub struct AnalysisFindings {
    /// The analysis.
    pub analysis: &'static Analysis,
    /// Its findings.
    pub findings: Findings,
}

/// Observations in progress.
pub struct Running {
    analyses: Vec<(&'static Analysis, Box<dyn Observation>)>,
    needs: BTreeSet<PromptNeed>,
}

impl Running {
    /// Starts the observations of `analyses`. Each uses its default methods if the user named none.
    ///
    /// # Errors
    /// If one cannot start on this model.
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

    /// What the methods need to know about each prompt.
    pub fn needs(&self) -> &BTreeSet<PromptNeed> {
        &self.needs
    }

    /// Passes a document to all observations.
    ///
    /// # Errors
    /// If a method cannot be examined.
    pub fn observe(&mut self, document: &Document) -> Result<()> {
        self.analyses.iter_mut().try_for_each(|(_, observation)| observation.observe(document))
    }

    /// Returns the results.
    pub fn finish(self) -> Vec<AnalysisFindings> {
        let found = |(analysis, observation): (_, Box<dyn Observation>)| AnalysisFindings {
            analysis,
            findings: observation.finish(),
        };
        self.analyses.into_iter().map(found).collect()
    }
}

/// Returns the default methods of an analysis, without those that lack a calibration for this model.
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
