//! Properties of every base: depths are hit, lengths are filled, and samples do not depend on the grid.

use super::*;
use crate::metrics::Metric;
use crate::ruler::testing::{Real, Subwords, shared_data, task};
use crate::{catalog, resolve};

const ALL: [&str; 8] = [
    "needle/number",
    "needle/city",
    "needle/san_francisco",
    "needle/pizza",
    "passkey/quest",
    "passkey/hip",
    "kv_retrieval",
    "longeval_lines",
];

fn example(name: &str, length: usize, index: usize) -> Example {
    task(name, &TaskOptions::default()).example(length, index, 42, &Subwords).unwrap()
}

fn error(name: &str) -> UsageError {
    resolve(&[name.to_owned()], &TaskOptions::default()).err().expect("an error").downcast().unwrap()
}

fn tokens(e: &Example, counter: &dyn PromptCounter) -> usize {
    counter.prompt_tokens(&e.user_turn(), &e.answer_prefix).unwrap() + e.max_new_tokens
}

/// The share of the context's tokens before the first occurrence of the first reference.
fn share_before(e: &Example, counter: &dyn PromptCounter) -> f64 {
    let context = e.context.split_once("start:\n\n").map_or(e.context.as_str(), |(_, records)| records);
    let at = context.to_lowercase().find(&e.references[0].to_lowercase()).unwrap();
    let tokens = |text: &str| counter.prompt_tokens(text, "").unwrap() as f64;
    tokens(&context[..at]) / tokens(context)
}

#[test]
fn lengths_are_filled_and_never_exceeded_at_any_depth() {
    let real = Real::find();
    let mut counters: Vec<&dyn PromptCounter> = vec![&Subwords];
    counters.extend(real.iter().map(|r| r as &dyn PromptCounter));
    for counter in counters {
        for name in ALL {
            let task = task(&format!("{name}:steps=3"), &TaskOptions::default());
            for (length, index) in [(2048, 0), (2048, 1), (2048, 5), (4096, 2)] {
                let e = task.example(length, index, 7, counter).unwrap();
                let share = tokens(&e, counter) as f64 / length as f64;
                assert!((0.95..=1.0).contains(&share), "{name} at {length}, {index}: {share}");
            }
        }
    }
}

#[test]
fn what_is_asked_for_lies_at_its_depth() {
    let real = Real::find();
    let counter = real.as_ref().map_or(&Subwords as &dyn PromptCounter, |real| real);
    for name in ALL {
        // HiP's key line is long, so its first key is far from the line's middle.
        let tolerance = if name == "passkey/hip" { 0.12 } else { 0.05 };
        let task = task(name, &TaskOptions::default());
        for index in 0..task.cells() {
            let e = task.example(4096, index, 3, counter).unwrap();
            let (depth, found) = (e.depth.unwrap() / 100.0, share_before(&e, counter));
            assert!((found - depth).abs() < tolerance, "{name} at {depth}: {found}");
        }
    }
}

#[test]
fn depths_are_asked_for_in_their_order_and_recorded() {
    let task = task("needle/number:depths=50+0", &TaskOptions::default());
    assert_eq!((task.name(), task.cells(), task.is_sized()), ("needle/number:depths=50+0", 2, true));
    let depths: Vec<_> = (0..4).map(|i| task.example(1024, i, 1, &Subwords).unwrap().depth.unwrap()).collect();
    assert_eq!(depths, [50.0, 0.0, 50.0, 0.0]);
    assert_eq!([0, 1, 2, 3].map(|i| task.context_of(i)), [0, 0, 2, 2]);
}

#[test]
fn a_sample_is_the_same_whatever_the_grid_and_differs_from_others() {
    for name in ALL {
        let of_grid = example(&format!("{name}:steps=5"), 2048, 5 + 2);
        let alone = example(&format!("{name}:depths=50"), 2048, 1);
        assert_eq!((&of_grid.context, &of_grid.question), (&alone.context, &alone.question), "{name}");
        assert_eq!(of_grid.references, alone.references);
        assert_eq!(alone, example(&format!("{name}:depths=50"), 2048, 1), "{name} twice");
        assert_ne!(alone.context, example(&format!("{name}:depths=50"), 2048, 0).context, "{name}");
    }
}

#[test]
fn depths_of_a_sample_share_their_beginning() {
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    for name in ["needle/number", "passkey/quest"] {
        let (first, second) = (example(name, 4096, 5), example(name, 4096, 6));
        assert!(common(&first.context, &second.context) * 100 > first.context.len() * 45, "{name}");
    }
    for name in ["kv_retrieval", "longeval_lines"] {
        let contexts: Vec<String> = (0..5).map(|i| example(name, 4096, i).context).collect();
        assert!(contexts.iter().all(|c| *c == contexts[0]), "{name}");
    }
}

#[test]
fn every_answer_is_right_and_another_is_not() {
    for name in ALL {
        let e = example(name, 2048, 3);
        let said = format!(" {}", e.references.join(", then "));
        assert_eq!(e.metric.score(&e.metric.postprocess(&said), &e.references, &[]), 1.0, "{name}");
        assert_eq!(e.metric.score("It is not said.", &e.references, &[]), 0.0, "{name}");
        assert!(e.references.iter().all(|r| e.context.to_lowercase().contains(&r.to_lowercase())), "{name}");
    }
    let e = example("needle/pizza", 2048, 0);
    assert_eq!(e.metric.score("Figs and goat cheese.", &e.references, &[]), 2.0 / 3.0);
}

#[test]
fn lists_can_have_a_stated_number_of_records() {
    let pairs = task("kv_retrieval:pairs=75,steps=2", &TaskOptions::default());
    assert_eq!((pairs.name(), pairs.is_sized()), ("kv_retrieval:pairs=75,steps=2", false));
    let e = pairs.example(0, 1, 1, &Subwords).unwrap();
    assert_eq!((e.context.matches("\": \"").count(), e.length), (75, 0));
    assert!(e.context.trim_end().ends_with(&format!("{}\"}}", e.references[0])), "the last pair is asked for");
    let lines = task("longeval_lines:lines=10", &TaskOptions::default()).example(0, 0, 1, &Subwords).unwrap();
    assert_eq!(lines.context.matches("\nline ").count(), 10);
}

#[test]
fn published_pairs_are_asked_for_at_every_depth() {
    let Some(data) = shared_data() else { return };
    let path = data.join("kv_retrieval/kv-retrieval-75_keys.jsonl");
    let task = task(&format!("kv_retrieval:file={}", path.display()), &TaskOptions::default());
    assert_eq!((task.name(), task.available(), task.cells()), ("kv_retrieval:file=kv-retrieval-75_keys", Some(100), 5));
    for index in 0..5 {
        let e = task.example(0, 5 + index, 0, &Subwords).unwrap();
        let pairs = e.context.split_once("JSON data:\n").unwrap().1;
        let place = pairs.lines().position(|line| line.contains(&e.references[0])).unwrap();
        assert_eq!(place, (index as f64 / 4.0 * 74.0).round() as usize);
        assert_eq!(pairs.matches("\": \"").count(), 75);
    }
}

#[test]
fn groups_stand_for_their_tasks_and_options_go_with_them() {
    let names = |asked: &str| -> Vec<String> {
        let tasks = resolve(&[asked.to_owned()], &TaskOptions::default()).unwrap();
        tasks.iter().map(|t| t.name().to_owned()).collect()
    };
    assert_eq!(names("needle"), ALL[..4]);
    assert_eq!(names("passkey:steps=2"), ["passkey/quest:steps=2", "passkey/hip:steps=2"]);
    assert_eq!(names("needle/number:steps=11"), ["needle/number"], "the default is not part of the name");
    let listed: Vec<String> = catalog().into_iter().map(|t| t.name).collect();
    assert!(ALL.iter().all(|name| listed.contains(&(*name).to_owned())));
    let kv = catalog().into_iter().find(|t| t.name == "kv_retrieval").unwrap();
    assert_eq!((kv.metric, kv.max_new_tokens), (Some(Metric::StringMatchAll), Some(100)));
}

#[test]
fn wrong_options_are_usage_errors() {
    assert_eq!(error("needle/number:step=5").hint.as_deref(), Some("did you mean `steps`?"));
    assert!(error("needle/numbers").hint.unwrap().contains("needle/number"));
    assert!(error("needle/number:depths=0+120").what.contains("`120` is not a percentage"));
    assert!(error("needle/number:pairs=7").what.contains("unknown option of needle `pairs`"));
    assert!(error("kv_retrieval:pairs=1").what.contains("not a number from 2"));
    assert!(error("kv_retrieval:file=/nowhere.jsonl").what.contains("cannot read /nowhere.jsonl"));
    assert!(error("kv_retrieval:file=x,pairs=3").what.contains("the number of records is fixed by the file"));
    let too_short = task("passkey/hip", &TaskOptions::default()).example(64, 0, 1, &Subwords).unwrap_err();
    assert!(too_short.to_string().contains("cannot fit 64 tokens"), "{too_short}");
}
