//! Benchmarks of long rows in their published files: LongBench v2, InfiniteBench, SCBench, ZeroSCROLLS, LooGLE.
//!
//! Tasks are data (`tasks/longbench_v2.toml` and others, which name the sources). Rows are checked when a file is opened, and read one
//! at a time, since a row may have millions of characters. The questions of one row share its context, as do rows with equal contexts.

use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::metrics::Metric;
use super::question_places::{QuestionPlace, QuestionPlaces, no_such_question};
use super::rows::{Row, RowSource, Rows, text_or_number};
use super::templated::Fields;
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
/// Replaces the slash in the name of a `scbench/NAME` task's multi-turn mode.
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
    /// Which part of a prompt that is too long is dropped.
    cut: Shortening,
    /// The text that replaces the end of a context that is cut.
    separator: Option<String>,
    /// Expression for the number of a row's questions, if it has several.
    turns: Option<String>,
    task: Vec<Definition>,
}

/// Which part of a prompt that is too long is dropped.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shortening {
    Middle,
    Document,
}

/// A task as a definition file states it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    /// Where the rows are looked for; the first pattern that matches a file is used.
    files: Vec<String>,
    max_new_tokens: usize,
    metric: Metric,
    /// Metrics that are recorded in addition.
    #[serde(default)]
    also: Vec<Metric>,
    #[serde(flatten)]
    prompt: Templates,
    /// Expression that gives one answer or a list of them.
    answers: String,
    /// Expression that is true for the questions of a row that belong to this task, if another task has the others.
    only_turns: Option<String>,
    /// The templates of its multi-turn mode, if it has one.
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

/// A part of a task's rows, which is a task of its own.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// The property by which rows are divided, such as `difficulty`.
    by: String,
    name: String,
    /// Expression that is true for its rows.
    only: String,
}

static BENCHMARKS: LazyLock<Vec<Benchmark>> = LazyLock::new(|| {
    // The files are embedded, so a mistake in them is ours, and the tests find it.
    FILES.iter().map(|file| toml::from_str(file).expect("files of definitions are tested")).map(with_modes).collect()
});

/// Adds the multi-turn modes of a benchmark's tasks as tasks of their own.
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

/// All patterns of files that the family looks for in a data folder.
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    // A hub has the archive, not its members, so the archive is a pattern too.
    let with_archive = |path: &'static String| {
        let archive = path.find(".zip/").map(|at| &path[..at + ".zip".len()]);
        archive.into_iter().chain([path.as_str()])
    };
    definitions().flat_map(|(_, task)| &task.files).flat_map(with_archive)
}

/// How the answers of a task are scored: its metric, and those recorded in addition. `None` if no task has this name.
pub(super) fn scoring(name: &str) -> Option<(Metric, Vec<Metric>)> {
    let (_, definition) = definitions().find(|(_, definition)| definition.name == name)?;
    Some((definition.metric, definition.also.clone()))
}

/// The parts of a task's name.
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

/// The group of a task: its name up to the slash.
fn group_of(definition: &Definition) -> Option<&str> {
    definition.name.split_once('/').map(|(group, _)| group)
}

/// The groups of a task's parts, such as `NAME/by_difficulty`.
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

/// A question with all its templates filled in.
struct Question {
    context: String,
    question: String,
    answers: Vec<String>,
    /// Whether the metric compares anything in the answers.
    compares: bool,
    cut: Cut,
}

impl Name {
    /// The hint for a user who has no such rows, or rows with other fields.
    fn hint(&self) -> String {
        let hub = &self.benchmark.hub;
        format!("rows are those of {hub} on the Hugging Face hub, which --data hub:{hub} downloads")
    }

    fn source(&self, name: &str, options: &TaskOptions) -> Result<RowSource, UsageError> {
        let files = &self.definition.files;
        let path = files.iter().find_map(|pattern| assets::matching(options, pattern).into_iter().next());
        let path = path.ok_or_else(|| {
            let hint = format!("give --data with one of: {}; {}", files.join(", "), self.hint());
            UsageError::new(format!("`{name}` needs data that were not found")).hint(hint)
        })?;
        match path.extension().is_some_and(|ending| ending == "json") {
            true => RowSource::document(&path),
            false => RowSource::open(&path),
        }
    }

    /// The numbers of the row's questions that belong to the task; none if the row is not in the task's part.
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
        let answers = answers.ok_or_else(|| anyhow::anyhow!("an answer is missing or not text"))?;
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

    /// All of a row's questions that belong to the task, each with its number in the row.
    fn questions(&self, row: &Row) -> Result<Vec<(usize, Question)>> {
        let mut fields = Fields::new(&row.fields)?;
        let turns = self.turns(&mut fields)?;
        let one = |turn: usize| {
            fields.ask(turn);
            Ok((turn, self.question(&fields)?))
        };
        turns.into_iter().map(one).collect()
    }

    /// The question numbered `turn` of a row that was already checked.
    fn question_at(&self, row: &Row, turn: usize) -> Result<Question> {
        let mut fields = Fields::new(&row.fields)?;
        fields.ask(turn);
        self.question(&fields)
    }
}

/// The task of a file's rows.
struct LongSet {
    name: String,
    parsed: Name,
    rows: Rows,
    places: QuestionPlaces,
    /// The note on questions in whose answers the metric compares nothing.
    uncompared: Option<String>,
}

impl LongSet {
    /// Opens the file and checks every row.
    fn open(name: &str, parsed: Name, options: &TaskOptions) -> Result<Self> {
        let source = parsed.source(name, options)?;
        let (mut places, mut row_number, mut uncompared) = (QuestionPlaces::default(), 0, 0);
        let rows = Rows::open(source, options.skip_bad, |row| {
            let questions = parsed.questions(row).map_err(|e| row.wrong(format!("{e:#}")).hint(parsed.hint()))?;
            let Some((_, first)) = questions.first() else { return Ok(false) };
            uncompared += questions.iter().filter(|(_, question)| !question.compares).count();
            // All questions of a row share the context of its first question.
            questions.iter().for_each(|(turn, _)| places.add(row_number, *turn, &first.context));
            row_number += 1;
            Ok(true)
        })?;
        if rows.is_empty() {
            let what = format!("task `{name}`: {} has no row of this group", rows.source().label());
            return Err(UsageError::new(what).hint(format!("`{}` takes all rows", parsed.definition.name)).into());
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
        self.places.context_of(index)
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
        let place = self.places.get(index);
        let QuestionPlace { row, turn, .. } =
            place.ok_or_else(|| no_such_question(&self.name, self.places.len(), index))?;
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
mod tests;
