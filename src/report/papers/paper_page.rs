//! The page of a paper, and the front page of all papers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::equal::equal_costs;
use super::files::ItemResults;
use super::item_page::{verdict_cells, verdict_heading};
use super::words::{MADE, VerdictSource, can_judge, model, paper_title};
use crate::report::format::distinct;
use crate::report::plots::Figure;
use spattn_base::text::in_markdown;
use spattn_lab::papers::claims::ClaimVerdict;
use spattn_lab::papers::experiment::{Cause, Tried};
use spattn_lab::papers::findings::{PaperFinding, PaperFindings};
use spattn_lab::papers::floor::LEAST_SCORE;
use spattn_lab::papers::outcome::{ItemOutcome, Judged, model_title};
use spattn_lab::papers::{ACROSS, ITEMS, PAPERS, Paper, order_of, title_of};

/// The verdicts, in the order of the counts.
const VERDICTS: [ClaimVerdict; 6] = [
    ClaimVerdict::Holds,
    ClaimVerdict::HoldsInPart,
    ClaimVerdict::DoesNotHold,
    ClaimVerdict::CannotBeTold,
    ClaimVerdict::ByConstruction,
    ClaimVerdict::NotTested,
];

/// An item's results with the figures of each outcome.
pub type Drawn = (ItemResults, Vec<Vec<Figure>>);

/// The items of a paper in the order of their numbers.
fn of_paper<'a>(all: &'a [Drawn], paper: &str) -> Vec<&'a Drawn> {
    let is_own = |name: &str| name.split_once('/').is_some_and(|(own, _)| own == paper);
    let mut own: Vec<&Drawn> = all.iter().filter(|(results, _)| is_own(&results.name)).collect();
    own.sort_by_key(|(results, _)| order_of(results.item_name()));
    own
}

/// The page of a paper: its question, the figure that answers it, its claims with verdicts, and its items. `None` without items.
pub fn paper_page(paper: &Paper, findings: &PaperFindings, all: &[Drawn]) -> Option<String> {
    let own = of_paper(all, paper.name);
    if own.is_empty() {
        return None;
    }
    let mut text = format!("{MADE}\n# {}\n\n[All papers](README.md)\n", paper.title);
    let said = findings.of(paper.name);
    if let Some(PaperFinding { question, answer, .. }) = said {
        let _ = write!(text, "\n**The question.** {}\n", in_markdown(question));
        answer
            .iter()
            .filter(|_| is_whole(paper.name, &own))
            .for_each(|answer| text += &format!("\n**The answer.** {}\n", in_markdown(answer)));
    }
    text += &figure(paper, said, &own);
    text += &counts("what claims are judged on", &measured_counts(&own));
    let _ = write!(text, "\n## Claims\n\n{}", verdict_heading("item | claim"));
    for (results, _) in &own {
        for (at, claim) in results.item.claims.iter().enumerate() {
            let name = results.item_name();
            let link = format!("[{}]({}/README.md)", title_of(name), results.name);
            let _ = writeln!(text, "| {link} | {} | {} |", in_markdown(&claim.says), verdict_cells(results, at));
        }
    }
    text += &reasons(&own);
    text += "\n## Tables and figures\n\n";
    for (results, _) in &own {
        let name = title_of(results.item_name());
        let _ = writeln!(text, "- [{name}]({}/README.md): {}", results.name, in_markdown(&results.item.title));
    }
    Some(text)
}

/// A table of the claims that do not hold on pretrained models: what was tried, and what that points to. Empty if there are none.
fn reasons(own: &[&Drawn]) -> String {
    let mut text = String::new();
    for (results, _) in own {
        for (at, judged, outcome) in not_held(results) {
            let link = format!("[{}]({}/README.md)", title_of(results.item_name()), results.name);
            let tried: Vec<String> =
                judged.tried.iter().map(|one| format!("{} {}", in_markdown(&one.asks), one.word())).collect();
            let says = &results.item.claims[at].says;
            let due_to = causes(judged).iter().map(|cause| cause.text()).collect::<Vec<_>>().join(", ");
            let tried = if tried.is_empty() { "nothing yet".to_owned() } else { tried.join("<br>") };
            let due_to = if due_to.is_empty() { "open" } else { &due_to };
            let on = in_markdown(&model_title(&outcome.model)).into_owned();
            let _ = writeln!(text, "| {link} | {} | {on} | {tried} | {due_to} |", in_markdown(says));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "\n## What does not hold on pretrained models, and why\n\nWhat came out is on the page of each item.\n\n\
             | item | claim | model | tried | points to |\n|---|---|---|---|---|\n{text}"
        ),
    }
}

/// The claims that do not hold on a pretrained model: each with its index, its judgement and the outcome.
fn not_held(results: &ItemResults) -> Vec<(usize, &Judged, &ItemOutcome)> {
    let of = results.outcomes.iter().filter(|outcome| VerdictSource::Pretrained.has(outcome));
    let number = |outcome: &'_ ItemOutcome| outcome.claims.len().min(results.item.claims.len());
    of.flat_map(|outcome| (0..number(outcome)).map(move |at| (at, &outcome.claims[at], outcome)))
        .filter(|(_, judged, _)| judged.measured == ClaimVerdict::DoesNotHold)
        .collect()
}

/// The causes of a result that experiments on it found.
fn causes(judged: &Judged) -> BTreeSet<Cause> {
    judged.tried.iter().filter_map(Tried::due_to).collect()
}

/// A sentence with the causes of claims that do not hold on pretrained models, and how often each is one; empty if there are none.
fn due_to(all: &[&Drawn]) -> String {
    let found: Vec<BTreeSet<Cause>> =
        all.iter().flat_map(|(results, _)| not_held(results)).map(|(_, judged, _)| causes(judged)).collect();
    if found.is_empty() {
        return String::new();
    }
    let count = |cause: Cause| found.iter().filter(|causes| causes.contains(&cause)).count();
    let mut parts: Vec<String> = Cause::ALL
        .map(|cause| (cause, count(cause)))
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(cause, n)| format!("{} {n}", cause.text()))
        .collect();
    let open = found.iter().filter(|causes| causes.is_empty()).count();
    parts.extend((open > 0).then(|| format!("open {open}")));
    format!(
        "\nOf {} verdicts *does not hold* on pretrained models, experiments on the same prompts point to a cause (or to two): {}. \
         The page of each paper lists them.\n",
        found.len(),
        parts.join(", ")
    )
}

/// The comparisons of all methods on one model, which go above the papers' claims; only those of pretrained models if there are any.
fn across(all: &[Drawn]) -> String {
    let mut text = String::new();
    for (results, _) in of_paper(all, ACROSS) {
        let has_real = results.outcomes.iter().any(|outcome| VerdictSource::Pretrained.has(outcome));
        let shown = |outcome: &&ItemOutcome| VerdictSource::Pretrained.has(outcome) || !has_real;
        for outcome in results.outcomes.iter().filter(shown) {
            let tables = equal_costs(results, outcome);
            if !tables.is_empty() {
                let _ = write!(
                    text,
                    "\n## [{}]({}/README.md)\n\nOn {}; all budgets, and what was run, are on the page of the table.\n{tables}",
                    in_markdown(&results.item.title),
                    results.name,
                    in_markdown(&model(outcome))
                );
            }
        }
    }
    text
}

/// The figure that answers a paper's question: from a pretrained model if possible, otherwise from the built-in model.
fn figure(paper: &Paper, said: Option<&PaperFinding>, own: &[&Drawn]) -> String {
    let Some(name) = said.and_then(|said| said.figure.as_ref()) else { return String::new() };
    let full = format!("{}/{name}", paper.name);
    let Some((results, figures)) = own.iter().find(|(results, _)| results.name == full) else { return String::new() };
    let drawn = results.outcomes.iter().zip(figures).filter(|(_, figures)| !figures.is_empty());
    let best =
        drawn.max_by_key(|(outcome, _)| (VerdictSource::Pretrained.has(outcome), VerdictSource::Builtin.has(outcome)));
    best.and_then(|(_, figures)| figures.first()).map_or(String::new(), |figure| {
        format!("\n[![{}]({full}/{})]({full}/README.md)\n", in_markdown(&figure.title), figure.file)
    })
}

/// A column of counted claims: a source of verdicts, or one of the pretrained models.
struct JudgedOn {
    source: VerdictSource,
    /// The pretrained model, by its name in results.
    model: Option<String>,
}

impl JudgedOn {
    /// The columns for some items, in order. Each source has at least one column, even without results.
    fn all(own: &[&Drawn]) -> Vec<Self> {
        let of = |source: VerdictSource| {
            let outcomes = own.iter().flat_map(|(results, _)| &results.outcomes);
            let outcomes = outcomes.filter(|outcome| source.has(outcome) && source == VerdictSource::Pretrained);
            let models = distinct(outcomes.map(|outcome| outcome.model.clone()));
            match models.is_empty() {
                true => vec![Self { source, model: None }],
                false => models.into_iter().map(|model| Self { source, model: Some(model) }).collect(),
            }
        };
        VerdictSource::ALL.into_iter().flat_map(of).collect()
    }

    fn heading(&self) -> String {
        match self.model.as_deref() {
            None => self.source.heading().to_owned(),
            Some("") => "the papers' models".to_owned(),
            Some(model) => format!("{}, {}", self.source.heading(), model_title(model)),
        }
    }

    fn has(&self, outcome: &ItemOutcome) -> bool {
        self.source.has(outcome) && self.model.as_ref().is_none_or(|model| outcome.model == *model)
    }

    /// The number of claims that can be judged here, by verdict. Of several runs, the verdict that comes first in `VERDICTS` counts.
    fn count(&self, own: &[&Drawn]) -> [usize; 6] {
        let mut counts = [0; 6];
        for (results, _) in own {
            for at in (0..results.item.claims.len()).filter(|at| can_judge(results, self.source, *at)) {
                let verdict = |outcome: &ItemOutcome| outcome.claims.get(at).map(|claim| claim.measured);
                let all = results.outcomes.iter().filter(|outcome| self.has(outcome)).filter_map(verdict);
                let place = |verdict: ClaimVerdict| VERDICTS.iter().position(|known| *known == verdict).unwrap_or(5);
                counts[all.map(place).min().unwrap_or(5)] += 1;
            }
        }
        counts
    }
}

/// The number of claims by verdict, for each column.
fn measured_counts(own: &[&Drawn]) -> Vec<(String, [usize; 6])> {
    JudgedOn::all(own).iter().map(|judged_on| (judged_on.heading(), judged_on.count(own))).collect()
}

fn counts(first: &str, lines: &[(String, [usize; 6])]) -> String {
    let mut text = format!("\n| {first} | {} |\n|{}\n", VERDICTS.map(ClaimVerdict::text).join(" | "), "---|".repeat(7));
    for (name, counts) in lines {
        let _ = writeln!(text, "| {name} | {} |", counts.map(|count| count.to_string()).join(" | "));
    }
    text
}

/// Whether all of a paper's items are here, with results on the built-in model and on a pretrained one. Only then does its page state the
/// conclusions drawn from them.
fn is_whole(paper: &str, own: &[&Drawn]) -> bool {
    let has = |source: VerdictSource| {
        own.iter()
            .any(|(results, _)| results.outcomes.iter().any(|outcome| source.has(outcome) && outcome.is_measured()))
    };
    let items = ITEMS.iter().filter(|shipped| shipped.paper() == paper).count();
    own.len() >= items && has(VerdictSource::Builtin) && has(VerdictSource::Pretrained)
}

/// The conclusions from all results if these are all here, otherwise a list of what is here: the list's title, and the list.
fn known(findings: &PaperFindings, all: &[Drawn]) -> (&'static str, String) {
    if PAPERS.iter().all(|paper| is_whole(paper.name, &of_paper(all, paper.name))) {
        let lines = findings.findings.iter().enumerate();
        let lines = lines.map(|(at, finding)| format!("{}. {}\n", at + 1, in_markdown(finding))).collect::<String>();
        return ("What is known now, over all papers", lines);
    }
    let mut lines = String::new();
    for (results, _) in PAPERS.iter().flat_map(|paper| of_paper(all, paper.name)) {
        let runs: Vec<String> = results.outcomes.iter().filter(|one| one.is_measured()).map(model).collect();
        let on = if runs.is_empty() { "nothing yet".to_owned() } else { runs.join(", ") };
        let name = format!(
            "{}, {}",
            paper_title(results.name.split('/').next().unwrap_or_default()),
            title_of(results.item_name())
        );
        let _ = writeln!(
            lines,
            "- [{name}]({}/README.md): {}; measured on {}",
            results.name,
            in_markdown(&results.item.title),
            in_markdown(&on)
        );
    }
    ("What was run here, a part of all papers' tables and figures", lines)
}

/// The number of claims that some items make.
fn claims(items: &[&Drawn]) -> usize {
    items.iter().map(|(results, _)| results.item.claims.len()).sum()
}

/// Introduces the pages, and states how many claims held on which kind of model or machine.
fn introduction(every: &[&Drawn]) -> String {
    let mut text = format!(
        "Papers on sparse attention say that a language model with a long context can read a few percent of its KV cache without losing accuracy. {} \
         {} claims, each quoted, and tested where it can be:\n\n",
        match every.len() {
            1 => "The item here, a table or figure or half of one, has".to_owned(),
            items => format!("The {items} items here, each a table or figure or half of one, have"),
        },
        claims(every)
    );
    for judged_on in JudgedOn::all(every) {
        let [holds, in_part, does_not, open, ..] = judged_on.count(every);
        let judged = holds + in_part + does_not + open;
        if judged > 0 {
            let with = if judged_on.source == VerdictSource::Times { "" } else { " with so few examples" };
            let _ = writeln!(
                text,
                "- {}: of {judged} claims {holds} hold, {in_part} hold in part, {does_not} do not hold, and {open} cannot be told{with}.",
                judged_on.heading()
            );
        }
    }
    text
}

/// The page of all papers.
pub fn front_page(findings: &PaperFindings, all: &[Drawn]) -> String {
    let (title, lines) = known(findings, all);
    let shown: Vec<(&Paper, Vec<&Drawn>)> =
        PAPERS.iter().map(|paper| (paper, of_paper(all, paper.name))).filter(|(_, own)| !own.is_empty()).collect();
    let every: Vec<&Drawn> = shown.iter().flat_map(|(_, own)| own.iter().copied()).collect();
    let mut text = format!("{MADE}\n# The papers, reproduced\n\n{}\n{title}:\n\n{lines}", introduction(&every));
    text += "\n| paper | its question |\n|---|---|\n";
    for (paper, _) in &shown {
        let question = findings.of(paper.name).map_or(String::new(), |said| in_markdown(&said.question).into_owned());
        let _ = writeln!(text, "| [{}]({}.md) | {question} |", paper.title, paper.name);
    }
    text += &across(all);
    let _ = write!(text, "\n## {} claims of {} tables and figures\n", claims(&every), every.len());
    let all_judged_on = JudgedOn::all(&every);
    let own_numbers = ("the paper's own numbers".to_owned(), published(&every));
    let lines: Vec<(String, [usize; 6])> = std::iter::once(own_numbers).chain(measured_counts(&every)).collect();
    text += &counts("judged on", &lines);
    text += &due_to(&every);
    for judged_on in &all_judged_on {
        let lines: Vec<(String, [usize; 6])> =
            shown.iter().map(|(paper, own)| (paper.name.to_owned(), judged_on.count(own))).collect();
        text += &counts(&judged_on.heading(), &lines);
    }
    text + &how_to_read(&every)
}

/// The number of claims by the verdict that the paper's own numbers give.
fn published(own: &[&Drawn]) -> [usize; 6] {
    let mut counts = [0; 6];
    let first = |results: &ItemResults| results.outcomes.first().map(|outcome| outcome.claims.clone());
    for claim in own.iter().filter_map(|(results, _)| first(results)).flatten() {
        counts[VERDICTS.iter().position(|known| *known == claim.published).unwrap_or(5)] += 1;
    }
    counts
}

/// What the verdicts in a folder are from: each model that has results there, with its size.
fn measured_here(all: &[&Drawn]) -> String {
    let measured = || all.iter().flat_map(|(results, _)| &results.outcomes).filter(|outcome| outcome.is_measured());
    let has = |source: VerdictSource| measured().any(|outcome| source.has(outcome));
    let models = distinct(measured().filter(|outcome| VerdictSource::Pretrained.has(outcome)).map(model));
    let mut parts = Vec::new();
    if has(VerdictSource::Builtin) {
        parts.push("on the built-in model (11M parameters, trained on RULER's templates)".to_owned());
    }
    match models.as_slice() {
        [] => {}
        [one] => parts.push(format!("on a pretrained model ({one})")),
        several => parts.push(format!("on pretrained models ({})", joined(several))),
    }
    if has(VerdictSource::Times) {
        parts.push("as times on a GPU".to_owned());
    }
    match parts.len() {
        0 => "Nothing was measured here yet.".to_owned(),
        _ => format!("The other verdicts are of what was measured here: {}.", joined(&parts)),
    }
}

/// Joins words to a list: `a`, `a and b`, `a, b, and c`.
fn joined(words: &[String]) -> String {
    match words {
        [before @ .., last] if before.len() > 1 => format!("{}, and {last}", before.join(", ")),
        _ => words.join(" and "),
    }
}

fn how_to_read(all: &[&Drawn]) -> String {
    format!(
        "\n## How to read it\n\n\
         A claim is what a paper says. *The paper's numbers* is its test on the numbers that the paper prints. {} \
         A verdict is about the shape of a claim on the model that was run, never about whether two models have the same number.\n\n\
         A comparison is told where its 95 % interval, paired by example, lies on one side of the bound; each interval holds by itself. Intervals in \
         figures and tables are of one number each: two that overlap may well differ on the same examples. A comparison is of the \
         examples that both sides have: where one row has more of them, it is not the difference of the table's cells. A number that should lie between \
         two bounds is one comparison, though both bounds are listed. Of a rise or fall over several rows the ends are compared; single steps are tested, \
         too, and listed where they are contradicted or not measured. A claim *holds* if all comparisons are told in its favour, *holds in part* if some \
         are, *does not hold* if none is and one is told against it, and *cannot be told* if none is told. A dash: the claim is not about such a run, or \
         the item was not run there. *Not tested*: the run lacks a cell, or the claim a test. *No numbers to test*: the paper's text lacks a number that \
         the test needs. *By construction* is what follows from a method's \
         definition. A score is not judged where dense attention is at the floor: below {LEAST_SCORE} %, or where its interval reaches what guessing scores. Nor is \
         which of two methods is higher, where both have all points.\n\n\
         `spattn reproduce --draw-only` makes these pages from the stored results, and docs/papers.md says how to run them.\n",
        measured_here(all)
    )
}
