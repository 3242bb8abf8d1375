//! Tests of all self-checks, each on records that it warns about and on others that it does not.

use super::*;
use crate::records::costs::PublishedCosts;
use crate::records::fidelity::Fidelity;
use crate::records::testing::record;
use crate::summary::comparisons::steps;
use crate::summary::warnings::in_short;

const TASK: &str = "ruler/vt";

fn samples(method: &str, params: &str, score: impl Fn(usize) -> f64) -> Vec<Record> {
    let make =
        |i| Record { params: params.into(), key: format!("{method}{params}{i}"), ..record(TASK, method, i, score(i)) };
    (0..20).map(make).collect()
}

fn codes(records: &[Record]) -> Vec<Check> {
    check(records, &[]).into_iter().map(|w| w.code).collect()
}

#[test]
fn of_a_long_ladder_few_pairs_are_compared_and_of_a_short_one_all() {
    let of = |settings: usize| -> Vec<Record> {
        let record =
            |i: usize| Record { params: format!("k={i}").into(), density: i as f64, ..record(TASK, "quest", 0, 1.0) };
        (1..=settings).map(record).collect()
    };
    let pairs = |settings| {
        let records = of(settings);
        let cells = group(&records, &[]);
        steps(&cells.iter().collect::<Vec<_>>()).len()
    };
    assert!((1900..=64 * 63 / 2).contains(&pairs(64)), "{}", pairs(64));
    // Ten distances, of which the shortest are no real step between large budgets.
    assert!((4 * 600..=10 * 600).contains(&pairs(600)), "{}", pairs(600));
}

#[test]
fn times_that_cannot_be_compared_are_told_of_once() {
    let under = |fidelity| {
        Some(TimingConditions {
            fidelity,
            together: 2,
            latency: None,
            threads: 2,
            simd: "avx2".into(),
            cpu: None,
            gpu: None,
            select_on: None,
            kv: None,
        })
    };
    let records = ["full", "topk", "quest"].map(|method| Record {
        conditions: under(method == "quest").map(Into::into),
        ..record("ruler/vt", method, 0, 1.0)
    });
    let timed = |records: &[Record]| -> Vec<Warning> {
        check(records, &[]).into_iter().filter(|w| w.code == Check::TimedApart).collect()
    };
    let warnings = timed(&records);
    assert_eq!(warnings.len(), 1);
    let told = "1 of 3 rows were measured under other conditions and cannot be compared with the rest (2 together on 2 \
                threads, with --fidelity, avx2";
    assert!(warnings[0].message.contains(told), "{}", warnings[0].message);
    assert!(timed(&records[..2]).is_empty());
}

#[test]
fn tokens_attended_beside_the_budget_are_told_of_where_they_are_most_of_what_was_attended() {
    let with = |share: &dyn Fn(usize) -> Option<f64>| -> Vec<String> {
        let mut records = samples("quest", "k=8", |_| 1.0);
        records.iter_mut().enumerate().for_each(|(i, record)| record.free_share = share(i));
        let told = check(&records, &[]).into_iter().filter(|w| w.code == Check::FreeTokens);
        told.map(|warning| warning.message).collect()
    };
    // A quarter of the examples have no share. The mean is over those that have one.
    let mostly = with(&|i| (i % 4 > 0).then_some(if i % 2 == 0 { 0.5 } else { 0.7 }));
    assert_eq!(mostly.len(), 1);
    assert!(
        mostly[0].starts_with("63 % of the attended tokens follow the context (question, answer or scored text)"),
        "{}",
        mostly[0]
    );
    assert!(with(&|_| Some(0.49)).is_empty());
    assert!(with(&|_| None).is_empty());
}

#[test]
fn a_method_without_the_dense_layers_of_its_publications_is_told_of() {
    let told = |method: &str, by_layer: Vec<f64>| -> Vec<String> {
        let mut records = samples(method, "K=10,L=150", |_| 1.0);
        records.iter_mut().for_each(|record| record.density_by_layer = by_layer.clone().into());
        let told = check(&records, &[]).into_iter().filter(|w| w.code == Check::NoDenseLayers);
        told.map(|warning| warning.to_string()).collect()
    };
    let warnings = told("magicpig", vec![0.05; 24]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let says = "ruler/vt at 4096, magicpig:K=10,L=150: none of 24 layers was dense, unlike in all publications of magicpig; preset=paper";
    assert!(warnings[0].starts_with(says), "{}", warnings[0]);
    // No warning with one dense layer, for another method, or for a model in which the published rule makes only the
    // first layer dense.
    assert!(told("magicpig", [vec![1.0], vec![0.05; 23]].concat()).is_empty());
    assert!(told("quest", vec![0.05; 24]).is_empty());
    assert!(told("magicpig", vec![0.05; 16]).is_empty());
}

#[test]
fn random_weights_are_told_of_whatever_they_score() {
    let of = |model: &str| {
        let records: Vec<Record> =
            samples("full", "", |_| 1.0).into_iter().map(|r| Record { model: model.into(), ..r }).collect();
        check(&records, &[]).into_iter().filter(|w| w.code == Check::RandomWeights).collect::<Vec<_>>()
    };
    let told = of("random:llama-3.1-8b");
    assert_eq!(told.len(), 1);
    assert!(
        told[0].to_string().contains("random:llama-3.1-8b") && told[0].to_string().contains("scores are meaningless")
    );
    assert!(of("builtin").is_empty() && of("org/random:x").is_empty());
}

#[test]
fn a_clean_run_has_no_warnings() {
    let mut records = samples("full", "", |_| 1.0);
    records.extend(samples("topk", "k=8", |i| f64::from(u8::from(i % 3 > 0))));
    assert_eq!(codes(&records), []);
    assert_eq!(codes(&[]), []);
}

/// Records of `n` examples of a task that all methods get right.
fn right(task: &str, n: usize) -> Vec<Record> {
    let of = |method: &'static str| (0..n).map(move |i| (method, i));
    of("full").chain(of("topk")).map(|(method, i)| record(task, method, i, 1.0)).collect()
}

#[test]
fn too_few_examples_are_said_once_with_the_number_that_would_do() {
    let lines = |records: &[Record]| -> Vec<String> { check(records, &[]).iter().map(Warning::to_string).collect() };
    let two = [right("ruler/vt", 2), right("ruler/cwe", 2), right("ruler/fwe", 2)].concat();
    assert_eq!(
        lines(&two),
        ["only 2 examples: on one task no loss can be detected; take about 60 (they would detect a loss of 10 points)"]
    );
    let mixed = [right("ruler/vt", 5), right("ruler/cwe", 9), right("ruler/fwe", 10)].concat();
    assert_eq!(
        lines(&mixed),
        [
            "only 5 to 9 examples for 2 of 3 tasks and lengths: on one task no loss below 53 to 83 points, by row, can be detected; \
          take about 60 (they would detect a loss of 10 points)"
        ]
    );
    assert_eq!(lines(&right("ruler/vt", 10)), [""; 0]);
    let alone: Vec<Record> = two.iter().filter(|r| r.method == "full").cloned().collect();
    assert_eq!(lines(&alone), [""; 0], "nothing is compared");
    // Ten depths of two samples are two contexts.
    let mut depths = right("needle/number", 20);
    depths.iter_mut().for_each(|r| r.context = Some(r.sample / 10 * 10));
    assert_eq!(
        lines(&depths)[0],
        "20 questions are about 2 documents, so there are 2 independent samples; on one task no loss can be detected; take about \
         60 documents (they would detect a loss of 10 points)"
    );
    depths.iter_mut().for_each(|r| r.context = Some(0));
    assert_eq!(
        lines(&depths)[0],
        "All 20 questions are about one document, so there is one independent sample; take about 60 documents (they would detect a loss \
         of 10 points)"
    );
}

#[test]
fn of_many_methods_one_is_better_by_chance() {
    // Half of the dense answers are right. One method gains six of them and loses none: beyond noise if it is one of
    // two methods, but what the best of many gains by chance.
    let of = |methods: usize| {
        let mut records = samples("full", "", |i| f64::from(u8::from(i < 10)));
        records.extend(samples("topk", "k=0", |i| f64::from(u8::from(i < 16))));
        for k in 1..methods {
            records.extend(samples("topk", &format!("k={k}"), |i| f64::from(u8::from(i < 10))));
        }
        codes(&records)
    };
    assert_eq!(of(2), [Check::AboveReference]);
    assert_eq!(of(40), []);
}

#[test]
fn of_many_ladders_one_falls_by_chance() {
    let of = |pages: usize| {
        let mut records = samples("full", "", |_| 1.0);
        for (page, k) in (1..=pages).flat_map(|page| [(page, 1), (page, 2)]) {
            let lost = if (page, k) == (1, 2) { 6 } else { 0 };
            let mut more = samples("quest", &format!("k={k},page=p{page}"), |i| f64::from(u8::from(i >= lost)));
            more.iter_mut().for_each(|r| r.density = 0.1 * k as f64);
            records.extend(more);
        }
        codes(&records)
    };
    assert_eq!(of(1), [Check::NotMonotone]);
    assert_eq!(of(40), []);
}

#[test]
fn many_warnings_of_a_kind_are_one_line() {
    let of = |code, task: &str| Warning {
        task: task.into(),
        ..Warning::of_task(code, &record(TASK, "full", 0, 1.0), "a number".into())
    };
    let few = [of(Check::Cut, "a"), of(Check::Bos, "b"), of(Check::Cut, "c"), of(Check::Cut, "d")];
    let lines: Vec<String> = in_short(&few).into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, few.clone().map(|w| w.to_string()));
    let many = [&few[..], &[of(Check::Cut, "e")]].concat();
    let first = format!("{}; and 3 more that are `cut`", few[0]);
    assert_eq!(in_short(&many), [(Check::Cut, first), (Check::Bos, few[1].to_string())]);
    assert_eq!(in_short(&[]), []);
}

#[test]
fn prompts_are_checked_once_an_example() {
    let mut records = samples("full", "", |_| 1.0);
    records.extend(samples("topk", "k=8", |_| 1.0));
    for r in records.iter_mut().filter(|r| r.sample < 2) {
        r.bos_tokens = Some(3);
        r.prompt_tokens = 3000;
    }
    let warnings = check(&records, &[]);
    assert_eq!(
        warnings[0].to_string(),
        "ruler/vt at 4096: 2 of 20 prompts begin with 3 BOS tokens, and the tokenizer adds one: check the chat template"
    );
    assert_eq!((warnings.len(), warnings[1].code), (2, Check::Length));
    assert!(warnings[1].message.contains("2 of 20 examples") && warnings[1].message.contains("from 74.2 % to 99.9 %"));
}

#[test]
fn what_is_at_a_bound_is_on_the_side_that_the_bound_says() {
    let dense = |change: &dyn Fn(&mut Record)| {
        let mut records = samples("full", "", |_| 1.0);
        records.iter_mut().for_each(change);
        codes(&records)
    };
    // Of 4000 tokens, 40 are for the answer. 3760 prompt tokens make 95 %, and 3960 make 100 %.
    let filled = |tokens: usize| dense(&|r| (r.length, r.prompt_tokens, r.prefix_tokens) = (4000, tokens, 0));
    assert_eq!([3760, 3960].map(filled), [[]; 2]);
    assert_eq!([3759, 3961].map(filled), [[Check::Length]; 2]);
    let right = |n: usize| codes(&samples("full", "", |i| f64::from(u8::from(i < n))));
    assert_eq!((right(10), right(9)), (vec![], vec![Check::LowReference]), "from half right on");
    let silent = |n: usize| dense(&|r| r.prediction = if r.sample < n { "" } else { "x" }.into());
    assert_eq!((silent(0), silent(1)), (vec![], vec![Check::EmptyPredictions]), "from 5 % on");
    assert_eq!(dense(&|r| r.free_share = Some(0.5)), [Check::FreeTokens], "from half on");
    let running = |n: usize| {
        let mut records = [samples("full", "", |_| 1.0), samples("topk", "k=8", |_| 1.0)].concat();
        records.iter_mut().for_each(|r| r.stopped = r.method == "full" || r.sample >= n);
        codes(&records)
    };
    assert_eq!((running(10), running(11)), (vec![], vec![Check::Truncated]), "more than half");
}

#[test]
fn unsized_tasks_have_no_length_to_fill() {
    let mut records = samples("full", "", |_| 1.0);
    records.iter_mut().for_each(|r| r.length = 0);
    assert_eq!(codes(&records), []);
}

#[test]
fn cut_prompts_are_counted_and_need_not_fill_their_length() {
    let mut records = samples("full", "", |_| 1.0);
    for r in &mut records {
        r.cut_tokens = Some(if r.sample < 3 { 100 + r.sample } else { 0 });
        r.prompt_tokens = 2000;
    }
    let warnings = check(&records, &[]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(
        warnings[0].to_string(),
        "ruler/vt at 4096: 3 of 20 prompts were cut in the middle to fit 4096 tokens (by up to 102 tokens)"
    );
    records.iter_mut().for_each(|r| r.length = 0);
    assert_eq!(
        check(&records, &[])[0].to_string(),
        "ruler/vt: 3 of 20 prompts were cut in the middle to fit the model's context (by up to 102 tokens)"
    );
}

#[test]
fn empty_and_truncated_generations_are_counted_by_method() {
    let mut records = samples("full", "", |_| 1.0);
    records.extend(samples("topk", "k=8", |_| 1.0));
    for r in records.iter_mut().filter(|r| r.method == "topk") {
        r.stopped = false;
        r.prediction = if r.sample < 3 { " \n".into() } else { "x".into() };
    }
    let warnings = check(&records, &[]);
    assert_eq!(warnings.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::EmptyPredictions, Check::Truncated]);
    assert_eq!(warnings[0].to_string(), "ruler/vt at 4096, topk:k=8: 3 of 20 predictions are empty");
    records.iter_mut().for_each(|r| r.stopped = false);
    assert_eq!(codes(&records), [Check::EmptyPredictions]);
}

#[test]
fn sparse_above_a_low_dense_score_raises_both_alarms() {
    let mut records = samples("full", "", |i| if i < 8 { 1.0 } else { 0.0 });
    records.extend(samples("topk", "k=8", |i| if i < 16 { 1.0 } else { 0.0 }));
    assert_eq!(codes(&records), [Check::LowReference, Check::AboveReference]);
}

#[test]
fn a_falling_score_is_reported_for_the_worst_step_of_one_parameter() {
    // Of equal falls, the first is reported.
    for second in [17, 18] {
        let mut records = samples("full", "", |_| 1.0);
        for (k, density, right) in [(8, 0.01, 18), (16, 0.02, second), (32, 0.04, 6), (64, 0.08, 19)] {
            let mut of_k = samples("topk", &format!("k={k},page=16"), |i| f64::from(u8::from(i < right)));
            of_k.iter_mut().for_each(|r| r.density = density);
            records.extend(of_k);
        }
        let warnings = check(&records, &[]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(warnings[0].params.as_deref(), Some("k=32,page=16"));
        let told = "score falls as the density grows with k: 90.0 % at density 0.0100";
        assert!(warnings[0].message.starts_with(told), "{}", warnings[0].message);
    }
}

#[test]
fn a_density_that_was_missed_is_said() {
    let mut records = samples("full", "", |_| 1.0);
    records.extend(samples("topk", "density=0.041", |_| 1.0));
    records.extend(samples("magicpig", "K=8,density=0.03", |_| 1.0));
    let warnings = check(&records, &[]);
    assert_eq!(warnings.len(), 1, "0.05 was attended: {warnings:?}");
    assert_eq!(warnings[0].method.as_deref(), Some("magicpig"));
    let said = "3 % of the tokens were asked for, and 5 % were attended (+67 %, in layers that are not dense)";
    assert!(warnings[0].message.starts_with(said), "{}", warnings[0].message);
}

#[test]
fn why_a_density_was_missed_is_computed_from_what_was_attended() {
    let of = |method: &str, picked: f64, free: f64, solved: Option<&str>| {
        let mut records = samples(method, "density=0.05", |_| 1.0);
        for r in &mut records {
            r.density_sparse_layers = 0.15;
            r.free_share = Some(free);
            r.comparable = Some(PublishedCosts { picked_density: Some(picked), ..PublishedCosts::default() });
            r.solved = solved.map(Into::into);
        }
        let warnings = check(&[samples("full", "", |_| 1.0), records].concat(), &[]);
        let message = |code: Check| warnings.iter().find(|w| w.code == code).map(|w| w.message.clone());
        message(Check::DensityMissed).unwrap_or_default()
    };
    // 15 % were attended and 2 % picked, so 13 % are static. A fifth of all, 3 %, is question and answer.
    let quest = of("quest", 0.02, 0.2, None);
    for part in [
        "sink and recent window are 10 % of these contexts, question and answer 3 %",
        "no method can attend less than 13 % here. For 5 %: --local 16 --tail indexed",
    ] {
        assert!(quest.contains(part), "{part}: {quest}");
    }
    assert!(!quest.contains("parameter"), "Quest has none that is set once: {quest}");
    let counted = of("quest", 0.02, 0.0, None);
    assert!(
        counted.contains("less than 13 % here. For 5 %: --local 16 (") && !counted.contains("indexed"),
        "{counted}"
    );
    // Here 4 % are static: too much was picked.
    let magicpig = of("magicpig", 0.11, 0.1, Some("K=8"));
    assert!(magicpig.contains("parameter is set once a prompt") && !magicpig.contains("no method"), "{magicpig}");
    let blocks = of("quest", 0.11, 0.1, None);
    assert!(
        blocks.contains("4 % are sink") && blocks.contains("whole blocks") && !blocks.contains("parameter"),
        "{blocks}"
    );
}

#[test]
fn what_so_few_can_tell_is_what_the_rows_say() {
    // On the first task, all or nothing is lost; on the second, a tenth at most.
    let of = |task: &str, lost: f64| {
        let of =
            |i: usize| [record(task, "full", i, 1.0), record(task, "topk", i, if i == 0 { 1.0 - lost } else { 1.0 })];
        (0..4).flat_map(of).collect::<Vec<Record>>()
    };
    let records = [of("ruler/vt", 0.0), of("ruler/cwe", 0.1)].concat();
    let rows = summarize::rows(&group(&records, &[]));
    let mut points: Vec<f64> = rows.iter().filter_map(|row| row.detectable).collect();
    points.sort_by(f64::total_cmp);
    let said = check(&records, &[]).remove(0).message;
    let expected = format!("no loss below {:.0} to {:.0} points, by row, can be detected", points[0], points[1]);
    assert!(said.contains(&expected) && points[0] < 50.0 && points[1] > 94.0, "{said} {points:?}");
}

#[test]
fn less_perplexity_is_better() {
    use crate::records::testing::perplexity;
    let of = |method: &str, density: f64, nats: f64| -> Vec<Record> {
        // The reference has no parameters.
        let params = if method == "full" { String::new() } else { format!("k={density}") };
        let make =
            |i| Record { density, params: params.as_str().into(), ..perplexity(method, i, nats + i as f64 / 9.0) };
        (0..20).map(make).collect()
    };
    let full = of("full", 1.0, 5.0);
    let worse = [full.clone(), of("topk", 0.1, 5.5), of("topk", 0.2, 5.2)].concat();
    assert_eq!(codes(&worse), [], "a high perplexity is no low score, and less with more budget is as it should be");
    let better = check(&[full.clone(), of("topk", 0.1, 4.9)].concat(), &[]);
    assert_eq!(better.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::AboveReference]);
    assert!(better[0].message.contains("0.1000 nats a token less"), "{}", better[0]);
    let rising = check(&[full, of("topk", 0.1, 5.2), of("topk", 0.2, 5.5)].concat(), &[]);
    assert_eq!(rising.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::NotMonotone]);
    assert!(rising[0].message.starts_with("perplexity rises as the density grows with k"), "{}", rising[0]);
}

#[test]
fn a_fall_names_the_layers_whose_attention_got_worse() {
    let with_errors = |k: usize, score: f64, errors: &[f64]| {
        let mut records = samples("topk", &format!("k={k}"), |_| score);
        for r in &mut records {
            r.density = k as f64 / 100.0;
            r.fidelity = Some(Box::new(Fidelity {
                output_error: errors.to_vec(),
                recall: vec![1.0; errors.len()],
                dropped_mass: Vec::new(),
                spread: None,
                heads: None,
            }));
        }
        records
    };
    let message = |low: &[f64], high: &[f64]| {
        let records = [samples("full", "", |_| 1.0), with_errors(8, 1.0, low), with_errors(16, 0.5, high)].concat();
        let warnings = check(&records, &[]);
        assert_eq!(warnings.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::NotMonotone]);
        let (_, interval) = warnings[0].message.split_once("95 % interval").expect("an interval");
        let (_, after) = interval.split_once(')').expect("its end");
        after.to_owned()
    };
    assert_eq!(message(&[0.65, 0.2], &[0.74, 0.1]), "; output error rises in layer 0 (0.65 to 0.74)");
    assert_eq!(message(&[0.65, 0.2], &[0.6, 0.1]), "; output error rises in no layer");
    assert_eq!(message(&[0.0, 0.2], &[0.0, 0.1]), "; output error rises in no layer", "a dense layer has none");
    assert_eq!(message(&[0.65], &[0.6, 0.1]), "", "of another depth");
    assert!(message(&[0.1; 6], &[0.2; 6]).ends_with("layer 3 (0.10 to 0.20) and 2 more"));
}

#[test]
fn runs_merged_by_mistake_are_noticed() {
    let mut records = samples("full", "", |_| 1.0);
    let again: Vec<_> = records.iter().map(|r| Record { key: format!("z{}", r.key), ..r.clone() }).collect();
    records.extend(again);
    assert_eq!(codes(&records), [Check::RepeatedSamples]);
}
