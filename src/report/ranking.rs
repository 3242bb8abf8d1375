//! The best method at each budget: a line for each budget in a table of verdicts.
//!
//! Methods with the same requested budget are compared on the same examples, and "better" is corrected for all comparisons of the table
//! ([`best`]). If examples are too few to tell two methods apart, the line says so. Oracles and floors are named as well, but never as
//! the best.

use spattn_attention::Role;
use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::verdicts::{AskedBudget, JudgedSetting, VerdictTable};
use spattn_stats::Level;

use super::best::{self, ComparedSetting};
use super::verdict::matrix::VerdictMatrix;
use super::verdict::words;

/// The most settings that are named among those that cannot be told from the best.
const NAMED: usize = 3;

/// The lines of a table of verdicts, and one about how settings were compared; empty if no budget has two methods. `cells` are those of
/// `rows`, and the table was made from both.
pub fn lines(table: &VerdictTable, rows: &[SummaryRow], cells: &[SummaryCell]) -> Vec<String> {
    let ranking = Ranking { table, names: words::row_names(table), rows, cells };
    let budgets = VerdictMatrix::of(table).budgets;
    let groups: Vec<(AskedBudget, Vec<&JudgedSetting>)> = budgets
        .into_iter()
        .map(|budget| (budget, table.settings.iter().filter(|setting| setting.budget == budget).collect()))
        .collect();
    let methods = |of: &[&JudgedSetting]| of.iter().filter(|setting| setting.role == Role::Method).count();
    let comparisons: usize = groups.iter().map(|(_, of)| best::comparisons(methods(of))).sum();
    if comparisons == 0 {
        return Vec::new();
    }
    let level = Level::with(table.rule.confidence, comparisons);
    let mut lines: Vec<String> =
        groups.iter().filter(|(_, of)| methods(of) > 1).map(|(budget, of)| ranking.line(*budget, of, level)).collect();
    if comparisons > 1 {
        lines.push(format!(
            "Methods are compared on the same examples; \"better\" is {} % sure for all {comparisons} comparisons together.",
            100.0 * table.rule.confidence
        ));
    }
    lines
}

struct Ranking<'t, 'r, 'a> {
    table: &'t VerdictTable,
    /// The names of the table's settings.
    names: Vec<String>,
    rows: &'r [SummaryRow],
    cells: &'r [SummaryCell<'a>],
}

impl<'r, 'a> Ranking<'_, 'r, 'a> {
    fn line(&self, budget: AskedBudget, of: &[&JudgedSetting], level: Level) -> String {
        let methods: Vec<&JudgedSetting> = of.iter().copied().filter(|setting| setting.role == Role::Method).collect();
        let candidates: Vec<ComparedSetting> =
            methods.iter().map(|s| ComparedSetting { score: s.score, cells: self.cells_of(s) }).collect();
        let is_less_better = self.table.is_perplexity;
        let at = format!("at {}", words::budget(budget));
        let Some(found) = best::best(&candidates, is_less_better, level) else { return format!("{at}: no method") };
        let others: Vec<String> = found.others.iter().map(|other| self.name(methods[*other])).collect();
        let rest = methods.len() - 1;
        let rivals = match (others.as_slice(), found.is_known) {
            (others, _) if others.len() == rest => {
                let of = if rest == 1 { "2".to_owned() } else { methods.len().to_string() };
                format!(", the best of {of}; too few examples to rank them")
            }
            ([], _) if rest == 1 => ", better than the other".to_owned(),
            ([], _) => format!(", better than the other {rest}"),
            (others, _) => {
                let more = others.len().saturating_sub(NAMED);
                let named = others.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = if more == 0 { String::new() } else { format!(" and {more} more") };
                format!(
                    ", better than {} of the other {rest}; too few examples to rank it against {named}{more}",
                    rest - others.len()
                )
            }
        };
        let beside: String = [Role::Oracle, Role::Floor]
            .into_iter()
            .filter_map(|role| {
                let best = best_of(of, role, is_less_better)?;
                Some(format!("; {} {}", role.name(), self.scored(best)))
            })
            .collect();
        format!("{at}: {}{rivals}{beside}", self.scored(methods[found.first]))
    }

    /// A setting's name without the budget.
    fn name(&self, setting: &JudgedSetting) -> String {
        let at = self.table.settings.iter().position(|other| std::ptr::eq(other, setting));
        format!("`{}`", at.map_or(setting.method.as_str(), |at| self.names[at].as_str()))
    }

    fn scored(&self, setting: &JudgedSetting) -> String {
        format!("{} {}", self.name(setting), words::score(self.table, setting.score))
    }

    /// The cells of a setting for the tasks of the table.
    fn cells_of(&self, setting: &JudgedSetting) -> Vec<&'r SummaryCell<'a>> {
        let table = self.table;
        let is_its = |row: &SummaryRow| {
            (&row.model, &row.protocol, row.length) == (&table.model, &table.protocol, table.length)
                && (&row.method, &row.params) == (&setting.method, &setting.params)
                && row.measure.is_score() != table.is_perplexity
                && table.tasks.contains(&row.task)
        };
        self.rows.iter().zip(self.cells).filter(|(row, _)| is_its(row)).map(|(_, cell)| cell).collect()
    }
}

/// The first setting with the best mean among those of a role.
fn best_of<'s>(of: &[&'s JudgedSetting], role: Role, is_less_better: bool) -> Option<&'s JudgedSetting> {
    let sign = if is_less_better { 1.0 } else { -1.0 };
    let in_role = of.iter().copied().filter(|setting| setting.role == role);
    in_role.min_by(|a, b| (sign * a.score).total_cmp(&(sign * b.score)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::run;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::perplexity;
    use spattn_eval::summary::cells::group;
    use spattn_eval::summary::summarize;
    use spattn_eval::summary::verdicts::{KvBits, VerdictRule, judge};

    fn said(runs: &[Vec<Record>]) -> Vec<String> {
        let records = runs.concat();
        let cells = group(&records, &[]);
        let rows = summarize::rows(&cells);
        let tables = judge(&rows, &cells, VerdictRule::default(), &KvBits::new());
        assert_eq!(tables.len(), 1);
        lines(&tables[0], &rows, &cells)
    }

    fn at(method: &str, budget: &str, lost: usize, n: usize) -> Vec<Record> {
        run("vt", method, &format!("density={budget}"), lost, n)
    }

    #[test]
    fn the_best_of_a_budget_is_named_with_those_that_it_cannot_be_told_from() {
        let found = said(&[
            at("h2o", "0.1", 5, 40),
            at("quest", "0.1", 3, 40),
            at("tova", "0.1", 16, 40),
            at("loki", "0.2", 0, 40),
            at("sparq", "0.2", 12, 40),
            at("topk", "0.1", 0, 40),
            at("h2o", "0.3", 0, 40),
        ]);
        assert_eq!(
            found,
            [
                "at 10 %: `quest` 92.5, better than 1 of the other 2; too few examples to rank it against `h2o`; oracle `topk` 100.0",
                "at 20 %: `loki` 100.0, better than the other",
                "Methods are compared on the same examples; \"better\" is 95 % sure for all 3 comparisons together.",
            ]
        );
        assert_eq!(said(&[at("h2o", "0.1", 5, 40), at("quest", "0.2", 3, 40)]), [""; 0], "nothing is compared");
    }

    #[test]
    fn where_nothing_is_told_no_method_is_called_better() {
        let told = said(&[at("h2o", "0.1", 2, 40), at("quest", "0.1", 1, 40)]);
        assert_eq!(told, ["at 10 %: `quest` 97.5, the best of 2; too few examples to rank them"]);
        let few = said(&[at("h2o", "0.1", 3, 3), at("quest", "0.1", 0, 3)]);
        assert_eq!(few, ["at 10 %: `quest` 100.0, the best of 2; too few examples to rank them"]);
    }

    #[test]
    fn an_upper_end_below_a_mean_settles_nothing_that_the_same_examples_leave_open() {
        // 24 and 10 of 40 are right. The interval of `h2o` ends at 41 %, below 60 %. Paired, 24 are right only under `quest` and 10 only
        // under `h2o`: 14 / √34 = 2.40 standard errors. Three comparisons need 2.39, four need 2.50.
        let of = |method: &str, is_right: &dyn Fn(usize) -> bool| -> Vec<Record> {
            let right = |r: Record| Record { score: f64::from(u8::from(is_right(r.sample))), ..r };
            at(method, "0.1", 0, 40).into_iter().map(right).collect()
        };
        let told = |others: usize| {
            let two = [of("quest", &|i| i < 24), of("h2o", &|i| i >= 30)];
            let less = ["tova", "loki", "sparq"].map(|name| of(name, &|_| false));
            said(&two.into_iter().chain(less.into_iter().take(others)).collect::<Vec<_>>())[0].clone()
        };
        assert!(told(2).ends_with(", better than the other 3"), "{}", told(2));
        assert!(
            told(3).ends_with(", better than 3 of the other 4; too few examples to rank it against `h2o`"),
            "{}",
            told(3)
        );
    }

    #[test]
    fn less_perplexity_is_better() {
        let of = |method: &str, more: f64| -> Vec<Record> {
            let nats = |i: usize| 2.0 + i as f64 / 10.0 + more * (1.0 + i as f64 / 50.0);
            (0..12).map(|i| Record { params: "density=0.1".into(), ..perplexity(method, i, nats(i)) }).collect()
        };
        let found = said(&[of("h2o", 0.05), of("quest", 0.004)]);
        assert!(
            found[0].starts_with("at 10 %: `quest` ") && found[0].ends_with(", better than the other"),
            "{found:?}"
        );
    }

    #[test]
    fn means_over_tasks_are_compared_by_the_examples_of_all() {
        let on = |task: &str, method: &str, lost: usize| run(task, method, "density=0.1", lost, 20);
        // A task without any difference halves the mean difference, but leaves it as certain.
        let both = said(&[on("a", "h2o", 8), on("b", "h2o", 2), on("a", "quest", 0), on("b", "quest", 2)]);
        assert_eq!(both, ["at 10 %: `quest` 95.0, better than the other"]);
    }
}
