//! The conclusions of a report, in sentences: the cheapest setting that loses nothing against dense attention, and the best of each budget.
//!
//! Settings are compared on the same examples. What is called certain or beyond noise is corrected for the number of comparisons. Settings
//! that noise does not distinguish are named together, and if no comparison decides a question, the sentence says so. Oracles show what is
//! possible and floors what needs no search; they are mentioned, never recommended.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::best::{self, ComparedSetting};
use super::format::{distinct, number, setting_name, signed, tokens};
use super::means::shared_sets;
use spattn_attention::Role;
use spattn_eval::records::record::REFERENCE;
use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::{SummaryRow, mean_score};
use spattn_eval::summary::paired;
use spattn_stats::{Estimate, Level, mean};

/// The tolerated loss against dense attention: points of a score, or percent of a perplexity.
const TOLERATED: f64 = 1.0;
/// At most this many of the settings that noise does not distinguish from the best are named.
const NAMED: usize = 3;
/// At most this many conclusions are drawn; the tables have the others.
const MOST: usize = 6;

/// The conclusions about the settings of a model and protocol that were all run on the same tasks and lengths.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// What was averaged, and the model and protocol if there are several.
    pub about: String,
    /// The cheapest setting that loses nothing against dense attention.
    pub cheapest: String,
    /// The best setting of each budget, one line each, the smallest budget first.
    pub budgets: Vec<String>,
    /// How the settings were compared; empty if there was only one comparison.
    pub rule: String,
}

/// A row of the summary with its cell.
#[derive(Clone, Copy)]
struct Line<'r, 'a> {
    row: &'r SummaryRow,
    cell: &'r SummaryCell<'a>,
}

/// The first conclusions of a summary, in its order, and a line that says how many there are beside them; empty if there are none.
/// `rows` and `cells` belong together.
pub fn all(rows: &[SummaryRow], cells: &[SummaryCell]) -> (Vec<Conclusion>, String) {
    let lines: Vec<Line> = rows.iter().zip(cells).map(|(row, cell)| Line { row, cell }).collect();
    let scenes = distinct(rows.iter().map(|r| (r.model.as_str(), r.protocol.as_str())));
    let of_scene = |&(model, protocol): &(&str, &str)| {
        let is_here = |line: &&Line| (line.row.model.as_str(), line.row.protocol.as_str()) == (model, protocol);
        let (scores, perplexities): (Vec<Line>, Vec<Line>) =
            lines.iter().filter(is_here).copied().partition(|line| line.row.measure.is_score());
        // Perplexities of different texts or lengths are not averaged.
        let mut groups = vec![scores];
        for place in distinct(perplexities.iter().map(|line| place(line.row))) {
            groups.push(perplexities.iter().copied().filter(|line| self::place(line.row) == place).collect());
        }
        let name = if scenes.len() > 1 { format!("{model}, sparse from {protocol}: ") } else { String::new() };
        groups.into_iter().filter_map(|group| conclude(&group, &name)).collect::<Vec<_>>()
    };
    let mut found: Vec<Conclusion> = scenes.iter().flat_map(of_scene).collect();
    let more = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    let left_out = if more == 0 { String::new() } else { format!("{more} more conclusions follow from the tables.") };
    (found, left_out)
}

fn place(row: &SummaryRow) -> (&str, usize) {
    (&row.task, row.length)
}

/// A setting, over the tasks and lengths that all compared settings have.
struct Setting<'r, 'a> {
    name: String,
    role: Role,
    score: Estimate,
    cells: Vec<&'r SummaryCell<'a>>,
    /// Difference to dense attention, in points or percent of its perplexity.
    delta: Option<Estimate>,
    density: f64,
    /// FLOPs relative to full attention's; `None` if nobody counted those of finding tokens.
    cost: Option<f64>,
}

/// Dense attention at the same tasks and lengths.
struct Dense<'r, 'a> {
    cells: Vec<&'r SummaryCell<'a>>,
    /// What a difference is multiplied by: one of perplexities is in percent of dense attention's.
    scale: f64,
}

impl<'r, 'a> Dense<'r, 'a> {
    /// `None` if dense attention lacks some of the tasks and lengths.
    fn of(lines: &[Line<'r, 'a>], over: &BTreeSet<(&str, usize)>, is_less_better: bool) -> Option<Self> {
        let is_dense = |line: &&Line| line.row.method == REFERENCE && over.contains(&place(line.row));
        let here: Vec<Line> = lines.iter().filter(is_dense).copied().collect();
        let scale = if is_less_better { 100.0 / here.first()?.row.score } else { 1.0 };
        (here.len() == over.len()).then(|| Self { cells: here.iter().map(|line| line.cell).collect(), scale })
    }

    /// The difference of a setting to it, as sure as the level says.
    fn delta(&self, cells: &[&SummaryCell], level: Level) -> Option<Estimate> {
        paired::difference(cells, &self.cells, level).map(|difference| difference.scaled(self.scale))
    }
}

/// `None` if no sparse method was run.
fn conclude(lines: &[Line], scene: &str) -> Option<Conclusion> {
    let mut by_setting: BTreeMap<(&str, &str), Vec<Line>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.row.method != REFERENCE) {
        by_setting.entry((&line.row.method, &line.row.params)).or_default().push(*line);
    }
    let sets: Vec<BTreeSet<_>> = by_setting.values().map(|of| of.iter().map(|l| place(l.row)).collect()).collect();
    // The set that all settings share is the last; if that is empty, take the first, which most settings have.
    let shared = shared_sets(&sets);
    let common = shared.iter().rfind(|set| !set.is_empty() && sets.iter().all(|of| of.is_superset(set)));
    let over = common.or_else(|| shared.first())?;
    let is_less_better = !lines.first()?.row.measure.is_score();
    let order = distinct(lines.iter().map(|l| (l.row.method.as_str(), l.row.params.as_str())));
    let kept = order.iter().filter_map(|key| by_setting.get(key));
    let kept: Vec<Vec<Line>> = kept
        .map(|of| of.iter().copied().filter(|l| over.contains(&place(l.row))).collect::<Vec<_>>())
        .filter(|of| of.len() == over.len())
        .collect();
    let dense = Dense::of(lines, over, is_less_better);
    let settings: Vec<Setting> = kept.iter().filter_map(|of| setting(of, dense.as_ref())).collect();
    let missing = by_setting.len() - settings.len();
    let lacking = if missing == 0 { String::new() } else { format!(" ({missing} left out, which lack some of these)") };
    let classes = classes(&settings);
    let count = comparisons(&settings, &classes);
    let level = Level::of_each(count);
    Some(Conclusion {
        about: format!("{scene}{}{lacking}", about(over, is_less_better)),
        cheapest: cheapest(&settings, dense.as_ref(), is_less_better, level),
        budgets: classes.iter().rev().map(|(exponent, of)| line(*exponent, of, is_less_better, level)).collect(),
        rule: rule(count),
    })
}

/// The number of comparisons in a conclusion: each method with dense attention, and the best of each budget with the other methods of that
/// budget.
fn comparisons(settings: &[Setting], classes: &BTreeMap<i32, Vec<&Setting>>) -> usize {
    let with_dense = settings.iter().filter(|s| s.role != Role::Floor && s.delta.is_some()).count();
    let methods = |of: &Vec<&Setting>| of.iter().filter(|s| s.role == Role::Method).count();
    with_dense + classes.values().map(|of| best::comparisons(methods(of))).sum::<usize>()
}

fn rule(comparisons: usize) -> String {
    match comparisons {
        0 | 1 => String::new(),
        n => format!(
            "Settings are compared on the same examples; what is called certain or significant is corrected for the {n} comparisons made."
        ),
    }
}

fn setting<'r, 'a>(of: &[Line<'r, 'a>], dense: Option<&Dense>) -> Option<Setting<'r, 'a>> {
    let head = of.first()?.row;
    let over = |value: fn(&SummaryRow) -> Option<f64>| {
        let values: Option<Vec<f64>> = of.iter().map(|l| value(l.row)).collect();
        values.map(|values| mean(&values))
    };
    let rows: Vec<&SummaryRow> = of.iter().map(|l| l.row).collect();
    let cells: Vec<&SummaryCell> = of.iter().map(|l| l.cell).collect();
    Some(Setting {
        name: format!("`{}`", setting_name(&head.method, &head.params)),
        role: Role::of(&head.method),
        score: mean_score(&rows)?,
        delta: dense.and_then(|dense| dense.delta(&cells, Level::SINGLE)),
        cells,
        density: over(|r| Some(r.density)).unwrap_or_default(),
        cost: over(|r| r.cost_total),
    })
}

fn about(over: &BTreeSet<(&str, usize)>, is_perplexity: bool) -> String {
    let tasks = distinct(over.iter().map(|(task, _)| *task));
    let lengths: BTreeSet<usize> = over.iter().map(|(_, length)| *length).filter(|length| *length > 0).collect();
    let tasks =
        if let [task] = tasks.as_slice() { (*task).to_owned() } else { format!("mean over {} tasks", tasks.len()) };
    let lengths: Vec<String> = lengths.into_iter().map(tokens).collect();
    let at = if lengths.is_empty() { String::new() } else { format!(" at {}", lengths.join(", ")) };
    format!("{tasks}{at}{}", if is_perplexity { ", perplexity (less is better)" } else { "" })
}

// ---- the cheapest ----

fn cheapest(settings: &[Setting], dense: Option<&Dense>, is_less_better: bool, level: Level) -> String {
    let mut compared: Vec<(&Setting, Estimate)> =
        settings.iter().filter(|s| s.role == Role::Method).filter_map(|s| Some((s, s.delta?))).collect();
    if compared.is_empty() {
        return format!("{}: no method can be compared with dense attention.", why_unknown(settings));
    }
    // What nobody counted is not called cheap.
    let cost = |setting: &Setting| setting.cost.unwrap_or(f64::INFINITY);
    compared.sort_by(|(a, _), (b, _)| {
        (cost(a), a.density).partial_cmp(&(cost(b), b.density)).unwrap_or(std::cmp::Ordering::Equal)
    });
    // These intervals hold for all comparisons together.
    let corrected = |setting: &Setting| dense.and_then(|dense| dense.delta(&setting.cells, level));
    let surely: Vec<(&Setting, Estimate)> = compared.iter().filter_map(|(s, _)| Some((*s, corrected(s)?))).collect();
    let unit = if is_less_better { "1 % of dense attention's perplexity" } else { "1 point of dense attention" };
    // The mean and the largest plausible loss; negative for a gain.
    let loss = |d: &Estimate| if is_less_better { d.mean } else { -d.mean };
    let worst = |d: &Estimate| if is_less_better { d.high() } else { d.low().map(|low| -low) };
    let told = |&(s, d): &(&Setting, Estimate)| told(s, d, is_less_better);
    let holds = |d: &Estimate| worst(d).is_some_and(|worst| worst <= TOLERATED);
    // An oracle scores all keys, so its cost does not matter, but the density that it needs does.
    let oracles = settings.iter().filter(|s| s.role == Role::Oracle).filter_map(|s| Some((s, corrected(s)?)));
    let oracle = oracles.filter(|(_, d)| holds(d)).min_by(|(a, _), (b, _)| a.density.total_cmp(&b.density));
    let beside = oracle
        .map_or(String::new(), |(s, _)| format!(" An oracle, {}, needs a density of {}.", s.name, number(s.density)));
    if let Some(found) = surely.iter().find(|(_, d)| holds(d)) {
        return format!("The cheapest method that is within {unit} for certain is {}.{beside}", told(found));
    }
    if compared.iter().all(|(_, d)| d.ends.is_none()) {
        let few = format!("Noise cannot be estimated from one context, so no method is certain to be within {unit}");
        let seen = compared.iter().find(|(_, d)| loss(d) <= TOLERATED);
        return match seen {
            Some(found) => format!("{few}. The cheapest that was within it here is {}.", told(found)),
            None => format!("{few}; here, none was."),
        };
    }
    let none = format!("No method is within {unit} for certain at this number of examples");
    let is_open = |(_, d): &&(&Setting, Estimate)| d.ends.is_some_and(|(low, high)| low <= 0.0 && 0.0 <= high);
    // First by the setting's own interval; the interval for all comparisons together is wider.
    if let Some(found) = compared.iter().find(is_open).or_else(|| surely.iter().find(is_open)) {
        return format!("{none}. The cheapest without a significant difference is {}.{beside}", told(found));
    }
    let least = compared.iter().min_by(|(_, a), (_, b)| loss(a).total_cmp(&loss(b)));
    least.map_or(none.clone(), |found| {
        format!("{none}, and all differ from it significantly. The smallest loss is that of {}.{beside}", told(found))
    })
}

fn why_unknown(settings: &[Setting]) -> &'static str {
    let is_any = |role| settings.iter().any(|s| s.role == role);
    match (is_any(Role::Method), is_any(Role::Oracle), is_any(Role::Floor)) {
        (true, ..) => "Dense attention was not run",
        (_, true, true) => "Only oracles and floors were run",
        (_, _, true) => "Only floors were run",
        _ => "Only oracles were run",
    }
}

fn told(setting: &Setting, delta: Estimate, is_percent: bool) -> String {
    let unit = if is_percent { " %" } else { "" };
    let ends = delta.ends.map_or(String::new(), |(low, high)| format!(" [{} {}]", signed(low, 1), signed(high, 1)));
    let Setting { name, cost, density, .. } = setting;
    let delta = signed(delta.mean, 1);
    let flops = cost.map_or("unknown FLOPs".to_owned(), |cost| format!("{} of the FLOPs", number(cost)));
    format!("{name} (Δ {delta}{ends}{unit}, {flops}, density {})", number(*density))
}

// ---- the best of each budget ----

/// The power of two that the density's inverse is nearest to, as an exponent.
fn budget(density: f64) -> i32 {
    (-density.max(f64::MIN_POSITIVE).log2()).round().max(0.0) as i32
}

/// The settings of each budget, by that exponent: the smallest budget has the largest.
fn classes<'s, 'r, 'a>(settings: &'s [Setting<'r, 'a>]) -> BTreeMap<i32, Vec<&'s Setting<'r, 'a>>> {
    let mut classes: BTreeMap<i32, Vec<&Setting>> = BTreeMap::new();
    for setting in settings {
        classes.entry(budget(setting.density)).or_default().push(setting);
    }
    classes
}

fn line(exponent: i32, of: &[&Setting], is_less_better: bool, level: Level) -> String {
    let density = if exponent == 0 { "1".to_owned() } else { format!("1/{}", 2f64.powi(exponent)) };
    let beside: Vec<String> = [Role::Oracle, Role::Floor]
        .into_iter()
        .filter_map(|role| {
            Some(format!("{} {}", role.name(), scored(best_mean(of, role, is_less_better)?, is_less_better)))
        })
        .collect();
    let methods: Vec<&Setting> = of.iter().copied().filter(|s| s.role == Role::Method).collect();
    let candidates: Vec<ComparedSetting> =
        methods.iter().map(|s| ComparedSetting { score: s.score.mean, cells: s.cells.clone() }).collect();
    let Some(found) = best::best(&candidates, is_less_better, level) else {
        return format!("density about {density}: no method, only {}", beside.join("; "));
    };
    let others: Vec<&str> = found.others.iter().map(|at| methods[*at].name.as_str()).collect();
    let rivals = match (others.as_slice(), methods.len() - 1) {
        (_, 0) => ", the only method there".to_owned(),
        (_, _) if !found.is_known => " (noise not known)".to_owned(),
        ([], 1) => ", significantly better than the other".to_owned(),
        ([], rest) => format!(", significantly better than the other {rest}"),
        (others, _) => {
            let more = others.len().saturating_sub(NAMED);
            let named = others.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("; not significantly better than {named}{more}")
        }
    };
    let beside: String = beside.iter().map(|one| format!("; {one}")).collect();
    format!("density about {density}: {}{rivals}{beside}", scored(methods[found.first], is_less_better))
}

/// The first setting with the best mean in a role.
fn best_mean<'s, 'r, 'a>(of: &[&'s Setting<'r, 'a>], role: Role, is_less_better: bool) -> Option<&'s Setting<'r, 'a>> {
    let sign = if is_less_better { 1.0 } else { -1.0 };
    let in_role = of.iter().copied().filter(|s| s.role == role);
    in_role.min_by(|a, b| (sign * a.score.mean).total_cmp(&(sign * b.score.mean)))
}

fn scored(setting: &Setting, is_perplexity: bool) -> String {
    let form = |x: f64| if is_perplexity { number(x) } else { format!("{x:.1}") };
    let ends = setting.score.ends.map_or(String::new(), |(low, high)| format!(" [{} {}]", form(low), form(high)));
    format!("{} {}{ends}", setting.name, form(setting.score.mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::{perplexity, record};
    use spattn_eval::summary::cells::group;
    use spattn_eval::summary::summarize;

    /// The records of a method at a density, which is also its cost: of `n` examples, all but the first `lost` are right.
    fn run(method: &str, density: f64, lost: usize, n: usize) -> Vec<Record> {
        let of = |i| Record {
            density,
            cost1: Some(0.0),
            cost2: density,
            ..record("ruler/vt", method, i, f64::from(u8::from(i >= lost)))
        };
        (0..n).map(of).collect()
    }

    fn made(records: &[Record]) -> (Vec<Conclusion>, String) {
        let cells = group(records, &[]);
        all(&summarize::rows(&cells), &cells)
    }

    fn only(runs: &[Vec<Record>]) -> Conclusion {
        let (mut found, left_out) = made(&runs.concat());
        assert_eq!((found.len(), left_out.as_str()), (1, ""), "{found:?}");
        found.remove(0)
    }

    /// The text without intervals.
    fn bare(text: &str) -> String {
        let parts = text.split(" [").enumerate();
        parts.map(|(i, part)| if i == 0 { part } else { part.split_once(']').map_or("", |(_, rest)| rest) }).collect()
    }

    #[test]
    fn the_cheapest_within_a_point_is_certain_by_its_interval_and_no_oracle() {
        let n = 1500;
        let found = only(&[
            run("full", 1.0, 0, n),
            run("topk", 0.06, 0, n),
            run("streaming_llm", 0.06, 105, n),
            run("h2o", 0.25, 3, n),
            run("quest", 0.5, 0, n),
            run("random", 0.25, 0, n),
        ]);
        assert_eq!(found.about, "ruler/vt at 4K");
        assert_eq!(
            bare(&found.cheapest),
            "The cheapest method that is within 1 point of dense attention for certain is `h2o` (Δ -0.2, 0.250 of the FLOPs, \
             density 0.250). An oracle, `topk`, needs a density of 0.0600."
        );
        let budgets: Vec<String> = found.budgets.iter().map(|line| bare(line)).collect();
        assert_eq!(
            budgets,
            [
                "density about 1/16: `streaming_llm` 93.0, the only method there; oracle `topk` 100.0",
                "density about 1/4: `h2o` 99.8, the only method there; floor `random` 100.0",
                "density about 1/2: `quest` 100.0, the only method there",
            ]
        );
        // Three methods and the oracle are compared with dense attention.
        assert!(found.rule.contains("corrected for the 4 comparisons"), "{}", found.rule);
    }

    #[test]
    fn one_of_many_is_within_a_point_by_chance() {
        // For 450 equal pairs the interval ends at 1.96² / (450 + 1.96²) = 0.85 points; with 21 comparisons, at 2.01.
        let names =
            ["h2o", "quest", "loki", "sparq", "tova", "snapkv", "infllm", "pqcache", "magicpig", "hip", "lsh_bits"];
        let runs = |of: usize| -> Vec<Vec<Record>> {
            let methods = names[..of].iter().map(|name| run(name, 0.25, 0, 450));
            [run("full", 1.0, 0, 450)].into_iter().chain(methods).collect()
        };
        let one = only(&runs(1));
        assert!(one.cheapest.contains("for certain is `h2o` (Δ 0.0 [-0.8 +0.8]"), "{one:?}");
        assert_eq!(one.rule, "");
        let many = only(&runs(names.len()));
        assert!(many.cheapest.starts_with("No method is within 1 point of dense attention for certain"), "{many:?}");
        assert!(many.rule.contains(" 21 comparisons"), "eleven with dense attention, and ten with the best: {many:?}");
    }

    #[test]
    fn where_none_is_certain_the_sentence_says_so() {
        let full = || run("full", 1.0, 0, 20);
        let said = only(&[full(), run("h2o", 0.1, 12, 20), run("quest", 0.2, 1, 20)]).cheapest;
        assert!(
            said.starts_with("No method is within 1 point")
                && said.contains("without a significant difference is `quest`"),
            "{said}"
        );
        let lost = only(&[full(), run("h2o", 0.1, 15, 20), run("quest", 0.2, 12, 20)]);
        assert!(
            lost.cheapest.contains("all differ from it significantly. The smallest loss is that of `quest`"),
            "{lost:?}"
        );
        // Five losses of 20 are 5 / √5 = 2.24 standard errors: beyond noise for a single method, but not for one of six.
        let several = ["h2o", "quest", "loki", "sparq", "tova", "snapkv"].map(|name| run(name, 0.2, 5, 20));
        let open = only(&[[full()].as_slice(), &several].concat());
        assert!(open.cheapest.contains("without a significant difference is `h2o`"), "{open:?}");
        assert!(only(&[full(), run("h2o", 0.2, 5, 20)]).cheapest.contains("differ from it significantly"));
        let once = only(&[run("full", 1.0, 0, 1), run("h2o", 0.1, 1, 1), run("quest", 0.2, 0, 1)]);
        assert!(
            once.cheapest.starts_with("Noise cannot be estimated from one context")
                && once.cheapest.contains("is `quest` (Δ 0.0,"),
            "{once:?}"
        );
        assert_eq!(once.budgets[0], "density about 1/8: `h2o` 0.0, the only method there");
        let alone = only(&[run("h2o", 0.1, 1, 20)]);
        assert!(alone.cheapest.starts_with("Dense attention was not run"), "{alone:?}");
    }

    #[test]
    fn the_best_of_a_budget_stands_with_those_that_noise_does_not_tell_from_it() {
        let found = only(&[
            run("h2o", 0.12, 5, 40),
            run("quest", 0.13, 3, 40),
            run("tova", 0.125, 16, 40),
            run("loki", 0.24, 0, 40),
            run("sparq", 0.26, 12, 40),
        ]);
        let budgets: Vec<String> = found.budgets.iter().map(|line| bare(line)).collect();
        assert_eq!(
            budgets,
            [
                "density about 1/8: `quest` 92.5; not significantly better than `h2o`",
                "density about 1/4: `loki` 100.0, significantly better than the other",
            ]
        );
        assert!(found.rule.contains(" 3 comparisons"), "two in one budget, one in the other: {}", found.rule);
        let few = only(&[run("h2o", 0.12, 2, 3), run("quest", 0.13, 1, 3)]);
        assert_eq!(bare(&few.budgets[0]), "density about 1/8: `quest` 66.7 (noise not known)");
    }

    #[test]
    fn intervals_apart_settle_nothing_that_the_same_examples_leave_open() {
        // 24 and 10 of 40 are right. The interval of `h2o` ends at 41 %, below 60 %. Paired, 24 are right only under `quest` and 10 only
        // under `h2o`: 14 / √34 = 2.40 standard errors. Three comparisons need 2.39, four need 2.50.
        let of = |method: &str, density: f64, is_right: &dyn Fn(usize) -> bool| -> Vec<Record> {
            let right = |r: Record| Record { score: f64::from(u8::from(is_right(r.sample))), ..r };
            run(method, density, 0, 40).into_iter().map(right).collect()
        };
        let runs = |others: usize| -> Vec<Vec<Record>> {
            let two = [of("quest", 0.125, &|i| i < 24), of("h2o", 0.125, &|i| i >= 30)];
            let less = ["tova", "loki", "sparq"].map(|name| of(name, 0.125, &|_| false));
            two.into_iter().chain(less.into_iter().take(others)).collect()
        };
        let told = |others: usize| only(&runs(others)).budgets[0].clone();
        assert!(told(2).ends_with(", significantly better than the other 3"), "{}", told(2));
        assert!(told(3).ends_with("; not significantly better than `h2o`"), "{}", told(3));
    }

    #[test]
    fn less_perplexity_is_better_and_the_loss_is_a_percentage() {
        let of = |method: &str, density: f64, more: f64| -> Vec<Record> {
            let nats = |i: usize| 2.0 + i as f64 / 10.0 + more * (1.0 + i as f64 / 50.0);
            (0..12)
                .map(|i| Record { density, cost1: Some(0.0), cost2: density, ..perplexity(method, i, nats(i)) })
                .collect()
        };
        let found = only(&[of("full", 1.0, 0.0), of("h2o", 0.1, 0.05), of("quest", 0.11, 0.004)]);
        // Slightly more than 0.004 nats per token are 0.4 %, and 0.05 are 5 %.
        assert!(found.cheapest.contains("for certain is `quest` (Δ +0.4 [+0."), "{found:?}");
        assert!(found.budgets[0].ends_with(", significantly better than the other"), "{found:?}");
        let level = only(&[of("full", 1.0, 0.0), of("h2o", 0.1, 0.05), of("quest", 0.11, 0.05)]);
        assert!(level.cheapest.contains("all differ from it significantly"), "{level:?}");
    }

    #[test]
    fn means_are_over_what_all_settings_have() {
        let at = |task: &str, method: &str, lost: usize| -> Vec<Record> {
            run(method, 0.125, lost, 20).into_iter().map(|r| Record { task: task.into(), ..r }).collect()
        };
        let found = only(&[at("a", "h2o", 4), at("a", "quest", 2), at("b", "h2o", 0)]);
        assert_eq!(found.about, "a at 4K");
        assert!(found.budgets[0].contains("`quest` 90.0"), "h2o's 100 of another task does not count: {found:?}");
        let apart = only(&[at("a", "h2o", 4), at("c", "h2o", 4), at("b", "quest", 2)]);
        assert_eq!(apart.about, "mean over 2 tasks at 4K (1 left out, which lack some of these)");
        // A task without any difference halves the mean difference, but not its certainty.
        let both = only(&[at("a", "h2o", 8), at("b", "h2o", 2), at("a", "quest", 0), at("b", "quest", 2)]);
        assert!(bare(&both.budgets[0]).ends_with("`quest` 95.0, significantly better than the other"), "{both:?}");
        assert_eq!(made(&[]), (Vec::new(), String::new()));
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let of_model = |i: usize| -> Vec<Record> {
            run("quest", 0.5, 0, 2).into_iter().map(|r| Record { model: format!("model {i}").into(), ..r }).collect()
        };
        let (shown, left_out) = made(&(0..8).flat_map(of_model).collect::<Vec<_>>());
        assert_eq!(shown.len(), 6);
        assert!(shown[0].about.starts_with("model 0, ") && shown[5].about.starts_with("model 5, "), "{shown:?}");
        assert_eq!(left_out, "2 more conclusions follow from the tables.");
    }
}
