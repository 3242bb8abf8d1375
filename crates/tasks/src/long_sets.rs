//! Benchmarks of long rows in their published files: LongBench v2, InfiniteBench, SCBench, ZeroSCROLLS, LooGLE.
//!
//! What they ask is data (`tasks/longbench_v2.toml` and others, where sources are named). Rows are
//! checked when a file is opened, and read one at a time, as a row may have millions of characters. The questions of one
//! row share its context, and so do rows that have the same.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::metrics::Metric;
use super::rows::{Row, RowSource, Rows};
use super::templates::Fields;
use super::values::text_or_number;
use super::{Cut, Example, Family, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, answers, assets, digest};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

const FILES: [&str; 5] = [
    include_str!("../tasks/longbench_v2.toml"),
    include_str!("../tasks/infinitebench.toml"),
    include_str!("../tasks/scbench.toml"),
    include_str!("../tasks/zeroscrolls.toml"),
    include_str!("../tasks/loogle.toml"),
];
/// What the multi-turn mode of `scbench/NAME` is called.
const MULTI_TURN: &str = "_multi_turn/";

/// A file of definitions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Benchmark {
    /// The data set on the Hugging Face hub.
    hub: String,
    /// Whether prompts are plain text even for a model with a chat template.
    #[serde(default)]
    plain: bool,
    /// What of a prompt that is too long is cut out.
    cut: Shortening,
    /// What stands where the end of a context was, where that is cut off.
    separator: Option<String>,
    /// Expression for the number of a row's questions, if it has several.
    turns: Option<String>,
    task: Vec<Definition>,
}

/// What of a prompt that is too long is cut out.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shortening {
    Middle,
    Document,
}

/// A task as a file defines it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    /// Where the rows are looked for; the first pattern with a file counts.
    files: Vec<String>,
    max_new_tokens: usize,
    metric: Metric,
    /// Metrics that are recorded beside it.
    #[serde(default)]
    also: Vec<Metric>,
    #[serde(flatten)]
    prompt: Templates,
    /// Expression that gives an answer, or a list of them.
    answers: String,
    /// Expression that tells which of a row's questions are its own, where another task has the others.
    only_turns: Option<String>,
    /// The other mode, if it has one.
    multi_turn: Option<Templates>,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Deserialize)]
struct Templates {
    /// Everything before the question.
    context: String,
    /// The question to the end of the prompt.
    question: String,
}

/// Some of a task's rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// What the rows are parted by.
    by: String,
    name: String,
    /// Expression that tells its rows.
    only: String,
}

static BENCHMARKS: LazyLock<Vec<Benchmark>> = LazyLock::new(|| {
    // Embedded: a mistake in them is ours, and the tests find it.
    FILES.iter().map(|file| toml::from_str(file).expect("files of definitions are tested")).map(with_modes).collect()
});

/// A benchmark with the other modes of its tasks as tasks.
fn with_modes(mut benchmark: Benchmark) -> Benchmark {
    let other = |definition: &Definition| {
        let prompt = definition.multi_turn.clone()?;
        let name = definition.name.replacen('/', MULTI_TURN, 1);
        let about = format!("{}, after the questions before and their answers", definition.about);
        Some(Definition { name, about, prompt, ..definition.clone() })
    };
    let others: Vec<Definition> = benchmark.task.iter().filter_map(other).collect();
    benchmark.task.extend(others);
    benchmark
}

fn definitions() -> impl Iterator<Item = (&'static Benchmark, &'static Definition)> {
    BENCHMARKS.iter().flat_map(|benchmark| benchmark.task.iter().map(move |task| (benchmark, task)))
}

/// All that is looked for in a data folder.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    // Of an archive's member, the archive too: that is the file which a hub has.
    let with_archive = |path: &'static String| {
        let archive = path.find(".zip/").map(|at| &path[..at + ".zip".len()]);
        archive.into_iter().chain([path.as_str()])
    };
    definitions().flat_map(|(_, task)| &task.files).flat_map(with_archive)
}

/// A task's name, taken apart.
struct Name {
    benchmark: &'static Benchmark,
    definition: &'static Definition,
    part: Option<&'static Part>,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        definitions().find_map(|(benchmark, definition)| {
            let part = match name.strip_prefix(definition.name.as_str())? {
                "" => None,
                rest => Some(definition.parts.iter().find(|part| rest.strip_prefix('/') == Some(part.name.as_str()))?),
            };
            Some(Self { benchmark, definition, part })
        })
    }
}

/// Names that stand for several tasks: what comes before a task's own name, and what its rows are parted by.
fn group_of(definition: &Definition) -> Option<&str> {
    definition.name.split_once('/').map(|(group, _)| group)
}

fn part_groups(definition: &Definition) -> Vec<String> {
    let mut groups: Vec<String> = definition.parts.iter().map(|p| format!("{}/by_{}", definition.name, p.by)).collect();
    groups.dedup();
    groups
}

/// The family of these benchmarks.
pub struct LongSets;

impl Family for LongSets {
    fn catalog(&self) -> Vec<TaskInfo> {
        let info = |definition: &Definition, name: String, about: String| TaskInfo {
            name,
            about,
            metric: Some(definition.metric),
            max_new_tokens: Some(definition.max_new_tokens),
            parameters: Vec::new(),
            stands_in_for: None,
        };
        let all = definitions().flat_map(|(_, definition)| {
            let part = move |part: &Part| {
                let about = format!("its rows of {} {}", part.by, part.name);
                info(definition, format!("{}/{}", definition.name, part.name), about)
            };
            let whole = info(definition, definition.name.clone(), definition.about.clone());
            [whole].into_iter().chain(definition.parts.iter().map(part))
        });
        all.collect()
    }

    fn groups(&self) -> Vec<String> {
        let mut groups: Vec<String> = Vec::new();
        for (_, definition) in definitions() {
            groups.extend(group_of(definition).map(str::to_owned));
            groups.extend(part_groups(definition));
        }
        groups.dedup();
        groups
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        if Name::parse(name).is_some() {
            return Some(vec![name.to_owned()]);
        }
        let members = definitions().flat_map(|(_, definition)| {
            let whole = (group_of(definition) == Some(name)).then(|| definition.name.clone());
            let is_of = |part: &&Part| format!("{}/by_{}", definition.name, part.by) == name;
            let parts = definition.parts.iter().filter(is_of);
            let parts = parts.map(|part| format!("{}/{}", definition.name, part.name));
            whole.into_iter().chain(parts).collect::<Vec<_>>()
        });
        Some(members.collect()).filter(|members: &Vec<String>| !members.is_empty())
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let parsed = Name::parse(name)
            .ok_or_else(|| UsageError::unknown("task", name, self.catalog().into_iter().map(|t| t.name)))?;
        Ok(Box::new(LongSet::open(name, parsed, options)?))
    }
}

/// A question as it is put.
struct Question {
    context: String,
    question: String,
    answers: Vec<String>,
    /// Whether the answers hold anything that the metric compares.
    compares: bool,
    cut: Cut,
}

impl Name {
    /// What to tell a user who has no such rows, or others.
    fn hint(&self) -> String {
        let hub = &self.benchmark.hub;
        format!("rows are those of {hub} on the Hugging Face hub, which --data hub:{hub} downloads")
    }

    fn source(&self, name: &str, options: &TaskOptions) -> Result<RowSource, UsageError> {
        let files = &self.definition.files;
        let path = files.iter().find_map(|pattern| assets::matching(options, pattern).into_iter().next());
        let path = path.ok_or_else(|| {
            let hint = format!("give --data with one of: {}; {}", files.join(", "), self.hint());
            UsageError::new(format!("`{name}` needs data that are not there")).hint(hint)
        })?;
        match path.extension().is_some_and(|ending| ending == "json") {
            true => RowSource::document(&path),
            false => RowSource::open(&path),
        }
    }

    /// Which of a row's questions are asked, none if the row is not of this part.
    fn turns(&self, fields: &mut Fields) -> Result<Vec<usize>> {
        if let Some(part) = self.part {
            let fits = fields.value(&part.only)?.is_true();
            if !fits {
                return Ok(Vec::new());
            }
        }
        let Some(turns) = &self.benchmark.turns else { return Ok(vec![0]) };
        let count = usize::try_from(fields.value(turns)?)?;
        anyhow::ensure!(count > 0, "there is no question");
        let Some(only) = &self.definition.only_turns else { return Ok((0..count).collect()) };
        let mut own = Vec::new();
        for turn in 0..count {
            fields.ask(turn);
            if fields.value(only)?.is_true() {
                own.push(turn);
            }
        }
        Ok(own)
    }

    fn question(&self, fields: &Fields) -> Result<Question> {
        let Definition { prompt, answers, .. } = self.definition;
        let (context, question) = (fields.prompt(&prompt.context)?, fields.prompt(&prompt.question)?);
        let is_written = !is_blank(&prompt.question);
        anyhow::ensure!(!(is_written && is_blank(&question)), "the question is empty or white space");
        let answers = match serde_json::to_value(fields.value(answers)?)? {
            Value::Array(several) => several.iter().map(text_or_number).collect(),
            one => text_or_number(&one).map(|one| vec![one]),
        };
        let answers: Option<Vec<String>> = answers.filter(|answers: &Vec<String>| !answers.is_empty());
        let answers = answers.ok_or_else(|| anyhow::anyhow!("there is no answer, or one that is no text"))?;
        let compares = answers::check_published(self.definition.metric, &answers)?;
        let cut = match self.benchmark.cut {
            Shortening::Middle => Cut::Middle,
            Shortening::Document => {
                let separator = self.benchmark.separator.as_deref().map(|text| fields.text(text)).transpose()?;
                Cut::EndOfContext(separator.unwrap_or_default())
            }
        };
        Ok(Question { context, question, answers, compares, cut })
    }

    /// All questions of a row, each with its place among those that the row has.
    fn questions(&self, row: &Row) -> Result<Vec<(usize, Question)>> {
        let mut fields = Fields::new(&row.fields)?;
        let turns = self.turns(&mut fields)?;
        let one = |turn: usize| {
            fields.ask(turn);
            Ok((turn, self.question(&fields)?))
        };
        turns.into_iter().map(one).collect()
    }

    /// The question of a row at `turn`, where it is known to have one.
    fn question_at(&self, row: &Row, turn: usize) -> Result<Question> {
        let mut fields = Fields::new(&row.fields)?;
        fields.ask(turn);
        self.question(&fields)
    }
}

/// Where an example is found.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Its row among those of the task, from 0.
    row: usize,
    /// Which of the row's questions it is, from 0.
    turn: usize,
    /// The first example that begins alike.
    context: usize,
}

/// The rows of a file as a task.
struct LongSet {
    name: String,
    parsed: Name,
    rows: Rows,
    places: Vec<Place>,
    /// What is to be said of questions of whose answers nothing is compared.
    uncompared: Option<String>,
}

impl LongSet {
    /// Opens the file and checks every row.
    fn open(name: &str, parsed: Name, options: &TaskOptions) -> Result<Self> {
        let source = parsed.source(name, options)?;
        let (mut places, mut contexts, mut row_number, mut uncompared) = (Vec::new(), HashMap::new(), 0, 0);
        let rows = Rows::open(source, options.skip_bad, |row| {
            let questions = parsed.questions(row).map_err(|e| row.wrong(format!("{e:#}")).hint(parsed.hint()))?;
            let Some((_, first)) = questions.first() else { return Ok(false) };
            let mut context = DefaultHasher::new();
            first.context.hash(&mut context);
            let context = *contexts.entry(context.finish()).or_insert(places.len());
            uncompared += questions.iter().filter(|(_, question)| !question.compares).count();
            places.extend(questions.iter().map(|(turn, _)| Place { row: row_number, turn: *turn, context }));
            row_number += 1;
            Ok(true)
        })?;
        if rows.is_empty() {
            let what = format!("task `{name}`: {} has no such row", rows.source().label());
            return Err(UsageError::new(what).hint(format!("`{}` takes all", parsed.definition.name)).into());
        }
        let uncompared = answers::note(&rows.source().label(), uncompared, parsed.definition.metric);
        Ok(Self { name: name.to_owned(), parsed, rows, places, uncompared })
    }
}

impl Task for LongSet {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> String {
        digest::of(&(&self.name, self.rows.digest()))
    }

    fn available(&self) -> Option<usize> {
        Some(self.places.len())
    }

    fn context_of(&self, index: usize) -> usize {
        self.places.get(index).map_or(index, |place| place.context)
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
        let &Place { row, turn, .. } = self.places.get(index).ok_or_else(|| {
            UsageError::new(format!("`{}` has {} questions, none at {index}", self.name, self.places.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let Name { benchmark, definition, .. } = self.parsed;
        let Question { context, question, answers, cut, .. } = self.parsed.question_at(&self.rows.read(row)?, turn)?;
        Ok(Example {
            task: self.name.clone(),
            length,
            index,
            context,
            question,
            answer_prefix: String::new(),
            references: answers,
            all_classes: Vec::new(),
            metric: definition.metric,
            also: definition.also.clone(),
            max_new_tokens: definition.max_new_tokens,
            depth: None,
            source: self.rows.source().file_name(),
            rules: PromptRules {
                plain: benchmark.plain || definition.name.contains(MULTI_TURN),
                cut,
                ..PromptRules::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve;
    use crate::ruler::testing::Words;
    use serde_json::json;

    /// A folder with one file, and the tasks that a name stands for.
    fn open(name: &str, file: &str, text: &str, skip_bad: bool) -> Result<Vec<Box<dyn Task>>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), skip_bad, ..TaskOptions::default() };
        // Rows are read from the file as long as the task lives.
        let made = resolve(&[name.to_owned()], &options);
        std::mem::forget(dir);
        made
    }

    #[derive(Deserialize)]
    struct Golden {
        prompts: Vec<GoldenPrompts>,
    }

    /// What the published programs make of a row.
    #[derive(Deserialize)]
    struct GoldenPrompts {
        task: String,
        row: Value,
        prompts: Vec<String>,
        answers: Vec<Vec<String>>,
        max_new_tokens: usize,
    }

    #[test]
    fn prompts_and_answers_are_the_published_ones() {
        let golden: Golden = serde_json::from_str(include_str!("../../../tests/golden/long_sets.json")).unwrap();
        for case in &golden.prompts {
            let name = &case.task;
            let (group, set) = name.split_once('/').unwrap_or((name, ""));
            let file = match group {
                "infinitebench" | "loogle" => format!("{group}/{set}.jsonl"),
                "zeroscrolls" => format!("zeroscrolls/{set}/validation.jsonl"),
                "scbench" | "scbench_multi_turn" => {
                    // Of mixed sets a task for each kind of question.
                    let mixed =
                        ["summary_with_needles", "repoqa_and_kv"].into_iter().find(|mixed| set.starts_with(mixed));
                    format!("scbench/scbench_{}.jsonl", mixed.unwrap_or(set))
                }
                _ => "longbench_v2/data.json".to_owned(),
            };
            let text = if file.ends_with("json") { json!([case.row]) } else { case.row.clone() };
            let task = open(name, &file, &text.to_string(), false).unwrap().remove(0);
            assert_eq!(task.available(), Some(case.prompts.len()), "{name}");
            for (index, (prompt, answers)) in case.prompts.iter().zip(&case.answers).enumerate() {
                let example = task.example(0, index, 0, &Words).unwrap();
                assert_eq!((&example.user_turn(), &example.references), (prompt, answers), "{name}");
                assert_eq!(example.max_new_tokens, case.max_new_tokens, "{name}");
                assert!(!example.question.is_empty() && !example.question.starts_with('\n'), "{name}");
                assert_eq!(example.rules.plain, group != "scbench" && !group.starts_with("longbench_v2"), "{name}");
            }
        }
        for (_, definition) in definitions() {
            assert!(golden.prompts.iter().any(|case| case.task == definition.name), "{}", definition.name);
        }
    }

    fn question(id: usize, length: &str, difficulty: &str) -> Value {
        json!({
            "_id": id.to_string(), "domain": "x", "sub_domain": "y", "difficulty": difficulty, "length": length,
            "question": format!("Q{id}?"), "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d",
            "answer": "C", "context": "Same text.",
        })
    }

    #[test]
    fn parts_have_the_rows_of_the_published_table() {
        let rows = json!([
            question(0, "short", "easy"),
            question(1, "medium", "hard"),
            question(2, "short", "hard"),
            question(3, "long", "easy"),
        ]);
        let counts = |name: &str, text: &str| -> Vec<(String, usize)> {
            let file = if text.starts_with('[') { "data.json" } else { "longbench_v2/data.jsonl" };
            let tasks = open(name, file, text, false).unwrap();
            tasks.iter().map(|t| (t.name().to_owned(), t.available().unwrap())).collect()
        };
        let text = rows.to_string();
        assert_eq!(counts("longbench_v2", &text), [("longbench_v2".to_owned(), 4)]);
        let named = |parts: &[(&str, usize)]| -> Vec<(String, usize)> {
            parts.iter().map(|(part, count)| (format!("longbench_v2/{part}"), *count)).collect()
        };
        assert_eq!(counts("longbench_v2/by_length", &text), named(&[("short", 2), ("medium", 1), ("long", 1)]));
        assert_eq!(counts("longbench_v2/by_difficulty", &text), named(&[("easy", 2), ("hard", 2)]));
        let lines: Vec<String> = rows.as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(counts("longbench_v2/hard", &lines.join("\n")), named(&[("hard", 2)]));
        let only_easy = json!([question(0, "short", "easy")]).to_string();
        let error = open("longbench_v2/hard", "data.json", &only_easy, false).err().unwrap().to_string();
        assert!(error.contains("data.json has no such row"), "{error}");
    }

    #[test]
    fn rows_with_the_same_text_are_asked_together() {
        let task = open(
            "longbench_v2",
            "data.json",
            &json!([question(0, "short", "easy"), question(1, "x", "y")]).to_string(),
            false,
        );
        let task = task.unwrap().remove(0);
        assert_eq!((task.context_of(1), task.is_cut(), task.is_sized()), (0, true, false));
        let example = task.example(4096, 1, 0, &Words).unwrap();
        assert_eq!((example.length, example.references), (4096, vec!["C".to_owned()]));
        let turns = json!([{"input": "a?", "answer": "1"}, {"input": "b?", "answer": "2"}]);
        let row = |context: &str| json!({"context": context, "multi_turns": turns}).to_string();
        let text = [row("One."), row("Two."), row("One.")].join("\n");
        for name in ["scbench/kv", "scbench_multi_turn/kv"] {
            let task = open(name, "scbench/scbench_kv.jsonl", &text, false).unwrap().remove(0);
            assert_eq!((0..6).map(|i| task.context_of(i)).collect::<Vec<_>>(), [0, 0, 2, 2, 0, 0], "{name}");
        }
    }

    /// The letters that `pred.py` of LongBench v2 finds are A to D.
    #[test]
    fn questions_of_nothing_are_refused_and_answers_that_none_can_give_noted() {
        let with = |name: &str, value: &str| {
            let mut row = question(0, "short", "easy");
            row[name] = value.into();
            open("longbench_v2", "data.json", &json!([row]).to_string(), false)
        };
        for name in ["context", "question", "choice_B"] {
            let error = with(name, " ").err().unwrap().to_string();
            assert!(error.ends_with(&format!("the field `{name}` is empty or white space")), "{error}");
        }
        for (answer, notes) in [("C", 0), ("c", 1), ("E", 1), ("1", 1)] {
            let told = with("answer", answer).unwrap().remove(0).notes();
            assert_eq!(told.len(), notes, "{answer}: {told:?}");
        }
        let row = r#"{"context": "x", "multi_turns": [{"input": " ", "answer": "1"}]}"#;
        let error = open("scbench/kv", "scbench/scbench_kv.jsonl", row, false).err().unwrap().to_string();
        assert!(error.ends_with("the question is empty or white space"), "{error}");
        let row = r#"{"context": "x", "input": "", "answer": ["12345"]}"#;
        let error = open("infinitebench/passkey", "infinitebench/passkey.jsonl", row, false).err().unwrap().to_string();
        assert!(error.ends_with("the field `input` is empty or white space"), "{error}");
    }

    #[test]
    fn malformed_rows_are_named_with_what_they_lack() {
        let good = r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#;
        for (bad, what) in [
            (
                r#"{"context": "x", "input": "Q?", "answer": ["e"], "options": ["a", "b", "c", "d"]}"#,
                "none of the options",
            ),
            (r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b"]}"#, "a field is missing"),
            (r#"{"input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#, "a field is missing"),
            (
                r#"{"context": " ", "input": "Q?", "answer": ["b"], "options": ["a", "b", "c", "d"]}"#,
                "the field `context` is empty or white space",
            ),
            (
                r#"{"context": "x", "input": "Q?", "answer": ["b"], "options": ["a", "b", null, "d"]}"#,
                "a field is none, no text",
            ),
            ("{", "not JSON"),
        ] {
            let text = format!("{good}\n{bad}\n");
            let file = "infinitebench/code_debug.jsonl";
            let error = open("infinitebench/code_debug", file, &text, false).err().unwrap();
            let error = error.downcast::<UsageError>().unwrap();
            assert!(error.what.contains("code_debug.jsonl:2: ") && error.what.contains(what), "{error}");
            let task = open("infinitebench/code_debug", file, &text, true).unwrap().remove(0);
            assert_eq!((task.available(), task.notes().len()), (Some(1), 1));
        }
        let options = TaskOptions::default();
        let error = resolve(&["infinitebench/passkey".to_owned()], &options).err().unwrap();
        let hint = error.downcast::<UsageError>().unwrap().hint.unwrap();
        assert!(
            hint.contains("infinitebench/passkey.jsonl") && hint.contains("hub:xinrongzhang2022/InfiniteBench"),
            "{hint}"
        );
        let none = r#"{"context": "x", "multi_turns": []}"#;
        let error = open("scbench/kv", "scbench_kv.jsonl", none, false).err().unwrap().to_string();
        assert!(error.contains("there is no question"), "{error}");
    }

    #[test]
    fn groups_have_their_tasks() {
        let count = |name: &str| LongSets.expand(name, &TaskOptions::default()).map(|members| members.len());
        let names = [
            "infinitebench",
            "scbench",
            "scbench_multi_turn",
            "longbench_v2",
            "longbench_v2/by_length",
            "zeroscrolls",
            "loogle",
            "nothing",
        ];
        assert_eq!(names.map(count), [Some(12), Some(12), Some(12), Some(1), Some(3), Some(10), Some(4), None]);
        let groups = LongSets.groups();
        assert_eq!(
            groups,
            [
                "longbench_v2/by_length",
                "longbench_v2/by_difficulty",
                "infinitebench",
                "scbench",
                "scbench_multi_turn",
                "zeroscrolls",
                "loogle"
            ]
        );
    }
}
