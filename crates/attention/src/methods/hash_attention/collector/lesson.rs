//! What a chunk of a prompt teaches the nets of one KV head: a copy, so that reading need not wait for learning.

use std::sync::Arc;

use super::settings::{Largest, Settings};
use crate::calibration::artefact::ModelShape;
use spattn_kernels::linear::scores;
use spattn_kernels::topk::top_k;

/// Tokens of a prompt that nets learn from at a time, on every device: those of a chunk of the CPU's prefill.
pub(super) const STRETCH: usize = 2048;
/// The most bytes of lessons that wait to be learned; those of one layer may exceed it.
pub(super) const MOST_WAITING: usize = 1 << 30;
/// Number of queries whose largest keys are found together.
const LABELLED: usize = 32;

/// At most [`STRETCH`] tokens of a prompt at one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    pub(super) layer: usize,
    /// Position of its first token in the prompt.
    pub(super) first: usize,
    pub(super) tokens: usize,
}

impl Stretch {
    /// Cuts `tokens` tokens from position `first` on into stretches.
    pub(super) fn all(layer: usize, first: usize, tokens: usize) -> impl Iterator<Item = Self> {
        let end = first + tokens;
        (first..end).step_by(STRETCH).map(move |first| Self { layer, first, tokens: STRETCH.min(end - first) })
    }

    /// Number of the prompt's tokens up to the end of the stretch.
    pub(super) fn end(self) -> usize {
        self.first + self.tokens
    }
}

/// Keys of one KV head after the sink, and the number that is added to each one's scores (`√d·ln‖v‖`, or 0).
pub(super) struct Keys {
    pub(super) rows: Vec<f32>,
    pub(super) further: Vec<f32>,
}

/// What the nets of one KV head learn from a stretch.
pub(super) struct Lesson {
    pub(super) stretch: Stretch,
    pub(super) kv_head: usize,
    /// Keys of all tokens up to the end of the stretch's chunk. The queries of the stretch see the first of them.
    pub(super) keys: Arc<Keys>,
    /// Positions in the stretch whose queries the nets learn from; ascending and distinct.
    pub(super) positions: Vec<usize>,
    /// `[position][d]` for each head of the group.
    pub(super) queries: Vec<Vec<f32>>,
    /// The positions of each step.
    pub(super) draws: Arc<Vec<Vec<usize>>>,
    /// Number of first tokens that no query has to find, and of such tokens at both ends.
    pub(super) sink: usize,
    pub(super) statics: usize,
    pub(super) d: usize,
    /// Divisor of the logits.
    pub(super) divisor: f32,
}

/// The largest keys of each head and position of a lesson.
pub(super) struct Labels(Vec<Vec<Vec<Largest>>>);

/// Queries of a chunk, and the keys that they should find.
pub(super) struct Asked<'a> {
    /// Keys `[key][d]` after the sink.
    pub(super) keys: &'a [f32],
    /// Number of keys that each query sees.
    pub(super) seen: Vec<usize>,
    /// Tokens in context of each query, the query's own included.
    pub(super) context: Vec<usize>,
    /// `[query][d]` for each head of the group.
    pub(super) queries: Vec<Vec<f32>>,
    /// The largest keys of each head and query.
    pub(super) wanted: Vec<Vec<Vec<Largest>>>,
}

impl Lesson {
    /// Keys `[key][d]` after the sink up to the end of the stretch.
    pub(super) fn rows(&self) -> &[f32] {
        &self.keys.rows[..self.stretch.end().saturating_sub(self.sink) * self.d]
    }

    /// Bytes of the queries and positions; keys are shared.
    pub(super) fn bytes(&self) -> usize {
        let queries: usize = self.queries.iter().map(|queries| size_of_val(queries.as_slice())).sum();
        queries + size_of_val(self.positions.as_slice())
    }

    /// Number of keys that the query at a position of the stretch sees.
    fn seen(&self, position: usize) -> usize {
        self.stretch.first + position + 1 - self.statics
    }

    /// The largest keys of every query.
    pub(super) fn labels(&self, settings: &Settings) -> Labels {
        let of_head = |queries: &Vec<f32>| {
            let parts = queries.chunks(LABELLED * self.d).zip(self.positions.chunks(LABELLED));
            parts.flat_map(|(queries, positions)| self.largest_of(queries, positions, settings)).collect()
        };
        Labels(self.queries.iter().map(of_head).collect())
    }

    /// The largest keys of some queries, whose positions ascend.
    fn largest_of(&self, queries: &[f32], positions: &[usize], settings: &Settings) -> Vec<Vec<Largest>> {
        let all = positions.last().map_or(0, |position| self.seen(*position));
        let mut exact = vec![0.0; positions.len() * all];
        scores(queries, &self.keys.rows[..all * self.d], self.d, &mut exact);
        let of_query = |(row, position): (&mut [f32], &usize)| {
            row.iter_mut().zip(&self.keys.further).for_each(|(score, x)| *score += x);
            largest(&row[..self.seen(*position)], settings.top, self.divisor)
        };
        exact.chunks_exact_mut(all).zip(positions).map(of_query).collect()
    }

    /// The queries at some positions of the lesson, which ascend, and the keys that they should find.
    pub(super) fn ask(&self, labels: &Labels, positions: &[usize]) -> Asked<'_> {
        let place = |position: &usize| self.positions.binary_search(position).expect("a step's positions were copied");
        let places: Vec<usize> = positions.iter().map(place).collect();
        let seen: Vec<usize> = positions.iter().map(|position| self.seen(*position)).collect();
        let all = seen.last().copied().unwrap_or(0);
        let queries =
            |of_head: &Vec<f32>| places.iter().flat_map(|p| &of_head[p * self.d..][..self.d]).copied().collect();
        let wanted = |of_head: &Vec<Vec<Largest>>| places.iter().map(|place| of_head[*place].clone()).collect();
        Asked {
            keys: &self.keys.rows[..all * self.d],
            context: positions.iter().map(|position| self.stretch.first + position + 1).collect(),
            queries: self.queries.iter().map(queries).collect(),
            wanted: labels.0.iter().map(wanted).collect(),
            seen,
        }
    }

    /// All queries of the lesson, and the keys that they should find.
    pub(super) fn ask_all(&self, settings: &Settings) -> Asked<'_> {
        self.ask(&self.labels(settings), &self.positions)
    }
}

/// The `top` largest of some scores, with their shares of attention: the softmax of scores over `divisor`.
fn largest(scores: &[f32], top: usize, divisor: f32) -> Vec<Largest> {
    let keys = top_k(scores, top);
    let most = keys.iter().map(|key| scores[*key as usize]).fold(f32::NEG_INFINITY, f32::max);
    let weight = |key: &u32| ((scores[*key as usize] - most) / divisor).exp();
    let total: f32 = keys.iter().map(weight).sum();
    keys.iter().map(|key| Largest { key: *key, share: weight(key) / total }).collect()
}

/// Lessons that wait to be learned.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) lessons: Vec<Lesson>,
    bytes: usize,
}

impl Waiting {
    /// Adds the lessons of a chunk at one layer.
    pub(super) fn add(&mut self, lessons: Vec<Lesson>) {
        self.bytes += bytes(&lessons);
        self.lessons.extend(lessons);
    }

    /// Bytes of the waiting lessons.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `lessons` can be added without more than `most` bytes waiting.
    pub(super) fn has_room(&self, lessons: &[Lesson], most: usize) -> bool {
        self.bytes + bytes(lessons) <= most
    }
}

/// Bytes of the lessons of a chunk at one layer, which share keys by KV head.
fn bytes(lessons: &[Lesson]) -> usize {
    let first = lessons.first().map(|lesson| lesson.stretch);
    let keys = |lesson: &Lesson| size_of_val(lesson.keys.rows.as_slice()) + size_of_val(lesson.keys.further.as_slice());
    let shared: usize = lessons.iter().filter(|lesson| Some(lesson.stretch) == first).map(keys).sum();
    shared + lessons.iter().map(Lesson::bytes).sum::<usize>()
}

/// The most bytes of lessons that wait while a model reads prompts of `tokens` tokens.
pub(super) fn most_waiting(model: &ModelShape, tokens: usize) -> usize {
    let of_layer = |stretch: Stretch| {
        let keys = model.kv_heads * stretch.end() * (model.head_dim + 1);
        size_of::<f32>() * (keys + model.heads * stretch.tokens * model.head_dim)
    };
    let layer: usize = Stretch::all(0, 0, tokens).map(of_layer).sum();
    (model.layers * layer).min(MOST_WAITING.max(layer))
}
