//! Turns a user's turn into token ids, and ids into text.
//!
//! A prompt is rendered as one text (chat template, user's turn, opened answer) and split once, so that no token boundary is forced at the
//! question. If the tokenizer adds a BOS and the template has printed one, the prompt still begins with only one. A wrong number of BOS
//! tokens and missed EOS ids are the most common reasons for scores that do not reproduce, so both are decided only here. Rendering is in
//! [`chat`](super::chat).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tokenizers::models::ModelWrapper;

use super::added_tokens;
use super::chat::{ChatTemplate, Message};
use super::config::{self, ModelConfig};
use super::generation;
use super::markup;
use super::patterns;
use super::texts::{ModelTexts, TextFile, object, token_text};
use spattn_base::error::{UsageError, in_plain_words};
use spattn_base::foreign::contain;
use spattn_hub::checksum::sha256_hex;

/// Special tokens that end a turn in some model family, even if the config does not say so.
const TURN_ENDS: [&str; 4] = ["<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"];

/// Special tokens besides BOS and EOS that chat templates may print, by their keys.
const OTHER_TOKENS: [&str; 5] = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A user's turn that occurs in no template.
const MARK: &str = "\u{1}the user's turn\u{1}";
/// Another one.
const OTHER_MARK: &str = "\u{1}another turn of the user\u{1}";

/// How prompts are rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// Whether the chat template is used, if the model has one.
    pub chat: bool,
    /// Whether the model may think before it answers, if its template can switch that. Off by default, since answers of long-context tasks
    /// are scored by their first few tokens.
    pub thinking: bool,
    /// The system prompt, for the chat template.
    pub system: Option<String>,
}

impl Default for TokenizerOptions {
    fn default() -> Self {
        Self { chat: true, thinking: false, system: None }
    }
}

/// A prompt in tokens, with the offsets that relate tokens to its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The byte range of each token in `text`; `(0, 0)` for a BOS that is not in the text.
    pub offsets: Vec<(usize, usize)>,
    /// The rendered text.
    pub text: String,
    /// The byte in `text` where the user's turn starts.
    pub user_start: usize,
    /// The number of bytes (white space) that the template removed from the start of the user's turn.
    pub user_cut: usize,
    /// The number of BOS tokens in `ids`: 1, unless the tokenizer adds none or the user's text contains some.
    pub bos_count: usize,
}

impl PromptTokens {
    /// The index of the first token that contains a byte of `text` at or after `byte`, including a token that straddles `byte`; the number
    /// of tokens if there is none.
    pub fn token_at(&self, byte: usize) -> usize {
        self.offsets.iter().position(|(_, end)| *end > byte).unwrap_or(self.ids.len())
    }

    /// Like [`token_at`](Self::token_at), for a byte of the user's turn, such as the first of the question.
    pub fn token_of_user_byte(&self, byte: usize) -> usize {
        self.token_at(self.user_start + byte.saturating_sub(self.user_cut))
    }
}

/// A model's tokenizer with its chat template and special tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: String,
    /// The tokens that the tokenizer puts in front of a text: a BOS for most models.
    front: Vec<u32>,
    bos: Option<u32>,
    eos: Vec<u32>,
    chat: Option<ChatTemplate>,
    /// The SHA-256 of the template in use and of the special tokens that it may print.
    chat_sha256: Option<String>,
    options: TokenizerOptions,
    sha256: String,
    value_sha256: String,
    notes: Vec<String>,
}

impl Tokenizer {
    /// Loads the tokenizer of a model.
    ///
    /// # Errors
    /// A malformed file, with its name; a system prompt without a chat template, or with one that ignores it.
    pub fn load(files: &ModelTexts, config: &ModelConfig, options: TokenizerOptions) -> Result<Self, UsageError> {
        let settings = added_tokens::settings(files)?;
        let mut notes = Vec::new();
        let mut inner = read_tokenizer(&files.tokenizer)?;
        notes.extend(without_dropout(&mut inner, &files.tokenizer.name));
        notes.extend(added_tokens::add(&mut inner, files, &settings, config.vocab_size)?);
        let named = |key: &str| settings.get(key).and_then(token_text);
        let stated_bos = named("bos_token").and_then(|t| inner.token_to_id(t));
        let mut front = front(&inner, &files.tokenizer.name)?;
        notes.extend(bos_notes(files, &settings, !front.is_empty()));
        if front.is_empty() && settings.get("add_bos_token") == Some(&Value::Bool(true)) {
            match (stated_bos, named("bos_token")) {
                (Some(bos), _) => front.push(bos),
                (None, Some(token)) => return Err(unknown_bos(files, token)),
                (None, None) => {}
            }
        }
        // The post-processor is removed, since it would change offsets; `front` holds what it adds.
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let mut eos = config.eos_ids.clone();
        if let Some(file) = &files.generation_config {
            let generation = object(Some(file))?;
            eos.extend(config::eos_ids(&generation, &file.name, config.vocab_size)?);
            notes.extend(generation::unread(&generation, &file.name));
        }
        eos.extend(named("eos_token").and_then(|t| inner.token_to_id(t)));
        eos.extend(turn_ends(&inner));
        eos.sort_unstable();
        eos.dedup();
        let template = template(files, &settings)?.filter(|_| options.chat);
        let mut tokenizer = Self {
            bos: front.first().copied().or(stated_bos),
            chat: template.as_ref().map(Template::compiled).transpose()?,
            chat_sha256: template.as_ref().map(Template::sha256),
            sha256: sha256_hex(files.tokenizer.text.as_bytes()),
            value_sha256: value_sha256(&files.tokenizer.text),
            file: files.tokenizer.name.clone(),
            inner,
            front,
            eos,
            options,
            notes,
        };
        tokenizer.check_system()?;
        tokenizer.check_thinking()?;
        let note = tokenizer.note_on_front()?;
        tokenizer.notes.extend(note);
        Ok(tokenizer)
    }

    /// The note on prompts that begin with a token which the chat template does not print. A failing template is reported when it is used.
    fn note_on_front(&self) -> Result<Option<String>, UsageError> {
        let (Some(chat), [first, ..]) = (&self.chat, self.front.as_slice()) else { return Ok(None) };
        let Ok(text) = self.said(chat, MARK) else { return Ok(None) };
        if !self.needs_front(&self.split(&text)?) {
            return Ok(None);
        }
        Ok(Some(format!(
            "{}: the tokenizer puts `{}` in front of a text, and the chat template prints none: prompts begin with it \
             (transformers' `apply_chat_template` leaves it out)",
            self.file,
            self.spell(&[*first])?
        )))
    }

    /// Checks that the system prompt gets into prompts.
    fn check_system(&self) -> Result<(), UsageError> {
        let Some(system) = &self.options.system else { return Ok(()) };
        let Some(chat) = &self.chat else {
            let what = format!("{}: the model has no chat template, which a system prompt is part of", self.file);
            return Err(UsageError::new(what).hint("leave --system-prompt out, or give an instruction-tuned model"));
        };
        let text = self.said(chat, MARK)?;
        let is_before = |at: usize| text[..at].contains(system.trim());
        match text.find(MARK).is_some_and(is_before) {
            true => Ok(()),
            false => Err(chat
                .fault("has no place for a system prompt")
                .hint("leave --system-prompt out; what it says may be put into the rows of a file")),
        }
    }

    /// Checks that there is a chat template that can make the model think.
    fn check_thinking(&self) -> Result<(), UsageError> {
        if !self.options.thinking || self.chat.is_some() {
            return Ok(());
        }
        let what = format!("{}: the model has no chat template, by which models are told to think", self.file);
        Err(UsageError::new(what).hint("leave --thinking out, or give a model that can think"))
    }

    /// Renders a conversation with this user's turn.
    fn said(&self, chat: &ChatTemplate, user: &str) -> Result<String, UsageError> {
        let mut variables = Map::new();
        variables.insert("enable_thinking".to_owned(), self.options.thinking.into());
        let system = self.options.system.iter().map(|text| Message::system(text.as_str()));
        chat.render(&system.chain([Message::user(user)]).collect::<Vec<_>>(), &variables)
    }

    /// Whether prompts are rendered with a chat template.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// SHA-256 of `tokenizer.json` in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// SHA-256 of the JSON value of `tokenizer.json`, which does not depend on its layout.
    pub fn value_sha256(&self) -> &str {
        &self.value_sha256
    }

    /// Sets the SHA-256 that [`sha256`](Self::sha256) returns to that of another file with the same value.
    pub fn record_as(&mut self, sha256: &str) {
        sha256.clone_into(&mut self.sha256);
    }

    /// What determines prompts and the ends of answers besides `tokenizer.json`, for a run's identity.
    pub fn identity(&self) -> Value {
        json!({
            "added_tokens_sha256": self.added_sha256(),
            "chat_template_sha256": self.chat_sha256,
            "thinking": self.options.thinking,
            "front": self.front,
            "bos": self.bos,
            "eos": self.eos,
        })
    }

    /// The SHA-256 of the added tokens, which are found in a text before it is split. Other files may add some to those of
    /// `tokenizer.json`.
    fn added_sha256(&self) -> String {
        let added: BTreeMap<u32, tokenizers::AddedToken> = self.inner.get_added_tokens_decoder().into_iter().collect();
        sha256_hex(json!(added).to_string().as_bytes())
    }

    /// Notes for the user on how the files were read, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of BOS tokens at the beginning of a prompt, for a self-check; `None` if there are none and the tokenizer adds none.
    pub fn leading_bos(&self, ids: &[u32]) -> Option<usize> {
        let bos = self.bos?;
        let leading = ids.iter().take_while(|id| **id == bos).count();
        (leading > 0 || self.front.contains(&bos)).then_some(leading)
    }

    /// Id of the BOS token, if the model has one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The ids that end a generation, sorted: those named in any of the model's files, and the usual ends of a turn that are special
    /// tokens of the vocabulary.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Number of tokens, special tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Id of a token with this text in the vocabulary.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The prompt for a user's turn, with the beginning of the answer, which the model continues.
    ///
    /// # Errors
    /// If the chat template fails or changes the user's words, or the text cannot be split.
    pub fn encode_prompt(&self, user: &str, answer_prefix: &str) -> Result<PromptTokens, UsageError> {
        self.encode_rendered(self.render(user, answer_prefix)?)
    }

    /// Like [`encode_prompt`](Self::encode_prompt), without a chat template even if the model has one.
    ///
    /// # Errors
    /// If the text cannot be split.
    pub fn encode_plain(&self, user: &str, answer_prefix: &str) -> Result<PromptTokens, UsageError> {
        self.encode_rendered(Rendered::plain(user, answer_prefix))
    }

    fn encode_rendered(&self, rendered: Rendered) -> Result<PromptTokens, UsageError> {
        let Rendered { text, user_start, user_cut } = rendered;
        let encoding = self.run(|| self.inner.encode(text.as_str(), false))?;
        let mut ids = encoding.get_ids().to_vec();
        let mut offsets = encoding.get_offsets().to_vec();
        if self.needs_front(&ids) {
            ids.splice(0..0, self.front.iter().copied());
            offsets.splice(0..0, self.front.iter().map(|_| (0, 0)));
        }
        let bos_count = ids.iter().filter(|id| Some(**id) == self.bos).count();
        Ok(PromptTokens { ids, offsets, text, user_start, user_cut, bos_count })
    }

    /// The number of tokens of [`encode_prompt`](Self::encode_prompt), at less cost. Errors as there.
    pub fn count_prompt(&self, user: &str, answer_prefix: &str) -> Result<usize, UsageError> {
        let ids = self.split(&self.render(user, answer_prefix)?.text)?;
        Ok(ids.len() + if self.needs_front(&ids) { self.front.len() } else { 0 })
    }

    /// The ids of a text, without chat template. If `front`, with the tokens that the tokenizer puts in front of a text.
    ///
    /// # Errors
    /// If the text cannot be split.
    pub fn encode_text(&self, text: &str, front: bool) -> Result<Vec<u32>, UsageError> {
        let mut ids = self.split(text)?;
        if front && self.needs_front(&ids) {
            ids.splice(0..0, self.front.iter().copied());
        }
        Ok(ids)
    }

    /// The ids of a text, and the byte at which each token ends; nothing is put in front.
    ///
    /// # Errors
    /// If the text cannot be split.
    pub fn encode_with_ends(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), UsageError> {
        let encoding = self.run(|| self.inner.encode(text, false))?;
        Ok((encoding.get_ids().to_vec(), encoding.get_offsets().iter().map(|(_, end)| *end).collect()))
    }

    /// The tokens that the tokenizer puts in front of a text: a BOS for most models.
    pub fn front(&self) -> &[u32] {
        &self.front
    }

    /// The text of ids, without special tokens.
    ///
    /// # Errors
    /// If the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, UsageError> {
        self.run(|| self.inner.decode(ids, true))
    }

    /// The text of ids, including special tokens.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode).
    pub fn spell(&self, ids: &[u32]) -> Result<String, UsageError> {
        self.run(|| self.inner.decode(ids, false))
    }

    /// A sign that a user's turn was already put into a chat template; `None` if there is none, or the model has no template.
    ///
    /// # Errors
    /// If the chat template fails.
    pub fn markup_in<'t>(&self, user: &'t str) -> Result<Option<&'t str>, UsageError> {
        let Some(chat) = &self.chat else { return Ok(None) };
        let around = self.said(chat, MARK)?;
        let Some((before, after)) = around.split_once(MARK) else { return Ok(None) };
        let added = self.inner.get_added_tokens_decoder().into_values();
        let special: Vec<String> = added.filter(|token| token.special).map(|token| token.content).collect();
        Ok(markup::found(user, &markup::Around { before, after, special: &special }))
    }

    /// Counts the tokens of a text, and stops above `most`. The text is split in pieces, so each border may add a token or two.
    ///
    /// # Errors
    /// If the text cannot be split.
    pub fn count_past(&self, text: &str, most: usize) -> Result<usize, UsageError> {
        let (mut count, mut rest) = (0, text);
        while !rest.is_empty() && count <= most {
            let (piece, others) = rest.split_at(piece_end(rest));
            count += self.split(piece)?.len();
            rest = others;
        }
        Ok(count)
    }

    fn split(&self, text: &str) -> Result<Vec<u32>, UsageError> {
        let encoding = self.run(|| self.inner.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn needs_front(&self, ids: &[u32]) -> bool {
        !self.front.is_empty() && ids.first() != self.front.first()
    }

    /// Runs the tokenizer; a panic, which an unusual file may cause, becomes an error.
    fn run<T>(&self, encode: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, UsageError> {
        contain(encode).map_err(|e| self.failed(&e))?.map_err(|e| self.failed(&*e))
    }

    fn failed(&self, error: &dyn std::error::Error) -> UsageError {
        UsageError::new(format!("{}: {}", self.file, one_line(error)))
    }

    fn render(&self, user: &str, answer_prefix: &str) -> Result<Rendered, UsageError> {
        let Some(chat) = &self.chat else {
            return Ok(Rendered::plain(user, answer_prefix));
        };
        let mut text = self.said(chat, user)?;
        // The user's turn starts where the mark, which occurs nowhere else, is rendered.
        let marked = self.said(chat, MARK)?;
        let Some(start) = marked.find(MARK) else {
            let is_left_out = marked == self.said(chat, OTHER_MARK)?;
            return Err(chat.fault(if is_left_out { "leaves out the user's turn" } else { "changes the user's turn" }));
        };
        let user_cut = text
            .get(start..)
            .filter(|_| text[..start] == marked[..start])
            .and_then(|rest| cut(user, rest))
            .ok_or_else(|| chat.fault("changes the user's turn"))?;
        text.push_str(answer_prefix);
        Ok(Rendered { text, user_start: start, user_cut })
    }
}

struct Rendered {
    text: String,
    user_start: usize,
    user_cut: usize,
}

impl Rendered {
    fn plain(user: &str, answer_prefix: &str) -> Self {
        Self { text: format!("{user}{answer_prefix}"), user_start: 0, user_cut: 0 }
    }
}

/// Where the first piece of a text ends: at the last white space in its first 64 KiB if that is in their second half, else after them.
fn piece_end(text: &str) -> usize {
    const PIECE: usize = 1 << 16;
    if text.len() <= PIECE {
        return text.len();
    }
    let most = (0..=PIECE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    text[..most].rfind(char::is_whitespace).filter(|at| *at > PIECE / 2).unwrap_or(most)
}

/// The bytes missing at the start of `user` in `rendered`, since templates may trim it; `None` if it was changed in another way.
fn cut(user: &str, rendered: &str) -> Option<usize> {
    let left = user.trim_start();
    if rendered.starts_with(user) {
        Some(0)
    } else {
        rendered.starts_with(left.trim_end()).then_some(user.len() - left.len())
    }
}

fn read_tokenizer(file: &TextFile) -> Result<tokenizers::Tokenizer, UsageError> {
    let fault = |e: &dyn std::error::Error| match patterns::unknown_kind(&file.text) {
        Some((what, hint)) => UsageError::new(format!("{}: not a tokenizer: {what}", file.name)).hint(hint),
        None => UsageError::new(format!("{}: not a tokenizer: {}", file.name, in_plain_words(&one_line(e)))),
    };
    patterns::check(&file.text).map_err(|what| {
        UsageError::new(format!("{}: {what}", file.name))
            .hint("give a model whose tokenizer is what its makers published")
    })?;
    let read = contain(|| tokenizers::Tokenizer::from_bytes(file.text.as_bytes())).map_err(|e| fault(&e))?;
    let mut inner = read.map_err(|e| fault(&*e))?;
    if inner.get_vocab_size(true) == 0 {
        return Err(UsageError::new(format!("{}: it has no tokens", file.name)));
    }
    // Some files contain truncation and padding settings from the training of the tokenizer.
    inner.with_truncation(None).map_err(|e| fault(&*e))?;
    inner.with_padding(None);
    Ok(inner)
}

/// Removes a BPE model's dropout, which splits the same text differently each time: runs must be repeatable, and models are evaluated
/// without dropout. Returns a note if there was one.
fn without_dropout(inner: &mut tokenizers::Tokenizer, file: &str) -> Option<String> {
    let ModelWrapper::BPE(model) = inner.get_model() else { return None };
    let dropout = model.dropout.filter(|dropout| *dropout != 0.0)?;
    let mut model = model.clone();
    model.dropout = None;
    inner.with_model(model);
    Some(format!("{file}: its `dropout` of {dropout} is not applied, so that a text always has the same tokens"))
}

/// Notes on disagreements about BOS or EOS between `tokenizer_config.json` and the post-processor of `tokenizer.json`. Transformers 5
/// follows only `tokenizer.json`; the Llama and Gemma classes of transformers 4 follow `tokenizer_config.json`.
fn bos_notes(files: &ModelTexts, settings: &Map<String, Value>, has_front: bool) -> Vec<String> {
    let flag = |key: &str| settings.get(key).and_then(Value::as_bool);
    let file = files.tokenizer_config.as_ref().unwrap_or(&files.tokenizer);
    let has_bos = settings.get("bos_token").and_then(token_text).is_some();
    let bos = match (flag("add_bos_token"), has_front) {
        (Some(false), true) => Some(
            "`add_bos_token` is false, and tokenizer.json puts special tokens in front of a text: they are kept, as in transformers 5 \
             (some tokenizers of transformers 4 leave them out)",
        ),
        (Some(true), false) if has_bos => Some(
            "`add_bos_token` is true, and tokenizer.json puts no BOS in front of a text: BOS is added, as by some tokenizers of \
             transformers 4 (transformers 5 leaves it out)",
        ),
        (Some(true), false) => Some("`add_bos_token` is true, and no `bos_token` is named: prompts begin without one"),
        _ => None,
    };
    let eos = (flag("add_eos_token") == Some(true))
        .then_some("`add_eos_token` is true: no EOS is put after prompts, since the model continues them");
    bos.into_iter().chain(eos).map(|note| format!("{}: {note}", file.name)).collect()
}

fn unknown_bos(files: &ModelTexts, token: &str) -> UsageError {
    let stated = files.tokenizer_config.as_ref().map_or(files.tokenizer.name.as_str(), |file| file.name.as_str());
    UsageError::new(format!("{stated}: `add_bos_token` is true, and `bos_token` `{token}` is not in tokenizer.json"))
        .hint("the two files belong to different models, or `add_bos_token` must be removed")
}

fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().replace('\n', " ")
}

/// The special tokens that the post-processor puts in front of a text. What it appends is ignored, since the model continues the prompt.
fn front(inner: &tokenizers::Tokenizer, file: &str) -> Result<Vec<u32>, UsageError> {
    let failed = |e: tokenizers::Error| UsageError::new(format!("{file}: {}", one_line(&*e)));
    let encoding = contain(|| inner.encode("a", true)).map_err(|e| failed(e.into()))?.map_err(failed)?;
    let special = encoding.get_special_tokens_mask().iter().take_while(|m| **m == 1).count();
    Ok(encoding.get_ids()[..special].to_vec())
}

fn turn_ends(inner: &tokenizers::Tokenizer) -> impl Iterator<Item = u32> {
    let added = inner.get_added_tokens_decoder();
    added.into_iter().filter(|(_, t)| t.special && TURN_ENDS.contains(&t.content.as_str())).map(|(id, _)| id)
}

fn template<'a>(files: &'a ModelTexts, settings: &'a Map<String, Value>) -> Result<Option<Template<'a>>, UsageError> {
    let named = |key: &str| settings.get(key).and_then(token_text);
    let (source, file) = match (&files.chat_template, &files.tokenizer_config) {
        (Some(own), _) => (own.text.as_ref(), own.name.as_str()),
        (None, Some(config)) => match stated_template(settings, &config.name)? {
            Some(source) => (source, config.name.as_str()),
            None => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    let others = OTHER_TOKENS.iter().filter_map(|name| Some((*name, named(name)?))).collect();
    Ok(Some(Template { source, file, bos: named("bos_token"), eos: named("eos_token"), others }))
}

/// A chat template in a model's files.
struct Template<'a> {
    source: &'a str,
    /// Its file, for errors.
    file: &'a str,
    /// The texts of the special tokens that it may print.
    bos: Option<&'a str>,
    eos: Option<&'a str>,
    /// Other special tokens, by key.
    others: Vec<(&'static str, &'a str)>,
}

impl Template<'_> {
    fn compiled(&self) -> Result<ChatTemplate, UsageError> {
        let chat = ChatTemplate::parse(self.source, self.file, self.bos, self.eos)?;
        Ok(self.others.iter().fold(chat, |chat, (name, token)| chat.with_token(name, token)))
    }

    fn sha256(&self) -> String {
        sha256_hex(json!([self.source, self.bos, self.eos, self.others]).to_string().as_bytes())
    }
}

/// The SHA-256 of a JSON value, which does not depend on spaces, the order of keys or the escaping of characters.
fn value_sha256(text: &str) -> String {
    let mut value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).unwrap_or_default();
    value.sort_all_objects();
    sha256_hex(value.to_string().as_bytes())
}

/// The template in `tokenizer_config.json`: a string, or the one named `default` in a list.
fn stated_template<'a>(settings: &'a Map<String, Value>, file: &str) -> Result<Option<&'a str>, UsageError> {
    let fault = |what: &str| Err(UsageError::new(format!("{file}: `chat_template`: {what}")));
    match settings.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source)),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            match default.and_then(|entry| entry["template"].as_str()) {
                Some(source) => Ok(Some(source)),
                None => fault("no template named `default` in the list"),
            }
        }
        Some(_) => fault("expected a string or a list of named templates"),
    }
}
