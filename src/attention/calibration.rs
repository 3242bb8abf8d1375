//! Offline calibration: what is seen while a text is read densely, and who learns from it.
//!
//! A [`Calibration`] makes one kind of [`Artefact`](super::artefact::Artefact): its [`Collector`] sees
//! the rotated queries and the cached keys and values of every layer, chunk by chunk, and ends with
//! tensors. Which text is read, and where artefacts are written, is decided above.

use std::collections::BTreeMap;

use super::artefact::{ModelShape, NamedTensor};
use crate::kv::LayerKv;

/// Tokens of a prompt at one layer of a dense prefill, before they attend.
#[derive(Debug, Clone, Copy)]
pub struct PrefillChunk<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token in the prompt.
    pub first: usize,
    /// Rotated, unscaled queries `[token][head][d]` of the chunk.
    pub queries: &'a [f32],
    /// Query heads.
    pub heads: usize,
    /// Rotated keys, and values, of all tokens up to the last of the chunk, as cached.
    pub kv: &'a LayerKv,
}

impl PrefillChunk<'_> {
    /// Tokens in the chunk.
    pub fn tokens(&self) -> usize {
        self.kv.tokens() - self.first
    }

    /// Width of a head.
    pub fn d(&self) -> usize {
        self.kv.keys.d()
    }

    /// The query of one head of the chunk's `token`-th token.
    pub fn query(&self, token: usize, head: usize) -> &[f32] {
        &self.queries[(token * self.heads + head) * self.d()..][..self.d()]
    }

    /// Keys `[token][d]` of one KV head, of the chunk's own tokens.
    pub fn keys(&self, kv_head: usize) -> Vec<f32> {
        self.kv.keys.head(kv_head).slice(self.first..self.kv.tokens(), self.d()).to_f32()
    }
}

/// Learns from prefills.
pub trait Collector: Send {
    /// Takes a chunk in. Prompts come one after the other; a chunk passes all layers, from the first on,
    /// before the next one does.
    fn observe(&mut self, chunk: &PrefillChunk<'_>);

    /// What was learned.
    fn finish(self: Box<Self>) -> Collected;
}

/// What a [`Collector`] ends with.
#[derive(Debug, Clone, PartialEq)]
pub struct Collected {
    /// What the artefact holds.
    pub tensors: Vec<NamedTensor>,
    /// For [`ArtefactInfo::settings`](super::artefact::ArtefactInfo::settings).
    pub settings: BTreeMap<String, String>,
    /// What the user may want to know of it, one line each.
    pub notes: Vec<String>,
}

/// How one kind of artefact is made.
pub struct Calibration {
    /// Kind of the artefact: the name of the method that reads it.
    pub kind: &'static str,
    /// What is learned, in one line.
    pub about: &'static str,
    /// A collector that has seen nothing; whatever it draws comes from the seed.
    pub start: fn(&ModelShape, u64) -> Box<dyn Collector>,
}

/// "8, 16 of 64" and "31, 52 %" for notes: what share of each of `masses` (descending) its first `counts`
/// entries hold, mean over all.
pub(super) fn shares_in_words(counts: &[usize], d: usize, masses: &[Vec<f64>]) -> (String, String) {
    let counts: Vec<usize> = counts.iter().copied().filter(|c| (1..d).contains(c)).collect();
    let share = |mass: &Vec<f64>, count: usize| {
        let all: f64 = mass.iter().sum();
        if all > 0.0 { mass[..count].iter().sum::<f64>() / all } else { 0.0 }
    };
    let mean = |count: usize| masses.iter().map(|m| share(m, count)).sum::<f64>() / masses.len().max(1) as f64;
    let percents: Vec<String> = counts.iter().map(|c| format!("{:.0}", 100.0 * mean(*c))).collect();
    let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
    (format!("{} of {d}", counts.join(", ")), format!("{} %", percents.join(", ")))
}
