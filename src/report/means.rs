//! Means over several rows of the summary, with intervals from the examples of all of them.

use std::collections::BTreeSet;

use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::SummaryRow;

use super::format::{detectable as detectable_line, distinct};
use super::stand_ins;

/// The settings of a model under a protocol at a length, averaged over tasks that all of them have.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanTable {
    /// The tasks, in the order of the summary.
    pub tasks: Vec<String>,
    /// The number of tasks that at least one setting has.
    pub of: usize,
    /// A row for each setting, with the mean's name instead of a task's.
    pub rows: Vec<SummaryRow>,
    /// Notes for the reader about these means, one line each.
    pub notes: Vec<String>,
}

impl MeanTable {
    /// What the rows are means over, for a heading.
    pub fn title(&self) -> String {
        let title = title(&self.tasks, self.of);
        if self.is_partial() { format!("{title}: {}", self.tasks.join(", ")) } else { title }
    }

    /// The line about the detectable differences of these means.
    pub fn detectable(&self) -> Option<String> {
        detectable_line(self.rows.iter().map(|r| (r.contexts, r.detectable)))
    }

    /// Whether some tasks are left out because a setting lacks them.
    pub fn is_partial(&self) -> bool {
        self.tasks.len() < self.of
    }
}

fn title(tasks: &[String], of: usize) -> String {
    match tasks.len() {
        n if n < of => format!("mean over {n} of {of} tasks"),
        n => format!("mean over {n} tasks"),
    }
}

/// The means over tasks with scores, for each model, protocol and length with several such tasks. A table never mixes
/// means over different tasks: there is one for each set of tasks that a setting has (with the settings that have at
/// least these), and one for the tasks that all have. `cells` are those of `rows`.
pub fn over_tasks(rows: &[SummaryRow], cells: &[SummaryCell]) -> Vec<MeanTable> {
    let scored: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].measure.is_score()).collect();
    let place = |i: &usize| (rows[*i].model.as_str(), rows[*i].protocol.as_str(), rows[*i].length);
    let scenes = distinct(rows.iter().map(|r| (r.model.as_str(), r.protocol.as_str())));
    let mut places = distinct(scored.iter().map(place));
    places.sort_by_key(|(model, protocol, length)| (scenes.iter().position(|s| *s == (*model, *protocol)), *length));
    let mut tables = Vec::new();
    for at in places {
        let here: Vec<usize> = scored.iter().copied().filter(|i| place(i) == at).collect();
        tables.extend(tables_of(&here, rows, cells));
    }
    name(&mut tables);
    tables
}

/// The tables of one model, protocol and length.
fn tables_of(here: &[usize], rows: &[SummaryRow], cells: &[SummaryCell]) -> Vec<MeanTable> {
    let setting = |i: &usize| (rows[*i].method.as_str(), rows[*i].params.as_str());
    let all = distinct(here.iter().map(|i| rows[*i].task.as_str()));
    let settings: Vec<Vec<usize>> = distinct(here.iter().map(setting))
        .into_iter()
        .map(|one| here.iter().copied().filter(|i| setting(i) == one).collect())
        .collect();
    let tasks_of = |of: &[usize]| of.iter().map(|i| rows[*i].task.as_str()).collect::<BTreeSet<_>>();
    let sets: Vec<BTreeSet<&str>> = settings.iter().map(|of| tasks_of(of)).collect();
    let table = |tasks: BTreeSet<&str>| {
        let having = settings.iter().zip(&sets).filter(|(_, set)| set.is_superset(&tasks));
        let of_tasks = |of: &[usize]| of.iter().copied().filter(|i| tasks.contains(rows[*i].task.as_str())).collect();
        let averaged: Vec<Vec<usize>> = having.map(|(of, _)| of_tasks(of)).collect();
        let tasks: Vec<&str> = all.iter().copied().filter(|task| tasks.contains(task)).collect();
        MeanTable {
            of: all.len(),
            rows: averaged.iter().filter_map(|of| mean_row(of, rows)).collect(),
            notes: stand_ins::note(&tasks).into_iter().chain(other_examples(&averaged, cells)).collect(),
            tasks: tasks.into_iter().map(str::to_owned).collect(),
        }
    };
    let mut tables: Vec<MeanTable> = shared_sets(&sets).into_iter().filter(|s| s.len() > 1).map(table).collect();
    // A table of dense attention alone compares nothing, so it is left out if there are others.
    if tables.len() > 1 {
        tables.retain(|table| table.rows.iter().any(|row| !row.is_reference()));
    }
    tables
}

/// Each of the sets, and the intersection of all of them; the largest first.
pub fn shared_sets<T: Ord + Clone>(sets: &[BTreeSet<T>]) -> Vec<BTreeSet<T>> {
    let common = sets.iter().cloned().reduce(|a, b| &a & &b);
    let mut shared = distinct(sets.iter().cloned().chain(common));
    shared.sort_by_key(|set| std::cmp::Reverse(set.len()));
    shared
}

/// A warning if the settings ran different examples: then their scores cannot be compared, but their differences to
/// dense attention can.
fn other_examples(settings: &[Vec<usize>], cells: &[SummaryCell]) -> Option<String> {
    let examples = |of: &Vec<usize>| -> Vec<(&str, u64, usize)> {
        let records = of.iter().flat_map(|i| &cells[*i].records);
        let mut seen: Vec<_> = records.map(|r| (r.task.as_str(), r.seed, r.sample)).collect();
        // The examples are in order within a cell, and mostly across cells, so sorting is cheap.
        seen.sort();
        seen.dedup();
        seen
    };
    let seen: Vec<_> = settings.iter().map(examples).collect();
    let counts: Vec<usize> = seen.iter().map(Vec::len).collect();
    let (least, most) = (counts.iter().min()?, counts.iter().max()?);
    seen.iter().any(|other| *other != seen[0]).then(|| {
        let counts = if least == most { format!("{least} each") } else { format!("{least} to {most}") };
        format!("these means are over different examples ({counts}): compare methods by Δ full, which uses the same examples")
    })
}

/// Names the mean in each row, so that equal names are means over the same tasks.
fn name(tables: &mut [MeanTable]) {
    let names: Vec<(String, Vec<String>)> = tables.iter().map(|t| (title(&t.tasks, t.of), t.tasks.clone())).collect();
    for (table, (title, tasks)) in tables.iter_mut().zip(&names) {
        let is_shared = names.iter().any(|(other, of)| other == title && of != tasks);
        let task =
            if is_shared || table.is_partial() { format!("{title}: {}", tasks.join(", ")) } else { title.clone() };
        table.rows.iter_mut().for_each(|row| row.task.clone_from(&task));
    }
}

/// The row of the mean over the rows of one setting, without a name yet.
fn mean_row(of: &[usize], rows: &[SummaryRow]) -> Option<SummaryRow> {
    let of_rows: Vec<&SummaryRow> = of.iter().map(|i| &rows[*i]).collect();
    (!of_rows.is_empty()).then(|| SummaryRow::mean_over_tasks(&of_rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;
    use spattn_eval::records::timing::Latency;
    use spattn_eval::summary::cells::group;
    use spattn_eval::summary::summarize::summarize;

    /// Makes the tables from (task, method, scores).
    fn tables(given: &[(&str, &str, &[f64])]) -> Vec<MeanTable> {
        let of = |(task, method, scores): &(&str, &str, &[f64])| -> Vec<Record> {
            scores.iter().enumerate().map(|(i, score)| record(task, method, i, *score)).collect()
        };
        let records: Vec<Record> = given.iter().flat_map(of).collect();
        over_tasks(&summarize(&records, &[]), &group(&records, &[]))
    }

    fn seen(table: &MeanTable) -> (Vec<&str>, Vec<(&str, usize, f64)>) {
        let rows = table.rows.iter().map(|r| (r.method.as_str(), r.n, r.score)).collect();
        (table.tasks.iter().map(String::as_str).collect(), rows)
    }

    #[test]
    fn means_are_over_tasks_of_equal_weight_with_intervals_over_all_examples() {
        let tables = tables(&[
            ("ruler/vt", "full", &[1.0, 1.0]),
            ("ruler/vt", "quest", &[1.0, 0.5]),
            ("ruler/cwe", "full", &[1.0, 1.0]),
            ("ruler/cwe", "quest", &[0.0, 0.5]),
        ]);
        let [table] = tables.as_slice() else { panic!("{tables:?}") };
        assert_eq!(seen(table), (vec!["ruler/vt", "ruler/cwe"], vec![("full", 4, 100.0), ("quest", 4, 50.0)]));
        assert_eq!((table.title(), table.rows[0].task.as_str()), ("mean over 2 tasks".into(), "mean over 2 tasks"));
        assert_eq!((table.rows[1].delta_full, table.notes.len()), (Some(-50.0), 0));
        assert!(table.rows[0].ci_low < Some(100.0) && table.rows[0].ci_high == Some(100.0), "at the edge");
        assert!(table.rows[1].ci_low < Some(50.0) && table.rows[1].delta_high > Some(-50.0), "{table:?}");
    }

    #[test]
    fn a_mean_over_two_easy_tasks_does_not_stand_beside_one_over_four() {
        let (hard, easy): (&[f64], &[f64]) = (&[0.5, 0.5], &[1.0, 1.0]);
        let all = [("a", hard), ("b", hard), ("c", easy), ("d", easy)];
        let of = |method: &'static str, tasks: &[(&'static str, &'static [f64])]| {
            tasks.iter().map(|(task, scores)| (*task, method, *scores)).collect::<Vec<_>>()
        };
        let made = tables(&[of("full", &all), of("quest", &all), of("topk", &all[2..])].concat());
        assert_eq!(
            made.iter().map(seen).collect::<Vec<_>>(),
            [
                (vec!["a", "b", "c", "d"], vec![("full", 8, 75.0), ("quest", 8, 75.0)]),
                (vec!["c", "d"], vec![("full", 4, 100.0), ("quest", 4, 100.0), ("topk", 4, 100.0)]),
            ]
        );
        assert_eq!(made[1].title(), "mean over 2 of 4 tasks: c, d");
        // `quest` and `topk` share no task, so each is compared only with dense attention.
        let made = tables(&[of("full", &all), of("quest", &all[..2]), of("topk", &all[2..])].concat());
        let methods = |t: &MeanTable| t.rows.iter().map(|r| r.method.clone()).collect::<Vec<_>>();
        assert_eq!(made.iter().map(methods).collect::<Vec<_>>(), [["full", "quest"], ["full", "topk"]]);
        assert!(made[0].rows[0].task != made[1].rows[0].task, "what is drawn by name is not mixed");
    }

    /// A row in which `value` replaces every number that can be averaged.
    fn with_numbers(row: &SummaryRow, value: f64) -> SummaryRow {
        let mut json = serde_json::to_value(row).unwrap();
        for (key, field) in json.as_object_mut().unwrap() {
            if !WORDS.contains(&key.as_str()) && !COUNTS.contains(&key.as_str()) {
                *field = serde_json::json!(value);
            }
        }
        serde_json::from_value(json).unwrap()
    }

    const WORDS: [&str; 9] = ["model", "task", "length", "method", "params", "protocol", "measure", "timed", "latency"];
    const COUNTS: [&str; 2] = ["n", "contexts"];
    /// Fields without a mean over tasks: measures of given text. `ENDS` have rules of their own.
    const NO_MEAN: [&str; 5] = ["word_perplexity", "bits_per_byte", "kl_mean", "kl_p99", "same_top"];
    const ENDS: [&str; 7] =
        ["ci_low", "ci_high", "delta_low", "delta_high", "decode_ms_low", "decode_ms_high", "detectable"];

    #[test]
    fn no_field_of_a_mean_is_that_of_the_first_task() {
        let records = [record("a", "quest", 0, 1.0), record("b", "quest", 0, 1.0)];
        let rows = summarize(&records, &[]);
        let rows = [with_numbers(&rows[0], 2.0), with_numbers(&rows[1], 4.0)];
        let field_of = |row: &SummaryRow| serde_json::to_value(row).unwrap().as_object().unwrap().clone();
        let mean = field_of(&mean_row(&[0, 1], &rows).unwrap());
        for (key, found) in mean.iter().filter(|(key, _)| !WORDS.contains(&key.as_str())) {
            match key.as_str() {
                key if NO_MEAN.contains(&key) => assert!(found.is_null(), "{key}: {found}"),
                key if ENDS.contains(&key) => assert!(!found.is_null(), "{key}"),
                key if COUNTS.contains(&key) => assert_eq!(found, 2, "{key}"),
                "density_target" => assert!(found.is_null(), "two were asked for: {found}"),
                _ => assert_eq!(found.as_f64(), Some(3.0), "{key}: {found}"),
            }
        }
        // A value that only one row has, or in which rows differ, is not in the mean.
        let mut lacking = rows.clone();
        let bare = summarize(&records[1..], &[]).remove(0);
        lacking[1] = SummaryRow { timed: Some("elsewhere".to_owned()), latency: Some(Latency::Solo), ..bare.clone() };
        let (mean, bare) = (field_of(&mean_row(&[0, 1], &lacking).unwrap()), field_of(&bare));
        let absent: Vec<&String> = bare.iter().filter(|(_, field)| field.is_null()).map(|(key, _)| key).collect();
        assert!(absent.len() > 25, "{absent:?}");
        absent.into_iter().for_each(|key| assert!(mean[key].is_null(), "{key}: {}", mean[key]));
    }

    #[test]
    fn other_examples_are_told_of() {
        let one: &[f64] = &[1.0];
        let two: &[f64] = &[1.0, 0.0];
        let made = tables(&[("a", "full", two), ("b", "full", two), ("a", "topk", one), ("b", "topk", two)]);
        assert!(made[0].notes[0].contains("different examples (3 to 4)"), "{:?}", made[0].notes);
    }
}
