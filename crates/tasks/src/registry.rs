//! Every family of tasks, and the tasks that names stand for.
//!
//! To add a family, write one file that implements [`Family`], and add one line to [`FAMILIES`].

use std::path::Path;

use anyhow::Result;

use super::options::split_names;
use super::task::{Family, Task, TaskInfo, TaskOptions};
use super::templated::choice::MULTIPLE_CHOICE;
use super::templated::generation::GENERATION;
use super::{grid, jsonl, long_sets, longbench, perplexity, ruler};
use spattn_base::error::UsageError;

/// Every family of tasks, in the order in which they are listed.
static FAMILIES: &[&dyn Family] = &[
    &ruler::Ruler,
    &ruler::Reworded,
    &grid::Grids,
    &longbench::LongBench,
    &long_sets::LongSets,
    &perplexity::Perplexity,
    &MULTIPLE_CHOICE,
    &GENERATION,
    &jsonl::Jsonl,
];

/// All tasks there are, for listing.
pub fn catalog() -> Vec<TaskInfo> {
    FAMILIES.iter().flat_map(|family| family.catalog()).collect()
}

/// The synthetic stand-ins among `names`, in the given order, each with the name of the published task that it replaces.
pub fn stand_ins<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, String)> {
    let all = catalog();
    let published = |name: &str| all.iter().find(|task| task.name == name)?.stands_in_for.clone();
    names.into_iter().filter_map(|name| Some((name, published(name)?))).collect()
}

/// Every group of tasks, with the number of its tasks.
pub fn groups() -> Vec<(String, usize)> {
    let options = TaskOptions::default();
    let mut all = Vec::new();
    for family in FAMILIES {
        for group in family.groups() {
            let members = family.expand(&group, &options).unwrap_or_default();
            all.push((group, members.len()));
        }
    }
    all
}

/// Makes the tasks that `names` stand for, in the given order. A name is a full name, a group (`ruler`, `ruler/niah`), a file
/// (`jsonl:PATH`), or several of these separated by commas. A task that is named twice is made once.
///
/// # Errors
/// A [`UsageError`] for an unknown name, a missing data folder, data that a task needs but does not find, or two files that
/// would be recorded under one name; other errors if data is unreadable or malformed.
pub fn resolve(names: &[String], options: &TaskOptions) -> Result<Vec<Box<dyn Task>>> {
    let tasks = resolve_each(names, options)?.into_iter().map(|(_, task)| task).collect::<Result<Vec<_>>>()?;
    check_names(&tasks)?;
    Ok(tasks)
}

/// The full name of a task, with the task or the reason why it cannot be made.
pub type Named = (String, Result<Box<dyn Task>>);

/// Like [`resolve`], but a task that cannot be made is returned as its error.
///
/// # Errors
/// A [`UsageError`] for an unknown name, or a missing data folder.
pub fn resolve_each(names: &[String], options: &TaskOptions) -> Result<Vec<Named>> {
    if let Some(data) = &options.data {
        check_folder(data)?;
    }
    let mut wanted: Vec<(&dyn Family, String)> = Vec::new();
    let is_name = |text: &str| FAMILIES.iter().any(|family| family.expand(text, options).is_some());
    for name in names.iter().flat_map(|list| split_names(list, is_name)) {
        let (family, members) = find(&name, options)?;
        for member in members {
            if wanted.iter().all(|(_, known)| *known != member) {
                wanted.push((family, member));
            }
        }
    }
    let make = |(family, name): (&dyn Family, String)| {
        let task = family.make(&name, options);
        (name, task)
    };
    Ok(wanted.into_iter().map(make).collect())
}

/// Checks that all tasks have different names, since records could not tell them apart. Prepared files of the same name in
/// different folders have the same task name.
///
/// # Errors
/// A [`UsageError`] with the repeated name.
pub fn check_names(tasks: &[Box<dyn Task>]) -> Result<(), UsageError> {
    for (i, task) in tasks.iter().enumerate() {
        if tasks[..i].iter().any(|t| t.name() == task.name()) {
            let what = format!("two files would both be recorded as `{}`", task.name());
            return Err(UsageError::new(what).hint("rename one of them, or run them separately"));
        }
    }
    Ok(())
}

fn find(name: &str, options: &TaskOptions) -> Result<(&'static dyn Family, Vec<String>), UsageError> {
    FAMILIES.iter().find_map(|family| Some((*family, family.expand(name, options)?))).ok_or_else(|| unknown(name))
}

/// The error for a name that is not a task. The name of a file of rows becomes a task with `jsonl:` in front.
fn unknown(name: &str) -> UsageError {
    let path = name.split_once(".jsonl").map_or(name, |(stem, _)| &name[..stem.len() + ".jsonl".len()]);
    match path.ends_with(".jsonl") || Path::new(path).is_file() {
        true => UsageError::new(format!("unknown task `{name}`")).hint(format!("of rows in a file: -t jsonl:{name}")),
        false => UsageError::unknown("task", name, known_names()),
    }
}

fn known_names() -> Vec<String> {
    let groups = FAMILIES.iter().flat_map(|family| family.groups());
    groups.chain(catalog().into_iter().map(|task| task.name)).collect()
}

fn check_folder(data: &Path) -> Result<(), UsageError> {
    std::fs::read_dir(data).map(drop).map_err(|e| {
        UsageError::new(format!("cannot read the data folder {}: {e}", data.display()))
            .hint("--data takes a folder with data sets, such as squad/dev-v2.0.json or essays/*.txt")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metric;

    fn names(asked: &[&str]) -> Vec<String> {
        let asked: Vec<String> = asked.iter().map(|n| (*n).to_owned()).collect();
        resolve(&asked, &TaskOptions::default()).unwrap().iter().map(|t| t.name().to_owned()).collect()
    }

    fn error(asked: &str, options: &TaskOptions) -> UsageError {
        let error = resolve(&[asked.to_owned()], options).err().expect("an error");
        error.downcast::<UsageError>().unwrap()
    }

    #[test]
    fn the_group_is_thirteen_tasks_with_stand_ins_for_missing_data() {
        let all = names(&["ruler"]);
        assert_eq!(all.len(), 13);
        assert_eq!(all[..2], ["ruler/niah_single_1", "ruler/niah_single_2"]);
        assert_eq!(all[11..], ["ruler/qa_synth", "ruler/qa_synth_hop2"]);
        assert_eq!(names(&["ruler/niah"]).len(), 8);
    }

    #[test]
    fn a_task_named_twice_is_made_once() {
        assert_eq!(names(&["ruler/vt", "ruler/niah", "ruler/vt", "ruler/niah_single_1"]).len(), 9);
        assert_eq!(names(&["ruler/vt", "ruler/cwe", "ruler/vt"]), ["ruler/vt", "ruler/cwe"]);
    }

    #[test]
    fn names_may_be_given_as_a_list() {
        assert_eq!(names(&["ruler/vt,ruler/cwe", "ruler/fwe"]), ["ruler/vt", "ruler/cwe", "ruler/fwe"]);
        assert_eq!(
            names(&["kv_retrieval:pairs=10,steps=3,ruler/vt,longeval_lines:steps=2,lines=9"]),
            ["kv_retrieval:pairs=10,steps=3", "ruler/vt", "longeval_lines:lines=9,steps=2"]
        );
        assert_eq!(error("ruler/vt,nothing", &TaskOptions::default()).what, "unknown task `nothing`");
        let twice = error("kv_retrieval:pairs=10,pairs=20", &TaskOptions::default());
        assert!(twice.what.contains("`pairs` is given twice"), "{twice}");
        let many = error("longeval_lines:lines=99999999999", &TaskOptions::default());
        assert!(many.what.contains("not a number from 2 to 1000000"), "{many}");
    }

    #[test]
    fn unknown_names_suggest_the_nearest() {
        let error = error("ruler/niah_multikey", &TaskOptions::default());
        assert_eq!(error.to_string(), "unknown task `ruler/niah_multikey`");
        for given in ["my.jsonl", "rows/my.jsonl:max_new_tokens=8", file!().rsplit('/').next().unwrap()] {
            let hint = resolve(&[given.to_owned()], &TaskOptions::default()).err().map(|e| format!("{e:#}"));
            let usage = super::unknown(given).hint.unwrap_or_default();
            let is_file = given.contains(".jsonl");
            assert_eq!(usage == format!("of rows in a file: -t jsonl:{given}"), is_file, "{given}: {hint:?}");
        }
        assert!(error.hint.unwrap().contains("ruler/niah_multikey_"));
    }

    #[test]
    fn published_questions_need_their_data() {
        let error = error("ruler/qa_1", &TaskOptions::default());
        assert!(error.to_string().contains("ruler/qa_1"));
        let hint = error.hint.unwrap();
        assert!(hint.contains("squad/dev-v2.0.json") && hint.contains("ruler/qa_synth"), "{hint}");
    }

    #[test]
    fn a_data_folder_must_be_there() {
        let options = TaskOptions { data: Some("/nowhere/at/all".into()), ..TaskOptions::default() };
        assert!(error("ruler/vt", &options).to_string().contains("/nowhere/at/all"));
    }

    #[test]
    fn the_catalog_names_every_task_once() {
        let mut all: Vec<String> = catalog().into_iter().map(|t| t.name).collect();
        let listed = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), listed, "each name is there once");
        assert_eq!(listed, 142);
        let vt = catalog().into_iter().find(|t| t.name == "ruler/vt").unwrap();
        assert_eq!((vt.metric, vt.max_new_tokens), (Some(Metric::StringMatchAll), Some(30)));
        assert_eq!(vt.parameters, [("chains".to_owned(), "1".to_owned()), ("hops".to_owned(), "4".to_owned())]);
    }

    #[test]
    fn a_stand_in_names_the_published_task_that_it_stands_in_for() {
        let names = names(&["ruler", "ruler_reworded"]);
        let found = stand_ins(names.iter().map(String::as_str));
        let found: Vec<(&str, &str)> = found.iter().map(|(task, published)| (*task, published.as_str())).collect();
        let expected = [
            ("ruler/qa_synth", "ruler/qa_1"),
            ("ruler/qa_synth_hop2", "ruler/qa_2"),
            ("ruler_reworded/qa_synth", "ruler/qa_1"),
        ];
        assert_eq!(found, expected);
        let all: Vec<String> = catalog().into_iter().map(|task| task.name).collect();
        let published = catalog().into_iter().filter_map(|task| task.stands_in_for);
        assert!(published.into_iter().all(|published| all.contains(&published)), "a task that there is");
    }
}
