//! Prepared files: `jsonl:PATH` runs rows made elsewhere, as they are.
//!
//! What a row is, its fields tell:
//! - RULER's: `input`, `outputs`, and in newer files `answer_prefix`. Older rows carry the answer prefix at the end of
//!   `input`; it is split off there, so that context, question and answer prefix joined are always the bytes of the file.
//! - LongBench's: `context`, `input`, `answers`; the prompt is that of the set which the row (`dataset`) or the file's
//!   name says ([`longbench`]).
//! - Lost in the Middle's key-value retrieval: `ordered_kv_records`, `key`, `value` (`kv_retrieval`).
//! - LongEval's lines: `prompt`, `correct_line`, `expected_number` (`longeval`).
//! - kvpress's: `context`, `question`, `answer_prefix`, `answer`, `task`, `max_new_tokens` (`kvpress`).
//! - A needle in a haystack: `context`, `question`, `answer` or `answers`; the prompt is context, blank line, question.
//! - Several questions on one context: `context`, and `turns` or `multi_turns` (`turns`). Each is an
//!   example of its own.
//! - A document with its summary, such as `report` and `summary` (`summary`).
//!
//! Metric and tokens to generate follow from that and from the prompt's shape, or are given with the path:
//! `jsonl:PATH:metric=string_match_part,max_new_tokens=64`. Rows are checked when the file is opened, and read one at a
//! time. A prompt may have been put into a chat template before it was written; `chat=false` says so.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::metrics::Metric;
use super::options::Given;
use super::rows::{Row, RowSource, Rows};
use super::{
    Cut, Example, Family, PromptCounter, PromptRules, Task, TaskInfo, TaskOptions, answers, digest, kv_retrieval,
    kvpress, longbench, longeval, ruler, summary, turns,
};
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_base::text::is_blank;

const PREFIX: &str = "jsonl:";
/// What may follow the path.
const OPTIONS: [&str; 3] = ["metric", "max_new_tokens", "chat"];
const PATH_HINT: &str = "jsonl:PATH takes a file with one JSON object a line";
/// Begins the question of a prompt of unknown shape.
const QUESTION_MARK: &str = "\nQuestion:";

/// The family of prepared files.
pub struct Jsonl;

impl Family for Jsonl {
    fn catalog(&self) -> Vec<TaskInfo> {
        vec![TaskInfo {
            name: format!("{PREFIX}PATH"),
            about:
                "rows of a prepared file: RULER's (kvpress's too), LongBench's, key-value retrieval, LongEval's lines, \
                    a needle, summaries, several questions"
                    .to_owned(),
            metric: None,
            max_new_tokens: None,
            parameters: OPTIONS.map(|name| (name.to_owned(), "from the prompt".to_owned())).to_vec(),
            stands_in_for: None,
        }]
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        name.starts_with(PREFIX).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        Ok(Box::new(Prepared::open(&Spec::parse(name)?, options.skip_bad)?))
    }
}

/// A path and what was said about it.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    path: PathBuf,
    metric: Option<Metric>,
    max_new_tokens: Option<usize>,
    /// Whether prompts go into the model's chat template, even if they seem to be in one; they are looked at if not said.
    chat: Option<bool>,
}

impl Spec {
    /// What to say with the path so that rows can be scored.
    fn scoring_hint(&self) -> String {
        format!("say how to score it: jsonl:{}:metric=string_match_all,max_new_tokens=64", self.path.display())
    }

    /// The error for a row whose task cannot be told.
    fn unscored(&self, row: &Row) -> UsageError {
        row.wrong("this prompt is of no known task, so its metric is unknown").hint(self.scoring_hint())
    }

    fn parse(name: &str) -> Result<Self, UsageError> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        if rest.is_empty() {
            return Err(UsageError::new(format!("task `{name}` names no file")).hint(PATH_HINT));
        }
        let mut spec = Self { path: rest.into(), metric: None, max_new_tokens: None, chat: None };
        let Some((path, options)) = rest.rsplit_once(':').filter(|(_, o)| o.contains('=')) else {
            return Ok(spec);
        };
        if spec.path.is_file() {
            // The colon is part of the file's name.
            return Ok(spec);
        }
        spec.path = path.into();
        let mut given = Given::default();
        for option in options.split(',') {
            let key = option.split('=').next().unwrap_or_default();
            given.once(name, key, key)?;
            spec.set(option, name)?;
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str, name: &str) -> Result<(), UsageError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "metric" => self.metric = Some(Metric::parse(value)?),
            "max_new_tokens" => {
                let count = value.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n));
                self.max_new_tokens = Some(count.ok_or_else(|| {
                    let what = format!("`{name}`: max_new_tokens takes a number above 0, not `{value}`");
                    UsageError::new(what).hint(format!("a whole number from 1 to {MOST_TOKENS}"))
                })?);
            }
            "chat" => {
                self.chat = Some(value.parse().map_err(|_| {
                    UsageError::new(format!("`{name}`: chat takes true or false, not `{value}`"))
                        .hint("chat=false runs prompts that are in a chat template already")
                })?);
            }
            _ => return Err(UsageError::unknown("option of jsonl:", key, OPTIONS)),
        }
        Ok(())
    }
}

/// The rows of a file as a task.
struct Prepared {
    spec: Spec,
    name: String,
    rows: Rows,
    /// Where each example is found.
    places: Vec<Place>,
    /// For each example, the first with the same context.
    contexts: Vec<usize>,
    /// Whether any row may be cut.
    is_cut: bool,
    /// Whether all rows may be.
    cuts_all: bool,
    notes: Vec<String>,
}

/// What is counted while rows are checked.
#[derive(Default)]
struct Seen {
    usable: usize,
    /// Examples that may be cut.
    cut: usize,
    /// Examples of published sets of whose answers nothing is compared, by metric.
    uncompared: HashMap<Metric, usize>,
    /// Tasks or data sets that rows name, as kvpress's and LongBench's do.
    tasks: BTreeSet<String>,
    metrics: BTreeSet<&'static str>,
    /// Fields that are a part of other programs' prompts, and of none here.
    unread: BTreeSet<&'static str>,
}

impl Seen {
    fn add(&mut self, row: &Row, prompts: &[Prompt]) {
        self.usable += 1;
        for prompt in prompts {
            let Prompt { metric, references, all_classes, rules, .. } = prompt;
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
            false => kvpress::is_row(row).then_some("task"),
        };
        self.tasks.extend(named.and_then(|name| row.text(name).ok().flatten()).map(str::to_owned));
    }

    /// What is to be said of the file, a line each.
    fn notes(&self, label: &str) -> Vec<String> {
        let uncompared = self.uncompared.iter().filter_map(|(metric, count)| answers::note(label, *count, *metric));
        let list = |kind: &str, names: Vec<&str>| format!("{} {kind} ({})", names.len(), names.join(", "));
        let tasks = list("tasks", self.tasks.iter().map(String::as_str).collect());
        let metrics = list("metrics", self.metrics.iter().copied().collect());
        let rows = match (self.tasks.len() > 1, self.metrics.len() > 1) {
            (false, false) => None,
            (false, true) => Some(format!("rows of {metrics} are one mean")),
            (true, false) => Some(format!("rows of {tasks} are one mean")),
            (true, true) => Some(format!("rows of {tasks} are one mean, over {metrics}")),
        };
        let several = rows.map(|rows| format!("{label}: {rows}; a file each gives a score for each"));
        let unread: Vec<String> = self.unread.iter().map(|name| format!("`{name}`")).collect();
        let unread = (!unread.is_empty())
            .then(|| format!("{label}: of some rows {} is not read, and is no part of the prompt", unread.join(", ")));
        uncompared.chain(several).chain(unread).collect()
    }
}

/// Where an example is found.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of its row among the usable ones, from 0.
    row: usize,
    /// Which of the row's questions it is, from 0.
    question: usize,
}

impl Prepared {
    /// Opens the file and checks every row.
    fn open(spec: &Spec, skip_bad: bool) -> Result<Self> {
        let unreadable =
            |e: std::io::Error| UsageError::new(format!("cannot read {}: {e}", spec.path.display())).hint(PATH_HINT);
        if spec.path.is_dir() {
            return Err(unreadable(std::io::ErrorKind::IsADirectory.into()).into());
        }
        given::open(&spec.path).map_err(unreadable)?;
        let (mut places, mut contexts, mut known, mut seen) = (Vec::new(), Vec::new(), HashMap::new(), Seen::default());
        let rows = Rows::open(RowSource::open(&spec.path)?, skip_bad, |row| {
            let count = turns::count(&row.fields).unwrap_or(1);
            // All questions before any is taken: a row is left out as a whole.
            let prompts: Vec<Prompt> =
                (0..count).map(|question| Prompt::read(row, question, spec)).collect::<Result<_, _>>()?;
            for (question, prompt) in prompts.iter().enumerate() {
                let mut context = DefaultHasher::new();
                prompt.context.hash(&mut context);
                contexts.push(*known.entry(context.finish()).or_insert(places.len()));
                places.push(Place { row: seen.usable, question });
            }
            seen.add(row, &prompts);
            Ok(true)
        })?;
        let name = format!("{PREFIX}{}", stem(&spec.path));
        let notes = rows.note().into_iter().chain(seen.notes(&rows.source().label())).collect();
        let (is_cut, cuts_all) = (seen.cut > 0, seen.cut == places.len());
        Ok(Self { spec: spec.clone(), name, rows, places, contexts, is_cut, cuts_all, notes })
    }
}

/// The name of a file without folders and ending.
fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned())
}

impl Task for Prepared {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        Some(self.places.len())
    }

    fn context_of(&self, index: usize) -> usize {
        self.contexts.get(index).copied().unwrap_or(index)
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn inputs(&self) -> String {
        let Spec { metric, max_new_tokens, chat, .. } = &self.spec;
        digest::of(&(self.rows.digest(), metric.map(Metric::name), max_new_tokens, chat))
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
        let &Place { row, question } = self.places.get(index).ok_or_else(|| {
            UsageError::new(format!("{} has {} examples, none at {index}", self.spec.path.display(), self.places.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let prompt = Prompt::read(&self.rows.read(row)?, question, &self.spec)?;
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

/// A row as a prompt.
#[derive(Debug, Clone, PartialEq)]
struct Prompt {
    context: String,
    question: String,
    answer_prefix: String,
    references: Vec<String>,
    all_classes: Vec<String>,
    metric: Metric,
    also: Vec<Metric>,
    max_new_tokens: usize,
    rules: PromptRules,
}

impl Prompt {
    /// The prompt of a row's question at `question`; most rows have but one.
    fn read(row: &Row, question: usize, spec: &Spec) -> Result<Self, UsageError> {
        let has = |name: &str| row.fields.contains_key(name);
        answers::check_same(&row.fields, &ANSWERS).map_err(|e| row.at(e))?;
        let mut prompt = match () {
            () if turns::count(&row.fields).is_some() => Self::turn(row, question, spec),
            () if has(kv_retrieval::PAIRS) => Self::lookup(row),
            () if has(longeval::ANSWER) => Self::line(row),
            () if kvpress::is_row(row) => Self::kvpress(row, spec),
            () if has("context") && has("question") => Self::needle(row),
            () if has("context") && has("answers") => Self::longbench(row, spec),
            () if summary::is_row(&row.fields) => Self::summary(row),
            () if has("input") || has("outputs") => Self::ruler(row, spec),
            () => Err(unknown_kind(row)),
        }?;
        // LongBench's rows are scored as LongBench does it, unless another metric is asked for.
        let is_published = spec.metric.is_none() && prompt.rules.cut != Cut::Nothing;
        if let Some(metric) = spec.metric.filter(|metric| *metric != prompt.metric) {
            // A metric that was asked for takes the place of the first; the others are recorded all the same.
            if !prompt.also.is_empty() {
                prompt.also.retain(|m| *m != metric);
                prompt.also.insert(0, prompt.metric);
            }
            prompt.metric = metric;
        }
        prompt.max_new_tokens = spec.max_new_tokens.unwrap_or(prompt.max_new_tokens);
        if prompt.metric.needs_classes() && prompt.all_classes.is_empty() {
            prompt.all_classes = row.list("all_classes")?;
        }
        if is_blank(&prompt.context) && is_blank(&prompt.question) {
            return Err(row.wrong("the prompt is empty or white space"));
        }
        let prefix = row.text(PREFIX_FIELD)?.unwrap_or_default().trim();
        if !prefix.is_empty() && prompt.question.trim_end().ends_with(prefix) {
            let what = format!("the prompt ends with the `{PREFIX_FIELD}` already, and it would be there twice");
            return Err(row.wrong(what).hint(format!("take it out of one of them: \"{PREFIX_FIELD}\": \"\"")));
        }
        let checked = match is_published {
            true => answers::check_published(prompt.metric, &prompt.references).map(drop),
            false => answers::check(prompt.metric, &prompt.references),
        };
        checked.map_err(|e| row.at(e))?;
        answers::check_classes(prompt.metric, &prompt.references, &prompt.all_classes, is_published)
            .map_err(|e| row.at(e))?;
        prompt.rules.plain |= spec.chat == Some(false);
        prompt.rules.may_be_templated = spec.chat.is_none() && !prompt.rules.plain;
        Ok(prompt)
    }

    fn kvpress(row: &Row, spec: &Spec) -> Result<Self, UsageError> {
        let kvpress::Question { context, question, answer_prefix, references } = kvpress::question(row)?;
        let hint = |e: UsageError| e.hint(spec.scoring_hint());
        Ok(Self {
            context,
            question,
            answer_prefix,
            references,
            all_classes: Vec::new(),
            metric: spec.metric.map_or_else(|| kvpress::metric(row), Ok).map_err(hint)?,
            also: Vec::new(),
            max_new_tokens: spec.max_new_tokens.map_or_else(|| kvpress::max_new_tokens(row), Ok).map_err(hint)?,
            rules: PromptRules::default(),
        })
    }

    fn ruler(row: &Row, spec: &Spec) -> Result<Self, UsageError> {
        no_other_prompt(row)?;
        let hint = |e: UsageError| UsageError { hint: e.hint.or_else(|| Some(FIELDS_HINT.to_owned())), ..e };
        let input = row.required("input").map_err(hint)?;
        let given_prefix = row.text("answer_prefix").map_err(hint)?;
        let references = row.list("outputs").map_err(hint)?;
        // RULER's scorer finds an empty answer in anything.
        if references.iter().any(String::is_empty) {
            return Err(hint(row.wrong("the field `outputs` holds an empty text")));
        }
        let recognised = recognise(input);
        let metric = spec.metric.or(recognised.as_ref().map(|r| r.shape.metric));
        let max_new_tokens = spec.max_new_tokens.or(recognised.as_ref().map(|r| r.shape.max_new_tokens));
        let (Some(metric), Some(max_new_tokens)) = (metric, max_new_tokens) else {
            return Err(spec.unscored(row));
        };
        let question_at = recognised.as_ref().map_or_else(|| last_question(input), |r| r.question_at);
        let prefix_at = match (given_prefix, &recognised) {
            (None, Some(r)) => r.prefix_at,
            _ => input.len(),
        };
        Ok(Self {
            context: input[..question_at].to_owned(),
            question: input[question_at..prefix_at].to_owned(),
            answer_prefix: given_prefix.unwrap_or(&input[prefix_at..]).to_owned(),
            references,
            all_classes: Vec::new(),
            metric,
            also: Vec::new(),
            max_new_tokens,
            rules: PromptRules::default(),
        })
    }

    fn lookup(row: &Row) -> Result<Self, UsageError> {
        let kv_retrieval::Lookup { context, question, answer } = kv_retrieval::lookup(&row.fields, &row.place)?;
        let definition = &kv_retrieval::DEFINITION;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references: vec![answer],
            all_classes: Vec::new(),
            metric: definition.metric,
            also: Vec::new(),
            max_new_tokens: definition.tokens_to_generate,
            rules: PromptRules::default(),
        })
    }

    fn turn(row: &Row, question: usize, spec: &Spec) -> Result<Self, UsageError> {
        let turns::Turn { context, question, references } = turns::turn(&row.fields, question, &row.place)?;
        let (Some(metric), Some(max_new_tokens)) = (spec.metric, spec.max_new_tokens) else {
            return Err(spec.unscored(row));
        };
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references,
            all_classes: Vec::new(),
            metric,
            also: Vec::new(),
            max_new_tokens,
            rules: PromptRules::default(),
        })
    }

    fn line(row: &Row) -> Result<Self, UsageError> {
        let longeval::Lookup { context, question, answer } = longeval::lookup(&row.fields, &row.place)?;
        let definition = &longeval::DEFINITION;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references: vec![answer],
            all_classes: Vec::new(),
            metric: definition.metric,
            also: Vec::new(),
            max_new_tokens: definition.tokens_to_generate,
            rules: PromptRules::default(),
        })
    }

    fn summary(row: &Row) -> Result<Self, UsageError> {
        let summary::Summary { context, question, references } = summary::row(&row.fields, &row.place)?;
        let definition = &summary::DEFINITION;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references,
            all_classes: Vec::new(),
            metric: definition.metric,
            also: definition.also.clone(),
            max_new_tokens: definition.tokens_to_generate,
            rules: PromptRules::default(),
        })
    }

    fn longbench(row: &Row, spec: &Spec) -> Result<Self, UsageError> {
        let named = row.text("dataset")?.map_or_else(|| stem(&spec.path), str::to_owned);
        let set = longbench::Set::find(&named).ok_or_else(|| {
            let known = longbench::Set::all().iter().map(|set| set.name.as_str());
            let unknown = UsageError::unknown("LongBench data set", &named, known);
            UsageError { hint: unknown.hint, ..row.wrong(unknown.what) }
        })?;
        let longbench::Prompt { context, question, answers, all_classes } = set.prompt(row)?;
        Ok(Self {
            context,
            question,
            answer_prefix: String::new(),
            references: answers,
            all_classes,
            metric: set.scoring().metric,
            also: Vec::new(),
            max_new_tokens: set.max_new_tokens,
            rules: set.rules(),
        })
    }

    fn needle(row: &Row) -> Result<Self, UsageError> {
        answers::check_same(&row.fields, &QUESTIONS).map_err(|e| row.at(e))?;
        let references = row.answers()?;
        if references.iter().any(String::is_empty) {
            return Err(row.wrong("the answer is empty"));
        }
        let (context, question) = (row.required("context")?, row.required("question")?);
        for (name, text, other) in [("context", context, question), ("question", question, context)] {
            if is_blank(text) && !is_blank(other) {
                return Err(row.wrong(format!("the field `{name}` is empty or white space")));
            }
        }
        Ok(Self {
            context: format!("{context}\n\n"),
            question: question.to_owned(),
            answer_prefix: row.text("answer_prefix")?.unwrap_or_default().to_owned(),
            references,
            all_classes: Vec::new(),
            metric: Metric::StringMatchPart,
            also: Vec::new(),
            max_new_tokens: NEEDLE_TOKENS,
            rules: PromptRules::default(),
        })
    }
}

const PREFIX_FIELD: &str = "answer_prefix";
/// Fields that other programs put into prompts, or score by; those of RULER and LongBench are not among them.
const UNREAD: [&str; 11] = [
    "choices",
    "examples",
    "few_shot",
    "instruction",
    "instructions",
    "messages",
    "metric",
    "options",
    "prompt_template",
    "system",
    "system_prompt",
];

/// Whether a field says nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => is_blank(text),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Fields of which one holds the answers.
const ANSWERS: [&str; 3] = ["answer", "answers", "outputs"];
/// Fields of which one holds the question.
const QUESTIONS: [&str; 2] = ["question", "input"];

/// Makes sure that all of the prompt is in `input`.
fn no_other_prompt(row: &Row) -> Result<(), UsageError> {
    let Ok(Some(input)) = row.text("input") else { return Ok(()) };
    for name in ["context", "question"] {
        let Ok(Some(text)) = row.text(name) else { continue };
        if !input.contains(text.trim()) {
            let what = format!("the field `{name}` is not part of `input`, which is a whole prompt beside `outputs`");
            return Err(row.wrong(what).hint(
                "a row has input and outputs, or context, question and answer; take out the field that is not meant",
            ));
        }
    }
    Ok(())
}

/// The error for a row that none of the readers is for.
fn unknown_kind(row: &Row) -> UsageError {
    let named: Vec<String> = row.fields.keys().take(FIELDS_NAMED).map(|name| format!("`{name}`")).collect();
    let more = if row.fields.len() > FIELDS_NAMED { " ..." } else { "" };
    row.wrong(format!("no known kind of row has these fields: {}{more}", named.join(", "))).hint(KINDS_HINT)
}

/// Fields that a message names at most.
const FIELDS_NAMED: usize = 8;
const KINDS_HINT: &str = "jsonl: takes rows of RULER (input, outputs), LongBench (context, input, answers), key-value \
                          retrieval (ordered_kv_records, key, value), LongEval's lines (prompt, correct_line, \
                          expected_number), kvpress (context, question, answer, task, max_new_tokens), a needle (context, question, answer), several questions (context, turns) \
                          or a document (document, summary); published sets have tasks of their own: `spattn list tasks`";
const FIELDS_HINT: &str = "expected RULER's fields: input, outputs and, where it is not part of input, answer_prefix";
/// Tokens to generate for a needle, unless given with the path; enough for a sentence.
const NEEDLE_TOKENS: usize = 64;

/// A prompt of a known shape: where its question starts, and where its answer prefix starts if it
/// carries one (else the end).
struct Recognised {
    shape: ruler::Shape,
    question_at: usize,
    prefix_at: usize,
}

/// The shape whose question starts last: a one-shot example has a question of its own before it.
fn recognise(input: &str) -> Option<Recognised> {
    let shapes = ruler::shapes().chain(ruler::reworded_shapes());
    let found = shapes.filter_map(|shape| Some((question_start(input, &shape)?, shape)));
    let (question_at, shape) = found.max_by_key(|(at, _)| *at)?;
    let tail = &input[question_at..];
    let prefix_at = tail.rfind(shape.prefix_mark).filter(|&at| is_prefix(&tail[at..], &shape));
    Some(Recognised { prefix_at: prefix_at.map_or(input.len(), |at| question_at + at), question_at, shape })
}

fn question_start(input: &str, shape: &ruler::Shape) -> Option<usize> {
    let starts = shape.question_marks.iter().filter_map(|mark| input.rfind(&format!("\n{mark}")));
    starts.max().map(|at| at + 1)
}

/// A prefix is the rest of the prompt's last line; that of `qa` is its mark and nothing more, since a
/// question may well contain the mark.
fn is_prefix(rest: &str, shape: &ruler::Shape) -> bool {
    let is_bare = shape.prefix_mark.ends_with(':');
    !rest.contains('\n') && (!is_bare || rest.trim_end() == shape.prefix_mark)
}

/// Where the question of an unknown prompt starts: after the last line break before `Question:`, or
/// else its last line.
fn last_question(input: &str) -> usize {
    let line = input.trim_end().rfind('\n');
    input.rfind(QUESTION_MARK).or(line).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::testing::{Words, example, shared_data};
    use crate::{catalog, resolve};
    use proptest::prelude::*;

    fn file(rows: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, rows).unwrap();
        (dir, format!("jsonl:{}", path.display()))
    }

    fn open(name: &str) -> Result<Box<dyn Task>> {
        Ok(resolve(&[name.to_owned()], &TaskOptions::default())?.remove(0))
    }

    fn usage_error(rows: &str, options: &str) -> UsageError {
        let (_dir, name) = file(rows);
        open(&format!("{name}{options}")).err().expect("an error").downcast().unwrap()
    }

    #[test]
    fn generated_examples_come_back_as_they_were() {
        let without = ["ruler/qa_1", "ruler/qa_2"];
        let made = |t: &TaskInfo| t.name.starts_with("ruler") && !without.contains(&t.name.as_str());
        let tasks: Vec<TaskInfo> = catalog().into_iter().filter(made).collect();
        assert_eq!(tasks.len(), 21);
        for (info, index) in tasks.iter().flat_map(|info| (0..3).map(move |index| (info, index))) {
            let e = example(&info.name, 2048, index);
            let user = e.user_turn();
            let newer = serde_json::json!({"index": 0, "input": user, "outputs": e.references, "answer_prefix": e.answer_prefix});
            let older = serde_json::json!({"index": 9, "input": format!("{user}{}", e.answer_prefix), "outputs": e.references, "others": {}});
            let (_dir, name) = file(&format!("{newer}\n\n{older}\n"));
            let task = open(&name).unwrap();
            assert_eq!((task.name(), task.available(), task.is_sized()), ("jsonl:rows", Some(2), false));
            for index in 0..2 {
                let row = task.example(0, index, 0, &Words).unwrap();
                assert_eq!(
                    (row.context, row.question, row.answer_prefix),
                    (e.context.clone(), e.question.clone(), e.answer_prefix.clone()),
                    "{}",
                    info.name
                );
                assert_eq!(
                    (row.metric, row.max_new_tokens, row.references),
                    (e.metric, e.max_new_tokens, e.references.clone())
                );
                assert_eq!((row.length, row.index, row.source.as_str()), (0, index, "rows.jsonl"));
            }
        }
    }

    #[test]
    fn chat_markup_before_the_prefix_stays_with_the_question() {
        let row = serde_json::json!({"outputs": ["7"], "input": "[INST] A text.\nWhat is the special magic number for a-b mentioned in the provided text? [/INST] The special magic number for a-b mentioned in the provided text is"});
        let (_dir, name) = file(&row.to_string());
        let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!(e.context, "[INST] A text.\n");
        assert!(e.question.ends_with("text? [/INST]"));
        assert_eq!(e.answer_prefix, " The special magic number for a-b mentioned in the provided text is");
    }

    #[test]
    fn a_question_about_answers_is_not_cut() {
        let ask = "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: ";
        let row = |tail: &str| {
            serde_json::json!({"outputs": ["x"], "input": format!("Documents\n\n{ask}What does Answer: mean?{tail}")})
                .to_string()
        };
        let (_dir, name) = file(&format!("{}\n{}", row(""), row(" Answer:")));
        let task = open(&name).unwrap();
        for (index, prefix) in [(0, ""), (1, " Answer:")] {
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!((e.context.as_str(), e.answer_prefix.as_str()), ("Documents\n\n", prefix));
            assert_eq!(e.question, format!("{ask}What does Answer: mean?"));
        }
    }

    #[test]
    fn prompts_of_unknown_shape_need_a_metric() {
        let row = r#"{"input": "Some text.\nQuestion: why?\nThink.", "outputs": ["x", 3]}"#;
        let error = usage_error(row, "");
        assert!(
            error.what.ends_with("rows.jsonl:1: this prompt is of no known task, so its metric is unknown"),
            "{error}"
        );
        assert!(error.hint.unwrap().contains("metric=string_match_all"));
        let (_dir, name) = file(row);
        let task = open(&format!("{name}:metric=string_match_part,max_new_tokens=64")).unwrap();
        let e = task.example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchPart, 64));
        assert_eq!((e.context.as_str(), e.question.as_str()), ("Some text.\n", "Question: why?\nThink."));
        assert_eq!(e.references, ["x", "3"]);
    }

    #[test]
    fn without_any_mark_the_last_line_is_the_question() {
        assert_eq!(last_question("a\nb\nc"), 4);
        assert_eq!(last_question("a\nb\n"), 2);
        assert_eq!(last_question("abc"), 0);
    }

    #[test]
    fn malformed_rows_are_named_with_their_line() {
        let good =
            r#"{"input": "x\nQuestion: What are the 10 most common words in the above list?", "outputs": ["a"]}"#;
        for (bad, what) in [
            ("{", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"outputs": ["a"]}"#, "the field `input` is missing"),
            (r#"{"input": 3, "outputs": ["a"]}"#, "the field `input` is not text"),
            (r#"{"input": "x"}"#, "the field `outputs` is missing"),
            (r#"{"question": "x", "answers": ["y"]}"#, "no known kind of row has these fields: `question`, `answers`"),
            ("{}", "no known kind of row"),
            (r#"{"input": "x", "outputs": "a"}"#, "the field `outputs` is not a list"),
            (r#"{"input": "x", "outputs": []}"#, "the field `outputs` is empty"),
            (r#"{"input": "x", "outputs": [""]}"#, "an empty text"),
            (r#"{"context": "x", "input": "y", "answers": ["z"]}"#, "unknown LongBench data set `rows`"),
            (
                r#"{"context": "x", "input": "y", "answers": "z", "dataset": "qasper"}"#,
                "the field `answers` is not a list",
            ),
            (r#"{"context": "x", "question": "y"}"#, "the field `answers` is missing"),
        ] {
            let error = usage_error(&format!("{good}\n\n{bad}\n"), "");
            assert!(error.what.contains("rows.jsonl:3: ") && error.what.contains(what), "{error}");
        }
        assert!(usage_error("\n", "").what.contains("no row"));
    }

    #[test]
    fn longbench_rows_are_run_with_their_sets_prompt() {
        let row = |set: &str| serde_json::json!({"context": "x", "input": "Q?", "answers": ["A"], "all_classes": ["A", "B"], "dataset": set});
        let (_dir, name) = file(&format!("{}\n{}\n", row("qasper_e"), row("trec")));
        let task = open(&name).unwrap();
        assert!(task.is_cut());
        let (first, second) = (task.example(7, 0, 0, &Words).unwrap(), task.example(7, 1, 0, &Words).unwrap());
        assert!(first.context.starts_with("You are given a scientific article"));
        assert_eq!((first.metric, first.max_new_tokens, first.length), (Metric::QaF1, 128, 7));
        assert_eq!(
            second.user_turn(),
            "Please determine the type of the question below. Here are some examples of questions.\n\nx\nQ?"
        );
        assert!(second.rules.plain && second.rules.first_line && !first.rules.plain);
        assert_eq!((second.score("A\nB"), second.score("A B")), (1.0, 0.5));
    }

    #[test]
    fn a_needle_is_found_in_its_context() {
        let row = r#"{"context": "Hay. The key is 7. Hay.", "question": "What is the key?", "answer": ["7", "seven"], "depth": 50}"#;
        let (_dir, name) = file(row);
        let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!(e.user_turn(), "Hay. The key is 7. Hay.\n\nWhat is the key?");
        assert_eq!((e.metric, e.references.len()), (Metric::StringMatchPart, 2));
    }

    #[test]
    fn answers_of_nothing_are_refused_in_every_kind_of_row() {
        let (any, number) = (":metric=string_match_part,max_new_tokens=8", ":metric=first_number,max_new_tokens=8");
        for (row, options) in [
            (r#"{"input": "x", "outputs": ["\n"]}"#, any),
            (r#"{"input": "x", "outputs": ["", "y"]}"#, any),
            (r#"{"context": "x", "question": "y", "answer": "  "}"#, ""),
            (r#"{"context": "x", "question": "y", "answers": ["z", " "]}"#, ""),
            (
                r#"{"context": "x", "question": "y", "answer": [" "], "answer_prefix": "", "task": "vt", "max_new_tokens": 9}"#,
                "",
            ),
            (r#"{"context": "x", "input": "y", "answers": [""], "dataset": "hotpotqa"}"#, ""),
            (r#"{"context": "x", "input": "y", "answers": [" "], "dataset": "hotpotqa"}"#, any),
            (r#"{"context": "x", "turns": [{"question": "a", "answers": [" "]}]}"#, any),
            (r#"{"ordered_kv_records": [["a", " "]], "key": "a", "value": " "}"#, ""),
            (r#"{"document": "x", "summary": [" "]}"#, ""),
            (r#"{"input": "x", "outputs": ["seven"]}"#, number),
            (r#"{"context": "x", "question": "y", "answer": "A"}"#, ":metric=qa_f1,max_new_tokens=8"),
            (
                r#"{"context": "x", "input": "y", "answers": ["The"], "dataset": "trec", "all_classes": ["The"]}"#,
                ":metric=qa_f1",
            ),
        ] {
            let (_dir, name) = file(&format!("{row}\n"));
            let error: UsageError = open(&format!("{name}{options}")).err().expect(row).downcast().unwrap();
            assert!(error.what.contains("rows.jsonl:1: "), "{row}: {error}");
        }
    }

    #[test]
    fn a_published_row_without_words_is_scored_as_published_and_noted() {
        let row = r#"{"context": "x", "input": "y", "answers": ["The The"], "dataset": "hotpotqa"}"#;
        let (_dir, name) = file(row);
        let task = open(&name).unwrap();
        assert!(task.notes()[0].contains("1 row has answers of which `qa_f1` compares nothing"), "{:?}", task.notes());
        assert_eq!(task.example(0, 0, 0, &Words).unwrap().score("The The"), 0.0);
    }

    #[test]
    fn prompts_of_nothing_are_refused() {
        for row in [
            r#"{"input": "", "outputs": ["x"]}"#,
            r#"{"input": " \n", "outputs": ["x"], "answer_prefix": "It is"}"#,
            r#"{"context": "", "question": " ", "answer": "x"}"#,
            r#"{"context": "", "question": "", "answer": "x", "answer_prefix": "", "task": "vt", "max_new_tokens": 3}"#,
        ] {
            let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
            assert!(error.what.ends_with("rows.jsonl:1: the prompt is empty or white space"), "{error}");
        }
    }

    /// The same prompt in kvpress's three parts is RULER's, byte for byte, and scored alike.
    #[test]
    fn rows_of_kvpress_are_rulers_in_parts() {
        for name in ["ruler/niah_multivalue", "ruler/vt", "ruler/cwe", "ruler/fwe", "ruler/niah_single_2"] {
            let e = example(name, 2048, 1);
            let of_kvpress = serde_json::json!({
                "context": e.context, "question": e.question, "answer_prefix": e.answer_prefix, "answer": e.references,
                "task": name.strip_prefix("ruler/"), "max_new_tokens": e.max_new_tokens, "context_length": 2048,
            });
            let (_dir, path) = file(&of_kvpress.to_string());
            let row = open(&path).unwrap().example(0, 0, 0, &Words).unwrap();
            assert_eq!((row.user_turn(), row.answer_prefix), (e.user_turn(), e.answer_prefix), "{name}");
            assert_eq!((row.metric, row.max_new_tokens, row.references), (e.metric, e.max_new_tokens, e.references));
        }
    }

    #[test]
    fn rows_of_kvpress_are_never_read_as_needles() {
        let row =
            |rest: &str| format!(r#"{{"context": "x", "question": "y", "answer_prefix": "", "answer": ["z"]{rest}}}"#);
        for (rest, what) in [
            (
                r#", "task": "longbook_qa_eng", "max_new_tokens": 40"#,
                "the field `task` is `longbook_qa_eng`, none of RULER's",
            ),
            (r#", "max_new_tokens": 40"#, "the field `task` is missing"),
            (r#", "task": "vt", "max_new_tokens": "40""#, "the field `max_new_tokens` is no whole number"),
        ] {
            let error = usage_error(&row(rest), "");
            assert!(error.what.contains(what) && error.hint.unwrap().contains("metric="), "{}", error.what);
        }
        let (_dir, name) = file(&row(r#", "task": "longbook_qa_eng", "max_new_tokens": 40"#));
        let e = open(&format!("{name}:metric=qa_f1")).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.user_turn().as_str(), e.metric, e.max_new_tokens), ("xy", Metric::QaF1, 40));
        let (_dir, name) = file(&[row(r#", "task": "vt""#), row(r#", "task": "qa_1""#)].join("\n"));
        let task = open(&name).unwrap();
        let of = |index| task.example(0, index, 0, &Words).map(|e| (e.metric, e.max_new_tokens)).unwrap();
        assert_eq!([of(0), of(1)], [(Metric::StringMatchAll, 30), (Metric::StringMatchPart, 32)]);
        assert!(task.notes()[0].contains("rows of 2 tasks (qa_1, vt) are one mean"), "{:?}", task.notes());
    }

    #[test]
    fn rows_of_several_metrics_in_one_mean_are_noted_in_every_kind_of_row() {
        let longbench = |set: &str| {
            format!(r#"{{"context": "x", "input": "y", "answers": ["z"], "all_classes": ["z"], "dataset": "{set}"}}"#)
        };
        let ruler =
            |question: &str| serde_json::json!({"input": format!("x\n{question}"), "outputs": ["z"]}).to_string();
        let vt = ruler("Question: Find all variables that are assigned the value 1 in the text above.");
        let qa = ruler(
            "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nQuestion: a?",
        );
        let needle = r#"{"context": "x", "question": "y", "answer": "z"}"#.to_owned();
        for (rows, note) in [
            (
                [longbench("trec"), longbench("hotpotqa")],
                "rows of 2 tasks (hotpotqa, trec) are one mean, over 2 metrics (classification, qa_f1); a file each",
            ),
            (
                [longbench("qasper"), longbench("hotpotqa")],
                "rows of 2 tasks (hotpotqa, qasper) are one mean; a file each",
            ),
            ([vt.clone(), qa], "rows of 2 metrics (string_match_all, string_match_part) are one mean; a file each"),
            ([needle, vt.clone()], "rows of 2 metrics (string_match_all, string_match_part) are one mean; a file each"),
        ] {
            let (_dir, name) = file(&rows.join("\n"));
            let notes = open(&name).unwrap().notes();
            assert!(notes.len() == 1 && notes[0].contains(note), "{note}: {notes:?}");
            let notes = open(&format!("{name}:metric=rouge_l,max_new_tokens=8")).unwrap().notes();
            assert!(notes.iter().all(|note| !note.contains("metrics")), "{notes:?}");
        }
        let (_dir, name) = file(&[vt.clone(), vt].join("\n"));
        assert_eq!(open(&name).unwrap().notes(), Vec::<String>::new());
    }

    #[test]
    fn rows_that_can_be_read_in_two_ways_are_refused() {
        for (row, what) in [
            (r#"{"context": "x", "question": "y", "answer": "z", "answers": ["w"]}"#, "`answer` and `answers` differ"),
            (r#"{"context": "x", "question": "y", "answer": "z", "outputs": ["w"]}"#, "`answer` and `outputs` differ"),
            (r#"{"input": "x", "outputs": ["z"], "answer": "w"}"#, "`answer` and `outputs` differ"),
            (
                r#"{"context": "x", "input": "y", "answers": ["z"], "answer": "w", "dataset": "hotpotqa"}"#,
                "`answer` and `answers` differ",
            ),
            (r#"{"context": "x", "question": "y", "input": "w", "answers": ["z"]}"#, "`question` and `input` differ"),
            (r#"{"context": "x", "input": "y", "outputs": ["z"]}"#, "the field `context` is not part of `input`"),
            (r#"{"question": "x", "input": "y", "outputs": ["z"]}"#, "the field `question` is not part of `input`"),
        ] {
            let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
            assert!(error.what.contains("rows.jsonl:1: ") && error.what.contains(what), "{error}");
            assert!(error.hint.is_some());
        }
        for row in [
            r#"{"context": "x", "question": "y", "answer": "z", "answers": ["z"]}"#,
            r#"{"input": "x y", "outputs": ["z"], "answer": "z", "context": "x"}"#,
        ] {
            let (_dir, name) = file(row);
            assert!(open(&format!("{name}:metric=string_match_all,max_new_tokens=8")).is_ok(), "{row}");
        }
    }

    #[test]
    fn an_answer_prefix_is_put_behind_a_prompt_once() {
        let ask = "x\nWhat is the special magic number for a-b mentioned in the provided text?";
        let prefix = " The special magic number for a-b mentioned in the provided text is";
        let row = |input: String, prefix: &str| {
            serde_json::json!({"input": input, "outputs": ["7"], "answer_prefix": prefix}).to_string()
        };
        let error = usage_error(&row(format!("{ask}{prefix}"), prefix), "");
        assert!(error.what.ends_with("the prompt ends with the `answer_prefix` already, and it would be there twice"));
        for (input, prefix) in [(ask.to_owned(), prefix), (ask.to_owned(), " "), (format!("{ask}{prefix}"), "")] {
            let (_dir, name) = file(&row(input, prefix));
            assert!(open(&name).is_ok(), "{prefix}");
        }
    }

    #[test]
    fn fields_that_belong_to_other_programs_prompts_are_noted() {
        let row = |rest: &str| format!(r#"{{"context": "x", "question": "y", "answer": "z"{rest}}}"#);
        for (rest, named) in [
            (r#", "options": ["z", "w"]"#, Some("`options`")),
            (r#", "instruction": "Be brief.", "system": "You help.""#, Some("`instruction`, `system`")),
            (r#", "options": [], "instruction": null, "system": " ", "id": 3, "depth": 50"#, None),
            (r#", "answer_prefix": "It is""#, None),
        ] {
            let (_dir, name) = file(&row(rest));
            let notes = open(&name).unwrap().notes();
            match named {
                None => assert_eq!(notes, Vec::<String>::new()),
                Some(named) => assert!(notes[0].contains(&format!("of some rows {named} is not read")), "{notes:?}"),
            }
        }
        let longbench =
            r#"{"context": "x", "input": "y", "answers": ["z"], "dataset": "qasper", "answer_prefix": "It is"}"#;
        let (_dir, name) = file(longbench);
        assert!(open(&name).unwrap().notes()[0].contains("`answer_prefix` is not read"));
    }

    /// What NVIDIA's `scripts/data/synthetic/*.py` write, field by field: niah.py, then variable_tracking.py and the others.
    #[test]
    fn rows_as_rulers_own_generator_writes_them_run_unchanged() {
        for name in ["ruler/niah_multivalue", "ruler/vt", "ruler/cwe", "ruler/fwe", "ruler/niah_single_2"] {
            let e = example(name, 2048, 1);
            let mut row = serde_json::json!({
                "index": 17, "input": e.user_turn(), "outputs": e.references, "length": 2001, "length_w_model_temp": 2009,
                "answer_prefix": e.answer_prefix,
            });
            if name.contains("niah") {
                row["token_position_answer"] = 1044.into();
            }
            let (_dir, path) = file(&format!("{row}\n"));
            let task = open(&path).unwrap();
            let read = task.example(0, 0, 0, &Words).unwrap();
            assert_eq!((read.user_turn(), read.answer_prefix), (e.user_turn(), e.answer_prefix), "{name}");
            assert_eq!((read.metric, read.references, task.notes().len()), (e.metric, e.references, 0), "{name}");
        }
    }

    #[test]
    fn fields_that_are_null_are_said_to_be() {
        for (row, what) in [
            (r#"{"context": "x", "question": "y", "answer": null}"#, "the field `answer` is null"),
            (r#"{"context": "x", "question": "y", "answers": null}"#, "the field `answers` is null"),
            (r#"{"context": null, "question": "y", "answer": "z"}"#, "the field `context` is null"),
            (r#"{"input": "x", "outputs": null}"#, "the field `outputs` is null"),
            (r#"{"context": "x", "input": null, "answers": ["z"], "dataset": "qasper"}"#, "the field `input` is null"),
        ] {
            let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
            assert!(error.what.ends_with(what), "{error}");
        }
    }

    #[test]
    fn a_list_in_a_text_is_no_answer_in_any_kind_of_row() {
        for row in [
            r#"{"context": "x", "question": "y", "answer": "['a', 'b']"}"#,
            r#"{"context": "x", "question": "y", "answers": "['a' 'b']"}"#,
            r#"{"context": "x", "question": "y", "answer": "['a']", "answer_prefix": "", "task": "vt"}"#,
            r#"{"context": "x", "turns": [{"question": "a", "answer": "[\"a\"]"}]}"#,
            r#"{"document": "x", "summary": "['a', 'b']"}"#,
        ] {
            let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
            assert!(error.what.contains("an answer is a list that was written as a text"), "{error}");
        }
    }

    #[test]
    fn rows_of_half_a_prompt_are_refused() {
        for (row, what) in [
            (r#"{"context": " ", "question": "y", "answer": "z"}"#, "the field `context` is empty or white space"),
            (r#"{"context": "x", "question": "", "answer": "z"}"#, "the field `question` is empty or white space"),
            (r#"{"context": "x", "input": " ", "answers": ["z"], "dataset": "qasper"}"#, "the field `input` is empty"),
            (r#"{"context": "", "input": "y", "answers": ["z"], "dataset": "lcc"}"#, "the field `context` is empty"),
            (r#"{"context": "x", "turns": [{"question": " ", "answer": "a"}]}"#, "there is no question"),
        ] {
            let error = usage_error(row, ":metric=string_match_all,max_new_tokens=8");
            assert!(error.what.contains(what), "{error}");
        }
    }

    #[test]
    fn classes_are_told_apart_and_an_answer_is_one() {
        let row =
            |classes: &str| format!(r#"{{"context": "x", "question": "y", "answer": "z", "all_classes": {classes}}}"#);
        for (classes, what) in [
            ("[]", "the field `all_classes` is empty"),
            ("[\"z\", \"\"]", "a name in `all_classes` is empty"),
            ("[\"z\", \"z\"]", "`all_classes` names \"z\" twice"),
            ("[\"w\"]", "no answer is one of `all_classes`"),
        ] {
            let error = usage_error(&row(classes), ":metric=classification");
            assert!(error.what.contains(what), "{error}");
        }
    }

    #[test]
    fn a_path_says_whether_rows_are_in_a_chat_template() {
        let (_dir, name) = file(r#"{"context": "x", "question": "y", "answer": "z"}"#);
        let rules = |options: &str| open(&format!("{name}{options}")).unwrap().example(0, 0, 0, &Words).unwrap().rules;
        for (options, plain, looked_at) in
            [("", false, true), (":chat=false", true, false), (":chat=true", false, false)]
        {
            let rules = rules(options);
            assert_eq!((rules.plain, rules.may_be_templated), (plain, looked_at), "{options}");
        }
        assert!(usage_error("{}", ":chat=no").what.contains("chat takes true or false, not `no`"));
    }

    #[test]
    fn published_rows_have_answers_that_their_metric_compares() {
        let Some(data) = shared_data() else { return };
        let mut files = 0;
        for folder in ["longbench", "ruler_ready/4096", "kv_retrieval", "longeval_lines"] {
            for entry in std::fs::read_dir(data.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|ending| ending == "jsonl") {
                    let task = open(&format!("jsonl:{}", path.display())).unwrap_or_else(|e| panic!("{e:#}"));
                    assert_eq!(task.notes(), Vec::<String>::new(), "{}", path.display());
                    files += 1;
                }
            }
        }
        assert!(files >= 16 + 1 + 2 + 3, "{files}");
    }

    #[test]
    fn malformed_rows_can_be_left_out_and_are_noted() {
        let (_dir, name) =
            file("{\"input\": \"x\\nWhat is the special magic number for a?\", \"outputs\": [\"a\"]}\n{}\n");
        let options = TaskOptions { skip_bad: true, ..TaskOptions::default() };
        let task = resolve(std::slice::from_ref(&name), &options).unwrap().remove(0);
        assert_eq!(task.available(), Some(1));
        assert!(task.notes()[0].contains("1 malformed row is left out (line 2)"), "{:?}", task.notes());
        assert!(open(&name).is_err());
    }

    #[test]
    fn wrong_options_and_paths_are_usage_errors() {
        let row = r#"{"input": "x", "outputs": ["a"]}"#;
        assert_eq!(usage_error(row, ":metrik=x").hint.as_deref(), Some("did you mean `metric`?"));
        assert!(usage_error(row, ":metric=nonsense").what.contains("unknown metric `nonsense`"));
        assert!(usage_error(row, ":max_new_tokens=0").what.contains("a number above 0"));
        let error: UsageError = open("jsonl:/nowhere.jsonl").err().unwrap().downcast().unwrap();
        assert!(error.what.contains("/nowhere.jsonl"));
    }

    #[test]
    fn files_recorded_under_one_name_are_refused() {
        let row = r#"{"input": "x\nWhat is the special magic number for a?", "outputs": ["a"]}"#;
        let ((_one, first), (_two, second)) = (file(row), file(row));
        let error = resolve(&[first, second], &TaskOptions::default()).err().unwrap();
        assert_eq!(error.to_string(), "two files would both be recorded as `jsonl:rows`");
    }

    proptest! {
        /// Whatever a row holds, reading it is no panic.
        #[test]
        fn any_row_can_be_read(
            names in proptest::sample::subsequence(vec![
                "input", "outputs", "answer_prefix", "context", "question", "answer", "answers", "dataset", "all_classes",
                "ordered_kv_records", "key", "value", "length", "turns", "prompt", "correct_line", "expected_number", "report",
                "summary", "task", "max_new_tokens",
            ], 0..21),
            values in proptest::collection::vec(proptest::sample::select(vec![
                "null", "1", "-0.5", "\"\"", "\"x\"", "\"trec\"", "\"\\u00e9\\nQuestion: a?\"", "[]", "[\"x\", 1]", "[[\"x\", \"x\"]]", "{}", "true",
                "[{\"question\": \"q\", \"answer\": 1}]", "\"vt\"",
            ]), 21),
            options in proptest::sample::select(vec!["", ":metric=classification,max_new_tokens=1", ":metric=qa_f1_zh,max_new_tokens=4"]),
        ) {
            let fields: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value}")).collect();
            let (_dir, name) = file(&format!("{{{}}}", fields.join(", ")));
            if let Ok(task) = open(&format!("{name}{options}")) {
                let e = task.example(0, 0, 0, &Words).unwrap();
                let score = e.score("x\n1 \u{e9} Question");
                prop_assert!((0.0..=1.0).contains(&score), "{}", score);
            }
        }

        /// Whatever a prompt looks like, it is run byte for byte.
        #[test]
        fn no_byte_of_a_prompt_is_lost(
            parts in proptest::collection::vec(0usize..8, 0..12),
            tail in ".{0,20}",
        ) {
            let pieces = [
                "\n", " Answer:", "Question: ", "\nQuestion: Find all variables that are assigned the value 1",
                " The special magic number", "\nWhat is the special magic number for x?", "é\u{2028}", "{context}",
            ];
            let input: String = parts.iter().map(|&i| pieces[i]).chain([tail.as_str()]).collect();
            prop_assume!(!is_blank(&input));
            let row = serde_json::json!({"input": input, "outputs": ["a"]});
            let (_dir, name) = file(&row.to_string());
            let task = open(&format!("{name}:metric=string_match_all,max_new_tokens=8")).unwrap();
            let e = task.example(0, 0, 0, &Words).unwrap();
            prop_assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), input);
        }
    }

    #[test]
    fn key_value_rows_are_run_as_published() {
        let Some(data) = shared_data() else { return };
        let path = data.join("kv_retrieval/kv-retrieval-75_keys.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        assert_eq!(task.available(), Some(100));
        let e = task.example(0, 99, 0, &Words).unwrap();
        assert_eq!(e.context.matches("\": \"").count(), 75);
        let key = e.question.split('"').nth(1).unwrap();
        assert!(e.context.contains(&format!("\"{key}\": \"{}\"", e.references[0])));
        assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 100));
    }

    #[test]
    fn lines_of_longeval_are_run_byte_for_byte() {
        let Some(data) = shared_data() else { return };
        let path = data.join("longeval_lines/200_lines.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            let row: Value = serde_json::from_str(line).unwrap();
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!(e.user_turn(), row["prompt"].as_str().unwrap());
            assert!(e.question.starts_with("Now the record is over.") && e.context.contains(&e.references[0]));
            assert_eq!((e.metric, e.max_new_tokens, e.answer_prefix.as_str()), (Metric::LastNumber, 100, ""));
        }
    }

    #[test]
    fn questions_on_one_context_are_examples_that_say_so() {
        let rows = [
            r#"{"context": "One.", "turns": [{"question": "a?", "answers": ["1"]}, {"question": "b?", "answers": ["2"]}]}"#,
            r#"{"context": "Two.", "multi_turns": [{"input": "c?", "answer": "3"}]}"#,
            r#"{"context": "One.", "turns": [{"question": "d?", "answers": ["4"]}]}"#,
        ];
        let (_dir, name) = file(&rows.join("\n"));
        assert!(open(&name).err().unwrap().to_string().contains("rows.jsonl:1: this prompt is of no known task"));
        let task = open(&format!("{name}:metric=qa_f1,max_new_tokens=8")).unwrap();
        assert_eq!((task.available(), task.cells()), (Some(4), 1));
        assert_eq!([0, 1, 2, 3].map(|i| task.context_of(i)), [0, 0, 2, 0]);
        let turns: Vec<String> = (0..4).map(|i| task.example(0, i, 0, &Words).unwrap().user_turn()).collect();
        assert_eq!(turns, ["One.\n\na?", "One.\n\nb?", "Two.\n\nc?", "One.\n\nd?"]);
    }

    #[test]
    fn summaries_are_scored_by_three_kinds_of_rouge() {
        let (_dir, name) = file(r#"{"report": "A long text.", "summary": "A text."}"#);
        let e = open(&name).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.also.as_slice()), (Metric::RougeL, &[Metric::Rouge1, Metric::Rouge2][..]));
        let e = open(&format!("{name}:metric=rouge_1,max_new_tokens=2048")).unwrap().example(0, 0, 0, &Words).unwrap();
        assert_eq!((e.metric, e.max_new_tokens), (Metric::Rouge1, 2048));
        assert_eq!(e.also, [Metric::RougeL, Metric::Rouge2]);
    }

    #[test]
    fn a_row_with_a_malformed_question_is_left_out_as_a_whole() {
        let rows = [
            r#"{"context": "One.", "turns": [{"question": "a?", "answers": ["1"]}, {"question": "b?"}]}"#,
            r#"{"context": "Two.", "turns": [{"question": "c?", "answers": ["3"]}, {"question": "d?", "answers": ["4"]}]}"#,
        ];
        let (_dir, name) = file(&rows.join("\n"));
        let name = format!("{name}:metric=qa_f1,max_new_tokens=8");
        assert!(open(&name).is_err());
        let options = TaskOptions { skip_bad: true, ..TaskOptions::default() };
        let task = resolve(&[name], &options).unwrap().remove(0);
        assert_eq!((task.available(), task.context_of(1)), (Some(2), 0));
        assert_eq!(task.example(0, 1, 0, &Words).unwrap().user_turn(), "Two.\n\nd?");
        assert!(task.example(0, 2, 0, &Words).is_err());
    }

    #[test]
    fn a_published_file_is_run_byte_for_byte() {
        let Some(data) = shared_data() else { return };
        let path = data.join("ruler_ready/4096/niah_multikey_3.jsonl");
        let task = open(&format!("jsonl:{}", path.display())).unwrap();
        assert_eq!((task.name(), task.available()), ("jsonl:niah_multikey_3", Some(100)));
        for (index, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            let row: Value = serde_json::from_str(line).unwrap();
            let e = task.example(0, index, 0, &Words).unwrap();
            assert_eq!(format!("{}{}{}", e.context, e.question, e.answer_prefix), row["input"].as_str().unwrap());
            assert!(e.question.starts_with("What is the special magic uuid for ") && e.question.ends_with("text?"));
            assert!(e.answer_prefix.starts_with(" The special magic uuid for ") && e.answer_prefix.ends_with(" is"));
            assert_eq!((e.metric, e.max_new_tokens), (Metric::StringMatchAll, 128));
        }
    }
}
