//! Turns a row of any known kind into a prompt.

use serde_json::Value;

use super::ruler_prompt::{last_question, recognise};
use super::spec::{FileSpec, Layout};
use crate::metrics::Metric;
use crate::rows::Row;
use crate::{Cut, PromptRules, answers, kv_retrieval, kvpress, longbench, longeval, summary, turns};
use spattn_base::error::UsageError;
use spattn_base::text::is_blank;

/// One question of a row as a prompt with its answers; the fields are those of [`Example`](crate::Example).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowPrompt {
    pub context: String,
    pub question: String,
    pub answer_prefix: String,
    pub references: Vec<String>,
    pub all_classes: Vec<String>,
    pub metric: Metric,
    pub also: Vec<Metric>,
    pub max_new_tokens: usize,
    pub rules: PromptRules,
}

impl RowPrompt {
    /// A prompt without answer prefix and classes, to which the default rules apply.
    fn new(context: String, question: String, references: Vec<String>, metric: Metric, max_new_tokens: usize) -> Self {
        Self {
            context,
            question,
            answer_prefix: String::new(),
            references,
            all_classes: Vec::new(),
            metric,
            also: Vec::new(),
            max_new_tokens,
            rules: PromptRules::default(),
        }
    }

    /// The prompt of the question numbered `question` (from 0) of a row; most rows have only one.
    ///
    /// # Errors
    /// A [`UsageError`] that names the row if it is of no known kind, a field is missing or malformed, or the answers cannot
    /// be scored.
    pub fn of_row(row: &Row, question: usize, spec: &FileSpec) -> Result<Self, UsageError> {
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
        // LongBench's rows are scored as LongBench does, unless the user asks for another metric.
        let is_published = spec.metric.is_none() && prompt.rules.cut != Cut::Nothing;
        if let Some(metric) = spec.metric.filter(|metric| *metric != prompt.metric) {
            // The user's metric replaces the first one; the others are still recorded.
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
            let what = format!("the prompt ends with the text of `{PREFIX_FIELD}` already, which would be repeated");
            return Err(row
                .wrong(what)
                .hint(format!("remove it from one of them, for example with \"{PREFIX_FIELD}\": \"\"")));
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

    fn kvpress(row: &Row, spec: &FileSpec) -> Result<Self, UsageError> {
        answers::check_same(&row.fields, &QUESTIONS).map_err(|e| row.at(e))?;
        let kvpress::Question { context, question, answer_prefix, references } = kvpress::question(row)?;
        let hint = |e: UsageError| UsageError { hint: e.hint.or_else(|| Some(spec.scoring_hint())), ..e };
        let known = kvpress::known(row)?;
        let metric = match (spec.metric, &known) {
            (Some(metric), _) => metric,
            (None, Some(known)) => known.metric,
            (None, None) => return Err(hint(kvpress::unscored(row)?)),
        };
        let max_new_tokens =
            spec.max_new_tokens.map_or_else(|| kvpress::max_new_tokens(row, known.as_ref()), Ok).map_err(hint)?;
        let is_rulers = known.as_ref().is_some_and(|known| known.is_rulers);
        let rules = PromptRules {
            first_line: known.as_ref().is_some_and(|known| known.first_line),
            breaks_before_answer: match spec.layout {
                Some(layout) => layout == Layout::Kvpress,
                None => !is_rulers,
            },
            ..PromptRules::default()
        };
        let also = known.map_or_else(Vec::new, |known| known.also);
        Ok(Self { answer_prefix, also, rules, ..Self::new(context, question, references, metric, max_new_tokens) })
    }

    fn ruler(row: &Row, spec: &FileSpec) -> Result<Self, UsageError> {
        no_other_prompt(row)?;
        let hint = |e: UsageError| UsageError { hint: e.hint.or_else(|| Some(FIELDS_HINT.to_owned())), ..e };
        let input = row.required("input").map_err(hint)?;
        let given_prefix = row.text("answer_prefix").map_err(hint)?;
        let references = row.list("outputs").map_err(hint)?;
        // RULER's scorer finds an empty answer in any prediction.
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
        let prompt = Self::new(
            input[..question_at].to_owned(),
            input[question_at..prefix_at].to_owned(),
            references,
            metric,
            max_new_tokens,
        );
        Ok(Self { answer_prefix: given_prefix.unwrap_or(&input[prefix_at..]).to_owned(), ..prompt })
    }

    fn lookup(row: &Row) -> Result<Self, UsageError> {
        let kv_retrieval::KeyValueQuestion { context, question, answer } =
            kv_retrieval::question_of_row(&row.fields, &row.place)?;
        let definition = &kv_retrieval::DEFINITION;
        Ok(Self::new(context, question, vec![answer], definition.metric, definition.tokens_to_generate))
    }

    fn turn(row: &Row, question: usize, spec: &FileSpec) -> Result<Self, UsageError> {
        let turns::Turn { context, question, references } = turns::turn(&row.fields, question, &row.place)?;
        let (Some(metric), Some(max_new_tokens)) = (spec.metric, spec.max_new_tokens) else {
            return Err(spec.unscored(row));
        };
        Ok(Self::new(context, question, references, metric, max_new_tokens))
    }

    fn line(row: &Row) -> Result<Self, UsageError> {
        let longeval::LineQuestion { context, question, answer } = longeval::question_of_row(&row.fields, &row.place)?;
        let definition = &longeval::DEFINITION;
        Ok(Self::new(context, question, vec![answer], definition.metric, definition.tokens_to_generate))
    }

    fn summary(row: &Row) -> Result<Self, UsageError> {
        let summary::SummaryQuestion { context, question, references } =
            summary::question_of_row(&row.fields, &row.place)?;
        let definition = &summary::DEFINITION;
        let prompt = Self::new(context, question, references, definition.metric, definition.tokens_to_generate);
        Ok(Self { also: definition.also.clone(), ..prompt })
    }

    fn longbench(row: &Row, spec: &FileSpec) -> Result<Self, UsageError> {
        let named = row.text("dataset")?.map_or_else(|| spec.stem(), str::to_owned);
        let set = longbench::Set::find(&named).ok_or_else(|| {
            let known = longbench::Set::all().iter().map(|set| set.name.as_str());
            let unknown = UsageError::unknown("LongBench data set", &named, known);
            UsageError { hint: unknown.hint, ..row.wrong(unknown.what) }
        })?;
        let longbench::Prompt { context, question, answers, all_classes } = set.prompt(row)?;
        let prompt = Self::new(context, question, answers, set.scoring().metric, set.max_new_tokens);
        Ok(Self { all_classes, rules: set.rules(), ..prompt })
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
        let prompt = Self::new(
            format!("{context}\n\n"),
            question.to_owned(),
            references,
            Metric::StringMatchPart,
            NEEDLE_TOKENS,
        );
        Ok(Self { answer_prefix: row.text("answer_prefix")?.unwrap_or_default().to_owned(), ..prompt })
    }
}

pub(super) const PREFIX_FIELD: &str = "answer_prefix";
/// Fields that other programs put into prompts or use for scoring, but that are not read here. A note mentions them.
pub(super) const UNREAD: [&str; 11] = [
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

/// Whether the value of a field is null, blank or an empty list.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => is_blank(text),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The fields that may hold the answers; a row has one of them.
const ANSWERS: [&str; 3] = ["answer", "answers", "outputs"];
/// The fields that may hold the question; a row has one of them.
const QUESTIONS: [&str; 2] = ["question", "input"];

/// Checks that `context` and `question`, if a row has them besides `input`, are parts of `input`.
fn no_other_prompt(row: &Row) -> Result<(), UsageError> {
    let Ok(Some(input)) = row.text("input") else { return Ok(()) };
    for name in ["context", "question"] {
        let Ok(Some(text)) = row.text(name) else { continue };
        if !input.contains(text.trim()) {
            let what = format!(
                "the field `{name}` is not part of `input`; in a row with `outputs`, `input` is the whole prompt"
            );
            return Err(row.wrong(what).hint(
                "a row has input and outputs, or context, question and answer; remove the field that does not belong",
            ));
        }
    }
    Ok(())
}

/// The error for a row of no known kind.
fn unknown_kind(row: &Row) -> UsageError {
    let named: Vec<String> = row.fields.keys().take(FIELDS_NAMED).map(|name| format!("`{name}`")).collect();
    let more = if row.fields.len() > FIELDS_NAMED { " ..." } else { "" };
    row.wrong(format!("no known kind of row has these fields: {}{more}", named.join(", "))).hint(KINDS_HINT)
}

/// The most fields that a message names.
const FIELDS_NAMED: usize = 8;
const KINDS_HINT: &str = "jsonl: takes rows of RULER (input, outputs), LongBench (context, input, answers), key-value \
                          retrieval (ordered_kv_records, key, value), LongEval's lines (prompt, correct_line, \
                          expected_number), kvpress (context, question, answer, task, max_new_tokens), a needle (context, question, answer), several questions (context, turns) \
                          or a document (document, summary); published sets have tasks of their own: `spattn list tasks`";
const FIELDS_HINT: &str = "expected RULER's fields: input, outputs and, where it is not part of input, answer_prefix";
/// Tokens to generate for a needle unless the user gives a number; enough for a sentence.
const NEEDLE_TOKENS: usize = 64;
