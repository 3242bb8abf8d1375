//! The wording of verdicts: of findings, numbers, limits, settings and titles.

use std::collections::{BTreeMap, BTreeSet};

use spattn_attention::Role;
use spattn_eval::summary::verdicts::{AskedBudget, Finding, JudgedSetting, JudgedTask, VerdictTable};
use spattn_stats::CONFIDENCE;
use spattn_stats::verdict::Prospect;

use crate::report::format::{setting_name, signed, tokens};

/// A finding in words, for the cell of a table: a word, then the number.
pub fn finding(table: &VerdictTable, setting: &JudgedSetting) -> String {
    worded(table, setting, "too few examples", of_each_task(table))
}

/// The same for narrow tables, which say elsewhere that examples are of each task.
pub fn brief(table: &VerdictTable, setting: &JudgedSetting) -> String {
    worded(table, setting, "too few", "")
}

fn worded(table: &VerdictTable, setting: &JudgedSetting, too_few: &str, of_each: &str) -> String {
    let percent = if table.is_perplexity { " %" } else { "" };
    match setting.finding {
        Finding::Safe { loss_at_most } => {
            let but = if setting.is_recommended() { "" } else { " in the mean, but not on every task" };
            format!("safe{but}: loses at most {}{percent}", at_most(loss_at_most))
        }
        Finding::NotSafe { loss_at_least } => format!("not safe: loses at least {}{percent}", at_least(loss_at_least)),
        Finding::TooFew { contexts_needed: None, would_show: Prospect::Safe | Prospect::NotSafe } => {
            format!("{too_few}: the loss is too near the limit")
        }
        Finding::TooFew { .. } => match needed(table, setting.finding, setting.loss, of_each) {
            Some(needed) => format!("{too_few}: {needed}"),
            None => too_few.to_owned(),
        },
        Finding::NothingToLose => "nothing to lose".to_owned(),
        Finding::NotJudged => match setting.role {
            Role::Method => "not judged".to_owned(),
            role => format!("{}, for comparison", role.name()),
        },
    }
}

/// How many examples a finding of too few needs, and what they would show; `None` if no number is known.
pub fn needed(table: &VerdictTable, finding: Finding, loss: Option<f64>, of_each: &str) -> Option<String> {
    let Finding::TooFew { contexts_needed: Some(needed), would_show } = finding else { return None };
    let number = counted(table, needed);
    // Gains and losses of several tasks may leave a rounding error.
    let loses_nothing = loss.is_some_and(|loss| loss < 1e-9);
    Some(match would_show {
        Prospect::Unknown => format!("at least {number}{of_each} needed"),
        Prospect::NotSafe => format!("about {number}{of_each} would show it is not safe"),
        Prospect::Safe if loses_nothing => format!("about {number}{of_each} if it loses nothing"),
        Prospect::Safe => format!("about {number}{of_each} if it loses no more than so far"),
    })
}

/// The verdict on a setting on one task, with the difference to dense attention.
pub fn on_task(table: &VerdictTable, task: &JudgedTask) -> String {
    let said = match task.finding {
        Finding::Safe { loss_at_most } => format!("safe: at most {}", at_most(loss_at_most)),
        Finding::NotSafe { loss_at_least } => format!("not safe: at least {}", at_least(loss_at_least)),
        Finding::TooFew { .. } => match needed(table, task.finding, task.loss, "") {
            Some(needed) => format!("too few: {needed}"),
            None => "too few".to_owned(),
        },
        Finding::NothingToLose => "nothing to lose".to_owned(),
        Finding::NotJudged => String::new(),
    };
    match task.loss.filter(|_| !said.is_empty()) {
        Some(loss) => format!("{said} (Δ {})", signed(-loss, 1)),
        None => said,
    }
}

/// A finding's class in style sheets.
pub fn class(setting: &JudgedSetting) -> &'static str {
    match setting.finding {
        Finding::Safe { .. } if setting.is_recommended() => "safe",
        Finding::NotSafe { .. } => "not-safe",
        Finding::Safe { .. } | Finding::TooFew { .. } | Finding::NothingToLose => "open",
        Finding::NotJudged => "beside",
    }
}

/// An upper bound, rounded up.
pub fn at_most(loss: f64) -> String {
    rounded(loss, f64::ceil)
}

/// A lower bound, rounded down.
pub fn at_least(loss: f64) -> String {
    rounded(loss, f64::floor)
}

/// A number rounded to a tenth, from 10 on to a whole number.
fn rounded(loss: f64, round: fn(f64) -> f64) -> String {
    match loss.abs() >= 10.0 {
        true => format!("{:.0}", round(loss)),
        false => format!("{:.1}", round(10.0 * loss) / 10.0 + 0.0),
    }
}

/// ` of each task`, for a table with several tasks.
pub fn of_each_task(table: &VerdictTable) -> &'static str {
    if table.tasks.len() > 1 { " of each task" } else { "" }
}

/// What was attended if the request was not met, for example `15 % attended`; otherwise `None`.
pub fn attended(setting: &JudgedSetting) -> Option<String> {
    setting.attended_instead.map(|share| format!("{} % attended", percent_of(share)))
}

/// A share in percent, with about two digits.
pub fn percent_of(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 9.95 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}

/// A number of examples or documents, rounded up to two digits because it is an estimate.
pub fn counted(table: &VerdictTable, needed: usize) -> String {
    let number = grouped(two_digits(needed));
    if table.has_shared_contexts() { format!("{number} documents") } else { number }
}

fn two_digits(n: usize) -> usize {
    let unit = 10usize.pow(n.max(1).ilog10().saturating_sub(1));
    n.div_ceil(unit) * unit
}

/// A whole number, with commas between thousands.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The difference to dense attention and its interval, for example `-5.0 [-29.2 +19.5]`.
pub fn difference(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let Some(loss) = setting.loss else { return String::new() };
    // A perplexity rises where a score falls.
    let sign = if table.is_perplexity { 1.0 } else { -1.0 };
    let unit = if table.is_perplexity { " %" } else { "" };
    let (first, last) =
        if table.is_perplexity { (setting.loss_low, setting.loss_high) } else { (setting.loss_high, setting.loss_low) };
    // Rounded outwards, because bounds are shown beside it.
    let to_tenths = |end: f64, round: fn(f64) -> f64| signed(round(10.0 * end) / 10.0, 1);
    let ends = match (first, last) {
        (Some(first), Some(last)) => {
            format!(" [{} {}]", to_tenths(sign * first, f64::floor), to_tenths(sign * last, f64::ceil))
        }
        _ => String::new(),
    };
    format!("{}{ends}{unit}", signed(sign * loss, 1))
}

/// The limit: `1 point`, `2.5 points`, `1 % of its perplexity`.
pub fn limit(table: &VerdictTable) -> String {
    let limit = table.rule.limit;
    match (table.is_perplexity, limit == 1.0) {
        (true, _) => format!("{limit} % of its perplexity"),
        (_, true) => "1 point".to_owned(),
        _ => format!("{limit} points"),
    }
}

/// The score of dense attention, as text.
pub fn score(table: &VerdictTable, score: f64) -> String {
    if table.is_perplexity { format!("{score:.3}") } else { format!("{score:.1}") }
}

/// A setting's name: its method and requested budget; all parameters if another setting in the table has both in common.
pub fn name(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let is_alike = |other: &&JudgedSetting| other.method == setting.method && other.budget == setting.budget;
    match (table.settings.iter().filter(is_alike).count(), setting.budget) {
        (1, AskedBudget::Own) => setting.method.clone(),
        (1, budget) => format!("{} {}", setting.method, budget.name()),
        _ => setting_name(&setting.method, &setting.params),
    }
}

/// The name, with what was attended if the request was not met, for example `quest 5 % (15 % attended)`.
pub fn name_as_met(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let name = name(table, setting);
    attended(setting).map_or(name.clone(), |attended| format!("{name} ({attended})"))
}

/// The settings of a table without their budgets: the method, with other parameters in which its settings differ.
pub fn row_names(table: &VerdictTable) -> Vec<String> {
    let mut rests: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for setting in &table.settings {
        rests.entry(&setting.method).or_default().insert(without_budget(&setting.params));
    }
    let name = |setting: &JudgedSetting| match rests[setting.method.as_str()].len() {
        1 => setting.method.clone(),
        _ => setting_name(&setting.method, &without_budget(&setting.params)),
    };
    table.settings.iter().map(name).collect()
}

fn without_budget(params: &str) -> String {
    let is_budget =
        |param: &str| param.split_once('=').is_some_and(|(key, _)| ["density", "ratio", "k"].contains(&key));
    params.split(',').filter(|param| !is_budget(param)).collect::<Vec<_>>().join(",")
}

/// The heading of the column of a budget.
pub fn budget(budget: AskedBudget) -> String {
    match budget {
        AskedBudget::Own => "own parameters".to_owned(),
        other => other.name(),
    }
}

/// What a table is about: tasks and length; also model and protocol if `among` has several.
pub fn title(table: &VerdictTable, among: &[VerdictTable]) -> String {
    let tasks = match table.tasks.as_slice() {
        [task] => task.clone(),
        tasks => format!("mean over {} tasks", tasks.len()),
    };
    let at = if table.length == 0 { String::new() } else { format!(" at {} tokens", tokens(table.length)) };
    let is_several = |of: fn(&VerdictTable) -> &str| among.iter().any(|other| of(other) != of(table));
    let model = if is_several(|t| &t.model) { format!("{}, ", table.model) } else { String::new() };
    let protocol =
        if is_several(|t| &t.protocol) { format!("sparse from {}, ", table.protocol) } else { String::new() };
    format!("{model}{protocol}{tasks}{at}")
}

/// What the words mean, and how sure they are.
pub fn rule(table: &VerdictTable) -> String {
    let together = match table.comparisons {
        0 | 1 => String::new(),
        n => format!(" for all {n} settings together"),
    };
    let looks = if table.rule.is_any_time { ", however often one looked" } else { "" };
    format!(
        "Safe: loses at most {} against full attention on the same examples; {} % sure{together}{looks}. {}.",
        limit(table),
        100.0 * table.rule.confidence,
        examples(table)
    )
}

/// How the intervals of verdicts differ from those of Δ full in other tables; `None` if they are the same.
pub fn intervals(table: &VerdictTable) -> Option<String> {
    let sure = (table.rule.confidence != CONFIDENCE).then(|| format!("are {} % sure", 100.0 * table.rule.confidence));
    let together = (table.comparisons > 1).then(|| format!("hold for all {} settings together", table.comparisons));
    let pooled = (table.tasks.len() > 1).then(|| "are over the examples of all tasks at once".to_owned());
    let looks = table.rule.is_any_time.then(|| "hold at every look".to_owned());
    let differs: Vec<String> = [sure, together, pooled, looks].into_iter().flatten().collect();
    let (last, first) = differs.split_last()?;
    let all = if first.is_empty() { last.clone() } else { format!("{} and {last}", first.join(", ")) };
    Some(format!(
        "The intervals of a verdict's Δ {all}; that of Δ full in the other tables is {:.0} % sure of its row alone.",
        100.0 * CONFIDENCE
    ))
}

/// The number of examples, as a range if tasks have different numbers.
pub fn asked(table: &VerdictTable) -> String {
    match (table.examples, table.most_examples) {
        (1, 1) => "1 example".to_owned(),
        (least, most) if least == most => format!("{least} examples"),
        (least, most) => format!("{least} to {most} examples"),
    }
}

/// How to measure times, for a table that has none; `None` if it has some.
pub fn times(table: &VerdictTable) -> Option<String> {
    let is_timed = table.settings.iter().any(|setting| setting.solo_ms.is_some());
    (!is_timed && table.full.is_some()).then(|| "For times of a step: a run of its own with --latency solo.".to_owned())
}

/// The number of examples, and of documents if examples share them.
fn examples(table: &VerdictTable) -> String {
    let of_each = of_each_task(table);
    let examples = asked(table);
    let about = match (table.has_shared_contexts(), table.contexts) {
        (false, _) => String::new(),
        (true, 1) => " about 1 document".to_owned(),
        (true, n) => format!(" about {n} documents"),
    };
    format!("{examples}{of_each}{about}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};
    use spattn_eval::summary::verdicts::VerdictRule;

    #[test]
    fn numbers_are_rounded_to_the_safe_side() {
        assert_eq!([0.81, 0.0, 12.01].map(at_most), ["0.9", "0.0", "13"]);
        assert_eq!([23.96, 2.39, -0.04].map(at_least), ["23", "2.3", "-0.1"]);
        assert_eq!([7, 96, 381, 1327, 99_401].map(two_digits), [7, 96, 390, 1400, 100_000]);
        assert_eq!([7, 380, 1400, 100_000].map(grouped), ["7", "380", "1,400", "100,000"]);
    }

    #[test]
    fn a_cell_has_a_word_and_a_number() {
        let of = |method: &str, lost| run("vt", method, "density=0.05", lost, 600);
        let table =
            table(&[run("vt", "full", "", 0, 600), of("h2o", 0), of("loki", 4), of("quest", 60), of("topk", 0)], 1.0);
        let said: Vec<String> = table.settings.iter().map(|setting| finding(&table, setting)).collect();
        assert_eq!(said[0], "safe: loses at most 1.0");
        assert!(
            said[1].starts_with("too few examples: about ") && said[1].ends_with(" if it loses no more than so far"),
            "{}",
            said[1]
        );
        assert_eq!((said[2].as_str(), said[3].as_str()), ("not safe: loses at least 7.4", "oracle, for comparison"));
        assert_eq!(name(&table, &table.settings[2]), "quest 5 %");
        assert_eq!(
            rule(&table),
            "Safe: loses at most 1 point against full attention on the same examples; 95 % sure for all 3 settings together. \
             600 examples."
        );
    }

    #[test]
    fn how_intervals_differ_from_those_of_the_rows_is_told_where_they_do() {
        let of = |method: &str| run("vt", method, "density=0.05", 4, 600);
        let one = table(&[run("vt", "full", "", 0, 600), of("h2o")], 1.0);
        assert_eq!(intervals(&one), None, "the same interval as the row's");
        let sure = VerdictTable { rule: VerdictRule { confidence: 0.9, ..one.rule }, ..one };
        assert!(intervals(&sure).unwrap().starts_with("The intervals of a verdict's Δ are 90 % sure; that of Δ full"));
        let two = table(&[run("vt", "full", "", 0, 600), of("h2o"), of("loki")], 1.0);
        let tasks = VerdictTable { tasks: vec!["a".to_owned(), "b".to_owned()], ..two.clone() };
        assert!(intervals(&two).unwrap().contains("Δ hold for all 2 settings together; that of Δ full"));
        assert!(intervals(&tasks).unwrap().contains("together and are over the examples of all tasks at once; "));
    }

    #[test]
    fn what_a_number_of_examples_would_show_is_said() {
        let of = |lost, n: usize| {
            let table = table(&[run("vt", "full", "", 0, n), run("vt", "quest", "density=0.05", lost, n)], 1.0);
            finding(&table, &table.settings[0])
        };
        assert_eq!(of(0, 20), "too few examples: about 390 if it loses nothing");
        assert_eq!(of(4, 4), "too few examples: at least 5 needed", "nothing is said of how many would tell");
        assert_eq!(of(0, 4), "too few examples: at least 5 needed");
        let lost = of(3, 20);
        assert!(lost.starts_with("too few examples: about ") && lost.ends_with(" would show it is not safe"), "{lost}");
    }

    #[test]
    fn a_bound_and_the_end_of_its_interval_are_one_number() {
        for n in [20, 60, 333, 600, 601] {
            let table = table(&[run("vt", "full", "", 0, n), run("vt", "quest", "density=0.05", 0, n)], 30.0);
            let Finding::Safe { loss_at_most } = table.settings[0].finding else { panic!("{n}") };
            let shown = difference(&table, &table.settings[0]);
            assert!(
                loss_at_most >= 10.0 || shown.contains(&format!("[-{} ", at_most(loss_at_most))),
                "{n}: {shown} {loss_at_most}"
            );
        }
    }

    #[test]
    fn a_budget_that_was_missed_stands_with_what_was_attended() {
        let runs = [
            run("vt", "full", "", 0, 20),
            run("vt", "quest", "density=0.05", 0, 20),
            run("vt", "h2o", "density=0.05", 0, 20),
        ];
        let mut runs = runs.to_vec();
        runs[1].iter_mut().for_each(|r| r.density_sparse_layers = 0.152);
        runs[2].iter_mut().for_each(|r| r.density_sparse_layers = 0.0521);
        let table = table(&runs, 1.0);
        let names: Vec<String> = table.settings.iter().map(|setting| name_as_met(&table, setting)).collect();
        assert_eq!(names, ["h2o 5 %", "quest 5 % (15 % attended)"]);
        assert_eq!([0.152, 0.0251, 0.995].map(percent_of), ["15", "2.5", "100"]);
    }

    #[test]
    fn settings_that_share_a_budget_are_told_apart() {
        let table = table(
            &[
                run("vt", "full", "", 0, 20),
                run("vt", "quest", "page=8,density=0.05", 0, 20),
                run("vt", "quest", "page=16,density=0.05", 0, 20),
                run("vt", "magicpig", "K=8,L=75", 0, 20),
            ],
            1.0,
        );
        let names: Vec<(String, String)> =
            table.settings.iter().map(|setting| name(&table, setting)).zip(row_names(&table)).collect();
        let expected = [
            ("magicpig", "magicpig"),
            ("quest page=8,density=0.05", "quest page=8"),
            ("quest page=16,density=0.05", "quest page=16"),
        ];
        assert_eq!(names, expected.map(|(name, short)| (name.to_owned(), short.to_owned())));
    }
}
