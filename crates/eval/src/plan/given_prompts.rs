//! Checks the prompts of files before anything runs. A prompt that the model cannot read would end the run midway.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use rayon::prelude::*;

use super::planner::{LENGTH_HINT, Planner, RunPlan, ShardedCell, TaskLength};
use crate::examples::example_input::ExampleInput;
use crate::examples::observer::{RunObserver, SkippedWork};
use crate::examples::truncate::TruncatedExample;
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::error::UsageError;
use spattn_tasks::Task;
use spattn_tasks::likelihood::Passage;

const FILE_HINT: &str = "leave the row out, or run it anyway with --allow-extrapolation";
const SKIP_HINT: &str = "--skip-bad skips such rows";
/// The most examples that one message names.
const PLACES_NAMED: usize = 10;

/// What was found about the examples of a task at a length.
struct Measured {
    /// The examples that the model cannot read, each with the reason, by index.
    unreadable: Vec<(usize, UsageError)>,
    /// The tokens of the longest other example, with its answer.
    longest: usize,
}

impl Planner<'_> {
    /// Removes the rows that the model cannot read from a plan: those that are longer than its context, leave no tokens, or already
    /// contain a chat template. With `--skip-bad`, the plan's notes count them; otherwise `watch` gets them as failures.
    ///
    /// # Errors
    /// The errors of `watch`.
    pub(crate) fn check_given(&self, plan: &mut RunPlan, watch: &mut dyn RunObserver) -> Result<()> {
        let RunPlan { cells, notes, longest_given: longest, .. } = plan;
        let mut emptied = Vec::new();
        for cell in cells.iter_mut().filter(|cell| self.tasks[cell.place.task].is_given()) {
            let Measured { unreadable, longest: of_cell } =
                self.measure(cell.place, cell.contexts.iter().flatten().collect());
            *longest = of_cell.max(*longest);
            let Some((_, first)) = unreadable.first() else { continue };
            let (count, all) = (unreadable.len(), cell.examples());
            let places = self.places(cell.place, &unreadable);
            if self.config.skip_bad && count < all {
                let (rows, are) =
                    if count == 1 { ("1 row".to_owned(), "is") } else { (format!("{count} rows"), "are") };
                let what = format!("{rows} that {} cannot read {are} left out", self.model.id);
                notes.push(format!("{}: {what} ({places}); the first: {first}", self.name_of(cell.place)));
            } else {
                let others = if count > 1 {
                    format!("; {} more of {all} rows as well ({places})", count - 1)
                } else {
                    String::new()
                };
                let skip = (!self.config.skip_bad && count < all).then(|| SKIP_HINT.to_owned());
                let hints: Vec<String> = first.hint.clone().into_iter().chain(skip).collect();
                let error = UsageError::new(format!("{}{others}", first.what)).hint(hints.join("; "));
                watch.failed(SkippedWork { what: self.name_of(cell.place), error: error.into() })?;
            }
            let left_out: HashSet<usize> = unreadable.into_iter().map(|(index, _)| index).collect();
            cell.contexts.leave_out(&left_out);
            emptied.extend((count == all).then_some(cell.place));
        }
        cells.retain(|cell| !emptied.contains(&cell.place));
        Ok(())
    }

    /// [`dealt`](Planner::dealt) without the rows that would be removed: what all shards together will run.
    ///
    /// # Errors
    /// If files cannot be read.
    pub fn dealt_to_run(&self) -> Result<Vec<ShardedCell>> {
        let mut cells = self.dealt()?;
        let is_given = |cell: &&mut ShardedCell| self.tasks[cell.place.task].is_given() && cell.failure().is_none();
        for cell in cells.iter_mut().filter(is_given).filter(|_| self.config.skip_bad) {
            let Measured { unreadable, .. } = self.measure(cell.place, cell.listed());
            cell.leave_out(&unreadable.into_iter().map(|(index, _)| index).collect());
        }
        Ok(cells)
    }

    /// Makes the examples of a task at a length, and finds those that the model cannot read.
    fn measure(&self, of: TaskLength, mut indices: Vec<usize>) -> Measured {
        indices.sort_unstable();
        let longest = AtomicUsize::new(0);
        let why = |index: usize| {
            let error = match self.given(of, index) {
                Ok(tokens) => {
                    longest.fetch_max(tokens, Ordering::Relaxed);
                    return None;
                }
                Err(error) => error.downcast::<UsageError>().ok()?,
            };
            let place = self.place_of(of, index);
            Some((index, UsageError { what: format!("{place}: {}", error.what), ..error }))
        };
        // An error that is not the row's fault, such as a failing disk, is left to the run.
        let unreadable = indices.into_par_iter().filter_map(why).collect();
        Measured { unreadable, longest: longest.into_inner() }
    }

    /// Makes an example of a file and checks it against the model. Returns the number of its tokens with those of its answer.
    fn given(&self, place: TaskLength, index: usize) -> Result<usize> {
        let task = self.tasks[place.task].as_ref();
        let material = self.make_example(task, place.length, index, self.config.seeds[0])?;
        self.check_fits(task, &material)?;
        Ok(match &material {
            ExampleInput::Prompt(fitted) => fitted.prompt.ids.len() + fitted.example.max_new_tokens,
            ExampleInput::Passage(passage) => passage_tokens(passage),
        })
    }

    fn place_of(&self, place: TaskLength, index: usize) -> String {
        self.tasks[place.task].place_of(index).unwrap_or_else(|| format!("example {index}"))
    }

    /// Names the places of rows: `rows.jsonl:3, rows.jsonl:5 ...`.
    fn places(&self, place: TaskLength, unreadable: &[(usize, UsageError)]) -> String {
        let named = unreadable.iter().take(PLACES_NAMED).map(|(index, _)| self.place_of(place, *index));
        let more = if unreadable.len() > PLACES_NAMED { " ..." } else { "" };
        format!("{}{more}", named.collect::<Vec<_>>().join(", "))
    }

    /// The most tokens of any prompt with its answer.
    pub(crate) fn most_tokens(&self) -> usize {
        self.longest().min(MOST_TOKENS)
    }

    /// Checks that an example fits the model's vocabulary and context.
    pub(crate) fn check_fits(&self, task: &dyn Task, material: &ExampleInput) -> Result<(), UsageError> {
        let hint = if task.is_sized() { LENGTH_HINT } else { FILE_HINT };
        match material {
            ExampleInput::Prompt(fitted) => {
                let TruncatedExample { example, prompt, .. } = &**fitted;
                self.model.check_tokens(&prompt.ids)?;
                let context = self.model.dimensions.config().context_limit();
                // An example that was cut to a length beyond the context was checked before.
                if example.length > context && !task.is_sized() {
                    return Ok(());
                }
                self.check_length(prompt.ids.len() + example.max_new_tokens, "the prompt with its answer", hint)
            }
            ExampleInput::Passage(passage) => {
                self.model.check_tokens(&passage.prompt)?;
                passage.continuations.iter().try_for_each(|c| self.model.check_tokens(&c.tokens))?;
                self.check_length(passage_tokens(passage), "the text", hint)
            }
        }
    }
}

/// The number of tokens of a passage with its longest continuation.
pub(crate) fn passage_tokens(passage: &Passage) -> usize {
    passage.prompt.len() + passage.continuations.iter().map(|c| c.tokens.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::run_config::RunConfig;
    use crate::config::settings::Settings;
    use crate::plan::contexts::Shard;
    use spattn_model::OpenModel;
    use spattn_model::source::ModelSource;
    use spattn_model::texts::TextFile;
    use spattn_model::tokenizer::{Tokenizer, TokenizerOptions};
    use spattn_tasks::{TaskOptions, resolve};

    #[derive(Default)]
    struct Told(Vec<String>);

    impl RunObserver for Told {
        fn progress(&mut self, _: crate::examples::observer::RunProgress<'_>) {}

        fn failed(&mut self, failure: SkippedWork) -> Result<()> {
            let hint = failure.error.downcast_ref::<UsageError>().and_then(|e| e.hint.clone()).unwrap_or_default();
            self.0.push(format!("{}: {} ({hint})", failure.what, failure.error));
            Ok(())
        }
    }

    fn builtin() -> OpenModel {
        OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap()
    }

    /// The built-in model with a changed tokenizer or chat template.
    fn edited(tokenizer: impl FnOnce(&mut serde_json::Value), template: Option<&'static str>) -> OpenModel {
        let mut model = builtin();
        let mut texts = ModelSource::Builtin.resolve_texts().unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&texts.tokenizer.text).unwrap();
        tokenizer(&mut json);
        texts.tokenizer.text = json.to_string().into();
        texts.chat_template =
            template.map(|text| TextFile { name: "chat_template.jinja".to_owned(), text: text.into() });
        model.tokenizer = Tokenizer::load(&texts, &texts.config().unwrap(), TokenizerOptions::default()).unwrap();
        model
    }

    fn row(input: &str) -> String {
        json!({"input": input, "outputs": ["x"]}).to_string()
    }

    /// Plans rows of a file. Returns the examples of the only cell, the plan's notes, and the failures.
    fn planned(
        rows: &[String],
        options: &str,
        settings: &str,
        model: &OpenModel,
    ) -> (Vec<usize>, Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, rows.join("\n")).unwrap();
        let task = format!("jsonl:{}:metric=qa_f1,max_new_tokens=4{options}", path.display());
        let text = format!("methods = ['topk:k=16']\nsamples = 100\n{settings}");
        let settings = Settings { tasks: Some(vec![task]), ..Settings::parse(&text, "test").unwrap() };
        let config = RunConfig::resolve_single(settings).unwrap();
        let tasks =
            resolve(&config.tasks, &TaskOptions { skip_bad: config.skip_bad, ..TaskOptions::default() }).unwrap();
        let planner =
            Planner { model, config: &config, tasks: &tasks, data: None, shard: Shard::WHOLE, is_elsewhere: false };
        let mut told = Told::default();
        let plan = planner.plan(&mut told).unwrap();
        let examples = plan.cells.iter().flat_map(|cell| cell.contexts.iter().flatten()).collect();
        let bare = |lines: Vec<String>| lines.into_iter().map(|line| without_folder(&line, dir.path())).collect();
        (examples, bare(plan.notes), bare(told.0))
    }

    fn without_folder(text: &str, folder: &Path) -> String {
        text.replace(&format!("{}/", folder.display()), "")
    }

    fn mixed() -> Vec<String> {
        // 34,000 words are more than the 32,768 tokens that the model reads.
        let long = |words: usize| row(&"house ".repeat(words));
        vec![row("What is red?"), long(34_000), row("What is blue?"), long(45_000)]
    }

    #[test]
    fn rows_that_are_too_long_are_told_before_anything_is_run() {
        let (examples, notes, told) = planned(&mixed(), "", "", &builtin());
        assert_eq!((examples, notes), (vec![0, 2], vec![]), "a sweep goes on with the others");
        let [only] = &told[..] else { panic!("{told:?}") };
        assert!(only.starts_with("builtin, jsonl:rows: rows.jsonl:2: the prompt with its answer, "), "{only}");
        assert!(only.contains("is beyond the context of builtin (32768); 1 more of 4 rows as well"), "{only}");
        assert!(only.contains("(rows.jsonl:2, rows.jsonl:4)") && only.contains("--skip-bad skips"), "{only}");
    }

    #[test]
    fn rows_that_are_too_long_are_left_out_and_counted_if_asked_for() {
        let (examples, notes, told) = planned(&mixed(), "", "skip_bad = true", &builtin());
        assert_eq!((examples, told), (vec![0, 2], vec![]));
        assert!(
            notes[0].starts_with(
                "builtin, jsonl:rows: 2 rows that builtin cannot read are left out (rows.jsonl:2, rows.jsonl:4)"
            ),
            "{notes:?}"
        );
        let (examples, notes, told) = planned(&mixed()[1..2], "", "skip_bad = true", &builtin());
        assert_eq!((examples.len(), notes.len(), told.len()), (0, 0, 1), "nothing is left: {told:?}");
        let (examples, _, told) = planned(&mixed(), "", "allow_extrapolation = true", &builtin());
        assert_eq!((examples, told), (vec![0, 1, 2, 3], vec![]));
    }

    #[test]
    fn a_row_far_beyond_the_context_is_refused_without_splitting_all_of_it() {
        let start = std::time::Instant::now();
        let (_, _, told) = planned(&[row(&"house by the sea ".repeat(1 << 20))], "", "", &builtin());
        assert!(
            told[0].contains("a text of 17825792 bytes, more than 32768 tokens, is beyond the context"),
            "{told:?}"
        );
        // Tokenizing the whole text would take most of a minute.
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }

    #[test]
    fn prompts_of_which_no_token_is_left_are_refused() {
        let remove = |json: &mut serde_json::Value| {
            json["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "[a-zA-Z? ]+"}, "content": ""});
        };
        for template in [None, Some("{{ '<turn>' + messages[0]['content'] + '</turn>' }}")] {
            let model = edited(remove, template);
            let (examples, _, told) = planned(&[row("What is red?"), row("4711")], "", "", &model);
            assert_eq!(examples, [1]);
            assert!(told[0].contains("rows.jsonl:1: the prompt has no tokens"), "{told:?}");
        }
    }

    const CHATML: &str = "{{ '<|im_start|>user\n' + messages[0]['content'] + '<|im_end|>\n<|im_start|>assistant\n' }}";

    #[test]
    fn a_prompt_in_a_chat_template_is_not_put_into_another_unasked() {
        let rows = [row("<|im_start|>user\nWhat is red?<|im_end|>\n<|im_start|>assistant\n"), row("What is blue?")];
        let model = edited(|_| (), Some(CHATML));
        let (examples, _, told) = planned(&rows, "", "", &model);
        assert_eq!(examples, [1]);
        assert!(
            told[0].contains("rows.jsonl:1: the prompt is in a chat template already (`<|im_start|>`)"),
            "{told:?}"
        );
        assert!(told[0].contains("jsonl:FILE:chat=false") && told[0].contains("--no-chat"), "{told:?}");
        for options in [",chat=false", ",chat=true"] {
            assert_eq!(planned(&rows, options, "", &model).0, [0, 1], "{options}");
        }
        assert_eq!(planned(&rows, "", "", &builtin()).0, [0, 1], "a model without a template reads text");
    }
}
