//! Algorithm 1 in plain loops and `f64`, with sampling (§3.2), top-r (§B.3.1) and ensemble (§C.5), and with the samples
//! and chunks of HiP's code. Tests compare the method's masks with these.

use std::ops::Range;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Keys of one KV head, and the candidates among them.
pub(super) struct Keys<'a> {
    /// `[token][d]`.
    pub keys: &'a [f32],
    pub d: usize,
    pub candidates: Range<usize>,
}

/// Parameters of the search, by the paper's names.
#[derive(Debug, Clone)]
pub(super) struct Listing {
    pub b_k: usize,
    pub b_sk: usize,
    /// Position of the representative in its branch, from 0 to 1 (Table 16).
    pub place: f64,
    /// `r` of §B.3.1.
    pub top_r: Option<usize>,
    /// Whether the last key of each stride is scored instead of the first.
    pub last_keys: bool,
    /// Whether chunks begin at multiples of the step of HiP's code.
    pub aligned: bool,
}

/// A query row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    /// `[d]`.
    pub query: &'a [f32],
    /// First token that the row must not see.
    pub end: usize,
    /// Keys `[token][d]` as this row alone sees them; `None` if it sees the common ones.
    pub keys: Option<&'a [f32]>,
}

impl<'a> Row<'a> {
    /// A row that sees all candidates.
    pub fn all_seeing(query: &'a [f32]) -> Self {
        Self { query, end: usize::MAX, keys: None }
    }
}

/// Parameters of the ensemble, by the paper's names; `r_e` is in logits.
#[derive(Debug, Clone)]
pub(super) struct Ensemble {
    pub n_e: usize,
    pub theta_vote: usize,
    pub r_e: f32,
    pub tau: bool,
}

impl Ensemble {
    /// Plain HiP.
    pub const NONE: Self = Self { n_e: 1, theta_vote: 1, r_e: 5.0, tau: false };

    /// The parameters as text of a spec, each after a comma.
    pub fn spec(&self) -> String {
        let Self { n_e, theta_vote, r_e, tau } = self;
        format!(",n_e={n_e},theta_vote={theta_vote},r_e={r_e},tau={}", u8::from(*tau))
    }
}

/// Result of a search.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// Key blocks, ascending.
    pub blocks: Vec<usize>,
    /// Number of products of a query row with a key.
    pub products: u64,
}

/// First and last block of a node, both included.
type Node = (usize, usize);

impl Listing {
    /// The default parameters.
    pub fn ordinary() -> Self {
        Self { b_k: 2, b_sk: 1, place: 0.5, top_r: None, last_keys: false, aligned: false }
    }

    /// The `keep` blocks that `rows` find.
    pub fn search(&self, keys: &Keys<'_>, rows: &[Row<'_>], keep: usize) -> Found {
        self.search_raised(keys, rows, keep, &mut |score| score)
    }

    /// As `search`, with `raise` applied to the scores of the middle round's branches, in order.
    fn search_raised(
        &self,
        keys: &Keys<'_>,
        rows: &[Row<'_>],
        keep: usize,
        raise: &mut dyn FnMut(f64) -> f64,
    ) -> Found {
        let count = keys.candidates.len().div_ceil(self.b_k);
        if keep >= count {
            return Found { blocks: (0..count).collect(), products: 0 };
        }
        let channels = self.channels(rows, keys.d);
        let mut nodes = self.first_nodes(count, keep);
        let mut products = 0;
        let longest = nodes.iter().map(|(f, l)| l - f + 1).max().expect("a node");
        let rounds = (longest as f64).log2().ceil() as usize;
        for round in 0..rounds {
            if nodes.iter().all(|(f, l)| f == l) {
                // Further rounds would divide nothing, and cost nothing.
                break;
            }
            let branches: Vec<Node> = nodes.iter().flat_map(|node| branches_of(*node)).collect();
            let mut order = Vec::new();
            for (index, branch) in branches.iter().enumerate() {
                let (score, made) = self.score(keys, rows, &channels, self.representative(*branch));
                products += made;
                order.push((if round == rounds / 2 { raise(score) } else { score }, index));
            }
            // Of equal scores the lower position is kept.
            order.sort_by(|a: &(f64, usize), b| b.0.partial_cmp(&a.0).expect("numbers").then(a.1.cmp(&b.1)));
            order.truncate(keep);
            order.sort_by_key(|(_, index)| *index);
            nodes = order.into_iter().map(|(_, index)| branches[index]).collect();
        }
        assert!(nodes.iter().all(|(f, l)| f == l), "every branch ends as one block");
        Found { blocks: nodes.into_iter().map(|(f, _)| f).collect(), products }
    }

    /// The blocks that an ensemble elects, with the products of all its searches.
    pub fn elect(
        &self,
        keys: &Keys<'_>,
        rows: &[Row<'_>],
        keep: usize,
        ensemble: &Ensemble,
        rng: &mut ChaCha8Rng,
    ) -> Found {
        if ensemble.n_e == 1 {
            return self.search(keys, rows, keep);
        }
        let reach = ensemble.r_e * (keys.d as f32).sqrt();
        // In `f32`, since other rounding would give other ties.
        let mut raise = |score: f64| f64::from(score as f32 + reach * rng.random::<f32>());
        let samples: Vec<Found> = (0..ensemble.n_e).map(|_| self.search_raised(keys, rows, keep, &mut raise)).collect();
        let votes = |block: usize| samples.iter().filter(|found| found.blocks.contains(&block)).count();
        let count = keys.candidates.len().div_ceil(self.b_k);
        let mut elected: Vec<usize> = (0..count).filter(|block| votes(*block) >= ensemble.theta_vote).collect();
        if ensemble.tau {
            elected.sort_by_key(|block| (std::cmp::Reverse(votes(*block)), *block));
            elected.truncate(keep);
            elected.sort_unstable();
        }
        Found { blocks: elected, products: samples.iter().map(|found| found.products).sum() }
    }

    /// Tokens of a block.
    pub fn tokens(&self, keys: &Keys<'_>, block: usize) -> Range<usize> {
        let first = keys.candidates.start + block * self.b_k;
        first..(first + self.b_k).min(keys.candidates.end)
    }

    /// Algorithm 1, line 10.
    fn representative(&self, (f, l): Node) -> usize {
        f + nearest(self.place * (l - f) as f64)
    }

    /// Algorithm 1, line 11: the largest product of a row with a sampled key of the block, and the number of products.
    fn score(&self, keys: &Keys<'_>, rows: &[Row<'_>], channels: &[usize], block: usize) -> (f64, u64) {
        let (mut largest, mut products) = (f64::NEG_INFINITY, 0);
        for Row { query, end, keys: own } in rows {
            let seen = own.unwrap_or(keys.keys);
            for token in sampled(self.tokens(keys, block), self.b_sk, self.last_keys) {
                let product: f64 =
                    channels.iter().map(|c| f64::from(query[*c]) * f64::from(seen[token * keys.d + c])).sum();
                if token < *end {
                    largest = largest.max(product);
                }
                products += 1;
            }
        }
        (largest, products)
    }

    /// The channels in which the rows are largest; all channels without top-r.
    fn channels(&self, rows: &[Row<'_>], d: usize) -> Vec<usize> {
        let magnitude = |c: &usize| -> f64 { rows.iter().map(|row| f64::from(row.query[*c]).abs()).sum() };
        let mut channels: Vec<usize> = (0..d).collect();
        channels.sort_by(|a, b| magnitude(b).total_cmp(&magnitude(a)).then(a.cmp(b)));
        channels.truncate(self.top_r.unwrap_or(d));
        channels
    }

    /// Algorithm 1, line 4.
    fn first_nodes(&self, count: usize, keep: usize) -> Vec<Node> {
        if !self.aligned {
            let bound = |j: usize| nearest(j as f64 * count as f64 / keep as f64);
            return (0..keep).map(|j| (bound(j), bound(j + 1) - 1)).collect();
        }
        // The step is the largest power of two in `count`, divided by `keep`; bounds are rounded down to its multiples.
        let mut power = 1;
        while power * 2 <= count {
            power *= 2;
        }
        let step = power.div_ceil(keep);
        let bound = |j: usize| j * count / keep - j * count / keep % step;
        (0..keep)
            .map(|j| (bound(j), bound(j + 1)))
            .filter(|(f, next)| f < next)
            .map(|(f, next)| (f, next - 1))
            .collect()
    }
}

/// The first or last place of each stride. A last stride that is not whole has no last place, unless it is the only one.
pub(super) fn sampled(places: Range<usize>, stride: usize, last: bool) -> Vec<usize> {
    let offset = if last { stride - 1 } else { 0 };
    let of_strides: Vec<usize> = places.clone().filter(|place| (place - places.start) % stride == offset).collect();
    match of_strides.is_empty() {
        true => places.last().into_iter().collect(),
        false => of_strides,
    }
}

/// Algorithm 1, lines 7 and 8. A node of a single block is its own branch.
fn branches_of((f, l): Node) -> Vec<Node> {
    if f == l {
        return vec![(f, l)];
    }
    let m = nearest((f + l) as f64 / 2.0);
    vec![(f, m - 1), (m, l)]
}

/// Rounds to the nearest whole number, half up.
fn nearest(x: f64) -> usize {
    (x + 0.5).floor() as usize
}
