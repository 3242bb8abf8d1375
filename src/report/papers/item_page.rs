//! An item's page: its claims with the verdicts of all runs, its numbers, figures and settings.

use std::fmt::Write as _;

use super::equal::equal_costs;
use super::files::ItemResults;
use super::table::table;
use super::words::{MADE, VerdictSource, counted_of, model, paper_title, published, verdict, verdicts};
use crate::report::plots::Figure;
use spattn_base::text::in_markdown;
use spattn_lab::papers::claim::Claim;
use spattn_lab::papers::claims::ClaimVerdict;
use spattn_lab::papers::experiment::Tried;
use spattn_lab::papers::item::Variant;
use spattn_lab::papers::outcome::{ItemOutcome, Judged, TIMES};
use spattn_lab::papers::setting_lines::{
    Difference, METHODS, SAMPLES_OF, SettingLine, setting_lines, setting_lines_of_times,
};
use spattn_lab::papers::verdicts::deciding;
use spattn_lab::papers::{ACROSS, title_of};

/// The page of an item, with the figures of each of its outcomes.
pub fn item_page(results: &ItemResults, figures: &[Vec<Figure>]) -> String {
    let (paper, name) = results.name.split_once('/').unwrap_or(("", &results.name));
    let title = match (paper, paper_title(paper)) {
        (ACROSS, _) => results.item.title.clone(),
        (paper, known) if known == paper => format!("{}: {}", results.name, results.item.title),
        (_, known) => format!("{known}, {}: {}", title_of(name), results.item.title),
    };
    let mut text = format!("{MADE}\n# {}\n\n", in_markdown(&title));
    if paper == ACROSS {
        let _ = writeln!(text, "[All papers](../../README.md)\n");
    } else if paper_title(paper) != paper {
        let _ = writeln!(text, "[All of this paper](../../{paper}.md)\n");
    }
    let item = &results.item;
    let stated = [("note", &item.note), ("slip of the paper", &item.slip), ("cannot be run here", &item.missing)];
    for (what, value) in stated {
        value.iter().for_each(|value| text += &line(what, value));
    }
    item.nearest.iter().for_each(|nearest| text += &line("nearest", &format!("`{nearest}`")));
    text += &claims(results);
    for (outcome, figures) in results.outcomes.iter().zip(figures) {
        text += &numbers(results, outcome, figures);
    }
    text += &settings(results);
    text.replace("\n\n\n", "\n\n")
}

fn line(what: &str, value: &str) -> String {
    format!("- {}: {}\n", in_markdown(what), in_markdown(value))
}

/// The heading of the table of verdicts.
pub fn verdict_heading(first: &str) -> String {
    let sources = VerdictSource::ALL.map(VerdictSource::heading).join(" | ");
    format!(
        "| {first} | the paper's numbers | {sources} |\n|{}\n",
        "---|".repeat(2 + VerdictSource::ALL.len() + first.matches('|').count())
    )
}

/// The cells of a claim's line in a table of verdicts, after the first cell.
pub fn verdict_cells(results: &ItemResults, at: usize) -> String {
    let own = results.outcomes.first().and_then(|outcome| outcome.claims.get(at)).map_or("–", published);
    let of = |source: VerdictSource| verdicts(results, source, at);
    format!("{own} | {}", VerdictSource::ALL.map(of).join(" | "))
}

fn claims(results: &ItemResults) -> String {
    let item = &results.item;
    if item.claims.is_empty() {
        return String::new();
    }
    let mut text = format!("\n## Claims\n\n{}", verdict_heading("claim"));
    for (at, claim) in item.claims.iter().enumerate() {
        let _ = writeln!(text, "| {}. {} | {} |", at + 1, in_markdown(&claim.says), verdict_cells(results, at));
    }
    for (at, claim) in item.claims.iter().enumerate() {
        text += &claim_text(results, at, claim);
    }
    text
}

/// What a claim says, and how it was judged.
fn claim_text(results: &ItemResults, at: usize, claim: &Claim) -> String {
    let Claim { says, quote, place, missing, by_construction, slip, .. } = claim;
    let mut text = format!("\n### {}. {}\n\n", at + 1, in_markdown(says));
    let place = place.as_ref().map_or(String::new(), |place| format!(" ({})", in_markdown(place)));
    match quote {
        Some(quote) => text += &format!("> “{}”{place}\n\n", in_markdown(quote)),
        None if !place.is_empty() => text += &format!("In the paper:{place}\n\n"),
        None => {}
    }
    by_construction.iter().for_each(|why| text += &line("by construction", why));
    slip.iter().for_each(|slip| text += &line("slip of the paper", slip));
    missing.iter().for_each(|missing| text += &line("missing", missing));
    for outcome in &results.outcomes {
        text += &judged(results, outcome, at);
    }
    text
}

/// How a claim was judged on one outcome; empty if it was not judged.
fn judged(results: &ItemResults, outcome: &ItemOutcome, at: usize) -> String {
    let Some(Judged { measured, unjudged, why, because, tried, .. }) = outcome.claims.get(at) else {
        return String::new();
    };
    if !outcome.is_measured() || *measured == ClaimVerdict::NotTested && unjudged.is_none() {
        return String::new();
    }
    let mut text = format!("\n**{}**, on {}:\n\n", verdict(results, outcome, at), in_markdown(&model(outcome)));
    text += &comparisons(why);
    because.iter().for_each(|because| text += &line("why", because));
    for tried in tried {
        let own = results.item.claims[at].experiments.iter().find(|own| own.asks == tried.asks);
        let cells = own.map_or(Vec::new(), |own| deciding(&results.item, &own.test, outcome));
        text += &experiment(tried, counted_of(&results.item, outcome, &cells).filter(|_| tried.n.is_some()));
    }
    text
}

fn comparisons(why: &[String]) -> String {
    const MOST: usize = 8;
    let mut text: String = why.iter().take(MOST).map(|why| format!("- {}\n", in_markdown(why))).collect();
    if why.len() > MOST {
        let _ = writeln!(text, "- and {} more comparisons (in the result file)", why.len() - MOST);
    }
    text
}

/// What an experiment tried, on how many examples, what came out, and what that means.
fn experiment(tried: &Tried, counted: Option<String>) -> String {
    let n = counted.map_or(String::new(), |counted| format!(" ({counted})"));
    let mut text = format!("\n*Tried:* {} **{}**{n}\n\n", in_markdown(&tried.asks), tried.word());
    text += &comparisons(&tried.why);
    if let Some(means) = &tried.means {
        let due_to = means.due_to.map_or(String::new(), |cause| format!("{}: ", cause.text()));
        text += &line("it means", &format!("{due_to}{}", means.says));
    }
    text
}

/// The numbers of an outcome, and its figures.
fn numbers(results: &ItemResults, outcome: &ItemOutcome, figures: &[Figure]) -> String {
    let table = table(results, outcome);
    if table.is_empty() && figures.is_empty() {
        return String::new();
    }
    let heading = match outcome.variant.as_str() {
        "" => "The paper's numbers".to_owned(),
        TIMES => "Times".to_owned(),
        _ => format!("On {}", model(outcome)),
    };
    let mut text = format!("\n## {}\n\n", in_markdown(&heading));
    if !outcome.command.is_empty() {
        text += &line("command", &format!("`{}`", outcome.command));
    }
    // Prompts that are not cut to a length have none to state.
    let stated = outcome.ran.iter().filter(|(_, value)| !value.is_empty());
    stated.for_each(|(what, value)| text += &line(what, value));
    outcome.floors.iter().for_each(|floor| text += &line("at the floor, not judged", floor));
    if !outcome.unmeasured.is_empty() {
        text += &line("nothing was measured for", &outcome.unmeasured.join(", "));
    }
    outcome.failure.iter().for_each(|failure| text += &line("failed", failure));
    text += &equal_costs(results, outcome);
    let _ = write!(text, "\n{table}");
    figures.iter().for_each(|figure| {
        let _ = write!(text, "\n![{}]({})\n", in_markdown(&figure.title), figure.file);
    });
    text
}

/// The settings of every variant that was run; those of the paper's run if none was.
fn settings(results: &ItemResults) -> String {
    let mut variants: Vec<Variant> = Vec::new();
    for outcome in results.outcomes.iter().filter(|outcome| outcome.variant != TIMES && !outcome.variant.is_empty()) {
        let variant = outcome.run().variant;
        variants.extend((!variants.contains(&variant)).then_some(variant));
    }
    if variants.is_empty() {
        variants.push(Variant::Paper);
    }
    let mut text = String::new();
    for variant in variants {
        let mut lines = setting_lines(&results.item, variant);
        let own: Vec<&ItemOutcome> =
            results.outcomes.iter().filter(|outcome| outcome.variant == variant.name()).collect();
        state_samples(&mut lines, &own);
        let models = own.iter();
        let models: Vec<&str> =
            models.map(|outcome| outcome.model.as_str()).filter(|model| !model.is_empty()).collect();
        // The command line may have chosen another model than the item.
        if let Some(model) = lines.iter_mut().find(|line| line.setting == "model" && !models.is_empty()) {
            model.here = models.join(", ");
        }
        if lines.is_empty() {
            continue;
        }
        let of = match variant {
            Variant::Paper => "the paper's run",
            Variant::Builtin => "the run on the built-in model",
            Variant::Real => "the run on a small pretrained model",
        };
        let words = match results.item.is_run(Variant::Paper) {
            true if results.name.starts_with(ACROSS) => SettingWords::OF_NO_PAPER,
            true => SettingWords::OF_A_PAPER,
            false => SettingWords::NOT_GIVEN,
        };
        text += &setting_table(of, &lines, &words);
    }
    text + &settings_of_times(results)
}

/// The words of a table that says which settings are the paper's.
struct SettingWords {
    heading: &'static str,
    /// Marks a setting that does not differ.
    same: &'static str,
    /// Names what a setting that differs is compared with.
    other: &'static str,
    /// Stands in for a missing reason why a setting differs.
    no_reason: &'static str,
}

impl SettingWords {
    const OF_A_PAPER: Self =
        Self { heading: "as in the paper?", same: "as published", other: "paper", no_reason: "no reason is given" };
    const NOT_GIVEN: Self = Self { same: "not given in the item", ..Self::OF_A_PAPER };
    /// For an item that is in no paper: compared with its own full run.
    const OF_NO_PAPER: Self = Self {
        heading: "as in the item's full run?",
        same: "as there",
        other: "full run",
        no_reason: "smaller, to be run in minutes",
    };
}

/// The settings of the times; empty if there are none.
fn settings_of_times(results: &ItemResults) -> String {
    let has_times = results.outcomes.iter().any(|outcome| outcome.variant == TIMES);
    match setting_lines_of_times(&results.item) {
        Ok(lines) if has_times => setting_table("the times on a GPU", &lines, &SettingWords::NOT_GIVEN),
        _ => String::new(),
    }
}

/// A table of settings under its heading.
fn setting_table(of: &str, lines: &[SettingLine], words: &SettingWords) -> String {
    let rows = setting_rows(lines, words);
    format!("\n## Settings of {of}\n\n| setting | here | {} |\n|---|---|---|\n{rows}", words.heading)
}

/// States how many examples were run, if the command line chose the number. All methods have the same number then.
fn state_samples(lines: &mut Vec<SettingLine>, outcomes: &[&ItemOutcome]) {
    const SAMPLES: &str = "samples";
    if outcomes.iter().all(|outcome| outcome.samples.is_none()) {
        return;
    }
    if outcomes.iter().all(|outcome| outcome.samples.is_some()) {
        lines.retain(|line| !line.setting.starts_with(SAMPLES_OF));
    }
    let known = lines.iter().position(|line| line.setting == SAMPLES);
    let at = known.unwrap_or_else(|| {
        lines.push(SettingLine { setting: SAMPLES.to_owned(), here: "not set".to_owned(), differs: None });
        lines.len() - 1
    });
    let line = &mut lines[at];
    let item = line.here.clone();
    let of = |outcome: &&ItemOutcome| outcome.samples.map_or(item.clone(), |samples| samples.to_string());
    let first = of(&outcomes[0]);
    line.here = match outcomes.iter().all(|outcome| of(outcome) == first) {
        true => first,
        false => outcomes.iter().map(|one| format!("{} ({})", of(one), one.model)).collect::<Vec<_>>().join(", "),
    };
    let paper = line.differs.take().map_or_else(|| item.clone(), |differs| differs.paper);
    let because = format!("chosen by --samples; the item's own run has {item}");
    line.differs = Some(Difference { paper, because: Some(because) });
}

/// Marks a setting that papers do not have.
const OF_THE_ITEM: &str = "of the item";

/// The rows of a table of settings, each with its value and how it differs from the paper's. Methods set as in the paper share one row.
fn setting_rows(lines: &[SettingLine], words: &SettingWords) -> String {
    let is_method = |line: &&SettingLine| line.setting.starts_with("method of ");
    let same = lines.iter().filter(|line| is_method(line) && line.differs.is_none()).count();
    let mut text = String::new();
    for line in lines.iter().filter(|line| !is_method(line) || line.differs.is_some()) {
        let told = match &line.differs {
            None if line.is_own() => OF_THE_ITEM.to_owned(),
            None => words.same.to_owned(),
            Some(differs) => {
                let because = differs.because.as_deref().unwrap_or(words.no_reason);
                format!("differs ({}: {}): {because}", words.other, differs.paper)
            }
        };
        let _ =
            writeln!(text, "| {} | {} | {} |", in_markdown(&line.setting), in_markdown(&line.here), in_markdown(&told));
    }
    if same > 0 {
        let but =
            if lines.iter().any(|line| line.setting == METHODS) { ", except as listed for `methods`" } else { "" };
        let _ = writeln!(text, "| methods of {same} rows and columns | as in the item's file | {}{but} |", words.same);
    }
    text
}
