//! Wording that all pages share, mainly for the model, length and number of examples that a verdict is about.

use std::collections::BTreeSet;

use super::files::ItemResults;
use spattn_base::text::in_markdown;
use spattn_eval::folder::owned_files::PAPERS_PAGE;
use spattn_lab::papers::PAPERS;
use spattn_lab::papers::claims::{CellName, ClaimVerdict, Test};
use spattn_lab::papers::counts::{Counted, CountedThing, counted, together};
use spattn_lab::papers::item::Item;
use spattn_lab::papers::outcome::{ItemOutcome, Judged, TIMES, Unjudged, model_title};
use spattn_lab::papers::real_models::RealModel;
use spattn_lab::papers::times::Timed;
use spattn_lab::papers::verdicts::deciding;

/// The first line of every page.
pub const MADE: &str = PAPERS_PAGE;

/// A paper's short title, or its name if the paper is unknown.
pub fn paper_title(paper: &str) -> &str {
    let title = PAPERS.iter().find(|known| known.name == paper).map(|known| known.title);
    title.map_or(paper, |title| title.split(" (").next().unwrap_or(title))
}

/// The sources of verdicts on claims. Each has a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictSource {
    /// The built-in model.
    Builtin,
    /// Pretrained models: small ones, or the paper's.
    Pretrained,
    /// Times measured on a GPU.
    Times,
}

impl VerdictSource {
    /// All sources, in the order of columns.
    pub const ALL: [Self; 3] = [Self::Builtin, Self::Pretrained, Self::Times];

    /// The heading of the source's column.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Builtin => "built-in 11M",
            Self::Pretrained => "pretrained",
            Self::Times => "GPU times",
        }
    }

    /// Whether an outcome belongs to this source.
    pub fn has(self, outcome: &ItemOutcome) -> bool {
        match outcome.variant.as_str() {
            "builtin" => self == Self::Builtin,
            TIMES => self == Self::Times,
            "" => false,
            _ => self == Self::Pretrained,
        }
    }
}

/// A number of tokens, in units of 1,024 if it is a multiple.
pub fn tokens(length: usize) -> String {
    if length >= 1024 && length.is_multiple_of(1024) { format!("{}K", length / 1024) } else { length.to_string() }
}

/// Lengths as a range, for example `1K–4K`.
fn range(lengths: &BTreeSet<usize>) -> Option<String> {
    let (first, last) = (lengths.first()?, lengths.last()?);
    Some(if first == last { tokens(*first) } else { format!("{}–{}", tokens(*first), tokens(*last)) })
}

/// The lengths that an outcome was run at.
pub fn lengths(outcome: &ItemOutcome) -> Option<String> {
    range(&outcome.lengths())
}

/// The contexts at which the times that a claim compares were taken.
fn contexts(results: &ItemResults, claim: usize) -> Option<String> {
    let mut found = BTreeSet::new();
    for comparison in results.item.claims.get(claim)?.test.iter().flat_map(Test::comparisons) {
        for (row, column) in [Some(comparison.left), comparison.right.map(|(_, cell)| cell)].into_iter().flatten() {
            let row = results.item.rows.iter().find(|line| line.name == row);
            let column = results.item.columns.iter().find(|line| line.name == column);
            let timed = Timed::over(column.and_then(|line| line.time.clone()), row.and_then(|line| line.time.clone()));
            found.extend(timed.and_then(|timed| timed.context));
        }
    }
    range(&found)
}

/// The model of an outcome and its size, for headings.
pub fn model(outcome: &ItemOutcome) -> String {
    match (outcome.variant.as_str(), RealModel::find(&outcome.model)) {
        ("builtin", _) => "the built-in model (11M parameters)".to_owned(),
        (TIMES, _) => "a GPU".to_owned(),
        (_, Ok(model)) => model.description(),
        (_, Err(_)) if outcome.model.is_empty() => "the paper's models".to_owned(),
        _ => model_title(&outcome.model),
    }
}

/// A verdict and what it is about, for example `holds (1K–2K, n = 8)`.
pub fn verdict(results: &ItemResults, outcome: &ItemOutcome, claim: usize) -> String {
    let Some(judged) = outcome.claims.get(claim) else { return String::new() };
    let mut of = Vec::new();
    if VerdictSource::Pretrained.has(outcome) {
        of.push(if outcome.model.is_empty() { "the paper's models".to_owned() } else { model_title(&outcome.model) });
    }
    let test = results.item.claims.get(claim).and_then(|claim| claim.test.as_ref());
    let cells = test.map_or(Vec::new(), |test| deciding(&results.item, test, outcome));
    of.extend(if outcome.variant == TIMES {
        contexts(results, claim)
    } else {
        lengths_of(&results.item, outcome, &cells)
    });
    of.extend(counted_of(&results.item, outcome, &cells).filter(|_| judged.n.is_some()));
    let word = word(judged);
    match judged.measured {
        ClaimVerdict::NotTested if judged.unjudged.is_none() => word.to_owned(),
        _ if of.is_empty() => word.to_owned(),
        _ => format!("{word} ({})", of.join(", ")),
    }
}

/// The lengths of compared cells: those that the cells select, otherwise all lengths of the run.
fn lengths_of(item: &Item, outcome: &ItemOutcome, compared: &[Vec<CellName<'_>>]) -> Option<String> {
    let variant = outcome.run().variant;
    let own: Option<BTreeSet<usize>> = compared.iter().flatten().map(|cell| item.length_of(*cell, variant)).collect();
    let known = outcome.lengths();
    match own.filter(|own| !own.is_empty() && own.is_subset(&known)) {
        Some(own) => range(&own),
        None => range(&known),
    }
}

/// What compared cells were measured on: tasks and numbers of examples; `None` if their result does not say.
pub fn counted_of(item: &Item, outcome: &ItemOutcome, compared: &[Vec<CellName<'_>>]) -> Option<String> {
    let all = compared.iter().filter_map(|cells| counted(item, outcome, cells));
    let words: Vec<String> = together(all).iter().map(counted_words).collect();
    (!words.is_empty()).then(|| in_markdown(&words.join("; ")).into_owned())
}

/// A number of examples, prompts, rows or others in words, for example `n = 160 to 300 of each of 3 tasks`.
pub fn counted_words(Counted { least, most, of }: &Counted) -> String {
    let n = match most {
        Some(most) if most == least => least.to_string(),
        Some(most) => format!("{least} to {most}"),
        None => format!("{least} or more"),
    };
    let prompts = if *most == Some(1) { "prompt" } else { "prompts" };
    match of {
        CountedThing::Examples(tasks) => format!("n = {n}{}", of_tasks(tasks)),
        CountedThing::Prompts(tasks, 1) => format!("{n} {prompts}{}", of_tasks(tasks)),
        CountedThing::Prompts(tasks, size) => format!("{n} {prompts}{}, {size} at a time", of_tasks(tasks)),
        CountedThing::Layers => format!("{n} layers"),
        CountedThing::Rounds => format!("{n} rounds"),
        CountedThing::Rows => format!("{n} rows"),
        CountedThing::Named(name) => format!("{n} {name}"),
    }
}

/// The tasks that a number is about. A single task is named.
fn of_tasks(tasks: &BTreeSet<String>) -> String {
    match (tasks.len(), tasks.first()) {
        (_, None) => String::new(),
        (1, Some(name)) => format!(" of {name}"),
        (several, _) => format!(" of each of {several} tasks"),
    }
}

/// A verdict in words.
pub fn word(judged: &Judged) -> &'static str {
    match judged.unjudged {
        Some(Unjudged::DenseAtFloor) => "not judged: dense at the floor",
        Some(Unjudged::BothAtCeiling) => "not judged: both have all points",
        None => judged.measured.text(),
    }
}

/// Whether a source can have a verdict on a claim: claims about times are judged by measured times, all others by runs.
pub fn can_judge(results: &ItemResults, source: VerdictSource, claim: usize) -> bool {
    let Some(test) = results.item.claims.get(claim).and_then(|claim| claim.test.as_ref()) else {
        return source != VerdictSource::Times;
    };
    let is_time = |name: &str| results.item.columns.iter().any(|line| line.name == name && results.item.is_time(line));
    test.comparisons().iter().any(|comparison| is_time(comparison.left.1) == (source == VerdictSource::Times))
}

/// The verdicts on a claim from a source, one for each outcome; a dash if there can be none.
pub fn verdicts(results: &ItemResults, source: VerdictSource, claim: usize) -> String {
    if !can_judge(results, source, claim) {
        return "–".to_owned();
    }
    let of = results.outcomes.iter().filter(|outcome| source.has(outcome));
    let all: Vec<String> = of.map(|outcome| verdict(results, outcome, claim)).collect();
    // A run that did not test the claim does not hide the verdict of one that did.
    let told: Vec<String> = all.iter().filter(|text| *text != ClaimVerdict::NotTested.text()).cloned().collect();
    match told.is_empty() {
        true if all.is_empty() => "–".to_owned(),
        true => ClaimVerdict::NotTested.text().to_owned(),
        false => told.join("<br>"),
    }
}

/// Whether the paper's own numbers support a claim, in words.
pub fn published(judged: &Judged) -> &'static str {
    match judged.published {
        ClaimVerdict::Holds => "support it",
        ClaimVerdict::HoldsInPart => "support it in part",
        ClaimVerdict::DoesNotHold => "do not support it",
        _ => "no numbers to test",
    }
}
