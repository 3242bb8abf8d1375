//! Makes the outcome of a run from what was measured, and judges stored outcomes again by the item's present file, whose claims may have
//! changed after the run.

use super::claim::Claim;
use super::claims::{Comparison, Test};
use super::floor::why_at_chance;
use super::item::{Item, Line, Select};
use super::measure::{Evidence, MeasuredItem};
use super::outcome::{Cell, CellOutcome, Compared, ItemOutcome, Number, OutcomeRow, TIMES, model_title};
use super::run_of::{BUILTIN, Role, RunOf};
use super::times::ReferenceBench;
use super::variant::Variant;
use super::verdicts::{between, verdicts};
use spattn_base::error::UsageError;
use spattn_eval::records::record::REFERENCE;
use spattn_stats::Estimate;

/// Returns the outcome of a run of `item`; it has only the published numbers if nothing was measured.
///
/// # Errors
/// As [`MeasuredItem::spot`]: if rows and columns select something that analyses do not have.
pub fn judge(name: &str, item: &Item, run: RunOf<'_>, evidence: Evidence<'_>) -> Result<ItemOutcome, UsageError> {
    let measured = MeasuredItem::of_run(item, run, evidence);
    let variant = if measured.is_some() { run.variant.name() } else { "" };
    let outcome = outcome(name, item, (variant, run), measured.as_ref())?;
    let unmeasured = if evidence.seen.is_empty() { Vec::new() } else { unmeasured(item, run, &outcome) };
    Ok(ItemOutcome { unmeasured, ..outcome })
}

/// Returns the rows and columns that the run should have numbers for, but does not.
fn unmeasured(item: &Item, run: RunOf<'_>, outcome: &ItemOutcome) -> Vec<String> {
    let is_asked = |line: &&Line| {
        run.role(item, line) != Role::None && line.select(run.variant).missing.is_none() && !item.is_time(line)
    };
    let has = |row: &Line, column: &Line| outcome.number(&row.name, &column.name).is_some();
    let rows = item.rows.iter().filter(is_asked).filter(|row| !item.columns.iter().any(|column| has(row, column)));
    let columns = item.columns.iter().filter(is_asked).filter(|column| !item.rows.iter().any(|row| has(row, column)));
    rows.chain(columns).map(|line| line.name.clone()).collect()
}

/// Returns the outcome of an item's times; `None` if it has none.
///
/// # Errors
/// If a table of times cannot be read, or a cell selects several times.
pub fn judge_times(name: &str, item: &Item) -> Result<Option<ItemOutcome>, UsageError> {
    let Some(measured) = MeasuredItem::of_times(item)? else { return Ok(None) };
    let ran = item.bench.as_ref().map_or(Ok(Vec::new()), facts)?;
    Ok(Some(ItemOutcome { ran, ..outcome(name, item, (TIMES, RunOf::AS_NAMED), Some(&measured))? }))
}

/// Returns which tables of times an item is judged by, and the commands that make them.
fn facts(bench: &ReferenceBench) -> Result<Vec<(String, String)>, UsageError> {
    let times = bench.read()?;
    let quoted = |all: &[String]| all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ");
    let places = format!("{}, on {}", quoted(&times.places), times.machine());
    Ok(vec![("times".to_owned(), places), ("made by".to_owned(), quoted(&bench.commands))])
}

fn outcome(
    name: &str,
    item: &Item,
    (variant, run): (&str, RunOf<'_>),
    measured: Option<&MeasuredItem<'_>>,
) -> Result<ItemOutcome, UsageError> {
    let mut floors: Vec<String> = Vec::new();
    let mut cells = Vec::new();
    for row in &item.rows {
        for column in &item.columns {
            let Some(spot) = measured.map(|m| m.spot(&row.name, &column.name)).transpose()?.flatten() else { continue };
            let Some(Estimate { mean, ends }) = spot.estimate() else { continue };
            if let Some(floor) = spot.at_floor() {
                let text = format!("{}: {floor}", column.name);
                floors.extend((!floors.contains(&text)).then_some(text));
            }
            let (n, most) = spot.contexts();
            let number = Number { mean, ends, n, most, is_named: spot.is_named() };
            let cell = (number.stored(), spot.at_floor().is_some());
            cells.push(((row.name.as_str(), column.name.as_str()), cell));
        }
    }
    let compared = measured.map_or(Ok(Vec::new()), |measured| compared(item, measured))?;
    let number = |row: &str, column: &str| cells.iter().find(|(at, _)| *at == (row, column)).map(|(_, cell)| *cell);
    let mut outcome = ItemOutcome {
        name: name.to_owned(),
        variant: variant.to_owned(),
        model: run.model.unwrap_or_default().to_owned(),
        rows: rows(item, run, number),
        compared,
        floors,
        ..ItemOutcome::default()
    };
    outcome.take_texts(item);
    outcome.claims = verdicts(item, &outcome);
    Ok(outcome)
}

/// Returns all comparisons of the claims that could be measured.
fn compared(item: &Item, measured: &MeasuredItem<'_>) -> Result<Vec<Compared>, UsageError> {
    let mut all: Vec<Compared> = Vec::new();
    for comparison in item.claims.iter().flat_map(Claim::tests).flat_map(Test::comparisons) {
        let Comparison { left, right, .. } = comparison;
        let what = between(left, right);
        if all.iter().any(|known| known.what == what) {
            continue;
        }
        let Some(spot) = measured.spot(left.0, left.1)? else { continue };
        let estimate = match right {
            None => spot.estimate(),
            Some((factor, right)) => measured.spot(right.0, right.1)?.and_then(|other| spot.less(factor, &other)),
        };
        all.extend(estimate.map(|Estimate { mean, ends }| Compared { what, mean, ends }.stored()));
    }
    Ok(all)
}

/// Returns the rows of a run's table. `number` gives the measured number of a cell of the item.
fn rows(item: &Item, run: RunOf<'_>, number: impl Fn(&str, &str) -> Option<Cell>) -> Vec<OutcomeRow> {
    let cells = |row: &Line, is_own: bool| -> Vec<CellOutcome> {
        let cell = |column: &Line| {
            let is_measured = is_own == (run.role(item, row) == Role::Own);
            let (measured, at_floor) = number(&row.name, &column.name).filter(|_| is_measured).unzip();
            let published = if is_own { item.published(&row.name, &column.name) } else { None };
            CellOutcome { published, measured, at_floor: at_floor.unwrap_or(false) }
        };
        item.columns.iter().map(cell).collect()
    };
    let method = |row: &Line| row.select(run.variant).method;
    let own = |row: &Line| OutcomeRow {
        name: row.name.clone(),
        method: method(row),
        stands_for: Vec::new(),
        cells: cells(row, true),
    };
    let mut all: Vec<OutcomeRow> = item.rows.iter().map(own).collect();
    let mut others: Vec<(Select, OutcomeRow)> = Vec::new();
    for row in item.rows.iter().filter(|row| run.role(item, row) == Role::StandIn) {
        let cells = cells(row, false);
        if cells.iter().all(|cell| cell.measured.is_none()) {
            continue;
        }
        // Rows that differ by their model alone have the same numbers in this run.
        let select = Select { model: None, ..row.select(run.variant) };
        match others.iter_mut().find(|(other, _)| *other == select) {
            Some((_, other)) => other.stands_for.push(row.name.clone()),
            None => {
                let name = stand_in_name(row, &select, run.model.unwrap_or_default());
                let stands_for = vec![row.name.clone()];
                others.push((select, OutcomeRow { name, method: method(row), stands_for, cells }));
            }
        }
    }
    all.extend(others.into_iter().map(|(_, row)| row));
    all
}

/// Names a row of another model than the paper's: its label or method, and the model that was run.
fn stand_in_name(row: &Line, select: &Select, model: &str) -> String {
    /// Parameters that a table's methods share.
    const SHARED: [&str; 3] = ["sink=", "local=", "dense_layers="];
    let short = |spec: &String| {
        let (method, params) = spec.split_once(':').unwrap_or((spec, ""));
        let own: Vec<&str> =
            params.split(',').filter(|part| !SHARED.iter().any(|shared| part.starts_with(shared))).collect();
        if own.iter().all(|part| part.is_empty()) { method.to_owned() } else { format!("{method} {}", own.join(", ")) }
    };
    match row.label.clone().or_else(|| select.method.as_ref().map(short)) {
        Some(label) => format!("{label} on {}", model_title(model)),
        None => model_title(model),
    }
}

impl ItemOutcome {
    /// Updates a stored outcome to the item's present file: its texts, rows, columns and claims, with the measured numbers.
    pub fn as_of(mut self, item: &Item) -> Self {
        if self.model.is_empty() && self.variant == Variant::Builtin.name() {
            self.model = BUILTIN.to_owned();
        }
        if self.compared.is_empty() {
            self.compared =
                self.claims.iter().flat_map(|claim| &claim.why).filter_map(|line| read_line(line)).collect();
        }
        let variant = self.run().variant;
        let number = |row: &str, column: &str| {
            let is_time = item.columns.iter().find(|line| line.name == column).is_some_and(|line| item.is_time(line));
            // Stored numbers of a line that the present file calls missing are of other cells.
            let is_kept = !is_time && !item.is_missing(row, column, variant);
            self.number(row, column).filter(|_| is_kept).map(|(number, at_floor)| (number.stored(), at_floor))
        };
        let rows = rows(item, self.run(), number);
        self.rows = rows;
        self.take_texts(item);
        self.mark_chance(item);
        if !self.is_measured() {
            self.variant = String::new();
        }
        self.claims = verdicts(item, &self);
        self
    }

    /// Marks scores at places where dense attention scores what guessing does, as a run does. A stored outcome may predate what is known of
    /// a task's options.
    fn mark_chance(&mut self, item: &Item) {
        let places = item.rows.iter().flat_map(|row| item.columns.iter().map(move |column| (row, column)));
        let found: Vec<_> = places
            .filter_map(|(row, column)| {
                Some((row.name.as_str(), column.name.as_str(), self.at_chance(item, row, column)?))
            })
            .collect();
        for (row, column, why) in found {
            let text = format!("{column}: {why}");
            self.floors.extend((!self.floors.contains(&text)).then_some(text));
            let Some(at) = self.columns.iter().position(|name| name == column) else { continue };
            let is_of = |own: &&mut OutcomeRow| own.name == row || own.stands_for.iter().any(|name| name == row);
            for cell in self.rows.iter_mut().filter(is_of).filter_map(|own| own.cells.get_mut(at)) {
                cell.at_floor = cell.measured.is_some();
            }
        }
    }

    /// Returns why a score is not judged, if dense attention scores what guessing does on its tasks.
    fn at_chance(&self, item: &Item, row: &Line, column: &Line) -> Option<String> {
        let variant = self.run().variant;
        if !item.value(row, column).is_score() {
            return None;
        }
        let (of_row, of_column) = (row.select(variant), column.select(variant));
        let tasks = of_column.tasks.or(of_row.tasks).or_else(|| item.settings(variant)?.tasks)?;
        let is_dense = |line: &&Line| line.select(variant).method.as_deref() == Some(REFERENCE);
        let (dense, _) = if of_row.method.is_some() {
            item.rows.iter().filter(is_dense).find_map(|dense| self.number(&dense.name, &column.name))?
        } else {
            item.columns.iter().filter(is_dense).find_map(|dense| self.number(&row.name, &dense.name))?
        };
        why_at_chance(&Estimate { mean: dense.mean, ends: dense.ends }, &tasks)
    }

    /// Takes over the texts and columns of the item's file, which a run does not change.
    fn take_texts(&mut self, item: &Item) {
        let Item { title, missing, nearest, note, columns, .. } = item.clone();
        self.columns = columns.into_iter().map(|column| column.name).collect();
        (self.title, self.missing, self.nearest, self.note) = (title, missing, nearest, note);
    }
}

/// Reads a comparison from its line of text, which older results have: `WHAT: MEAN [LOW to HIGH], BOUND? ANSWER`.
fn read_line(line: &str) -> Option<Compared> {
    let (head, rest) = line.rsplit_once(" [")?;
    let (what, mean) = head.rsplit_once(": ")?;
    let (interval, _) = rest.split_once("], ")?;
    let ends = interval.split_once(" to ").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    Some(Compared { what: what.to_owned(), mean: mean.parse().ok()?, ends })
}

#[cfg(test)]
mod tests {
    use super::super::claims::ClaimVerdict;
    use super::super::experiment::Cause;
    use super::super::outcome::Unjudged;
    use super::*;
    use spattn_eval::records::interning::Interned;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::records::timing::{Latency, Solo, TimingConditions};

    const ITEM: &str = "
title = 'two models'
[run]
model = ['x/One', 'x/Two']
tasks = ['ruler/vt']
[builtin]
[real]
[[row]]
name = 'One Full'
model = 'x/One'
method = 'full'
[[row]]
name = 'One Top'
model = 'x/One'
method = 'topk:k=8,sink=4,local=64'
[[row]]
name = 'Two Full'
model = 'x/Two'
method = 'full'
[[column]]
name = 'VT'
tasks = ['ruler/vt']
[[published]]
row = 'One Full'
values = { VT = 90 }
[[published]]
row = 'One Top'
values = { VT = 70 }
[[claim]]
says = 'dense is above'
test = { above = { rows = ['One Full'], than = ['One Top'], columns = ['VT'], by = 10 } }
[[claim]]
says = 'the models differ'
test = { above = { rows = ['One Full'], than = ['Two Full'], columns = ['VT'] } }
";

    /// Returns records of `full` and top-k with these scores.
    fn records(full: f64, top: f64) -> Vec<Record> {
        let of = |method: &str, params: &str, i: usize, share: f64| Record {
            params: params.into(),
            ..record("ruler/vt", method, i, f64::from(u8::from((i as f64) < 40.0 * share)))
        };
        (0..40).flat_map(|i| [of("full", "", i, full), of("topk", "k=8", i, top)]).collect()
    }

    fn of(model: Option<&str>, variant: Variant, records: &[Record]) -> (Item, ItemOutcome) {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let evidence = Evidence { records, ..Evidence::default() };
        let outcome = judge("p/t", &item, RunOf { variant, model }, evidence).unwrap();
        (item, outcome)
    }

    #[test]
    fn the_numbers_of_another_model_are_rows_of_their_own() {
        let (_, outcome) = of(Some(BUILTIN), Variant::Builtin, &records(1.0, 0.5));
        let named: Vec<(&str, Option<f64>, Option<f64>)> = outcome
            .rows
            .iter()
            .map(|row| (row.name.as_str(), row.cells[0].published, row.cells[0].measured.map(|m| m.mean)))
            .collect();
        assert_eq!(
            named,
            [
                ("One Full", Some(90.0), None),
                ("One Top", Some(70.0), None),
                ("Two Full", None, None),
                ("full on built-in 11M", None, Some(100.0)),
                ("topk k=8 on built-in 11M", None, Some(50.0)),
            ]
        );
        assert_eq!(outcome.rows[3].stands_for, ["One Full", "Two Full"]);
        let verdicts: Vec<_> = outcome.claims.iter().map(|claim| claim.measured).collect();
        assert_eq!(verdicts, [ClaimVerdict::Holds, ClaimVerdict::NotTested], "one model is not compared with itself");
        let (_, own) = of(Some("./One"), Variant::Paper, &records(1.0, 0.5));
        assert!(
            own.rows.len() == 3 && own.rows[0].cells[0].measured.is_some() && own.rows[2].cells[0].measured.is_none()
        );
    }

    #[test]
    fn comparisons_name_the_model_that_was_run() {
        let (item, outcome) = of(Some(BUILTIN), Variant::Builtin, &records(1.0, 0.5));
        let why = "VT: full on built-in 11M − topk k=8 on built-in 11M: 50.0";
        assert!(outcome.claims[0].why[0].starts_with(why), "{:?}", outcome.claims[0].why);
        let again = outcome.as_of(&item);
        assert!(again.claims[0].why[0].starts_with(why), "judged again: {:?}", again.claims[0].why);
        let (_, own) = of(Some("./One"), Variant::Paper, &records(1.0, 0.5));
        assert!(own.claims[0].why[0].starts_with("VT: One Full − One Top: "), "{:?}", own.claims[0].why);
    }

    #[test]
    fn nothing_is_told_where_dense_attention_is_at_the_floor() {
        let (_, outcome) = of(Some("SmolLM2"), Variant::Real, &records(0.075, 0.0));
        let claim = &outcome.claims[0];
        assert_eq!((claim.measured, claim.unjudged), (ClaimVerdict::NotTested, Some(Unjudged::DenseAtFloor)));
        assert!(claim.why[0].contains("dense attention scores 7.5"), "{:?}", claim.why);
        assert!(outcome.floors[0].starts_with("VT: dense attention scores 7.5"), "{:?}", outcome.floors);
        assert!(outcome.rows[3].cells[0].at_floor);
    }

    #[test]
    fn a_stored_score_that_guessing_reaches_is_not_judged() {
        let text = ITEM.replace("ruler/vt", "gen/mmlu_flan_cot");
        let item = Item::parse(&text, "item.toml").unwrap();
        let judged = |full: f64| {
            let run = RunOf { variant: Variant::Real, model: Some("SmolLM2") };
            let records: Vec<Record> = records(full, 0.0)
                .into_iter()
                .map(|record| Record { task: "gen/mmlu_flan_cot".into(), ..record })
                .collect();
            let made = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
            // The outcome as older versions stored it.
            let mut stored = ItemOutcome { floors: Vec::new(), ..made.clone() };
            stored.rows.iter_mut().flat_map(|row| &mut row.cells).for_each(|cell| cell.at_floor = false);
            (made, stored.as_of(&item))
        };
        for (full, unjudged) in [(0.3, Some(Unjudged::DenseAtFloor)), (0.9, None)] {
            let (made, stored) = judged(full);
            assert_eq!(stored.claims[0].unjudged, unjudged);
            assert_eq!((&stored.floors, &stored.rows, &stored.claims), (&made.floors, &made.rows, &made.claims));
        }
    }

    #[test]
    fn nothing_is_told_of_which_is_higher_where_both_methods_have_all_points() {
        let judged = |by: &str, top: f64| {
            let item = Item::parse(&ITEM.replace("by = 10", by), "item.toml").unwrap();
            let (records, run) = (records(1.0, top), RunOf { variant: Variant::Real, model: Some("SmolLM2") });
            let outcome = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
            outcome.claims[0].clone()
        };
        let claim = judged("by = 0", 1.0);
        assert_eq!((claim.measured, claim.unjudged), (ClaimVerdict::NotTested, Some(Unjudged::BothAtCeiling)));
        assert!(claim.why[0].contains("both have all points"), "{:?}", claim.why);
        // A step between two methods that do not differ does not weaken a rise.
        let rises = ITEM.replace(
            "test = { above = { rows = ['One Full'], than = ['One Top'], columns = ['VT'], by = 10 } }",
            "test = { rises = { rows = ['One Random', 'One Top', 'One Full'], columns = ['VT'], over_rows = true } }",
        );
        let rises = rises.replace(
            "[[row]]\nname = 'Two Full'",
            "[[row]]\nname = 'One Random'\nmodel = 'x/One'\nmethod = 'random:k=8,sink=4,local=64'\n[[row]]\nname = 'Two Full'",
        );
        let item = Item::parse(&rises, "item.toml").unwrap();
        let of_random = |i: usize| Record { params: "k=8".into(), ..record("ruler/vt", "random", i, 0.0) };
        let records: Vec<Record> = records(1.0, 1.0).into_iter().chain((0..40).map(of_random)).collect();
        let run = RunOf { variant: Variant::Real, model: Some("SmolLM2") };
        let outcome = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
        assert_eq!((outcome.claims[0].measured, outcome.claims[0].unjudged), (ClaimVerdict::Holds, None));
        // Forty examples show that one is not ten points above the other; more would settle five points.
        let told = [("by = 10", 1.0), ("by = 5", 1.0), ("by = 0", 0.975)].map(|(by, top)| judged(by, top));
        assert_eq!(
            told.map(|c| (c.measured, c.unjudged)),
            [(ClaimVerdict::DoesNotHold, None), (ClaimVerdict::CannotBeTold, None), (ClaimVerdict::CannotBeTold, None),]
        );
    }

    #[test]
    fn stored_outcomes_are_judged_by_the_claims_of_today() {
        let (item, outcome) = of(Some(BUILTIN), Variant::Builtin, &records(1.0, 0.5));
        let text = serde_json::to_string(&outcome).unwrap();
        let read: ItemOutcome = serde_json::from_str(&text).unwrap();
        // The last digit of a number may differ once it was read, so `read` is the reference.
        assert_eq!(read.clone().as_of(&item), read);
        assert_eq!(read.claims, outcome.claims);
        // A stricter bound is judged by the stored interval of the pairs.
        let stricter = Item::parse(&ITEM.replace("by = 10", "by = 60"), "item.toml").unwrap();
        assert_eq!(read.clone().as_of(&stricter).claims[0].measured, ClaimVerdict::CannotBeTold);
        // Stored numbers of a row that the present file calls missing are dropped.
        let without = ITEM.replace("name = 'One Top'", "name = 'One Top'\nbuiltin = { missing = 'no such model' }");
        let without = read.clone().as_of(&Item::parse(&without, "item.toml").unwrap());
        let measured =
            |of: &ItemOutcome| of.rows.iter().flat_map(|row| &row.cells).filter(|x| x.measured.is_some()).count();
        assert_eq!(measured(&without) + 1, measured(&read));
        assert_eq!(without.claims[0].measured, ClaimVerdict::NotTested);
        // A comparison that was in no claim at the time of the run is made from the stored cells.
        let other = ITEM.replace("rows = ['One Full'], than = ['One Top']", "rows = ['One Top'], than = ['One Full']");
        let other = read.as_of(&Item::parse(&other, "item.toml").unwrap());
        assert_eq!(other.claims[0].measured, ClaimVerdict::DoesNotHold);
        assert!(other.claims[0].why[0].contains("not paired"), "{:?}", other.claims[0].why);
    }

    #[test]
    fn a_row_without_cells_leaves_a_column_of_the_same_name_as_it_is() {
        let (_, outcome) = of(Some(BUILTIN), Variant::Builtin, &records(1.0, 0.5));
        let row = "[[row]]\nname = 'VT'\nmethod = 'full'\nbuiltin = { missing = 'not here' }\n[[column]]";
        let item = Item::parse(&ITEM.replace("[[column]]", row), "item.toml").unwrap();
        let drawn = outcome.clone().as_of(&item);
        assert_eq!(drawn.number("One Top", "VT"), outcome.number("One Top", "VT"));
        assert!(drawn.is_measured() && drawn.claims[0].measured == outcome.claims[0].measured);
    }

    #[test]
    fn results_of_older_versions_are_read() {
        let (item, outcome) = of(Some(BUILTIN), Variant::Builtin, &records(1.0, 0.5));
        let mut old = outcome.clone();
        // Older outcomes had measured numbers in the rows of the paper's models, and comparisons as text alone.
        old.rows.truncate(3);
        for (at, from) in [(0, 3), (1, 4), (2, 3)] {
            old.rows[at].cells[0].measured = outcome.rows[from].cells[0].measured;
        }
        (old.compared, old.model) = (Vec::new(), String::new());
        let new = old.as_of(&item);
        assert_eq!(new.rows, outcome.rows);
        assert_eq!(new.claims[0].measured, ClaimVerdict::Holds);
        assert!(!new.claims[0].why[0].contains("not paired"), "{:?}", new.claims[0].why);
        let line = "Avg.: A [x] − 0.5 × B: -1.5 [-2 to 0.25], at most 0? open";
        let expected = Compared { what: "Avg.: A [x] − 0.5 × B".into(), mean: -1.5, ends: Some((-2.0, 0.25)) };
        assert_eq!(read_line(line), Some(expected));
        assert_eq!(read_line("Gone, VT: not measured"), None);
    }

    #[test]
    fn times_are_judged_apart_and_definitions_are_no_findings() {
        let text = "
title = 'a'
[builtin]
tasks = ['ruler/vt']
[bench]
tables = ['hash_figure4']
commands = []
[[row]]
name = 'Full'
method = 'full'
time = { method = 'full' }
[[column]]
name = 'VT'
[[column]]
name = 'Time'
time = { op = 'attention', context = 32768 }
[[claim]]
says = 'it solves it'
by_construction = 'it is dense'
because = { builtin = 'b', times = 't' }
test = { between = { rows = ['Full'], columns = ['VT'], at_least = 50 } }
[[claim]]
says = 'it takes no time'
because = { builtin = 'b', times = 't' }
test = { between = { rows = ['Full'], columns = ['Time'], at_most = 0.001 } }
";
        let item = Item::parse(text, "item.toml").unwrap();
        let records: Vec<_> = (0..20).map(|i| record("ruler/vt", "full", i, 1.0)).collect();
        let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
        let run = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
        let of = |outcome: &ItemOutcome| {
            outcome.claims.iter().map(|c| (c.measured, c.because.clone(), c.n.is_some())).collect::<Vec<_>>()
        };
        use ClaimVerdict::{ByConstruction, DoesNotHold, NotTested};
        assert_eq!(of(&run), [(ByConstruction, Some("b".into()), true), (NotTested, None, false)]);
        let times = judge_times("p/t", &item).unwrap().unwrap();
        assert_eq!(of(&times), [(NotTested, None, false), (DoesNotHold, Some("t".into()), true)]);
        let wrong = text.replace("at_least = 50", "at_most = 50");
        let wrong = run.clone().as_of(&Item::parse(&wrong, "item.toml").unwrap());
        assert_eq!(wrong.claims[0].measured, DoesNotHold, "what contradicts a definition is said");
        let range = text.replace("at_least = 50", "at_least = 10, at_most = 50");
        let outside = run.as_of(&Item::parse(&range, "item.toml").unwrap());
        assert_eq!(outside.claims[0].measured, DoesNotHold, "above a range is outside of it");
    }

    const TRIED: &str = "
title = 'why'
[builtin]
tasks = ['ruler/vt']
[real]
tasks = ['ruler/vt']
[latency.real]
lengths = [32768]
samples = 6
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=8'
[[row]]
name = 'Gone'
method = 'topk:k=9'
[[column]]
name = 'VT'
[[column]]
name = 'Step'
value = 'step_ms'
[[claim]]
says = 'top-k is above'
test = { above = { rows = ['Top'], than = ['Full'], columns = ['VT'] } }
[[claim.experiment]]
asks = 'Is dense attention above?'
test = { above = { rows = ['Full'], than = ['Top'], columns = ['VT'], by = 20 } }
yes = { due_to = 'model', says = 'Tokens are missing.' }
no = { due_to = 'program', says = 'Something is wrong.' }
[[claim.experiment]]
asks = 'Would nine do?'
test = { above = { rows = ['Gone'], than = ['Full'], columns = ['VT'] } }
yes = { due_to = 'budget', says = 'Nine do.' }
no = { says = 'Nine do not.' }
";

    #[test]
    fn an_experiment_means_what_its_answer_says_on_its_own_run_alone() {
        let item = Item::parse(TRIED, "item.toml").unwrap();
        let records = records(1.0, 0.5);
        let on = |variant: Variant, model: &str| {
            let run = RunOf { variant, model: Some(model) };
            judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap()
        };
        let outcome = on(Variant::Real, "Small");
        let tried = &outcome.claims[0].tried;
        let told: Vec<_> = tried.iter().map(|one| (one.word(), one.due_to())).collect();
        assert_eq!(told, [("yes", Some(Cause::Model)), ("not run yet", None)]);
        assert!(tried[0].why[0].ends_with("above 20? yes"), "paired as a claim's own: {:?}", tried[0].why);
        assert_eq!(tried[0].n, Some(40));
        assert!(on(Variant::Builtin, BUILTIN).claims[0].tried.is_empty());
        let held = TRIED.replace(
            "rows = ['Top'], than = ['Full'], columns = ['VT'] }",
            "rows = ['Full'], than = ['Top'], columns = ['VT'] }",
        );
        let held = on(Variant::Real, "Small").as_of(&Item::parse(&held, "item.toml").unwrap()).claims.remove(0);
        assert_eq!((held.measured, held.tried.len()), (ClaimVerdict::Holds, 0), "what holds is not explained");
        // Without records the answer comes from the stored numbers, also with another bound.
        let strict = Item::parse(&TRIED.replace("by = 20", "by = 90"), "item.toml").unwrap();
        let again = outcome.as_of(&strict).claims.remove(0).tried.remove(0);
        assert_eq!((again.word(), again.due_to()), ("no", Some(Cause::Program)));
    }

    #[test]
    fn a_multiple_of_a_perplexity_is_told_window_by_window() {
        use spattn_eval::records::testing::perplexity;
        let item = "
title = 'perplexities'
[real]
tasks = ['ppl/text']
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=8'
[[column]]
name = 'PPL'
[[claim]]
says = 'a quarter more'
test = { ratio = { row = 'Top', to = 'Full', columns = ['PPL'], at_least = 1.25 } }
[[claim]]
says = 'seven twentieths more'
test = { ratio = { row = 'Top', to = 'Full', columns = ['PPL'], at_least = 1.35 } }
";
        let item = Item::parse(item, "item.toml").unwrap();
        // Windows differ by far more than methods do: 1.3 times in each of them.
        let of = |i: usize| 2.0 + (i % 5) as f64 / 4.0;
        let top = |i: usize| Record { params: "k=8".into(), ..perplexity("topk", i, of(i) + 1.3f64.ln()) };
        let records: Vec<Record> = (0..20).flat_map(|i| [perplexity("full", i, of(i)), top(i)]).collect();
        let run = RunOf { variant: Variant::Real, model: Some("Small") };
        let outcome = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
        for (claim, verdict) in outcome.claims.iter().zip([ClaimVerdict::Holds, ClaimVerdict::DoesNotHold]) {
            assert_eq!(claim.measured, verdict, "{:?}", claim.why);
            assert!(!claim.why[0].contains("not paired"), "{:?}", claim.why);
        }
        // As independent numbers they would leave the comparison open.
        let [(full, _), (top, _)] = ["Full", "Top"].map(|row| outcome.number(row, "PPL").unwrap());
        let of = |number: Number| Estimate { mean: number.mean, ends: number.ends };
        assert!(super::super::measure::apart(of(top), 1.25, of(full)).low().unwrap() < 0.0);
    }

    #[test]
    fn times_of_steps_alone_come_from_the_run_that_took_them() {
        let item = Item::parse(TRIED, "item.toml").unwrap();
        let settings = item.latency_settings(Variant::Real).unwrap();
        assert_eq!((settings.lengths, settings.samples), (Some(vec![32768]), Some(6)));
        assert_eq!((settings.latency, settings.tasks), (Some(Latency::Solo), Some(vec!["ruler/vt".to_owned()])));
        assert!(item.latency_settings(Variant::Builtin).is_none());
        let timed = |i: usize, ms: f64| Record {
            length: 32768,
            solo: Some(Solo { steps: 16, ms: vec![ms].into() }.into()),
            ..record("ruler/vt", "full", i, 1.0)
        };
        let alone: Vec<Record> =
            [3.0, 1.0, 2.0, 9.0, 2.5, 2.2, 2.1].into_iter().enumerate().map(|(i, ms)| timed(i, ms)).collect();
        let records = records(1.0, 0.5);
        let run = RunOf { variant: Variant::Real, model: Some("Small") };
        let evidence = Evidence { records: &records, alone: &alone, seen: &[] };
        let outcome = judge("p/t", &item, run, evidence).unwrap();
        let (step, _) = outcome.number("Full", "Step").unwrap();
        assert_eq!((step.mean, step.ends), (2.2, Some((1.0, 9.0))), "a median, not a mean");
        assert_eq!(outcome.number("Full", "VT").unwrap().0.n, 40, "scores are of the other run");
        assert_eq!(outcome.number("Top", "Step"), None);
        // If the host selects tokens for a GPU, the time is not the method's.
        let on = |place: &str| TimingConditions {
            fidelity: false,
            together: 1,
            latency: Some(Latency::Solo),
            threads: 2,
            simd: "avx2".to_owned(),
            cpu: None,
            gpu: Some("a GPU".to_owned()),
            select_on: Some(place.to_owned()),
            kv: None,
        };
        for (place, expected) in [("device", Some(2.2)), ("host", None)] {
            let placed = |r: &Record| Record { conditions: Some(Interned::from(on(place))), ..r.clone() };
            let alone: Vec<Record> = alone.iter().map(placed).collect();
            let outcome = judge("p/t", &item, run, Evidence { records: &records, alone: &alone, seen: &[] }).unwrap();
            assert_eq!(outcome.number("Full", "Step").map(|(step, _)| step.mean), expected, "{place}");
        }
    }
}
