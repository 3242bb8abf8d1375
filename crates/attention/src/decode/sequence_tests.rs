//! One sequence: what it attends, selects and counts, on the host and as a device would.

use std::time::Duration;

use super::index_cache::IndexCache;
use super::layer_step::SelectionSite;
use super::sequence::{MIN_PARALLEL_TOKENS, Selector, Sequence};
use super::timing::IndexTime;
use crate::PromptShape;
use crate::calibration::collector::PrefillChunk;
use crate::kv::{DeviceFailure, KvDtype, KvShape, LayerKv, Prefix};
use crate::types::budget::Context;
use crate::types::selection::AttendedTokens;
use crate::{AttentionSpec, LayerSpecs, PromptNeed, PromptStats};

#[test]
fn what_was_gathered_is_part_of_every_index_and_spent_once() {
    let (d, tokens) = (4, 30);
    let mut kv = LayerKv::new(KvDtype::F32, 1, d, tokens);
    (0..tokens).for_each(|t| kv.append(&[t as f32; 4], &[1.0; 4]));
    let needs = [PromptNeed::AttentionMass, PromptNeed::LastQueries(2)];
    let shape = PromptShape { layers: 1, heads: 1, kv_heads: 1, d, tokens };
    let mut stats = PromptStats::new(&needs.into(), shape);
    let queries = vec![0.5; tokens * d];
    stats.observe(&PrefillChunk::new(0, 0, &queries, 1, &kv)).unwrap();
    let times = needs.map(|need| stats.time(need));
    assert!(times.iter().all(|time| !time.is_zero()));
    let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_stats(stats);
    let [mass, last] = times;
    let both = mass + last;
    assert_eq!(cache.gathering_time(&needs[..1]), IndexTime { whole: mass, reused: Duration::ZERO });
    assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: mass });
    assert_eq!(cache.gathering_time(&needs), IndexTime { whole: both, reused: both });
}

/// What a method keeps of a prefix is chosen by scores that do not depend on how much it is.
#[test]
fn sequences_that_keep_different_amounts_share_the_scores_that_they_choose_by() {
    let (d, tokens) = (4, 60);
    let noise = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
    };
    let cache = || {
        let mut kv = LayerKv::new(KvDtype::F32, 2, d, tokens);
        (0..tokens).for_each(|t| kv.append(&noise(2 * d, t), &noise(2 * d, 500 + t)));
        let needs = [PromptNeed::SampledQueries(512), PromptNeed::LastQueries(4), PromptNeed::LastQueries(6)];
        let shape = PromptShape { layers: 1, heads: 4, kv_heads: 2, d, tokens };
        let mut stats = PromptStats::new(&needs.into(), shape);
        stats.observe(&PrefillChunk::new(0, 0, &noise(tokens * 4 * d, 7), 4, &kv)).unwrap();
        IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_stats(stats)
    };
    let policy = crate::Policy { sink: 1, local: 2, ..Default::default() };
    let (mut shared, mut kept) = (cache(), Vec::new());
    for (sets, specs) in [
        (1, ["snapkv:k=5,window=4", "snapkv:k=20,window=4"]),
        (1, ["snapkv:ratio=0.3,window=4", "ada_kv:k=9,window=4"]),
        (1, ["pyramid_kv:k=9,window=4", "ada_kv:k=9,window=4,floor=1"]),
        (2, ["snapkv:k=9,window=6", "ada_kv:k=20,window=6"]),
        (3, ["expected_attention:k=5", "expected_attention:ratio=0.4"]),
    ] {
        for spec in specs {
            let method = crate::methods::configure(&crate::expand_grid(spec).unwrap()[0], &policy).unwrap();
            let attended = |cache: &mut IndexCache| {
                let mut fork = cache.fork(&method, false).unwrap();
                let mut out = vec![f32::NAN; 4 * d];
                fork.step(0, &noise(4 * d, 1), &noise(2 * d, 2), &noise(2 * d, 3), &mut out).unwrap();
                (out, fork.kv_tokens_held().to_string(), fork.aux_bits().to_string())
            };
            let own = attended(&mut cache());
            assert_eq!(attended(&mut shared), own, "{spec}");
            kept.push(own.1);
        }
        assert_eq!(shared.sets.len(), sets, "{specs:?}");
    }
    kept.sort_unstable();
    kept.dedup();
    assert!(kept.len() >= 5, "what is kept differs: {kept:?}");
}

const TOKENS: usize = 12;
const D: usize = 8;

/// Forks of one prefix of a layer with two KV heads, and a function that makes a row's queries, key and value.
fn forks<const N: usize>(spec: &str, fidelity: bool) -> ([Sequence; N], impl Fn(u64) -> [Vec<f32>; 3]) {
    let noise = |count: usize, seed: u64| -> Vec<f32> {
        (0..count as u64).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
    };
    let mut kv = LayerKv::new(KvDtype::F32, 2, D, TOKENS);
    (0..TOKENS as u64).for_each(|t| kv.append(&noise(2 * D, 50 + t), &noise(2 * D, 80 + t)));
    let spec = crate::expand_grid(spec).unwrap().remove(0);
    let method = crate::methods::configure(&spec, &crate::Policy { sink: 1, local: 2, ..Default::default() }).unwrap();
    let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1);
    let row = move |i: u64| [noise(4 * D, 10 + i), noise(2 * D, 20 + i), noise(2 * D, 30 + i)];
    (std::array::from_fn(|_| cache.fork(&method, fidelity).unwrap()), row)
}

/// With 40 tokens behind a prefix of 500 the mean context is 520. Tokens that a moving window leaves behind can be selected.
#[test]
fn what_is_set_once_is_set_for_the_mean_of_the_tokens_that_follow() {
    use crate::{Policy, Tail};
    let configured = |spec: &str, policy: &Policy| {
        let spec = crate::expand_grid(spec).unwrap().remove(0);
        crate::methods::configure(&spec, policy).unwrap()
    };
    let (tokens, policy) = (500, Policy { sink: 4, local: 16, ..Policy::default() });
    let mut kv = LayerKv::new(KvDtype::F32, 1, 16, tokens);
    (0..tokens).for_each(|_| kv.append(&[0.5; 16], &[0.5; 16]));
    let cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1).with_prompt(510).with_given(30);
    let context = |spec: &str, policy: &Policy| {
        let context = cache.mean_context(&configured(spec, policy));
        (context.tokens, context.fixed)
    };
    assert_eq!(context("topk", &policy), (520, 4 + 16 + 20));
    assert_eq!(context("topk", &Policy { tail: Tail::Window(16), ..policy.clone() }), (520, 4 + 16));
    assert_eq!(context("tova", &policy), (520, 4 + 1));
    assert_eq!(context("snapkv:window=32", &policy), (520, 4 + 32 + 20));
    let one = IndexCache::new(cache.prefix.clone(), KvDtype::F32, 1);
    assert_eq!(one.mean_context(&configured("topk", &policy)).tokens, 501, "the first token of an answer");
}

#[test]
fn kv_heads_on_threads_of_their_own_attend_what_is_theirs() {
    const LONG: usize = MIN_PARALLEL_TOKENS + 3;
    let noise = |count: usize, seed: u64| -> Vec<f32> {
        (0..count as u64).map(|i| ((i * 37 + seed * 101) as f32 * 0.61).sin()).collect()
    };
    let (kv_heads, group) = (3, 2);
    let row = |t: usize| [noise(kv_heads * D, 50 + t as u64), noise(kv_heads * D, 900_000 + t as u64)];
    let rows: Vec<[Vec<f32>; 2]> = (0..=LONG).map(row).collect();
    let mut kv = LayerKv::new(KvDtype::F32, kv_heads, D, LONG);
    rows[..LONG].iter().for_each(|[key, value]| kv.append(key, value));
    let queries = noise(kv_heads * group * D, 7);
    // One sink, two tokens of the window and the last token are attended besides the selection.
    let policy = crate::Policy { sink: 1, local: 2, ..Default::default() };
    let candidates = 1..LONG - 2;
    let expected = |k: usize| -> Vec<f64> {
        let head = |(head, query): (usize, &[f32])| {
            let own = |row: &[f32]| row[head / group * D..][..D].iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
            let logit = |[key, _]: &[Vec<f32>; 2]| -> f64 {
                own(key).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum::<f64>() / (D as f64).sqrt()
            };
            let logits: Vec<f64> = rows.iter().map(logit).collect();
            let mut picked: Vec<usize> = candidates.clone().collect();
            picked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            picked.truncate(k);
            let attended = (0..=LONG).filter(|t| !candidates.contains(t)).chain(picked);
            let (mut out, mut sum) = (vec![0.0; D], 0.0);
            for t in attended {
                sum += logits[t].exp();
                out.iter_mut().zip(own(&rows[t][1])).for_each(|(o, v)| *o += logits[t].exp() * v);
            }
            out.into_iter().map(|o| o / sum).collect::<Vec<f64>>()
        };
        queries.chunks_exact(D).enumerate().flat_map(head).collect()
    };
    let mut cache = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1);
    let [key, value] = &rows[LONG];
    for (spec, k) in [("full", LONG), ("topk:k=5000", LONG), ("topk:k=40", 40), ("random:k=5000", LONG)] {
        let method = crate::expand_grid(spec).unwrap().remove(0);
        let method = crate::methods::configure(&method, &policy).unwrap();
        let mut out = vec![f32::NAN; queries.len()];
        cache.fork(&method, false).unwrap().step(0, &queries, key, value, &mut out).unwrap();
        for (ours, expected) in out.iter().zip(expected(k)) {
            assert!((f64::from(*ours) - expected).abs() < 1e-4, "{spec}: {ours} for {expected}");
        }
    }
}

#[test]
fn what_is_attended_is_counted_by_head_and_token() {
    let ([mut fork], row) = forks("topk:k=3", false);
    for i in 0..2 {
        let [queries, key, value] = row(i);
        fork.step(0, &queries, &key, &value, &mut [0.0; 4 * D]).unwrap();
    }
    let cost = &fork.costs().layers()[0];
    // With 13 and then 14 tokens in context, each of four heads attends a sink, two tokens of the window, three selected ones, and the one
    // or two behind the prefix. In the second step, the first token behind the prefix is free: it is neither the new token nor within the
    // budget.
    let (context, attended) = (4 * (13 + 14), 4 * (7 + 8));
    assert_eq!((cost.steps, cost.context_tokens, cost.attended_tokens, cost.free_tokens), (8, context, attended, 4));
    // All tokens but three selected ones per head and step are attended exactly whatever is selected.
    assert_eq!(cost.exact_tokens, attended - 4 * 2 * 3);
    // One product with a key and one with a value.
    let each = 2 * 2 * D as u64;
    assert_eq!((cost.attend_flops, cost.full_flops), (each * attended, each * context));
}

#[test]
fn every_head_is_compared_once_at_its_own_place() {
    // Everything is selected: nothing differs from exact attention, and no mass is missed.
    let ([mut fork], row) = forks("topk:k=100", true);
    let [queries, key, value] = row(0);
    fork.step(0, &queries, &key, &value, &mut [0.0; 4 * D]).unwrap();
    let meter = fork.fidelity().unwrap();
    assert_eq!(meter.dropped_mass(), [vec![0.0; 4]], "four heads of one layer");
}

#[test]
fn rows_may_be_picked_for_first_and_compared_afterwards() {
    let ([mut whole, mut split], row) = forks("topk:k=3,tail=indexed", true);
    let rows: Vec<[Vec<f32>; 3]> = (0..4).map(row).collect();
    let step = |[queries, key, value]: &[Vec<f32>; 3]| {
        let mut out = vec![f32::NAN; 4 * D];
        whole.step(0, queries, key, value, &mut out).unwrap();
        out
    };
    let outs: Vec<Vec<f32>> = rows.iter().map(step).collect();
    let picked: Vec<Vec<AttendedTokens>> =
        rows.iter().map(|[queries, key, value]| split.select(0, queries, key, value).unwrap()).collect();
    for (i, (([queries, ..], picked), out)) in rows.iter().zip(&picked).zip(&outs).enumerate() {
        split.compare(0, queries, picked, TOKENS + i + 1, out).unwrap();
    }
    assert_eq!((split.tokens(), split.costs()), (whole.tokens(), whole.costs()));
    let [split, whole] = [&split, &whole].map(|fork| fork.fidelity().unwrap());
    assert_eq!(split.output_error(), whole.output_error());
    assert_eq!((split.recall(), split.dropped_mass()), (whole.recall(), whole.dropped_mass()));
}

#[test]
fn a_row_for_which_nothing_is_picked_costs_the_same_unseen() {
    for spec in ["full", "streaming_llm:window=4", "streaming_llm:window=4,slide=false", "topk:k=3,dense_layers=0"] {
        let ([mut seen, mut unseen], row) = forks(spec, false);
        assert!(!unseen.selects_at(0), "{spec}");
        for [queries, key, value] in (0..3).map(row) {
            let picked = seen.select(0, &queries, &key, &value).unwrap();
            assert!(picked.iter().all(|picked| picked.selection.is_none()));
            assert_eq!(unseen.attend_static_only(0, 4), picked[0].exact, "{spec}");
        }
        assert_eq!((unseen.tokens(), unseen.costs()), (seen.tokens(), seen.costs()), "{spec}");
    }
    let ([picks], _) = forks("topk:k=3", false);
    assert!(picks.selects_at(0) && picks.selects_on_host());
}

#[test]
fn what_is_drawn_without_a_look_is_what_a_step_picks_and_costs() {
    for spec in [
        "random:k=3",
        "random:ratio=0.3",
        "random:density=0.6",
        "random:k=3,per=kv_head",
        "random:k=50",
        "random:k=0",
        "random:k=3,tail=indexed",
        "topk:k=0",
        "topk:k=0,per=kv_head",
    ] {
        let ([mut seen, mut drawn], row) = forks(spec, false);
        assert_eq!(drawn.selection_site(0), SelectionSite::DataIndependent, "{spec}");
        for [queries, key, value] in (0..4).map(row) {
            assert_eq!(drawn.select_without_queries(0, 4), seen.select(0, &queries, &key, &value).unwrap(), "{spec}");
        }
        assert_eq!((drawn.tokens(), drawn.costs()), (seen.tokens(), seen.costs()), "{spec}");
        assert_eq!((drawn.aux_bits(), drawn.kv_bytes_held()), (seen.aux_bits(), seen.kv_bytes_held()), "{spec}");
        assert!(drawn.selects_on_host());
    }
    let ([watched], _) = forks("random:k=3", true);
    assert_eq!(watched.selection_site(0), SelectionSite::Host, "it is compared with exact attention");
}

#[test]
fn a_step_left_to_a_device_costs_what_it_costs_the_host_once_it_is_settled() {
    for spec in [
        "topk:k=3",
        "topk:k=50",
        "topk:ratio=0.3",
        "topk:density=0.6",
        "topk:k=3,per=kv_head",
        "topk:k=3,per=kv_head,reduce=max",
        "quest:page=2,k=3",
        "quest:page=5,k=4",
        "quest:page=5,k=50",
        "quest:page=2,k=1,min_pages=3",
        "quest:page=5,k=4,per=kv_head,reduce=max",
    ] {
        let ([mut seen, mut left], row) = forks(spec, false);
        left.selector = Selector::device(1);
        assert_eq!(
            (seen.selection_site(0), left.selection_site(0)),
            (SelectionSite::Host, SelectionSite::Device),
            "{spec}"
        );
        for steps in [0..3, 3..4] {
            // The device's counters: tokens read by two KV heads, tokens attended by four query heads, index entries read.
            let mut counted = [0; 7];
            for [queries, key, value] in steps.map(&row) {
                let picked = seen.select(0, &queries, &key, &value).unwrap();
                assert_eq!(left.select_on_device(0, 4), picked[0].exact, "{spec}");
                let total = seen.tokens();
                for (kv_head, picked) in picked.iter().enumerate() {
                    let fixed = picked.exact.tokens(total);
                    counted[kv_head] += picked.selection.as_ref().map_or(0, |s| s.tokens(total).len()) as u64;
                    let heads = counted[2 + 2 * kv_head..].iter_mut().zip(picked.attended(2, total));
                    heads.for_each(|(sum, attended)| *sum += (attended - fixed) as u64);
                }
            }
            assert!(left.has_uncollected_counters());
            left.collect_device_counters(&counted);
            assert!(!left.has_uncollected_counters());
            assert_eq!((left.tokens(), left.costs()), (seen.tokens(), seen.costs()), "{spec}");
            assert_eq!(left.kv_bytes_held(), seen.kv_bytes_held(), "{spec}");
        }
        assert!(seen.selects_on_host() && !left.selects_on_host(), "{spec}");
    }
}

#[test]
fn a_method_has_a_form_on_a_device_if_all_of_its_parts_have() {
    let form = |spec: &str| {
        let ([fork], _) = forks(spec, false);
        fork.method().method.device_form().is_ok()
    };
    for spec in [
        "topk:k=3",
        "topk:per=kv_head",
        "quest",
        "quest:k=3,min_pages=2",
        "topp:density=0.5",
        "topk:pick=topp",
        "sparq:k=3,r=2",
    ] {
        assert!(form(spec), "{spec}");
    }
    for spec in [
        "full",
        "random",
        "topk:k=0",
        "sparq:storage=1xK",
        "topk:pick=sample",
        "topk:rescore=int4",
        "quest:rescore=exact",
    ] {
        assert!(!form(spec), "{spec}");
    }
}

#[test]
fn what_is_picked_for_together_differs_in_budgets_alone() {
    let policy = crate::Policy::default();
    let method = |spec: &str| {
        let spec = crate::expand_grid(spec).unwrap().remove(0);
        crate::methods::configure(&spec, &policy).unwrap()
    };
    for (a, b, together) in [
        ("topk:k=3", "topk:k=5", true),
        ("topk:k=3", "topk:density=0.1", true),
        ("topk:ratio=0.1,reduce=max,per=kv_head", "topk:k=3,per=kv_head,reduce=max", true),
        ("topk:k=3", "topk:k=3,per=kv_head", false),
        ("topk:per=kv_head", "topk:per=kv_head,reduce=max", false),
        ("topk:k=3", "topk:pick=topp,p=0.5", false),
        ("topk:k=3", "quest:k=3", false),
        // Parameters of the comparison with queries must agree too.
        ("sparq:k=3,r=4", "sparq:k=5,r=4", true),
        ("sparq:k=3,r=4", "sparq:k=3,r=8", false),
        ("lsh_bits:k=3", "lsh_bits:ratio=0.1", true),
        ("lsh_bits:k=3", "lsh_bits:k=3,ties=first", false),
        ("hash_attention:k=3", "hash_attention:k=3,ties=first", false),
        ("magicpig:K=4,L=12", "magicpig:K=4,L=12,min_collisions=1", false),
        // Selections by share, samples, searches and evictions have no budget that is a number of rows.
        ("topp:p=0.5", "topp:p=0.6", false),
        ("topp:p=0.5", "topp:p=0.5", true),
        ("oracle_sampling:budget=3", "oracle_sampling:budget=4", false),
        ("hip:k=16", "hip:k=32", false),
        ("hip:k=16", "hip:k=16,r_m=1", false),
        ("h2o:k=3", "h2o:k=5", false),
    ] {
        assert_eq!([(a, b), (b, a)].map(|(a, b)| method(a).picks_with(&method(b))), [together; 2], "{a} with {b}");
    }
    let number =
        |spec: &str| method(spec).method.device_form().unwrap().budget_units(Context::new(TOKENS + 1, &(1..9)), 8);
    // Budgets end at the number of candidates: eight tokens, or four pages of two.
    assert_eq!(["topk:k=3", "topk:k=5", "topk:k=50"].map(number), [3, 5, 8]);
    let of_pages = ["quest:page=2,k=3", "quest:page=2,k=1,min_pages=3", "quest:page=2,k=100"];
    assert_eq!(of_pages.map(number), [2, 3, 4]);
}

/// A prefix held by a device that is no GPU.
#[derive(Debug)]
struct Elsewhere;

impl crate::kv::DeviceKv for Elsewhere {
    fn shape(&self) -> crate::kv::KvShape {
        crate::kv::KvShape { kv_heads: 2, d: D, dtype: KvDtype::F32 }
    }

    fn copy_layer(&self, _: usize) -> Result<LayerKv, DeviceFailure> {
        Ok(LayerKv::zeros(self.shape(), TOKENS))
    }
}

#[test]
fn a_device_picks_for_methods_that_can_and_only_where_nobody_looks() {
    let policy = crate::Policy { sink: 1, local: 2, ..Default::default() };
    let fork = |spec: &str, fidelity: bool, on_host: bool| {
        let spec = crate::expand_grid(spec).unwrap().remove(0);
        let method = crate::methods::configure(&spec, &policy).unwrap();
        let cache = IndexCache::new(
            Prefix::on_device(LayerSpecs::uniform(1, AttentionSpec::of_width(D)), TOKENS, Box::new(Elsewhere)),
            KvDtype::F32,
            1,
        );
        if on_host { cache.selecting_on_host() } else { cache }.fork(&method, fidelity).unwrap()
    };
    let there = crate::backend::active::HAS_DEVICE;
    assert_eq!(fork("topk:k=3", false, false).selects_on_device(), there);
    assert_eq!(fork("quest:k=3", false, false).selects_on_device(), there);
    assert_eq!(fork("topk:k=3,tail=indexed", false, false).selects_on_device(), there);
    assert_eq!(fork("topk:k=3,schedule=linear", false, false).selects_on_device(), there);
    for (spec, fidelity, on_host) in [
        ("topk:k=3", true, false),
        ("topk:k=3", false, true),
        ("topk:pick=topp,tail=indexed", false, false),
        ("topk:pick=sample", false, false),
        ("random:k=3", false, false),
        ("full", false, false),
    ] {
        assert!(!fork(spec, fidelity, on_host).selects_on_device(), "{spec}");
    }
    let stays = |spec: &str| {
        let spec = crate::expand_grid(spec).unwrap().remove(0);
        crate::methods::configure(&spec, &policy)
            .unwrap()
            .host_reasons(KvShape { kv_heads: 1, d: D, dtype: KvDtype::F32 })
            .is_empty()
    };
    for there in ["quest:k=3", "quest:k=3,local=0", "quest:preset=paper", "hip:preset=paper", "topk:k=3,tail=window:5"]
    {
        assert!(stays(there), "{there}");
    }
    for here in ["lsh_bits:k=3,tail=indexed", "quest:pick=topp,tail=indexed", "sparq:k=3,tail=window:5"] {
        assert!(!stays(here), "{here}: its index on the device does not grow");
    }
    let dense = fork("topk:k=3,dense_layers=0", false, false);
    assert_eq!((dense.selection_site(0), dense.selects_on_host()), (SelectionSite::None, false));
}

/// Returns the softmax over static tokens and the tokens of a partial softmax, computed naively; `[d]`.
fn merged(query: &[f32], tokens: &[(&[f32], &[f32])], partial: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (D as f64).sqrt();
    let logit = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale;
    let mut sum = f64::from(partial[1]) * f64::from(partial[0]).exp();
    let mut out: Vec<f64> = partial[2..].iter().map(|x| f64::from(*x) * f64::from(partial[0]).exp()).collect();
    for (key, value) in tokens {
        let weight = logit(key).exp();
        sum += weight;
        out.iter_mut().zip(*value).for_each(|(out, x)| *out += weight * f64::from(*x));
    }
    out.into_iter().map(|x| (x / sum) as f32).collect()
}

/// The host's part and the static tokens together give what a whole step attends, at the same cost.
#[test]
fn a_part_that_the_host_attends_is_what_static_tokens_leave() {
    use super::layer_step::LayerStep;
    for spec in ["magicpig:K=2,L=9,attend_on=host", "magicpig:K=2,L=9,attend_on=host,tail=indexed", "topk:k=3"] {
        let ([mut whole, mut part, mut alone], row) = forks(spec, false);
        let is_asked = spec.contains("host");
        assert_eq!(part.attends_part_on_host(0), is_asked, "{spec}");
        assert_eq!(part.takes_queries_alone(0), is_asked && !spec.contains("tail"), "{spec}");
        if !is_asked {
            continue;
        }
        let rows: Vec<[Vec<f32>; 3]> = (0..4).map(row).collect();
        let mut sampled = 0;
        for (i, [queries, key, value]) in rows.iter().enumerate() {
            let mut out = vec![f32::NAN; 4 * D];
            whole.step(0, queries, key, value, &mut out).unwrap();
            let attend = |fork: &mut Sequence, following| match fork.begin_step(0) {
                LayerStep::HostAttendsPart(step) => step.attend(queries, following, &[]).unwrap(),
                _ => panic!("{spec}: the host attends a part"),
            };
            let found = attend(&mut part, Some([key.as_slice(), value.as_slice()]));
            if alone.takes_queries_alone(0) {
                assert_eq!(attend(&mut alone, None), found, "{spec}, row {i}");
            }
            let prefix = whole.prefix().layer(0).unwrap();
            for head in 0..4 {
                let (kv_head, total) = (head / 2, TOKENS + i + 1);
                let [keys, values] = [&prefix.keys, &prefix.values].map(|rows| rows.head(kv_head).to_f32());
                let of_token = |token: usize| match token.checked_sub(TOKENS) {
                    None => (&keys[token * D..][..D], &values[token * D..][..D]),
                    Some(behind) => (&rows[behind][1][kv_head * D..][..D], &rows[behind][2][kv_head * D..][..D]),
                };
                let AttendedTokens { exact, selection } = &found.picked[kv_head];
                let tokens: Vec<_> = (0..exact.sink).chain(exact.recent..total).map(of_token).collect();
                let partial = &found.partials[head * (2 + D)..][..2 + D];
                let expected = merged(&queries[head * D..][..D], &tokens, partial);
                let ours = &out[head * D..][..D];
                let apart = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-5, "{spec}, row {i}, head {head}: {ours:?} and {expected:?}");
                sampled += selection.as_ref().map_or(0, |selection| selection.of_heads(2)[head % 2]);
            }
        }
        assert!(sampled > 20, "{spec}: {sampled} tokens were sampled");
        assert_eq!(whole.costs(), part.costs(), "{spec}");
        assert!(spec.contains("tail") || alone.costs() == part.costs(), "{spec}");
    }
}
