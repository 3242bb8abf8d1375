//! Perplexity of plain text: a text is read in windows, and the last tokens of each window are scored.
//!
//! A text is split into tokens once. Window `i` holds the tokens that the tokenizer puts in front (a BOS) and the text's tokens from
//! `i · stride` on, `--length` tokens in all. Its last `scored` tokens are scored; those before them are their context. By default,
//! consecutive windows share no token. No window crosses the end of a text. If there are several texts, the task has the first
//! window of each, then the second of each, and so on.
//!
//! WikiText-2 is read unchanged from its file (`wiki.test.raw`). With `detokenize=true` it is read as by lm-eval, while bytes and
//! words are still counted in the file ([`Detokenised`]).

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::likelihood::{Continuation, LikelihoodTask, Measure, Passage, Scoring, TextEncoder, TextTokens};
use super::options::Given;
use super::text::decode;
use super::text::wikitext::Detokenised;
use super::{Family, Task, TaskInfo, TaskOptions, assets, digest, rows};
use spattn_attention::kv::MOST_TOKENS;
use spattn_base::disk::no_lfs_pointer_at;
use spattn_base::error::UsageError;
use spattn_base::given;

const PREFIX: &str = "ppl/";
const FILE: &str = "file:";
/// The options that may follow a name.
const OPTIONS: [&str; 3] = ["scored", "stride", "detokenize"];
/// The number of scored tokens at the end of a window by default.
const SCORED: usize = 256;
const FILE_HINT: &str = "ppl/file:PATH takes a text file (also .gz), or a folder with *.txt or *.txt.gz";

/// The most bytes of a text in a `.gz` file or an archive; WikiText-103, the longest text in use, has half as many.
const MOST_UNPACKED: u64 = 1 << 30;

/// A published text that has a task name.
struct Known {
    name: &'static str,
    about: &'static str,
    find: fn(&TaskOptions) -> Option<PathBuf>,
    files: fn() -> Vec<&'static str>,
    how: &'static str,
    /// Whether it has WikiText's marks (` @-@ `), which `detokenize=true` removes.
    is_wikitext: bool,
}

static KNOWN: [Known; 2] = [
    Known {
        name: "wikitext2",
        about: "perplexity of WikiText-2's test text (--data with wiki.test.raw)",
        find: assets::wikitext2,
        files: || assets::WIKITEXT2.to_vec(),
        how: "`spattn data fetch wikitext2` downloads it and says what to give as --data; \
              from Salesforce/wikitext on the Hugging Face hub, in the data folder, this writes wiki.test.raw: \
              python -c \"from datasets import load_dataset as d; open('wiki.test.raw', 'w').write(''.join(t or ' \\n' \
              for t in d('Salesforce/wikitext', 'wikitext-2-raw-v1', split='test')['text']))\"",
        is_wikitext: true,
    },
    Known {
        name: "pg19",
        about: "perplexity of PG-19's test books (--data with pg19/test/*.txt)",
        find: assets::pg19,
        files: || assets::PG19.to_vec(),
        how: "github.com/google-deepmind/pg19 says where the test books are published",
        is_wikitext: false,
    },
];

/// The family of texts.
pub struct Perplexity;

impl Family for Perplexity {
    fn catalog(&self) -> Vec<TaskInfo> {
        let known = KNOWN.iter().map(|k| (k.name.to_owned(), k.about, k.is_wikitext));
        let file = (format!("{FILE}PATH"), "perplexity of a text file, or of a folder of *.txt and *.txt.gz", true);
        let parameters = |is_wikitext: bool| {
            let mut all = vec![("scored", SCORED.to_string()), ("stride", "the window".to_owned())];
            all.extend(is_wikitext.then(|| ("detokenize", "false".to_owned())));
            all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        };
        known
            .chain([file])
            .map(|(name, about, is_wikitext)| TaskInfo {
                name: format!("{PREFIX}{name}"),
                about: about.to_owned(),
                metric: None,
                max_new_tokens: Some(0),
                parameters: parameters(is_wikitext),
                stands_in_for: None,
            })
            .collect()
    }

    fn groups(&self) -> Vec<String> {
        Vec::new()
    }

    fn expand(&self, name: &str, _: &TaskOptions) -> Option<Vec<String>> {
        let rest = name.strip_prefix(PREFIX)?;
        let text = rest.split(':').next()?;
        (rest.starts_with(FILE) || KNOWN.iter().any(|k| k.name == text)).then(|| vec![name.to_owned()])
    }

    fn make(&self, name: &str, options: &TaskOptions) -> Result<Box<dyn Task>> {
        let spec = Spec::parse(name)?;
        let path = match &spec.text {
            TextName::File(path) => path.clone(),
            TextName::Known(known) => (known.find)(options).ok_or_else(|| {
                UsageError::new(format!("`{name}` needs a text that was not found")).hint(format!(
                    "give --data with one of: {}; {}",
                    (known.files)().join(", "),
                    known.how
                ))
            })?,
        };
        Ok(Box::new(Windows::open(&spec, &path)?))
    }
}

/// The text of a task, and how it is cut into windows.
struct Spec {
    text: TextName,
    scored: usize,
    stride: Option<usize>,
    /// Whether it is read as lm-eval reads WikiText.
    detokenize: bool,
}

enum TextName {
    Known(&'static Known),
    File(PathBuf),
}

impl Spec {
    fn parse(name: &str) -> Result<Self, UsageError> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        let (text, options) = match rest.rsplit_once(':').filter(|(_, options)| options.contains('=')) {
            // The colon may be part of the file name.
            Some(_) if rest.strip_prefix(FILE).is_some_and(|path| Path::new(path).exists()) => (rest, ""),
            Some(split) => split,
            None => (rest, ""),
        };
        let known = KNOWN.iter().find(|k| k.name == text);
        let text = match (known, text.strip_prefix(FILE)) {
            (Some(known), _) => TextName::Known(known),
            (None, Some(path)) if !path.is_empty() => TextName::File(path.into()),
            _ => return Err(UsageError::new(format!("task `{name}` names no text")).hint(FILE_HINT)),
        };
        let mut spec = Self { text, scored: SCORED, stride: None, detokenize: false };
        let mut given = Given::default();
        for option in options.split(',').filter(|o| !o.is_empty()) {
            let key = option.split('=').next().unwrap_or_default();
            given.once(name, key, key)?;
            spec.set(option, name)?;
        }
        if let (true, TextName::Known(Known { name: text, is_wikitext: false, .. })) = (spec.detokenize, &spec.text) {
            let what = format!("`{name}`: {text} is plain text already, so detokenize=true does not apply");
            return Err(UsageError::new(what)
                .hint("detokenize=true is for WikiText: ppl/wikitext2, or ppl/file:PATH with its text"));
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str, name: &str) -> Result<(), UsageError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let count = || {
            value.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n)).ok_or_else(|| {
                UsageError::new(format!("`{name}`: {key} takes a whole number from 1 to {MOST_TOKENS}, not `{value}`"))
            })
        };
        match key {
            "scored" => self.scored = count()?,
            "stride" => self.stride = Some(count()?),
            "detokenize" => {
                self.detokenize = value.parse().map_err(|_| {
                    UsageError::new(format!("`{name}`: detokenize takes true or false, not `{value}`"))
                        .hint("detokenize=true reads WikiText as lm-eval does")
                })?;
            }
            _ => return Err(UsageError::unknown("option of ppl/", key, OPTIONS)),
        }
        Ok(())
    }

    /// The name in records, with the non-default options.
    fn recorded(&self, path: &Path) -> String {
        let text = match self.text {
            TextName::Known(known) => known.name.to_owned(),
            TextName::File(_) => format!("{FILE}{}", stem(path)),
        };
        let scored = (self.scored != SCORED).then(|| format!("scored={}", self.scored));
        let stride = self.stride.map(|stride| format!("stride={stride}"));
        let detokenize = self.detokenize.then(|| "detokenize=true".to_owned());
        let options: Vec<String> = scored.into_iter().chain(stride).chain(detokenize).collect();
        let colon = if options.is_empty() { "" } else { ":" };
        format!("{PREFIX}{text}{colon}{}", options.join(","))
    }
}

/// The name of a file or folder without its parent folders and extensions.
fn stem(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let cut = name.strip_suffix(".gz").unwrap_or(&name);
    cut.strip_suffix(".txt").unwrap_or(cut).to_owned()
}

/// A text that is scored.
enum Text {
    /// As it is in the file.
    Plain(String),
    /// As lm-eval reads WikiText.
    Detokenised(Detokenised),
}

impl Text {
    fn new(file: String, detokenize: bool) -> Self {
        if detokenize { Self::Detokenised(Detokenised::new(&file)) } else { Self::Plain(file) }
    }

    /// What the model reads.
    fn text(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Detokenised(made) => &made.text,
        }
    }

    /// The number of words of the file that begin in these bytes of the text.
    fn words(&self, bytes: Range<usize>) -> usize {
        match self {
            Self::Plain(text) => words_beginning(text, bytes.start, bytes.end),
            Self::Detokenised(made) => made.original_words(bytes),
        }
    }

    /// The number of bytes of the file that these bytes of the text were made of.
    fn bytes(&self, bytes: Range<usize>) -> usize {
        match self {
            Self::Plain(_) => bytes.len(),
            Self::Detokenised(made) => made.original_bytes(bytes),
        }
    }
}

/// Texts cut into windows.
struct Windows {
    name: String,
    source: String,
    texts: Vec<Text>,
    scored: usize,
    stride: Option<usize>,
    /// The tokens of the texts, made at first use. A task serves only one model.
    tokens: OnceLock<Vec<TextTokens>>,
}

impl Windows {
    fn open(spec: &Spec, path: &Path) -> Result<Self> {
        let files = match path.is_dir() {
            true => text_files(path)?,
            false => vec![path.to_owned()],
        };
        let texts = files.iter().map(|file| read_text(file)).collect::<Result<Vec<_>>>()?;
        if texts.iter().all(|text| text.trim().is_empty()) {
            let what = format!("there is no text in {}", path.display());
            return Err(UsageError::new(what).hint(FILE_HINT).into());
        }
        let mut hash = Sha256::new();
        texts.iter().for_each(|text| hash.update(text));
        let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let label = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Ok(Self {
            name: spec.recorded(path),
            source: format!("{label} (texts: {}, sha256 {hash})", texts.len()),
            texts: texts.into_iter().map(|text| Text::new(text, spec.detokenize)).collect(),
            scored: spec.scored,
            stride: spec.stride,
            tokens: OnceLock::new(),
        })
    }

    fn tokens(&self, encoder: &dyn TextEncoder) -> Result<&[TextTokens]> {
        if let Some(tokens) = self.tokens.get() {
            return Ok(tokens);
        }
        let tokens = self.texts.iter().map(|text| encoder.encode(text.text())).collect::<Result<Vec<_>>>()?;
        Ok(self.tokens.get_or_init(|| tokens))
    }

    /// The number of the text's own tokens in a window of `length` tokens, of which the tokenizer adds `front` in front.
    fn text_tokens(&self, length: usize, front: usize) -> Result<usize> {
        let text = length.saturating_sub(front);
        if length <= self.scored || text < self.scored || length < 2 {
            let what =
                format!("`{}` at {length} tokens leaves no context before {} scored ones", self.name, self.scored);
            return Err(UsageError::new(what)
                .hint(format!("choose a longer --length, or fewer with {PREFIX}...:scored=N"))
                .into());
        }
        Ok(text)
    }

    /// `(text, first token)` of every window, in task order.
    fn places(&self, length: usize, encoder: &dyn TextEncoder) -> Result<Vec<(usize, usize)>> {
        let window = self.text_tokens(length, encoder.front().len())?;
        let stride = self.stride.unwrap_or(window);
        let tokens = self.tokens(encoder)?;
        let fits = |text: &TextTokens| (text.ids.len() + stride).saturating_sub(window) / stride;
        let mut places: Vec<(usize, usize)> =
            tokens.iter().enumerate().flat_map(|(at, text)| (0..fits(text)).map(move |i| (i * stride, at))).collect();
        places.sort_unstable();
        if places.is_empty() {
            let longest = tokens.iter().map(|text| text.ids.len()).max().unwrap_or(0);
            let what = format!("the longest text of `{}` has {longest} tokens: no window of {length} fits", self.name);
            return Err(UsageError::new(what).hint("choose a shorter --length").into());
        }
        Ok(places.into_iter().map(|(first, text)| (text, first)).collect())
    }
}

impl Task for Windows {
    fn name(&self) -> &str {
        &self.name
    }

    fn available(&self) -> Option<usize> {
        None
    }

    fn inputs(&self) -> String {
        let texts: Vec<&str> = self.texts.iter().map(Text::text).collect();
        digest::of(&(&self.name, &self.source, texts))
    }

    fn is_sized(&self) -> bool {
        true
    }

    fn likelihood(&self) -> Option<&dyn LikelihoodTask> {
        Some(self)
    }
}

impl LikelihoodTask for Windows {
    fn measure(&self) -> Measure {
        Measure::Perplexity
    }

    fn available(&self, length: usize, encoder: &dyn TextEncoder) -> Result<usize> {
        Ok(self.places(length, encoder)?.len())
    }

    fn passage(&self, length: usize, index: usize, _: u64, encoder: &dyn TextEncoder) -> Result<Passage> {
        let places = self.places(length, encoder)?;
        let &(text, first) = places.get(index).ok_or_else(|| {
            UsageError::new(format!("`{}` has {} windows of {length} tokens, none at {index}", self.name, places.len()))
                .hint("ask for fewer samples (--samples)")
        })?;
        let tokens = &self.tokens(encoder)?[text];
        let end = first + self.text_tokens(length, encoder.front().len())?;
        let scored = end - self.scored;
        let start_byte = if scored == 0 { 0 } else { tokens.ends[scored - 1] };
        let (text, bytes) = (&self.texts[text], start_byte..tokens.ends[end - 1]);
        Ok(Passage {
            task: self.name.clone(),
            length,
            index,
            source: self.source.clone(),
            prompt: encoder.front().iter().chain(&tokens.ids[first..scored]).copied().collect(),
            continuations: vec![Continuation {
                tokens: tokens.ids[scored..end].to_vec(),
                given: 0,
                text: String::new(),
                words: text.words(bytes.clone()),
                bytes: text.bytes(bytes),
            }],
            scoring: Scoring::Perplexity,
        })
    }
}

/// The number of words, split at white space, whose first character starts at a byte of `start..end`.
fn words_beginning(text: &str, start: usize, end: usize) -> usize {
    let mut begins = true;
    let mut count = 0;
    for (at, c) in text.char_indices().take_while(|(at, _)| *at < end) {
        count += usize::from(at >= start && begins && !c.is_whitespace());
        begins = c.is_whitespace();
    }
    count
}

/// The `*.txt` and `*.txt.gz` files of a folder in file-name order.
fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|path| [".txt", ".txt.gz"].iter().any(|end| path.to_string_lossy().ends_with(end)));
    files.sort();
    Ok(files)
}

/// A file's text, unpacked if its name ends in `.gz` or it lies in a zip archive.
fn read_text(path: &Path) -> Result<String> {
    if let Some((archive, member)) = rows::member_of(path) {
        let bytes = rows::read_member(&archive, &member, |packed| unpack(packed, MOST_UNPACKED, path))?;
        return Ok(decode(bytes, path)?);
    }
    no_lfs_pointer_at(path)?;
    if path.extension().is_some_and(|e| e == "gz") {
        let file = given::open(path).map_err(|e| unreadable(path, &e))?;
        return Ok(decode(unpack(&mut MultiGzDecoder::new(file), MOST_UNPACKED, path)?, path)?);
    }
    let bytes = given::bytes(path, given::MOST_OF_TEXT).map_err(|e| unreadable(path, &e))?;
    Ok(decode(bytes, path)?)
}

/// Unpacks a text of at most `most` bytes. A small file may unpack to more than the memory holds, and a text is split into tokens as
/// a whole.
fn unpack(packed: &mut dyn Read, most: u64, path: &Path) -> Result<Vec<u8>, UsageError> {
    let mut bytes = Vec::new();
    packed.take(most + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > most {
        let what = format!("cannot read {}: longer than {} MiB unpacked", path.display(), most >> 20);
        return Err(UsageError::new(what).hint("split it, or unpack it: the limit for unpacked files is higher"));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, e: &std::io::Error) -> UsageError {
    UsageError::new(format!("cannot read {}: {e}", path.display())).hint(FILE_HINT)
}

#[cfg(test)]
mod tests;
