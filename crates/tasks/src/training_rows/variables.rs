//! Rows of the family `vt`: variable tracking with several chains of assignments, and a question about each.

use std::collections::HashSet;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::books::Books;
use super::draw::{log_uniform, percent};
use super::needles::haystack_units;
use super::row::{Class, RowBuilder};
use super::train_file::ChainWording;
use super::wording;
use crate::ruler::definition;
use crate::ruler::substitute;
use crate::seed::Draw;

#[derive(Debug, Deserialize)]
struct AssignmentTemplates {
    noise: String,
    first: String,
    link: String,
}

/// A value and the variables that get it, one from the other.
struct Chain {
    value: String,
    variables: Vec<String>,
}

impl Chain {
    fn new(hops: usize, letters: usize, taken: &mut HashSet<String>, draw: &mut Draw) -> Self {
        let mut fresh = |draw: &mut Draw, make: &dyn Fn(&mut Draw) -> String| loop {
            let name = make(draw);
            if taken.insert(name.clone()) {
                return name;
            }
        };
        let value = fresh(draw, &|d| d.between(10_000, 99_998).to_string());
        let variables = (0..=hops).map(|_| fresh(draw, &|d| d.letters(letters, b'A'))).collect();
        Self { value, variables }
    }

    fn lines(&self, text: &ChainWording) -> Vec<String> {
        let first = substitute(&text.first, &[("variable", &self.variables[0]), ("value", &self.value)]);
        let links = self
            .variables
            .windows(2)
            .map(|pair| substitute(&text.link, &[("previous", &pair[0]), ("variable", &pair[1])]));
        std::iter::once(first).chain(links).collect()
    }
}

/// Writes a context with chains, and questions about as many of them as fit.
pub fn write(row: &mut RowBuilder, draw: &mut Draw, books: &Books) -> Result<()> {
    let (definition, file) = definition("vt").context("there is no base task `vt`")?;
    let shared: AssignmentTemplates = toml::from_str(file)?;
    let published = ChainWording {
        intro: definition.context_template.clone(),
        first: shared.first,
        link: shared.link,
        ask: format!("{}{}", definition.question_template, definition.answer_prefix),
    };
    let text = &wording::chains(draw).unwrap_or(published);
    let in_noise = percent(75, draw);
    let length = row.length();
    let (most, hops) = if percent(40, draw) {
        (draw.between(1, 2), 4)
    } else {
        (log_uniform(1.0, (length as f64 / 110.0).max(1.5), draw).max(1), draw.between(1, 6))
    };
    let letters = if percent(80, draw) { 5 } else { draw.between(3, 6) };
    let separator = if in_noise { "\n" } else { " " };

    let (before, after) =
        text.intro.split_once("{context}").context("the introduction of the assignments has no `{context}`")?;
    row.context(before);
    let room = row.left().saturating_sub(row.cost(after));
    let mut taken = HashSet::new();
    let (mut chains, mut used, mut for_questions): (Vec<Chain>, usize, usize) = (Vec::new(), 0, 0);
    while chains.len() < most {
        let chain = Chain::new(hops, letters, &mut taken, draw);
        let lines: usize = chain.lines(text).iter().map(|l| row.cost(&format!("{separator}{l}"))).sum();
        let (question, answer) = ask(&chain, text);
        let asked = row.question_cost(&format!("\n{question}"), &answer);
        if used + lines + for_questions + asked > room && !chains.is_empty() {
            break;
        }
        used += lines;
        // Some chains are not asked about, so that questions take at most 40 % of the tokens.
        if for_questions + asked <= room * 4 / 10 || chains.is_empty() {
            for_questions += asked;
        }
        chains.push(chain);
    }
    let units = haystack_units(row, room.saturating_sub(used + for_questions), in_noise, &shared.noise, draw, books);
    row.context(&mixed(units, &chains, text, separator, draw));
    row.context(after);
    draw.shuffle(&mut chains);
    for (number, chain) in chains.iter().enumerate() {
        let (question, answer) = ask(chain, text);
        let question = if number == 0 { question } else { format!("\n{question}") };
        if !row.ask(&question, &answer, Class::Answer) {
            break;
        }
    }
    Ok(())
}

/// Inserts the lines of all chains at random places among the units. The lines of one chain keep their order.
fn mixed(units: Vec<String>, chains: &[Chain], text: &ChainWording, separator: &str, draw: &mut Draw) -> String {
    const PLACES: usize = 1 << 40;
    let mut placed: Vec<(usize, String)> = Vec::new();
    for chain in chains {
        let lines = chain.lines(text);
        let mut places: Vec<usize> = lines.iter().map(|_| draw.below(PLACES)).collect();
        places.sort_unstable();
        placed.extend(places.into_iter().zip(lines));
    }
    let count = units.len();
    placed.extend(units.into_iter().enumerate().map(|(i, unit)| ((2 * i + 1) * (PLACES / (2 * count)), unit)));
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join(separator)
}

fn ask(chain: &Chain, text: &ChainWording) -> (String, String) {
    let count = chain.variables.len().to_string();
    let space = if text.ask.ends_with(' ') { "" } else { " " };
    let question = substitute(&text.ask, &[("query", &chain.value), ("num_v", &count)]);
    (question, format!("{space}{}", chain.variables.join(" ")))
}
