//! The outcome of an item: its cells, published and measured, and its claims with verdicts. All drawings are made from it.

use serde::{Deserialize, Serialize};

use super::claim::Claim;
use super::claims::{BoundVerdict, CellName, ClaimVerdict, Comparison, Test};
use super::item::{Item, Variant};
use super::measure::{Evidence, MeasuredItem};
use spattn_base::error::UsageError;
use spattn_stats::Estimate;

/// The outcome of an item, as stored in `result.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ItemOutcome {
    /// `PAPER/ITEM`.
    pub name: String,
    /// What it measures.
    pub title: String,
    /// `paper` or `builtin`; empty if nothing was run.
    #[serde(default)]
    pub variant: String,
    /// What was run.
    #[serde(default)]
    pub ran: Vec<(String, String)>,
    /// What cannot be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The command nearest to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Notes for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows of the table.
    pub rows: Vec<OutcomeRow>,
    /// The claims.
    pub claims: Vec<Judged>,
    /// Further files of the drawing, if it has several pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_plots: Vec<String>,
    /// The error of the run, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutcomeRow {
    /// Its name.
    pub name: String,
    /// The method that was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// A cell for each column.
    pub cells: Vec<CellOutcome>,
}

/// A cell of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// The paper's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// The measured number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Number>,
}

/// A number with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Number {
    /// The mean.
    pub mean: f64,
    /// Both ends of the 95 % interval, if there is one.
    pub ends: Option<(f64, f64)>,
    /// The smallest number of independent examples of a task and length, or of units of documents; for a time, the number of turns.
    pub n: usize,
}

/// A claim with its verdicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The claim.
    pub says: String,
    /// The verdict on the published numbers; not tested if some are missing.
    pub published: ClaimVerdict,
    /// The verdict on the measured numbers.
    pub measured: ClaimVerdict,
    /// What was compared, or what is missing.
    pub why: Vec<String>,
    /// The reason, if it was investigated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// The outcome of `item`, with the measurements under `variant`; with the published numbers alone if there are none.
///
/// # Errors
/// As [`MeasuredItem::spot`]: if rows and columns select something that analyses do not have.
pub fn judge(name: &str, item: &Item, variant: Variant, evidence: Evidence<'_>) -> Result<ItemOutcome, UsageError> {
    let is_run = !evidence.records.is_empty() || !evidence.seen.is_empty();
    let measured = MeasuredItem::new(item, variant, evidence)?;
    let number = |row: &str, column: &str| -> Result<Option<Number>, UsageError> {
        let Some(spot) = measured.as_ref().map(|m| m.spot(row, column)).transpose()?.flatten() else { return Ok(None) };
        Ok(spot.estimate().map(|Estimate { mean, ends }| Number { mean, ends, n: spot.contexts() }))
    };
    let mut rows = Vec::new();
    for row in &item.rows {
        let cell = |column: &super::item::Line| -> Result<CellOutcome, UsageError> {
            let published = item.published(&row.name, &column.name);
            Ok(CellOutcome { published, measured: number(&row.name, &column.name)? })
        };
        let cells = item.columns.iter().map(cell).collect::<Result<_, _>>()?;
        rows.push(OutcomeRow { name: row.name.clone(), method: row.select(variant).method, cells });
    }
    let claims = item.claims.iter().map(|claim| judged(item, claim, measured.as_ref())).collect::<Result<_, _>>()?;
    Ok(ItemOutcome {
        name: name.to_owned(),
        title: item.title.clone(),
        variant: if is_run { variant.name().to_owned() } else { String::new() },
        ran: Vec::new(),
        missing: item.missing.clone(),
        nearest: item.nearest.clone(),
        note: item.note.clone(),
        columns: item.columns.iter().map(|column| column.name.clone()).collect(),
        rows,
        claims,
        more_plots: Vec::new(),
        failure: None,
    })
}

fn judged(item: &Item, claim: &Claim, measured: Option<&MeasuredItem<'_>>) -> Result<Judged, UsageError> {
    let Claim { says, test, missing, because, .. } = claim;
    let (mut told, mut why) = (Vec::new(), Vec::new());
    let all = test.as_ref().map(Test::comparisons).unwrap_or_default();
    for comparison in &all {
        let (answer, text) = match measured {
            Some(measured) => tell(measured, comparison)?,
            None => (BoundVerdict::Unmeasured, String::new()),
        };
        told.push((answer, comparison.is_lenient));
        // Single steps are listed only if they are contradicted or unmeasured.
        let is_worth = !comparison.is_lenient || matches!(answer, BoundVerdict::No | BoundVerdict::Unmeasured);
        if is_worth && !text.is_empty() && !why.contains(&text) {
            why.push(text);
        }
    }
    why.extend(missing.iter().map(|missing| format!("missing: {missing}")));
    Ok(Judged {
        says: says.clone(),
        published: test.as_ref().map_or(ClaimVerdict::NotTested, |test| published_verdict(item, test)),
        measured: ClaimVerdict::of(&told),
        why,
        because: because.builtin.clone().filter(|_| measured.is_some()),
    })
}

/// The verdict of the published numbers on a test; not tested if one is missing.
pub fn published_verdict(item: &Item, test: &Test) -> ClaimVerdict {
    let number = |(row, column): CellName<'_>| item.published(row, column);
    let of = |c: &Comparison<'_>| {
        let left = number(c.left)?;
        let right = c.right.map_or(Some(0.0), |(factor, right)| number(right).map(|right| factor * right))?;
        Some((if c.bound.holds(left - right) { BoundVerdict::Yes } else { BoundVerdict::No }, c.is_lenient))
    };
    let told: Option<Vec<_>> = test.comparisons().iter().map(of).collect();
    told.map_or(ClaimVerdict::NotTested, |told| ClaimVerdict::of(&told))
}

/// The verdict of the measured cells on a comparison, and a line that explains it.
fn tell(measured: &MeasuredItem<'_>, c: &Comparison<'_>) -> Result<(BoundVerdict, String), UsageError> {
    let name = |(row, column): CellName<'_>| format!("{row}, {column}");
    let Some(left) = measured.spot(c.left.0, c.left.1)? else {
        return Ok((BoundVerdict::Unmeasured, format!("{}: not measured", name(c.left))));
    };
    let (what, estimate) = match c.right {
        None => (name(c.left), left.estimate()),
        Some((factor, right)) => {
            let Some(spot) = measured.spot(right.0, right.1)? else {
                return Ok((BoundVerdict::Unmeasured, format!("{}: not measured", name(right))));
            };
            (between(c.left, factor, right), left.less(factor, &spot))
        }
    };
    let Some(estimate) = estimate else { return Ok((BoundVerdict::Unmeasured, format!("{what}: not measured"))) };
    let told = c.bound.told(&estimate);
    let answer = match told {
        BoundVerdict::Yes => "yes",
        BoundVerdict::No => "no",
        _ => "open",
    };
    let interval =
        estimate.ends.map_or("no interval".to_owned(), |(low, high)| format!("{} to {}", short(low), short(high)));
    Ok((told, format!("{what}: {} [{interval}], {}? {answer}", short(estimate.mean), c.bound)))
}

/// The difference of two cells as text, without repeating what both share.
fn between((row, column): CellName<'_>, factor: f64, (other, from): CellName<'_>) -> String {
    let times = if factor == 1.0 { String::new() } else { format!("{factor} × ") };
    match (row == other, column == from) {
        (_, true) => format!("{column}: {row} − {times}{other}"),
        (true, _) => format!("{row}: {column} − {times}{from}"),
        _ => format!("({row}, {column}) − {times}({other}, {from})"),
    }
}

/// A number with a readable number of digits.
pub fn short(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 100.0 || x == 0.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.01 => 4,
        _ => 6,
    };
    let text = format!("{x:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}
