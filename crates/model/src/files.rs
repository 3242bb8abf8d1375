//! Names of the files of a model.

/// The file with sizes and constants.
pub const CONFIG: &str = "config.json";
/// The file with the vocabulary and the rules for splitting text.
pub const TOKENIZER: &str = "tokenizer.json";
/// The file with special tokens and, usually, the chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The file with the ids that end a generation.
pub const GENERATION_CONFIG: &str = "generation_config.json";
/// The chat template on its own; it takes precedence over the one in [`TOKENIZER_CONFIG`].
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Texts of special tokens, read if [`TOKENIZER_CONFIG`] does not list its added tokens.
pub const SPECIAL_TOKENS: &str = "special_tokens_map.json";
/// Tokens beyond the vocabulary with their ids, read if [`TOKENIZER_CONFIG`] does not list its added tokens.
pub const ADDED_TOKENS: &str = "added_tokens.json";
/// The settings of a PEFT adapter, which is not applied.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Weights in one piece.
pub const SINGLE_FILE: &str = "model.safetensors";
/// The index of weights in shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// What a model folder must contain, for hints.
pub(super) const FOLDER_HINT: &str =
    "a model folder holds config.json, tokenizer.json and safetensors weights; a GGUF file ends with .gguf";
