use super::*;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::{TaskOptions, resolve};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn file(ids: impl IntoIterator<Item = u32>) -> Text {
    Text::File { label: "a file".into(), ids: ids.into_iter().collect() }
}

fn plan(texts: &[Text], tokens: usize, length: usize) -> CalibrationPlan<'_> {
    CalibrationPlan { orders: &[], texts, tokens, length, held_out: 0, seed: 1 }
}

fn model() -> Model {
    Model::load(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap()
}

#[test]
fn blocks_are_as_long_as_was_asked_and_the_last_is_what_is_left() {
    let texts = [file(0..10)];
    assert_eq!(plan(&texts, 250, 100).blocks(), [100, 100, 50]);
    assert_eq!(plan(&texts, 200, 100).blocks(), [100, 100]);
    assert_eq!(plan(&texts, 7, 100).blocks(), [7]);
    assert_eq!(plan(&texts, 101, 100).blocks(), [100, 1], "of running text, every token is read");
}

#[test]
fn rows_have_many_lengths_and_none_is_too_short() {
    let texts = [ReadingText::Rows.into()];
    let blocks = plan(&texts, 60_000, 1024).blocks();
    assert!(blocks.iter().all(|length| (SHORTEST_ROW..=1024).contains(length)), "{blocks:?}");
    let left = 60_000 - blocks.iter().sum::<usize>();
    assert!(left < 1024, "a row that does not fit ends it: {left} are left");
    // On a logarithmic scale from 256, the median length is the middle: 512.
    let short = blocks.iter().filter(|length| **length < 512).count() as f64 / blocks.len() as f64;
    assert!((0.3..0.7).contains(&short), "{short} of {} are shorter than 512", blocks.len());
    assert_eq!(plan(&texts, SHORTEST_ROW - 1, 1024).blocks(), [0; 0]);
    assert_eq!(plan(&texts, 2 * SHORTEST_ROW, SHORTEST_ROW).blocks(), [SHORTEST_ROW; 2]);
}

#[test]
fn a_file_is_read_on_from_block_to_block_and_from_its_start_again() {
    let model = model();
    let front = model.tokenizer.encode_text("", true).unwrap();
    let text = file(100..110);
    let block = |number: usize, own: std::ops::Range<u32>| {
        let expected: Vec<u32> = front.iter().copied().chain(own.map(|i| 100 + i % 10)).collect();
        assert_eq!(text.block(number, front.len() + 4, 1, &model).unwrap(), expected, "block {number}");
    };
    block(0, 0..4);
    block(1, 4..8);
    block(2, 8..12);
    block(3, 12..16);
}

#[test]
fn generated_blocks_are_full_and_differ() {
    let model = model();
    let block = |number, seed| Text::Generated.block(number, 80, seed, &model).unwrap();
    assert!([(0, 1), (1, 1), (0, 2)].iter().all(|(number, seed)| block(*number, *seed).len() == 80));
    assert_eq!(block(1, 1), block(1, 1));
    assert!(block(0, 1) != block(1, 1) && block(0, 1) != block(0, 2));
}

#[test]
fn prompts_of_a_task_are_at_most_as_long_as_was_asked_and_differ() {
    let model = model();
    let text = Text::Task(resolve(&["ruler/niah_single_1".into()], &TaskOptions::default()).unwrap().remove(0));
    let [first, second] = [0, 1].map(|number| text.block(number, 512, 1, &model).unwrap());
    assert!(first.len() <= 512 && second.len() <= 512 && first != second);
}

#[test]
fn texts_are_read_in_turn_and_repeated_reading_is_said() {
    let texts = [file(0..120), file(0..150)];
    // Blocks of 100, 100 and 50 tokens: 150 tokens from the first text, 100 from the second.
    let plan_of_two = plan(&texts, 250, 100);
    let notes = plan_of_two.notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("a file has 120 tokens, but 150 are read"), "{notes:?}");
    let enough = [file(0..150), file(0..100)];
    assert_eq!(plan(&enough, 250, 100).notes(), [""; 0]);
}

#[test]
fn plans_that_cannot_be_read_say_why() {
    let model = model();
    let refused = |texts: &[Text], tokens, length| {
        plan(texts, tokens, length).check(&model).map_err(|error| error.what).err().unwrap_or_default()
    };
    let limit = model.decoder.config().context_limit();
    let files = [file(0..200)];
    for (tokens, length) in [(LEAST_BLOCK, 1000), (1000, LEAST_BLOCK), (1000, 200), (200, limit)] {
        assert_eq!(refused(&files, tokens, length), "", "{tokens} in blocks of {length}");
    }
    assert_eq!(refused(&files, 0, 100), "--tokens or --length is 0");
    assert_eq!(refused(&files, 100, 0), "--tokens or --length is 0");
    assert!(refused(&files, LEAST_BLOCK - 1, 100).contains("too short to learn from"));
    assert!(refused(&files, 201, 1000).starts_with("a file has 200 tokens, fewer than a block of 201"));
    let rows = [ReadingText::Rows.into()];
    assert_eq!(refused(&rows, SHORTEST_ROW, SHORTEST_ROW), "");
    assert!(refused(&rows, 1000, SHORTEST_ROW - 1).contains("have at least 256 tokens"));
    assert_eq!(refused(&[Text::Generated], 10 * limit, limit), "");
    assert!(refused(&[Text::Generated], 10 * limit, limit + 1).contains("beyond the context"));
}

fn orders(specs: &[&str]) -> Vec<CalibrationOrder> {
    CalibrationOrder::parse(&specs.iter().map(|spec| (*spec).to_owned()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn orders_are_sorted_by_kind_each_of_which_is_made_once() {
    let kinds = |orders: &[CalibrationOrder]| orders.iter().map(|o| o.calibration.kind).collect::<Vec<_>>();
    let all = ["double_sparsity", "loki", "duo_attention", "hash_attention"];
    assert_eq!(kinds(&orders(&[])), all);
    assert_eq!(kinds(&orders(&["loki", "double_sparsity"])), ["double_sparsity", "loki"]);
    let refused = |specs: &[&str]| {
        CalibrationOrder::parse(&specs.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).err().map(|e| e.what)
    };
    assert_eq!(refused(&["loki", "loki"]).unwrap(), "calibration `loki` is given twice");
    assert!(refused(&["quest"]).unwrap().contains("quest"));
    // The first two kinds share a reading. Kinds that train for long have a reading of their own.
    let orders = orders(&[]);
    let readings: Vec<_> = CalibrationOrder::by_reading(&orders).map(kinds).collect();
    assert_eq!(readings[0], all[..2]);
    assert!(readings.iter().all(|kinds| kinds.len() == 1 || !kinds.contains(&"hash_attention")));
    assert_eq!(CalibrationOrder::reading(&orders[1..]), Reading::STATISTICS);
}

#[test]
fn all_blocks_are_read_and_what_was_learned_says_from_what() {
    let model = model();
    let orders = orders(&["loki", "double_sparsity"]);
    let texts = [file(100..300), Text::Generated];
    let plan = CalibrationPlan { orders: &orders, held_out: 1, ..plan(&texts, 150, 70) };
    let mut told = Vec::new();
    let mut watch = |done, all| {
        told.push((done, all));
        ControlFlow::Continue(())
    };
    let outcome = plan.run(&model, None, &mut watch).unwrap().unwrap();
    assert_eq!((told, outcome.blocks, outcome.tokens), (vec![(1, 3), (2, 3), (3, 3)], 3, 150));
    assert_eq!(outcome.data, format!("a file + {}, 70 tokens a block", Essays::Grammar.label()));
    for (made, kind) in outcome.made.iter().zip(["double_sparsity", "loki"]) {
        let info = Artefact::parse("made", made.bytes.clone()).unwrap().info().clone();
        assert_eq!((made.kind, info.kind.as_str(), &info.data), (kind, kind, &outcome.data));
        assert_eq!((info.seed, info.blocks, info.tokens), (1, 3, 150));
    }
    let again = plan.run(&model, None, |_, _| ControlFlow::Continue(())).unwrap().unwrap();
    assert!(again.made.iter().zip(&outcome.made).all(|(a, b)| a.bytes == b.bytes));
    assert!(
        plan.run(&model, None, |done, _| match done {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap()
        .is_none()
    );
    let limit = model.decoder.config().context_limit();
    assert!(plan.read(0, limit + 1, &model, &mut |_| Ok(())).unwrap_err().to_string().contains("beyond the context"));
}

#[test]
fn each_text_is_read_from_its_own_start_on() {
    let model = model();
    let texts = [file(100..300), file(300..500)];
    let plan = plan(&texts, 280, 70);
    let front = model.tokenizer.encode_text("", true).unwrap();
    let own = (70 - front.len()) as u32;
    let first_keys = |chunk: &PrefillChunk<'_>, keys: &mut Vec<f32>| {
        if chunk.layer == 0 {
            keys.extend(chunk.on_host()?.keys(0));
        }
        Ok(())
    };
    for (number, start) in [100, 300, 100 + own, 300 + own].into_iter().enumerate() {
        let (mut read, mut expected) = (Vec::new(), Vec::new());
        let tokens = plan.read(number, 70, &model, &mut |chunk| first_keys(chunk, &mut read)).unwrap();
        let ids: Vec<u32> = front.iter().copied().chain(start..start + own).collect();
        model.decoder.prefill_observed(&ids, 70, &mut |chunk| first_keys(chunk, &mut expected)).unwrap();
        assert!(tokens == 70 && !read.is_empty() && read == expected, "block {number}");
    }
}

#[test]
fn long_calibrations_go_on_from_where_they_were_kept() {
    let model = model();
    let orders = orders(&["hash_attention:steps=1,queries=1,top=1"]);
    let texts = [file(100..400)];
    let plan = CalibrationPlan { orders: &orders, ..plan(&texts, 35 * 16, 16) };
    let dir = tempfile::tempdir().unwrap();
    let begin = Checkpoints { gap: Duration::MAX, ..Checkpoints::new(dir.path()) };
    let go_on = Checkpoints { resume: true, ..begin.clone() };
    let refused = |plan: &CalibrationPlan<'_>, checkpoints: &Checkpoints| {
        plan.run(&model, Some(checkpoints), |_, _| ControlFlow::Break(())).err().unwrap().to_string()
    };
    assert!(refused(&plan, &go_on).starts_with("there is no checkpoint to resume from: no "));
    let kept = || {
        let bytes = std::fs::read(begin.file("hash_attention")).ok()?;
        let info = Artefact::parse("kept", bytes).unwrap().info().clone();
        Some((info.blocks, info.tokens))
    };
    // The block of each checkpoint: every 32nd block, and the block at which the run stops.
    let mut found = Vec::new();
    let stopped = plan.run(&model, Some(&begin), |done, _| {
        found.push(kept());
        if done == 34 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(stopped.unwrap().is_none());
    let at = |blocks: usize| Some((blocks, 16 * blocks));
    assert_eq!((&found[..32], &found[32..], kept()), (&[None; 32][..], &[at(32); 2][..], at(34)));
    assert_eq!(begin.kept.load(Ordering::Relaxed), 34);

    let mut told = Vec::new();
    let mut watch = |done, all| {
        told.push((done, all));
        ControlFlow::Continue(())
    };
    let resumed = plan.run(&model, Some(&go_on), &mut watch).unwrap().unwrap();
    assert_eq!((told, resumed.blocks, resumed.tokens), (vec![(35, 35)], 35, 35 * 16));
    let whole = plan.run(&model, None, |_, _| ControlFlow::Continue(())).unwrap().unwrap();
    assert!(resumed.made[0].bytes == whole.made[0].bytes, "as if it had not been stopped");
    let other = refused(&CalibrationPlan { seed: 2, ..plan }, &go_on);
    assert!(other.ends_with("begun with seed 1 on a file, 16 tokens a block"), "{other}");
    assert!(
        refused(&CalibrationPlan { length: 17, ..plan }, &go_on).contains("begun with seed 1 on a file, 16 tokens")
    );
    assert!(refused(&CalibrationPlan { tokens: 36 * 16, ..plan }, &go_on).contains("planned_tokens"));
}

#[test]
fn files_of_text_are_read_and_others_refused() {
    let model = model();
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Text::file(&path, &model)
    };
    let text = read("a.txt", b"The door opens.").unwrap();
    assert_eq!(text.label(), format!("a.txt ({})", &sha256_hex(b"The door opens.")[..12]));
    let Text::File { ids, .. } = text else { panic!("a file") };
    assert_eq!(ids, model.tokenizer.encode_text("The door opens.", false).unwrap());
    let refused = |name, bytes| read(name, bytes).err().unwrap().to_string();
    assert!(refused("b", b"ab\0c").ends_with("a zero byte at offset 2: this is not a text file"));
    assert!(refused("c", b"").starts_with("there is no text in"));
    let missing = Text::file(&dir.path().join("none"), &model).err().unwrap();
    assert!(missing.to_string().starts_with("cannot read"));
}
