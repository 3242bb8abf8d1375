//! Further examples of some rows or columns, where a claim about them takes more than the whole table is worth.

use serde::Deserialize;

use super::item::{Item, Line};
use super::variant::Variant;
use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;

/// Further examples of some rows or columns, beside the examples that all of them have.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoreExamples {
    /// The names of the rows or columns, each of which has a method. Dense attention gets them, too.
    pub of: Vec<String>,
    /// Examples of each task and length in all; the first of them are those of the whole table.
    pub samples: usize,
    /// The tasks, if not all of the run.
    pub tasks: Option<Vec<String>>,
    /// The lengths, if not all of the run.
    pub lengths: Option<Vec<usize>>,
}

impl MoreExamples {
    /// The settings of the run of these alone, where `run` is that of all.
    pub(super) fn settings(&self, item: &Item, variant: Variant, run: Settings) -> Settings {
        Settings {
            methods: Some(self.methods(item, variant)),
            samples: Some(self.samples),
            tasks: self.tasks.clone().or(run.tasks),
            lengths: self.lengths.clone().or(run.lengths),
            ..run
        }
    }

    fn methods(&self, item: &Item, variant: Variant) -> Vec<String> {
        let named = item.lines().filter(|line| self.of.contains(&line.name));
        named.filter_map(|line| method(line, variant)).collect()
    }

    /// Checks that all names have methods, and that there are more examples than the run has.
    ///
    /// # Errors
    /// With what is wrong.
    pub(super) fn check(&self, item: &Item, variant: Variant) -> Result<(), UsageError> {
        let has_method =
            |name: &&String| item.lines().any(|line| line.name == **name && method(line, variant).is_some());
        if let Some(other) = self.of.iter().find(|name| !has_method(name)) {
            return Err(UsageError::new(format!("`{other}` is no row or column with a method in this run"))
                .hint("name rows or columns that have one"));
        }
        let fewer = item.settings(variant).and_then(|run| run.samples).is_some_and(|run| self.samples <= run);
        match (self.of.is_empty(), fewer) {
            (true, _) => Err(UsageError::new("it names nothing").hint("name rows or columns in `of`")),
            (_, true) => Err(UsageError::new(format!("`samples` = {} is no more than the run has", self.samples))
                .hint("the number is of all examples, with those of the run")),
            _ => Ok(()),
        }
    }
}

/// The method of a row or column under a variant; `None` if it has none, or is not measured.
fn method(line: &Line, variant: Variant) -> Option<String> {
    let select = line.select(variant);
    select.method.filter(|_| select.missing.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = "
title = 'a'
[real]
tasks = ['ruler/vt', 'ruler/fwe']
lengths = [4096, 8192]
samples = 40
[[row]]
name = 'Score'
[[column]]
name = 'Top'
method = 'topk:k=64'
[[column]]
name = 'Quest'
method = 'quest:k=64'
[[column]]
name = 'Other'
missing = 'not here'
[[more.real]]
of = ['Quest']
samples = 100
lengths = [8192]
";

    #[test]
    fn the_named_methods_get_more_examples() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        assert!(item.more_settings(Variant::Builtin).is_empty());
        let [more] = &item.more_settings(Variant::Real)[..] else { panic!("one run") };
        assert_eq!(more.methods.as_deref(), Some(&["quest:k=64".to_owned()][..]));
        assert_eq!((more.samples, more.lengths.as_deref()), (Some(100), Some(&[8192][..])));
        assert_eq!(more.tasks, item.settings(Variant::Real).unwrap().tasks);
        assert_eq!(item.most_samples(Variant::Real), Some(100));
        assert_eq!(item.most_samples(Variant::Builtin), None);
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let error = |from: &str, to: &str| Item::parse(&ITEM.replace(from, to), "item.toml").unwrap_err().what;
        let unknown = error("['Quest']", "['Quests']");
        assert_eq!(unknown, "item.toml: [more.real]: `Quests` is no row or column with a method in this run");
        assert!(error("['Quest']", "['Other']").contains("`Other` is no row or column with a method"));
        assert!(error("['Quest']", "['Score']").contains("`Score` is no row"));
        assert!(error("['Quest']", "[]").contains("it names nothing"));
        assert!(error("samples = 100", "samples = 40").contains("`samples` = 40 is no more than the run has"));
        assert!(
            error("[8192]\n\"", "[]\n\"").contains("lengths")
                || error("lengths = [8192]", "lengths = []").contains("lengths")
        );
        assert!(error("[[more.real]]", "[[more.builtin]]").contains("[more.builtin]: there is no [builtin]"));
    }
}
