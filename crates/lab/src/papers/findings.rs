//! Findings: the sentences at the top of the papers' pages, and each paper's question with the figure that answers it.
//!
//! They are in `configs/papers/findings.toml`, because people write them after reading the results.

use serde::Deserialize;

use spattn_base::error::UsageError;
use spattn_eval::config::file::parse_toml;

/// All findings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFindings {
    /// What is known over all papers, one sentence each.
    pub findings: Vec<String>,
    /// The papers' questions.
    #[serde(default, rename = "paper")]
    pub papers: Vec<PaperFinding>,
}

/// The finding on one paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFinding {
    /// The paper's name.
    pub name: String,
    /// Its question.
    pub question: String,
    /// Its answer according to the pretrained model's measurements, in two or three sentences.
    pub answer: Option<String>,
    /// The item whose figure answers it.
    pub figure: Option<String>,
}

impl PaperFindings {
    /// Reads the findings that are part of the program.
    ///
    /// # Errors
    /// Never for the program's own file, which a test checks.
    pub fn shipped() -> Result<Self, UsageError> {
        parse_toml(include_str!("../../papers/findings.toml"), "configs/papers/findings.toml")
    }

    /// Returns the question and the answer of a paper, by its name; `None` if the file has none.
    pub fn of(&self, paper: &str) -> Option<&PaperFinding> {
        self.papers.iter().find(|one| one.name == paper)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ITEMS, PAPERS};
    use super::*;

    #[test]
    fn every_paper_has_a_question_an_answer_and_a_figure_of_its_own() {
        let findings = PaperFindings::shipped().unwrap();
        assert_eq!(findings.findings.len(), 5);
        assert!(findings.papers.iter().all(|one| PAPERS.iter().any(|paper| paper.name == one.name)));
        for paper in &PAPERS {
            let own = findings.of(paper.name).unwrap();
            let sentences = own.answer.as_deref().unwrap_or_default().split(". ").count();
            assert!(own.answer.is_some() && (2..=3).contains(&sentences), "{}: {sentences} sentences", paper.name);
            let figure = format!("{}/{}", paper.name, own.figure.as_deref().unwrap());
            assert!(ITEMS.iter().any(|item| item.name == figure), "{figure}");
        }
    }
}
