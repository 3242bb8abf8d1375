//! Renders the results of `spattn tune --target` for K and L: predictions and measurements side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::csv::finished;
use super::format::number;
use super::markdown::{line, rule};
use super::plots::Figure;
use super::plots::tuning::shapes as figure_of;
use super::table::lines;
use super::tuning::facts_list;
use spattn_base::text::in_markdown;
use spattn_lab::tune::shapes::{Checked, Interval, ShapeOutcome, Target};

const HEADINGS: [&str; 8] = [
    "K",
    "L",
    "density\npredicted",
    "density\nmeasured",
    "error\npredicted",
    "error\nmeasured",
    "KB read\na step",
    "table\nbits",
];

/// The table of checked shapes, the conclusion, and the spec on its own line.
pub fn terminal(outcome: &ShapeOutcome) -> String {
    let rows = outcome.checked.iter().enumerate().map(|(at, checked)| cells(outcome, at, checked)).collect();
    let mut text = format!("{}\n\n", question(outcome));
    text.push_str(&lines(HEADINGS.map(str::to_owned).to_vec(), rows, 0).concat());
    let _ = writeln!(text, "\n{}.", conclusion(outcome));
    notes(outcome).iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text.extend(outcome.spec.iter().map(|spec| format!("\n    {spec}\n")));
    text
}

fn question(outcome: &ShapeOutcome) -> String {
    let asked = match outcome.target {
        Target::Density(density) => {
            format!("the smallest error of the attention output at a density of at most {}", number(density))
        }
        Target::Error(error) => {
            format!("the fewest bytes a step at a relative error of the attention output of at most {}", number(error))
        }
    };
    format!("{}: {asked}; predicted from {}, measured on as many others", outcome.base, prompts(outcome))
}

fn prompts(outcome: &ShapeOutcome) -> String {
    if outcome.prompts == 1 { "1 prompt".to_owned() } else { format!("{} prompts", outcome.prompts) }
}

fn cells(outcome: &ShapeOutcome, at: usize, checked: &Checked) -> Vec<String> {
    let Checked { predicted: p, density, error, .. } = checked;
    let measured = |i: &Interval| match (i.low, i.high) {
        (Some(low), Some(high)) => format!("{} [{} {}]", number(i.mean), number(low), number(high)),
        _ => number(i.mean),
    };
    let mark = if outcome.chosen == Some(at) { "*" } else { "" };
    vec![
        format!("{mark}{}", p.shape.bits),
        p.shape.tables.to_string(),
        number(p.density),
        measured(density),
        number(p.error),
        measured(error),
        number(p.bytes / 1024.0),
        number(p.table_bits),
    ]
}

/// The conclusion from the table, as a sentence.
fn conclusion(outcome: &ShapeOutcome) -> String {
    let shape = |c: &Checked| format!("K={}, L={}", c.predicted.shape.bits, c.predicted.shape.tables);
    let reached = |c: &Checked| match outcome.target {
        Target::Density(_) => format!("density {}, error {}", number(c.density.mean), number(c.error.mean)),
        Target::Error(_) => format!("error {}, density {}", number(c.error.mean), number(c.density.mean)),
    };
    match (outcome.chosen, outcome.checked.first()) {
        (Some(at), Some(first)) if !first.meets => {
            let chosen = &outcome.checked[at];
            format!(
                "{} meets the target: {}; {} was predicted to be better, but does not meet it ({})",
                shape(chosen),
                reached(chosen),
                shape(first),
                reached(first)
            )
        }
        (Some(at), Some(_)) => {
            format!("{} meets the target: {}", shape(&outcome.checked[at]), reached(&outcome.checked[at]))
        }
        (None, Some(first)) => {
            format!("no checked shape of the grid meets the target; {} reaches {}", shape(first), reached(first))
        }
        (None | Some(_), None) => "no shape was checked".to_owned(),
    }
}

fn notes(outcome: &ShapeOutcome) -> Vec<String> {
    let mut notes = Vec::new();
    if let Target::Density(density) = outcome.target
        && density <= outcome.fixed
    {
        notes.push(format!("sink, recent window and tail are {} of the context already", number(outcome.fixed)));
    }
    let beyond = |checked: &Checked| {
        let (interval, limit) = match outcome.target {
            Target::Density(most) => (checked.density, most),
            Target::Error(most) => (checked.error, most),
        };
        interval.high.is_none_or(|high| high > limit).then_some(limit)
    };
    if let Some(limit) = outcome.chosen.and_then(|at| beyond(&outcome.checked[at])) {
        notes.push(format!(
            "its mean over {} meets the target, but its interval goes beyond {}; more --prompts would decide",
            prompts(outcome),
            number(limit)
        ));
    }
    notes
}

/// Renders all shapes of the grid as CSV, with measurements for those that were checked.
///
/// # Errors
/// None in practice; the CSV writer's signature has one.
pub fn csv(outcome: &ShapeOutcome) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record([
        "K",
        "L",
        "density_predicted",
        "error_predicted",
        "bytes_per_step",
        "table_bits",
        "density",
        "density_low",
        "density_high",
        "error",
        "error_low",
        "error_high",
        "chosen",
    ])?;
    for p in &outcome.predicted {
        let place = outcome.checked.iter().position(|c| c.predicted.shape == p.shape);
        let checked = place.map(|at| &outcome.checked[at]);
        let shown = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
        let of = |i: Option<Interval>| [i.map(|i| i.mean), i.and_then(|i| i.low), i.and_then(|i| i.high)].map(shown);
        let first = [p.shape.bits.to_string(), p.shape.tables.to_string()];
        let predicted = [p.density, p.error, p.bytes, p.table_bits].map(|x| x.to_string());
        let measured = [of(checked.map(|c| c.density)), of(checked.map(|c| c.error))].concat();
        let chosen = (place.is_some() && place == outcome.chosen).to_string();
        writer.write_record(first.into_iter().chain(predicted).chain(measured).chain([chosen]))?;
    }
    finished(writer)
}

/// All results as JSON.
///
/// # Errors
/// None in practice; the JSON writer's signature has one.
pub fn json(outcome: &ShapeOutcome, facts: &Value) -> Result<String> {
    let mut found = serde_json::to_value(outcome)?;
    found["conclusion"] = conclusion(outcome).into();
    found["notes"] = notes(outcome).into();
    Ok(serde_json::to_string_pretty(&json!({ "run": facts, "shapes": found }))? + "\n")
}

fn page(outcome: &ShapeOutcome, facts: &Value, figure: &Figure) -> String {
    let mut text = format!("# K and L\n\nAsked of {}.\n\n{}", in_markdown(&question(outcome)), facts_list(facts));
    let (title, concluded) = (in_markdown(&figure.title), conclusion(outcome));
    let _ = write!(text, "\n![{title}](plots/{})\n\n{}.\n", figure.file, in_markdown(&concluded));
    text.extend(outcome.spec.iter().map(|spec| format!("\n```\n{spec}\n```\n")));
    notes(outcome).iter().for_each(|note| text.push_str(&format!("\nNote: {}.\n", in_markdown(note))));
    text.push('\n');
    text.push_str(&line(HEADINGS.map(|heading| heading.replace('\n', " "))));
    text.push_str(&rule(0, HEADINGS.len()));
    outcome.checked.iter().enumerate().for_each(|(at, c)| text.push_str(&line(cells(outcome, at, c))));
    text + "\nIntervals are 95 %, by Student's t over prompts. All shapes of the grid are in [tune.csv](tune.csv).\n"
}

/// Writes `tune.json`, `tune.csv`, `tune.md` and `plots/tune.*` into a folder. Returns the paths of the files.
///
/// # Errors
/// If one cannot be written.
pub fn write(outcome: &ShapeOutcome, facts: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
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
    use spattn_lab::tune::shapes::{Predicted, Shape};

    fn outcome(error: Interval) -> ShapeOutcome {
        let shape = Shape { bits: 8, tables: 75 };
        let predicted = Predicted { shape, density: 0.1, error: 0.1, bytes: 1024.0, table_bits: 9.0 };
        let density = Interval { mean: 0.1, low: None, high: None };
        ShapeOutcome {
            base: "magicpig".to_owned(),
            target: Target::Error(0.1),
            predicted: vec![predicted.clone()],
            checked: vec![Checked { predicted, density, error, meets: true }],
            chosen: Some(0),
            spec: Some("magicpig:K=8,L=75".to_owned()),
            prompts: 2,
            fixed: 0.05,
        }
    }

    #[test]
    fn a_mean_that_may_be_luck_is_said_to_be_one() {
        let of = |low, high| notes(&outcome(Interval { mean: 0.09, low, high }));
        let [note] = &of(Some(0.05), Some(0.13))[..] else { panic!("one note") };
        assert!(
            note.contains("over 2 prompts") && note.contains("goes beyond 0.100") && note.contains("--prompts"),
            "{note}"
        );
        assert_eq!(of(None, None).len(), 1, "one prompt has no spread");
        assert!(of(Some(0.085), Some(0.095)).is_empty());
    }
}
