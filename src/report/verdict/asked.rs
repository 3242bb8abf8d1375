//! The answer to `--safe-within`: whether any of the methods is safe.

use spattn_eval::summary::verdicts::{Finding, JudgedSetting, VerdictTable};

use super::words;

/// The most safe settings that are named.
const NAMED: usize = 6;

/// The answer, and a line that states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetyAnswer {
    /// Whether each model and protocol has a setting that is safe at all lengths and not proven unsafe on any task.
    pub is_safe: bool,
    /// The line for people.
    pub line: String,
}

/// The answer over all tables of a report, which share one limit.
pub fn answer(tables: &[VerdictTable]) -> SafetyAnswer {
    let Some(first) = tables.first() else {
        return SafetyAnswer { is_safe: false, line: "no method is safe: only full attention was run".to_owned() };
    };
    let scene = |table: &VerdictTable| (table.model.clone(), table.protocol.clone());
    let mut scenes: Vec<Vec<&VerdictTable>> = Vec::new();
    for table in tables {
        match scenes.iter_mut().find(|of| scene(of[0]) == scene(table)) {
            Some(of) => of.push(table),
            None => scenes.push(vec![table]),
        }
    }
    let safe: Vec<Vec<String>> = scenes.iter().map(|of| safe_in_all(of)).collect();
    let limit = words::limit(first);
    if safe.iter().all(|names| !names.is_empty()) {
        let names: Vec<String> = safe.concat();
        let more = names.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let named = names[..names.len().min(NAMED)].join(", ");
        return SafetyAnswer { is_safe: true, line: format!("safe within {limit}: {named}{more}") };
    }
    let settings = || tables.iter().flat_map(VerdictTable::judged);
    let count = |is: fn(&Finding) -> bool| settings().filter(|setting| is(&setting.finding)).count();
    let kinds = [
        (count(|f| matches!(f, Finding::NotSafe { .. })), "not safe"),
        (count(|f| matches!(f, Finding::TooFew { .. })), "with too few examples to tell"),
        (count(|f| matches!(f, Finding::NothingToLose)), "with nothing to lose"),
        (count(|f| matches!(f, Finding::NotJudged)), "not judged, as full attention was not run"),
        (count(|f| matches!(f, Finding::Safe { .. })), "safe, but not on every task, length and model"),
    ];
    let kinds: Vec<String> = kinds.into_iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
    let kinds = if kinds.is_empty() { "none was run".to_owned() } else { kinds.join(", ") };
    SafetyAnswer { is_safe: false, line: format!("no method is shown to be safe within {limit}: {kinds}") }
}

/// The settings that are safe in all of these tables.
fn safe_in_all(tables: &[&VerdictTable]) -> Vec<String> {
    let Some((first, others)) = tables.split_first() else { return Vec::new() };
    let is_safe_in = |table: &VerdictTable, setting: &JudgedSetting| {
        let same = |other: &&JudgedSetting| (&other.method, &other.params) == (&setting.method, &setting.params);
        table.judged().find(same).is_some_and(JudgedSetting::is_recommended)
    };
    let safe = first.judged().filter(|setting| setting.is_recommended());
    let safe = safe.filter(|setting| others.iter().all(|table| is_safe_in(table, setting)));
    safe.map(|setting| words::name_as_met(first, setting)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, tables};
    use spattn_eval::records::record::Record;

    fn at(length: usize, lost: [usize; 2], n: usize) -> Vec<Record> {
        let all = [
            run("vt", "full", "", 0, n),
            run("vt", "quest", "density=0.05", lost[0], n),
            run("vt", "h2o", "density=0.2", lost[1], n),
        ];
        all.concat().into_iter().map(|r| Record { length, ..r }).collect()
    }

    #[test]
    fn a_method_has_to_be_safe_at_every_length() {
        let of = |runs: &[Vec<Record>]| answer(&tables(runs, 1.0));
        let one = of(&[at(4096, [200, 0], 600)]);
        assert_eq!(one, SafetyAnswer { is_safe: true, line: "safe within 1 point: h2o 20 %".into() });
        let split = of(&[at(4096, [200, 0], 600), at(8192, [0, 200], 600)]);
        assert_eq!(
            split.line,
            "no method is shown to be safe within 1 point: 2 not safe, 2 safe, but not on every task, length and model"
        );
        assert!(!split.is_safe);
        let few = of(&[at(4096, [0, 0], 20)]);
        assert_eq!(few.line, "no method is shown to be safe within 1 point: 2 with too few examples to tell");
        assert!(!answer(&[]).is_safe && !few.is_safe);
    }

    #[test]
    fn no_oracle_and_no_floor_makes_a_run_safe() {
        let runs = [run("vt", "full", "", 0, 600), run("vt", "topk", "", 0, 600), run("vt", "random", "", 0, 600)];
        let told = answer(&tables(&runs, 1.0));
        assert_eq!(
            (told.is_safe, told.line.as_str()),
            (false, "no method is shown to be safe within 1 point: none was run")
        );
    }
}
