//! Graphs built from queries: projected bipartite graphs (Chen et al. 2024, "RoarGraph").
//!
//! Queries and keys are distributed differently, and the keys that one query looks for need not be near each other, so searching a graph of
//! near keys is a detour. Here, keys are linked if queries look for them together:
//!
//! 1. **Bipartite graph**: each sampled query is linked to the `nearest` keys with the largest inner product.
//! 2. **Projection**: the first of these keys, the query's pivot, is linked to the others. Of all keys that a pivot gets from its queries,
//!    up to `M` diverse ones are kept, and link back.
//! 3. **Connection**: each key searches for itself with a beam from the entry, and is linked to `M` diverse keys found, which link back. So
//!    keys that no query looked for can be reached, too.
//!
//! A key has at most `2M` links, apart from those that make every key reachable. Searches start at the key with the largest inner product
//! with the mean query. Nothing is random.

use crate::index::graph::{Beam, Links, Points, Scored, reach_all};
use spattn_kernels::linear;
use spattn_kernels::topk::{argmax, top_k};

/// Number of queries scored at a time.
const QUERY_BLOCK: usize = 16;

/// How a graph is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoarParams {
    /// Number of keys that each query is linked to (`N_q`).
    pub nearest: usize,
    /// Number of links that a key gets from queries, and again from its own search (`M`).
    pub links: usize,
    /// Width of the beam with which a key searches for itself (`L`).
    pub width: usize,
}

/// The graph over the candidates of one KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roar {
    links: Links,
    entry: u32,
}

impl Roar {
    /// Builds the graph over `keys: [node][d]` from `queries: [query][d]`; there must be at least one key.
    pub fn build(keys: &[f32], d: usize, queries: &[f32], params: RoarParams) -> Self {
        let points = Points::new(keys.to_vec(), d);
        let entry = entry(keys, d, queries);
        let mut lists = projection(&points, keys, queries, params);
        connect(&points, &mut lists, entry, params);
        for (node, list) in lists.iter_mut().enumerate() {
            points.cut(node as u32, list, 2 * params.links);
        }
        reach_all(&mut lists, entry);
        Self { links: Links::new(lists.iter().map(Vec::as_slice)), entry }
    }

    /// Returns the best nodes that a beam of `width` finds, at most `width`, best first. `score` writes the scores of nodes.
    pub fn search(&self, width: usize, beam: &mut Beam, score: impl FnMut(&[u32], &mut [f32])) -> Vec<Scored> {
        beam.search(&[self.entry], width, |node| self.links.of(node), score)
    }

    /// Number of nodes of the graph.
    pub fn nodes(&self) -> usize {
        self.links.nodes()
    }

    /// Number of bytes stored.
    pub fn bytes(&self) -> usize {
        self.links.bytes() + size_of_val(&self.entry)
    }
}

/// Returns the key with the largest inner product with the mean query.
fn entry(keys: &[f32], d: usize, queries: &[f32]) -> u32 {
    let mut mean = vec![0.0; d];
    for query in queries.chunks_exact(d) {
        mean.iter_mut().zip(query).for_each(|(m, q)| *m += q);
    }
    let mut scores = vec![0.0; keys.len() / d];
    linear::scores(&mean, keys, d, &mut scores);
    argmax(&scores) as u32
}

/// Links each pivot to the other keys of its queries, and those keys back to it.
fn projection(points: &Points, keys: &[f32], queries: &[f32], params: RoarParams) -> Vec<Vec<u32>> {
    let (n, d) = (points.nodes(), points.d);
    let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); n];
    let mut scores = vec![0.0; QUERY_BLOCK * n];
    for block in queries.chunks(QUERY_BLOCK * d) {
        let scores = &mut scores[..block.len() / d * n];
        linear::scores(block, keys, d, scores);
        for scores in scores.chunks_exact(n) {
            let pivot = argmax(scores);
            let others = top_k(scores, params.nearest).into_iter().filter(|node| *node as usize != pivot);
            wanted[pivot].extend(others);
        }
    }
    let mut lists = vec![Vec::new(); n];
    for (pivot, mut wanted) in wanted.into_iter().enumerate() {
        wanted.sort_unstable();
        wanted.dedup();
        let chosen = points.diverse(&points.ranked(pivot as u32, &wanted), params.links);
        for other in chosen {
            points.link(&mut lists, pivot as u32, other, 2 * params.links);
            points.link(&mut lists, other, pivot as u32, 2 * params.links);
        }
    }
    lists
}

/// Links every key to some of the keys that its search finds, and those keys back to it.
fn connect(points: &Points, lists: &mut [Vec<u32>], entry: u32, params: RoarParams) {
    let mut beam = Beam::new(points.nodes());
    for node in 0..points.nodes() as u32 {
        let score = |others: &[u32], out: &mut [f32]| points.likeness(node, others, out);
        let mut found = beam.search(&[entry], params.width, |other| &lists[other as usize], score);
        found.retain(|f| f.node != node);
        for other in points.diverse(&found, params.links) {
            points.link(lists, node, other, 2 * params.links);
            points.link(lists, other, node, 2 * params.links);
        }
    }
}
