//! The memory of examples beyond the weights, as far as it is known before they are run.

use std::collections::BTreeSet;

use crate::config::protocol::Protocol;
use crate::config::run_config::RunConfig;
use spattn_attention::{Configured, PromptNeed};
use spattn_base::memory;
use spattn_model::OpenModel;

/// The most bytes that an example of the lengths that were asked for needs beyond the weights, before any index is built.
pub fn example_bytes(config: &RunConfig, model: &OpenModel) -> usize {
    bytes_of_example(config, model, config.lengths.iter().copied().max().unwrap_or(0))
}

/// As [`example_bytes`], for an example with `tokens` tokens.
pub fn bytes_of_example(config: &RunConfig, model: &OpenModel, tokens: usize) -> usize {
    let needs: BTreeSet<PromptNeed> = config.methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
    let shape = model.dimensions.prompt_shape(tokens);
    // If protocols share a prefix, each keeps its own prompt statistics, and one copy is kept to continue from.
    let copies = if config.protocols.len() > 1 { 1 + config.protocols.len() } else { 1 };
    let gathered = needs.iter().map(|need| need.bytes(&shape)).fold(0, usize::saturating_add);
    memory::sum([
        model.dimensions.prefill_bytes(tokens, masks_whole_prompt(config)),
        memory::product([copies, gathered]),
        waiting_prefix_bytes(config, tokens, model.dimensions.kv_bytes_per_token()),
    ])
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
