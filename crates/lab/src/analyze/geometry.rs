//! How queries, keys and values lie in space (MagicPIG Fig. 2c, 9, 10, 11; HashAttention Table 7).
//!
//! `k_avg` is the mean of a head's keys, `k_sink` the key of its first token, `o` the output of exact attention. Queries and keys are taken
//! as cached, after RoPE. Prompts of one random token test whether `k_sink` is the same for any input; the documents test whether `k_avg`
//! is.

use std::collections::BTreeMap;

use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::findings::{Drawing, Lines, Panel, Table, Tally, Unit};
use super::head::{Head, Query, cosine, distance, norm, softmax, wide};
use super::{Analysis, Document, Findings, Observation, Setup};

pub(super) const ANALYSIS: Analysis = Analysis {
    name: "geometry",
    about: "cosines of queries, keys, the mean key and the sink's key, norms, and ‖v−o‖ against scores",
    reference: "MagicPIG Figs. 2c, 9, 10, 11; HashAttention Table 7 (original embeddings)",
    methods: &[],
    start: |setup| Ok(Box::new(Geometry::new(setup)?)),
};

/// The number of random first tokens, as in the paper.
const FIRST_TOKENS: usize = 32;
/// The number of keys with the highest scores whose cosines are averaged separately, as in HashAttention's Table 7.
const TOP: usize = 32;

/// The numbers of a query. Those that depend on keys and values alone are the same for all queries of a head.
const NUMBERS: [(&str, Unit); 14] = [
    ("cos q,k", Unit::Number),
    ("cos q,k of top 32", Unit::Number),
    ("cos q,k_avg", Unit::Number),
    ("cos q,k_sink", Unit::Number),
    ("cos k_sink,k_avg", Unit::Number),
    ("cos k,k_avg", Unit::Number),
    ("|q|", Unit::Number),
    ("|k|", Unit::Number),
    ("|k_sink|/|k|", Unit::Number),
    ("|v|", Unit::Number),
    ("|v_sink|/|v|", Unit::Number),
    ("sd of score", Unit::Number),
    ("sd of ln|v-o|", Unit::Number),
    ("r of both", Unit::Number),
];

struct Geometry {
    tally: Tally,
    /// The keys of each random first token, by layer and KV head.
    first: Vec<Vec<Vec<Vec<f32>>>>,
    layers: Vec<usize>,
    /// For each layer and KV head, the mean key of each document.
    means: BTreeMap<(usize, usize), Vec<Vec<f64>>>,
}

impl Geometry {
    fn new(setup: &Setup<'_>) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
        let known = setup.loaded.model.dimensions.config().vocab_size as u64;
        let tokens: Vec<u32> = (0..FIRST_TOKENS).map(|_| (rng.next_u64() % known) as u32).collect();
        let first = setup.loaded.first_keys(&tokens)?;
        Ok(Self { tally: Tally::default(), first, layers: setup.loaded.layers.clone(), means: BTreeMap::new() })
    }
}

impl Observation for Geometry {
    fn observe(&mut self, document: &Document) -> Result<()> {
        let looked = document.each_head(|head| {
            let of_head = OfHead::new(head);
            let one = |query: &Query| (query.head, of_head.numbers(head, query));
            let numbers: Vec<_> = head.queries.iter().map(one).collect();
            (head.layer, head.kv_head, of_head.mean_key, numbers)
        })?;
        for (layer, kv_head, mean_key, queries) in looked {
            self.means.entry((layer, kv_head)).or_default().push(mean_key);
            queries.iter().for_each(|(head, numbers)| self.tally.add(&document.task, layer, *head, numbers));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Findings {
        let Self { tally, first, layers, means } = *self;
        let about = "Cosines, norms and spreads of queries, keys and values";
        let title = format!("{about}; by layer, mean over heads, queries and documents");
        let by_layer = tally.layer_table("geometry_by_layer", &title, &NUMBERS);
        let title = format!("{about}; by layer and head");
        let by_head = tally.head_table("geometry_by_head", &title, ["layer", "head"], &NUMBERS);
        let stable = stability(&first, &layers, &means);
        let notes = notes(&tally);
        let lines = |name: &str, title: &str, label: &str, panels: &[(&str, &[usize])]| {
            let panel = |(title, of): &(&str, &[usize])| Panel {
                title: (*title).to_owned(),
                series: of.iter().map(|at| (NUMBERS[*at].0.to_owned(), tally.by_layer(*at))).collect(),
            };
            Drawing::Lines(Lines {
                name: name.to_owned(),
                title: title.to_owned(),
                x_label: "layer".to_owned(),
                y_label: label.to_owned(),
                panels: panels.iter().map(panel).collect(),
                ..Lines::default()
            })
        };
        let drawings = vec![
            lines(
                "cosines",
                "Cosines by layer: mean, and range over heads",
                "cosine",
                &[("queries", &[0, 1, 2, 3]), ("keys", &[4, 5])],
            ),
            lines(
                "spreads",
                "Spread of scores and of ln|v-o| in a step, by layer",
                "standard deviation",
                &[("", &[11, 12])],
            ),
        ];
        Findings { tables: vec![by_layer, stable, by_head], drawings, notes }
    }
}

/// The numbers of a KV head that do not depend on a query.
struct OfHead {
    mean_key: Vec<f64>,
    /// The cosine of the sink's key with the mean key, and the mean cosine of all other keys with the mean key.
    sink_to_mean: f64,
    keys_to_mean: f64,
    /// The mean norm of all keys but the sink's, and the norm of the sink's key; the same for values.
    key_norms: (f64, f64),
    value_norms: (f64, f64),
}

impl OfHead {
    fn new(head: &Head) -> Self {
        let tokens = head.keys.len() / head.d;
        let mean_key = head.mean_key(0..tokens);
        let over = |of: &dyn Fn(usize) -> f64| (1..tokens).map(of).sum::<f64>() / (tokens - 1).max(1) as f64;
        let key_norm = |token: usize| norm(&wide(head.key(token)));
        let value_norm = |token: usize| norm(&wide(head.value(token)));
        Self {
            sink_to_mean: cosine(&wide(head.key(0)), &mean_key),
            keys_to_mean: over(&|token| cosine(&wide(head.key(token)), &mean_key)),
            key_norms: (over(&key_norm), key_norm(0)),
            value_norms: (over(&value_norm), value_norm(0)),
            mean_key,
        }
    }

    fn numbers(&self, head: &Head, query: &Query) -> Vec<f64> {
        let q = wide(&query.vector);
        let logits = head.logits(query);
        let cosines: Vec<f64> = (0..query.tokens).map(|token| cosine(&q, &wide(head.key(token)))).collect();
        let mut order: Vec<usize> = (0..query.tokens).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(TOP);
        let top = order.iter().map(|token| cosines[*token]).sum::<f64>() / order.len() as f64;
        let out = head.output(&softmax(&logits));
        let away: Vec<f64> = (0..query.tokens).map(|t| distance(&wide(head.value(t)), &out).max(1e-30).ln()).collect();
        let spread = (deviation(&logits), deviation(&away));
        let (key, value) = (self.key_norms, self.value_norms);
        vec![
            cosines[1..].iter().sum::<f64>() / (cosines.len() - 1) as f64,
            top,
            cosine(&q, &self.mean_key),
            cosines[0],
            self.sink_to_mean,
            self.keys_to_mean,
            norm(&q),
            key.0,
            key.1 / key.0,
            value.0,
            value.1 / value.0,
            spread.0,
            spread.1,
            covariance(&logits, &away) / (spread.0 * spread.1).max(f64::MIN_POSITIVE),
        ]
    }
}

fn covariance(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum::<f64>() / n
}

fn deviation(a: &[f64]) -> f64 {
    covariance(a, a).sqrt()
}

/// Returns the least and the mean cosine over all pairs of vectors; `None` for fewer than two vectors.
fn mutual(vectors: &[Vec<f64>]) -> Option<(f64, f64)> {
    let pairs = (0..vectors.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let cosines: Vec<f64> = pairs.map(|(a, b)| cosine(&vectors[a], &vectors[b])).collect();
    let least = cosines.iter().copied().reduce(f64::min)?;
    Some((least, cosines.iter().sum::<f64>() / cosines.len() as f64))
}

fn stability(first: &[Vec<Vec<Vec<f32>>>], layers: &[usize], means: &BTreeMap<(usize, usize), Vec<Vec<f64>>>) -> Table {
    let columns = ["k_sink, least", "k_sink, mean", "k_avg, least", "k_avg, mean"].map(|name| (name, Unit::Number));
    let documents = means.values().map(Vec::len).max().unwrap_or(0);
    let title = format!(
        "Pairwise cosines: of the sink's key, over prompts that start with one of {} random tokens, and of the mean key, over {documents} documents; minimum and mean over pairs and KV heads",
        first.len()
    );
    let table = Table::new("stability_by_layer", &title, &["layer"], &columns);
    let mut table = table.drawn(&["k_sink, least", "k_sink, mean"], first.len());
    for layer in layers {
        let kv_heads = first.first().map_or(0, |keys| keys[*layer].len());
        let of_first = |head: usize| first.iter().map(|keys| wide(&keys[*layer][head])).collect::<Vec<_>>();
        let sink: Vec<_> = (0..kv_heads).filter_map(|head| mutual(&of_first(head))).collect();
        let of_layer = means.iter().filter(|((other, _), _)| other == layer);
        let average: Vec<_> = of_layer.filter_map(|(_, vectors)| mutual(vectors)).collect();
        let least = |all: &[(f64, f64)]| all.iter().map(|c| c.0).fold(f64::NAN, f64::min);
        let mean = |all: &[(f64, f64)]| all.iter().map(|c| c.1).sum::<f64>() / all.len() as f64;
        table.push([*layer], [least(&sink), mean(&sink), least(&average), mean(&average)]);
    }
    table
}

fn notes(tally: &Tally) -> Vec<String> {
    let Some(all) = tally.overall() else { return Vec::new() };
    let heads = tally.heads();
    let count = |holds: &dyn Fn(&[f64]) -> bool| heads.values().filter(|numbers| holds(numbers)).count();
    vec![
        format!(
            "the sink's key is opposite to the mean key (cosine below -0.5) in {} of {} heads, nearer to the query than the mean \
             key in {}",
            count(&|n| n[4] < -0.5),
            heads.len(),
            count(&|n| n[3] > n[2])
        ),
        format!(
            "in a step, scores have a standard deviation of {:.2}, ln|v-o| of {:.2}; the first token's value has {:.2} of the \
             others' norm",
            all[11], all[12], all[10]
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::head::testing::drawn;
    use super::*;

    #[test]
    fn numbers_are_those_of_naive_sums() {
        let head = drawn(40, 1, 4, 5);
        let of_head = OfHead::new(&head);
        let query = &head.queries[1];
        let numbers = of_head.numbers(&head, query);
        let key = |t: usize| &head.keys[t * 4..t * 4 + 4];
        let product = |a: &[f32], b: &[f32]| (0..4).map(|c| f64::from(a[c]) * f64::from(b[c])).sum::<f64>();
        let cos = |a: &[f32], b: &[f32]| product(a, b) / (product(a, a) * product(b, b)).sqrt();
        let close =
            |at: usize, b: f64| assert!((numbers[at] - b).abs() < 1e-5, "{}: {} {b}", NUMBERS[at].0, numbers[at]);
        close(0, (1..41).map(|t| cos(&query.vector, key(t))).sum::<f64>() / 40.0);
        // The 32 highest of 41 tokens: those with fewer than 32 others above them.
        let score = |t: usize| product(&query.vector, key(t));
        let top: Vec<usize> = (0..41).filter(|t| (0..41).filter(|o| score(*o) > score(*t)).count() < 32).collect();
        close(1, top.iter().map(|t| cos(&query.vector, key(*t))).sum::<f64>() / 32.0);
        let mean: Vec<f32> = (0..4).map(|c| (0..41).map(|t| key(t)[c]).sum::<f32>() / 41.0).collect();
        close(2, cos(&query.vector, &mean));
        close(3, cos(&query.vector, key(0)));
        close(4, cos(key(0), &mean));
        close(5, (1..41).map(|t| cos(key(t), &mean)).sum::<f64>() / 40.0);
        let length = |a: &[f32]| product(a, a).sqrt();
        close(6, length(&query.vector));
        close(7, (1..41).map(|t| length(key(t))).sum::<f64>() / 40.0);
        let value = |t: usize| &head.values[t * 4..t * 4 + 4];
        close(10, length(value(0)) / numbers[9]);
        // Variances as mean square less squared mean, and ‖v − o‖ by hand.
        let exps: Vec<f64> = (0..41).map(|t| (score(t) / 2.0).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let out: Vec<f64> = (0..4).map(|c| (0..41).map(|t| exps[t] / sum * f64::from(value(t)[c])).sum()).collect();
        let away = |t: usize| (0..4).map(|c| (f64::from(value(t)[c]) - out[c]).powi(2)).sum::<f64>().sqrt().ln();
        let mean_of = |of: &dyn Fn(usize) -> f64| (0..41).map(of).sum::<f64>() / 41.0;
        let (x, y) = (|t: usize| score(t) / 2.0, away);
        let variance = |of: &dyn Fn(usize) -> f64| mean_of(&|t| of(t) * of(t)) - mean_of(of).powi(2);
        close(11, variance(&x).sqrt());
        close(12, variance(&y).sqrt());
        close(13, (mean_of(&|t| x(t) * y(t)) - mean_of(&x) * mean_of(&y)) / (variance(&x) * variance(&y)).sqrt());
    }

    #[test]
    fn the_sinks_keys_are_of_the_tokens_that_were_drawn() {
        let first = vec![vec![vec![vec![1.0, 0.0]]], vec![vec![vec![0.0, 1.0]]]];
        let table = stability(&first, &[0], &BTreeMap::new());
        let drawn: Vec<(&str, Option<usize>)> = table.columns.iter().map(|c| (c.name.as_str(), c.drawn)).collect();
        assert_eq!(drawn[..2], [("k_sink, least", Some(2)), ("k_sink, mean", Some(2))]);
        assert_eq!(drawn[2..], [("k_avg, least", None), ("k_avg, mean", None)]);
    }

    #[test]
    fn mutual_cosines_are_of_every_two() {
        let vectors = [vec![1.0, 0.0], vec![0.0, 2.0], vec![-3.0, 0.0]];
        assert_eq!(mutual(&vectors), Some((-1.0, -1.0 / 3.0)));
        assert_eq!(mutual(&vectors[..1]), None);
    }
}
