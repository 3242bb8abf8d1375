//! LongBench: 21 data sets of long texts (Bai et al. 2024, arXiv:2308.14508), and LongBench-E: 13 of these sets with rows spread evenly
//! over lengths.
//!
//! Prompts and parameters are data in `tasks/longbench.toml`; [`datasets`](super::metrics::datasets) says how predictions are scored.
//! Each set has one published file: `hotpotqa.jsonl`, or `hotpotqa_e.jsonl` for LongBench-E. A task of LongBench-E is one length range
//! of a set (`longbench_e/hotpotqa/0-4k`), since its scores are published by range.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use super::metrics::datasets::{Dataset, LENGTH_RANGES, LengthRange};
use super::rows::{Row, Rows};
use super::ruler::template::substitute;
use super::{Cut, Example, Family, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, answers, assets, digest};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

const PREFIX: &str = "longbench/";
const PREFIX_E: &str = "longbench_e/";
/// The suffix of LongBench-E's file names, and of its sets' names in rows.
const SUFFIX_E: &str = "_e";
const FIELDS_HINT: &str =
    "LongBench's fields: context, input, answers (a list), length, and all_classes for trec and lsht";

static SETS: LazyLock<Vec<Set>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("../tasks/longbench.toml"))
        // The file is embedded, so a mistake in it is ours, and the tests find it.
        .expect("tasks/longbench.toml is well-formed");
    file.sets
});

/// Names of all published files.
static FILES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let plain = SETS.iter().map(|set| format!("{}.jsonl", set.name));
    plain
        .chain(SETS.iter().filter(|s| s.rows_by_length.is_some()).map(|s| format!("{}{SUFFIX_E}.jsonl", s.name)))
        .collect()
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    sets: Vec<Set>,
}

/// A data set: its prompt, and how the published program treats it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Name as published.
    pub name: String,
    /// What it asks, in a few words.
    about: String,
    language: Language,
    /// Tokens to generate at most.
    pub max_new_tokens: usize,
    /// The number of rows in the published file.
    pub rows: usize,
    /// The number of rows in LongBench-E's published file for each of [`LENGTH_RANGES`]; `None` if the set is not part of LongBench-E.
    pub rows_by_length: Option<[usize; 3]>,
    #[serde(default = "yes")]
    chat: bool,
    #[serde(default)]
    ends_at_line: bool,
    #[serde(default = "yes")]
    asks: bool,
    context_template: String,
    question_template: String,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Language {
    En,
    Zh,
    Code,
}

/// A row as a prompt with its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt up to the question.
    pub context: String,
    /// The rest of the prompt.
    pub question: String,
    /// Acceptable answers.
    pub answers: Vec<String>,
    /// Names of all classes, for classification.
    pub all_classes: Vec<String>,
}

impl Set {
    /// The set with this name, with or without LongBench-E's suffix `_e`; `None` if there is none.
    pub fn find(name: &str) -> Option<&'static Self> {
        let bare = name.strip_suffix(SUFFIX_E);
        SETS.iter().find(|set| set.name == name || (bare == Some(&set.name) && set.rows_by_length.is_some()))
    }

    /// All sets, in their published order.
    pub fn all() -> &'static [Self] {
        &SETS
    }

    /// How its predictions are scored.
    pub fn scoring(&self) -> &'static Dataset {
        // Both tables are ours, and a test checks that they agree.
        Dataset::parse(&format!("{PREFIX}{}", self.name)).expect("every set has a row in the table of data sets")
    }

    /// How the published program treats prompts and predictions.
    pub fn rules(&self) -> PromptRules {
        PromptRules {
            plain: !self.chat,
            cut: Cut::Middle,
            ends_at_line: self.ends_at_line,
            first_line: self.scoring().first_line,
            ..PromptRules::default()
        }
    }

    /// The prompt of a row.
    ///
    /// # Errors
    /// If a field is missing or of the wrong type.
    pub fn prompt(&self, row: &Row) -> Result<Prompt, UsageError> {
        self.read(row).map_err(|e| UsageError { hint: e.hint.or_else(|| Some(FIELDS_HINT.to_owned())), ..e })
    }

    fn read(&self, row: &Row) -> Result<Prompt, UsageError> {
        let values = [("context", row.required("context")?), ("input", row.required("input")?)];
        // Prompts for summaries, counts and code do not use `input`, which is an empty text in published files.
        let asks = self.asks && self.question_template.contains("{input}");
        if let Some((name, _)) = values.iter().find(|(name, text)| is_blank(text) && (asks || *name == "context")) {
            return Err(row.wrong(format!("the field `{name}` is empty or white space")));
        }
        let classes = self.scoring().metric.needs_classes();
        Ok(Prompt {
            context: substitute(&self.context_template, &values),
            question: substitute(&self.question_template, &values),
            answers: row.list("answers")?,
            all_classes: if classes { row.list("all_classes")? } else { Vec::new() },
        })
    }

    fn info(&self, prefix: &str) -> TaskInfo {
        TaskInfo {
            name: format!("{prefix}{}", self.name),
            about: self.about.clone(),
            metric: Some(self.scoring().metric),
            max_new_tokens: Some(self.max_new_tokens),
            parameters: Vec::new(),
            stands_in_for: None,
        }
    }
}

/// The field `length` of a row, in words, by which LongBench-E groups rows.
///
/// # Errors
/// If it is missing or not a non-negative whole number.
pub fn length(row: &Row) -> Result<u64, UsageError> {
    let length = row.fields.get("length").and_then(|value| value.as_u64());
    length.ok_or_else(|| row.wrong("the field `length` is missing or not a whole number").hint(FIELDS_HINT))
}

/// The names of all files, as published.
pub fn file_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(String::as_str)
}

/// The parts of a task's name.
struct Name {
    set: &'static Set,
    /// `None` for LongBench; for LongBench-E the range in the name, if any.
    range: Option<Option<&'static LengthRange>>,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let bare = |name: &str| SETS.iter().find(|set| set.name == name);
        if let Some(name) = name.strip_prefix(PREFIX) {
            return Some(Self { set: bare(name)?, range: None });
        }
        let name = name.strip_prefix(PREFIX_E)?;
        let (name, range) = match name.split_once('/') {
            Some((name, range)) => (name, Some(LENGTH_RANGES.iter().find(|r| r.name == range)?)),
            None => (name, None),
        };
        let set = bare(name).filter(|set| set.rows_by_length.is_some())?;
        Some(Self { set, range: Some(range) })
    }

    fn file(&self) -> String {
        let suffix = if self.range.is_some() { SUFFIX_E } else { "" };
        format!("{}{suffix}.jsonl", self.set.name)
    }
}

/// The name of a group, and whether it contains the sets of a language.
type Group = (&'static str, fn(Language) -> bool);

/// Groups by the language of their sets. All sets that are not Chinese make up the sixteen English ones that are usually reported.
const GROUPS: [Group; 4] = [
    ("longbench", |_| true),
    ("longbench_en", |language| language != Language::Zh),
    ("longbench_zh", |language| language == Language::Zh),
    ("longbench_code", |language| language == Language::Code),
];
const GROUP_E: &str = "longbench_e";

fn ranges_of(set: &Set) -> impl Iterator<Item = String> {
    LENGTH_RANGES.iter().map(move |range| format!("{PREFIX_E}{}/{}", set.name, range.name))
}

/// The family of LongBench.
pub struct LongBench;

impl Family for LongBench {
    fn catalog(&self) -> Vec<TaskInfo> {
        let of_e = SETS.iter().filter(|set| set.rows_by_length.is_some());
        SETS.iter().map(|set| set.info(PREFIX)).chain(of_e.map(|set| set.info(PREFIX_E))).collect()
    }

    fn groups(&self) -> Vec<String> {
        GROUPS.iter().map(|(name, _)| *name).chain([GROUP_E]).map(str::to_owned).collect()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        if let Some((_, is_member)) = GROUPS.iter().find(|(group, _)| *group == name) {
            let members = SETS.iter().filter(|set| is_member(set.language));
            return Some(members.map(|set| format!("{PREFIX}{}", set.name)).collect());
        }
        if name == GROUP_E {
            return Some(SETS.iter().filter(|set| set.rows_by_length.is_some()).flat_map(ranges_of).collect());
        }
        match Name::parse(name)? {
            Name { set, range: Some(None) } => Some(ranges_of(set).collect()),
            _ => Some(vec![name.to_owned()]),
        }
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let parsed = Name::parse(name)
            .ok_or_else(|| UsageError::unknown("task", name, self.catalog().iter().map(|t| t.name.clone())))?;
        let file = parsed.file();
        let source = assets::longbench(options, &file)?.ok_or_else(|| missing(name, &file, options))?;
        let Name { set, range } = parsed;
        let range = range.flatten();
        let (mut there, mut uncompared) = (BTreeSet::new(), 0);
        let rows = Rows::open(source, options.skip_bad, |row| {
            let prompt = set.prompt(row)?;
            let metric = set.scoring().metric;
            let Prompt { answers, all_classes, .. } = &prompt;
            let compares = answers::check_published(metric, answers).map_err(|e| row.at(e))?;
            let is_a_class = answers::check_classes(metric, answers, all_classes, true).map_err(|e| row.at(e))?;
            // Only LongBench-E needs the length.
            let is_wanted = match range {
                None => true,
                Some(range) => {
                    let found = LengthRange::of(length(row)?);
                    there.insert(format!("{PREFIX_E}{}/{}", set.name, found.name));
                    found == range
                }
            };
            uncompared += usize::from(is_wanted && !(compares && is_a_class));
            Ok(is_wanted)
        })?;
        if rows.is_empty() {
            let what = format!("task `{name}`: {} has no row of this length", rows.source().label());
            let there: Vec<String> = there.into_iter().collect();
            return Err(UsageError::new(what).hint(format!("its rows are those of {}", there.join(", "))).into());
        }
        let uncompared = answers::note(&rows.source().label(), uncompared, set.scoring().metric);
        Ok(Box::new(LongBenchTask { name: name.to_owned(), set, rows, uncompared }))
    }
}

fn missing(name: &str, file: &str, options: &TaskOptions) -> UsageError {
    let place = match &options.data {
        Some(folder) => format!("{} has neither longbench/{file} nor data.zip with it", folder.display()),
        None => "no data folder was given".to_owned(),
    };
    UsageError::new(format!("task `{name}` needs the published file {file}: {place}")).hint(
        "`spattn data fetch longbench` downloads it and says what to give as --data; \
         or --data hub:zai-org/LongBench, or a folder with longbench/NAME.jsonl",
    )
}

struct LongBenchTask {
    name: String,
    set: &'static Set,
    rows: Rows,
    /// The note on rows in whose answers the metric compares nothing.
    uncompared: Option<String>,
}

impl Task for LongBenchTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, self.rows.digest()))
    }

    fn available(&self) -> Option<usize> {
        Some(self.rows.len())
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn is_cut(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        self.rows.note().into_iter().chain(self.uncompared.clone()).collect()
    }

    fn example(&self, length: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        let Prompt { context, question, answers, all_classes } = self.set.prompt(&self.rows.read(index)?)?;
        Ok(Example {
            task: self.name.clone(),
            length,
            index,
            context,
            question,
            answer_prefix: String::new(),
            references: answers,
            all_classes,
            metric: self.set.scoring().metric,
            also: self.set.scoring().also.to_vec(),
            max_new_tokens: self.set.max_new_tokens,
            depth: None,
            source: self.rows.source().file_name(),
            rules: self.set.rules(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metric;
    use crate::resolve;
    use crate::ruler::testing::{Words, shared_data};
    use serde_json::{Value, json};
    use spattn_model::checksum::sha256_hex;

    fn template(set: &Set) -> String {
        format!("{}{}", set.context_template, set.question_template)
    }

    #[test]
    fn prompts_and_lengths_are_the_published_ones() {
        // The hash covers names, prompts and token numbers of the published configuration, in its order.
        let all: String = SETS.iter().map(|s| format!("{}\n{}\n{}\n", s.name, template(s), s.max_new_tokens)).collect();
        assert_eq!(sha256_hex(all.as_bytes()), "551417a3b4d76e2609c3e08ed7f8d10bda5b4cceec087bbbcb1aac2a272c893b");
        assert_eq!((SETS.len(), SETS.iter().map(|s| s.rows).sum::<usize>()), (21, 4750));
        let plain: Vec<&str> = SETS.iter().filter(|s| !s.chat).map(|s| s.name.as_str()).collect();
        assert_eq!(plain, ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]);
        let first_line: Vec<&str> = SETS.iter().filter(|s| s.rules().first_line).map(|s| s.name.as_str()).collect();
        assert_eq!(first_line, ["trec", "triviaqa", "samsum", "lsht"]);
    }

    #[test]
    fn the_published_configuration_says_the_same() {
        let Some(data) = shared_data() else { return };
        let read = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(data.join("longbench/config").join(name)).unwrap()).unwrap()
        };
        let (prompts, lengths) = (read("dataset2prompt.json"), read("dataset2maxlen.json"));
        assert_eq!(prompts.as_object().unwrap().len(), SETS.len());
        for set in SETS.iter() {
            assert_eq!(prompts[&set.name], template(set));
            assert_eq!(lengths[&set.name], set.max_new_tokens);
        }
    }

    #[test]
    fn a_question_holds_no_context() {
        for set in SETS.iter() {
            assert!(set.context_template.trim_end_matches('\n').ends_with("{context}"), "{}", set.name);
            assert!(!set.question_template.contains("{context}") && !set.question_template.starts_with('\n'));
            assert!(!set.question_template.is_empty() && !set.context_template.contains("{input}"));
        }
    }

    fn options(rows: &[(&str, Value)]) -> (tempfile::TempDir, TaskOptions) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("longbench")).unwrap();
        for (file, rows) in rows {
            let lines: String = rows.as_array().unwrap().iter().map(|row| format!("{row}\n")).collect();
            std::fs::write(dir.path().join("longbench").join(file), lines).unwrap();
        }
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        (dir, options)
    }

    fn row(length: u64) -> Value {
        json!({"context": "A {input}\r\nb", "input": "{context} é?", "answers": ["x", "y"], "length": length, "all_classes": null})
    }

    fn task(name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(resolve(&[name.to_owned()], options)?.remove(0))
    }

    #[test]
    fn a_rows_text_is_put_in_once_and_as_it_is() {
        let (_dir, options) = options(&[("hotpotqa.jsonl", json!([row(1)]))]);
        let task = task("longbench/hotpotqa", &options).unwrap();
        assert_eq!(
            (task.name(), task.available(), task.is_sized(), task.is_cut()),
            ("longbench/hotpotqa", Some(1), false, true)
        );
        let e = task.example(4096, 0, 0, &Words).unwrap();
        assert!(e.context.ends_with("given passages.\nA {input}\r\nb\n\n"));
        assert!(
            e.question.starts_with("Answer the question") && e.question.ends_with("Question: {context} é?\nAnswer:")
        );
        assert_eq!(
            (e.references, e.length, e.metric, e.max_new_tokens),
            (vec!["x".to_owned(), "y".to_owned()], 4096, Metric::QaF1, 32)
        );
        assert_eq!(e.rules, PromptRules { cut: Cut::Middle, ..PromptRules::default() });
    }

    #[test]
    fn the_extended_sets_are_tasks_by_length() {
        let rows = json!([row(100), row(3999), row(4000), row(9000)]);
        let (_dir, options) = options(&[("hotpotqa_e.jsonl", rows), ("qasper_e.jsonl", json!([row(5)]))]);
        let all = resolve(&["longbench_e/hotpotqa".to_owned()], &options).unwrap();
        let counts: Vec<_> = all.iter().map(|t| (t.name().to_owned(), t.available().unwrap())).collect();
        let want = [("0-4k", 2), ("4-8k", 1), ("8k+", 1)].map(|(r, n)| (format!("longbench_e/hotpotqa/{r}"), n));
        assert_eq!(counts, want);
        assert!(task("longbench_e/qasper/0-4k", &options).is_ok());
        let error = task("longbench_e/qasper/8k+", &options).err().unwrap().downcast::<UsageError>().unwrap();
        assert!(error.what.contains("qasper_e.jsonl has no row of this length"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("its rows are those of longbench_e/qasper/0-4k"));
        assert!(task("longbench_e/musique", &options).is_err(), "not part of it");
    }

    #[test]
    fn groups_are_by_language() {
        let count = |name: &str| LongBench.expand(name, &TaskOptions::default()).unwrap().len();
        assert_eq!(
            ["longbench", "longbench_en", "longbench_zh", "longbench_code", "longbench_e"].map(count),
            [21, 16, 5, 2, 39]
        );
    }

    #[test]
    fn missing_files_say_what_to_do() {
        let (_dir, options) = options(&[]);
        for options in [options, TaskOptions::default()] {
            let error = task("longbench/qmsum", &options).err().unwrap().downcast::<UsageError>().unwrap();
            assert!(error.what.contains("needs the published file qmsum.jsonl"), "{error}");
            assert!(error.hint.unwrap().contains("spattn data fetch longbench"));
        }
    }

    /// A row without a text or a question is refused. Sets whose prompt is itself the question have no `input`.
    #[test]
    fn rows_that_ask_nothing_are_refused() {
        let without = ["gov_report", "multi_news", "vcsum", "passage_count", "lcc", "repobench-p"];
        for set in SETS.iter() {
            let opened = |field: &str, text: &str| {
                let mut row = row(1);
                row[field] = text.into();
                row["all_classes"] = json!(["x", "y"]);
                let (_dir, options) = options(&[(&format!("{}.jsonl", set.name), json!([row]))]);
                task(&format!("{PREFIX}{}", set.name), &options).map(drop).map_err(|e| e.to_string())
            };
            for blank in ["", " \n", "\u{3000}"] {
                let error = opened("context", blank).unwrap_err();
                assert!(error.ends_with("the field `context` is empty or white space"), "{}: {error}", set.name);
                let input = opened("input", blank);
                assert_eq!(input.is_ok(), without.contains(&set.name.as_str()), "{}: {input:?}", set.name);
            }
        }
    }

    #[test]
    fn classes_are_needed_where_they_are_scored() {
        let (_dir, options) = self::options(&[("trec.jsonl", json!([row(1)]))]);
        let error = task("longbench/trec", &options).err().unwrap().downcast::<UsageError>().unwrap();
        assert!(error.what.contains("trec.jsonl:1: the field `all_classes`"), "{error}");
        let mut other = row(1);
        other["all_classes"] = json!(["z"]);
        let (_dir, options) = self::options(&[("trec.jsonl", json!([other]))]);
        let notes = task("longbench/trec", &options).unwrap().notes();
        assert!(notes[0].contains("1 row has answers that `classification` ignores"), "{notes:?}");
    }

    /// Fills the prompt like Python's `str.format`, in an independent, slower way.
    fn filled(template: &str, context: &str, input: &str) -> String {
        let (before, after) = template.split_once("{context}").unwrap();
        let after = match after.split_once("{input}") {
            Some((between, end)) => format!("{between}{input}{end}"),
            None => after.to_owned(),
        };
        format!("{before}{context}{after}")
    }

    #[test]
    fn published_rows_are_rebuilt_byte_for_byte() {
        let Some(data) = shared_data() else { return };
        let options = TaskOptions { data: Some(data.clone()), ..TaskOptions::default() };
        let prompts: Value =
            serde_json::from_slice(&std::fs::read(data.join("longbench/config/dataset2prompt.json")).unwrap()).unwrap();
        let mut seen = 0;
        for name in resolve(&["longbench_en".to_owned()], &options).unwrap() {
            let set = name.name().strip_prefix(PREFIX).unwrap().to_owned();
            let text = std::fs::read_to_string(data.join(format!("longbench/{set}.jsonl"))).unwrap();
            assert_eq!(name.available(), Some(text.lines().count()));
            for (index, line) in text.lines().enumerate() {
                let row: Value = serde_json::from_str(line).unwrap();
                let field = |name: &str| row[name].as_str().unwrap();
                let e = name.example(0, index, 0, &Words).unwrap();
                assert_eq!(
                    e.user_turn(),
                    filled(prompts[&set].as_str().unwrap(), field("context"), field("input")),
                    "{set}"
                );
                // The rule for the length in the published files.
                let words = |text: &str| text.split_whitespace().count();
                let length = words(field("context"))
                    + words(field("input"))
                    + e.references.iter().map(|a| words(a)).sum::<usize>();
                assert_eq!(row["length"], length, "{set} {index}");
                seen += 1;
            }
        }
        assert_eq!(seen, 152);
    }
}
