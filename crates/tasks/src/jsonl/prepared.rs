//! The task of a prepared file: opens the file, checks every row, and makes an example of each
//! question.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;

use super::prompt::{PREFIX_FIELD, RowPrompt, UNREAD, is_nothing};
use super::spec::{FileSpec, PATH_HINT, PREFIX};
use crate::metrics::Metric;
use crate::question_places::{QuestionPlace, QuestionPlaces};
use crate::rows::{Row, RowSource, Rows};
use crate::{Cut, Example, PromptCounter, Task, answers, digest, kvpress, turns};
use spattn_base::error::UsageError;
use spattn_base::given;

/// The field in which a row names its task.
const TASK: &str = "task";

/// The rows of a file as a task.
pub(super) struct PreparedFile {
    spec: FileSpec,
    name: String,
    rows: Rows,
    places: QuestionPlaces,
    /// Whether the prompt of any row may be shortened to fit a length.
    is_cut: bool,
    /// Whether the prompts of all rows may be shortened.
    cuts_all: bool,
    notes: Vec<String>,
}

/// Counts made while rows are checked, for notes to the user.
#[derive(Default)]
struct SeenRows {
    usable: usize,
    /// Prompts that may be shortened.
    cut: usize,
    /// For each metric, the examples of published sets in whose answers it compares nothing.
    uncompared: HashMap<Metric, usize>,
    /// Tasks or data sets that rows name, as rows of kvpress and LongBench do.
    tasks: BTreeSet<String>,
    metrics: BTreeSet<&'static str>,
    /// Whether rows name their tasks as rows of kvpress do.
    names_tasks: bool,
    /// Fields that other programs put into a prompt, but that are not read here.
    unread: BTreeSet<&'static str>,
}

impl SeenRows {
    fn add(&mut self, row: &Row, prompts: &[RowPrompt]) {
        self.usable += 1;
        for prompt in prompts {
            let RowPrompt { metric, references, all_classes, rules, .. } = prompt;
            self.cut += usize::from(rules.cut != Cut::Nothing);
            self.metrics.insert(metric.name());
            let is_a_class = answers::check_classes(*metric, references, all_classes, true).unwrap_or(false);
            if metric.flaw(references).is_some() || !is_a_class {
                *self.uncompared.entry(*metric).or_default() += 1;
            }
        }
        let is_said = |name: &&&str| row.fields.get(**name).is_some_and(|value| !is_nothing(value));
        self.unread.extend(UNREAD.iter().filter(is_said));
        if prompts.iter().all(|prompt| prompt.answer_prefix.is_empty()) {
            self.unread.extend([PREFIX_FIELD].iter().filter(is_said));
        }
        let named = match prompts.iter().any(|prompt| prompt.rules.cut != Cut::Nothing) {
            true => Some("dataset"),
            false => kvpress::is_row(row).then_some(TASK),
        };
        self.names_tasks |= named == Some(TASK);
        self.tasks.extend(named.and_then(|name| row.text(name).ok().flatten()).map(str::to_owned));
    }

    /// The notes on the file, one line each.
    fn notes(&self, label: &str) -> Vec<String> {
        let uncompared = self.uncompared.iter().filter_map(|(metric, count)| answers::note(label, *count, *metric));
        let list = |kind: &str, names: Vec<&str>| format!("{} {kind} ({})", names.len(), names.join(", "));
        let tasks = list("tasks", self.tasks.iter().map(String::as_str).collect());
        let metrics = list("metrics", self.metrics.iter().copied().collect());
        let rows = match (self.tasks.len() > 1, self.metrics.len() > 1) {
            (false, false) => None,
            (false, true) => Some(format!("{metrics} are averaged to one score")),
            (true, false) => Some(format!("{tasks} are averaged to one score")),
            (true, true) => Some(format!("{tasks} and {metrics} are averaged to one score")),
        };
        let how = if self.names_tasks { " (jsonl:FILE:task=each does it)" } else { "" };
        let several = rows.map(|rows| format!("{label}: {rows}; split the file to get a score of each{how}"));
        let unread: Vec<String> = self.unread.iter().map(|name| format!("`{name}`")).collect();
        let unread = (!unread.is_empty()).then(|| {
            format!(
                "{label}: some rows have fields that are ignored and are not part of the prompt: {}",
                unread.join(", ")
            )
        });
        uncompared.chain(several).chain(unread).collect()
    }
}

impl PreparedFile {
    /// Opens the file and checks every row.
    ///
    /// # Errors
    /// If the file cannot be read or has no usable row, and, unless `skip_bad`, if a row is malformed.
    pub fn open(spec: &FileSpec, skip_bad: bool) -> Result<Self> {
        let unreadable =
            |e: std::io::Error| UsageError::new(format!("cannot read {}: {e}", spec.path.display())).hint(PATH_HINT);
        if spec.path.is_dir() {
            return Err(unreadable(std::io::ErrorKind::IsADirectory.into()).into());
        }
        given::open(&spec.path).map_err(unreadable)?;
        let (mut places, mut seen) = (QuestionPlaces::default(), SeenRows::default());
        let rows = Rows::open(RowSource::open(&spec.path)?, skip_bad, |row| {
            if spec.task.is_some() && row.text(TASK)?.map(str::to_owned) != spec.task {
                return Ok(false);
            }
            let count = turns::count(&row.fields).unwrap_or(1);
            // All questions are read before any is added, since a malformed row is left out as a
            // whole.
            let prompts: Vec<RowPrompt> =
                (0..count).map(|question| RowPrompt::of_row(row, question, spec)).collect::<Result<_, _>>()?;
            for (turn, prompt) in prompts.iter().enumerate() {
                places.add(seen.usable, turn, &prompt.context);
            }
            seen.add(row, &prompts);
            Ok(true)
        })?;
        let of_task = spec.task.as_ref().map_or(String::new(), |task| format!("/{task}"));
        let name = format!("{PREFIX}{}{of_task}", spec.stem());
        if let Some(task) = spec.task.as_ref().filter(|_| rows.is_empty()) {
            let there = tasks_of(spec, skip_bad).unwrap_or_default().join(", ");
            let what = format!("{}: no row has the task `{task}`", rows.source().label());
            let hint =
                if there.is_empty() { "no row has a field `task`".to_owned() } else { format!("its tasks: {there}") };
            return Err(UsageError::new(what).hint(hint).into());
        }
        let notes = rows.note().into_iter().chain(seen.notes(&rows.source().label())).collect();
        let (is_cut, cuts_all) = (seen.cut > 0, seen.cut == places.len());
        Ok(Self { spec: spec.clone(), name, rows, places, is_cut, cuts_all, notes })
    }
}

/// The tasks that the rows of a file name, in order of appearance.
///
/// # Errors
/// If the file cannot be read or has no row, or the task that a row names is not a text.
pub(super) fn tasks_of(spec: &FileSpec, skip_bad: bool) -> Result<Vec<String>> {
    let mut tasks: Vec<String> = Vec::new();
    Rows::open(RowSource::open(&spec.path)?, skip_bad, |row| {
        tasks.extend(row.text(TASK)?.filter(|task| !tasks.iter().any(|known| known == task)).map(str::to_owned));
        Ok(true)
    })?;
    Ok(tasks)
}

impl Task for PreparedFile {
    fn name(&self) -> &str {
        &self.name
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
        self.is_cut
    }

    fn inputs(&self) -> String {
        let FileSpec { metric, max_new_tokens, chat, layout, task, .. } = &self.spec;
        let others = (self.rows.digest(), metric.map(Metric::name), max_new_tokens, chat);
        // Without layout and task the digest is the one of versions that did not have these options.
        match (layout, task) {
            (None, None) => digest::of(&others),
            both => digest::of(&(&others, both)),
        }
    }

    fn is_given(&self) -> bool {
        !self.cuts_all
    }

    fn place_of(&self, index: usize) -> Option<String> {
        self.places.get(index).and_then(|place| self.rows.place(place.row))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn example(&self, length: usize, index: usize, _: u64, _: &dyn PromptCounter) -> Result<Example> {
        let QuestionPlace { row, turn, .. } = self.places.get(index).ok_or_else(|| {
            UsageError::new(format!("{} has {} examples, none at {index}", self.spec.path.display(), self.places.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let prompt = RowPrompt::of_row(&self.rows.read(row)?, turn, &self.spec)?;
        Ok(Example {
            task: self.name.clone(),
            length: if self.is_cut { length } else { 0 },
            index,
            context: prompt.context,
            question: prompt.question,
            answer_prefix: prompt.answer_prefix,
            references: prompt.references,
            all_classes: prompt.all_classes,
            metric: prompt.metric,
            also: prompt.also,
            max_new_tokens: prompt.max_new_tokens,
            depth: None,
            source: self.rows.source().file_name(),
            rules: prompt.rules,
        })
    }
}
