//! The table of methods by requested budgets. Attended tokens may differ, but settings with the same request are in one column.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use spattn_attention::Role;
use spattn_eval::summary::verdicts::{AskedBudget, JudgedSetting, VerdictTable};

use super::sentence::whole;
use super::words;

/// Rows and columns, with a setting in each cell that was run.
#[derive(Debug)]
pub struct VerdictMatrix<'t> {
    /// The requested budgets: shares, then tokens, each ascending, then methods with parameters of their own.
    pub budgets: Vec<AskedBudget>,
    /// Each method's name, and for each budget its settings. There are several only if the name tells none apart.
    pub rows: Vec<(String, Vec<Vec<&'t JudgedSetting>>)>,
}

impl<'t> VerdictMatrix<'t> {
    /// The matrix of a table: methods in their order, then oracles, then floors.
    pub fn of(table: &'t VerdictTable) -> Self {
        let mut settings: Vec<(&JudgedSetting, String)> = table.settings.iter().zip(words::row_names(table)).collect();
        settings.sort_by_key(|(setting, _)| of_role(setting.role));
        let mut budgets: Vec<AskedBudget> = settings.iter().map(|(setting, _)| setting.budget).collect();
        budgets.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        budgets.dedup();
        let mut rows: Vec<(String, Vec<Vec<&JudgedSetting>>)> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (setting, name) in settings {
            let at = *places.entry(name.clone()).or_insert(rows.len());
            if at == rows.len() {
                rows.push((name, vec![Vec::new(); budgets.len()]));
            }
            let column = budgets.iter().position(|budget| *budget == setting.budget).expect("all budgets are listed");
            rows[at].1[column].push(setting);
        }
        Self { budgets, rows }
    }
}

/// The verdicts on each task: a row for each method and budget, with its name; empty if the table has a single task.
pub fn by_task(table: &VerdictTable) -> Vec<(String, Vec<String>)> {
    let of_setting = |setting: &JudgedSetting| {
        let cells = setting.tasks.iter().map(|task| words::on_task(table, task)).collect();
        (words::name_as_met(table, setting), cells)
    };
    table.judged().filter(|setting| !setting.tasks.is_empty()).map(of_setting).collect()
}

fn of_role(role: Role) -> usize {
    match role {
        Role::Reference => 0,
        Role::Method => 1,
        Role::Oracle => 2,
        Role::Floor => 3,
    }
}

/// A setting's costs in short: what it attends if that is not what was requested, memory besides keys and values, bytes read, and its
/// latency alone.
pub fn costs(setting: &JudgedSetting) -> String {
    let attended = words::attended(setting);
    let memory = setting.memory_percent.map(|percent| format!("memory +{}", whole(percent)));
    let reads = setting.bytes_percent.map(|percent| format!("reads {}", whole(percent)));
    let solo = setting.solo_ms.map(|ms| format!("{ms:.1} ms alone"));
    attended.into_iter().chain(memory).chain(reads).chain(solo).collect::<Vec<_>>().join(", ")
}

/// The sentences below a table: on full attention, the verdict's rule, its intervals and times.
pub fn below(table: &VerdictTable) -> Vec<String> {
    let sentences = [about_full(table), Some(words::rule(table)), words::intervals(table), words::times(table)];
    sentences.into_iter().flatten().collect()
}

/// The score of full attention, and the time of its steps if it was measured.
pub fn about_full(table: &VerdictTable) -> Option<String> {
    let full = table.full?;
    let what = if table.is_perplexity { "has a perplexity of" } else { "scores" };
    let solo = full.solo_ms.map_or(String::new(), |ms| format!(", and takes {ms:.1} ms a step alone"));
    Some(format!("Full attention {what} {}{solo}.", words::score(table, full.score)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};

    #[test]
    fn each_task_has_its_own_verdict() {
        let n = 400;
        let runs = [
            run("a", "full", "", 0, n),
            run("b", "full", "", 0, n),
            run("a", "quest", "density=0.1", 64, n),
            run("b", "quest", "density=0.1", 0, n),
            run("a", "topk", "", 0, n),
            run("b", "topk", "", 0, n),
        ];
        let cells = ["not safe: at least 12 (Δ -16.0)", "safe: at most 1.3 (Δ 0.0)"].map(str::to_owned).to_vec();
        assert_eq!(by_task(&table(&runs, 11.0)), [("quest 10 %".to_owned(), cells)]);
        assert_eq!(by_task(&table(&[run("a", "full", "", 0, 9), run("a", "quest", "", 0, 9)], 1.0)), []);
    }

    #[test]
    fn what_was_asked_alike_stands_in_one_column() {
        let of = |method: &str, params: &str| run("vt", method, params, 0, 20);
        let table = table(
            &[
                of("full", ""),
                of("topk", "density=0.05"),
                of("quest", "page=16,density=0.05"),
                of("quest", "page=16,ratio=0.2"),
                of("sparq", "density=0.05"),
                of("h2o", "k=64"),
                of("magicpig", "K=8,L=75"),
            ],
            1.0,
        );
        let matrix = VerdictMatrix::of(&table);
        let headings: Vec<String> = matrix.budgets.iter().map(|budget| words::budget(*budget)).collect();
        assert_eq!(headings, ["5 %", "20 %", "64 tokens", "own parameters"]);
        let filled: Vec<(&str, Vec<usize>)> =
            matrix.rows.iter().map(|(name, cells)| (name.as_str(), cells.iter().map(Vec::len).collect())).collect();
        assert_eq!(
            filled,
            [
                ("h2o", vec![0, 0, 1, 0]),
                ("magicpig", vec![0, 0, 0, 1]),
                ("quest", vec![1, 1, 0, 0]),
                ("sparq", vec![1, 0, 0, 0]),
                ("topk", vec![1, 0, 0, 0]),
            ]
        );
        assert_eq!(costs(matrix.rows[0].1[2][0]), "memory +12 %, reads 10 %");
        let missed = JudgedSetting { attended_instead: Some(0.152), ..matrix.rows[0].1[2][0].clone() };
        assert_eq!(costs(&missed), "15 % attended, memory +12 %, reads 10 %");
        assert_eq!(about_full(&table).as_deref(), Some("Full attention scores 100.0."));
    }
}
