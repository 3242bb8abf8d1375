use std::collections::HashSet;
use std::path::PathBuf;

use super::*;
use crate::ruler::NeedleKind;
use crate::{TaskOptions, resolve};

/// The built-in model's tokenizer. None of its tokens has text before white space.
struct BuiltinEncoder(tokenizers::Tokenizer);

impl BuiltinEncoder {
    fn ids(&self, text: &str) -> Vec<u32> {
        self.0.encode_fast(text, false).unwrap().get_ids().to_vec()
    }
}

impl Encoder for BuiltinEncoder {
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        ids.extend(self.ids(text));
    }

    fn count(&self, text: &str) -> usize {
        self.ids(text).len()
    }

    fn bos(&self) -> u32 {
        self.0.token_to_id("<s>").unwrap()
    }

    fn eos(&self) -> u32 {
        self.0.token_to_id("</s>").unwrap()
    }
}

fn encoder() -> BuiltinEncoder {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/builtin/tokenizer.json");
    BuiltinEncoder(tokenizers::Tokenizer::from_file(file).unwrap())
}

fn books() -> Books {
    let draw = &mut Draw::new(5, 0);
    let book = |draw: &mut Draw| {
        let sentences: Vec<String> =
            (0..4_000).map(|_| crate::text::grammar::Grammar::house().sentence(draw)).collect();
        sentences.chunks(2).map(|lines| lines.join("\n")).collect::<Vec<_>>().join("\n\n")
    };
    Books::new(vec![book(draw), book(draw)])
}

fn trainer() -> Trainer {
    Trainer::new(books()).unwrap()
}

/// The answers of a row, each with the prompt before it.
fn asked(row: &TrainingRow) -> Vec<(String, String)> {
    let mut before = String::new();
    let mut all = Vec::new();
    for segment in &row.segments {
        if segment.ends {
            all.push((before.clone(), segment.text.clone()));
        }
        before.push_str(&segment.text);
    }
    all
}

#[test]
fn no_row_shares_a_seed_with_an_evaluated_example() {
    // Seeds differ because no task's name starts with the domain, so different names are hashed.
    let all = ["ruler", "ruler/qa_synth", "ruler/qa_synth_hop2"].map(str::to_owned);
    for task in resolve(&all, &TaskOptions::default()).unwrap() {
        assert!(!task.name().starts_with(TRAINING_DOMAIN));
    }
    assert!(crate::catalog().iter().all(|t| !t.name.starts_with(TRAINING_DOMAIN)));
    for (name, _) in &FILE.task_examples.tasks {
        let task = crate::ruler::for_training(name, &TaskOptions::default()).unwrap();
        assert_eq!(task.name(), format!("{TRAINING_DOMAIN}{name}"));
        for (length, index) in [(1024, 0), (4096, 7)] {
            let seeds: HashSet<u64> = [name.as_str(), task.name(), TRAINING_DOMAIN]
                .iter()
                .map(|t| example_seed(0, t, length, index))
                .collect();
            assert_eq!(seeds.len(), 3);
        }
    }
}

#[test]
fn rows_depend_on_their_number_alone() {
    let (trainer, encoder) = (trainer(), encoder());
    for index in 0..40 {
        let again = self::trainer().row(3, index, 1024, None, &self::encoder()).unwrap();
        assert_eq!(trainer.row(3, index, 1024, None, &encoder).unwrap(), again);
    }
    let first = trainer.row(3, 0, 1024, Some("niah"), &encoder).unwrap();
    assert_ne!(first, trainer.row(4, 0, 1024, Some("niah"), &encoder).unwrap());
    assert_ne!(first, trainer.row(3, 1, 1024, Some("niah"), &encoder).unwrap());
}

#[test]
fn rows_fit_and_their_weights_mark_the_answers() {
    let (trainer, encoder) = (trainer(), encoder());
    let families: Vec<String> = trainer.families().to_vec();
    for family in &families {
        for length in [256, 512, 1024, 4096] {
            let from = FILE.family.iter().find(|f| f.name == *family).map_or(FILE.task_examples.from, |f| f.from);
            if length < from {
                continue;
            }
            for index in 0..12 {
                let row = trainer.row(1, index, length, Some(family), &encoder).unwrap();
                let whole = TrainingRow { length: usize::MAX >> 8, ..row.clone() };
                let (ids, classes) = TrainingRow { length: 4 * length, ..whole }.encode(&encoder);
                assert!(ids.len() <= length, "{family} at {length}, row {index}: {} tokens", ids.len());
                assert_eq!(ids.len(), classes.len());
                assert_eq!((ids[0], classes[0]), (encoder.bos(), 0));
                // The tokens of each answer class are those of the answers, with the end token after those
                // that end.
                for class in [Class::Answer, Class::Count] {
                    let marked: Vec<u32> =
                        ids.iter().zip(&classes).filter(|(_, c)| **c == class as u8).map(|(id, _)| *id).collect();
                    let mut expected = Vec::new();
                    for segment in row.segments.iter().filter(|s| s.class == class) {
                        encoder.encode(&segment.text, &mut expected);
                        expected.extend(segment.ends.then_some(encoder.eos()));
                    }
                    assert_eq!(marked, expected);
                }
                let ends = row.segments.iter().filter(|s| s.ends).count();
                assert_eq!(ids.iter().filter(|id| **id == encoder.eos()).count(), ends);
                let has_answers = !["copy", "books", HELD_OUT].contains(&family.as_str());
                assert!(!has_answers || ends > 0 || length < 512, "{family} at {length}, row {index}: no answer");
            }
        }
    }
}

#[test]
fn most_of_a_row_is_used() {
    let (trainer, encoder) = (trainer(), encoder());
    for length in [512, 2048, 8192] {
        let used: usize =
            (0..40).map(|i| trainer.row(2, i, length, None, &encoder).unwrap().encode(&encoder).0.len()).sum();
        assert!(used * 100 > 40 * length * 80, "{used} of {} at {length}", 40 * length);
    }
}

#[test]
fn needles_are_answered_with_what_the_text_says() {
    let (trainer, encoder) = (trainer(), encoder());
    let mut questions = 0;
    for index in 0..60 {
        let row = trainer.row(1, index, 2048, Some("niah"), &encoder).unwrap();
        let context = &row.segments[0].text;
        if !context.contains("One of the special magic") {
            continue;
        }
        for (before, answer) in asked(&row) {
            questions += 1;
            let question = before.rsplit("What ").next().unwrap();
            let query = question.split(" for ").nth(1).unwrap().split(" mentioned").next().unwrap();
            let said = answer.trim_start().trim_end_matches('.');
            let values = |key: &str| -> Vec<String> {
                let start = format!(" for {key} is: ");
                context.split(&start).skip(1).map(|t| t.split('.').next().unwrap().to_owned()).collect()
            };
            let expected = if query.contains(", and ") {
                let keys = query.split(", ").map(|k| k.trim_start_matches("and "));
                keys.map(|key| format!("{key}: {}", values(key).join("?"))).collect::<Vec<_>>().join(", ")
            } else {
                values(query).join(", ")
            };
            assert_eq!(said, expected);
        }
    }
    assert!(questions > 100, "{questions}");
}

#[test]
fn counted_answers_are_the_most_frequent_words() {
    let (trainer, encoder) = (trainer(), encoder());
    let mut prose = String::new();
    for base in ["cwe", "fwe"] {
        let (definition, _) = crate::ruler::definition(base).unwrap();
        prose +=
            &format!("{} {} {}", definition.context_template, definition.question_template, definition.answer_prefix);
    }
    for wording in FILE.wording.common.iter().chain(&FILE.wording.frequent) {
        prose += &format!("{} {} words", wording.intro, wording.ask);
    }
    prose += &FILE.wording.words.join(" ");
    for (family, length) in [("cwe", 512), ("cwe", 4096), ("fwe", 512), ("fwe", 4096)] {
        for index in 0..20 {
            let row = trainer.row(1, index, length, Some(family), &encoder).unwrap();
            let (before, answer) = asked(&row).pop().unwrap();
            let answers: HashSet<&str> = answer
                .split([' ', ',', '.'])
                .filter(|w| !w.is_empty() && !w.bytes().all(|b| b.is_ascii_digit()))
                .collect();
            let mut counts = std::collections::HashMap::new();
            let words = before.split_whitespace().map(|w| w.trim_end_matches(','));
            for word in words.filter(|w| w.bytes().all(|b| b.is_ascii_lowercase())) {
                *counts.entry(word).or_insert(0) += 1;
            }
            let least = answers.iter().map(|w| counts[w]).min().unwrap();
            // Only words of the instructions may occur more often.
            for (word, count) in counts.iter().filter(|(w, n)| **n >= least && !answers.contains(**w)) {
                assert!(prose.contains(word), "{family} {length} {index}: {word} {count}, {least}");
            }
        }
    }
}

#[test]
fn two_hop_answers_lead_to_the_answer_over_the_document_between() {
    let (trainer, encoder) = (trainer(), encoder());
    let mut two_hops = 0;
    for index in 0..20 {
        let row = trainer.row(1, index, 2048, Some("qa"), &encoder).unwrap();
        let text = &row.segments[0].text;
        for (before, answer) in asked(&row) {
            let Some(person) = before
                .rsplit_once("In which country was ")
                .and_then(|(_, q)| q.split_once(" born?"))
                .filter(|(_, rest)| !rest.contains('?') && rest.len() < 20)
                .map(|(person, _)| person)
            else {
                continue;
            };
            let after = |start: String| text.split(&start).nth(1).unwrap().split('.').next().unwrap().to_owned();
            let city = after(format!("{person} was born in "));
            assert_eq!(answer, format!(" {city}, {}", after(format!("{city} is a city in "))));
            two_hops += 1;
        }
    }
    assert!(two_hops > 10, "{two_hops}");
}

#[test]
fn shaped_answers_fit_what_may_be_generated_and_name_what_is_asked() {
    let (trainer, encoder) = (trainer(), encoder());
    for (name, _) in &FILE.task_examples.tasks {
        let most = crate::ruler::max_new_tokens(name).unwrap();
        let task = crate::ruler::for_training(name, &TaskOptions::default()).unwrap();
        for index in 0..4 {
            let row = trainer.row(1, index, 2048, Some(name), &encoder).unwrap();
            let (before, answer) = asked(&row).pop().unwrap();
            assert!(encoder.count(&answer) <= most, "{name}: {} tokens", encoder.count(&answer));
            let counter = task_examples::RowCounter(&encoder);
            let length = 2048 + most - task_examples::ANSWER.min(most);
            let example = task.example(length, index, 1, &counter).unwrap();
            assert!(before.ends_with(&format!("{}{}", example.user_turn(), example.answer_prefix)));
            let score = example.metric.score(&answer, &example.references, &[]);
            assert_eq!(score, 1.0, "{name}: {answer}");
        }
    }
}

#[test]
fn unknown_families_are_errors() {
    let error = trainer().row(0, 0, 512, Some("nia"), &encoder()).unwrap_err();
    assert_eq!(error.to_string(), "unknown family of training rows `nia`");
}

#[test]
fn drawn_wordings_leave_no_placeholder_and_say_where_key_and_value_are() {
    let mut draw = Draw::new(3, 0);
    for _ in 0..300 {
        let kind = *draw.pick(&[NeedleKind::Words, NeedleKind::Numbers, NeedleKind::Uuids]);
        if let Some(text) = wording::needles(kind, &mut draw) {
            assert_eq!(text.statement.matches("{key}").count(), 1, "{}", text.statement);
            assert_eq!(text.statement.matches("{value}").count(), 1, "{}", text.statement);
            assert!(text.intro.contains("{context}") && !text.ask_all.contains("{one}"), "{}", text.ask_all);
        }
        if let Some(text) = wording::chains(&mut draw) {
            let has = |form: &str, name: &str| form.matches(name).count() == 1;
            assert!(has(&text.first, "{variable}") && has(&text.first, "{value}"), "{}", text.first);
            assert!(has(&text.link, "{variable}") && has(&text.link, "{previous}"), "{}", text.link);
            assert!(text.ask.contains("{query}"), "{}", text.ask);
        }
    }
    let (trainer, encoder) = (trainer(), encoder());
    for family in ["niah", "vt", "cwe", "fwe", "qa"] {
        for index in 0..60 {
            let row = trainer.row(4, index, 1024, Some(family), &encoder).unwrap();
            let text: String = row.segments.iter().map(|s| s.text.as_str()).collect();
            for name in ["{key}", "{value}", "{context}", "{one}", "{type}", "{query}", "{person}", "{city}", "{word}"]
            {
                assert!(!text.contains(name), "{family} {index}: {name}");
            }
        }
    }
}

#[test]
fn a_fact_told_in_drawn_words_is_asked_for_with_its_own_word() {
    let (_, file) = crate::ruler::definition("qa").unwrap();
    let world: crate::ruler::WorldFile = toml::from_str(file).unwrap();
    let mut draw = Draw::new(5, 0);
    for _ in 0..50 {
        let other = wording::other_world(&world.synthetic, &mut draw);
        for question in &other.questions {
            let of = format!("{{{}}}", question.of);
            assert!(question.ask.contains(&of), "{}", question.ask);
            let told = other.sentences[&question.uses[question.uses.len() - 1]].split(' ').collect::<HashSet<_>>();
            let forms = |word: &str| ["", "s", "ed", "ing"].map(|ending| format!("{word}{ending}"));
            let is_shared = |word: &&str| forms(word).iter().any(|form| told.contains(form.as_str()));
            let shared = question.ask.trim_end_matches('?').split(' ').filter(|w| !w.contains('{')).filter(is_shared);
            assert!(shared.count() > 0, "{} of {told:?}", question.ask);
        }
    }
}
