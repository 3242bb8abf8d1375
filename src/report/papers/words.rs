//! Words that all pages share: above all how they say which model, length and number of examples a verdict is of.

use std::collections::BTreeSet;

use super::files::ItemResults;
use spattn_eval::folder::owned_files::PAPERS_PAGE;
use spattn_lab::papers::PAPERS;
use spattn_lab::papers::claims::{CellName, ClaimVerdict, Test};
use spattn_lab::papers::item::Line;
use spattn_lab::papers::outcome::{ItemOutcome, Judged, TIMES, Unjudged, model_title};
use spattn_lab::papers::real_models::RealModel;
use spattn_lab::papers::times::Timed;

/// The first line of every page.
pub const MADE: &str = PAPERS_PAGE;

/// A paper's short title; its name if it is unknown.
pub fn paper_title(paper: &str) -> &str {
    let title = PAPERS.iter().find(|known| known.name == paper).map(|known| known.title);
    title.map_or(paper, |title| title.split(" (").next().unwrap_or(title))
}

/// What claims are judged on, a column of verdicts each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictSource {
    /// The built-in model.
    Builtin,
    /// Pretrained models: small ones, or the paper's.
    Pretrained,
    /// Times that were taken on a GPU.
    Times,
}

impl VerdictSource {
    /// All of them, in the order of columns.
    pub const ALL: [Self; 3] = [Self::Builtin, Self::Pretrained, Self::Times];

    /// The heading of its column.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Builtin => "built-in 11M",
            Self::Pretrained => "pretrained",
            Self::Times => "GPU times",
        }
    }

    /// Whether an outcome belongs to it.
    pub fn has(self, outcome: &ItemOutcome) -> bool {
        match outcome.variant.as_str() {
            "builtin" => self == Self::Builtin,
            TIMES => self == Self::Times,
            "" => false,
            _ => self == Self::Pretrained,
        }
    }
}

/// A number of tokens, in units of 1,024 where it is a multiple.
pub fn tokens(length: usize) -> String {
    if length >= 1024 && length.is_multiple_of(1024) { format!("{}K", length / 1024) } else { length.to_string() }
}

/// Lengths as a range.
fn range(lengths: &BTreeSet<usize>) -> Option<String> {
    let (first, last) = (lengths.first()?, lengths.last()?);
    Some(if first == last { tokens(*first) } else { format!("{}–{}", tokens(*first), tokens(*last)) })
}

/// The lengths that an outcome is of.
pub fn lengths(outcome: &ItemOutcome) -> Option<String> {
    let (_, text) = outcome.ran.iter().find(|(what, _)| what == "lengths")?;
    range(&text.split(',').filter_map(|length| length.trim().parse().ok()).collect())
}

/// The contexts of the times that a claim compares.
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

/// The model of an outcome with its size, for headings.
pub fn model(outcome: &ItemOutcome) -> String {
    match (outcome.variant.as_str(), RealModel::find(&outcome.model)) {
        ("builtin", _) => "the built-in model (11M parameters)".to_owned(),
        (TIMES, _) => "a GPU".to_owned(),
        (_, Ok(model)) => model.description(),
        (_, Err(_)) if outcome.model.is_empty() => "the paper's models".to_owned(),
        _ => model_title(&outcome.model),
    }
}

/// A verdict with what it is of: `holds (1K–2K, n = 8)`.
pub fn verdict(results: &ItemResults, outcome: &ItemOutcome, claim: usize) -> String {
    let Some(judged) = outcome.claims.get(claim) else { return String::new() };
    let mut of = Vec::new();
    if VerdictSource::Pretrained.has(outcome) {
        of.push(if outcome.model.is_empty() { "the paper's models".to_owned() } else { model_title(&outcome.model) });
    }
    of.extend(if outcome.variant == TIMES { contexts(results, claim) } else { lengths(outcome) });
    of.extend(judged.n.map(|n| counted(results, outcome, claim, n)));
    let word = word(judged);
    match judged.measured {
        ClaimVerdict::NotTested if judged.unjudged.is_none() => word.to_owned(),
        _ if of.is_empty() => word.to_owned(),
        _ => format!("{word} ({})", of.join(", ")),
    }
}

/// What a claim's `n` is of: it is the least number of a task and length, so that with several tasks more was read than it says.
fn counted(results: &ItemResults, outcome: &ItemOutcome, claim: usize, n: usize) -> String {
    let comparisons = results.item.claims.get(claim).and_then(|claim| claim.test.as_ref()).map(Test::comparisons);
    let cells: Vec<CellName<'_>> = comparisons.iter().flatten().map(|comparison| comparison.left).collect();
    counted_of(results, outcome, &cells, n)
}

/// As [`counted`], of some cells: prompts of analyses, rows that correlate, or examples.
pub fn counted_of(results: &ItemResults, outcome: &ItemOutcome, cells: &[CellName<'_>], n: usize) -> String {
    let lines = |name: &str, of: &[Line]| of.iter().find(|line| line.name == name).cloned();
    let own = cells.iter().flat_map(|(row, column)| {
        [lines(row, &results.item.rows), lines(column, &results.item.columns)].into_iter().flatten()
    });
    let own: Vec<Line> = own.collect();
    if outcome.variant == TIMES {
        return format!("{n} rounds");
    }
    if own.iter().any(|line| line.correlation.is_some()) {
        return format!("{n} rows");
    }
    let variant = outcome.run().variant;
    let is_found = own.iter().any(|line| line.select(variant).found.is_some());
    let prompts = if n == 1 { "prompt" } else { "prompts" };
    match (listed(outcome, "prompts of"), listed(outcome, "tasks")) {
        (tasks, _) if is_found && tasks > 1 => format!("{n} {prompts} of each of {tasks} tasks"),
        (1, _) if is_found => format!("{n} {prompts}"),
        (_, tasks) if !is_found && tasks > 1 => format!("n = {n} of each task"),
        _ => format!("n = {n}"),
    }
}

/// How many names a fact of an outcome lists.
fn listed(outcome: &ItemOutcome, fact: &str) -> usize {
    let list = outcome.ran.iter().find(|(what, _)| what == fact);
    list.map_or(0, |(_, names)| names.split(',').filter(|name| !name.trim().is_empty()).count())
}

/// A verdict in words.
pub fn word(judged: &Judged) -> &'static str {
    match judged.unjudged {
        Some(Unjudged::DenseAtFloor) => "not judged: dense at the floor",
        Some(Unjudged::BothAtCeiling) => "not judged: both have all points",
        None => judged.measured.text(),
    }
}

/// Whether a source can have a verdict on a claim: times are judged apart from what is run.
pub fn can_judge(results: &ItemResults, source: VerdictSource, claim: usize) -> bool {
    let Some(test) = results.item.claims.get(claim).and_then(|claim| claim.test.as_ref()) else {
        return source != VerdictSource::Times;
    };
    let is_time = |name: &str| results.item.columns.iter().any(|line| line.name == name && results.item.is_time(line));
    test.comparisons().iter().any(|comparison| is_time(comparison.left.1) == (source == VerdictSource::Times))
}

/// What a claim's verdicts are under a source, one for each outcome; a dash where it has none to give.
pub fn verdicts(results: &ItemResults, source: VerdictSource, claim: usize) -> String {
    if !can_judge(results, source, claim) {
        return "–".to_owned();
    }
    let of = results.outcomes.iter().filter(|outcome| source.has(outcome));
    let all: Vec<String> = of.map(|outcome| verdict(results, outcome, claim)).collect();
    // What one run tells is not hidden by what another did not test.
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
