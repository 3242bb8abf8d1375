use super::*;
use crate::config::kv_tier::KvTier;
use crate::config::settings::Settings;
use crate::plan::gpu_memory::{ahead_bytes, picking_bytes};
use spattn_attention::kv::KvDtype;
use spattn_attention::methods::configure;

#[test]
fn methods_that_select_on_the_host_are_named_with_their_reasons() {
    let note = |specs: &[&str]| {
        let of = |spec: &&str| configure(&expand_grid(spec).unwrap().remove(0), &Policy::default()).unwrap();
        let methods: Vec<Configured> = specs.iter().map(of).collect();
        host_selection_note(&methods, KvShape { kv_heads: 2, d: 256, dtype: KvDtype::Bf16 })
    };
    assert_eq!(note(&["topk", "full", "streaming_llm", "minference", "hip:k=64"]), None);
    assert_eq!(note(&["topk:tail=indexed", "hip:preset=paper", "quest:schedule=linear"]), None);
    assert_eq!(
        note(&["topp:tail=indexed", "quest", "knn:k=8", "sparq"]).unwrap(),
        "tokens are selected on the host, not on the GPU, by topp:p=0.95,tail=indexed (tokens after the prefix become \
             candidates (tail)), knn:index=hnsw,k=8 (it has no GPU implementation), sparq:r=d/8,k=64 (heads have 256 channels, \
             and the kernels support up to 128)"
    );
}

#[test]
fn what_no_gpu_hashes_for_the_host_is_refused_with_the_reason() {
    let refused = |spec: &str, d: usize| {
        let method = configure(&expand_grid(spec).unwrap().remove(0), &Policy::default()).unwrap();
        check_attending_on_host(&[method], KvShape { kv_heads: 2, d, dtype: KvDtype::Bf16 }).map_err(|e| e.to_string())
    };
    for taken in ["magicpig:attend_on=host", "magicpig:K=16", "magicpig:density=0.1,attend_on=host", "topk"] {
        assert_eq!(refused(taken, 128), Ok(()), "{taken}");
    }
    assert_eq!(refused("magicpig", 256), Ok(()));
    for (spec, d, why) in [
        ("magicpig:attend_on=host", 256, "no kernel hashes heads of 256 channels"),
        ("magicpig:attend_on=host,K=16", 128, "K=16"),
        ("magicpig:attend_on=host,simple_lsh=true", 128, "simple_lsh=true"),
    ] {
        let error = refused(spec, d).unwrap_err();
        assert!(error.contains(why) && error.contains("attends on the host"), "{spec}: {error}");
    }
}

#[test]
fn methods_that_offload_are_refused_where_the_host_selects() {
    let refused = |spec: &str, d: usize| {
        let method = configure(&expand_grid(spec).unwrap().remove(0), &Policy::default()).unwrap();
        check_offloading(&[method], KvShape { kv_heads: 2, d, dtype: KvDtype::Bf16 }).map_err(|e| e.to_string())
    };
    for taken in
        ["hip:offload=true", "hip:preset=paper,offload=true", "hip:top_r=8", "hip:k=64,per=kv_head,offload=true"]
    {
        assert_eq!(refused(taken, 128), Ok(()), "{taken}");
    }
    for (spec, d, why) in [
        ("hip:offload=true", 320, "heads have 320 channels"),
        ("hip:top_r=8,offload=true", 128, "top_r=8"),
        ("full>hip:preset=repo,offload=true", 128, "chunks=aligned"),
    ] {
        let error = refused(spec, d).unwrap_err();
        assert!(error.contains(why) && error.contains("the host selects"), "{spec}: {error}");
    }
}

use spattn_attention::{Policy, expand_grid};
use spattn_model::config::RopeScaling;
use spattn_model::decoder::Dimensions;
use spattn_model::source::ModelSource;
use spattn_model::tokenizer::TokenizerOptions;
use spattn_tasks::{TaskOptions, resolve};

#[derive(Default)]
struct Told(Vec<(String, String)>);

impl RunObserver for Told {
    fn progress(&mut self, _: crate::examples::observer::RunProgress<'_>) {}

    fn failed(&mut self, failure: SkippedWork) -> Result<()> {
        self.0.push((failure.what, failure.error.to_string()));
        Ok(())
    }
}

fn with_planner<R>(text: &str, use_it: impl FnOnce(&Planner<'_>) -> R) -> R {
    let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
    let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    use_it(&Planner {
        model: &model,
        config: &config,
        tasks: &tasks,
        data: None,
        shard: Shard::WHOLE,
        is_elsewhere: false,
    })
}

#[test]
fn shards_are_dealt_by_the_work_that_progress_and_estimates_count() {
    use crate::plan::work::prefill_work;
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 1024]\nseed = [1, 2]";
    let config = RunConfig::resolve(Settings::parse(text, "test").unwrap()).unwrap().remove(0);
    let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let tasks = resolve(&config.tasks, &TaskOptions::default()).unwrap();
    let shard = Shard::WHOLE;
    let planner = Planner { model: &model, config: &config, tasks: &tasks, data: None, shard, is_elsewhere: false };
    let (c, weights) = (model.dimensions.config(), model.dimensions.weight_numbers());
    for cell in planner.dealt().unwrap() {
        let tokens = cell.place.length;
        // By all weights, and of every query with half of the keys in the mean.
        let products = tokens * (weights + c.layers * c.heads * c.head_dim * (tokens / 2));
        let expected = (products as f64 / 1e6).ceil() as u64;
        let of_cell = prefill_work(&model.dimensions, tokens);
        assert_eq!((of_cell, cell.work.context), (expected, 2 * expected), "under two seeds");
    }
}

/// The lengths of the cells, and what failed.
fn planned(text: &str) -> (Vec<usize>, Vec<(String, String)>) {
    let mut told = Told::default();
    let plan = with_planner(text, |planner| planner.plan(&mut told)).unwrap();
    (plan.cells.iter().map(|cell| cell.place.length).collect(), told.0)
}

fn limit() -> usize {
    with_planner("tasks = ['ruler/niah_single_1']\nlengths = [512]", |p| p.model.dimensions.config().context_limit())
}

#[test]
fn lengths_that_cannot_be_run_are_told_and_left_out() {
    let long = limit() + 1;
    let text = format!("tasks = ['ruler/niah_single_1']\nlengths = [{long}, 512, 64, {}]", long - 1);
    let (lengths, told) = planned(&text);
    assert_eq!(lengths, [512, long - 1]);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0].0, format!("builtin, ruler/niah_single_1 at {long}"));
    assert!(told[0].1.starts_with(&format!("the length asked for, {long} tokens, is beyond the context of builtin")));
    assert_eq!(told[1].0, "builtin, ruler/niah_single_1 at 64");
    assert!(!told[1].1.contains("beyond"), "too short, not too long: {told:?}");
    let (lengths, told) = planned(&(text + "\nallow_extrapolation = true"));
    assert_eq!((lengths, told.len()), (vec![long, 512, long - 1], 1));
}

#[test]
fn tasks_have_the_lengths_that_they_are_made_for() {
    with_planner("tasks = ['ruler/niah_single_1']\nlengths = [700, 512]\nsamples = 3", |planner| {
        let config = RunConfig { lengths: Vec::new(), ..planner.config.clone() };
        let missing = Planner { config: &config, ..*planner }.plan(&mut Told::default()).unwrap_err();
        assert!(missing.to_string().contains("no length was given"), "{missing}");
        let plan = planner.plan(&mut Told::default()).unwrap();
        let cells: Vec<_> = plan.cells.iter().map(|c| (c.place.length, c.examples())).collect();
        assert_eq!(cells, [(700, 3), (512, 3)]);
        let name = |length| planner.name_of(TaskLength { task: 0, length });
        assert_eq!([0, 512].map(name), ["builtin, ruler/niah_single_1", "builtin, ruler/niah_single_1 at 512"]);
        assert_eq!(planner.lengths_of(planner.tasks[0].as_ref()), [700, 512]);
    });
}

/// A task with examples from a file.
struct OfFile {
    is_cut: bool,
    least_tokens: usize,
}

impl Task for OfFile {
    fn name(&self) -> &str {
        "file"
    }

    fn inputs(&self) -> String {
        String::new()
    }

    fn available(&self) -> Option<usize> {
        Some(1)
    }

    fn least_tokens(&self) -> usize {
        self.least_tokens
    }

    fn is_sized(&self) -> bool {
        false
    }

    fn is_cut(&self) -> bool {
        self.is_cut
    }
}

#[test]
fn tasks_of_files_have_a_length_where_they_are_cut_to_one() {
    with_planner("tasks = ['ruler/niah_single_1']\nlengths = [700, 512]", |named| {
        let config = RunConfig { limits: Vec::new(), ..named.config.clone() };
        let unnamed = Planner { config: &config, ..*named };
        let [cut, whole] = [true, false].map(|is_cut| OfFile { is_cut, least_tokens: 0 });
        assert_eq!((named.lengths_of(&cut), unnamed.lengths_of(&cut)), (&[700, 512][..], &[0][..]));
        assert_eq!((named.lengths_of(&whole), unnamed.lengths_of(&whole)), (&[0][..], &[0][..]));

        let limit = named.model.dimensions.config().context_limit();
        let (long, beyond) = (limit + 1, format!(", {} tokens, is beyond", limit + 1));
        let to_cut_to = format!("the length to cut to{beyond}");
        let least = format!("the shortest example that `file` can have{beyond}");
        for (is_cut, least_tokens, length, expected) in [
            (true, 0, limit, ""),
            (true, 0, long, &to_cut_to),
            (true, long, limit, ""),
            (true, long, 0, &least),
            (true, 0, 0, ""),
            (false, 0, long, ""),
            (false, limit, 0, ""),
            (false, long, 0, &least),
        ] {
            let said = named.too_long(&OfFile { is_cut, least_tokens }, length).map(|error| error.to_string());
            let said = said.unwrap_or_default();
            let is_expected = if expected.is_empty() { said.is_empty() } else { said.starts_with(expected) };
            assert!(is_expected, "cut: {is_cut}, {least_tokens} at {length}: {said}");
        }
    });
}

#[test]
fn positions_are_moved_only_where_their_frequencies_stay() {
    let configured = |spec: &str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
    let (stays, moves) = (configured("topk"), configured("streaming_llm:rolling=true"));
    let mut model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
    let mut shape = model.dimensions.config().clone();
    shape.rope.scaling = RopeScaling::Dynamic { factor: 2.0 };
    let trained = shape.max_position_embeddings;
    let refused = |model: &OpenModel, methods: &[Configured], tokens: usize| {
        with_planner("tasks = ['ruler/niah_single_1']\nlengths = [512]", |planner| {
            Planner { model, ..*planner }.check_positions(methods, tokens).err().map(|e| e.what)
        })
    };
    let both = [stays.clone(), moves.clone()];
    assert_eq!(refused(&model, &both, trained + 1), None);
    model.dimensions = Dimensions::new(&shape, model.dimensions.dtype());
    assert_eq!(refused(&model, &both, trained), None);
    assert_eq!(refused(&model, &[stays], trained + 1), None);
    let said = refused(&model, &both, trained + 1).unwrap();
    assert!(said.starts_with(&format!("{} cannot move positions on builtin", moves.label())), "{said}");
}

#[test]
fn methods_that_do_not_fit_the_model_are_left_out_everywhere() {
    // The model has 10 layers, and its heads have 64 channels.
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512, 600]\n\
                    methods = ['topk:dense_layers=0-9', 'topk:dense_layers=10', 'sparq:r=64', 'sparq:r=65']";
    let mut told = Told::default();
    with_planner(text, |planner| {
        let plan = planner.plan(&mut told).unwrap();
        let variant = planner.config.variants()[0];
        let places: Vec<TaskLength> = plan.cells.iter().map(|cell| cell.place).collect();
        let runs = |m: &Configured| places.iter().map(|p| plan.has(*p, variant, m)).collect::<Vec<_>>();
        let found: Vec<_> = planner.config.methods.iter().map(runs).collect();
        assert_eq!(found, [[true; 2], [true; 2], [false; 2], [true; 2], [false; 2]]);
    });
    let [(layer, no_layer), (width, no_width)] = &told.0[..] else { panic!("{told:?}", told = told.0) };
    assert!(layer.starts_with("builtin, topk") && no_layer == "dense layer 10 does not exist", "{layer}: {no_layer}");
    assert!(width.starts_with("builtin, sparq") && no_width.contains("`r=65` is more channels"), "{width}: {no_width}");
}

#[test]
fn what_is_left_out_is_a_method_at_a_place_under_a_variant() {
    let text = "tasks = ['ruler/niah_single_1']\nlengths = [512]\nmethods = ['topk']";
    with_planner(text, |planner| {
        let [full, topk] = &planner.config.methods[..] else { panic!("two methods") };
        let (here, there) = (TaskLength { task: 0, length: 512 }, TaskLength { task: 0, length: 600 });
        let variant = planner.config.variants()[0];
        let other = Variant { seed: variant.seed + 1, ..variant };
        let mut plan = RunPlan::default();
        assert!(plan.has(here, variant, topk));
        plan.leave_out(here, &[variant], std::slice::from_ref(topk));
        assert!(!plan.has(here, variant, topk));
        assert!(plan.has(here, variant, full) && plan.has(there, variant, topk) && plan.has(here, other, topk));
    });
}

#[test]
fn what_picks_on_a_gpu_takes_room_for_lists_and_for_each_index_once() {
    let prefix = PromptShape { layers: 2, heads: 8, kv_heads: 2, d: 64, tokens: 1000 };
    let bytes = |specs: &[&str]| {
        let of = |spec: &&str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
        picking_bytes(&specs.iter().map(of).collect::<Vec<_>>(), &prefix, KvDtype::Bf16)
    };
    // Lists of four bytes for each token, for eight query heads or two KV heads.
    assert_eq!(bytes(&["topk:k=10", "topk:k=10,per=kv_head"]), 8 * 10 * 4 + 2 * 10 * 4);
    assert_eq!(bytes(&["topk:k=5000"]), 8 * 1000 * 4);
    // Two bounds of two bytes, for 64 channels, 63 pages, two KV heads and two layers.
    let index = 2 * 2 * 63 * 2 * 64 * 2;
    assert_eq!(bytes(&["quest:k=32"]), index + 8 * 32 * 4);
    assert_eq!(bytes(&["quest:k=32", "quest:k=64"]), index + 8 * (32 + 64) * 4);
    assert_eq!(bytes(&["quest:k=32", "quest:k=32,sink=8"]), 2 * (index + 8 * 32 * 4));
    // Ten tables of 17 bounds and all tokens in two bytes, lengths, means, and hyperplanes; and codes of one KV head.
    let tables = 2 * (2 * (10 * (17 + 1000) * 2 + 4 * (1000 + 64)) + 4 * 40 * 64) + 2 * 10 * 1000;
    // Every token that collides may be listed, with a weight and a small extra; and a code for each table.
    assert_eq!(bytes(&["magicpig:K=4,L=10"]), tables + 8 * (1000 * (4 + 4 + 1) + 2 * 10));
    // Masks are kept for both layers if later tokens reuse them.
    assert!(bytes(&["hip:k=32,r_m=1"]) >= 8 * 32 * 4);
    assert_eq!(bytes(&["hip:k=32,r_m=2"]), 3 * bytes(&["hip:k=32,r_m=1"]));
    assert_eq!(bytes(&["full", "random", "quest:rescore=exact"]), 0);
    // What is selected once is kept for both layers: a list for each query head, or for each of two KV heads.
    assert_eq!(bytes(&["snapkv:k=100", "snapkv:k=100,per=kv_head"]), 2 * (8 + 2) * 100 * 4);
    assert_eq!(bytes(&["expected_attention:k=50", "snapkv:k=5000"]), 2 * (2 * 50 + 8 * 1000) * 4);
    // Of a budget that is shared, one layer or list may get more than the mean, and all lists have as much room.
    assert_eq!(bytes(&["pyramid_kv:k=100", "ada_kv:k=100"]), 2 * 8 * (200 + 800) * 4);
}

#[test]
fn what_is_picked_ahead_takes_room_for_queries_for_lists_and_below_host_memory_for_two_layers_of_tokens() {
    let prefix = PromptShape { layers: 2, heads: 8, kv_heads: 2, d: 64, tokens: 1000 };
    let bytes = |specs: &[&str], tier: KvTier| {
        let of = |spec: &&str| configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
        ahead_bytes(&specs.iter().map(of).collect::<Vec<_>>(), &prefix, KvDtype::Bf16, tier)
    };
    let ahead = "double_sparsity:kind=random,k=10,offload=true";
    assert_eq!(bytes(&["topk:k=10", "double_sparsity:kind=random,k=10"], KvTier::Host), 0);
    // Queries, keys and values of 1000 rows; two lists of ten tokens for each query head.
    let (queries, lists) = (1000 * 12 * 64 * 2, 2 * 8 * 10 * 4);
    assert_eq!(bytes(&[ahead], KvTier::Memory), queries + lists);
    // Key and value of each token at two layers, and up to 256 tokens more for each list.
    let fetched = 2 * (8 * 10 + 8 * 256) * (2 * 64 * 2);
    assert_eq!(bytes(&[ahead], KvTier::Host), queries + lists + fetched);
    let other = "double_sparsity:kind=random,k=20,offload=true";
    assert_eq!(bytes(&[ahead, other], KvTier::Host), queries + 3 * lists + fetched + 2 * (8 * 20 + 8 * 256) * 256);
}
