//! Tokens after the prefix that left the window are selected as if the index had been built with them.

use super::tests::{Stepper, assert_close, calibrated, configured, noise, none, prefix, random_kv, run};
use super::*;
use crate::kv::{KvDtype, KvStore, Prefix};
use crate::{IndexCache, Policy, SelectedTokens, Selection, Sequence, Tail, TailRule, Weighting};

/// Specs of every method whose index of a token does not depend on other tokens.
pub(super) const GROWING: &[&str] = &[
    "topk:k=12",
    "topk:pick=topp,p=0.7",
    "topk:k=7,per=kv_head,reduce=max",
    "topk_norm:k=12",
    "topp:p=0.5",
    "oracle_sampling:budget=9",
    "vattention:k=5,epsilon=0.3,delta=0.3",
    "quest:page=4,k=8,pick=sample,epsilon=0.3,delta=0.3,per=kv_head",
    "random:k=9",
    "quest:page=4,k=12",
    "quest:page=7,k=20,per=kv_head",
    "twilight:page=4,k=40,p=0.6",
    "topk:k=30,rescore=int4,k2=7,per=kv_head",
    "double_sparsity:k=30,rescore=exact,p=0.4",
    "quest:page=1,k=9,summary_bits=4",
    "quest:page=2,k=9,summary_bits=2",
    "double_sparsity:k=12",
    "double_sparsity:k=12,kind=random,label_bits=2",
    "double_sparsity:k=12,label_bits=16,channels=3",
    "loki:k=12,rank=5",
    "sparq:k=12,r=4",
    "sparq:k=12,r=4,storage=1xK,per=kv_head",
    "hash_attention:k=12",
    "knn:index=flat,k=12",
    "knn:k=12,ef=1000",
    "knn:k=12,ef=1000,per=kv_head",
    "hip:k=12,r_m=1",
    "hip:k=12,b_k=3,r_m=1,per=kv_head,top_r=5",
    "magicpig:K=4,L=12,center=false",
    "magicpig:K=3,L=9,center=false,min_collisions=1",
];

/// Tokens of each head, ascending, with their weights.
fn sorted(selection: &Selection) -> Vec<(Vec<u32>, Weighting)> {
    let heads = match selection {
        Selection::Shared(picks) => std::slice::from_ref(picks),
        Selection::PerHead(heads) => heads,
    };
    heads.iter().map(|SelectedTokens { tokens, weighting, .. }| (tokens.clone(), weighting.clone())).collect()
}

/// Number of distinct selected tokens.
fn distinct(picked: &[(Vec<u32>, Weighting)]) -> usize {
    picked.iter().flat_map(|(tokens, _)| tokens).collect::<std::collections::BTreeSet<_>>().len()
}

fn assert_same(ours: &Selection, expected: &Selection, what: &str) {
    let close = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    for ((tokens, weighting), (other, expected)) in sorted(ours).iter().zip(sorted(expected)) {
        assert_eq!(*tokens, other, "{what}");
        let same = match (weighting, &expected) {
            (Weighting::Softmax, Weighting::Softmax) => true,
            (Weighting::LogBias(a), Weighting::LogBias(b)) => close(a, b),
            (Weighting::Direct { weights: a, log_mass: x }, Weighting::Direct { weights: b, log_mass: y }) => {
                close(a, b) && (x - y).abs() < 1e-4
            }
            (Weighting::Remainder { shares: a, value: x }, Weighting::Remainder { shares: b, value: y }) => {
                close(a, b) && close(x, y)
            }
            _ => false,
        };
        assert!(same, "{what}: {weighting:?} instead of {expected:?}");
    }
}

#[test]
fn at_every_step_the_picks_are_those_of_an_index_made_from_scratch() {
    for spec in GROWING {
        for (tail, prefix_tokens, steps) in [("indexed", 90, 60), ("window:3", 40, 150), ("window:30", 20, 80)] {
            let policy = Policy { sink: 3, local: 8, tail: tail.parse().unwrap(), ..none() };
            let mut stepper = Stepper::new(spec, &policy, prefix_tokens, 2);
            for step in 0..steps {
                let (ours, _) = stepper.step();
                if stepper.candidates().is_empty() {
                    continue;
                }
                assert_same(&ours, &stepper.from_scratch(), &format!("{spec}, {tail}, step {step}"));
            }
            assert!(stepper.candidates().end > prefix_tokens, "some of the tail can be picked");
        }
    }
}

/// At every step a device form that grows states the cost that the host counts, and the bytes of its index behind the prefix.
#[test]
fn a_form_on_a_device_that_grows_costs_what_the_host_counts() {
    for spec in [
        "topk:k=12",
        "topk:k=12,per=kv_head",
        "topk:k=7,per=kv_head,reduce=max",
        "quest:page=4,k=12",
        "quest:page=7,k=20,per=kv_head",
        "double_sparsity:k=12",
        "double_sparsity:k=12,kind=random,label_bits=2,per=kv_head",
        "hash_attention:k=12",
        "hash_attention:k=12,per=kv_head,reduce=max",
    ] {
        for (tail, prefix_tokens, steps) in [("indexed", 150, 60), ("window:3", 40, 150)] {
            let policy = Policy { sink: 3, local: 8, tail: tail.parse().unwrap(), ..none() };
            let mut stepper = Stepper::new(spec, &policy, prefix_tokens, 2);
            for step in 0..steps {
                let (selection, counted) = stepper.step();
                let heads: Vec<Vec<u32>> = sorted(&selection).into_iter().map(|(tokens, _)| tokens).collect();
                let (cost, bytes) = stepper.stated_on_device(&heads);
                assert_eq!(cost, counted, "{spec}, {tail}, step {step}");
                assert_eq!(bytes, stepper.state_bytes(), "{spec}, {tail}, step {step}");
            }
        }
    }
}

/// A graph is built once, over the prefix. A search as wide as the graph scores every node, and a few once more on its
/// way down; each query scores the candidates after the graph once.
#[test]
fn what_is_scored_beside_a_graph_is_counted() {
    for spec in ["knn:k=12,ef=1000", "retrieval_attention:k=12,ef=1000"] {
        let policy = Policy { sink: 3, local: 8, tail: Tail::Indexed, ..none() };
        let mut stepper = Stepper::new(spec, &policy, 40, 2);
        let nodes = stepper.candidates().len();
        for step in 0..90 {
            let (selection, cost) = stepper.step();
            let (all, each) = (stepper.candidates().len(), 2 * stepper.d() as u64);
            // Attention multiplies and reads the attended tokens.
            let scored = cost.score_flops / each + 2 * 12;
            let read = scored - distinct(&sorted(&selection)) as u64;
            let expected = (each * (scored - 2 * 12), 2 * each * read);
            assert_eq!((cost.score_flops, cost.kv_bytes), expected, "{spec}, step {step}");
            // Products of two queries.
            let within = 2 * all as u64..=2 * (all + nodes) as u64;
            assert!(within.contains(&scored), "{spec}, step {step}: {scored} of {all}");
        }
    }
}

/// Codes have groups of 128 tokens; the prefix has whole groups, and the sequence's own index continues after them.
#[test]
fn a_second_score_tells_the_codes_of_prefix_and_tail_apart() {
    for spec in ["topk:k=60,rescore=int4,k2=9", "twilight:page=4,k=60,p=0.4,per=kv_head"] {
        let policy = Policy { sink: 3, local: 8, tail: Tail::Indexed, ..none() };
        let mut stepper = Stepper::new(spec, &policy, 200, 2);
        for step in 0..40 {
            let (ours, _) = stepper.step();
            assert_same(&ours, &stepper.from_scratch(), &format!("{spec}, step {step}"));
        }
    }
}

/// Attention over a growing tail, with any weights: the outputs of many steps in one run equal those of runs of one
/// step, whose prefix is all that came before.
#[test]
fn picks_among_what_followed_the_prefix_are_attended_as_those_of_a_prefix_are() {
    const TOKENS: usize = 60;
    const STEPS: usize = 45;
    let whole = random_kv(KvDtype::F32, 2, TOKENS, 32, 21);
    let row = |store: &KvStore, token: usize| -> Vec<f32> {
        (0..2).flat_map(|head| store.head(head).slice(token..token + 1, 32).to_f32()).collect()
    };
    let first = |tokens: usize| {
        let mut kv = whole.clone();
        kv.truncate(tokens, tokens);
        Prefix::new(vec![kv])
    };
    for spec in GROWING.iter().filter(|spec| !spec.starts_with("lsh_bits")) {
        let policy = Policy { sink: 2, local: 5, tail: Tail::Indexed, ..none() };
        let method = calibrated(configured(spec, &policy), 1, 4, 2, 32);
        let fork = |tokens: usize| IndexCache::new(first(tokens), KvDtype::F32, 7).fork(&method, false).unwrap();
        let mut run = fork(TOKENS - STEPS);
        for token in TOKENS - STEPS..TOKENS {
            let (query, key, value) = (noise(4 * 32, token as u64), row(&whole.keys, token), row(&whole.values, token));
            let step = |fork: &mut Sequence| {
                let mut out = vec![f32::NAN; 4 * 32];
                fork.step(0, &query, &key, &value, &mut out).unwrap();
                out
            };
            let (ours, alone) = (step(&mut run), step(&mut fork(token)));
            assert_close(&ours, &alone, 1e-5, &format!("{spec}, token {token}"));
        }
    }
}

#[test]
fn every_rule_but_exact_is_tested_here() {
    for entry in METHODS {
        let rule = configured(entry.name, &none()).method.tail_rule();
        let is_tested = GROWING.iter().any(|spec| spec.split(':').next() == Some(entry.name))
            || ["lsh_bits", "pqcache"].contains(&entry.name);
        assert_eq!(matches!(rule, TailRule::Indexed(_)), is_tested, "{}: {rule:?}", entry.name);
    }
}

/// A step attends the selected tokens, the sink and the window, and no others: the budget holds however long the answer is.
#[test]
fn a_long_answer_stays_within_the_budget() {
    let prefix = prefix(1, 1, 60, 32);
    for spec in GROWING.iter().filter(|spec| spec.contains("k=12") && !spec.contains("topp")) {
        let policy = Policy { sink: 4, local: 8, tail: Tail::Indexed, ..none() };
        let (_, fork) = run(&prefix, spec, &policy, 2, 300);
        let cost = fork.costs().total(|_| true);
        let page = if spec.starts_with("quest") { 4 } else { 1 };
        assert!(cost.attended_tokens <= cost.steps * (4 + 8 + 12 + page), "{spec}: {cost:?}");
        let (_, exact) = run(&prefix, spec, &Policy { tail: Tail::Exact, ..policy }, 2, 300);
        let free = exact.costs().total(|_| true).attended_tokens;
        assert!(free > 5 * cost.attended_tokens, "{spec}: an exact tail grows with the answer, {free}");
    }
}

/// The page that the current token fills is the first page of the budget, whatever its bound; the others have the
/// largest bounds. This matters only if the window is shorter than a page; otherwise that page is static anyway.
#[test]
fn the_page_being_filled_is_attended_within_the_budget() {
    for (spec, page, budget) in [
        ("quest:preset=paper,k=48,dense_layers=none", 16, 3),
        // At least three pages.
        ("quest:preset=repo,k=16,dense_layers=none", 16, 3),
        ("quest:page=5,k=20,sink=3,local=2,tail=indexed", 5, 4),
        ("quest:page=5,k=20,sink=3,tail=window:3", 5, 4),
        ("quest:page=5,k=20,sink=3,tail=window:5", 5, 4),
        ("quest:page=4,k=4,sink=0,local=0,tail=indexed", 4, 1),
    ] {
        let mut stepper = Stepper::new(spec, &none(), 90, 2);
        let mut kept = 0;
        for total in 91..160 {
            let (selection, _) = stepper.step();
            let Selection::PerHead(heads) = selection else { panic!("a set for each query head") };
            let candidates: Vec<usize> = stepper.candidates().collect();
            let pages: Vec<&[usize]> = candidates.chunks(page).collect();
            let sink = candidates[0];
            let own: Vec<usize> =
                (sink..total - 1).filter(|t| (t - sink) / page == (total - 1 - sink) / page).collect();
            let open = pages.iter().position(|page| page.iter().any(|token| own.contains(token)));
            kept += usize::from(open.is_some());
            for (head, picks) in heads.iter().enumerate() {
                let bound = |place: &usize| -> f64 {
                    let channel = |c: usize| {
                        let products = pages[*place]
                            .iter()
                            .map(|t| f64::from(stepper.query(head)[c]) * f64::from(stepper.key(*t)[c]));
                        products.fold(f64::NEG_INFINITY, f64::max)
                    };
                    (0..stepper.d()).map(channel).sum()
                };
                let mut order: Vec<usize> = (0..pages.len()).filter(|place| Some(*place) != open).collect();
                order.sort_by(|a, b| bound(b).total_cmp(&bound(a)));
                order.truncate(budget - usize::from(open.is_some()));
                order.extend(open);
                order.sort_unstable();
                let expected: Vec<u32> = order.iter().flat_map(|p| pages[*p]).map(|t| *t as u32).collect();
                assert_eq!(picks.tokens, expected, "{spec}, {total} tokens, head {head}");
                let is_attended =
                    |token: &usize| *token >= stepper.candidates().end || picks.tokens.contains(&(*token as u32));
                assert!(own.iter().all(is_attended), "{spec}, {total} tokens, head {head}: all of its page");
            }
        }
        assert_eq!(kept > 0, !spec.ends_with("window:5"), "{spec}");
    }
}

#[test]
fn auxiliary_memory_is_that_of_all_that_can_be_looked_up() {
    let prefix = prefix(1, 1, 64, 32);
    let policy = Policy { tail: Tail::Window(1), ..none() };
    // The prefix index holds 64 tokens, that of the tail 64 more; the last token is in neither.
    let (_, fork) = run(&prefix, "loki:k=4,rank=8", &policy, 2, 65);
    assert_eq!(fork.aux_bits(), 8.0 * 32.0 * 128.0 / 129.0);
}

/// Two FLOPs a channel for each head and candidate, also for candidates that left the window.
#[test]
fn what_left_the_window_is_scored_and_paid_for() {
    let (prefix_tokens, d, heads, steps) = (64, 32, 2, 50);
    let prefix = prefix(1, 1, prefix_tokens, d);
    let policy = Policy { sink: 3, tail: Tail::Window(5), ..none() };
    let (_, fork) = run(&prefix, "topk:k=4", &policy, heads, steps);
    // The products with the four selected tokens count as attention.
    let candidates: usize = (1..=steps).map(|step| prefix_tokens + step - 3 - 5 - 4).sum();
    assert_eq!(fork.costs().total(|_| true).score_flops as usize, heads * 2 * d * candidates);
}

/// An appended key gets the signature that it would have in the prefix, except for statistics of all keys.
#[test]
fn what_is_learned_of_a_prefix_holds_for_what_follows() {
    for spec in [
        "lsh_bits:k=12,bits=64",
        "lsh_bits:k=12,bits=64,label=av",
        "lsh_bits:k=12,bits=64,center=true",
        "magicpig:K=3,L=9",
        "magicpig:K=3,L=9,simple_lsh=true",
    ] {
        let policy = Policy { sink: 3, local: 8, tail: Tail::Indexed, ..none() };
        let mut stepper = Stepper::new(spec, &policy, 200, 2);
        let (mut overlap, mut of_tail, mut picked) = (0, 0, 0);
        for _ in 0..120 {
            let ours = stepper.step().0;
            for ((ours, _), (exact, _)) in sorted(&ours).iter().zip(sorted(&stepper.from_scratch())) {
                overlap += ours.iter().filter(|token| exact.contains(token)).count();
                of_tail += ours.iter().filter(|token| **token >= 200).count();
                picked += ours.len();
            }
        }
        // The longest key, the shortest value and the mean key may differ.
        assert!(overlap * 10 > picked * 7, "{spec}: {overlap} of {picked} as if learned anew");
        // Tokens of the tail are 0 to 112 of 189 to 301 candidates: a fifth on average, like any others.
        assert!((picked / 7..picked / 3).contains(&of_tail), "{spec}: {of_tail} of {picked} follow the prefix");
    }
}

/// If the prefix has no candidates to learn from, all later candidates are selected.
#[test]
fn without_a_prefix_to_learn_from_all_candidates_are_attended() {
    for spec in ["lsh_bits:k=2", "lsh_bits:k=2,per=kv_head", "pqcache:k=2"] {
        let policy = Policy { sink: 3, local: 4, tail: Tail::Indexed, ..none() };
        let mut stepper = Stepper::new(spec, &policy, 6, 2);
        for step in 0..20 {
            let ours = stepper.step().0;
            // From 7 tokens on, the first three and the last four are static.
            let all: Vec<u32> = (3..(3 + step).max(3)).collect();
            for (tokens, weighting) in sorted(&ours) {
                assert_eq!((tokens, weighting), (all.clone(), Weighting::Softmax), "{spec}, step {step}");
            }
        }
    }
}

#[test]
fn who_keeps_generated_tokens_says_why_and_goes_on_to() {
    let indexed = Policy { tail: Tail::Indexed, ..Policy::default() };
    for name in ["snapkv", "infllm", "retrieval_attention", "full"] {
        assert_eq!(configured(name, &indexed).policy.tail, Tail::Exact, "{name}");
        let spec = crate::expand_grid(&format!("{name}:tail=indexed")).unwrap().remove(0);
        let refused = configure(&spec, &Policy::default()).unwrap_err();
        assert!(refused.what.contains("tail=indexed") && refused.hint.is_some(), "{refused:?}");
    }
    let setting = |spec: &str| {
        let settings = configured(spec, &indexed).settings;
        settings.into_iter().find(|s| s.key == "tail").map(|s| (s.value, s.is_named))
    };
    assert_eq!(setting("snapkv"), Some(("exact".to_owned(), false)));
    assert_eq!(setting("h2o"), Some(("own".to_owned(), false)));
    assert_eq!(setting("topk"), Some(("indexed".to_owned(), true)));
    assert_eq!(setting("topk:tail=exact"), Some(("exact".to_owned(), false)));
}
