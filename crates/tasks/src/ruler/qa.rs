//! Question answering over documents (RULER, section 3 "Question answering"; `scripts/data/synthetic/qa.py`).
//!
//! `qa_1` and `qa_2` ask questions of SQuAD and HotpotQA. The context has the documents with the answer, then other paragraphs of the
//! same article, then any others, all shuffled. RULER's generator adds ten documents at a time. Here they are added one by one, and
//! the last distractor is chosen to fill the length. A question is replaced by another one, which the record notes, if its own
//! documents are too long for the length, or if they leave a gap that no document fills. The synthetic stand-ins are in `qa_synth`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::base::{Base, Generator, shuffled_order};
use super::fit::{self, Draft, Fitted, Request, Units};
use super::numbered_documents::NumberedDocuments;
use super::qa_synth;
use super::template::{RulerDefinition, TaskDefinition};
use crate::rows::Malformed;
use crate::{Positions, TaskOptions, assets, digest, text};
use spattn_base::error::{UsageError, in_plain_words};

/// This base task.
pub const BASE: Base = Base { name: "qa", file: include_str!("../../tasks/ruler/qa.toml"), make };

/// Streams of random draws, one for each part of an example.
mod part {
    pub const DISTRACTORS: u64 = 0;
    pub const ORDER: u64 = 1;
}

/// The most questions tried in place of one whose own documents do not fit.
const REPLACEMENTS: usize = 8;
/// The most documents tried as the last distractor.
const CHOICES: usize = 5;
/// The share of the length that may stay empty without a search for a better last distractor.
const CLOSE_ENOUGH: f64 = 0.01;

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "dataset", rename_all = "snake_case")]
enum Parameters {
    Squad,
    Hotpotqa,
    Synthetic { hops: usize },
}

fn make(definition: &RulerDefinition, task: &TaskDefinition, options: &TaskOptions) -> Result<Box<dyn Generator>> {
    let prompt = NumberedDocuments::new(definition)?;
    let collection = match task.read()? {
        Parameters::Synthetic { hops } => return qa_synth::make(prompt, definition, hops),
        Parameters::Squad => match assets::squad(options) {
            Some(path) => read_squad(&path, options.skip_bad)?,
            None => {
                return Err(needs_data("ruler/qa_1", "squad/dev-v2.0.json", "ruler/qa_synth").into());
            }
        },
        Parameters::Hotpotqa => match assets::hotpotqa(options) {
            Some(path) => read_hotpotqa(&path, options.skip_bad)?,
            None => {
                return Err(needs_data("ruler/qa_2", "hotpotqa/*.json", "ruler/qa_synth_hop2").into());
            }
        },
    };
    Ok(Box::new(Documents { prompt, collection }))
}

fn needs_data(task: &str, file: &str, stand_in: &str) -> UsageError {
    UsageError::new(format!("task `{task}` needs {file}, which is not in the data folder"))
        .hint(format!("give --data DIR, a folder that holds {file}, or run `{stand_in}`"))
}

/// A question with its documents, as indices into the collection.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Question {
    text: String,
    answers: Vec<String>,
    /// The documents that hold the answer (HotpotQA: its ten paragraphs).
    own: Vec<usize>,
    /// The documents that follow: paragraphs of the same article.
    related: Vec<usize>,
}

/// All questions in file order, and all distinct documents in alphabetical order, as in RULER.
#[derive(Debug, Hash)]
struct Collection {
    label: String,
    note: Option<String>,
    documents: Vec<String>,
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct SquadFile {
    data: Vec<SquadArticle>,
}

#[derive(Deserialize)]
struct SquadArticle {
    paragraphs: Vec<SquadParagraph>,
}

#[derive(Deserialize)]
struct SquadParagraph {
    context: String,
    qas: Vec<Checked<SquadQuestion>>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    #[serde(default)]
    is_impossible: bool,
    answers: Vec<SquadAnswer>,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

/// A question, or the reason why it cannot be read.
struct Checked<T>(Result<T, String>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Checked<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        Ok(Self(serde_json::from_value(value).map_err(|e| in_plain_words(&e.to_string()))))
    }
}

#[derive(Deserialize)]
struct HotpotRow {
    question: String,
    answer: String,
    context: Vec<(String, Vec<String>)>,
}

fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    serde_json::from_str(&text::read(path)?).map_err(|e| {
        let place = format!("{}:{}:{}", path.display(), e.line(), e.column());
        UsageError::new(format!("{place}: not {what}: {}", in_plain_words(&e.to_string()))).into()
    })
}

fn label(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// The distinct documents in alphabetical order, each with its index.
fn index_documents<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut index: BTreeMap<&str, usize> = texts.map(|text| (text, 0)).collect();
    for (i, position) in index.values_mut().enumerate() {
        *position = i;
    }
    index
}

fn read_squad(path: &Path, skip_bad: bool) -> Result<Collection> {
    let file: SquadFile = read_json(path, "a SQuAD 2.0 file")?;
    let paragraphs = || file.data.iter().flat_map(|article| &article.paragraphs);
    let index = index_documents(paragraphs().map(|p| p.context.as_str()));
    let mut questions = Sorted::new(path);
    for article in &file.data {
        let mut of_article: Vec<usize> = article.paragraphs.iter().map(|p| index[p.context.as_str()]).collect();
        of_article.sort_unstable();
        of_article.dedup();
        for paragraph in &article.paragraphs {
            let own = index[paragraph.context.as_str()];
            let related: Vec<usize> = of_article.iter().copied().filter(|&i| i != own).collect();
            for question in &paragraph.qas {
                let asked = |q: &SquadQuestion| Question {
                    text: q.question.clone(),
                    answers: q.answers.iter().map(|a| a.text.clone()).collect(),
                    own: vec![own],
                    related: related.clone(),
                };
                questions.push(question.0.as_ref().map(|q| (!q.is_impossible).then(|| asked(q))));
            }
        }
    }
    questions.collection(index.into_keys().map(str::to_owned).collect(), skip_bad)
}

fn read_hotpotqa(path: &Path, skip_bad: bool) -> Result<Collection> {
    let rows: Vec<Checked<HotpotRow>> = read_json(path, "a HotpotQA file")?;
    let paragraphs = |row: &HotpotRow| -> Vec<String> {
        row.context.iter().map(|(title, sentences)| format!("{title}\n{}", sentences.concat())).collect()
    };
    let texts: Vec<Vec<String>> = rows.iter().map(|row| row.0.as_ref().map(paragraphs).unwrap_or_default()).collect();
    let index = index_documents(texts.iter().flatten().map(String::as_str));
    let mut questions = Sorted::new(path);
    for (row, texts) in rows.iter().zip(&texts) {
        let asked = |row: &HotpotRow| Question {
            text: row.question.clone(),
            answers: vec![row.answer.clone()],
            own: texts.iter().map(|t| index[t.as_str()]).collect(),
            related: Vec::new(),
        };
        questions.push(row.0.as_ref().map(|row| Some(asked(row))));
    }
    questions.collection(index.into_keys().map(str::to_owned).collect(), skip_bad)
}

/// The usable and the malformed questions of a file.
struct Sorted {
    file: String,
    label: String,
    read: usize,
    good: Vec<Question>,
    bad: Malformed,
}

impl Sorted {
    fn new(path: &Path) -> Self {
        let (file, label) = (path.display().to_string(), label(path));
        Self { bad: Malformed::none(file.clone(), "question"), file, label, read: 0, good: Vec::new() }
    }

    /// Adds the next question of the file: `None` if it is skipped because it has no answer, an error if it cannot be read.
    fn push(&mut self, question: Result<Option<Question>, &String>) {
        self.read += 1;
        let wrong = |what: &str| UsageError::new(format!("{}, question {}: {what}", self.file, self.read));
        match question {
            Ok(None) => {}
            // RULER's scorer finds a blank answer in any prediction.
            Ok(Some(q))
                if q.answers.is_empty()
                    || q.answers.iter().any(|answer| answer.trim().is_empty())
                    || q.own.is_empty() =>
            {
                let error = wrong(&format!("no answer or no document for “{}”", q.text));
                self.bad.push(self.read, error);
            }
            Ok(Some(question)) => self.good.push(question),
            Err(why) => {
                let error = wrong(why);
                self.bad.push(self.read, error);
            }
        }
    }

    fn collection(self, documents: Vec<String>, skip_bad: bool) -> Result<Collection> {
        if self.good.is_empty() && self.bad.is_empty() {
            return Err(UsageError::new(format!("{}: the file has no questions", self.file)).into());
        }
        self.bad.judge(self.good.len(), skip_bad)?;
        Ok(Collection { label: self.label, note: self.bad.note(), documents, questions: self.good })
    }
}

struct Documents {
    prompt: NumberedDocuments,
    collection: Collection,
}

impl Generator for Documents {
    fn source(&self) -> String {
        format!("qa={}", self.collection.label)
    }

    fn data(&self) -> String {
        digest::of(&self.collection)
    }

    fn available(&self) -> Option<usize> {
        Some(self.collection.questions.len())
    }

    fn notes(&self) -> Vec<String> {
        self.collection.note.iter().cloned().collect()
    }

    /// The question at the example's index, as published.
    fn generate(&self, request: &Request) -> Result<Draft> {
        let count = self.collection.questions.len();
        if request.index >= count {
            let e =
                UsageError::new(format!("task `{}` has {count} questions, none at {}", request.task, request.index));
            return Err(e.hint("ask for fewer samples (--samples)").into());
        }
        let mut fullest: Option<Fitted> = None;
        for number in 0..=REPLACEMENTS {
            let at = replacement(request.index, number, count);
            let question = &self.collection.questions[at];
            let alone = request.tokens(&self.draft(question, &question.own, request))?;
            if alone > request.length {
                continue;
            }
            let mut fitted = self.about(question, request)?;
            fitted.draft.note = (at != request.index).then(|| format!("question={at}"));
            if request.is_filled(fitted.tokens) {
                return Ok(fitted.draft);
            }
            if fullest.as_ref().is_none_or(|f| f.tokens < fitted.tokens) {
                fullest = Some(fitted);
            }
        }
        match fullest {
            Some(fitted) => Ok(fitted.draft),
            // No question fits, so the error for the requested one says how much too long it is.
            None => Ok(self.about(&self.collection.questions[request.index], request)?.draft),
        }
    }
}

/// The index of the question for try number `try_number`. Steps of about a golden section of the file give neighbouring questions
/// different replacements.
fn replacement(index: usize, try_number: usize, count: usize) -> usize {
    (index + try_number * (count * 382 / 1000).max(1)) % count
}

impl Documents {
    fn about(&self, question: &Question, request: &Request) -> Result<Fitted> {
        let ranked = self.ranked(question, request);
        let units = Units { least: question.own.len(), most: ranked.len(), probe: 3 };
        let fitted = fit::largest(request, units, |n| Ok(self.draft(question, &ranked[..n], request)))?;
        let fitted = self.top_up(question, &ranked, fitted, request)?;
        if !request.is_filled(fitted.tokens) && fitted.units == ranked.len() {
            return Err(request.runs_out(fitted.tokens).into());
        }
        Ok(fitted)
    }

    /// The question's own documents, then related ones, then all others; the latter two groups are in random order.
    fn ranked(&self, question: &Question, request: &Request) -> Vec<usize> {
        let mut draw = request.draw(0, part::DISTRACTORS);
        let mut related = question.related.clone();
        let mut is_other = vec![true; self.collection.documents.len()];
        for &i in question.own.iter().chain(&related) {
            is_other[i] = false;
        }
        let mut others: Vec<usize> = (0..is_other.len()).filter(|&i| is_other[i]).collect();
        draw.shuffle(&mut related);
        draw.shuffle(&mut others);
        [question.own.clone(), related, others].concat()
    }

    fn draft(&self, question: &Question, chosen: &[usize], request: &Request) -> Draft {
        let all = self.collection.documents.len();
        let before: Vec<usize> = if chosen.len() == all && request.positions == Positions::Published {
            // As published: if all documents are used, they are shuffled from alphabetical order.
            (0..all).collect()
        } else {
            chosen.to_vec()
        };
        let order = shuffled_order(before.len(), request.positions, &mut request.draw(0, part::ORDER));
        let texts = order.iter().map(|&i| self.collection.documents[before[i]].as_str());
        self.prompt.draft(texts, &question.text, &question.answers)
    }

    /// Uses the tokens that whole documents leave free: adds a short unused document, or replaces the last distractor by a longer one.
    /// Related documents are tried first.
    fn top_up(&self, question: &Question, ranked: &[usize], fitted: Fitted, request: &Request) -> Result<Fitted> {
        let used = fitted.units;
        let own = question.own.len();
        let related_end = own + question.related.len();
        let mut best = fitted;
        for unused in [&ranked[used..related_end.max(used)], &ranked[used..]] {
            for keep in [used, used - 1] {
                if keep < own || request.length - best.tokens <= (CLOSE_ENOUGH * request.length as f64) as usize {
                    continue;
                }
                best = self.best_last(question, &ranked[..keep], unused, best, request)?;
            }
            if request.is_filled(best.tokens) {
                break;
            }
        }
        Ok(best)
    }

    /// `kept` plus the document of `unused` that fills the length best, if that is better than `best`; else `best`.
    fn best_last(
        &self,
        question: &Question,
        kept: &[usize],
        unused: &[usize],
        best: Fitted,
        request: &Request,
    ) -> Result<Fitted> {
        let length_of = |i: usize| self.collection.documents[i].len();
        let base = self.draft(question, kept, request);
        let bytes = base.context.len() + base.question.len() + base.answer_prefix.len();
        let base_tokens = request.tokens(&base)?;
        let bytes_per_token = bytes as f64 / (base_tokens - request.max_new_tokens).max(1) as f64;
        let mut by_length: Vec<usize> = unused.to_vec();
        by_length.sort_by_key(|&i| (length_of(i), i));
        let free = (request.length.saturating_sub(base_tokens)) as f64 * bytes_per_token;
        let mut end = by_length.partition_point(|&i| length_of(i) as f64 <= free);
        let mut best = best;
        for _ in 0..CHOICES {
            let Some(&candidate) = end.checked_sub(1).and_then(|i| by_length.get(i)) else {
                break;
            };
            let chosen = [kept, &[candidate]].concat();
            let draft = self.draft(question, &chosen, request);
            let tokens = request.tokens(&draft)?;
            if tokens <= request.length {
                if tokens > best.tokens {
                    best = Fitted { draft, units: chosen.len(), tokens };
                }
                break;
            }
            // The estimated bytes in excess, by which the next candidate has to be shorter.
            let over = ((tokens - request.length) as f64 * bytes_per_token).max(1.0);
            let wanted = length_of(candidate) as f64 - over;
            end = by_length[..end - 1].partition_point(|&i| length_of(i) as f64 <= wanted);
        }
        Ok(best)
    }
}

/// The index at which RULER's fixed shuffle puts the first document of a list of `count`.
#[cfg(test)]
fn published_place(count: usize) -> usize {
    crate::ruler::published::order(count).iter().position(|&i| i == 0).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::testing::{Subwords, Words, shared_data, task};
    use crate::{Example, PromptCounter, Task};

    /// A small SQuAD file: two articles of 30 paragraphs of different lengths.
    fn squad_folder() -> tempfile::TempDir {
        let article = |name: &str| {
            let paragraphs: Vec<serde_json::Value> = (0..30)
                .map(|i| {
                    let filler = format!("Some words about {name} follow here. ").repeat(3 + i);
                    serde_json::json!({"context": format!("{name} paragraph {i} hides gold{name}{i}. {filler}"),
                        "qas": [
                            {"question": format!("What does {name} {i} hide?"), "id": "x", "is_impossible": false,
                             "answers": [{"text": format!("gold{name}{i}"), "answer_start": 3}, {"text": "gold", "answer_start": 3}]},
                            {"question": "Never?", "id": "y", "is_impossible": true, "answers": []}]})
                })
                .collect();
            serde_json::json!({"title": name, "paragraphs": paragraphs})
        };
        let dir = tempfile::tempdir().unwrap();
        let file = serde_json::json!({"version": "v2.0", "data": [article("Alpha"), article("Beta")]});
        std::fs::write(dir.path().join("dev-v2.0.json"), file.to_string()).unwrap();
        dir
    }

    fn options(folder: &Path, positions: Positions) -> TaskOptions {
        TaskOptions { data: Some(folder.to_owned()), positions, ..TaskOptions::default() }
    }

    fn squad(positions: Positions) -> (tempfile::TempDir, Box<dyn Task>) {
        let dir = squad_folder();
        let task = task("ruler/qa_1", &options(dir.path(), positions));
        (dir, task)
    }

    fn documents(e: &Example) -> Vec<&str> {
        e.context.split("Document ").skip(1).collect()
    }

    fn gold_place(e: &Example) -> usize {
        documents(e).iter().position(|d| d.contains(&format!("{}.", e.references[0]))).unwrap()
    }

    #[test]
    fn answerable_questions_in_file_order_over_documents_of_their_article() {
        let (_dir, task) = squad(Positions::Varied);
        assert_eq!(task.available(), Some(60));
        let e = task.example(1024, 3, 1, &Words).unwrap();
        assert!(e.question.ends_with("\n\nQuestion: What does Alpha 3 hide?"), "{}", e.question);
        assert_eq!(e.references, ["goldAlpha3", "gold"]);
        assert_eq!(documents(&e).iter().filter(|d| d.contains("goldAlpha3.")).count(), 1);
        assert!(documents(&e).iter().all(|d| d.contains("Alpha")), "distractors of the same article come first");
        assert_eq!(e.source, "qa=dev-v2.0.json");
    }

    #[test]
    fn documents_fill_the_length_and_never_exceed_it() {
        let (_dir, task) = squad(Positions::Varied);
        for counter in [&Words as &dyn PromptCounter, &Subwords] {
            for length in [512, 1024, 2048, 4096] {
                for index in 0..12 {
                    let e = task.example(length, index, 9, counter).unwrap();
                    let total = counter.prompt_tokens(&e.user_turn(), &e.answer_prefix).unwrap() + 32;
                    assert!(total <= length && total * 100 >= length * 95, "{total} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_set_too_small_for_the_length_is_an_error() {
        let (_dir, task) = squad(Positions::Varied);
        let error = task.example(131_072, 0, 1, &Words).unwrap_err();
        assert!(error.to_string().contains("cannot fill 131072 tokens"), "{error}");
        assert!(task.example(1024, 60, 1, &Words).unwrap_err().to_string().contains("60 questions"));
    }

    #[test]
    fn a_question_that_does_not_fit_is_replaced_on_record() {
        let (_dir, task) = squad(Positions::Varied);
        // Paragraph 29 alone has more than 200 words.
        let e = task.example(230, 29, 1, &Words).unwrap();
        assert!(e.source.starts_with("qa=dev-v2.0.json question="), "{}", e.source);
        assert!(task.example(64, 0, 1, &Words).unwrap_err().to_string().contains("cannot fit 64 tokens"));
    }

    #[test]
    fn published_positions_put_the_answer_at_one_depth() {
        let (_dir, task) = squad(Positions::Published);
        for index in 0..10 {
            let e = task.example(2048, index, 5, &Words).unwrap();
            assert_eq!(gold_place(&e), published_place(documents(&e).len()));
        }
        let (_dir, task) = squad(Positions::Varied);
        let mut places: Vec<usize> = (0..10).map(|i| gold_place(&task.example(2048, i, 5, &Words).unwrap())).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 3, "{places:?}");
    }

    #[test]
    fn malformed_questions_are_counted_or_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let made = |name: &str, skip_bad| {
            let options = TaskOptions { skip_bad, ..options(dir.path(), Positions::Varied) };
            crate::resolve(&[name.to_owned()], &options).map(|mut tasks| tasks.remove(0))
        };
        let squad = r#"{"question": "a?", "answers": [{"text": "x"}]}, {"question": "b?", "answers": []},
            {"question": "never?", "is_impossible": true, "answers": []}, {"question": 3, "answers": [{"text": "x"}]},
            {"question": "c?", "answers": [{"text": ""}]}, {"question": "d?", "answers": [{"text": "x"}]}"#;
        put("dev-v2.0.json", &format!(r#"{{"data": [{{"paragraphs": [{{"context": "x", "qas": [{squad}]}}]}}]}}"#));
        let hotpotqa = r#"[{"question": "a?", "answer": "x", "context": [["T", ["x"]]]}, {"question": "b?"},
            {"question": "c?", "answer": "x", "context": []}]"#;
        put("hotpot_dev_distractor_v1.json", &format!("\u{feff}{hotpotqa}"));
        for (name, first, others, left) in [
            (
                "ruler/qa_1",
                "question 2: no answer or no document",
                "2 more of 5 rows are malformed (questions 4, 5)",
                2,
            ),
            ("ruler/qa_2", "question 2: missing field `answer`", "1 more of 3 rows is malformed (question 3)", 1),
        ] {
            let error = made(name, false).err().unwrap().to_string();
            assert!(error.contains(first) && error.contains(others), "{error}");
            let task = made(name, true).unwrap();
            assert_eq!(task.available(), Some(left));
            assert!(task.notes()[0].contains("malformed rows are left out (questions "), "{:?}", task.notes());
        }
    }

    #[test]
    fn malformed_files_are_named_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("dev-v2.0.json"), "{\n\"data\": [\n{]}").unwrap();
        let error = crate::resolve(&["ruler/qa_1".to_owned()], &options(dir.path(), Positions::Varied)).err().unwrap();
        assert!(error.to_string().contains("dev-v2.0.json:3:"), "{error}");
        std::fs::write(dir.path().join("dev-v2.0.json"), r#"{"data": []}"#).unwrap();
        let error = crate::resolve(&["ruler/qa_1".to_owned()], &options(dir.path(), Positions::Varied)).err().unwrap();
        assert!(error.to_string().contains("no question"), "{error}");
    }

    #[test]
    fn the_real_sets_fill_too() {
        let Some(data) = shared_data() else { return };
        for (name, lengths) in [("ruler/qa_1", [512, 1024, 2048, 8192]), ("ruler/qa_2", [2048, 4096, 8192, 16_384])] {
            let task = task(name, &options(&data, Positions::Varied));
            for length in lengths {
                for index in 0..6 {
                    let e = task.example(length, index, 3, &Subwords).unwrap();
                    let total = Subwords.prompt_tokens(&e.user_turn(), &e.answer_prefix).unwrap() + 32;
                    assert!(total <= length && total * 100 >= length * 95, "{name}: {total} of {length}");
                    if name == "ruler/qa_1" {
                        assert!(e.references.iter().all(|r| e.context.contains(r.as_str())));
                    }
                }
            }
        }
    }

    #[test]
    fn hotpot_questions_bring_their_ten_documents() {
        let Some(data) = shared_data() else { return };
        let task = task("ruler/qa_2", &options(&data, Positions::Varied));
        assert_eq!(task.available(), Some(60));
        let e = task.example(4096, 0, 3, &Words).unwrap();
        assert!(documents(&e).len() >= 10);
        assert!(task.example(512, 0, 3, &Words).unwrap_err().to_string().contains("cannot fit 512 tokens"));
    }
}
