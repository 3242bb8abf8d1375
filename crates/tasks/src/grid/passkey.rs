//! Passkeys among repeated filler (templates and sources in `tasks/passkey.toml`).

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Member, Options, Scene, Setting};
use crate::TaskOptions;
use crate::metrics::Metric;
use crate::ruler::fit::{Draft, Request, Units};
use crate::ruler::template::substitute;
use spattn_base::error::UsageError;

pub(super) const BASE: Base = Base { name: "passkey", members, steps: 11, count: None, takes_file: false, make };

/// The stream of random draws for the key.
const KEY: u64 = 0;

static FILE: LazyLock<File> = LazyLock::new(|| {
    // The file is embedded, so a mistake in it is ours, and the tests find it.
    toml::from_str(include_str!("../../tasks/passkey.toml")).expect("tasks/passkey.toml is well-formed")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tasks: Vec<Definition>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    metric: Metric,
    tokens_to_generate: usize,
    low: usize,
    high: usize,
    filler: Vec<String>,
    context_template: String,
    question_template: String,
    answer_prefix: String,
    #[serde(default)]
    line: String,
}

fn full_name(definition: &Definition) -> String {
    format!("{}/{}", BASE.name, definition.name)
}

fn members() -> Vec<Member> {
    let member = |d: &Definition| Member {
        name: full_name(d),
        about: d.about.clone(),
        metric: d.metric,
        max_new_tokens: d.tokens_to_generate,
    };
    FILE.tasks.iter().map(member).collect()
}

fn make(name: &str, _: &Options, _: &TaskOptions) -> Result<Box<dyn Setting>> {
    let definition = FILE.tasks.iter().find(|d| full_name(d) == name);
    let definition =
        definition.ok_or_else(|| UsageError::unknown("passkey", name, FILE.tasks.iter().map(full_name)))?;
    Ok(Box::new(Passkey(definition.clone())))
}

struct Passkey(Definition);

impl Passkey {
    /// The first `units` units of the repeated filler.
    fn filler(&self, units: usize) -> String {
        let all: Vec<&str> = self.0.filler.iter().map(String::as_str).cycle().take(units).collect();
        all.join(" ")
    }
}

impl Setting for Passkey {
    fn source(&self) -> String {
        "repeated filler".to_owned()
    }

    fn units(&self, length: usize) -> Units {
        Units { least: 1, most: length, probe: 20 }
    }

    fn scene<'a>(&'a self, request: &'a Request<'a>, attempt: u64) -> Result<Box<dyn Scene + 'a>> {
        let key = request.draw(attempt, KEY).between(self.0.low, self.0.high).to_string();
        Ok(Box::new(Hidden { passkey: self, key }))
    }

    fn one_context(&self) -> bool {
        false
    }
}

struct Hidden<'a> {
    passkey: &'a Passkey,
    key: String,
}

impl Scene for Hidden<'_> {
    fn draft(&mut self, units: usize, depth: f64) -> Draft {
        let definition = &self.passkey.0;
        let units_before = (units as f64 * depth / 100.0).round() as usize;
        let (before, after) = (self.passkey.filler(units_before), self.passkey.filler(units - units_before));
        let line = substitute(&definition.line, &[("key", &self.key)]);
        let values = [("key", self.key.as_str()), ("line", &line), ("before", &before), ("after", &after)];
        Draft {
            context: substitute(&definition.context_template, &values),
            question: definition.question_template.clone(),
            answer_prefix: definition.answer_prefix.clone(),
            references: vec![self.key.clone()],
            note: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(name: &str, units: usize, depth: f64) -> Draft {
        let definition = FILE.tasks.iter().find(|d| d.name == name).unwrap().clone();
        Hidden { passkey: &Passkey(definition), key: "12345".to_owned() }.draft(units, depth)
    }

    #[test]
    fn the_prompt_of_quest_is_the_published_one() {
        let draft = draft("quest", 7, 30.0);
        assert_eq!(
            draft.context + &draft.question + &draft.answer_prefix,
            "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz \
             you about the important information there.\nThe grass is green. The sky is blue.\nThe pass key is 12345. \
             Remember it. 12345 is the pass key.\nThe grass is green. The sky is blue. The sun is yellow. Here we go. \
             There and back again.\nWhat is the pass key? The pass key is"
        );
    }

    #[test]
    fn the_key_line_of_hip_comes_five_times_with_three_keys_each() {
        let context = draft("hip", 4, 50.0).context;
        assert_eq!(context.matches("HERE IS THE SECRET KEYWORD!").count(), 5);
        assert_eq!(context.matches("$12345$").count(), 15);
        assert_eq!(context.matches("There and back again. ").count(), 4);
        let (before, after) = context.split_once("=== NOW IMPORTANT").unwrap();
        assert_eq!((before.matches("The grass").count(), after.matches("The grass").count()), (2, 2));
    }
}
