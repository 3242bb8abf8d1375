//! How a row of a prepared file is recognised as a row of a RULER task.

use super::template::RulerDefinition;
use crate::metrics::Metric;

/// The marks by which prompts of a base task are recognised, and how their answers are scored.
pub struct Shape {
    /// Beginnings of the question.
    pub question_marks: &'static [String],
    /// Beginning of the answer prefix.
    pub prefix_mark: &'static str,
    /// How predictions are scored.
    pub metric: Metric,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
}

impl Shape {
    /// The shape of the tasks of a definition.
    pub(super) fn of(definition: &'static RulerDefinition) -> Self {
        Self {
            question_marks: &definition.question_marks,
            prefix_mark: &definition.prefix_mark,
            metric: definition.metric,
            max_new_tokens: definition.tokens_to_generate,
        }
    }
}
