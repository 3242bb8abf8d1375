//! What a run needs of the memory of each GPU, computed before it: layers of one model may be divided among several, and each GPU may hold
//! a copy.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::memory::{masks_whole_prompt, waiting_prefix_bytes};
use crate::config::kv_tier::{KvMemory, KvTier};
use crate::config::run_config::RunConfig;
use spattn_attention::kv::{CachedPart, KvDtype, TokenSlots};
use spattn_attention::{Configured, PromptShape, Tail, mask_list_bytes};
use spattn_base::error::UsageError;
use spattn_base::{memory, text};
use spattn_kernels::GPU_FETCH_STEP;
use spattn_model::device::{CopiesPerGpu, Device, Placement};
use spattn_model::dimensions::GPU_PREFILL_CHUNK;
use spattn_model::{GpuShare, OpenModel};

/// Where a run's model is loaded: layers are divided for its longest examples.
pub fn placement(config: &RunConfig) -> Placement {
    Placement { device: config.device, tokens: config.lengths.iter().copied().max().unwrap_or(0) }
}

/// What a run needs of a GPU's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNeed {
    share: GpuShare,
    /// The most bytes that weights and an example take together.
    pub bytes: usize,
}

/// The most bytes of each GPU's memory that weights and an example with `tokens` tokens need under all methods; none on the processor.
///
/// # Errors
/// If a device is not there, or has more GPUs than the model has layers.
pub fn gpu_needs(config: &RunConfig, model: &OpenModel, tokens: usize) -> Result<Vec<GpuNeed>, UsageError> {
    let mut needs = Vec::new();
    for device in config.device.copies()? {
        for share in model.dimensions.divide(device, placement(config).tokens)? {
            needs.push(GpuNeed { bytes: bytes_at(config, model, tokens, &share.layers), share });
        }
    }
    Ok(of_each_gpu(needs, |layers| model.dimensions.weight_bytes_of(layers)))
}

/// What copies need together on each GPU, in the order of their first copies. They share the weights, whose bytes `weights` gives.
fn of_each_gpu(needs: Vec<GpuNeed>, weights: impl Fn(&Range<usize>) -> usize) -> Vec<GpuNeed> {
    let mut all: Vec<GpuNeed> = Vec::new();
    for need in needs {
        match all.iter_mut().find(|known| known.share.ordinal == need.share.ordinal) {
            Some(known) => known.bytes = known.bytes.saturating_add(need.bytes - weights(&need.share.layers)),
            None => all.push(need),
        }
    }
    all
}

/// The most bytes of a GPU's memory that some layers of a model need.
fn bytes_at(config: &RunConfig, model: &OpenModel, tokens: usize, layers: &Range<usize>) -> usize {
    let (dimensions, methods) = (&model.dimensions, &config.methods);
    let prompt = PromptShape { layers: layers.len(), ..dimensions.prompt_shape(tokens) };
    let (runs, at_once) = (methods.len(), masks_whole_prompt(config));
    // A prefix that waits is where prefixes are.
    let (engine, waiting) = match config.kv_tier {
        KvTier::Host => (dimensions.gpu_bytes_below_host(layers, tokens, runs, at_once), 0),
        KvTier::Memory | KvTier::Disk => (
            dimensions.gpu_bytes(layers, tokens, runs, at_once),
            waiting_prefix_bytes(config, tokens, dimensions.kv_bytes_per_token_of(layers)),
        ),
    };
    // Only one method's index is built at a time.
    let of_builder = |method: &Configured| Some(method.method.index_builder()?.bytes(&prompt, dimensions.dtype()));
    let building = methods.iter().filter_map(of_builder).max().unwrap_or(0);
    // Only one method reads at a time.
    let of_reader = |method: &Configured| mask_list_bytes(method, &prompt, GPU_PREFILL_CHUNK, dimensions.dtype());
    let lists = methods.iter().map(of_reader).max().unwrap_or(0);
    memory::sum([
        dimensions.weight_bytes_of(layers),
        engine,
        picking_bytes(methods, &prompt, dimensions.dtype()),
        ahead_bytes(methods, &prompt, dimensions.dtype(), config.kv_tier),
        cached_bytes(config, &prompt, dimensions.dtype(), dimensions.config().layers),
        building,
        lists,
        waiting,
    ])
}

/// The GPU of which the largest share of the free memory is needed: if it has room, all have. `None` if no GPU's free memory is known.
pub fn fullest(needs: &[GpuNeed]) -> Option<&GpuNeed> {
    let share = |need: &GpuNeed| need.share.free.map(|free| need.bytes as f64 / free.max(1) as f64);
    let known = needs.iter().filter_map(|need| Some((share(need)?, need)));
    // The first of several that are as full.
    known.reduce(|most, next| if next.0 > most.0 { next } else { most }).map(|(_, need)| need)
}

/// What each GPU needs: `cuda:0 41.2 GB of 79.1 GB free, cuda:1 39.0 GB of 79.1 GB free`.
pub fn listed(needs: &[GpuNeed]) -> String {
    needs.iter().map(GpuNeed::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for GpuNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.device(), text::size(self.bytes as u64))?;
        self.free().map_or(Ok(()), |free| write!(f, " of {} free", text::size(free)))
    }
}

impl GpuNeed {
    /// The GPU's name, with its number even if there is one GPU only.
    pub fn device(&self) -> String {
        format!("cuda:{}", self.share.ordinal)
    }

    /// Bytes of the GPU's memory that are free, if that is known.
    pub fn free(&self) -> Option<u64> {
        self.share.free
    }

    /// Makes sure that the GPU has so much free memory, as far as that is known. `what` takes it, with the weights of `model`.
    ///
    /// # Errors
    /// If it has less.
    pub fn check(&self, config: &RunConfig, what: &str, model: &str) -> Result<(), UsageError> {
        let GpuShare { ordinal, free, layers } = &self.share;
        let Some(free) = free.filter(|free| self.bytes as u64 > *free) else { return Ok(()) };
        let gb = |bytes: f64| bytes / 1e9;
        let (needed, free) = (gb(self.bytes as f64), gb(free as f64));
        let (where_to, hint) = match config.device {
            Device::EachGpu(CopiesPerGpu::ONE) => (
                format!("the memory of GPU {ordinal}, which has a copy of the whole model,"),
                "divide the layers among GPUs (--device cuda:0,1), choose a shorter --length, fewer methods at a time, or --dtype bf16",
            ),
            Device::EachGpu(copies) => (
                format!("the memory of GPU {ordinal}, which has {} copies of the whole model,", copies.count()),
                "ask for fewer copies (--device cuda:all:2), a shorter --length, or fewer methods at a time",
            ),
            device if device.ordinals().len() > 1 => (
                format!("the memory of GPU {ordinal}, which has layers {} to {},", layers.start, layers.end - 1),
                "name more GPUs, choose a shorter --length, fewer methods at a time, or --dtype bf16",
            ),
            _ if config.kv_tier == KvTier::Memory => (
                "the GPU's memory".to_owned(),
                "choose a shorter --length, fewer methods at a time, --dtype bf16, or keep the KV cache in the host's memory: --kv-tier host",
            ),
            _ => ("the GPU's memory".to_owned(), "choose a shorter --length, fewer methods at a time, or --dtype bf16"),
        };
        Err(UsageError::new(format!("{what} {needed:.1} GB of {where_to} with {model}, and {free:.1} GB are free"))
            .hint(hint))
    }
}

/// Bytes of a GPU's memory that indexes and lists of methods that pick there take at most; equal indexes are shared.
pub(super) fn picking_bytes(methods: &[Configured], prefix: &PromptShape, dtype: KvDtype) -> usize {
    let mut known = HashSet::new();
    let of_method = |method: &Configured| {
        let Ok(form) = method.method.device_form() else { return fixed_list_bytes(method, prefix) };
        let key = (method.name.clone(), method.method.index_key(), format!("{:?}", method.policy));
        let index = if known.insert(key) { form.index_bytes(prefix, dtype) } else { 0 };
        // Selections that later tokens reuse are kept by layer.
        let kept = if form.refresh() > 1 { prefix.layers } else { 0 };
        let largest = method.policy.schedule.largest(&method.policy.dense(prefix.layers));
        let lists = (1 + kept) * largest * form.list_bytes(prefix);
        // Keys of candidates behind the prefix are gathered, no more at a time than a layer of the prefix has.
        let is_gathered = method.policy.tail != Tail::Exact;
        let gathered = if is_gathered { prefix.kv_heads * prefix.tokens * prefix.d * dtype.bytes() } else { 0 };
        index + lists + gathered + prefix.layers * form.held_bytes(prefix)
    };
    methods.iter().map(of_method).sum()
}

/// Bytes of a GPU's memory that the lists of a method take at most, if its sequences select once; 0 for other methods.
fn fixed_list_bytes(method: &Configured, prefix: &PromptShape) -> usize {
    match method.method.selects_once() {
        true => prefix.layers * method.method.kept_tokens(prefix) * size_of::<u32>(),
        false => 0,
    }
}

/// Bytes of a GPU's memory that selecting ahead takes at most beside that: queries of rows, lists of a further layer and those that misses are
/// counted by; and, below host memory, the keys and values of one row's tokens at two layers.
pub(super) fn ahead_bytes(methods: &[Configured], prefix: &PromptShape, dtype: KvDtype, tier: KvTier) -> usize {
    let of_method = |method: &Configured| {
        let form = method.method.device_form().ok().filter(|_| method.method.selects_ahead());
        let Some(form) = form else { return 0 };
        let largest = method.policy.schedule.largest(&method.policy.dense(prefix.layers));
        let lists = largest * form.list_bytes(prefix);
        let tokens = lists / size_of::<u32>() + prefix.heads * GPU_FETCH_STEP;
        let fetched = if tier == KvTier::Host { 2 * tokens * 2 * prefix.d * dtype.bytes() } else { 0 };
        2 * lists + fetched
    };
    let rows = prefix.tokens.min(GPU_PREFILL_CHUNK) * (prefix.heads + 2 * prefix.kv_heads) * prefix.d * dtype.bytes();
    let queries = if methods.iter().any(|method| method.method.selects_ahead()) { rows } else { 0 };
    queries + methods.iter().map(of_method).sum::<usize>()
}

/// Returns an upper bound of the GPU memory, in bytes, for tokens fetched from host memory: the GPU's share of each setting's caches, which
/// are for `layers` layers in all; copies of one row's tokens at one layer, and at each where later tokens attend them again; and at one
/// layer, room for the keys that a search reads.
fn cached_bytes(config: &RunConfig, prefix: &PromptShape, dtype: KvDtype, layers: usize) -> usize {
    let Some(bytes) = config.gpu_cache() else { return 0 };
    let of_method = |method: &Configured| {
        let form = method.method.device_form().ok();
        let Some(form) = form.filter(|form| !form.takes_products(prefix.heads / prefix.kv_heads)) else { return 0 };
        let selecting = method.policy.dense(layers).iter().filter(|dense| !**dense).count().max(1);
        let tokens = method.policy.schedule.largest(&method.policy.dense(prefix.layers)) * form.list_tokens(prefix)
            + prefix.heads * GPU_FETCH_STEP;
        let kept = if form.refresh() > 1 { prefix.layers } else { 0 };
        let [_, (_, for_keys)] = CachedPart::divide(bytes, form.scores_keys());
        let all_keys = prefix.kv_heads * prefix.tokens * prefix.d * dtype.bytes();
        let read = (for_keys / selecting).min(all_keys);
        // Only layers that select have a cache; all of this GPU's may be among them.
        let caches = (bytes * prefix.layers.min(selecting)).div_ceil(selecting);
        caches + (1 + kept) * tokens * 2 * prefix.d * dtype.bytes() + read
    };
    config.methods.iter().map(of_method).sum()
}

/// Makes sure that `--kv-memory` has room for one token of each KV head in each of the GPUs' caches of a prefix of `tokens` tokens in host
/// memory.
///
/// # Errors
/// If it has none.
pub(super) fn check_cache(config: &RunConfig, model: &OpenModel, tokens: usize) -> Result<(), UsageError> {
    let Some(bytes) = config.gpu_cache() else { return Ok(()) };
    let (dimensions, shape) = (model.dimensions.config(), model.dimensions.kv_shape());
    let heads = dimensions.layers * dimensions.kv_heads;
    let scores_keys = |method: &Configured| method.method.device_form().is_ok_and(|form| form.scores_keys());
    let scores_keys = config.methods.iter().any(scores_keys);
    let least = CachedPart::least(scores_keys, |part| TokenSlots { bytes, heads, tokens, shape, part }.least_bytes());
    if bytes >= least {
        return Ok(());
    }
    let least = KvMemory(least.next_multiple_of(1 << 20));
    let what = format!(
        "--kv-memory {} has no room for one token of each KV head of {} and for where {tokens} tokens are",
        KvMemory(bytes),
        model.id
    );
    Err(UsageError::new(what).hint(format!("give at least --kv-memory {least}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;
    use crate::plan::memory::{host_indexes_of_example, host_kv_of_example};
    use spattn_model::device::Gpus;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    fn run() -> (RunConfig, OpenModel) {
        let text = "tasks = ['ruler/vt']\nlengths = [1024, 4096]\nmethods = ['topk:k=16', 'h2o:k=16']";
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        (config, model)
    }

    #[test]
    fn layers_on_two_gpus_take_together_what_they_take_on_one_and_activations_twice() {
        let (config, model) = run();
        let (tokens, layers) = (4096, model.dimensions.config().layers);
        let of = |part: Range<usize>| bytes_at(&config, &model, tokens, &part);
        let both = of(0..1) + of(1..layers);
        // What a GPU needs whatever its layers are: activations, scores and lists; and the table again, if it is the output matrix too.
        let none = PromptShape { layers: 0, ..model.dimensions.prompt_shape(tokens) };
        let dtype = model.dimensions.dtype();
        let of_reader = |method: &Configured| mask_list_bytes(method, &none, GPU_PREFILL_CHUNK, dtype);
        let alike = model.dimensions.gpu_bytes(&(0..0), tokens, config.methods.len(), false)
            + picking_bytes(&config.methods, &none, dtype)
            + config.methods.iter().map(of_reader).max().unwrap_or(0);
        let again = model.dimensions.weight_bytes_of(&(0..1)) + model.dimensions.weight_bytes_of(&(1..layers))
            - model.dimensions.weight_bytes();
        assert_eq!(both, of(0..layers) + alike + again);
        assert!(of(0..layers) > both / 2 && again > 0);
    }

    #[test]
    fn a_prefix_in_host_memory_takes_one_layer_of_a_gpus_memory() {
        let (mut config, model) = run();
        let (tokens, all) = (4096, 0..model.dimensions.config().layers);
        let there = bytes_at(&config, &model, tokens, &all);
        config.kv_tier = KvTier::Host;
        let below = bytes_at(&config, &model, tokens, &all);
        let token = model.dimensions.kv_bytes_per_token();
        assert_eq!(there - below, tokens * (token - token / all.end));
        assert_eq!(host_kv_of_example(&config, &model, tokens), Some(tokens * token));
    }

    #[test]
    fn tokens_kept_on_a_gpu_take_what_each_setting_may_keep_and_copies_of_a_row() {
        let (_, model) = run();
        let (tokens, all) = (4096, 0..model.dimensions.config().layers);
        let of = |methods: &str, more: &str| {
            let text = format!("tasks = ['ruler/vt']\nlengths = [4096]\nmethods = [{methods}]\n{more}");
            let mut config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            config.kv_tier = KvTier::Host;
            bytes_at(&config, &model, tokens, &all)
        };
        let shape = model.dimensions.prompt_shape(tokens);
        let copies = |k: usize| shape.heads * (k + GPU_FETCH_STEP) * model.dimensions.kv_shape().row_bytes();
        for (methods, caches) in [
            ("'quest:k=32'", (8 << 20) + copies(32)),
            ("'quest:k=32', 'quest:k=64'", (16 << 20) + copies(32) + copies(64)),
            // Three quarters of the memory are for scored keys, and what a search reads at one of two layers waits for its slots; what is
            // selected is kept at both layers for the tokens that attend it again.
            ("'hip:k=32'", (8 << 20) + (6 << 20) / all.end + (1 + all.end) * copies(32)),
            ("'hip:k=32,r_m=1,dense_layers=0'", (8 << 20) + (6 << 20) / (all.end - 1) + copies(32)),
            // The first reads all keys over the bus, and the second selects on the host.
            ("'topk:k=32', 'quest:k=32,rescore=exact'", 0),
        ] {
            assert_eq!(of(methods, "kv_tier = 'disk'\nkv_memory = '8M'") - of(methods, ""), caches, "{methods}");
        }
    }

    #[test]
    fn caches_are_divided_among_the_layers_that_select() {
        let (_, model) = run();
        let (tokens, layers) = (4096, model.dimensions.config().layers);
        let of = |part: Range<usize>, more: &str| {
            let methods = "methods = ['quest:k=32,dense_layers=0']";
            let text = format!("tasks = ['ruler/vt']\nlengths = [4096]\n{methods}\n{more}");
            let mut config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            config.kv_tier = KvTier::Host;
            bytes_at(&config, &model, tokens, &part)
        };
        let shape = model.dimensions.prompt_shape(tokens);
        let copies = shape.heads * (32 + GPU_FETCH_STEP) * model.dimensions.kv_shape().row_bytes();
        // The first layer has no cache, so the GPU with all others has the whole of them.
        let kept = of(1..layers, "kv_tier = 'disk'\nkv_memory = '8M'") - of(1..layers, "");
        assert_eq!(kept, (8 << 20) + copies);
    }

    #[test]
    fn memory_without_room_for_a_token_is_refused() {
        let (mut config, model) = run();
        config.kv_tier = KvTier::Host;
        assert!(check_cache(&config, &model, 1 << 20).is_ok(), "nothing is kept");
        // A config is checked for the CPU, so it is parsed with the tier `disk`.
        let text = "tasks = ['ruler/vt']\nmethods = ['topk']\nkv_tier = 'disk'\nkv_memory = '1M'";
        config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        config.kv_tier = KvTier::Host;
        assert!(check_cache(&config, &model, 4096).is_ok());
        let error = check_cache(&config, &model, 1 << 20).unwrap_err();
        assert!(error.what.contains("--kv-memory 1M has no room") && error.what.contains("1048576 tokens"), "{error}");
        // Each KV head needs four bytes for each token's slot number, 16 bytes of counters, and one slot.
        let (c, shape) = (model.dimensions.config(), model.dimensions.kv_shape());
        let least = c.layers * c.kv_heads * ((4 << 20) + 16 + shape.row_bytes() + 16);
        let hint = error.hint.unwrap();
        assert_eq!(hint, format!("give at least --kv-memory {}M", least.div_ceil(1 << 20)));
        config.kv_memory = KvMemory(least.next_multiple_of(1 << 20));
        assert!(check_cache(&config, &model, 1 << 20).is_ok());
        // Where keys are scored, a quarter is left for keys and values.
        config.methods.extend(scoring_keys());
        let hint = check_cache(&config, &model, 1 << 20).unwrap_err().hint.unwrap();
        assert_eq!(hint, format!("give at least --kv-memory {}M", (4 * least).div_ceil(1 << 20)));
    }

    fn scoring_keys() -> Vec<Configured> {
        let text = "tasks = ['ruler/vt']\nmethods = ['hip:k=32']";
        RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap().methods
    }

    #[test]
    fn an_index_that_a_gpu_builds_for_the_host_takes_memory_once() {
        let (mut config, model) = run();
        let (tokens, layers) = (4096, 0..model.dimensions.config().layers);
        let shape = model.dimensions.prompt_shape(tokens);
        let mut of = |methods: &[&str]| {
            let list = methods.iter().map(|spec| format!("'{spec}'")).collect::<Vec<_>>().join(",");
            let text = format!("tasks = ['ruler/vt']\nlengths = [4096]\nmethods = [{list}]");
            config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            bytes_at(&config, &model, tokens, &layers)
        };
        // With nothing to be kept, no index is built.
        let none = of(&["snapkv:k=0", "expected_attention:k=0"]);
        let votes = of(&["snapkv:k=16,window=8", "expected_attention:k=0"]) - none;
        let row = shape.d * model.dimensions.dtype().bytes();
        // Queries and what they attend, logarithms of sums, votes; and the tokens that are kept.
        let kept = shape.layers * shape.heads * 16 * 4;
        assert_eq!(votes, shape.heads * (2 * 8 * row + 8 * 4 + tokens * 4) + kept);
        let both = of(&["snapkv:k=16,window=8", "expected_attention:k=16,queries=4096"]) - none;
        assert!(both > votes && both == of(&["snapkv:k=0", "expected_attention:k=16,queries=4096"]) - none + kept);
    }

    #[test]
    fn tables_by_which_the_host_samples_are_in_its_memory() {
        let (mut config, model) = run();
        let (tokens, layers) = (4096, 0..model.dimensions.config().layers);
        let PromptShape { kv_heads, d, .. } = model.dimensions.prompt_shape(tokens);
        let mut of = |methods: &str| {
            let text = format!("tasks = ['ruler/vt']\nlengths = [4096]\nmethods = [{methods}]");
            config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            assert_eq!(host_indexes_of_example(&config, &model, tokens), 0, "a CPU makes them itself");
            (config.device, config.kv_tier) = (Device::cuda(0), KvTier::Host);
            (bytes_at(&config, &model, tokens, &layers), host_indexes_of_example(&config, &model, tokens))
        };
        // Numbers of 16 bits: 20 tables with 16 codes; a mean; and lengths.
        let of_layer = kv_heads * (20 * (17 + tokens) * 2 + 4 * (tokens + d));
        let (_, on_device) = of("'magicpig:K=4,L=20'");
        let (one, of_one) = of("'magicpig:K=4,L=20,attend_on=host'");
        assert_eq!((on_device, of_one), (0, layers.end * of_layer));
        // Equal tables are shared, and a GPU holds those of one layer at a time.
        let twice = "'magicpig:K=4,L=20,attend_on=host','magicpig:K=4,L=20,u_floor=1e-4,attend_on=host'";
        assert_eq!(of(twice).1, of_one);
        let (other, dense) = of("'magicpig:K=4,L=20,attend_on=host,dense_layers=0'");
        assert_eq!((other, dense), (one, (layers.end - 1) * of_layer));
    }

    #[test]
    fn a_gpu_that_is_too_small_is_named_with_its_layers() {
        let (mut config, _) = run();
        let share = GpuShare { ordinal: 1, free: Some(5_000_000_000), layers: 3..7 };
        let need = GpuNeed { share, bytes: 7_000_000_000 };
        let mut told = |device| {
            config.device = device;
            let error = need.check(&config, "a prompt takes", "m").unwrap_err();
            (error.what, error.hint.unwrap())
        };
        let (what, _) = told(Device::cuda(1));
        assert_eq!(what, "a prompt takes 7.0 GB of the GPU's memory with m, and 5.0 GB are free");
        let (what, hint) = told(Device::Cuda(Gpus::in_order(&[0, 1])));
        let expected =
            "a prompt takes 7.0 GB of the memory of GPU 1, which has layers 3 to 6, with m, and 5.0 GB are free";
        assert_eq!(what, expected);
        assert!(hint.contains("more GPUs"), "{hint}");
        let (what, hint) = told(Device::EachGpu(CopiesPerGpu::ONE));
        assert!(what.contains("a copy of the whole model") && hint.contains("cuda:0,1"), "{what}: {hint}");
        let (what, hint) = told(Device::EachGpu(CopiesPerGpu::new(3).unwrap()));
        assert!(what.contains("3 copies of the whole model") && hint.contains("fewer copies"), "{what}: {hint}");
        assert_eq!(GpuNeed { bytes: 5_000_000_000, ..need.clone() }.check(&config, "", ""), Ok(()));
    }
    fn need(ordinal: usize, gigabytes: usize, free: Option<u64>) -> GpuNeed {
        let free = free.map(|gb| gb * 1_000_000_000);
        GpuNeed { share: GpuShare { ordinal, free, layers: 0..4 }, bytes: gigabytes * 1_000_000_000 }
    }

    #[test]
    fn each_gpu_is_listed_with_what_is_free_as_far_as_it_is_known() {
        let needs = [need(0, 41, Some(80)), need(1, 39, Some(40))];
        assert_eq!(listed(&needs), "cuda:0 41.0 GB of 80.0 GB free, cuda:1 39.0 GB of 40.0 GB free");
        assert_eq!(listed(&[need(3, 2, None)]), "cuda:3 2.0 GB");
    }

    #[test]
    fn copies_on_a_gpu_share_its_weights_and_need_the_rest_each() {
        let needs = [need(0, 3, Some(80)), need(1, 3, Some(40)), need(0, 3, Some(80)), need(1, 3, Some(40))];
        // The four layers of a copy have weights of a gigabyte, which both copies on a GPU share.
        let weights = |layers: &Range<usize>| layers.len() * 250_000_000;
        assert_eq!(of_each_gpu(needs.to_vec(), weights), [need(0, 5, Some(80)), need(1, 5, Some(40))]);
    }

    #[test]
    fn the_fullest_gpu_is_the_one_with_the_least_room_for_what_it_gets() {
        // The first gets more, the second has less left; the third is unknown.
        let needs = [need(0, 41, Some(80)), need(1, 39, Some(24)), need(2, 90, None), need(3, 39, Some(24))];
        assert_eq!(fullest(&needs), Some(&needs[1]));
        assert_eq!(fullest(&needs[2..3]), None);
    }
}
