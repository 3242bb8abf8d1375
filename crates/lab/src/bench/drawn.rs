//! Random keys, values and queries that have the special properties of those in language models.
//!
//! White noise would favour some methods and harm others, because what a method selects determines what it reads. So each KV head has,
//! before RoPE:
//! - a few heavy channels, among the slow pairs, that all keys and queries have in common;
//! - topics that the tokens of a segment share, so that near tokens are similar;
//! - queries that look for a few earlier tokens, and for tokens of their own topic;
//! - a first token that gets attention from every query and has a value close to zero.
//!
//! Everything is a function of seed, layer, head and position, so any rows can be generated at any time. The resulting attention is
//! measured and reported with each result ([`Looks`]).

use std::fmt;
use std::ops::Range;

use rayon::prelude::*;

use spattn_attention::kv::LayerKv;
use spattn_attention::{SoftmaxScale, mix_seed};
use spattn_kernels::Rows;
use spattn_kernels::linear::scores;
use spattn_model::dimensions::Dimensions;
use spattn_model::rope::RopeTable;

/// One of this many channels of a head is heavy.
const ONE_HEAVY_IN: usize = 16;
/// What keys and queries add in heavy channels, in standard deviations of the noise.
const HEAVY_KEY: f32 = 5.0;
const HEAVY_QUERY: f32 = 1.6;
/// The first token's multiple of [`HEAVY_KEY`].
const SINK: f32 = 2.6;
/// The scale of the first token's value; 1 for all other tokens.
const SINK_VALUE: f32 = 0.05;
/// Tokens of a segment with one topic.
const SEGMENT: usize = 64;
/// The weights of the segment's topic and of the token's own noise in a key's content before rotation.
const TOPIC: f32 = 0.5;
const OWN: f32 = 0.85;
/// The number of earlier tokens that a query looks for, the weight of each, and the weight of the query's own topic.
const TARGETS: usize = 4;
const WANTED: f32 = 1.1;
const OWN_TOPIC: f32 = 0.5;
/// The weight of noise in a query.
const QUERY_NOISE: f32 = 0.6;

/// What a random vector is for. It is part of the vector's seed.
#[derive(Clone, Copy)]
enum Kind {
    Topic,
    Key,
    Value,
    Query,
    Heavy,
    Target,
}

/// Rows of consecutive positions: rotated queries `[token][head][d]`, rotated keys and values `[token][kv_head][d]`.
pub struct DrawnRows {
    /// Rotated, unscaled queries.
    pub queries: Vec<f32>,
    /// Rotated keys.
    pub keys: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
}

/// One layer of a sequence.
pub struct Drawn<'a> {
    heads: usize,
    kv_heads: usize,
    d: usize,
    seed: u64,
    angles: &'a RopeTable,
    /// For each KV head, what its keys have in common.
    heavy: Vec<Vec<f32>>,
}

impl<'a> Drawn<'a> {
    /// A layer with a model's dimensions. `angles` must cover all positions whose rows are generated.
    pub fn new(dimensions: &Dimensions, angles: &'a RopeTable, seed: u64) -> Self {
        let c = dimensions.config();
        let (heads, kv_heads, d) = (c.heads, c.kv_heads, c.head_dim);
        let mut drawn = Self { heads, kv_heads, d, seed, angles, heavy: Vec::new() };
        drawn.heavy = (0..kv_heads).map(|head| drawn.heavy_channels(head)).collect();
        drawn
    }

    /// Returns the signs of the heavy channels, which belong to the slowest pairs, and zeros elsewhere.
    fn heavy_channels(&self, kv_head: usize) -> Vec<f32> {
        let (half, count) = (self.d / 2, (self.d / ONE_HEAVY_IN).max(1));
        let mut heavy = vec![0.0; self.d];
        let signs = self.noise(kv_head, Kind::Heavy, 0);
        for i in 0..count {
            let channel = half - 1 - i / 2 + i % 2 * half;
            heavy[channel] = signs(i).signum();
        }
        heavy
    }

    /// Returns random numbers by channel, of mean 0 and variance 1: sums of four uniform numbers, close enough to normal.
    fn noise(&self, head: usize, kind: Kind, position: usize) -> impl Fn(usize) -> f32 + use<> {
        let seed = mix_seed(mix_seed(mix_seed(self.seed, kind as u64), head as u64), position as u64);
        // Each of the four uniform numbers has a variance of (2^16)² / 12.
        const SPREAD: f32 = 65_536.0 * 0.577_350_3;
        move |channel| {
            let bits = mix_seed(seed, channel as u64);
            let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u16 as u32).sum();
            (sum as f32 - 2.0 * 65_535.0) / SPREAD
        }
    }

    /// The topic `[d]` of a segment.
    fn topic(&self, kv_head: usize, segment: usize) -> Vec<f32> {
        (0..self.d).map(self.noise(kv_head, Kind::Topic, segment)).collect()
    }

    /// A key's content before rotation.
    fn content<'t>(&self, kv_head: usize, position: usize, topic: &'t [f32]) -> impl Fn(usize) -> f32 + use<'t> {
        let own = self.noise(kv_head, Kind::Key, position);
        move |channel| TOPIC * topic[channel] + OWN * own(channel)
    }

    fn key(&self, kv_head: usize, position: usize, topic: &[f32], out: &mut [f32]) {
        let (heavy, content) = (&self.heavy[kv_head], self.content(kv_head, position, topic));
        let common = if position == 0 { SINK * HEAVY_KEY } else { HEAVY_KEY };
        for (channel, (out, heavy)) in out.iter_mut().zip(heavy).enumerate() {
            *out = common * heavy + content(channel);
        }
        self.angles.rotate(out, position);
    }

    fn value(&self, kv_head: usize, position: usize, out: &mut [f32]) {
        let noise = self.noise(kv_head, Kind::Value, position);
        let size = if position == 0 { SINK_VALUE } else { 1.0 };
        out.iter_mut().enumerate().for_each(|(channel, out)| *out = size * noise(channel));
    }

    fn query(&self, head: usize, position: usize, out: &mut [f32]) {
        let kv_head = head * self.kv_heads / self.heads;
        let noise = self.noise(head, Kind::Query, position);
        let topic = self.noise(kv_head, Kind::Topic, position / SEGMENT);
        for (channel, (out, heavy)) in out.iter_mut().zip(&self.heavy[kv_head]).enumerate() {
            *out = HEAVY_QUERY * heavy + QUERY_NOISE * noise(channel) + OWN_TOPIC * topic(channel);
        }
        let draws = self.noise(head, Kind::Target, position);
        for i in 0..TARGETS {
            // The fraction of a random number far larger than 1 is close enough to uniform.
            let share = (draws(i) * 1000.0).rem_euclid(1.0);
            let target = (share * position as f32) as usize;
            let topic = self.topic(kv_head, target / SEGMENT);
            let target = self.content(kv_head, target, &topic);
            out.iter_mut().enumerate().for_each(|(channel, out)| *out += WANTED * target(channel));
        }
        self.angles.rotate(out, position);
    }

    /// Generates the rows of `positions`, with queries for the last `asking` of them only.
    pub fn rows(&self, positions: Range<usize>, asking: usize) -> DrawnRows {
        let (count, d) = (positions.len(), self.d);
        let asking = asking.min(count);
        let mut rows = DrawnRows {
            queries: vec![0.0; asking * self.heads * d],
            keys: vec![0.0; count * self.kv_heads * d],
            values: vec![0.0; count * self.kv_heads * d],
        };
        let first_asking = positions.end - asking;
        rows.queries.par_chunks_mut(self.heads * d).enumerate().for_each(|(i, row)| {
            row.chunks_mut(d).enumerate().for_each(|(head, out)| self.query(head, first_asking + i, out));
        });
        // A segment's topic is generated once for all of its tokens.
        let (width, segments) = (self.kv_heads * d, positions.start / SEGMENT..positions.end.div_ceil(SEGMENT));
        let topics_of = |segment| (0..self.kv_heads).flat_map(|head| self.topic(head, segment)).collect::<Vec<_>>();
        let topics: Vec<Vec<f32>> = segments.clone().into_par_iter().map(topics_of).collect();
        rows.keys.par_chunks_mut(width).enumerate().for_each(|(i, row)| {
            let position = positions.start + i;
            let topics = topics[position / SEGMENT - segments.start].chunks(d);
            row.chunks_mut(d).zip(topics).enumerate().for_each(|(head, (out, topic))| {
                self.key(head, position, topic, out);
            });
        });
        rows.values.par_chunks_mut(self.kv_heads * d).enumerate().for_each(|(i, row)| {
            row.chunks_mut(d).enumerate().for_each(|(head, out)| self.value(head, positions.start + i, out));
        });
        rows
    }
}

/// Properties of exact attention that determine how well methods work, as means over queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Looks {
    /// The attention on the first token.
    pub sink: f64,
    /// The share of the attention not on the first token that the top sixteenth of the tokens holds.
    pub sixteenth: f64,
    /// The share of the attention not on the first token that the last 64 tokens hold.
    pub window: f64,
    /// The share of the keys' squares in the sixteenth of the channels with the largest sums.
    pub heavy: f64,
}

impl Looks {
    /// Measures unscaled queries `[query][head][d]` over all tokens of a layer; `None` without queries or with fewer than two tokens.
    pub fn of(kv: &LayerKv, queries: &[f32], heads: usize) -> Option<Self> {
        let (d, kv_heads, tokens) = (kv.keys.d(), kv.keys.kv_heads(), kv.tokens());
        if tokens < 2 || queries.is_empty() {
            return None;
        }
        let of_head = |(i, query): (usize, &[f32])| {
            let kv_head = i % heads * kv_heads / heads;
            shares(&weights(kv.keys.head(kv_head), query))
        };
        let each: Vec<[f64; 3]> = queries.par_chunks_exact(d).enumerate().map(of_head).collect();
        let mean = |at: usize| each.iter().map(|shares| shares[at]).sum::<f64>() / each.len() as f64;
        let heavy: f64 = (0..kv_heads).map(|head| heavy_share(kv.keys.head(head), d)).sum();
        Some(Self { sink: mean(0), sixteenth: mean(1), window: mean(2), heavy: heavy / kv_heads as f64 })
    }
}

impl fmt::Display for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [sink, sixteenth, window, heavy] =
            [self.sink, self.sixteenth, self.window, self.heavy].map(|share| 100.0 * share);
        write!(
            f,
            "the first token has {sink:.0} % of the attention; of the rest, the top 1/16 of the tokens has {sixteenth:.0} % and the last 64 tokens {window:.0} %; the top 1/16 of the channels has {heavy:.0} % of the keys' squared norm"
        )
    }
}

/// Exact softmax weights of one query.
fn weights(keys: Rows<'_>, query: &[f32]) -> Vec<f64> {
    let d = query.len();
    let mut dots = vec![0.0; keys.elements() / d];
    match keys {
        Rows::F32(keys) => scores(query, keys, d, &mut dots),
        Rows::F16(keys) => scores(query, keys, d, &mut dots),
        Rows::Bf16(keys) => scores(query, keys, d, &mut dots),
    }
    let divisor = SoftmaxScale::inverse_root(d).divisor();
    let logits: Vec<f64> = dots.into_iter().map(|dot| f64::from(dot) / divisor).collect();
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|logit| (logit - top).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / sum).collect()
}

/// Returns the first token's weight, and the shares of the remaining weight on the largest sixteenth of the tokens and on the last 64.
fn shares(weights: &[f64]) -> [f64; 3] {
    const WINDOW: usize = 64;
    let (sink, rest) = (weights[0], &weights[1..]);
    let all: f64 = rest.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let window: f64 = rest[rest.len().saturating_sub(WINDOW)..].iter().sum();
    let (mut largest, most) = (rest.to_vec(), rest.len().div_ceil(16));
    largest.select_nth_unstable_by(most - 1, |a, b| b.total_cmp(a));
    let sixteenth: f64 = largest[..most].iter().sum();
    [sink, sixteenth / all, window / all]
}

/// Returns the share of the squares in the sixteenth of the channels with the largest sums.
fn heavy_share(keys: Rows<'_>, d: usize) -> f64 {
    /// The most tokens that are used.
    const ENOUGH: usize = 4096;
    let (mut squares, mut key) = (vec![0.0; d], vec![0.0; d]);
    for token in 0..(keys.elements() / d).min(ENOUGH) {
        keys.read(token, &mut key);
        squares.iter_mut().zip(&key).for_each(|(sum, x)| *sum += f64::from(x * x));
    }
    squares.sort_by(|a, b| b.total_cmp(a));
    squares[..d.div_ceil(16)].iter().sum::<f64>() / squares.iter().sum::<f64>().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_attention::kv::KvDtype;
    use spattn_model::config::ModelConfig;
    use spattn_model::source::ModelSource;

    fn llama() -> Dimensions {
        let texts = ModelSource::parse("random:llama-3.1-8b").unwrap().resolve_texts().unwrap();
        Dimensions::new(&ModelConfig::parse(&texts.config.text, "config.json").unwrap(), KvDtype::Bf16)
    }

    #[test]
    fn attention_over_what_is_drawn_looks_like_a_models() {
        let dimensions = llama();
        for context in [4096, 16_384] {
            let angles = dimensions.angles(context);
            let drawn = Drawn::new(&dimensions, &angles, 1);
            let rows = drawn.rows(0..context, 2);
            let mut kv = LayerKv::new(KvDtype::Bf16, 8, 128, context);
            rows.keys.chunks(1024).zip(rows.values.chunks(1024)).for_each(|(key, value)| kv.append(key, value));
            let looks = Looks::of(&kv, &rows.queries, 32).unwrap();
            println!("{context}: {looks}");
            assert!((0.2..0.9).contains(&looks.sink), "{looks}");
            assert!((0.6..0.98).contains(&looks.sixteenth), "{looks}");
            assert!((0.01..0.5).contains(&looks.window), "{looks}");
            assert!((0.4..0.9).contains(&looks.heavy), "{looks}");
        }
    }

    #[test]
    fn rows_do_not_depend_on_which_are_drawn_with_them() {
        let dimensions = llama();
        let angles = dimensions.angles(300);
        let drawn = Drawn::new(&dimensions, &angles, 7);
        let (all, some) = (drawn.rows(0..300, 300), drawn.rows(100..120, 5));
        assert_eq!(all.keys[100 * 1024..120 * 1024], some.keys[..]);
        assert_eq!(all.values[100 * 1024..120 * 1024], some.values[..]);
        assert_eq!(all.queries[115 * 4096..120 * 4096], some.queries[..]);
        let other = Drawn::new(&dimensions, &angles, 8).rows(100..120, 5);
        assert_ne!(other.keys, some.keys);
    }

    #[test]
    fn what_a_head_looks_like_is_what_its_weights_say() {
        // Logits 0, ln 3 and 0 with a scale of 1 give weights of 1/5, 3/5 and 1/5.
        let mut kv = LayerKv::new(KvDtype::F32, 1, 1, 3);
        [0.0, 3f32.ln(), 0.0].iter().for_each(|key| kv.append(&[*key], &[1.0]));
        let looks = Looks::of(&kv, &[1.0], 1).unwrap();
        assert!((looks.sink - 0.2).abs() < 1e-6 && (looks.sixteenth - 0.75).abs() < 1e-6, "{looks:?}");
        assert!((looks.window - 1.0).abs() < 1e-6 && (looks.heavy - 1.0).abs() < 1e-6, "{looks:?}");
        assert_eq!(Looks::of(&kv, &[], 1), None);
    }
}
