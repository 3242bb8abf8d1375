//! Renders the results of `spattn tune`: tables on the terminal, CSV, JSON, a page and a plot.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::csv::finished;
use super::format::{capital, number};
use super::markdown::{line, rule};
use super::plots::{Figure, tuning};
use super::table::lines;
use spattn_base::text::in_markdown;
use spattn_lab::tune::grid::DENSITY;
use spattn_lab::tune::{Answer, BudgetVerdict, CandidateRow, Goal, MethodOutcome, TuneOutcome};

const HEADINGS: [&str; 5] = ["n", "loss", "bounds", "verdict", "attended"];

/// The printed tables, each followed by its conclusion and by the spec on its own line.
pub fn terminal(outcome: &TuneOutcome) -> String {
    let mut text = format!(
        "{}\n(losses in points, over n contexts of each task and length; * is the spec below)\n",
        question(outcome)
    );
    for method in &outcome.methods {
        let headings = std::iter::once(method.parameter.as_str()).chain(HEADINGS).map(str::to_owned).collect();
        let rows = method.rows.iter().map(|row| cells(method, row)).collect();
        let _ = write!(text, "\n{}\n\n{}\n", method.base, lines(headings, rows, 1).concat());
        let _ = writeln!(text, "{}.", sentence(&conclusion(method, &outcome.goal)));
        notes(method).iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
        text.extend(method.spec.iter().map(|spec| format!("\n    {spec}\n")));
    }
    text
}

fn question(outcome: &TuneOutcome) -> String {
    let Goal { limit, confidence, .. } = outcome.goal;
    format!(
        "the smallest budget that loses at most {} against full, with {} % confidence; mean over {}",
        points(limit),
        percent(confidence),
        outcome.places.join(", ")
    )
}

fn cells(method: &MethodOutcome, row: &CandidateRow) -> Vec<String> {
    let verdict = match row.verdict {
        BudgetVerdict::Within => "within",
        BudgetVerdict::Beyond => "beyond",
        BudgetVerdict::Open => "open",
    };
    let is_chosen = method.spec.as_ref() == Some(&row.spec);
    let bounds = format!("[{} {}]", decimal(row.low), decimal(row.high));
    let verdict = if is_chosen { format!("{verdict} *") } else { format!("{verdict}  ") };
    vec![row.text.clone(), row.n.to_string(), decimal(row.loss), bounds, verdict, number(row.density)]
}

/// A share as points, with one decimal.
fn decimal(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    if text == "-0.0" { "0.0".to_owned() } else { text }
}

fn points(share: f64) -> String {
    let points = number_of(100.0 * share);
    if points == "1" { "1 point".to_owned() } else { format!("{points} points") }
}

fn percent(share: f64) -> String {
    number_of(100.0 * share)
}

/// A number without rounding errors in its last digits.
fn number_of(x: f64) -> String {
    let text = format!("{x:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The conclusion from the table, as a sentence.
pub fn conclusion(method: &MethodOutcome, goal: &Goal) -> String {
    let name = |at: usize| format!("{}={}", method.parameter, method.rows[at].text);
    let (loss, sure) = (points(goal.limit), percent(goal.confidence));
    match method.answer {
        Answer::Smallest { at, below } => format!(
            "{} loses at most {loss}, and {}, the next smaller budget, loses more ({sure} % confidence)",
            name(at),
            name(below)
        ),
        Answer::Lowest { at } => format!(
            "{}, the smallest budget in range, loses at most {loss} ({sure} % confidence); a lower --range may have a smaller one",
            name(at)
        ),
        Answer::Nowhere { top } => format!(
            "no budget in range is within the limit: {}, the largest, loses more than {loss} ({sure} % confidence)",
            name(top)
        ),
        Answer::Open { at, below, certain, needed } => {
            let n = method.rows.iter().map(|row| row.n).max().unwrap_or(0);
            let seems = |at: usize| {
                let row = &method.rows[at];
                let how = match row.verdict {
                    BudgetVerdict::Within => "is within",
                    BudgetVerdict::Beyond => "is beyond",
                    BudgetVerdict::Open if row.loss <= goal.limit => "seems within",
                    BudgetVerdict::Open => "seems beyond",
                };
                format!("{} {how} ({} [{} {}])", name(at), decimal(row.loss), decimal(row.low), decimal(row.high))
            };
            let seen: Vec<String> = below.into_iter().chain(at).map(seems).collect();
            let more = match needed {
                Some(needed) => format!("about {needed} samples would decide, if they are like these"),
                None => "the loss is so near to the limit that no number of samples decides".to_owned(),
            };
            let certain = match certain {
                Some(certain) if Some(certain) != at => format!("; {} is certain to be within", name(certain)),
                Some(_) => String::new(),
                None if at.is_some() => "; the budget below is a guess".to_owned(),
                None => String::new(),
            };
            format!(
                "{n} samples do not decide which budget is the smallest that loses at most {loss}: {}; {more}{certain}",
                seen.join(", ")
            )
        }
    }
}

/// Further notes for the reader.
fn notes(method: &MethodOutcome) -> Vec<String> {
    const MISSED: f64 = 1.25;
    let name = |at: usize| format!("{}={}", method.parameter, method.rows[at].text);
    let mut notes: Vec<String> = method
        .contradictions
        .iter()
        .filter(|pair| pair.is_certain)
        .map(|pair| {
            let (by, n) = (decimal(pair.by), pair.n);
            let (more, less) = (name(pair.smaller + 1), name(pair.smaller));
            format!("{more} loses {by} points more than {less} on the same {n} samples: losses do not fall as the budget grows")
        })
        .collect();
    let others = method.contradictions.iter().filter(|pair| !pair.is_certain).count();
    if others > 0 {
        let pairs = if others == 1 { "1 pair".to_owned() } else { format!("{others} pairs") };
        notes.push(format!("in {pairs} of neighbouring budgets the larger one lost more, which may be noise"));
    }
    for of in &method.alike {
        let attended = method.rows.iter().find(|row| row.text == of.largest).map(|row| number(row.density));
        let attended = attended.map_or(String::new(), |density| format!(" ({density})"));
        notes.push(format!(
            "{}={} to {} attend the same{attended} and count as one: sink, recent window and question are more",
            method.parameter, of.smallest, of.largest
        ));
    }
    let is_missed = |row: &&CandidateRow| method.parameter == DENSITY && row.density > MISSED * row.value;
    if let Some(last) = method.rows.iter().rfind(is_missed) {
        notes.push(format!(
            "up to {DENSITY}={} more is attended than asked for: sink, recent window, dense layers and tail count",
            last.text
        ));
    }
    notes
}

/// Text with a capital first letter, unless it begins with a parameter's name.
fn sentence(text: &str) -> String {
    let begins_with_parameter = text.split(' ').next().is_some_and(|word| word.contains('='));
    if begins_with_parameter { text.to_owned() } else { capital(text) }
}

/// Renders all rows as CSV, with losses in points and all digits.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(outcome: &TuneOutcome) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record([
        "method",
        "parameter",
        "value",
        "spec",
        "n",
        "loss",
        "loss_low",
        "loss_high",
        "verdict",
        "density",
        "chosen",
    ])?;
    for method in &outcome.methods {
        for row in &method.rows {
            let points = |share: f64| (100.0 * share).to_string();
            let verdict = match row.verdict {
                BudgetVerdict::Within => "within",
                BudgetVerdict::Beyond => "beyond",
                BudgetVerdict::Open => "open",
            };
            let is_chosen = method.spec.as_ref() == Some(&row.spec);
            writer.write_record([
                method.base.clone(),
                method.parameter.clone(),
                row.text.clone(),
                row.spec.clone(),
                row.n.to_string(),
                points(row.loss),
                points(row.low),
                points(row.high),
                verdict.to_owned(),
                row.density.to_string(),
                is_chosen.to_string(),
            ])?;
        }
    }
    finished(writer)
}

/// All results as JSON, with losses as shares.
///
/// # Errors
/// None in practice; the JSON writer's signature has one.
pub fn json(outcome: &TuneOutcome, facts: &Value) -> Result<String> {
    let methods = outcome.methods.iter().map(|method| {
        let mut value = serde_json::to_value(method)?;
        value["conclusion"] = conclusion(method, &outcome.goal).into();
        value["notes"] = notes(method).into();
        Ok(value)
    });
    let methods = methods.collect::<Result<Vec<Value>>>()?;
    let all = json!({ "run": facts, "goal": outcome.goal, "places": outcome.places, "methods": methods });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// The page: the question, the drawing, and for each method the conclusion, its spec and its table.
pub fn page(outcome: &TuneOutcome, facts: &Value, figures: &[Figure]) -> String {
    let mut text = format!("# The smallest budgets\n\n{}.\n\n", in_markdown(&sentence(&question(outcome))));
    text.push_str(&facts_list(facts));
    for Figure { file, title, .. } in figures {
        let _ = write!(text, "\n![{}](plots/{file})\n", in_markdown(title));
    }
    for method in &outcome.methods {
        let concluded = sentence(&conclusion(method, &outcome.goal));
        let _ = write!(text, "\n## {}\n\n{}.\n", in_markdown(&method.base), in_markdown(&concluded));
        text.extend(method.spec.iter().map(|spec| format!("\n```\n{spec}\n```\n")));
        notes(method).iter().for_each(|note| text.push_str(&format!("\n{}.\n", in_markdown(&sentence(note)))));
        text.push('\n');
        text.push_str(&line(std::iter::once(method.parameter.clone()).chain(HEADINGS.map(str::to_owned))));
        text.push_str(&rule(1, HEADINGS.len()));
        for row in &method.rows {
            text.push_str(&line(cells(method, row).iter().map(|cell| cell.trim_end())));
        }
        let _ = write!(
            text,
            "\nLosses in points, over n contexts of each task and length. The probability that any bound of the {} candidates is wrong, at any stop of the search, is at most {}.\n",
            method.candidates,
            number(method.error)
        );
    }
    text
}

/// The conditions under which the results hold, one line each.
pub(super) fn facts_list(facts: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    let facts = facts.as_object().into_iter().flatten();
    facts.map(|(name, value)| format!("- {}: {}\n", name.replace('_', " "), in_markdown(&shown(value)))).collect()
}

/// Writes `tune.json`, `tune.csv`, `tune.md` and `plots/tune.*` into a folder. Returns the paths of the files.
///
/// # Errors
/// If one cannot be written.
pub fn write(outcome: &TuneOutcome, facts: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
    let figures = tuning::figure(outcome)?;
    let files = vec![
        ("tune.json", json(outcome, facts)?),
        ("tune.csv", csv(outcome)?),
        ("tune.md", page(outcome, facts, &figures)),
    ];
    super::write_files(files, &figures, folder)
}
