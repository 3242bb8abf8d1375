//! [`PieceEncoder`]: a fast encoder for byte-level tokenizers that have no tokens in which white space follows other text.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use spattn_base::error::UsageError;
use spattn_tasks::training_rows::Encoder;

/// The longest piece, in bytes, that is cached: longer ones, such as UUIDs, hardly ever occur twice.
const LONGEST_CACHED: usize = 20;
/// The most pieces that a thread caches.
const MOST_CACHED: usize = 400_000;

type Cache = HashMap<Box<str>, Box<[u16]>>;

/// A tokenizer that caches the tokens of pieces. A piece is white space and the text after it, up to the next white space. Each thread
/// has its own cache, so that no thread waits for another.
pub(crate) struct PieceEncoder {
    inner: tokenizers::Tokenizer,
    bos: u16,
    eos: u16,
    caches: Vec<Mutex<Cache>>,
}

impl PieceEncoder {
    /// Reads the text of a `tokenizer.json`. Its special token `<s>` begins a row, and `</s>` ends an answer.
    ///
    /// # Errors
    /// A [`UsageError`] if the text is not a tokenizer, lacks these tokens, has more than 65,536 tokens, or has tokens in which
    /// white space follows other text.
    pub(crate) fn new(json: &str) -> Result<Self, UsageError> {
        let fault = |e: &dyn std::fmt::Display| {
            UsageError::new(format!("not a tokenizer for training rows: {}", e.to_string().replace('\n', " ")))
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(json.as_bytes()).map_err(|e| fault(&e))?;
        inner.with_truncation(None).map_err(|e| fault(&e))?;
        inner.with_padding(None);
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        if inner.get_vocab_size(true) > 1 << 16 {
            return Err(fault(&"it has more than 65,536 tokens"));
        }
        let special = |token: &str| {
            let id = inner.token_to_id(token).ok_or_else(|| fault(&format!("it has no token `{token}`")))?;
            u16::try_from(id).map_err(|e| fault(&e))
        };
        let (bos, eos) = (special("<s>")?, special("</s>")?);
        let caches = (0..=rayon::current_num_threads()).map(|_| Mutex::default()).collect();
        let encoder = Self { inner, bos, eos, caches };
        const PROBE: &str = "A b,  c\n\n12 34567.\tVAR ABCDE = 1 \n x-y: “quoted”  end ";
        if encoder.count(PROBE) != encoder.direct(PROBE).len() {
            return Err(fault(&"it has tokens in which white space follows other text"));
        }
        Ok(encoder)
    }

    /// Encodes the whole text without the cache.
    pub(crate) fn direct(&self, text: &str) -> Vec<u16> {
        // A byte-level tokenizer can encode every text.
        let encoding = self.inner.encode_fast(text, false).ok();
        encoding.map_or_else(Vec::new, |e| e.get_ids().iter().map(|&id| id as u16).collect())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        let last = self.caches.len() - 1;
        let thread = rayon::current_thread_index().unwrap_or(last).min(last);
        self.caches[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each(&self, text: &str, mut take: impl FnMut(&[u16])) {
        let mut cache = self.cache();
        for piece in pieces(text) {
            if let Some(ids) = cache.get(piece) {
                take(ids);
                continue;
            }
            let ids = self.direct(piece);
            take(&ids);
            if piece.len() <= LONGEST_CACHED && cache.len() < MOST_CACHED {
                cache.insert(piece.into(), ids.into());
            }
        }
    }
}

impl Encoder for PieceEncoder {
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        self.each(text, |new| ids.extend(new.iter().map(|id| u32::from(*id))));
    }

    fn count(&self, text: &str) -> usize {
        let mut count = 0;
        self.each(text, |ids| count += ids.len());
        count
    }

    fn bos(&self) -> u32 {
        self.bos.into()
    }

    fn eos(&self) -> u32 {
        self.eos.into()
    }
}

/// Splits a text into pieces: white space and the text after it, up to the next white space.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        let end = rest[word..].find(char::is_whitespace).map_or(rest.len(), |i| word + i);
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use spattn_tasks::training_rows::{Books, Trainer};

    #[test]
    fn pieces_are_the_text() {
        let text = "one two  three\n\n four ";
        assert_eq!(pieces(text).collect::<Vec<_>>(), ["one", " two", "  three", "\n\n four", " "]);
    }

    #[test]
    fn pieces_have_the_tokens_of_the_whole_text() {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/builtin/tokenizer.json");
        let encoder = PieceEncoder::new(&std::fs::read_to_string(file).unwrap()).unwrap();
        let trainer = Trainer::new(Books::default()).unwrap();
        let mut compared = 0;
        for index in 0..60 {
            for segment in trainer.row(9, index, 1024, None, &encoder).unwrap().segments {
                let mut ids = Vec::new();
                encoder.encode(&segment.text, &mut ids);
                let whole: Vec<u32> = encoder.direct(&segment.text).into_iter().map(u32::from).collect();
                assert_eq!(ids, whole, "{}", segment.text);
                compared += 1;
            }
        }
        assert!(compared > 100, "{compared}");
    }
}
