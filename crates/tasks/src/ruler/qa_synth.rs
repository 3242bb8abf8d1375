//! Synthetic stand-ins for RULER's question answering: questions of one or two hops about documents on made-up cities, companies and
//! persons.
//!
//! This is not RULER's data, so the tasks have other names: `qa_synth` and `qa_synth_hop2`. Sentences and questions are data in
//! `tasks/ruler/qa.toml`. Longer examples have more sentences: more distractor documents, the last of which may end after any of its
//! sentences.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Result, anyhow};
use serde::Deserialize;

use super::base::{Generator, shuffled_order};
use super::fit::{self, Draft, Request, Units};
use super::numbered_documents::NumberedDocuments;
use super::template::{RulerDefinition, substitute};
use crate::seed::Draw;
use crate::text::grammar::Grammar;

/// Streams of random draws, one for each part of an example.
mod part {
    pub const WORLD: u64 = 0;
    pub const ORDER: u64 = 1;
    pub const QUESTION: u64 = 2;
}

/// The number of different countries in an example.
const COUNTRIES: usize = 30;
/// The most filler sentences of a document.
const FILLER: usize = 3;

/// The part of the definition file that describes the made-up world.
#[derive(Debug, Clone, Deserialize)]
pub struct WorldFile {
    /// Sentences, documents and questions.
    pub synthetic: World,
}

/// Sentences, documents and questions of the made-up world.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct World {
    /// Sentence forms by name.
    pub sentences: BTreeMap<String, String>,
    /// Names of the sentences of each kind of document.
    pub documents: BTreeMap<String, Vec<String>>,
    /// Question forms.
    pub questions: Vec<WorldQuestion>,
}

/// One question form.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldQuestion {
    /// The question.
    pub ask: String,
    /// The name of the fact that answers it.
    pub answer: String,
    /// The kind of document (city, company, person) whose name is in the question.
    pub of: String,
    /// For a question of two hops, the kind of document that holds the answer.
    pub via: Option<String>,
    /// Names of the sentences that the answer needs.
    pub uses: Vec<String>,
}

impl WorldQuestion {
    fn hops(&self) -> usize {
        1 + usize::from(self.via.is_some())
    }
}

struct SyntheticQa {
    prompt: NumberedDocuments,
    text: World,
    hops: usize,
}

/// The generator for questions of `hops` hops; `definition` has the sentences.
///
/// # Errors
/// If the definition is malformed.
pub fn make(prompt: NumberedDocuments, definition: &RulerDefinition, hops: usize) -> Result<Box<dyn Generator>> {
    let file: WorldFile = definition.own()?;
    Ok(Box::new(SyntheticQa { prompt, text: file.synthetic, hops }))
}

impl Generator for SyntheticQa {
    fn source(&self) -> String {
        "documents=synthetic".to_owned()
    }

    fn generate(&self, request: &Request) -> Result<Draft> {
        let mut attempts: Vec<Attempt> = Vec::new();
        let units = Units { least: 0, most: request.length, probe: 15 };
        fit::fill(request, units, |attempt, sentences| {
            if attempts.len() as u64 <= attempt {
                attempts.push(Attempt::new(self, request, attempt)?);
            }
            attempts[attempt as usize].draft(sentences)
        })
    }
}

/// The facts about one city, one company and one person, which three documents state.
struct Group {
    /// Values by placeholder: `city`, `country`, `fame`, `company`, … of this group's city, company and person.
    facts: BTreeMap<&'static str, String>,
    /// The index of the group whose city the person was born in; `works_at` is that of the group whose company employs the person.
    born_in: usize,
    works_at: usize,
}

/// Sentences of one document in order.
type Document = Vec<String>;

/// One attempt at an example; its world grows while the size is searched.
struct Attempt<'a> {
    qa: &'a SyntheticQa,
    request: &'a Request<'a>,
    number: u64,
    draw: Draw,
    taken: HashSet<String>,
    countries: Vec<String>,
    groups: Vec<Group>,
    /// The documents with the answer, always complete.
    own: Vec<Document>,
    /// All other documents, in the order in which they are added.
    others: Vec<Document>,
    question: String,
    answer: String,
}

impl<'a> Attempt<'a> {
    fn new(qa: &'a SyntheticQa, request: &'a Request<'a>, number: u64) -> Result<Self> {
        let mut draw = request.draw(number, part::WORLD);
        let countries = (0..COUNTRIES).map(|_| Grammar::house().country(&mut draw)).collect();
        let mut attempt = Self {
            qa,
            request,
            number,
            draw,
            taken: HashSet::new(),
            countries,
            groups: Vec::new(),
            own: Vec::new(),
            others: Vec::new(),
            question: String::new(),
            answer: String::new(),
        };
        attempt.ask()?;
        Ok(attempt)
    }

    /// Draws the question, and the group of documents that it is about.
    fn ask(&mut self) -> Result<()> {
        let qa = self.qa;
        let mut draw = self.request.draw(self.number, part::QUESTION);
        let questions: Vec<&WorldQuestion> = qa.text.questions.iter().filter(|q| q.hops() == qa.hops).collect();
        let question = *questions
            .get(draw.below(questions.len().max(1)))
            .ok_or_else(|| anyhow!("no question has {} hops", qa.hops))?;
        let group = self.new_group();
        self.question = substitute(&question.ask, &pairs(&group.facts));
        self.answer = group
            .facts
            .get(question.answer.as_str())
            .cloned()
            .ok_or_else(|| anyhow!("no fact `{}`", question.answer))?;
        for kind in qa.text.documents.keys() {
            let document = self.document(kind, &group.facts, &question.uses)?;
            let is_own = *kind == question.of || question.via.as_ref() == Some(kind);
            if is_own { self.own.push(document) } else { self.others.push(document) }
        }
        self.groups.push(group);
        Ok(())
    }

    /// A city, a company and a person with new names. The person comes from a city, and works at a company, of this or an earlier
    /// group.
    fn new_group(&mut self) -> Group {
        let grammar = Grammar::house();
        let number = self.groups.len();
        let city = self.unique(Grammar::place);
        let company = self.unique(Grammar::company);
        let person = self.unique(Grammar::person);
        let draw = &mut self.draw;
        let mut earlier = || {
            if number > 0 && draw.below(2) == 0 { draw.below(number) } else { number }
        };
        let (born_in, works_at) = (earlier(), earlier());
        let facts = BTreeMap::from([
            ("city", city),
            ("country", draw.pick(&self.countries).clone()),
            ("fame", grammar.noun(draw)),
            ("company", company),
            ("year", grammar.year(draw)),
            ("product", grammar.noun(draw)),
            ("director", grammar.person(draw)),
            ("person", person),
            ("job", grammar.job(draw)),
            ("sport", grammar.sport(draw)),
        ]);
        Group { facts, born_in, works_at }
    }

    fn unique(&mut self, make: fn(&Grammar, &mut Draw) -> String) -> String {
        // There are tens of thousands of names, so a repeated one is accepted only after many draws.
        const DRAWS: usize = 100;
        let mut name = make(Grammar::house(), &mut self.draw);
        for _ in 0..DRAWS {
            if self.taken.insert(name.clone()) {
                break;
            }
            name = make(Grammar::house(), &mut self.draw);
        }
        name
    }

    /// A document: the first sentence, those in `needed`, some of the others, and filler.
    fn document(&mut self, kind: &str, facts: &BTreeMap<&'static str, String>, needed: &[String]) -> Result<Document> {
        let qa = self.qa;
        let names = qa.text.documents.get(kind).ok_or_else(|| anyhow!("no document `{kind}`"))?;
        let mut document = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let sentence = qa.text.sentences.get(name).ok_or_else(|| anyhow!("no sentence `{name}`"))?;
            if i == 0 || needed.contains(name) || self.draw.below(3) > 0 {
                document.push(substitute(sentence, &pairs(facts)));
            }
        }
        for _ in 0..self.draw.below(FILLER + 1) {
            document.push(Grammar::house().sentence(&mut self.draw));
        }
        Ok(document)
    }

    /// Adds the three documents of another group.
    fn grow(&mut self) -> Result<()> {
        let group = self.new_group();
        let mut facts = group.facts.clone();
        let (born_in, works_at) = (group.born_in, group.works_at);
        self.groups.push(group);
        let kinds: Vec<&String> = self.qa.text.documents.keys().collect();
        for kind in kinds {
            if kind == "person" {
                facts.insert("city", self.groups[born_in].facts["city"].clone());
                facts.insert("company", self.groups[works_at].facts["company"].clone());
            }
            let document = self.document(kind, &facts, &[])?;
            self.others.push(document);
        }
        Ok(())
    }

    /// The example with `sentences` sentences besides those of the question's own documents.
    fn draft(&mut self, sentences: usize) -> Result<Draft> {
        while self.others.iter().map(Vec::len).sum::<usize>() < sentences {
            self.grow()?;
        }
        let mut documents: Vec<String> = self.own.iter().map(|d| d.join(" ")).collect();
        let mut left = sentences;
        for document in &self.others {
            let taken = left.min(document.len());
            if taken == 0 {
                break;
            }
            documents.push(document[..taken].join(" "));
            left -= taken;
        }
        let mut draw = self.request.draw(self.number, part::ORDER);
        let order = shuffled_order(documents.len(), self.request.positions, &mut draw);
        let ordered = order.iter().map(|&i| documents[i].as_str());
        Ok(self.qa.prompt.draft(ordered, &self.question, std::slice::from_ref(&self.answer)))
    }
}

fn pairs<'a>(facts: &'a BTreeMap<&'static str, String>) -> Vec<(&'a str, &'a str)> {
    facts.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Example;
    use crate::ruler::testing::example;

    fn documents(e: &Example) -> Vec<&str> {
        let (_, list) = e.context.split_once("The following are given documents.\n\n").unwrap();
        list.trim_end().split("\n\n").collect()
    }

    fn asked(e: &Example) -> &str {
        e.question.rsplit_once("Question: ").unwrap().1
    }

    #[test]
    fn one_hop_answers_stand_with_what_is_asked_about() {
        let mut shapes = HashSet::new();
        for index in 0..40 {
            let e = example("ruler/qa_synth", 1024, index);
            assert_eq!(e.references.len(), 1);
            let subject: Vec<&str> =
                asked(&e).split(' ').filter(|w| w.len() > 4 && w.starts_with(char::is_uppercase)).collect();
            let name = subject.last().unwrap().trim_end_matches('?');
            let with_both = documents(&e).iter().filter(|d| d.contains(name) && d.contains(&e.references[0])).count();
            assert!(with_both >= 1, "{} {:?}", asked(&e), e.references);
            shapes.insert(asked(&e).split(' ').take(2).collect::<Vec<_>>().join(" "));
        }
        assert!(shapes.len() >= 5, "{shapes:?}");
    }

    /// Reads the answer from the documents by the known sentence forms.
    fn solve_two_hops(e: &Example) -> String {
        let text = documents(e).join("\n");
        let after = |start: &str, end: &str| -> String {
            let from = text.find(start).unwrap_or_else(|| panic!("`{start}` is in the text")) + start.len();
            text[from..].split(end).next().unwrap().to_owned()
        };
        let question = asked(e);
        if let Some(person) = question.strip_prefix("In which country was ").and_then(|q| q.strip_suffix(" born?")) {
            let city = after(&format!("{person} was born in "), ".");
            return after(&format!("{city} is a city in "), ".");
        }
        let person = question.split("where ").nth(1).unwrap().split(" works").next().unwrap();
        let job = after(&format!("{person} works as a "), ".");
        let company = job.split(" at ").nth(1).unwrap();
        let of_company = after(&format!("{company} is a company that was founded in "), "\n");
        if question.starts_with("When") {
            return of_company.split('.').next().unwrap().to_owned();
        }
        of_company.split("Its director is ").nth(1).unwrap().split('.').next().unwrap().to_owned()
    }

    #[test]
    fn two_hop_answers_follow_from_two_documents() {
        for index in 0..40 {
            let e = example("ruler/qa_synth_hop2", 1024, index);
            assert_eq!(e.references, [solve_two_hops(&e)], "{}", asked(&e));
            let holders = documents(&e).iter().filter(|d| d.contains(&e.references[0])).count();
            assert!(holders >= 1);
        }
    }

    #[test]
    fn names_are_not_shared() {
        let e = example("ruler/qa_synth", 8192, 0);
        let born: Vec<&str> = e
            .context
            .split(". ")
            .chain(e.context.lines())
            .filter_map(|s| s.split(" was born in ").next().filter(|n| *n != s))
            .collect();
        let cities: Vec<&str> = e.context.lines().filter_map(|l| l.split_once(" is a city in ").map(|c| c.0)).collect();
        let distinct: HashSet<&&str> = cities.iter().collect();
        assert!(born.len() > 20 && cities.len() > 20);
        assert_eq!(distinct.len(), cities.len());
    }

    #[test]
    fn names_of_the_stand_ins_say_so() {
        let e = example("ruler/qa_synth", 1024, 0);
        assert_eq!((e.task.as_str(), e.source.as_str()), ("ruler/qa_synth", "documents=synthetic"));
    }
}
