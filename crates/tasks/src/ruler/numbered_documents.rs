//! The prompt of question answering: numbered documents, then a question.

use anyhow::Result;
use serde::Deserialize;

use super::fit::Draft;
use super::template::{RulerDefinition, substitute};

#[derive(Debug, Clone, Deserialize)]
struct Shared {
    document: String,
}

/// The templates of the base task.
pub struct NumberedDocuments {
    definition: RulerDefinition,
    document: String,
}

impl NumberedDocuments {
    /// The templates of a definition.
    ///
    /// # Errors
    /// If the definition has no template for a document.
    pub fn new(definition: &RulerDefinition) -> Result<Self> {
        let shared: Shared = definition.own()?;
        Ok(Self { definition: definition.clone(), document: shared.document })
    }

    /// `question` over `documents`, numbered from 1 in the order given.
    pub fn draft<'a>(&self, documents: impl Iterator<Item = &'a str>, question: &str, references: &[String]) -> Draft {
        let numbered: Vec<String> = documents
            .enumerate()
            .map(|(i, text)| substitute(&self.document, &[("i", &(i + 1).to_string()), ("document", text)]))
            .collect();
        Draft {
            context: substitute(&self.definition.context_template, &[("context", &numbered.join("\n\n"))]),
            question: substitute(&self.definition.question_template, &[("query", question)]),
            answer_prefix: self.definition.answer_prefix.clone(),
            references: references.to_vec(),
            note: None,
        }
    }
}
