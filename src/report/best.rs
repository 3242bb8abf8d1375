//! Which of several settings are best, given the noise.
//!
//! The setting with the best mean is compared with each other setting on the examples that both ran ([`paired`]). The error of 2.5 % is
//! divided among these comparisons ([`Level::of_each`]). So in at least 97.5 % of tables the truly best setting is among those called best,
//! however many settings are compared.

use std::collections::BTreeMap;

use spattn_attention::Role;
use spattn_eval::summary::cells::SummaryCell;
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::paired;
use spattn_stats::Level;

/// A setting to compare with others.
#[derive(Debug, Clone)]
pub struct ComparedSetting<'c, 'a> {
    /// Its mean score or perplexity.
    pub score: f64,
    /// Its cells, one for each task and length that the mean is over.
    pub cells: Vec<&'c SummaryCell<'a>>,
}

/// The result of comparing several settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Best {
    /// Index of the setting with the best mean; the first of several equal ones.
    pub first: usize,
    /// Indices of the other settings that are not shown to be worse.
    pub others: Vec<usize>,
    /// Whether noise could be estimated for any of the others.
    pub is_known: bool,
    /// Indices of those in `others` for which noise could be estimated.
    pub alike: Vec<usize>,
    /// Whether any setting is shown to be worse.
    pub is_any_worse: bool,
}

/// The number of comparisons that [`best`] makes among `settings` settings.
pub fn comparisons(settings: usize) -> usize {
    settings.saturating_sub(1)
}

/// The best of settings over the same tasks and lengths. `level` is that of each comparison. `None` if there are no settings.
pub fn best(candidates: &[ComparedSetting], less_is_better: bool, level: Level) -> Option<Best> {
    let sign = if less_is_better { 1.0 } else { -1.0 };
    let first =
        (0..candidates.len()).min_by(|a, b| (sign * candidates[*a].score).total_cmp(&(sign * candidates[*b].score)))?;
    let is_better = |other: usize| paired::is_better(&candidates[first].cells, &candidates[other].cells, level);
    let rest = (0..candidates.len()).filter(|other| *other != first);
    let told: Vec<(usize, Option<bool>)> = rest.map(|other| (other, is_better(other))).collect();
    Some(Best {
        first,
        others: told.iter().filter(|(_, told)| *told != Some(true)).map(|(other, _)| *other).collect(),
        is_known: told.iter().any(|(_, told)| told.is_some()),
        alike: told.iter().filter(|(_, told)| *told == Some(false)).map(|(other, _)| *other).collect(),
        is_any_worse: told.iter().any(|(_, told)| *told == Some(true)),
    })
}

/// The indices of the best setting and of those that are comparable with it and not shown to be worse. Empty if none is shown to be worse,
/// because then all would be best.
fn level(candidates: &[ComparedSetting], less_is_better: bool) -> Vec<usize> {
    let level = Level::of_each(comparisons(candidates.len()));
    let Some(found) = best(candidates, less_is_better, level).filter(|found| found.is_any_worse) else {
        return Vec::new();
    };
    let mut places = found.alike;
    places.push(found.first);
    places.sort_unstable();
    places
}

/// The entries of a table that are printed in bold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked<T> {
    /// The best entries.
    pub places: Vec<T>,
    /// Whether several entries were compared. If so and `places` is empty, they could not be told apart.
    pub are_compared: bool,
}

/// The best settings of methods among rows of one task and length, which come with their cells. Oracles, the floor and dense attention are
/// not compared.
pub fn of_rows(rows: &[SummaryRow], cells: &[SummaryCell]) -> Marked<usize> {
    let sparse = rows.iter().zip(cells).enumerate().filter(|(_, (row, _))| row.role() == Role::Method);
    let (lines, candidates): (Vec<usize>, Vec<ComparedSetting>) =
        sparse.map(|(line, (row, cell))| (line, ComparedSetting { score: row.score, cells: vec![cell] })).unzip();
    let less_is_better = rows.iter().any(|r| !r.measure.is_score());
    let places = level(&candidates, less_is_better).into_iter().map(|at| lines[at]).collect();
    Marked { places, are_compared: candidates.len() > 1 }
}

/// A method's entry in a pivot table of scores.
pub struct Shown<'c, 'a> {
    /// The entry's line and column.
    pub at: (usize, usize),
    /// The seed of its examples; `None` for all seeds.
    pub seed: Option<u64>,
    /// The entry's mean, with the cells that it is over.
    pub candidate: ComparedSetting<'c, 'a>,
}

/// What entries must have in common to be compared: column or line, seed, and each cell's model, task and length.
type Scene<'s> = (usize, Option<u64>, Vec<(&'s str, &'s str, usize)>);

/// The best entries of a pivot table. Entries of a column are compared if they have the same model, seed, tasks and lengths. If no column
/// has two such entries, as in a table with one task in each line, entries of a line are compared.
pub fn of_table(shown: &[Shown]) -> Marked<(usize, usize)> {
    let grouped = |along: fn(&Shown) -> usize| -> Vec<Vec<&Shown>> {
        let mut groups: BTreeMap<Scene, Vec<&Shown>> = BTreeMap::new();
        for entry in shown {
            let heads = entry.candidate.cells.iter().map(|cell| cell.head());
            let places = heads.map(|head| (head.model.as_str(), head.task.as_str(), head.length)).collect();
            groups.entry((along(entry), entry.seed, places)).or_default().push(entry);
        }
        groups.into_values().filter(|group| group.len() > 1).collect()
    };
    let columns = grouped(|entry| entry.at.1);
    let groups = if columns.is_empty() { grouped(|entry| entry.at.0) } else { columns };
    let best_of = |group: &Vec<&Shown>| {
        let candidates: Vec<ComparedSetting> = group.iter().map(|entry| entry.candidate.clone()).collect();
        let mut cells = candidates.iter().flat_map(|candidate| &candidate.cells);
        let less_is_better = cells.any(|cell| !cell.measure().is_score());
        level(&candidates, less_is_better).into_iter().map(|place| group[place].at).collect::<Vec<_>>()
    };
    Marked { places: groups.iter().flat_map(best_of).collect(), are_compared: !groups.is_empty() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::report::pivot::{self, Layout};
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::{perplexity, record};

    /// The records of a method on `n` examples. `is_right` says which of them are right.
    fn run(method: &str, n: usize, is_right: impl Fn(usize) -> bool) -> Vec<Record> {
        (0..n).map(|i| record("ruler/vt", method, i, f64::from(u8::from(is_right(i))))).collect()
    }

    /// The names of the best settings.
    fn bold(runs: &[Vec<Record>]) -> Vec<String> {
        let records = runs.concat();
        let report = Report::new(&records, &[]);
        of_rows(&report.rows, &report.cells).places.into_iter().map(|line| report.rows[line].method.clone()).collect()
    }

    /// The mean and interval of a single method, as the table shows them.
    fn apart(run: &[Record]) -> (f64, f64, f64) {
        let row = spattn_eval::summary::summarize::summarize(run, &[]).remove(0);
        (row.score, row.ci_low.unwrap(), row.ci_high.unwrap())
    }

    #[test]
    fn what_differs_on_the_same_examples_is_told_where_intervals_overlap() {
        // 62 and 54 of 100 are right. `loki` gets right all that `quest` does and 8 more: 8 / √8 = 2.8 standard errors.
        let (loki, quest) = (run("loki", 100, |i| i < 62), run("quest", 100, |i| i < 54));
        assert!(apart(&quest).2 > apart(&loki).0, "its interval reaches the best mean");
        assert_eq!(bold(&[loki, quest]), ["loki"]);
    }

    #[test]
    fn an_upper_end_below_a_mean_is_no_difference_on_the_same_examples() {
        // 12 and 5 of 20 are right. The interval of the second ends at 49 %, below the first's mean of 60 %. But paired, 10 examples are
        // right only under the first and 3 only under the second: 7 / √13 = 1.94 standard errors.
        let (loki, quest) = (run("loki", 20, |i| i < 12), run("quest", 20, |i| (10..15).contains(&i)));
        assert!(apart(&quest).2 < apart(&loki).0, "{:?}", apart(&quest));
        assert_eq!(bold(&[loki.clone(), quest.clone()]), [""; 0], "nothing is told, so nothing is best");
        assert_eq!(bold(&[loki, quest, run("sparq", 20, |_| false)]), ["loki", "quest"], "both are beyond a third");
    }

    #[test]
    fn scores_of_a_few_examples_are_not_all_best() {
        // 0, 1 and 4 of 20 are right: 4 / √4 = 2 standard errors, but two comparisons need 2.24.
        let few = [run("loki", 20, |_| false), run("quest", 20, |i| i == 7), run("sparq", 20, |i| i < 4)];
        assert_eq!(bold(&few), [""; 0]);
        let records = few.concat();
        let report = Report::new(&records, &[]);
        assert!(of_rows(&report.rows, &report.cells).are_compared);
        let alone = Report::new(&few[0], &[]);
        assert!(!of_rows(&alone.rows, &alone.cells).are_compared);
    }

    #[test]
    fn of_many_methods_one_is_worse_by_chance() {
        // 6 of 20 are lost: 6 / √6 = 2.45 standard errors. That is beyond noise among two settings, but not among eleven.
        let names = [
            "loki",
            "quest",
            "sparq",
            "h2o",
            "tova",
            "snapkv",
            "infllm",
            "pqcache",
            "magicpig",
            "hip",
            "double_sparsity",
        ];
        let runs = |of: usize| -> Vec<Vec<Record>> {
            let right = |at: usize| if at == 1 { 14 } else { 20 };
            names[..of].iter().enumerate().map(|(at, name)| run(name, 20, |i| i < right(at))).collect()
        };
        assert_eq!(bold(&runs(2)), ["loki"]);
        let many = bold(&runs(names.len()));
        assert_eq!(many, [""; 0]);
    }

    #[test]
    fn where_noise_is_not_known_nothing_is_called_best() {
        assert_eq!(
            bold(&[run("loki", 4, |_| true), run("quest", 4, |_| false)]),
            [""; 0],
            "four examples tell nothing"
        );
        assert_eq!(bold(&[run("loki", 20, |_| true)]), [""; 0], "nothing is compared");
        assert_eq!(bold(&[run("loki", 20, |_| true), run("topk", 20, |_| true)]), [""; 0], "nor with an oracle");
        assert_eq!(bold(&[]), [""; 0]);
        // Three examples of `sparq` are too few for an interval, so it is not bold.
        let some = [run("loki", 20, |_| true), run("quest", 20, |_| false), run("sparq", 3, |_| false)];
        assert_eq!(bold(&some), ["loki"]);
    }

    #[test]
    fn less_perplexity_is_better() {
        let of = |method: &str, more: f64| -> Vec<Record> {
            (0..9).map(|i| perplexity(method, i, 1.0 + i as f64 / 4.0 + more * (1.0 + i as f64 / 99.0))).collect()
        };
        assert_eq!(bold(&[of("loki", 0.02), of("quest", 0.01)]), ["quest"]);
        assert_eq!(bold(&[of("loki", 0.0), of("quest", 0.0)]), [""; 0], "equal in all windows: noise is not known");
    }

    /// The line and column of each bold entry in a table of scores.
    fn bold_of_table(records: &[Record], rows: &str, columns: &str) -> Vec<(Vec<String>, Vec<String>)> {
        let report = Report::new(records, &[]);
        let names = |name: &str| vec![name.to_owned()];
        let layout = Layout::parse(&names(rows), &names(columns), &names("score"), &report.rows).unwrap();
        let table = pivot::tables(&report, &layout).remove(0);
        let in_column = |column: usize| {
            let (rows, columns) = (&table.rows, &table.columns);
            table.best_lines(column).into_iter().map(move |line| (rows[line].clone(), columns[column].clone()))
        };
        (0..table.columns.len()).flat_map(in_column).collect()
    }

    #[test]
    fn a_table_compares_methods_on_the_same_tasks_whichever_way_it_lies() {
        // `loki` is better on the first task and `quest` on the second, each by 9 of 20 examples.
        let on = |task: &str, method: &str, lost: usize| -> Vec<Record> {
            run(method, 20, |i| i >= lost).into_iter().map(|r| Record { task: task.into(), ..r }).collect()
        };
        let records = [on("a", "loki", 0), on("a", "quest", 9), on("b", "loki", 10), on("b", "quest", 1)].concat();
        let named = |pairs: &[(&str, &str)]| -> Vec<(Vec<String>, Vec<String>)> {
            pairs.iter().map(|(row, column)| (vec![(*row).to_owned()], vec![(*column).to_owned()])).collect()
        };
        assert_eq!(bold_of_table(&records, "method", "task"), named(&[("loki", "a"), ("quest", "b")]));
        assert_eq!(bold_of_table(&records, "task", "method"), named(&[("a", "loki"), ("b", "quest")]));
        // Both means are 75 %, so they cannot be told apart.
        assert_eq!(bold_of_table(&records, "method", "length"), []);
        // Each seed has its own examples, so entries of different seeds are not compared.
        let again = records.iter().map(|r| Record { seed: 2, score: 0.0, key: format!("2 {}", r.key), ..r.clone() });
        let seeds: Vec<Record> = records.iter().cloned().chain(again).filter(|r| r.task == "a").collect();
        let bold = bold_of_table(&seeds, "method", "run_seed");
        assert_eq!(bold, named(&[("loki", "1")]), "equal under the second");
    }

    #[test]
    fn the_truly_best_is_among_the_best() {
        use rand_chacha::ChaCha8Rng;
        use rand_chacha::rand_core::{Rng, SeedableRng};
        // Six equally good methods. Each is left out of the best in at most 2.5 % of tables.
        const TABLES: usize = 400;
        let mut draw = ChaCha8Rng::seed_from_u64(42);
        let mut uniform = || (draw.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let names = ["loki", "quest", "sparq", "h2o", "tova", "snapkv"];
        let (mut left_out, mut told) = (0, 0);
        for _ in 0..TABLES {
            // An example is equally hard for all methods.
            let ease: Vec<f64> = (0..40).map(|_| if uniform() < 0.5 { 0.95 } else { 0.4 }).collect();
            let mut records = Vec::new();
            for name in names {
                records.extend((0..40).map(|i| record("ruler/vt", name, i, f64::from(u8::from(uniform() < ease[i])))));
            }
            let bold = bold(&[records]);
            told += usize::from(!bold.is_empty());
            left_out += usize::from(!bold.is_empty() && !bold.contains(&names[0].to_owned()));
        }
        assert!(told > 0 && told <= TABLES / 8, "equal methods are told apart in {told} of {TABLES}");
        assert!(left_out <= TABLES / 40 + 8, "{left_out} of {TABLES}");
    }
}
