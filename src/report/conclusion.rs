//! What a report comes to, in sentences: the cheapest setting that keeps to dense attention, and the best of each budget.
//!
//! Nothing is claimed beyond the intervals of the tables: what noise cannot tell apart is named together, and where no
//! interval settles a question the sentence says so. Oracles show what is possible and floors what is had for nothing; they
//! are named beside, never recommended.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::best::{Candidate, level};
use super::format::{distinct, number, setting_name, signed, tokens};
use super::means::{self, shared_sets};
use crate::attention::Role;
use crate::eval::record::{REFERENCE, SummaryRow};
use crate::eval::stats::{Estimate, mean};

/// What may be lost against dense attention: points of a score, and percent of a perplexity.
const TOLERATED: f64 = 1.0;
/// So many others are named of those that noise cannot tell from the best.
const NAMED: usize = 3;
/// So many conclusions are drawn; the tables have the others.
const MOST: usize = 6;

/// What is concluded from settings of a model under a protocol that were all run on the same tasks and lengths.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// What was averaged, and of which model and protocol where there are several.
    pub about: String,
    /// The cheapest setting that keeps to dense attention.
    pub cheapest: String,
    /// The best setting of each budget, a line each, the smallest first.
    pub budgets: Vec<String>,
}

/// The first conclusions of a summary, in its order, and a line that says how many there are beside them; empty if there are none.
pub fn all(rows: &[SummaryRow]) -> (Vec<Conclusion>, String) {
    let scenes = distinct(rows.iter().map(|r| (r.model.as_str(), r.protocol.as_str())));
    let of_scene = |&(model, protocol): &(&str, &str)| {
        let here: Vec<&SummaryRow> =
            rows.iter().filter(|r| (r.model.as_str(), r.protocol.as_str()) == (model, protocol)).collect();
        let (scores, perplexities): (Vec<&SummaryRow>, Vec<&SummaryRow>) =
            here.into_iter().partition(|r| r.measure.is_score());
        // Perplexities of different texts or lengths are never averaged.
        let mut groups = vec![scores];
        for place in distinct(perplexities.iter().map(|r| place(r))) {
            groups.push(perplexities.iter().copied().filter(|r| self::place(r) == place).collect());
        }
        let name = if scenes.len() > 1 { format!("{model}, sparse from {protocol}: ") } else { String::new() };
        groups.into_iter().filter_map(|group| conclude(&group, &name)).collect::<Vec<_>>()
    };
    let mut found: Vec<Conclusion> = scenes.iter().flat_map(of_scene).collect();
    let more = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    let left_out = if more == 0 { String::new() } else { format!("{more} more can be drawn from the tables.") };
    (found, left_out)
}

fn place(row: &SummaryRow) -> (&str, usize) {
    (&row.task, row.length)
}

/// A setting over the tasks and lengths that all which are compared have.
struct Setting {
    name: String,
    role: Role,
    score: Estimate,
    /// Difference to dense attention, in points or percent of its perplexity.
    delta: Option<Estimate>,
    density: f64,
    cost: f64,
}

/// `None` where no sparse method was run.
fn conclude(rows: &[&SummaryRow], scene: &str) -> Option<Conclusion> {
    let mut by_setting: BTreeMap<(&str, &str), Vec<&SummaryRow>> = BTreeMap::new();
    for row in rows.iter().filter(|r| r.method != REFERENCE) {
        by_setting.entry((&row.method, &row.params)).or_default().push(row);
    }
    let sets: Vec<BTreeSet<_>> = by_setting.values().map(|of| of.iter().map(|r| place(r)).collect()).collect();
    // What all have in common comes last; where that is nothing, what most were run on comes first.
    let shared = shared_sets(&sets);
    let common = shared.iter().rfind(|set| !set.is_empty() && sets.iter().all(|of| of.is_superset(set)));
    let over = common.or_else(|| shared.first())?;
    let is_less_better = !rows.first()?.measure.is_score();
    let order = distinct(rows.iter().map(|r| (r.method.as_str(), r.params.as_str())));
    let kept = order.iter().filter_map(|key| by_setting.get(key));
    let kept: Vec<Vec<&SummaryRow>> = kept
        .map(|of| of.iter().copied().filter(|r| over.contains(&place(r))).collect::<Vec<_>>())
        .filter(|of| of.len() == over.len())
        .collect();
    let dense = rows.iter().find(|r| r.method == REFERENCE).filter(|_| is_less_better).map(|r| r.score);
    let settings: Vec<Setting> = kept.iter().filter_map(|of| setting(of, dense)).collect();
    let missing = by_setting.len() - settings.len();
    let lacking = if missing == 0 { String::new() } else { format!(" ({missing} left out: they lack some of these)") };
    Some(Conclusion {
        about: format!("{scene}{}{lacking}", about(over, is_less_better)),
        cheapest: cheapest(&settings, is_less_better),
        budgets: budgets(&settings, is_less_better),
    })
}

fn setting(of: &[&SummaryRow], dense: Option<f64>) -> Option<Setting> {
    let head = of.first()?;
    let over = |value: fn(&SummaryRow) -> f64| mean(&of.iter().map(|r| value(r)).collect::<Vec<_>>());
    Some(Setting {
        name: format!("`{}`", setting_name(&head.method, &head.params)),
        role: Role::of(&head.method),
        score: means::score(of)?,
        delta: means::delta(of).map(|d| dense.map_or(d, |perplexity| d.scaled(100.0 / perplexity))),
        density: over(|r| r.density),
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

fn cheapest(settings: &[Setting], is_less_better: bool) -> String {
    let mut compared: Vec<(&Setting, Estimate)> =
        settings.iter().filter(|s| s.role == Role::Method).filter_map(|s| Some((s, s.delta?))).collect();
    if compared.is_empty() {
        return format!("{}: which method keeps to dense attention is not known.", why_unknown(settings));
    }
    compared.sort_by(|(a, _), (b, _)| {
        (a.cost, a.density).partial_cmp(&(b.cost, b.density)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let unit = if is_less_better { "1 % of dense attention's perplexity" } else { "1 point of dense attention" };
    // How much is lost in the mean, and at worst; negative where it is a gain.
    let loss = |d: &Estimate| if is_less_better { d.mean } else { -d.mean };
    let worst = |d: &Estimate| if is_less_better { d.high() } else { d.low().map(|low| -low) };
    let find = |holds: &dyn Fn(&Estimate) -> bool| compared.iter().find(|(_, d)| holds(d));
    let told = |&(s, d): &(&Setting, Estimate)| told(s, d, is_less_better);
    let holds = |d: &Estimate| worst(d).is_some_and(|worst| worst <= TOLERATED);
    // An oracle scores all keys, so what it costs is not the question: what is, is how little it attends.
    let oracles = settings.iter().filter(|s| s.role == Role::Oracle).filter_map(|s| Some((s, s.delta?)));
    let oracle = oracles.filter(|(_, d)| holds(d)).min_by(|(a, _), (b, _)| a.density.total_cmp(&b.density));
    let beside = oracle
        .map_or(String::new(), |(s, _)| format!(" An oracle, {}, needs a density of {}.", s.name, number(s.density)));
    if let Some(found) = find(&holds) {
        return format!("The cheapest method that is within {unit} for certain is {}.{beside}", told(found));
    }
    if compared.iter().all(|(_, d)| d.ends.is_none()) {
        let few = format!("One context tells nothing of noise, so no method is certain to be within {unit}");
        let seen = find(&|d| loss(d) <= TOLERATED);
        return match seen {
            Some(found) => format!("{few}. The cheapest that was, here, is {}.", told(found)),
            None => format!("{few}; here, none was."),
        };
    }
    let none = format!("No method is within {unit} for certain at this number of examples");
    if let Some(found) = find(&|d| d.ends.is_some_and(|(low, high)| low <= 0.0 && 0.0 <= high)) {
        return format!("{none}. The cheapest that noise cannot tell from it is {}.{beside}", told(found));
    }
    let least = compared.iter().min_by(|(_, a), (_, b)| loss(a).total_cmp(&loss(b)));
    least.map_or(none.clone(), |found| {
        format!("{none}, and all differ from it beyond noise. The least is lost by {}.{beside}", told(found))
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
    format!("{name} (Δ {delta}{ends}{unit}, {} of the FLOPs, density {})", number(*cost), number(*density))
}

// ---- the best of each budget ----

/// The nearest power of two that a density is one over.
fn budget(density: f64) -> i32 {
    (-density.max(f64::MIN_POSITIVE).log2()).round().max(0.0) as i32
}

fn budgets(settings: &[Setting], is_less_better: bool) -> Vec<String> {
    let mut classes: BTreeMap<i32, Vec<&Setting>> = BTreeMap::new();
    for setting in settings {
        classes.entry(budget(setting.density)).or_default().push(setting);
    }
    // The smallest budget has the largest exponent.
    classes.into_iter().rev().map(|(exponent, of)| line(exponent, &of, is_less_better)).collect()
}

fn line(exponent: i32, of: &[&Setting], is_less_better: bool) -> String {
    let in_role = |role: Role| of.iter().copied().filter(|s| s.role == role).collect::<Vec<&Setting>>();
    let methods = in_role(Role::Method);
    let density = if exponent == 0 { "1".to_owned() } else { format!("1/{}", 2f64.powi(exponent)) };
    let beside: Vec<String> = [Role::Oracle, Role::Floor]
        .into_iter()
        .filter_map(|role| {
            Some(format!("{} {}", role.name(), scored(best(&in_role(role), is_less_better)?, is_less_better)))
        })
        .collect();
    let Some(found) = best(&methods, is_less_better) else {
        return format!("density about {density}: no method but {}", beside.join("; "));
    };
    let candidates: Vec<Candidate> =
        methods.iter().enumerate().map(|(line, s)| Candidate { line, score: s.score }).collect();
    let others = level(&candidates, is_less_better);
    let others: Vec<&str> =
        others.into_iter().map(|i| methods[i]).filter(|s| !std::ptr::eq(*s, found)).map(|s| s.name.as_str()).collect();
    let is_known = methods.iter().all(|s| s.score.ends.is_some());
    let rivals = match (others.as_slice(), methods.len() - 1) {
        (_, 0) => " is the only method there".to_owned(),
        ([], rest) if is_known => format!(
            ", beyond noise better than {}",
            if rest == 1 { "the other".to_owned() } else { format!("the other {rest}") }
        ),
        ([], _) => " (noise not known)".to_owned(),
        (others, _) => {
            let more = others.len().saturating_sub(NAMED);
            let named = others.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let what = if is_known { "noise does not tell it from" } else { "level with" };
            format!("; {what} {named}{more}")
        }
    };
    let beside: String = beside.iter().map(|one| format!("; {one}")).collect();
    format!("density about {density}: {}{rivals}{beside}", scored(found, is_less_better))
}

/// The first of the best mean.
fn best<'a>(of: &[&'a Setting], is_less_better: bool) -> Option<&'a Setting> {
    let sign = if is_less_better { 1.0 } else { -1.0 };
    of.iter().copied().min_by(|a, b| (sign * a.score.mean).total_cmp(&(sign * b.score.mean)))
}

fn scored(setting: &Setting, is_perplexity: bool) -> String {
    let form = |x: f64| if is_perplexity { number(x) } else { format!("{x:.1}") };
    let ends = setting.score.ends.map_or(String::new(), |(low, high)| format!(" [{} {}]", form(low), form(high)));
    format!("{} {}{ends}", setting.name, form(setting.score.mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::record::tests::record;
    use crate::eval::summary::summarize;
    use crate::tasks::likelihood::Measure;

    /// A row of a task with its score, difference and cost as given.
    fn row(method: &str, score: (f64, f64, f64), delta: (f64, f64, f64), density: f64) -> SummaryRow {
        let mut row = summarize(&[record("ruler/vt", method, 0, 1.0)], &[]).remove(0);
        (row.score, row.ci_low, row.ci_high) = (score.0, Some(score.1), Some(score.2));
        (row.delta_full, row.delta_low, row.delta_high) = (Some(delta.0), Some(delta.1), Some(delta.2));
        (row.density, row.cost_total) = (density, density);
        row
    }

    fn only(rows: &[SummaryRow]) -> Conclusion {
        let (mut found, left_out) = all(rows);
        assert_eq!((found.len(), left_out.as_str()), (1, ""), "{found:?}");
        found.remove(0)
    }

    #[test]
    fn the_cheapest_within_a_point_is_certain_by_its_interval_and_no_oracle() {
        let rows = [
            row("topk", (97.0, 95.0, 99.0), (0.0, -0.1, 0.1), 0.06),
            row("streaming_llm", (90.0, 85.0, 95.0), (-7.0, -9.0, 0.5), 0.06),
            row("h2o", (96.0, 94.0, 98.0), (-0.4, -0.9, 0.1), 0.25),
            row("quest", (97.0, 95.0, 99.0), (0.1, -0.2, 0.4), 0.5),
            row("random", (98.0, 96.0, 100.0), (0.1, -0.2, 0.4), 0.25),
        ];
        let found = only(&rows);
        assert_eq!(found.about, "ruler/vt at 4K");
        assert_eq!(
            found.cheapest,
            "The cheapest method that is within 1 point of dense attention for certain is `h2o` (Δ -0.4 [-0.9 +0.1], \
             0.250 of the FLOPs, density 0.250). An oracle, `topk`, needs a density of 0.0600."
        );
        assert_eq!(
            found.budgets[1],
            "density about 1/4: `h2o` 96.0 [94.0 98.0] is the only method there; floor `random` 98.0 [96.0 100.0]"
        );
        assert_eq!(
            found.budgets[0],
            "density about 1/16: `streaming_llm` 90.0 [85.0 95.0] is the only method there; oracle `topk` 97.0 [95.0 99.0]"
        );
    }

    #[test]
    fn where_none_is_certain_the_sentence_says_so() {
        let noisy = [
            row("h2o", (80.0, 70.0, 90.0), (-15.0, -25.0, -5.0), 0.1),
            row("quest", (94.0, 80.0, 99.0), (-1.0, -6.0, 4.0), 0.2),
        ];
        let said = only(&noisy).cheapest;
        assert!(
            said.starts_with("No method is within 1 point") && said.contains("noise cannot tell from it is `quest`"),
            "{said}"
        );
        let lost = only(&[
            row("h2o", (80.0, 70.0, 90.0), (-15.0, -25.0, -5.0), 0.1),
            row("quest", (85.0, 80.0, 90.0), (-9.0, -12.0, -6.0), 0.2),
        ]);
        assert!(lost.cheapest.contains("all differ from it beyond noise. The least is lost by `quest`"), "{lost:?}");
        let mut once = noisy.clone();
        for row in &mut once {
            (row.delta_low, row.delta_high, row.ci_low, row.ci_high) = (None, None, None, None);
        }
        let said = only(&once);
        assert!(
            said.cheapest.starts_with("One context tells nothing of noise")
                && said.cheapest.contains("is `quest` (Δ -1.0,"),
            "{said:?}"
        );
        once.iter_mut().for_each(|row| row.delta_full = None);
        assert!(only(&once).cheapest.starts_with("Dense attention was not run"));
    }

    #[test]
    fn the_best_of_a_budget_stands_with_those_that_noise_does_not_tell_from_it() {
        let none = (0.0, -1.0, 1.0);
        let rows = [
            row("h2o", (90.0, 84.0, 95.0), none, 0.12),
            row("quest", (92.0, 88.0, 96.0), none, 0.13),
            row("tova", (60.0, 50.0, 70.0), none, 0.125),
            row("loki", (99.0, 98.0, 100.0), none, 0.24),
            row("sparq", (70.0, 60.0, 80.0), none, 0.26),
        ];
        assert_eq!(
            only(&rows).budgets,
            [
                "density about 1/8: `quest` 92.0 [88.0 96.0]; noise does not tell it from `h2o`",
                "density about 1/4: `loki` 99.0 [98.0 100.0], beyond noise better than the other",
            ]
        );
    }

    #[test]
    fn less_perplexity_is_better_and_the_loss_is_a_percentage() {
        let mut rows = [
            row("full", (10.0, 9.0, 11.0), (0.0, 0.0, 0.0), 1.0),
            row("h2o", (10.5, 9.5, 11.5), (0.5, 0.4, 0.6), 0.1),
            row("quest", (10.05, 9.0, 11.0), (0.05, 0.02, 0.08), 0.11),
        ];
        rows.iter_mut().for_each(|row| row.measure = Measure::Perplexity);
        let found = only(&rows);
        // 0.08 of 10 is 0.8 %, and 0.6 of 10 is 6 %.
        assert!(found.cheapest.contains("for certain is `quest` (Δ +0.5 [+0.2 +0.8] %"), "{found:?}");
        assert!(
            found.budgets[0].starts_with("density about 1/8: `quest` 10.1 [9.00 11.0]; noise does not"),
            "{found:?}"
        );
    }

    #[test]
    fn means_are_over_what_all_settings_have() {
        let none = (0.0, -0.5, 0.5);
        let at = |task: &str, method: &str, score: f64| {
            let mut row = row(method, (score, score - 1.0, score + 1.0), none, 0.125);
            task.clone_into(&mut row.task);
            row
        };
        let rows = [at("a", "h2o", 80.0), at("a", "quest", 90.0), at("b", "h2o", 100.0)];
        let found = only(&rows);
        assert_eq!(found.about, "a at 4K");
        assert!(found.budgets[0].contains("`quest` 90.0"), "h2o's 100 of another task does not count: {found:?}");
        let apart = only(&[at("a", "h2o", 80.0), at("c", "h2o", 80.0), at("b", "quest", 90.0)]);
        assert_eq!(apart.about, "mean over 2 tasks at 4K (1 left out: they lack some of these)");
        assert_eq!(all(&[]), (Vec::new(), String::new()));
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let of_model = |i: usize| {
            let mut row = row("quest", (97.0, 95.0, 99.0), (0.1, -0.2, 0.4), 0.5);
            row.model = format!("model {i}");
            row
        };
        let (shown, left_out) = all(&(0..8).map(of_model).collect::<Vec<_>>());
        assert_eq!(shown.len(), 6);
        assert!(shown[0].about.starts_with("model 0, ") && shown[5].about.starts_with("model 5, "), "{shown:?}");
        assert_eq!(left_out, "2 more can be drawn from the tables.");
    }
}
