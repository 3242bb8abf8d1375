//! The tokenizer of a GGUF model, as the texts of a `tokenizer.json` and a `tokenizer_config.json`.
//!
//! A file holds the vocabulary, but only the name of the pre-tokenizer, which splits text before merges (`tokenizer.ggml.pre`).
//! [`PRE_TOKENIZERS`] has the rule for each known name, as in the `tokenizer.json` of the original model. An unknown name is an error:
//! another pre-tokenizer would silently give other tokens.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::metadata::{Metadata, shown};
use spattn_base::error::UsageError;

/// The texts of both files, and a note for the user.
pub(super) struct GgufTokenizer {
    /// `tokenizer.json`.
    pub(super) tokenizer: Value,
    /// `tokenizer_config.json`.
    pub(super) config: Value,
    /// A line for the user, if the file does not fully determine the tokens of a text.
    pub(super) note: Option<String>,
}

/// How a byte-level BPE tokenizer splits text before it merges.
struct PreTokenizer {
    /// Its names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    split: SplitRule,
    /// Whether text is normalised to Unicode's NFC first.
    nfc: bool,
    /// Whether a piece that is itself a token becomes that token without merges.
    ignores_merges: bool,
    /// Whether prompts begin with the BOS token if the file does not state it.
    adds_bos: bool,
}

enum SplitRule {
    /// GPT-2's own rule.
    Gpt2,
    /// Single digits, then GPT-2's rule.
    Digits,
    /// A regular expression; each match is a piece.
    Regex(&'static str),
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// All pre-tokenizers that are supported.
const PRE_TOKENIZERS: [PreTokenizer; 5] = [
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        split: SplitRule::Regex(LLAMA_3),
        nfc: false,
        ignores_merges: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["qwen2"],
        split: SplitRule::Regex(QWEN_2),
        nfc: true,
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        split: SplitRule::Regex(TEKKEN),
        nfc: false,
        ignores_merges: true,
        adds_bos: true,
    },
    PreTokenizer { names: &["gpt-2"], split: SplitRule::Gpt2, nfc: false, ignores_merges: false, adds_bos: false },
    PreTokenizer { names: &["smollm"], split: SplitRule::Digits, nfc: false, ignores_merges: false, adds_bos: false },
];

/// The largest sum of the squared lengths of all tokens, since each token is searched for in all its parts. A vocabulary of 256,000 tokens
/// stays below a hundredth of it.
const MOST_OF_SQUARES: usize = 1 << 32;

/// The kinds of tokens, numbered as in `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const UNUSED: i64 = 5;
}

/// The key that states whether a space is put in front of a text.
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
/// The key of the vocabulary.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// The most bytes of a token. Those of published models have fewer than 600.
const LONGEST_TOKEN: usize = 4096;

/// The vocabulary of a file.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<i64>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &Metadata<'a>) -> Result<Self, UsageError> {
        const KINDS: &str = "tokenizer.ggml.token_type";
        let tokens = metadata.texts(TOKENS)?;
        let kinds = metadata.optional_sizes(KINDS)?.unwrap_or_else(|| vec![1; tokens.len()]);
        if kinds.len() != tokens.len() {
            return Err(metadata.error(KINDS, &format!("{} kinds for {} tokens", kinds.len(), tokens.len())));
        }
        if let Some((id, token)) = tokens.iter().enumerate().find(|(_, token)| token.len() > LONGEST_TOKEN) {
            return Err(metadata.error(TOKENS, &format!("token {id} has {} bytes, which no model's has", token.len())));
        }
        let vocabulary = Self { tokens, kinds };
        vocabulary.refuse_doubles(metadata)?;
        Ok(vocabulary)
    }

    /// Refuses a token with two ids, since a text could become only one of them.
    fn refuse_doubles(&self, metadata: &Metadata<'_>) -> Result<(), UsageError> {
        let mut ids = HashMap::new();
        for (id, token) in self.used() {
            if let Some(other) = ids.insert(token, id) {
                return Err(metadata.error(TOKENS, &format!("{other} and {id} are the same token, `{}`", shown(token))));
            }
        }
        Ok(())
    }

    /// Ids and texts of the tokens that can occur. Unused rows of the table have placeholder texts, and are left out.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str)> + '_ {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.filter(|(_, (_, kind))| **kind != kind::UNUSED).map(|(id, (token, _))| (id, *token))
    }

    fn as_json(&self) -> Value {
        Value::Object(self.used().map(|(id, token)| (token.to_owned(), id.into())).collect::<Map<_, _>>())
    }

    /// The `added_tokens` of a `tokenizer.json`, which are found in a text before it is split: control tokens, the unknown token and
    /// user-defined ones.
    fn added(&self) -> Value {
        let is_added = |id: &usize| matches!(self.kinds[*id], kind::UNKNOWN | kind::CONTROL | kind::USER_DEFINED);
        let added = (0..self.tokens.len()).filter(is_added).map(|id| {
            json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": self.kinds[id] != kind::USER_DEFINED,
            })
        });
        Value::Array(added.collect())
    }

    /// The text of the token whose id is stored under `key`.
    fn named(&self, metadata: &Metadata<'_>, key: &str) -> Result<Option<&'a str>, UsageError> {
        let Some(id) = metadata.optional_size(key)? else { return Ok(None) };
        match self.tokens.get(id) {
            Some(token) => Ok(Some(*token)),
            None => {
                Err(metadata.error(key, &format!("there is no token {id}, the vocabulary has {}", self.tokens.len())))
            }
        }
    }
}

/// Reads the tokenizer.
///
/// # Errors
/// If the tokenizer or the pre-tokenizer is not supported, or the vocabulary is incomplete.
pub(super) fn read(metadata: &Metadata<'_>) -> Result<GgufTokenizer, UsageError> {
    const MODEL: &str = "tokenizer.ggml.model";
    let vocabulary = Vocabulary::read(metadata)?;
    let (mut tokenizer, adds_bos) = match metadata.text(MODEL)? {
        "gpt2" => byte_level(metadata, &vocabulary)?,
        "llama" => sentence_piece(metadata, &vocabulary)?,
        other => {
            return Err(metadata
                .error(MODEL, &format!("the tokenizer `{}` is not supported", shown(other)))
                .hint("supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)"));
        }
    };
    let bos = vocabulary.named(metadata, "tokenizer.ggml.bos_token_id")?;
    let eos = vocabulary.named(metadata, "tokenizer.ggml.eos_token_id")?;
    let adds = |key: &str, default: bool| Ok::<_, UsageError>(metadata.optional_flag(key)?.unwrap_or(default));
    let adds_bos = adds("tokenizer.ggml.add_bos_token", adds_bos)?;
    let adds_eos = adds("tokenizer.ggml.add_eos_token", false)?;
    tokenizer["post_processor"] = post_processor(&vocabulary, bos.filter(|_| adds_bos), eos.filter(|_| adds_eos));
    let config = json!({
        "bos_token": bos,
        "eos_token": eos,
        "unk_token": vocabulary.named(metadata, "tokenizer.ggml.unknown_token_id")?,
        "pad_token": vocabulary.named(metadata, "tokenizer.ggml.padding_token_id")?,
        "chat_template": metadata.optional_text("tokenizer.chat_template")?,
        "clean_up_tokenization_spaces": false,
    });
    let note = match metadata.text(MODEL)? {
        "llama" => space_note(metadata, &vocabulary, &config),
        _ => None,
    };
    Ok(GgufTokenizer { tokenizer, config, note })
}

/// A byte-level BPE tokenizer, and whether it puts BOS before prompts by default.
fn byte_level(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<(Value, bool), UsageError> {
    const PRE: &str = "tokenizer.ggml.pre";
    let name = metadata.optional_text(PRE)?.ok_or_else(|| {
        metadata.error(PRE, "the file does not name the pre-tokenizer, which splits text before merges").hint(
            "it was written by an old converter: convert the model again with llama.cpp's, or give its safetensors",
        )
    })?;
    let Some(rule) = PRE_TOKENIZERS.iter().find(|rule| rule.names.contains(&name)) else {
        let known = PRE_TOKENIZERS.iter().flat_map(|rule| rule.names).copied().collect::<Vec<_>>().join(", ");
        return Err(metadata
            .error(
                PRE,
                &format!("the pre-tokenizer `{}` is not known, and another one would give other tokens", shown(name)),
            )
            .hint(format!("known: {known}; give the model's safetensors instead")));
    };
    let byte_level = |own_rule: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": own_rule,
        })
    };
    let pre_tokenizer = match rule.split {
        SplitRule::Gpt2 => byte_level(true),
        SplitRule::Digits => sequence([json!({ "type": "Digits", "individual_digits": true }), byte_level(true)]),
        SplitRule::Regex(regex) => sequence([
            json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false }),
            byte_level(false),
        ]),
    };
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = metadata.texts(MERGES)?;
    let pair = |merge: &&str| merge.split_once(' ').map(|(left, right)| json!([left, right]));
    let merges: Option<Vec<Value>> = merges.iter().map(pair).collect();
    let merges =
        merges.ok_or_else(|| metadata.error(MERGES, "expected two tokens with a space between them in each"))?;
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": if rule.nfc { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": pre_tokenizer,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": rule.ignores_merges, "vocab": vocabulary.as_json(), "merges": merges,
        },
    });
    Ok((tokenizer, rule.adds_bos))
}

fn sequence(steps: [Value; 2]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}

/// A SentencePiece BPE tokenizer, as converted by transformers: pieces with scores become merges, the highest score first. The flag is that
/// of [`byte_level`].
fn sentence_piece(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<(Value, bool), UsageError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = metadata.optional_numbers(SCORES)?.unwrap_or_default();
    if scores.len() != vocabulary.tokens.len() {
        let what = format!("{} scores for {} tokens", scores.len(), vocabulary.tokens.len());
        return Err(metadata.error(SCORES, &what));
    }
    let squares = vocabulary.tokens.iter().fold(0usize, |sum, token| sum.saturating_add(token.len() * token.len()));
    if squares > MOST_OF_SQUARES {
        return Err(metadata.error(TOKENS, "the tokens are longer than those of any model"));
    }
    let adds_space = metadata.optional_flag(ADD_SPACE)?.unwrap_or(true);
    let marks_spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let normalizer = match adds_space {
        true => json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, marks_spaces] }),
        false => marks_spaces,
    };
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if adds_space {
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = vocabulary.named(metadata, "tokenizer.ggml.unknown_token_id")?;
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": normalizer, "pre_tokenizer": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.as_json(), "merges": merges_of(vocabulary, &scores),
        },
    });
    Ok((tokenizer, true))
}

/// The note on a file that does not state whether text after a control token gets a space in front, if such tokens may occur within a
/// prompt. Llama 2's tokenizer and llama.cpp put one there; transformers' newer SentencePiece tokenizers (Mistral v0.3) do not.
fn space_note(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>, config: &Value) -> Option<String> {
    let is_named = |token: &str| {
        ["bos_token", "eos_token", "unk_token", "pad_token"].iter().any(|key| config[*key].as_str() == Some(token))
    };
    let has_space = metadata.optional_flag(ADD_SPACE).ok().flatten().unwrap_or(true);
    let (_, token) =
        vocabulary.used().find(|(id, token)| vocabulary.kinds[*id] == kind::CONTROL && !is_named(token))?;
    has_space.then(|| {
        format!(
            "{}: text behind a control token such as `{}` gets a space in front, as in llama.cpp and Llama 2; some tokenizers of \
             transformers put none there, and the file does not say",
            metadata.file(),
            shown(token)
        )
    })
}

/// The merges of a vocabulary with scores: each split of a piece into two other pieces, by descending score (transformers'
/// `generate_merges`).
fn merges_of(vocabulary: &Vocabulary<'_>, scores: &[f32]) -> Vec<Value> {
    let ids: HashMap<&str, usize> = vocabulary.used().map(|(id, token)| (token, id)).collect();
    let mut merges: Vec<(&str, &str, f32)> = Vec::new();
    for (id, piece) in vocabulary.used() {
        let splits = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let mut found: Vec<(usize, usize, &str, &str)> =
            splits.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right))).collect();
        found.sort_unstable();
        merges.extend(found.into_iter().map(|(_, _, left, right)| (left, right, scores[id])));
    }
    let length = |text: &str| text.chars().count();
    merges.sort_by(|a, b| b.2.total_cmp(&a.2).then(length(b.0).cmp(&length(a.0))).then(length(b.1).cmp(&length(a.1))));
    merges.into_iter().map(|(left, right, _)| json!([left, right])).collect()
}

/// The post-processor that puts BOS before a text and EOS after it, if they are given.
fn post_processor(vocabulary: &Vocabulary<'_>, bos: Option<&str>, eos: Option<&str>) -> Value {
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let special = |token: &str, of: u32| json!({ "SpecialToken": { "id": token, "type_id": of } });
    let text = |name: &str, of: u32| {
        let own = json!({ "Sequence": { "id": name, "type_id": of } });
        bos.map(|token| special(token, of)).into_iter().chain([own]).chain(eos.map(|token| special(token, of)))
    };
    let id_of = |token: &str| vocabulary.tokens.iter().position(|known| *known == token).unwrap_or_default();
    let tokens: Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|token| (token.to_owned(), json!({ "id": token, "ids": [id_of(token)], "tokens": [token] })))
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": text("A", 0).collect::<Vec<_>>(),
        "pair": text("A", 0).chain(text("B", 1)).collect::<Vec<_>>(),
        "special_tokens": tokens,
    })
}
