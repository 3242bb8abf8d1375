//! Special and added tokens from files beside `tokenizer.json`, read as by transformers.
//!
//! `tokenizer_config.json` may list them under `added_tokens_decoder`. If it does not, transformers reads `added_tokens.json` and
//! `special_tokens_map.json`; the latter takes precedence over `tokenizer_config.json`. A token in these files that is not an added token
//! of `tokenizer.json` becomes one, so that it is never split.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::texts::{ModelTexts, TextFile, object, token_text};
use spattn_base::error::UsageError;
use spattn_base::foreign::contain;

/// If `tokenizer_config.json` has this key, the older files are not read.
const DECODER: &str = "added_tokens_decoder";
/// The keys of special tokens in transformers.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The keys of lists of further special tokens.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];
/// The most tokens that a note shows; the others are counted.
const SHOWN: usize = 4;
/// The most characters of a token that a note shows.
const LONGEST: usize = 60;

/// The settings of `tokenizer_config.json`, and of `special_tokens_map.json` if it is read.
///
/// # Errors
/// A file that is not a JSON object, with its name.
pub(super) fn settings(files: &ModelTexts) -> Result<Map<String, Value>, UsageError> {
    let mut settings = object(files.tokenizer_config.as_ref())?;
    if !settings.contains_key(DECODER) {
        settings.extend(object(files.special_tokens.as_ref())?);
    }
    Ok(settings)
}

/// Whether the older files are read, given the text of `tokenizer_config.json`.
pub(super) fn needs_older_files(tokenizer_config: Option<&str>) -> bool {
    // A malformed file is reported when it is read.
    let settings = tokenizer_config.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    settings.is_none_or(|settings| !settings.contains_key(DECODER))
}

/// Adds the tokens that `tokenizer.json` lacks or has only as ordinary ones. Returns notes for the user, one line each.
///
/// # Errors
/// A malformed file, with its name.
pub(super) fn add(
    inner: &mut tokenizers::Tokenizer,
    files: &ModelTexts,
    settings: &Map<String, Value>,
    vocab_size: usize,
) -> Result<Vec<String>, UsageError> {
    let known = inner.get_added_tokens_decoder();
    let (file, mut listed) = listed(files, settings)?;
    if !settings.contains_key(DECODER) {
        // If `tokenizer.json` has the id of an entry in `added_tokens.json`, its own entry is used.
        listed.retain(|id, _| !known.contains_key(id));
    }
    let is_lacking = |token: &&AddedToken| inner.token_to_id(&token.content).is_none();
    let lacking: Vec<String> = listed.values().filter(is_lacking).map(|token| token.content.clone()).collect();
    let known: BTreeMap<&str, &AddedToken> = known.values().map(|token| (token.content.as_str(), token)).collect();
    let is_new = |token: &&AddedToken| known.get(token.content.as_str()) != Some(token);
    extend(inner, files, listed.values().filter(is_new).cloned().collect())?;
    let mut notes = Vec::new();
    if !lacking.is_empty() {
        let own = &files.tokenizer.name;
        notes.push(format!(
            "{own}: the tokens {} of {file} are missing there; they are added, as in transformers",
            several(&lacking)
        ));
    }
    let other = |(id, token): &(&u32, &AddedToken)| inner.token_to_id(&token.content) != Some(**id);
    notes.extend(listed.iter().find(other).map(|(id, token)| {
        let own = inner.token_to_id(&token.content).unwrap_or_default();
        format!(
            "{file}: `{}` has the id {id}, and {own} in tokenizer.json, whose id is used",
            shortened(&token.content)
        )
    }));
    mark_special(inner, files, settings, vocab_size)?;
    notes.extend(unknown(inner, files, settings));
    Ok(notes)
}

/// Adds tokens. The file's normalizer runs on them; a panic in it becomes an error.
fn extend(inner: &mut tokenizers::Tokenizer, files: &ModelTexts, tokens: Vec<AddedToken>) -> Result<(), UsageError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let failed = |e: &dyn std::fmt::Display| {
        UsageError::new(format!("{}: {}", files.tokenizer.name, e.to_string().replace('\n', " ")))
    };
    contain(|| inner.add_tokens(tokens)).map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
    Ok(())
}

/// The tokens of `tokenizer_config.json`, or else of `added_tokens.json`, by id; and the name of that file.
fn listed(
    files: &ModelTexts,
    settings: &Map<String, Value>,
) -> Result<(String, BTreeMap<u32, AddedToken>), UsageError> {
    let name = |file: &Option<TextFile>| file.as_ref().map_or_else(String::new, |file| file.name.clone());
    let mut tokens = BTreeMap::new();
    if let Some(decoder) = settings.get(DECODER) {
        let file = name(&files.tokenizer_config);
        for (id, token) in decoder.as_object().into_iter().flatten() {
            let content = token_text(token).ok_or_else(|| wrong(&file, DECODER, id))?;
            let id = id.parse::<u32>().map_err(|_| wrong(&file, DECODER, id))?;
            let flag = |key: &str, default: bool| token.get(key).and_then(Value::as_bool).unwrap_or(default);
            let is_special = flag("special", false);
            let token = AddedToken::from(content, is_special)
                .single_word(flag("single_word", false))
                .lstrip(flag("lstrip", false))
                .rstrip(flag("rstrip", false))
                .normalized(flag("normalized", !is_special));
            tokens.insert(id, token);
        }
        return Ok((file, tokens));
    }
    let file = name(&files.added_tokens);
    let special: BTreeSet<&str> = special_texts(settings).collect();
    for (content, id) in object(files.added_tokens.as_ref())? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id =
            id.ok_or_else(|| UsageError::new(format!("{file}: `{}`: expected a token id", shortened(&content))))?;
        let is_special = special.contains(content.as_str());
        tokens.insert(id, AddedToken::from(content, is_special));
    }
    Ok((file, tokens))
}

fn wrong(file: &str, key: &str, id: &str) -> UsageError {
    UsageError::new(format!("{file}: `{key}.{}`: expected a token with an id", shortened(id)))
}

fn special_texts(settings: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let named = NAMED.iter().filter_map(|key| settings.get(*key));
    let lists = LISTS.iter().filter_map(|key| settings.get(*key)?.as_array()).flatten();
    named.chain(lists).filter_map(token_text)
}

/// Marks special tokens that `tokenizer.json` has as ordinary ones. Tokens that it lacks are not added: their rows of the embedding table
/// would be untrained or missing.
fn mark_special(
    inner: &mut tokenizers::Tokenizer,
    files: &ModelTexts,
    settings: &Map<String, Value>,
    vocab_size: usize,
) -> Result<(), UsageError> {
    let known = inner.get_added_tokens_decoder();
    let marked: BTreeSet<&str> = known.values().map(|token| token.content.as_str()).collect();
    let is_within = |text: &str| inner.token_to_id(text).is_some_and(|id| (id as usize) < vocab_size);
    let unmarked = special_texts(settings).filter(|text| !marked.contains(text) && is_within(text));
    let unmarked = unmarked.map(|text| AddedToken::from(text, true)).collect();
    extend(inner, files, unmarked)
}

/// Notes on special tokens that the tokenizer lacks.
fn unknown(inner: &tokenizers::Tokenizer, files: &ModelTexts, settings: &Map<String, Value>) -> Vec<String> {
    let note = |(key, effect): (&str, &str)| {
        let text = settings.get(key).and_then(token_text).filter(|text| inner.token_to_id(text).is_none())?;
        Some(format!("{}: `{key}` `{}` is not in its vocabulary: {effect}", files.tokenizer.name, shortened(text)))
    };
    [("bos_token", "prompts do not begin with it"), ("eos_token", "answers do not end with it")]
        .into_iter()
        .filter_map(note)
        .collect()
}

fn several(tokens: &[String]) -> String {
    let (first, rest) = tokens.split_at(tokens.len().min(SHOWN));
    let shown = first.iter().map(|token| format!("`{}`", shortened(token))).collect::<Vec<_>>().join(", ");
    if rest.is_empty() { shown } else { format!("{shown} and {} more", rest.len()) }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
