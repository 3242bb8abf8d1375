//! The verdicts on an item's claims, from an outcome's measured numbers and from the published ones.

use super::claim::Claim;
use super::claims::{BoundVerdict, CellName, ClaimVerdict, Comparison, Test};
use super::experiment::{Experiment, Tried};
use super::item::{Item, Line};
use super::measure::apart;
use super::numbers::{short, with_interval};
use super::outcome::{ItemOutcome, Judged, Number, TIMES, Unjudged};
use super::variant::Variant;
use spattn_stats::Estimate;

/// What the numbers say about a comparison.
struct Told {
    answer: BoundVerdict,
    text: String,
    unjudged: Option<Unjudged>,
    n: Option<usize>,
}

/// Returns the claims of an item with their verdicts on an outcome's numbers.
pub fn verdicts(item: &Item, outcome: &ItemOutcome) -> Vec<Judged> {
    item.claims.iter().map(|claim| judged(item, claim, outcome)).collect()
}

/// What an outcome's numbers say about a test.
#[derive(Default)]
struct Tested {
    /// The verdict of each comparison, with whether it is lenient.
    told: Vec<(BoundVerdict, bool)>,
    why: Vec<String>,
    n: Option<usize>,
    unjudged: Option<Unjudged>,
}

/// Returns the comparisons of a test that concern an outcome, each with what the numbers say about it.
fn told<'a>(item: &Item, test: &'a Test, outcome: &ItemOutcome) -> Vec<(Comparison<'a>, Told)> {
    let of = |comparison: Comparison<'a>| {
        // Times have an outcome of their own.
        let is_time = item.columns.iter().any(|line| line.name == comparison.left.1 && item.is_time(line));
        let tokens = item.length_of(comparison.left, outcome.run().variant);
        // Both ends of a range are shares, or neither is: if the length is unknown, both are left out.
        let comparison = comparison.at_length(tokens).filter(|_| is_time == (outcome.variant == TIMES))?;
        let told = tell(item, outcome, &comparison);
        Some((comparison, told))
    };
    test.comparisons().into_iter().filter_map(of).collect()
}

/// Returns the cells of each comparison of a test that was measured and judged.
pub fn deciding<'a>(item: &Item, test: &'a Test, outcome: &ItemOutcome) -> Vec<Vec<CellName<'a>>> {
    let cells = |(comparison, told): (Comparison<'a>, Told)| {
        let cells = [Some(comparison.left), comparison.right.map(|(_, right)| right)];
        told.n.map(|_| cells.into_iter().flatten().collect())
    };
    told(item, test, outcome).into_iter().filter_map(cells).collect()
}

fn tested(item: &Item, test: &Test, outcome: &ItemOutcome) -> Tested {
    let mut all = Tested::default();
    for (comparison, one) in told(item, test, outcome) {
        add_answer(&mut all.told, &comparison, one.answer);
        all.n = all.n.into_iter().chain(one.n).min();
        all.unjudged = all.unjudged.or(one.unjudged);
        // Single steps are listed only if they are contradicted or unmeasured.
        let is_worth = !comparison.is_lenient || matches!(one.answer, BoundVerdict::No | BoundVerdict::Unmeasured);
        if is_worth && outcome.is_measured() && !all.why.contains(&one.text) {
            all.why.push(one.text);
        }
    }
    all
}

/// Adds the answer of a comparison, with whether it is lenient. Both ends of a range are merged into one answer.
fn add_answer(told: &mut Vec<(BoundVerdict, bool)>, comparison: &Comparison<'_>, answer: BoundVerdict) {
    let lower = if comparison.ends_range { told.pop() } else { None };
    let answer = lower.map_or(answer, |(lower, _)| lower.of_range(answer));
    told.push((answer, comparison.is_lenient));
}

/// Returns what the experiments on a claim found, as far as they are on the outcome's run.
fn tried(item: &Item, claim: &Claim, outcome: &ItemOutcome) -> Vec<Tried> {
    let is_own = |experiment: &&Experiment| outcome.variant == experiment.variant.name();
    let of = |experiment: &Experiment| {
        let Tested { told, why, n, .. } = tested(item, &experiment.test, outcome);
        let answer = ClaimVerdict::of(&told);
        Tried {
            asks: experiment.asks.clone(),
            answer,
            n: n.filter(|_| answer != ClaimVerdict::NotTested),
            why,
            means: experiment.meaning(answer).cloned(),
        }
    };
    claim.experiments.iter().filter(is_own).map(of).collect()
}

fn judged(item: &Item, claim: &Claim, outcome: &ItemOutcome) -> Judged {
    let Claim { says, test, missing, because, .. } = claim;
    let Tested { told, mut why, n, unjudged } =
        test.as_ref().map_or(Tested::default(), |test| tested(item, test, outcome));
    why.extend(missing.iter().map(|missing| format!("missing: {missing}")));
    let measured = match (ClaimVerdict::of(&told), &claim.by_construction) {
        // Numbers that contradict a definition must be reported.
        (told @ (ClaimVerdict::NotTested | ClaimVerdict::DoesNotHold), _) | (told, None) => told,
        (_, Some(_)) => ClaimVerdict::ByConstruction,
    };
    let because = match outcome.variant.as_str() {
        "paper" => &because.paper,
        "builtin" => &because.builtin,
        "real" => &because.real,
        TIMES => &because.times,
        _ => &None,
    };
    Judged {
        says: says.clone(),
        published: test.as_ref().map_or(ClaimVerdict::NotTested, |test| published_verdict(item, test)),
        measured,
        unjudged: unjudged.filter(|_| measured == ClaimVerdict::NotTested),
        n: n.filter(|_| measured != ClaimVerdict::NotTested),
        why,
        because: because.clone().filter(|_| measured != ClaimVerdict::NotTested),
        // A claim that holds needs no explanation.
        tried: match measured {
            ClaimVerdict::NotTested | ClaimVerdict::Holds => Vec::new(),
            _ => tried(item, claim, outcome),
        },
    }
}

/// Returns the verdict of the published numbers on a test; not tested if one is missing.
pub fn published_verdict(item: &Item, test: &Test) -> ClaimVerdict {
    let number = |(row, column): CellName<'_>| item.published(row, column);
    let of = |c: &Comparison<'_>| {
        let c = c.clone().at_length(item.length_of(c.left, Variant::Paper))?;
        let left = number(c.left)?;
        let right = c.right.map_or(Some(0.0), |(factor, right)| number(right).map(|right| factor * right))?;
        Some(if c.bound.holds(left - right) { BoundVerdict::Yes } else { BoundVerdict::No })
    };
    let mut told = Vec::new();
    for comparison in test.comparisons() {
        let Some(answer) = of(&comparison) else { return ClaimVerdict::NotTested };
        add_answer(&mut told, &comparison, answer);
    }
    ClaimVerdict::of(&told)
}

/// Judges a comparison by the measured cells, and explains the answer in a line of text.
fn tell(item: &Item, outcome: &ItemOutcome, c: &Comparison<'_>) -> Told {
    let unmeasured = |text: String| Told { answer: BoundVerdict::Unmeasured, text, unjudged: None, n: None };
    let row = |name: &str| item.rows.iter().find(|line| line.name == name);
    if let (Some((_, right)), run) = (c.right, outcome.run())
        && let (Some(a), Some(b)) = (row(c.left.0), row(right.0))
        && !run.compares(item, a, b)
    {
        return unmeasured(format!("{}: two models, of which one was run", between(c.left, c.right)));
    }
    let mut cells: Vec<(Number, bool)> = Vec::new();
    for cell in [Some(c.left), c.right.map(|(_, right)| right)].into_iter().flatten() {
        match outcome.number(cell.0, cell.1) {
            Some(number) => cells.push(number),
            None => return unmeasured(format!("{}, {}: not measured", cell.0, cell.1)),
        }
    }
    let (known_as, what) = (between(c.left, c.right), between_shown(outcome, c));
    if cells.iter().any(|(_, at_floor)| *at_floor) {
        let floor = outcome.floors.iter().find_map(|floor| floor.strip_prefix(&format!("{}: ", c.left.1)));
        let floor = floor.unwrap_or("dense attention is at the floor there");
        let text = format!("{what}: not judged, since {floor}");
        return Told { unjudged: Some(Unjudged::DenseAtFloor), ..unmeasured(text) };
    }
    let of = |number: &Number| Estimate { mean: number.mean, ends: number.ends };
    // Comparisons that were read from text are named after the rows shown there.
    let known = outcome.compared.iter().find(|known| known.what == known_as || known.what == what);
    let (estimate, remark) = match (known, c.right, cells.as_slice()) {
        (Some(known), ..) => (Estimate { mean: known.mean, ends: known.ends }, ""),
        (None, Some((factor, _)), [(left, _), (right, _)]) => {
            (apart(of(left), factor, of(right)), " (of stored means, not paired)")
        }
        (None, _, [(left, _), ..]) => (of(left), ""),
        (None, _, []) => return unmeasured(format!("{what}: not measured")),
    };
    let answer = c.bound.told(&estimate);
    // An open lenient comparison does not weaken a claim, so the ceiling does not matter to it.
    if answer == BoundVerdict::Open && !c.is_lenient && are_at_ceiling(item, c, &cells) {
        let text = format!("{what}: not judged, since both have all points here; harder prompts would tell");
        return Told { unjudged: Some(Unjudged::BothAtCeiling), ..unmeasured(text) };
    }
    let word = match answer {
        BoundVerdict::Yes => "yes",
        BoundVerdict::No => "no",
        _ => "open",
    };
    let (mean, interval) = match estimate.ends {
        None => (short(estimate.mean), "no interval".to_owned()),
        Some(ends) => match with_interval(estimate.mean, ends) {
            (mean, Some((low, high))) => (mean, format!("{low} to {high}")),
            (mean, None) => (mean, format!("{} to {}", short(ends.0), short(ends.1))),
        },
    };
    let text = format!("{what}: {mean} [{interval}], {}? {word}{remark}", c.bound_text());
    Told { answer, text, unjudged: None, n: cells.iter().map(|(number, _)| number.n).min() }
}

/// Whether a comparison asks which of two scores is higher, and both have all points. No number of examples can decide it then.
fn are_at_ceiling(item: &Item, c: &Comparison<'_>, cells: &[(Number, bool)]) -> bool {
    const ALL: f64 = 100.0;
    let line = |lines: &[Line], name: &str| lines.iter().find(|line| line.name == name).cloned();
    let is_score = |(row, column): CellName<'_>| {
        let lines = line(&item.rows, row).zip(line(&item.columns, column));
        lines.is_some_and(|(row, column)| item.value(&row, &column).is_score())
    };
    let Some((factor, right)) = c.right else { return false };
    let has_all = |(number, _): &(Number, bool)| number.mean == ALL && number.ends.is_none_or(|(_, high)| high <= ALL);
    factor == 1.0 && c.bound.number() == 0.0 && is_score(c.left) && is_score(right) && cells.iter().all(has_all)
}

/// Names a comparison by the rows that its numbers belong to: measured values are named after the model that was run.
fn between_shown(outcome: &ItemOutcome, c: &Comparison<'_>) -> String {
    let shown = |(row, column)| (outcome.shown_row(row, column), column);
    between(shown(c.left), c.right.map(|(factor, right)| (factor, shown(right))))
}

/// Writes a comparison as text, without repeating what its two cells share.
pub(super) fn between((row, column): CellName<'_>, right: Option<(f64, CellName<'_>)>) -> String {
    let Some((factor, (other, from))) = right else { return format!("{row}, {column}") };
    let times = if factor == 1.0 { String::new() } else { format!("{factor} × ") };
    match (row == other, column == from) {
        (_, true) => format!("{column}: {row} − {times}{other}"),
        (true, _) => format!("{row}: {column} − {times}{from}"),
        _ => format!("({row}, {column}) − {times}({other}, {from})"),
    }
}
