//! Rows of the family `qa`: documents about a made-up world, and as many questions about it as fit.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;

use super::draw::{fraction, percent};
use super::row::{Class, RowBuilder};
use super::train_file::DocumentWording;
use super::wording;
use crate::ruler::definition;
use crate::ruler::substitute;
use crate::ruler::{World, WorldFile, WorldQuestion};
use crate::seed::Draw;
use crate::text::grammar::Grammar;

const COUNTRIES: usize = 30;
const FILLER: usize = 3;

#[derive(Debug, Deserialize)]
struct DocumentTemplate {
    document: String,
}

/// The facts about one city, one company and one person.
struct FactGroup {
    facts: BTreeMap<&'static str, String>,
    /// Index of the group whose city the person was born in.
    born_in: usize,
    /// Index of the group whose company the person works at.
    works_at: usize,
    /// The names of the sentences in its documents.
    stated: HashSet<String>,
}

/// Writes documents, and questions about them as long as they fit.
pub fn write(row: &mut RowBuilder, draw: &mut Draw) -> Result<()> {
    let (definition, file) = definition("qa").context("there is no base task `qa`")?;
    let world: WorldFile = toml::from_str(file)?;
    let shared: DocumentTemplate = toml::from_str(file)?;
    let published = DocumentWording {
        intro: definition.context_template.clone(),
        ask: definition.question_template.clone(),
        prefix: definition.answer_prefix.clone(),
        frame: shared.document,
    };
    let other = wording::documents(draw);
    let world = match &other {
        Some(_) if percent(60, draw) => wording::other_world(&world.synthetic, draw),
        _ => world.synthetic,
    };
    let is_other = other.is_some();
    let text = &other.unwrap_or(published);
    // The published question repeats the instruction. Most questions after the first leave it out.
    let short_ask = "Question: {query}";
    let (before, after) =
        text.intro.split_once("{context}").context("the introduction of the documents has no `{context}`")?;
    row.context(before);
    let for_questions = ((row.length() as f64 * (0.04 + 0.31 * fraction(draw))) as usize).max(100);
    let room = row.left().saturating_sub(row.cost(after) + for_questions);
    let (documents, groups) = documents(row, room, &text.frame, &world, draw)?;
    row.context(&documents);
    row.context(after);

    let mut questions: Vec<(String, String)> = Vec::new();
    for group in &groups {
        for question in &world.questions {
            questions.extend(asked(question, group, &groups)?);
        }
    }
    draw.shuffle(&mut questions);
    for (number, (query, answer)) in questions.iter().enumerate() {
        let ask = if is_other || number == 0 || percent(15, draw) { &text.ask } else { short_ask };
        let separator = if number == 0 { "" } else { "\n" };
        let question = format!("{separator}{}{}", substitute(ask, &[("query", query)]), text.prefix);
        if !row.ask(&question, answer, Class::Answer) {
            break;
        }
    }
    Ok(())
}

/// The question about `group` and its answer; `None` if no document has a fact that it needs. An answer that needs two documents
/// first names the city or company that links them.
fn asked(question: &WorldQuestion, group: &FactGroup, groups: &[FactGroup]) -> Result<Option<(String, String)>> {
    let other = match question.via.as_deref() {
        Some("city") => &groups[group.born_in],
        Some("company") => &groups[group.works_at],
        Some(kind) => return Err(anyhow!("a question goes through `{kind}`, not through a city or company")),
        None => group,
    };
    let is_stated = question.uses.iter().all(|s| {
        let by = if s.starts_with(question.of.as_str()) { group } else { other };
        by.stated.contains(s)
    });
    if !is_stated {
        return Ok(None);
    }
    // The city and the company of a person may belong to other groups.
    let by = match question.answer.as_str() {
        "city" => &groups[group.born_in],
        "company" => &groups[group.works_at],
        _ => other,
    };
    let fact = |facts: &FactGroup, name: &str| {
        facts.facts.get(name).cloned().ok_or_else(|| anyhow!("the made-up world has no fact `{name}`"))
    };
    let answer = fact(by, &question.answer)?;
    let answer = match question.via.as_deref() {
        Some(via) => format!(" {}, {answer}", fact(other, via)?),
        None => format!(" {answer}"),
    };
    let pairs: Vec<(&str, &str)> = group.facts.iter().map(|(k, v)| (*k, v.as_str())).collect();
    Ok(Some((substitute(&question.ask, &pairs), answer)))
}

fn documents(
    row: &RowBuilder,
    room: usize,
    frame: &str,
    world: &World,
    draw: &mut Draw,
) -> Result<(String, Vec<FactGroup>)> {
    let grammar = Grammar::house();
    let countries: Vec<String> = (0..COUNTRIES).map(|_| grammar.country(draw)).collect();
    let mut taken = HashSet::new();
    let (mut groups, mut documents): (Vec<FactGroup>, Vec<String>) = (Vec::new(), Vec::new());
    let mut used = 0;
    loop {
        let mut group = new_fact_group(&countries, groups.len(), &mut taken, draw);
        let mut facts = group.facts.clone();
        for (fact, of) in [("city", group.born_in), ("company", group.works_at)] {
            if of < groups.len() {
                facts.insert(fact, groups[of].facts[fact].clone());
            }
        }
        let mut new = Vec::new();
        for (kind, names) in &world.documents {
            let facts = if kind == "person" { &facts } else { &group.facts };
            let pairs: Vec<(&str, &str)> = facts.iter().map(|(k, v)| (*k, v.as_str())).collect();
            let mut sentences = Vec::new();
            for (i, name) in names.iter().enumerate() {
                let form =
                    world.sentences.get(name).ok_or_else(|| anyhow!("the made-up world has no sentence `{name}`"))?;
                if i == 0 || draw.below(4) > 0 {
                    sentences.push(substitute(form, &pairs));
                    group.stated.insert(name.clone());
                }
            }
            sentences.extend((0..draw.below(FILLER + 1)).map(|_| grammar.sentence(draw)));
            new.push(sentences.join(" "));
        }
        // Four tokens cover the number of the document and the empty line after it.
        let cost: usize = new.iter().map(|d| row.cost(d) + row.cost(frame) + 4).sum();
        if used + cost > room {
            break;
        }
        used += cost;
        groups.push(group);
        documents.extend(new);
    }
    draw.shuffle(&mut documents);
    let framed: Vec<String> = documents
        .iter()
        .enumerate()
        .map(|(i, text)| substitute(frame, &[("i", &(i + 1).to_string()), ("document", text)]))
        .collect();
    Ok((framed.join("\n\n"), groups))
}

fn new_fact_group(countries: &[String], number: usize, taken: &mut HashSet<String>, draw: &mut Draw) -> FactGroup {
    let grammar = Grammar::house();
    let mut unique = |draw: &mut Draw, make: fn(&Grammar, &mut Draw) -> String| loop {
        let name = make(grammar, draw);
        if taken.insert(name.clone()) {
            return name;
        }
    };
    let (city, company, person) =
        (unique(draw, Grammar::place), unique(draw, Grammar::company), unique(draw, Grammar::person));
    let earlier = |draw: &mut Draw| if number > 0 && percent(50, draw) { draw.below(number) } else { number };
    let (born_in, works_at) = (earlier(draw), earlier(draw));
    let facts = BTreeMap::from([
        ("city", city),
        ("country", draw.pick(countries).clone()),
        ("fame", grammar.noun(draw)),
        ("company", company),
        ("year", grammar.year(draw)),
        ("product", grammar.noun(draw)),
        ("director", grammar.person(draw)),
        ("person", person),
        ("job", grammar.job(draw)),
        ("sport", grammar.sport(draw)),
    ]);
    FactGroup { facts, born_in, works_at, stated: HashSet::new() }
}
