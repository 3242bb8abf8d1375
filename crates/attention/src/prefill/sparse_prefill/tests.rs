use super::*;
use crate::kv::KvDtype;
use crate::prefill::gpu_memory::{PLANNED_LIST_BYTES, PlannedBlock, mask_list_bytes};
use crate::prefill::mask::BlockMask;
use crate::prefill::testing::{D, Layer, any_mask, assert_close, method, missing, resolved};
use crate::types::budget::Context;
use crate::{PromptShape, RowSlices, SelectedTokens, SliceBounds, WeightedToken};
use proptest::prelude::*;
use spattn_kernels::Rows;
use std::collections::BTreeSet;

/// The bias on a token's logit, if the row attends the token, by the definition of a mask's parts.
fn says(mask: &Mask, first: usize, position: usize, token: usize) -> Option<f32> {
    let row = position - first;
    let is_plain = token >= mask.starts[row].min(position)
        || mask.common.contains(&(token as u32))
        || mask.slashes.iter().any(|offset| token + offset == position);
    let own = mask.own.get(row).into_iter().flatten().find(|own| own.token as usize == token);
    let of_slice = |slices: &RowSlices| {
        let places =
            slices.rows[row].iter().flat_map(|slice| slice.range.clone().map(move |place| (place as usize, slice)));
        let mut places = places.filter(|(place, slice)| Some(slices.of.groups()[*place]) != slice.without);
        let (place, _) = places.find(|(place, _)| slices.of.tokens()[*place] as usize == token)?;
        Some(slices.of.log_weights()[place])
    };
    match (token <= position, is_plain) {
        (false, _) => None,
        (true, true) => Some(0.0),
        (true, false) => own.map(|own| own.log_weight).or_else(|| mask.slices.as_ref().and_then(of_slice)),
    }
}

const SPECS: &[&str] = &[
    "streaming_llm:window=37",
    "a_shape:density=0.3",
    "bigbird:window=10,blocks=3,block=8",
    "bigbird:density=0.4,block=12,per=kv_head",
    "hip:k=24",
    "hip:k=40,b_q=10,b_k=3,b_sq=3,per=kv_head",
    "hip:density=0.25,b_q=64",
    "hip:ratio=0.1,b_q=1,b_k=1,b_sq=1",
    "hip:k=16,n_e=3,top_r=4",
    "hip:k=16,b_q=24,window=row,query_offset=last,chunks=aligned",
    "hip:k=16,b_q=24,window=row,vd=true,vertical=6,slash=5,snapshot=9",
    "vertical_slash:vertical=9,slash=7",
    "vertical_slash:vertical=20,slash=0,snapshot=3,per=kv_head",
    "vertical_slash:density=0.3",
    "minference:k=30,block=16",
    "minference:density=0.3,snapshot=5",
    "flexprefill:block=24,tau=0",
    "flexprefill:gamma=0.3,block=10,tau=1",
    "flexprefill:gamma=0.3,block=16,min_budget=40",
    "flexprefill:density=0.3,block=16",
    "hyper_attention:sample=9,block=8,min_seq_len=10",
    "hyper_attention:sample=0,block=16",
    "hyper_attention:sample=300,block=1,min_seq_len=1,lsh_num_projs=16",
    "hyper_attention:density=0.4,block=4,min_seq_len=8",
    "reformer:bucket=10",
    "reformer:bucket=16,hashes=3",
    "reformer:density=0.3",
];

#[test]
fn every_method_with_a_mask_is_tested_here() {
    let is_mask =
        |pattern: &PrefillPattern<'_>| matches!(pattern, PrefillPattern::Blocks(_) | PrefillPattern::Whole(_));
    assert_eq!(missing(SPECS, is_mask), [""; 0], "these have a mask, and no line in SPECS");
}

#[test]
fn rows_attend_what_the_mask_says_and_nothing_behind_them() {
    for (tokens, heads, kv_heads) in [(1, 2, 1), (70, 4, 2), (230, 4, 2), (150, 3, 3)] {
        let layer = Layer::new(tokens, heads, kv_heads);
        for (spec, policy) in SPECS.iter().flat_map(|spec| {
            [(4, 20), (0, 0), (90, 5)].map(|(sink, local)| (spec, Policy { sink, local, ..Policy::default() }))
        }) {
            let method = method(spec, &policy);
            let (masks, _) = layer.masks(&method);
            let rows = method.method.prefill_pattern().unwrap().query_rows();
            let sees = |position: usize, head: usize, token: usize| {
                says(&masks[position / rows][head], position - position % rows, position, token)
            };
            let what = format!("{spec} with {policy:?} on {tokens} tokens");
            assert!(
                (0..tokens).all(|at| (0..heads).all(|head| sees(at, head, at) == Some(0.0))),
                "{what}: the own token"
            );
            let (out, costs) = layer.attend(&method, tokens);
            assert_close(&out, &layer.reference(sees), &what);
            let count =
                |head: usize, position: usize| (0..=position).filter(|t| sees(position, head, *t).is_some()).count();
            let all = (0..heads).flat_map(|head| (0..tokens).map(move |position| (head, position)));
            let attended: usize = all.map(|(head, position)| count(head, position)).sum();
            let total = costs.total(|_| true);
            assert_eq!(total.attended_tokens, attended as u64, "{what}");
            assert_eq!(total.context_tokens, (heads * tokens * (tokens + 1) / 2) as u64);
            assert_eq!((total.steps, total.full_flops), ((heads * tokens) as u64, 4 * D as u64 * total.context_tokens));
            let densities = costs.head_densities(0);
            assert!((densities.iter().sum::<f64>() / heads as f64 - total.density()).abs() < 1e-9);
        }
    }
}

#[test]
fn chunks_and_threads_do_not_change_a_bit() {
    let layer = Layer::new(200, 4, 2);
    for spec in SPECS {
        let method = method(spec, &Policy::default());
        let on = |threads: usize, most: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| layer.attend(&method, most))
        };
        let once = on(1, 200);
        assert!(once == on(3, 200) && once == on(2, 1) && once == on(1, 77), "{spec}");
    }
}

#[test]
fn masks_over_a_prompt_say_what_rows_attend_by_themselves_at_most_and_lists_keep_their_diagonals() {
    let layer = Layer::new(230, 4, 2);
    let mut seen = [0, 0];
    for spec in SPECS {
        let method = method(spec, &Policy::default());
        let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else { continue };
        let (masks, _) = layer.masks(&method);
        let distinct = |own: &Vec<WeightedToken>| own.iter().map(|own| own.token).collect::<BTreeSet<_>>().len();
        let own = masks.iter().flatten().flat_map(|mask| mask.own.iter().map(distinct)).max().unwrap_or(0);
        let most = mask.own_tokens(230);
        assert!(own <= most && most <= 230 && (own > 0) == (most > 0), "{spec}: {own} of {most} tokens");
        let slices = || masks.iter().flatten().filter_map(|mask| mask.slices.as_ref());
        let of_row = slices().flat_map(|slices| &slices.rows).map(Vec::len).max().unwrap_or(0);
        let shared = slices().map(|slices| slices.of.tokens().len()).max().unwrap_or(0);
        let bounds = mask.slice_bounds(230);
        assert!(of_row <= bounds.slices && shared <= bounds.tokens, "{spec}: {of_row} slices of {shared} tokens");
        assert_eq!(of_row > 0, bounds.slices > 0, "{spec}");
        for (slices, row) in slices().flat_map(|slices| slices.rows.iter().map(move |row| (slices, row))) {
            let tokens = || row.iter().flat_map(|slice| slices.of.of(slice)).map(|own| own.token);
            let distinct = tokens().collect::<BTreeSet<_>>().len();
            assert_eq!(tokens().count(), distinct, "{spec}: slices of a row have a token in common");
        }
        seen[usize::from(own + of_row > 0)] += 1;
        let last = masks.last().unwrap();
        for (block, of_heads) in masks.iter().enumerate() {
            let end = ((block + 1) * mask.query_rows()).min(230);
            for (own, all) in of_heads.iter().zip(last) {
                let reaching = |mask: &Mask| -> Vec<usize> {
                    mask.slashes.iter().copied().filter(|distance| *distance < end).collect()
                };
                assert_eq!(reaching(own), reaching(all), "{spec}, block {block}");
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 3), "{seen:?} masks of both kinds");
}

#[test]
fn lists_of_a_plan_take_no_more_than_their_share_or_a_block() {
    let (heads, d) = (32, 128);
    let bytes = |mask: &dyn PromptMask, tokens: usize| {
        PlannedBlock::of(mask, heads, d, tokens).bytes_of(tokens.div_ceil(mask.query_rows()))
    };
    // A piece holds all blocks of a short prompt. Of a long one, it holds as many as the bytes for lists allow, but
    // at least one.
    let (plain, each) = (Costly { plan: 0, block: 0 }, 4 * 32);
    assert_eq!(bytes(&plain, 1000), 32 * each * 1000);
    assert_eq!(bytes(&plain, 131_072), PLANNED_LIST_BYTES);
    assert_eq!(bytes(&plain, 8 << 20), each * (8 << 20));
    // For each row and head: where its slice begins, a slice, a partial softmax, and the tokens with their weights.
    let own = |tokens: usize, most: usize| 4 * heads * tokens + 32 * heads * (4 + 12 + 4 * (2 + d) + 8 * most);
    assert_eq!(bytes(&Owning(100), 1000), 32 * own(1000, 100));
    assert_eq!(bytes(&Owning(100), 131_072), PLANNED_LIST_BYTES);
    assert_eq!(bytes(&Owning(131_072), 131_072), own(131_072, 131_072));
    let sliced = |tokens: usize, slices: usize| 4 * heads * tokens + 32 * heads * (4 + 12 * slices + 4 * (2 + d));
    assert_eq!(bytes(&Sharing { tokens: 5000, slices: 9 }, 1000), 32 * sliced(1000, 9));
}

#[test]
fn shared_tokens_are_planned_once_for_each_head() {
    let prompt = PromptShape { layers: 2, heads: 4, kv_heads: 2, d: 64, tokens: 3000 };
    for spec in ["hyper_attention", "hyper_attention:density=0.2", "reformer", "reformer:hashes=2"] {
        let method = method(spec, &Policy::default());
        let Some(PrefillPattern::Whole(mask)) = method.method.prefill_pattern() else { panic!("a planned mask") };
        let lists = PlannedBlock::of(mask, 4, 64, 3000).bytes_of(47);
        let shared = mask_list_bytes(&method, &prompt, 100, KvDtype::F16) - lists;
        // A token, a weight and a group.
        assert_eq!(shared, 4 * 12 * mask.slice_bounds(3000).tokens, "{spec}");
        assert_eq!(shared > 0, !spec.contains("hashes"), "{spec}");
    }
}

/// A mask whose rows attend slices of shared tokens.
struct Sharing {
    tokens: usize,
    slices: usize,
}

impl PromptMask for Sharing {
    fn query_rows(&self) -> usize {
        32
    }

    fn slice_bounds(&self, _: usize) -> SliceBounds {
        SliceBounds { tokens: self.tokens, slices: self.slices }
    }

    fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
        unreachable!("the test asks for no plan")
    }
}

/// A mask whose rows have at most this many single-row tokens.
struct Owning(usize);

impl PromptMask for Owning {
    fn query_rows(&self) -> usize {
        32
    }

    fn own_tokens(&self, _: usize) -> usize {
        self.0
    }

    fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
        unreachable!("the test asks for no plan")
    }
}

#[test]
fn with_all_tokens_left_it_is_exact_attention() {
    let layer = Layer::new(170, 4, 2);
    let full = layer.reference(|_, _, _| Some(0.0));
    let dense = Policy { dense_layers: crate::DenseLayers::parse("0").unwrap(), ..Policy::default() };
    for (spec, policy) in [
        ("a_shape:window=170", Policy::default()),
        ("bigbird:window=5,blocks=100,block=16", Policy::default()),
        ("hip:k=200", Policy::default()),
        ("hip:k=2,vd=true,vertical=200", Policy::default()),
        ("hip:k=2,vd=true,slash=200", Policy::default()),
        ("hip:k=200,window=row", Policy { sink: 4, local: 3, ..Policy::default() }),
        ("hip:ratio=1,b_k=7,per=kv_head", Policy::default()),
        ("streaming_llm:window=3", dense.clone()),
        ("vertical_slash:vertical=200,slash=0", Policy::default()),
        ("vertical_slash:vertical=0,slash=200", Policy::default()),
        ("vertical_slash:density=1", Policy::default()),
        ("minference:k=200", Policy::default()),
        ("minference:density=1,block=16", Policy::default()),
        ("flexprefill:gamma=1,tau=0", Policy::default()),
        ("flexprefill:gamma=1,tau=1,block=16", Policy::default()),
        ("flexprefill:min_budget=170,tau=0", Policy::default()),
        ("hyper_attention:min_seq_len=170", Policy::default()),
        ("hyper_attention:block=100,sample=0", Policy::default()),
        ("reformer:bucket=170", Policy::default()),
        ("reformer:density=1", Policy::default()),
        ("vertical_slash:vertical=0,slash=0", dense.clone()),
        ("hip:k=2", dense),
    ] {
        let (out, costs) = layer.attend(&method(spec, &policy), 64);
        assert_close(&out, &full, spec);
        assert_eq!((costs.total(|_| true).density(), costs.total(|_| true).cost2()), (1.0, 1.0), "{spec}");
    }
}

#[test]
fn a_block_of_one_row_is_searched_as_a_decoding_step_is() {
    // The last token is a step over a prefix of all others, or the last row of a prompt.
    let layer = Layer::new(161, 2, 1);
    for spec in ["hip:k=24,b_q=1,b_sq=1", "hip:k=30,b_q=1,b_sq=1,b_k=3,per=kv_head", "hip:k=10,b_q=1,b_sq=1,top_r=3"] {
        let method = method(spec, &Policy { sink: 4, local: 11, ..Policy::default() });
        let (masks, _) = layer.masks(&method);
        let found = |head: usize| {
            let Mask { common, starts, .. } = &masks[160][head];
            assert_eq!((common[..4].to_vec(), starts[0]), (vec![0, 1, 2, 3], 150), "ten before it, and itself");
            common[4..].to_vec()
        };
        let keys = layer.kv.keys.head(0);
        let step = crate::Step {
            layer: 0,
            depth: crate::SparseLayerRank::default(),
            kv_head: 0,
            queries: &layer.queries[160 * 2 * D..],
            d: D,
            scale: crate::SoftmaxScale::of_factor(0.25),
            keys: crate::kv::KvRows::lent(keys.slice(0..160, D), D),
            values: crate::kv::KvRows::lent(keys.slice(0..160, D), D),
            tail_keys: keys.slice(160..161, D),
            tail_values: Rows::F32(&[]),
            dtype: crate::kv::KvDtype::F32,
            indexed: 4..150,
            candidates: 4..150,
            context: Context::new(161, &(4..150)),
            grouped: None,
            has_moving_candidates: false,
            generated: 0,
            seed: 1,
        };
        let mut state = method.method.start(&());
        let picked = match method.method.select(&step, &(), state.as_mut(), &mut Cost::default()).unwrap() {
            crate::Selection::Shared(picks) => vec![picks.clone(), picks],
            crate::Selection::PerHead(heads) => heads,
        };
        assert_eq!(picked, [0, 1].map(|head| SelectedTokens::softmax(found(head))), "{spec}");
    }
}
proptest! {
    #[test]
    fn a_row_sees_each_token_of_its_mask_once((first, mask) in any_mask()) {
        for (row, seen) in resolved(&mask, first).iter().enumerate() {
            let position = first + row;
            let expected: Vec<(usize, f32)> = (0..=position)
                .filter_map(|token| Some((token, says(&mask, first, position, token)?)))
                .collect();
            prop_assert_eq!(seen, &expected, "row {} of {:?}", row, mask);
            let mut tokens: Vec<usize> = mask.row_tokens(first, position).iter().map(|t| *t as usize).collect();
            tokens.sort_unstable();
            prop_assert_eq!(tokens, expected.iter().map(|(token, _)| *token).collect::<Vec<_>>());
        }
    }

    #[test]
    fn packed_tokens_are_each_packed_once((first, mask) in any_mask()) {
        let (tokens, _) = mask.resolve(first);
        let distinct: std::collections::BTreeSet<u32> = tokens.iter().copied().collect();
        prop_assert_eq!(distinct.len(), tokens.len());
    }
}

/// A fixed mask for all blocks.
struct Given(Vec<Mask>);

impl PromptMask for Given {
    fn query_rows(&self) -> usize {
        32
    }

    fn plan<'p>(&'p self, _: &QueryBlock<'p>, _: &mut Cost) -> PromptPlan<'p> {
        Box::new(|block| Masks::Shared(self.0[block.first / 32].clone()))
    }
}

/// A mask of windows with a cost for each plan of a KV head, and for each block.
struct Costly {
    plan: u64,
    block: u64,
}

impl BlockMask for Costly {
    fn query_rows(&self) -> usize {
        32
    }

    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks {
        cost.score_flops += self.block;
        Masks::Shared(Mask::new(Vec::new(), (block.first..block.first + block.rows).collect()))
    }
}

impl PromptMask for Costly {
    fn query_rows(&self) -> usize {
        32
    }

    fn plan<'p>(&'p self, _: &QueryBlock<'p>, cost: &mut Cost) -> PromptPlan<'p> {
        cost.score_flops += self.plan;
        Box::new(|block| self.masks(block, &mut Cost::default()))
    }
}

#[test]
fn what_finding_a_mask_costs_is_counted_once() {
    let layer = Layer::new(150, 4, 2);
    let costly = Costly { plan: 1000, block: 7 };
    let window = method("streaming_llm", &Policy::default());
    for (pattern, flops) in [(PrefillPattern::Blocks(&costly), 2 * 5 * 7), (PrefillPattern::Whole(&costly), 2 * 1000)] {
        let mut sparse = SparsePrefill::new(&window, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), 3).unwrap();
        sparse.pattern = pattern;
        let mut out = vec![f32::NAN; layer.queries.len()];
        let chunk = PrefillChunk::new(0, 0, &layer.queries, 4, &layer.kv);
        sparse.attend(&chunk, &mut out).unwrap();
        let total = sparse.into_costs().total(|_| true);
        assert_eq!((total.score_flops, total.attended_tokens, total.steps), (flops, 4 * 150, 4 * 150));
    }
}

#[test]
fn verticals_slashes_and_weighted_tokens_are_attended_in_one_softmax() {
    let layer = Layer::new(150, 2, 1);
    let weighted = |position: usize| {
        let tokens = (0..position as u32).step_by(11);
        tokens.map(|token| WeightedToken { token, log_weight: (token % 7) as f32 * 0.5 - 1.0 }).collect()
    };
    let mask = |first: usize| {
        let rows = first..(first + 32).min(150);
        Mask {
            slashes: vec![9, 10, 40, 77],
            own: rows.clone().map(weighted).collect(),
            ..Mask::new(vec![0, 1, 30, 31, 90, 120], rows.map(|position: usize| position.saturating_sub(5)).collect())
        }
    };
    let given = Given((0..150).step_by(32).map(mask).collect());
    let method = method("streaming_llm", &Policy::default());
    let mut sparse = SparsePrefill::new(&method, &LayerSpecs::uniform(1, AttentionSpec::of_width(D)), 3).unwrap();
    sparse.pattern = PrefillPattern::Whole(&given);
    let mut out = vec![f32::NAN; layer.queries.len()];
    sparse.attend(&PrefillChunk::new(0, 0, &layer.queries, 2, &layer.kv), &mut out).unwrap();
    let sees = |position: usize, token: usize| {
        let distance = position - token;
        let is_plain = distance <= 5 || [9, 10, 40, 77].contains(&distance) || [0, 1, 30, 31, 90, 120].contains(&token);
        match is_plain {
            true => Some(0.0),
            false => token.is_multiple_of(11).then_some((token % 7) as f32 * 0.5 - 1.0),
        }
    };
    assert_close(&out, &layer.reference(|position, _, token| sees(position, token)), "by hand");
    let pairs = (0..150).map(|position| (0..=position).filter(|token| sees(position, *token).is_some()).count());
    assert_eq!(sparse.into_costs().total(|_| true).attended_tokens as usize, 2 * pairs.sum::<usize>());
}
