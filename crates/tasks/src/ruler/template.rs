//! The definition files `tasks/ruler/*.toml`: prompts and parameters as data.

use anyhow::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::metrics::Metric;

/// The definition file of a base task.
#[derive(Debug, Clone, Deserialize)]
pub struct RulerDefinition {
    /// How predictions are scored.
    pub metric: Metric,
    /// Tokens kept free for the answer; also the most that are generated.
    pub tokens_to_generate: usize,
    /// The published template up to the question.
    pub context_template: String,
    /// The published template from the question on.
    pub question_template: String,
    /// The start of the answer, which the model continues.
    pub answer_prefix: String,
    /// Beginnings of the question, to recognise prepared rows.
    pub question_marks: Vec<String>,
    /// Beginning of the answer prefix, to recognise prepared rows.
    pub prefix_mark: String,
    /// The tasks made from this base task.
    pub tasks: Vec<TaskDefinition>,
    /// Entries that only this base task has, such as its needle and its noise.
    #[serde(flatten)]
    own: toml::Table,
}

impl RulerDefinition {
    /// The entries that only this base task has, deserialised into a type of its generator.
    ///
    /// # Errors
    /// If an entry is missing or of the wrong type.
    pub fn own<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(toml::Value::Table(self.own.clone()).try_into()?)
    }
}

/// A task with its own parameters.
#[derive(Debug, Clone, Deserialize)]
pub struct TaskDefinition {
    /// Name without `ruler/`.
    pub name: String,
    /// What it asks, in a few words.
    pub about: String,
    /// The full name of the published task that this one replaces with synthetic data.
    pub stands_in_for: Option<String>,
    /// All other entries of its table.
    #[serde(flatten)]
    pub parameters: toml::Table,
}

impl TaskDefinition {
    /// The parameters, deserialised into a type of the generator.
    ///
    /// # Errors
    /// If a parameter is missing or of the wrong type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(toml::Value::Table(self.parameters.clone()).try_into()?)
    }
}

/// Replaces each `{name}` of `template` by its value in one pass: braces in a value, and a placeholder
/// without a value, stay unchanged.
pub fn substitute(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + values.iter().map(|(_, v)| v.len()).sum::<usize>());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let known = rest.find('}').and_then(|close| {
            let name = &rest[1..close];
            values.iter().find(|(n, _)| *n == name).map(|(_, value)| (close, value))
        });
        match known {
            Some((close, value)) => {
                out.push_str(value);
                rest = &rest[close + 1..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_once() {
        assert_eq!(substitute("a {x} {y} {z} {", &[("x", "{y}"), ("y", "2")]), "a {y} 2 {z} {");
        assert_eq!(substitute("{{x}}", &[("x", "1")]), "{1}");
    }
}
