//! The outcomes of the papers' items: for each a table with the paper's rows and columns, with published and measured numbers side by side,
//! and the claims with their verdicts; and one page of all items.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::csv::finished;
use super::plots::papers::figures;
use spattn_base::text::in_markdown;
use spattn_lab::papers::claims::ClaimVerdict;
use spattn_lab::papers::item::Item;
use spattn_lab::papers::outcome::{CellOutcome, ItemOutcome, Judged, Number, short};
use spattn_lab::papers::{ITEMS, PAPERS};

/// The file of an item's outcome, which all pages are drawn from.
pub const RESULT: &str = "result.json";

/// The verdicts, in the order of the page's counts.
const VERDICTS: [ClaimVerdict; 5] = [
    ClaimVerdict::Holds,
    ClaimVerdict::HoldsInPart,
    ClaimVerdict::DoesNotHold,
    ClaimVerdict::CannotBeTold,
    ClaimVerdict::NotTested,
];

/// Writes an item's outcome into its folder: `result.json`, `table.csv`, and `plot.svg` if there is anything to draw. The names of further
/// pages of the plot are stored in the outcome.
///
/// # Errors
/// If a file cannot be written.
pub fn write(outcome: &mut ItemOutcome, item: &Item, dir: &Path) -> Result<Vec<PathBuf>> {
    let figures = figures(outcome, item)?;
    outcome.more_plots = figures.iter().skip(1).map(|figure| figure.file.clone()).collect();
    let mut files = vec![
        (RESULT.to_owned(), format!("{}\n", serde_json::to_string_pretty(outcome)?)),
        ("table.csv".to_owned(), csv(outcome)?),
    ];
    files.extend(figures.into_iter().map(|figure| (figure.file, figure.svg)));
    super::write_files(files, &[], dir)
}

/// Draws a stored outcome again in its folder. The other files are written only if the number of pages has changed, because numbers that
/// were read may be written with other digits.
///
/// # Errors
/// As [`write()`].
pub fn draw_again(outcome: &mut ItemOutcome, item: &Item, dir: &Path) -> Result<Vec<PathBuf>> {
    let figures = figures(outcome, item)?;
    let more = figures.iter().skip(1).map(|figure| &figure.file);
    if !more.eq(&outcome.more_plots) {
        return write(outcome, item, dir);
    }
    super::write_files(figures.into_iter().map(|figure| (figure.file, figure.svg)).collect(), &[], dir)
}

/// The subfolder of an outcome within the folder of results. Runs on the paper's own model have a subfolder of their own.
pub fn folder(outcome: &ItemOutcome) -> String {
    folder_of(&outcome.name, &outcome.variant)
}

/// As [`folder`], for an item that is not judged yet.
pub fn folder_of(name: &str, variant: &str) -> String {
    match variant {
        "paper" => format!("{name}/paper"),
        _ => name.to_owned(),
    }
}

/// The outcomes below a folder, in the order of the items.
///
/// # Errors
/// If a result exists and cannot be read.
pub fn read_all(out: &Path) -> Result<Vec<ItemOutcome>> {
    let mut outcomes = Vec::new();
    let folders = ITEMS.iter().flat_map(|item| [out.join(item.name), out.join(item.name).join("paper")]);
    for folder in folders {
        outcomes.extend(read(&folder)?);
    }
    Ok(outcomes)
}

/// The outcome in an item's folder; `None` if there is none.
///
/// # Errors
/// If a result exists and cannot be read.
pub fn read(folder: &Path) -> Result<Option<ItemOutcome>> {
    let path = folder.join(RESULT);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Some(
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of spattn reproduce", path.display()))?,
    ))
}

/// A line for each cell: row, column, published, measured, both ends of its interval, n.
fn csv(outcome: &ItemOutcome) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(["row", "column", "published", "measured", "ci_low", "ci_high", "n"])?;
    for row in &outcome.rows {
        for (column, cell) in outcome.columns.iter().zip(&row.cells) {
            let text = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
            let ends = cell.measured.and_then(|m| m.ends);
            writer.write_record([
                row.name.clone(),
                column.clone(),
                text(cell.published),
                text(cell.measured.map(|m| m.mean)),
                text(ends.map(|ends| ends.0)),
                text(ends.map(|ends| ends.1)),
                cell.measured.map_or(String::new(), |m| m.n.to_string()),
            ])?;
        }
    }
    finished(writer)
}

/// The page of all items: a short overview, then each item with its table and claims.
pub fn page(outcomes: &[ItemOutcome]) -> String {
    let mut page = "# The papers, reproduced\n\nMade by `spattn reproduce`. In tables a cell is *published / measured [95 % interval]*. A verdict is about the shape of a claim, on the model that was run; never about whether two models have the same number. A comparison is told where its paired 95 % interval lies on one side of the bound; each interval holds by itself. *published* is the same test on the paper's own numbers.\n\n"
        .to_owned();
    page += &counts(outcomes);
    for paper in &PAPERS {
        let of_paper = |name: &str| name.split('/').next() == Some(paper.name);
        let own: Vec<&ItemOutcome> = outcomes.iter().filter(|o| of_paper(&o.name)).collect();
        if own.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {}\n", paper.title);
        own.iter().for_each(|outcome| page += &item(outcome));
    }
    page
}

fn counts(outcomes: &[ItemOutcome]) -> String {
    let mut text = format!("| paper | items | {} |\n", VERDICTS.map(ClaimVerdict::text).join(" | "));
    text += &format!("|{}\n", "---|".repeat(2 + VERDICTS.len()));
    let mut by_paper: BTreeMap<&str, (usize, [usize; 5])> = BTreeMap::new();
    for outcome in outcomes {
        let paper = outcome.name.split('/').next().unwrap_or_default();
        for entry in [paper, ""] {
            let (items, counts) = by_paper.entry(entry).or_default();
            *items += 1;
            for claim in &outcome.claims {
                counts[VERDICTS.iter().position(|v| *v == claim.measured).unwrap_or(0)] += 1;
            }
        }
    }
    let names = PAPERS.iter().map(|paper| (paper.name, paper.name)).chain([("", "all")]);
    for (key, name) in names {
        if let Some((items, counts)) = by_paper.get(key) {
            let counts = counts.map(|count| count.to_string()).join(" | ");
            let _ = writeln!(text, "| {name} | {items} | {counts} |");
        }
    }
    text
}

/// An item's part of the page.
pub fn item(outcome: &ItemOutcome) -> String {
    let ItemOutcome { name, title, variant, ran, missing, nearest, note, failure, .. } = outcome;
    let mut text = format!("\n### {}: {}\n\n", in_markdown(name), in_markdown(title));
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "- {}: {}", in_markdown(what), in_markdown(value));
    };
    if !variant.is_empty() || !ran.is_empty() {
        let flag = if variant == "builtin" { " --builtin" } else { "" };
        line("command", &format!("`spattn reproduce {name}{flag}`"));
    }
    ran.iter().for_each(|(what, value)| line(what, value));
    missing.iter().for_each(|m| line("cannot be run here", m));
    nearest.iter().for_each(|n| line("nearest", &format!("`{n}`")));
    note.iter().for_each(|n| line("note", n));
    failure.iter().for_each(|f| line("failed", f));
    if !outcome.rows.is_empty() {
        text += "\n";
        text += &table(outcome);
    }
    text += &claims(&outcome.claims);
    if outcome.rows.iter().any(|row| row.cells.iter().any(|cell| cell.measured.is_some())) {
        for plot in std::iter::once("plot.svg").chain(outcome.more_plots.iter().map(String::as_str)) {
            let _ = write!(text, "\n![{}]({}/{plot})\n", in_markdown(name), folder(outcome));
        }
    }
    text
}

fn table(outcome: &ItemOutcome) -> String {
    let columns: Vec<Cow<str>> = outcome.columns.iter().map(|name| in_markdown(name)).collect();
    let mut text = format!("| | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in &outcome.rows {
        let cells: Vec<String> = row.cells.iter().map(cell).collect();
        let _ = writeln!(text, "| {} | {} |", in_markdown(&row.name), cells.join(" | "));
    }
    text
}

fn cell(cell: &CellOutcome) -> String {
    let published = cell.published.map(|x| x.to_string());
    let measured =
        cell.measured.map(|Number { mean, ends, .. }| match ends.map(|(low, high)| (short(low), short(high))) {
            Some((low, high)) if low != high => format!("{} [{low} {high}]", short(mean)),
            _ => short(mean),
        });
    match (published, measured) {
        (None, None) => String::new(),
        (published, measured) => {
            let or_none = |x: Option<String>| x.unwrap_or_else(|| "–".to_owned());
            format!("{} / {}", or_none(published), or_none(measured))
        }
    }
}

fn claims(claims: &[Judged]) -> String {
    let mut text = String::new();
    for Judged { says, published, measured, why, because } in claims {
        let published = if *published == ClaimVerdict::NotTested { "no numbers to test" } else { published.text() };
        let (says, measured) = (in_markdown(says), measured.text());
        let _ = write!(text, "\n**{says}** – measured: **{measured}**; published: {published}\n\n");
        const MOST: usize = 8;
        why.iter().take(MOST).for_each(|w| text += &format!("- {}\n", in_markdown(w)));
        if why.len() > MOST {
            let _ = writeln!(text, "- and {} more comparisons (result.json)", why.len() - MOST);
        }
        because.iter().for_each(|b| text += &format!("- why: {}\n", in_markdown(b)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_lab::papers::item::Variant;
    use spattn_lab::papers::measure::Evidence;
    use spattn_lab::papers::outcome::judge;

    const ITEM: &str = "
title = 'a table'
[run]
model = 'x/y'
tasks = ['ruler/vt']
[builtin]
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=64'
builtin.method = 'topk:k=8'
[[row]]
name = 'Gone'
method = 'quest'
missing = 'no such pages'
[[column]]
name = 'VT'
tasks = ['ruler/vt']
[[column]]
name = 'Cost'
value = 'density'
percent = true
[[published]]
row = 'Full'
values = { VT = 90.5, Cost = 100 }
[[published]]
row = 'Top'
values = { VT = 70, Cost = 2.5 }
[[claim]]
says = 'dense is above'
test = { above = { rows = ['Full'], than = ['Top'], columns = ['VT'], by = 10 } }
[[claim]]
says = 'dense is above what is not there'
test = { above = { rows = ['Full'], than = ['Gone'], columns = ['VT'] } }
[[claim]]
says = 'something else'
missing = 'a wind tunnel'
";

    fn records() -> Vec<Record> {
        let of = |method: &str, params: &str, i: usize, score: f64, density: f64| Record {
            params: params.into(),
            density,
            ..record("ruler/vt", method, i, score)
        };
        (0..40)
            .flat_map(|i| [of("full", "", i, 1.0, 1.0), of("topk", "k=8", i, f64::from(u8::from(i % 4 == 0)), 0.05)])
            .collect()
    }

    fn outcome(records: &[Record]) -> (ItemOutcome, Item) {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let evidence = Evidence { records, seen: &[] };
        (judge("magicpig/table-1", &item, Variant::Builtin, evidence).unwrap(), item)
    }

    #[test]
    fn published_and_measured_stand_side_by_side() {
        let (outcome, _) = outcome(&records());
        let text = item(&outcome);
        assert!(
            text.contains("| | VT | Cost |\n|---|---|---|\n| Full | 90.5 / 100 [91.19 100] | 100 / 100 |"),
            "{text}"
        );
        assert!(text.contains("| Top | 70 / 25 [12.69 41.2] | 2.5 / 5 |\n| Gone |  |  |"), "{text}");
        assert!(text.contains("**dense is above** – measured: **holds**; published: holds"), "{text}");
        assert!(text.contains("- VT: Full − Top: 75 ["), "{text}");
        assert!(
            text.contains("**something else** – measured: **not tested**; published: no numbers to test"),
            "{text}"
        );
        assert!(text.contains("- Gone, VT: not measured") && text.contains("missing: a wind tunnel"), "{text}");
        let csv = csv(&outcome).unwrap();
        assert!(csv.starts_with("row,column,published,measured,ci_low,ci_high,n\nFull,VT,90.5,100,91.1"), "{csv}");
        assert!(csv.contains("\nGone,Cost,,,,,\n"), "{csv}");
    }

    #[test]
    fn without_records_there_are_published_numbers_alone() {
        let (outcome, item_of) = outcome(&[]);
        assert!(item(&outcome).contains("| Full | 90.5 / – | 100 / – |"));
        assert_eq!(outcome.claims[0].measured, ClaimVerdict::NotTested);
        assert_eq!(figures(&outcome, &item_of).unwrap().len(), 1, "published numbers can be drawn");
    }

    #[test]
    fn results_are_written_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut outcome, item) = outcome(&records());
        let folder = dir.path().join("magicpig/table-1");
        let files = write(&mut outcome, &item, &folder).unwrap();
        assert_eq!(files.len(), 3);
        let mut stored = read(&folder).unwrap().unwrap();
        assert_eq!(draw_again(&mut stored, &item, &folder).unwrap(), [folder.join("plot.svg")]);
        stored.more_plots.push("plot-2.svg".to_owned());
        assert_eq!(draw_again(&mut stored, &item, &folder).unwrap().len(), 3, "one page is not two");
        assert!(stored.more_plots.is_empty());
        // The last digit of a number may differ.
        let read = read_all(dir.path()).unwrap();
        assert_eq!(page(&read), page(std::slice::from_ref(&outcome)));
        let page = page(&[outcome]);
        assert!(page.contains("| magicpig | 1 | 1 | 0 | 0 | 0 | 2 |\n| all | 1 |"), "{page}");
    }
}
