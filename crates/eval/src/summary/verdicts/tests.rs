use super::*;
use crate::records::testing::{perplexity, record};
use crate::summary::cells::group;
use crate::summary::summarize;

/// Records of a method on `n` examples of a task, of which the first `lost` have wrong answers.
fn run(task: &str, method: &str, params: &str, lost: usize, n: usize) -> Vec<Record> {
    let of = |i: usize| Record {
        params: params.into(),
        key: format!("{task}/{method}/{params}/{i}"),
        ..record(task, method, i, f64::from(u8::from(i >= lost)))
    };
    (0..n).map(of).collect()
}

fn made(runs: &[Vec<Record>], limit: f64) -> Vec<VerdictTable> {
    let records = runs.concat();
    let cells = group(&records, &[]);
    // The indexes of these records have 32 bits per token.
    let kv_bits = KvBits::from([("builtin".to_owned(), 256.0)]);
    judge(&summarize::rows(&cells), &cells, VerdictRule { limit, ..VerdictRule::default() }, &kv_bits)
}

fn only(runs: &[Vec<Record>], limit: f64) -> VerdictTable {
    let mut tables = made(runs, limit);
    assert_eq!(tables.len(), 1, "{tables:?}");
    tables.remove(0)
}

fn words(table: &VerdictTable) -> Vec<(&str, &'static str)> {
    table.settings.iter().map(|setting| (setting.method.as_str(), word(setting.finding))).collect()
}

fn word(finding: Finding) -> &'static str {
    match finding {
        Finding::Safe { .. } => "safe",
        Finding::NotSafe { .. } => "not safe",
        Finding::TooFew { .. } => "too few",
        Finding::NothingToLose => "nothing to lose",
        Finding::NotJudged => "not judged",
    }
}

#[test]
fn settings_are_judged_together_and_oracles_and_floors_not_at_all() {
    let n = 600;
    let of = |method: &str, lost| run("vt", method, "density=0.05", lost, n);
    let table = only(
        &[run("vt", "full", "", 0, n), of("h2o", 0), of("quest", 60), of("loki", 4), of("topk", 0), of("random", 400)],
        1.0,
    );
    assert_eq!(
        words(&table),
        [("h2o", "safe"), ("loki", "too few"), ("quest", "not safe"), ("random", "not judged"), ("topk", "not judged")]
    );
    assert_eq!((table.comparisons, table.examples, table.full.unwrap().score), (3, 600, 100.0));
    assert_eq!(table.settings[0].memory_percent, Some(12.5));
    assert!(
        (table.settings[2].loss.unwrap() - 10.0).abs() < 1e-9 && table.settings[2].loss_low > Some(7.0),
        "{table:?}"
    );
    // The examples are enough for three methods but not for four: z² / (n + z²) with the z of 2.5 % / 3 is 0.996 %, and of 2.5 %
    // / 4 1.08 %.
    let (three, four) = (570, ["h2o", "quest", "loki", "sparq"]);
    let of = |count: usize| {
        let methods = four[..count].iter().map(|name| run("vt", name, "", 0, three));
        only(&std::iter::once(run("vt", "full", "", 0, three)).chain(methods).collect::<Vec<_>>(), 1.0)
    };
    assert_eq!((words(&of(3))[0].1, words(&of(4))[0].1), ("safe", "too few"));
}

#[test]
fn safe_in_the_mean_is_not_safe_on_every_task() {
    let n = 400;
    let table = only(
        &[
            run("a", "full", "", 0, n),
            run("b", "full", "", 0, n),
            run("a", "quest", "", 64, n),
            run("b", "quest", "", 0, n),
        ],
        11.0,
    );
    let quest = &table.settings[0];
    assert_eq!((word(quest.finding), quest.is_recommended()), ("safe", false), "8 points in the mean: {quest:?}");
    let tasks: Vec<(&str, &str)> = quest.tasks.iter().map(|t| (t.task.as_str(), word(t.finding))).collect();
    assert_eq!(tasks, [("a", "not safe"), ("b", "safe")]);
    assert_eq!(quest.unsafe_tasks().map(|t| t.task.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn examples_needed_are_of_each_task() {
    let tasks = ["a", "b", "c", "d"];
    let runs: Vec<Vec<Record>> =
        tasks.iter().flat_map(|task| [run(task, "full", "", 0, 20), run(task, "quest", "", 0, 20)]).collect();
    // 381 examples in all: z² (1 − 0.01) / 0.01.
    assert_eq!(only(&runs, 1.0).settings[0].finding, too_few(96, Prospect::Safe));
}

fn too_few(contexts: usize, would_show: Prospect) -> Finding {
    Finding::TooFew { contexts_needed: Some(contexts), would_show }
}

#[test]
fn four_examples_say_nothing_of_how_many_would_tell() {
    let runs = ["a", "b"].map(|task| [run(task, "full", "", 0, 4), run(task, "quest", "", 4, 4)]).concat();
    let quest = &only(&runs, 1.0).settings[0];
    assert_eq!(word(quest.finding), "not safe", "eight in all: {quest:?}");
    // On one task alone, six would tell, at half of the error probability.
    assert_eq!(quest.tasks.iter().map(|of| of.finding).collect::<Vec<_>>(), [too_few(6, Prospect::Unknown); 2]);
    let twenty = [run("a", "full", "", 0, 20), run("a", "quest", "", 3, 20)];
    let Finding::TooFew { would_show, .. } = only(&twenty, 1.0).settings[0].finding else { panic!("three of 20") };
    assert_eq!(would_show, Prospect::NotSafe);
}

#[test]
fn tasks_of_other_sizes_are_told_with_both() {
    let runs = [
        run("a", "full", "", 0, 20),
        run("b", "full", "", 0, 15),
        run("a", "quest", "", 20, 20),
        run("b", "quest", "", 14, 15),
    ];
    let table = only(&runs, 1.0);
    assert_eq!((table.examples, table.most_examples), (15, 20));
    assert!(table.settings[0].loss_high.is_some_and(|high| high <= 100.0), "no loss is larger: {table:?}");
}

#[test]
fn a_share_that_was_missed_is_told_with_what_was_attended() {
    let of = |params: &str, attended: f64| -> Vec<Record> {
        let of = |r: Record| Record { density_sparse_layers: attended, density: 0.5, ..r };
        run("a", "quest", params, 0, 9).into_iter().map(of).collect()
    };
    let instead = |params: &str, attended: f64| {
        let instead = only(&[run("a", "full", "", 0, 9), of(params, attended)], 1.0).settings[0].attended_instead;
        instead.map(|share| (1e4 * share).round() / 1e4)
    };
    assert_eq!((instead("density=0.05", 0.152), instead("ratio=0.125", 0.18)), (Some(0.152), Some(0.18)));
    assert_eq!((instead("density=0.05", 0.0549), instead("density=0.05", 0.0451)), (None, None));
    assert_eq!(instead("density=0.05", 0.044), Some(0.044), "less is not what was asked for, either");
    assert_eq!((instead("k=64", 0.9), instead("", 0.9)), (None, None));
}

#[test]
fn where_dense_attention_gets_nothing_right_there_is_nothing_to_lose() {
    let table = only(&[run("a", "full", "", 490, 500), run("a", "quest", "", 495, 500)], 1.0);
    assert_eq!(
        (words(&table), table.nothing_to_lose_on.clone()),
        (vec![("quest", "nothing to lose")], vec!["a".to_owned()])
    );
    // A loss that does occur is reported all the same.
    let lost = only(&[run("a", "full", "", 480, 500), run("a", "quest", "", 500, 500)], 1.0);
    assert_eq!(words(&lost), [("quest", "not safe")]);
}

#[test]
fn budgets_are_those_asked_for() {
    let of = |params: &str| AskedBudget::of(&run("a", "quest", params, 0, 1)[0]);
    assert_eq!(of("page=16,density=0.05"), AskedBudget::Share(0.05));
    assert_eq!((of("ratio=0.125"), of("k=64")), (AskedBudget::Share(0.125), AskedBudget::Tokens(64.0)));
    assert_eq!((of("K=8,L=75"), of("")), (AskedBudget::Own, AskedBudget::Own));
    assert_eq!(
        [of("density=0.05"), of("ratio=0.125"), of("k=64")].map(AskedBudget::name),
        ["5 %", "12.5 %", "64 tokens"]
    );
}

#[test]
fn settings_are_compared_on_the_tasks_that_all_have() {
    let runs = [
        run("a", "full", "", 0, 20),
        run("b", "full", "", 0, 20),
        run("a", "quest", "", 0, 20),
        run("b", "quest", "", 0, 20),
        run("a", "h2o", "", 0, 20),
    ];
    let table = only(&runs, 1.0);
    assert_eq!((table.tasks, table.left_out, table.settings.len()), (vec!["a".to_owned()], 0, 2));
    let apart = only(&[run("a", "full", "", 0, 20), run("a", "quest", "", 0, 20), run("b", "h2o", "", 0, 20)], 1.0);
    assert_eq!((apart.tasks, apart.left_out, apart.settings.len()), (vec!["a".to_owned()], 1, 1));
    let alone = only(&[run("a", "quest", "", 0, 20)], 1.0);
    assert_eq!((words(&alone), alone.full), (vec![("quest", "not judged")], None));
    assert_eq!(made(&[run("a", "full", "", 0, 20)], 1.0), []);
}

#[test]
fn lengths_and_models_have_tables_of_their_own() {
    let at = |length: usize, model: &str| -> Vec<Record> {
        let all = [run("a", "full", "", 0, 20), run("a", "quest", "", 9, 20)].concat();
        all.into_iter().map(|r| Record { length, model: model.into(), ..r }).collect()
    };
    let tables = made(&[at(4096, "x"), at(8192, "x"), at(4096, "y")], 1.0);
    let seen: Vec<(&str, usize)> = tables.iter().map(|table| (table.model.as_str(), table.length)).collect();
    assert_eq!(seen, [("x", 4096), ("x", 8192), ("y", 4096)]);
}

#[test]
fn a_perplexity_loses_percent() {
    let of = |method: &str, more: f64| -> Vec<Record> {
        (0..12).map(|i| perplexity(method, i, 2.0 + i as f64 / 10.0 + more * (1.0 + i as f64 / 50.0))).collect()
    };
    let table = only(&[of("full", 0.0), of("h2o", 0.05), of("quest", 0.004)], 1.0);
    assert_eq!((words(&table), table.is_perplexity), (vec![("h2o", "not safe"), ("quest", "safe")], true));
    // Slightly more than 0.004 nats per token are 0.4 %.
    let loss = table.settings[1].loss.unwrap();
    assert!(loss > 0.4 && loss < 0.5, "{loss}");
}

#[test]
fn where_examples_are_added_until_it_is_told_more_are_needed() {
    let records = [run("a", "full", "", 0, 400), run("a", "quest", "", 0, 400), run("a", "h2o", "", 300, 400)].concat();
    let cells = group(&records, &[]);
    let rows = summarize::rows(&cells);
    let at = |is_any_time| {
        let rule = VerdictRule { limit: 1.25, is_any_time, ..VerdictRule::default() };
        judge(&rows, &cells, rule, &KvBits::new()).remove(0)
    };
    assert_eq!(words(&at(false)), [("h2o", "not safe"), ("quest", "safe")]);
    assert_eq!(words(&at(true)), [("h2o", "not safe"), ("quest", "too few")]);
    assert!(
        matches!(at(true).open().as_slice(), [Some(needed)] if (401..600).contains(needed)),
        "{:?}",
        at(true).open()
    );
}

#[test]
fn questions_about_one_document_are_one_context() {
    let about_one = |method: &str, lost: usize| -> Vec<Record> {
        run("mine", method, "", lost, 20).into_iter().map(|r| Record { context: Some(0), ..r }).collect()
    };
    let table = only(&[about_one("full", 0), about_one("quest", 20)], 1.0);
    assert_eq!((table.examples, table.contexts, table.has_shared_contexts()), (20, 1, true));
    assert_eq!((words(&table), table.settings[0].loss_low), (vec![("quest", "too few")], None));
}
