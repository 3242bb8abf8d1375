//! Variable tracking (RULER, section 3 "Multi-hop tracing"; `scripts/data/synthetic/variable_tracking.py`).
//!
//! A chain of assignments lies among noise lines. The answer is every variable that ends up with the first one's value. A solved
//! example with shorter names, of up to 500 tokens, comes first. All of it is drawn for every example; with published positions
//! only its names and value are.

use std::collections::HashSet;

use anyhow::Result;
use serde::Deserialize;

use super::base::{Base, Generator};
use super::fit::{self, Draft, Request, Units};
use super::template::{RulerDefinition, TaskDefinition, substitute};
use crate::seed::{Draw, example_seed};
use crate::{Positions, TaskOptions};
use spattn_base::error::UsageError;

/// This base task.
pub const BASE: Base = Base { name: "vt", file: include_str!("../../tasks/ruler/vt.toml"), make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const NAMES: u64 = 0;
    pub const PLACES: u64 = 1;
    pub const SHOT_NAMES: u64 = 2;
    pub const SHOT_PLACES: u64 = 3;
}

#[derive(Debug, Clone, Deserialize)]
struct Shared {
    noise: String,
    first: String,
    link: String,
    letters: usize,
    shot_letters: usize,
    shot_tokens: usize,
    shot: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    chains: usize,
    hops: usize,
}

struct Tracking {
    definition: RulerDefinition,
    shared: Shared,
    parameters: Parameters,
}

fn make(definition: &RulerDefinition, task: &TaskDefinition, _: &TaskOptions) -> Result<Box<dyn Generator>> {
    Ok(Box::new(Tracking { definition: definition.clone(), shared: definition.own()?, parameters: task.read()? }))
}

impl Generator for Tracking {
    fn source(&self) -> String {
        "generated".to_owned()
    }

    fn generate(&self, request: &Request) -> Result<Draft> {
        let shot = self.shot(request)?;
        let most = request.length;
        fit::fill(request, Units { least: self.fewest_lines(), most, probe: 20 }, |attempt, lines| {
            let chains = self.chains(self.shared.letters, &mut request.draw(attempt, part::NAMES));
            let mut draft = self.draft(&chains, lines, &mut request.draw(attempt, part::PLACES));
            draft.context.insert_str(0, &shot);
            Ok(draft)
        })
    }
}

/// The variables of a chain in order, and their value.
struct Chain {
    variables: Vec<String>,
    value: String,
}

impl Tracking {
    /// The fewest noise lines: each assignment of a chain precedes a different line.
    fn fewest_lines(&self) -> usize {
        self.parameters.hops + 1
    }

    /// The longest solved example that fits into its share of tokens; the shortest one if none fits.
    fn shot(&self, request: &Request) -> Result<String> {
        let frame = request.counter.prompt_tokens("", "")?;
        let alone = Request { length: frame + self.shared.shot_tokens, max_new_tokens: 0, ..*request };
        let chains = self.chains(self.shared.shot_letters, &mut request.draw(0, part::SHOT_NAMES));
        let units = Units { least: self.fewest_lines(), most: self.shared.shot_tokens, probe: 4 };
        let build = |lines| {
            let draft = self.draft(&chains, lines, &mut self.shot_places(request));
            // As published, only its own text up to the answer is counted.
            Ok(Draft { question: draft.question + &draft.answer_prefix, answer_prefix: String::new(), ..draft })
        };
        let draft = match fit::largest(&alone, units, build) {
            Ok(fitted) => fitted.draft,
            Err(e) if e.is::<UsageError>() => build(units.least)?,
            Err(e) => return Err(e),
        };
        let prompt = format!("{}{}", draft.context, draft.question);
        let answer = draft.references.join(" ");
        Ok(substitute(&self.shared.shot, &[("prompt", &prompt), ("answer_prefix", ""), ("answer", &answer)]))
    }

    fn shot_places(&self, request: &Request) -> Draw {
        match request.positions {
            Positions::Varied => request.draw(0, part::SHOT_PLACES),
            Positions::Published => {
                Draw::new(example_seed(request.run_seed, request.seed_name, request.length, 0), part::SHOT_PLACES)
            }
        }
    }

    fn chains(&self, letters: usize, draw: &mut Draw) -> Vec<Chain> {
        let mut taken = HashSet::new();
        (0..self.parameters.chains)
            .map(|_| {
                let variables = (0..=self.parameters.hops).map(|_| new_name(letters, &mut taken, draw)).collect();
                // The published bounds: randint(10000, 99999), whose upper end is exclusive.
                Chain { variables, value: draw.between(10_000, 99_998).to_string() }
            })
            .collect()
    }

    fn draft(&self, chains: &[Chain], lines: usize, places: &mut Draw) -> Draft {
        let asked = &chains[0];
        let num_v = (self.parameters.hops + 1).to_string();
        let context = self.context(chains, lines, places);
        let values = [("context", context.as_str()), ("query", asked.value.as_str()), ("num_v", num_v.as_str())];
        Draft {
            context: substitute(&self.definition.context_template, &values),
            question: substitute(&self.definition.question_template, &values),
            answer_prefix: substitute(&self.definition.answer_prefix, &values),
            references: asked.variables.clone(),
            note: None,
        }
    }

    /// Noise lines with each chain's assignments, in order, before lines drawn without repetition.
    fn context(&self, chains: &[Chain], lines: usize, draw: &mut Draw) -> String {
        let mut text = vec![self.shared.noise.clone(); lines];
        for chain in chains {
            let assignments = self.assignments(chain);
            let mut places = draw.distinct(assignments.len(), text.len());
            places.sort_unstable();
            for (already, (place, assignment)) in places.into_iter().zip(assignments).enumerate() {
                text.insert(place + already, assignment);
            }
        }
        text.join("\n")
    }

    fn assignments(&self, chain: &Chain) -> Vec<String> {
        let first = substitute(&self.shared.first, &[("variable", &chain.variables[0]), ("value", &chain.value)]);
        let links = chain
            .variables
            .windows(2)
            .map(|pair| substitute(&self.shared.link, &[("previous", &pair[0]), ("variable", &pair[1])]));
        std::iter::once(first).chain(links).collect()
    }
}

fn new_name(letters: usize, taken: &mut HashSet<String>, draw: &mut Draw) -> String {
    loop {
        let name = draw.letters(letters, b'A');
        if taken.insert(name.clone()) {
            return name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::testing::{Words, example, example_with};

    /// The variables that get `value`, found by following the assignments of `text`.
    fn follow(text: &str, value: &str) -> Vec<String> {
        let mut holders: Vec<String> = Vec::new();
        for line in text.lines().filter_map(|l| l.strip_prefix("VAR ")) {
            let (name, from) = line.split_once(" = ").unwrap();
            let from = from.trim_end();
            let known = from.strip_prefix("VAR ").is_some_and(|v| holders.iter().any(|h| h == v));
            if from == value || known {
                holders.push(name.to_owned());
            }
        }
        holders
    }

    #[test]
    fn the_chain_in_the_text_is_the_answer() {
        for index in 0..20 {
            let e = example("ruler/vt", 2048, index);
            let value = e.question.split("the value ").nth(1).unwrap().split(' ').next().unwrap();
            let (_, main) = e.context.rsplit_once("Memorize and track").unwrap();
            assert_eq!(follow(main, value), e.references);
            assert_eq!(e.references.len(), 5);
            assert!(e.answer_prefix.contains(&format!("5 variables are assigned the value {value}, they are: ")));
        }
    }

    #[test]
    fn a_solved_example_comes_first() {
        let e = example("ruler/vt", 2048, 4);
        let (shot, main) = e.context.split_once("\n\nMemorize and track").unwrap();
        assert!(
            shot.starts_with(
                "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
            )
        );
        let answer = shot.rsplit_once("they are:  ").unwrap().1;
        let value = shot.rsplit_once("assigned the value ").unwrap().1.split(',').next().unwrap();
        assert_eq!(follow(shot, value), answer.split(' ').collect::<Vec<_>>());
        assert!(answer.split(' ').all(|name| name.len() == 3));
        assert!(main.starts_with(" the chain(s)"));
        let words = shot.rsplit_once("they are: ").unwrap().0.split_whitespace().count();
        assert!((460..=500).contains(&words), "the solved example has {words} words");
    }

    #[test]
    fn links_keep_the_published_trailing_space() {
        let e = example("ruler/vt", 1024, 0);
        assert_eq!(e.context.lines().filter(|l| l.starts_with("VAR ") && l.ends_with(' ')).count(), 8);
    }

    fn shot_lines(positions: Positions, index: usize) -> Vec<usize> {
        let e = example_with("ruler/vt", 2048, index, positions, &Words);
        let shot = e.context.split("\n\nMemorize").next().unwrap().to_owned();
        shot.lines().enumerate().filter(|(_, l)| l.starts_with("VAR")).map(|(i, _)| i).collect()
    }

    #[test]
    fn the_solved_example_is_laid_out_once_only_if_published() {
        let distinct = |positions| (0..8).map(|i| shot_lines(positions, i)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(Positions::Published), 1);
        assert!(distinct(Positions::Varied) > 4);
    }
}
