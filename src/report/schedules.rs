//! Renders the results of `spattn tune --schedules`: schedules of equal total budget, side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::csv::finished;
use super::format::number;
use super::markdown::{line, rule};
use super::plots::Figure;
use super::plots::tuning::schedules as figure_of;
use super::table::lines;
use super::tuning::facts_list;
use spattn_base::text::in_markdown;
use spattn_lab::tune::schedules::{LEVELS, MeasuredSchedule, ScheduleOutcome};
use spattn_lab::tune::shapes::Interval;

const HEADINGS: [&str; 5] = ["schedule", "error\npredicted", "error\nmeasured", "beside\nuniform", "attended"];

/// The table of schedules, the conclusion, and the spec on its own line.
pub fn terminal(outcome: &ScheduleOutcome) -> String {
    let rows = (0..outcome.schedules.len()).map(|at| cells(outcome, at)).collect();
    let mut text = format!("{}\n\n", question(outcome));
    text.push_str(&lines(HEADINGS.map(str::to_owned).to_vec(), rows, 1).concat());
    let _ = writeln!(text, "\n{}.", conclusion(outcome));
    notes(outcome).iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    let _ = writeln!(text, "\n    {}", outcome.spec);
    text
}

fn question(outcome: &ScheduleOutcome) -> String {
    let prompts = if outcome.prompts == 1 { "1 prompt".to_owned() } else { format!("{} prompts", outcome.prompts) };
    format!(
        "{}: its budget distributed over {} layers; relative error of the attention output, mean over layers; made from {prompts}, measured on as many others",
        outcome.base,
        outcome.layers.len()
    )
}

fn cells(outcome: &ScheduleOutcome, at: usize) -> Vec<String> {
    let of = &outcome.schedules[at];
    let mark = if at == outcome.chosen { "*" } else { "" };
    let less = if at == 0 { String::new() } else { measured(&of.difference) };
    vec![format!("{mark}{}", of.name), error(of.predicted), measured(&of.error), less, number(of.density.mean)]
}

/// An error as text. All have the same number of decimals, because they are compared down a column.
fn error(x: f64) -> String {
    format!("{x:.4}")
}

fn measured(interval: &Interval) -> String {
    match (interval.low, interval.high) {
        (Some(low), Some(high)) => format!("{} [{} {}]", error(interval.mean), error(low), error(high)),
        _ => error(interval.mean),
    }
}

/// Whether the interval of a difference is below 0.
fn is_below(difference: &Interval) -> bool {
    difference.high.is_some_and(|high| high < 0.0)
}

/// The conclusion from the table, as a sentence.
fn conclusion(outcome: &ScheduleOutcome) -> String {
    let chosen = &outcome.schedules[outcome.chosen];
    let uniform = &outcome.schedules[0];
    if outcome.chosen == 0 {
        return format!("no schedule has a smaller error than the uniform one ({})", error(uniform.error.mean));
    }
    let share = 100.0 * (1.0 - chosen.error.mean / uniform.error.mean.max(f64::MIN_POSITIVE));
    format!(
        "{} has the smallest error: {} instead of {}, {share:.0} % less, at the same total budget",
        chosen.name,
        error(chosen.error.mean),
        error(uniform.error.mean)
    )
}

fn notes(outcome: &ScheduleOutcome) -> Vec<String> {
    const MISSED: f64 = 0.98;
    let chosen = &outcome.schedules[outcome.chosen];
    let mut notes = Vec::new();
    if outcome.chosen > 0 && !is_below(&chosen.difference) {
        notes.push(
            "the difference to the uniform schedule is within the spread over prompts; more --prompts would decide"
                .to_owned(),
        );
    }
    let uniform = outcome.schedules[0].density.mean;
    let fewer = |of: &&MeasuredSchedule| of.density.mean < MISSED * uniform;
    let short: Vec<&str> = outcome.schedules.iter().filter(fewer).map(|of| of.name.as_str()).collect();
    if !short.is_empty() {
        notes.push(format!(
            "{} attend less than uniform: some layers have a larger budget than candidates, and the rest is not given to others",
            short.join(", ")
        ));
    }
    notes.push("errors are those of single layers; run spattn eval with both specs to compare answers".to_owned());
    notes
}

/// Renders CSV with a row for each schedule and layer.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(outcome: &ScheduleOutcome) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["schedule", "value", "layer", "budget", "error", "entropy", "chosen"])?;
    for (at, of) in outcome.schedules.iter().enumerate() {
        for (rank, layer) in outcome.layers.iter().enumerate() {
            let numbers = [of.multiples[rank], of.errors[rank], outcome.entropies[rank]].map(|x| x.to_string());
            let about = [of.name.clone(), of.schedule.clone(), layer.to_string()];
            let is_chosen = (at == outcome.chosen).to_string();
            writer.write_record(about.into_iter().chain(numbers).chain([is_chosen]))?;
        }
    }
    finished(writer)
}

/// All results as JSON.
///
/// # Errors
/// None in practice; the JSON writer's signature has one.
pub fn json(outcome: &ScheduleOutcome, facts: &Value) -> Result<String> {
    let mut found = serde_json::to_value(outcome)?;
    found["levels"] = LEVELS.to_vec().into();
    found["conclusion"] = conclusion(outcome).into();
    found["notes"] = notes(outcome).into();
    Ok(serde_json::to_string_pretty(&json!({ "run": facts, "schedules": found }))? + "\n")
}

fn page(outcome: &ScheduleOutcome, facts: &Value, figure: &Figure) -> String {
    let mut text =
        format!("# Budgets by layer\n\nAsked of {}.\n\n{}", in_markdown(&question(outcome)), facts_list(facts));
    let (title, concluded) = (in_markdown(&figure.title), conclusion(outcome));
    let _ = write!(text, "\n![{title}](plots/{})\n\n{}.\n", figure.file, in_markdown(&concluded));
    let _ = write!(text, "\n```\n{}\n```\n", outcome.spec);
    notes(outcome).iter().for_each(|note| text.push_str(&format!("\nNote: {}.\n", in_markdown(note))));
    text.push('\n');
    text.push_str(&line(HEADINGS.map(|heading| heading.replace('\n', " "))));
    text.push_str(&rule(1, HEADINGS.len() - 1));
    (0..outcome.schedules.len()).for_each(|at| text.push_str(&line(cells(outcome, at))));
    text.push_str("\nIntervals are 95 %, by Student's t over prompts. By layer: budgets as multiples of the mean, and errors.\n\n");
    let names = outcome.schedules.iter().map(|of| of.name.clone());
    text.push_str(&line(["layer", "entropy (nats)"].map(str::to_owned).into_iter().chain(names)));
    text.push_str(&rule(0, outcome.schedules.len() + 2));
    for (rank, layer) in outcome.layers.iter().enumerate() {
        let both = |of: &MeasuredSchedule| format!("{:.2} → {}", of.multiples[rank], error(of.errors[rank]));
        let about = [layer.to_string(), number(outcome.entropies[rank])];
        text.push_str(&line(about.into_iter().chain(outcome.schedules.iter().map(both))));
    }
    text
}

/// Writes `tune.json`, `tune.csv`, `tune.md` and `plots/tune.*` into a folder. Returns the paths of the files.
///
/// # Errors
/// If one cannot be written.
pub fn write(outcome: &ScheduleOutcome, facts: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
    let figure = figure_of(outcome)?;
    let files = vec![
        ("tune.json", json(outcome, facts)?),
        ("tune.csv", csv(outcome)?),
        ("tune.md", page(outcome, facts, &figure)),
    ];
    super::write_files(files, std::slice::from_ref(&figure), folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, error: f64, high: f64, density: f64) -> MeasuredSchedule {
        let interval = |mean: f64, high: f64| Interval { mean, low: Some(mean - (high - mean)), high: Some(high) };
        MeasuredSchedule {
            name: name.to_owned(),
            schedule: "1+3".to_owned(),
            spec: format!("topk:k=8,schedule={name}"),
            multiples: vec![0.5, 1.5],
            predicted: error,
            error: interval(error, error + 0.01),
            difference: interval(error - 0.2, high),
            density: interval(density, density),
            errors: vec![error, error],
        }
    }

    fn outcome(schedules: Vec<MeasuredSchedule>, chosen: usize) -> ScheduleOutcome {
        ScheduleOutcome {
            base: "topk:k=8".to_owned(),
            layers: vec![0, 2],
            entropies: vec![1.0, 2.0],
            curves: Vec::new(),
            spec: schedules[chosen].spec.clone(),
            schedules,
            chosen,
            prompts: 4,
        }
    }

    #[test]
    fn what_may_be_luck_and_what_is_left_over_are_said() {
        let uniform = || of("uniform", 0.2, 0.0, 0.1);
        let sure = outcome(vec![uniform(), of("greedy", 0.1, -0.05, 0.1)], 1);
        assert_eq!(
            conclusion(&sure),
            "greedy has the smallest error: 0.1000 instead of 0.2000, 50 % less, at the same total budget"
        );
        assert_eq!(notes(&sure).len(), 1);
        assert!(terminal(&sure).ends_with("\n    topk:k=8,schedule=greedy\n"), "{}", terminal(&sure));
        let luck = outcome(vec![uniform(), of("greedy", 0.19, 0.02, 0.09)], 1);
        let said = notes(&luck);
        assert!(said[0].contains("more --prompts") && said[1].starts_with("greedy attend less"), "{said:?}");
        let none = outcome(vec![uniform(), of("greedy", 0.3, 0.2, 0.1)], 0);
        assert!(conclusion(&none).starts_with("no schedule has a smaller error"), "{}", conclusion(&none));
        let csv = csv(&luck).unwrap();
        assert_eq!(csv.lines().count(), 1 + 2 * 2);
        assert_eq!(csv.lines().nth(4), Some("greedy,1+3,2,1.5,0.19,2,true"));
    }
}
