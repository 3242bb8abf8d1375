//! The memory of examples beyond the weights, as far as it is known before they are run.

use std::collections::{BTreeSet, HashSet};

use crate::config::kv_tier::KvTier;
use crate::config::protocol::Protocol;
use crate::config::run_config::RunConfig;
use spattn_attention::kv::{DiskNeed, PrefixDtype};
use spattn_attention::{Configured, PromptNeed, PromptShape};
use spattn_base::memory;
use spattn_model::OpenModel;
use spattn_model::device::Device;

/// The most bytes that an example of the lengths that were asked for needs beyond the weights, before any index is built.
pub fn example_bytes(config: &RunConfig, model: &OpenModel) -> usize {
    bytes_of_example(config, model, config.lengths.iter().copied().max().unwrap_or(0))
}

/// As [`example_bytes`], for an example with `tokens` tokens.
pub fn bytes_of_example(config: &RunConfig, model: &OpenModel, tokens: usize) -> usize {
    let (prefill, kv) = match disk_of_example(config, model, tokens) {
        None => {
            let waiting = waiting_prefix_bytes(config, tokens, model.dimensions.kv_bytes_per_token());
            (model.dimensions.prefill_bytes(tokens, masks_whole_prompt(config)), waiting)
        }
        Some(disk) => {
            let prefill = model.dimensions.prefill_bytes_by_layer(tokens, masks_whole_prompt(config));
            (prefill, memory::sum([disk.pages, disk.accounts]))
        }
    };
    let needs: BTreeSet<PromptNeed> = config.methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
    let shape = model.dimensions.prompt_shape(tokens);
    // If protocols share a prefix, each keeps its own prompt statistics, and one copy is kept to continue from.
    let copies = if config.protocols.len() > 1 { 1 + config.protocols.len() } else { 1 };
    let gathered = needs.iter().map(|need| need.bytes(&shape)).fold(0, usize::saturating_add);
    memory::sum([prefill, memory::product([copies, gathered]), kv, quantised_bytes(config, model, tokens)])
}

/// Bytes of the quantised copies of prefixes of `tokens` tokens, beside the prefixes themselves: one copy for each type that a method
/// stores.
fn quantised_bytes(config: &RunConfig, model: &OpenModel, tokens: usize) -> usize {
    let (shape, layers) = (model.dimensions.kv_shape(), model.dimensions.config().layers);
    let dtypes: BTreeSet<PrefixDtype> = config.methods.iter().map(|method| method.policy.kv_dtype).collect();
    let copies = dtypes.into_iter().map(|dtype| dtype.bytes_of_copy(shape, layers, tokens));
    let prefixes = 1 + waiting_prefix_bytes(config, 1, 1);
    memory::product([prefixes, copies.fold(0, usize::saturating_add)])
}

/// What an example whose KV cache is kept on disk takes there, and for it in memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOfExample {
    /// On disk.
    pub disk: usize,
    /// In memory, for pages.
    pub pages: usize,
    /// In memory, for what is known of pages: their digests, and which of them each sequence used last.
    pub accounts: usize,
}

/// What an example with `tokens` tokens takes on disk; `None` if its KV cache is kept in memory.
pub fn disk_of_example(config: &RunConfig, model: &OpenModel, tokens: usize) -> Option<DiskOfExample> {
    if config.kv_tier != KvTier::Disk {
        return None;
    }
    let (shape, layers) = (model.dimensions.kv_shape(), model.dimensions.config().layers);
    let need = DiskNeed::new(shape, layers, tokens, config.kv_memory.0);
    let prefixes = 1 + waiting_prefix_bytes(config, 1, 1);
    let sequences = memory::product([config.methods.len(), config.repeats]);
    Some(DiskOfExample {
        disk: memory::product([prefixes, need.disk]),
        pages: memory::product([prefixes, need.pages]).min(config.kv_memory.0),
        accounts: memory::sum([
            memory::product([prefixes, need.digests]),
            memory::product([sequences, need.of_sequence]),
        ]),
    })
}

/// What the KV cache of an example with `tokens` tokens takes of the host's memory; `None` if it is not kept there below a GPU.
pub fn host_kv_of_example(config: &RunConfig, model: &OpenModel, tokens: usize) -> Option<usize> {
    let prefixes = 1 + waiting_prefix_bytes(config, 1, 1);
    let bytes = memory::product([prefixes, tokens, model.dimensions.kv_bytes_per_token()]);
    (config.kv_tier == KvTier::Host).then_some(bytes)
}

/// Returns the bytes of host memory for indexes that a GPU makes for the host, for an example with `tokens` tokens, as far as they are
/// known before the run. Equal indexes are shared.
pub fn host_indexes_of_example(config: &RunConfig, model: &OpenModel, tokens: usize) -> usize {
    if config.device == Device::Cpu {
        return 0;
    }
    let (shape, mut known) = (model.dimensions.prompt_shape(tokens), HashSet::new());
    let of_method = |method: &Configured| {
        let Some(builder) = method.method.index_builder() else { return 0 };
        let is_new = known.insert((method.name.clone(), method.method.index_key(), format!("{:?}", method.policy)));
        let sparse = method.policy.dense(shape.layers).iter().filter(|dense| !**dense).count();
        if is_new { builder.host_bytes(&PromptShape { layers: sparse, ..shape }) } else { 0 }
    };
    config.methods.iter().map(of_method).fold(0, usize::saturating_add)
}

/// The bytes of a prefix that waits while another is read: the dense prefix is kept for the next example, while each method with a prefill
/// mask reads the prompt by itself. A token of it takes `token_bytes`.
pub(crate) fn waiting_prefix_bytes(config: &RunConfig, tokens: usize, token_bytes: usize) -> usize {
    let [masked, dense] = [true, false].map(|masks| config.methods.iter().any(|m| m.masks_prefill() == masks));
    let is_waiting = config.protocols.contains(&Protocol::Prefill) && masked && dense;
    if is_waiting { memory::product([tokens, token_bytes]) } else { 0 }
}

/// Whether a method needs all of a prompt at each layer.
pub(crate) fn masks_whole_prompt(config: &RunConfig) -> bool {
    config.methods.iter().any(Configured::masks_whole_prompt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;
    use spattn_model::source::ModelSource;
    use spattn_model::tokenizer::TokenizerOptions;

    #[test]
    fn quantised_copies_take_memory_beside_the_prefix_once_for_each_type() {
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let of = |methods: &str, more: &str| {
            let text = format!("tasks = ['ruler/vt']\nmethods = [{methods}]\n{more}");
            let config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            bytes_of_example(&config, &model, 1000)
        };
        let (shape, layers) = (model.dimensions.kv_shape(), model.dimensions.config().layers);
        let rows = layers * shape.kv_heads;
        // 992 tokens are in groups of 32. Of 64 channels, keys and values have 32 bytes of codes and 8 of ranges.
        assert_eq!(shape.d, 64);
        let q4 = rows * 2 * (992 * 40 + 8 * shape.d * shape.dtype.bytes());
        let q8 = rows * 2 * (992 * 72 + 8 * shape.d * shape.dtype.bytes());
        let plain = of("'topk'", "");
        assert_eq!(of("'topk:kv_dtype=q4', 'random:kv_dtype=q4'", ""), plain + q4);
        assert_eq!(of("'topk:kv_dtype={q4,q8,model}'", ""), plain + q4 + q8);
        // While one prefix is read by a mask, the dense one waits with its copies.
        let masked = of("'hip'", "sparse_from = 'prefill'");
        assert_eq!(of("'hip'", "sparse_from = 'prefill'\nkv_dtype = 'q4'"), masked + 2 * q4);
    }

    #[test]
    fn a_prompt_on_disk_takes_one_layer_and_its_pages_in_memory() {
        let model = OpenModel::open(&ModelSource::Builtin, None, TokenizerOptions::default()).unwrap();
        let of = |more: &str, tokens: usize| {
            let text = format!("tasks = ['ruler/vt']\nmethods = ['hip']\n{more}");
            let config = RunConfig::resolve_single(Settings::parse(&text, "test").unwrap()).unwrap();
            (bytes_of_example(&config, &model, tokens), disk_of_example(&config, &model, tokens))
        };
        let (tokens, token) = (16_384, model.dimensions.kv_bytes_per_token());
        let layers = model.dimensions.config().layers;
        let (memory, nothing) = of("", tokens);
        let (tight, disk) = of("kv_tier = 'disk'\nkv_memory = '2M'", tokens);
        let disk = disk.unwrap();
        assert_eq!((nothing, disk.disk, disk.pages), (None, tokens * token, 2 << 20));
        let expected = memory - tokens * token + tokens * token / layers + disk.pages + disk.accounts;
        assert_eq!(tight, expected);
        assert!(disk.accounts > 0 && disk.accounts < disk.disk / 100, "{disk:?}");
        // No more pages are in memory than there are.
        let (_, short) = of("kv_tier = 'disk'\nkv_memory = '1G'", 1000);
        assert!((1000 * token..2000 * token).contains(&short.unwrap().pages), "{short:?}");
        // While one prefix is read by a mask, that of `full` waits.
        let (_, two) = of("kv_tier = 'disk'\nkv_memory = '2M'\nsparse_from = 'prefill'", tokens);
        assert_eq!(two.map(|two| (two.disk, two.pages)), Some((2 * disk.disk, disk.pages)));
    }
}
