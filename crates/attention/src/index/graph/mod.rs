//! Proximity graphs over the keys of one KV head, searched by a beam for the largest inner products.
//!
//! A node is a candidate's number, from 0; its links name other nodes. A search starts at an entry node. It repeatedly scores the links of
//! the best node that is not yet expanded, until that node is worse than all of the `width` best found. Graphs differ in how links are
//! chosen: [`hnsw`] links keys to near keys, [`roar`] links keys that the same queries look for. A graph is built node by node, so it does
//! not depend on threads; the caller builds heads in parallel.
//!
//! **Why no crate is used.** Here, a graph must have the same bits for the same seed, its bytes and every inner product must be counted,
//! searches use the inner product with keys that are stored once, in 16 bits, and parameters are set at run time. `hnsw_rs` 0.3 (the one
//! that is maintained) copies every key as 32-bit floats, gives no access to what it stores, draws levels from a fixed seed, needs
//! distances that are never negative, one pair at a time, and depends on a logger, memory maps and a date library. `instant-distance` 0.6
//! (2023) has a constant number of links and inserts in parallel, in an order that depends on threads. `hnsw` 0.11 and `hora` 0.1 have been
//! inactive since 2021; `usearch` is C++. None has links that come from queries.

pub mod hnsw;
pub mod roar;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use spattn_kernels::linear;

/// A node and its score. Ordered by score; among equal scores, the lower node is greater.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// The node.
    pub node: u32,
    /// Its score.
    pub score: f32,
}

impl Eq for Scored {}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.node.cmp(&self.node))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The work done by searches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of nodes scored.
    pub scored: u64,
    /// Number of links read.
    pub links: u64,
    /// Number of nodes whose links were read.
    pub expanded: u64,
}

impl Effort {
    /// Bytes of links read: a number for each link, and both ends of each list.
    pub fn bytes(&self) -> u64 {
        (self.links + 2 * self.expanded) * size_of::<u32>() as u64
    }
}

/// Best-first search with a bounded list of results; its memory is reused from search to search.
#[derive(Debug, Clone)]
pub struct Beam {
    /// One bit for each node, all clear between searches.
    visited: Vec<u64>,
    /// The nodes whose bit is set.
    touched: Vec<u32>,
    frontier: BinaryHeap<Scored>,
    best: BinaryHeap<Reverse<Scored>>,
    fresh: Vec<u32>,
    scores: Vec<f32>,
    /// The work of all searches together.
    pub effort: Effort,
}

impl Beam {
    /// A beam for graphs of at most `nodes` nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            visited: vec![0; nodes.div_ceil(64)],
            touched: Vec::new(),
            frontier: BinaryHeap::new(),
            best: BinaryHeap::new(),
            fresh: Vec::new(),
            scores: Vec::new(),
            effort: Effort::default(),
        }
    }

    /// Returns the best nodes found from `entries` along `links`, at most `width`, best first.
    ///
    /// `score` writes the scores of the given nodes.
    pub fn search<'g>(
        &mut self,
        entries: &[u32],
        width: usize,
        links: impl Fn(u32) -> &'g [u32],
        mut score: impl FnMut(&[u32], &mut [f32]),
    ) -> Vec<Scored> {
        self.meet(entries, width, &mut score);
        while let Some(node) = self.frontier.pop() {
            if self.best.len() >= width && self.best.peek().is_some_and(|worst| node < worst.0) {
                break;
            }
            let links = links(node.node);
            self.effort.links += links.len() as u64;
            self.effort.expanded += 1;
            self.meet(links, width, &mut score);
        }
        self.frontier.clear();
        for node in self.touched.drain(..) {
            self.visited[node as usize / 64] = 0;
        }
        let mut found: Vec<Scored> = self.best.drain().map(|Reverse(scored)| scored).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    /// Scores those of `nodes` that were not visited before, and keeps the good ones.
    fn meet(&mut self, nodes: &[u32], width: usize, score: &mut impl FnMut(&[u32], &mut [f32])) {
        self.fresh.clear();
        for &node in nodes {
            let (word, bit) = (&mut self.visited[node as usize / 64], 1 << (node % 64));
            if *word & bit == 0 {
                *word |= bit;
                self.fresh.push(node);
            }
        }
        self.touched.extend(&self.fresh);
        self.scores.resize(self.fresh.len(), 0.0);
        score(&self.fresh, &mut self.scores);
        self.effort.scored += self.fresh.len() as u64;
        for (&node, &score) in self.fresh.iter().zip(&self.scores) {
            let scored = Scored { node, score };
            if self.best.len() < width {
                self.best.push(Reverse(scored));
            } else if self.best.peek().is_some_and(|worst| scored > worst.0) {
                self.best.pop();
                self.best.push(Reverse(scored));
            } else {
                continue;
            }
            self.frontier.push(scored);
        }
    }
}

/// The links of all nodes, one list after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    /// Start of each node's list, and the end of the last.
    ends: Vec<u32>,
    nodes: Vec<u32>,
}

impl Links {
    /// Packs the lists.
    pub fn new<'a>(lists: impl Iterator<Item = &'a [u32]>) -> Self {
        let (mut ends, mut nodes) = (vec![0], Vec::new());
        for list in lists {
            nodes.extend_from_slice(list);
            ends.push(nodes.len() as u32);
        }
        nodes.shrink_to_fit();
        ends.shrink_to_fit();
        Self { ends, nodes }
    }

    /// Returns the links of a node.
    pub fn of(&self, node: u32) -> &[u32] {
        &self.nodes[self.ends[node as usize] as usize..self.ends[node as usize + 1] as usize]
    }

    /// Number of nodes of the graph.
    pub fn nodes(&self) -> usize {
        self.ends.len() - 1
    }

    /// Number of bytes stored.
    pub fn bytes(&self) -> usize {
        size_of_val(self.ends.as_slice()) + size_of_val(self.nodes.as_slice())
    }
}

/// Directions of keys from their mean, `[node][d]`. Keys are alike if their directions are.
///
/// `q·k` orders keys as `q·(k − mean)` does, so the mean, which all keys share, can be subtracted. A query looks for keys far out in its
/// direction, so keys are linked by direction alone.
pub(crate) struct Points {
    directions: Vec<f32>,
    d: usize,
}

impl Points {
    /// Computes the directions of `keys: [node][d]`. A key equal to the mean has no direction: its cosine with all others is 0.
    fn new(mut keys: Vec<f32>, d: usize) -> Self {
        let mut sum = vec![0.0f64; d];
        for key in keys.chunks_exact(d) {
            sum.iter_mut().zip(key).for_each(|(s, x)| *s += f64::from(*x));
        }
        let n = (keys.len() / d) as f64;
        for key in keys.chunks_exact_mut(d) {
            key.iter_mut().zip(&sum).for_each(|(x, s)| *x = (f64::from(*x) - s / n) as f32);
            let norm = key.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            if norm > 0.0 {
                key.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
            }
        }
        Self { directions: keys, d }
    }

    fn nodes(&self) -> usize {
        self.directions.len() / self.d
    }

    /// Writes the cosine of `node` with each of `others`.
    fn likeness(&self, node: u32, others: &[u32], out: &mut [f32]) {
        linear::scores_of(&self.directions[node as usize * self.d..][..self.d], &self.directions, others, out);
    }

    /// Returns `others` sorted by their cosine with `node`, largest first.
    fn ranked(&self, node: u32, others: &[u32]) -> Vec<Scored> {
        let mut scores = vec![0.0; others.len()];
        self.likeness(node, others, &mut scores);
        let mut ranked: Vec<Scored> = others.iter().zip(scores).map(|(&node, score)| Scored { node, score }).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        ranked
    }

    /// Chooses up to `count` links for a node from `candidates`, which are sorted. A candidate is rejected if it is more like a chosen one
    /// than like the node, so that links point in different directions (Malkov and Yashunin 2020, Alg. 4).
    fn diverse(&self, candidates: &[Scored], count: usize) -> Vec<u32> {
        let mut taken: Vec<u32> = Vec::with_capacity(count);
        let mut scores = vec![0.0; count];
        for candidate in candidates {
            if taken.len() == count {
                break;
            }
            let scores = &mut scores[..taken.len()];
            self.likeness(candidate.node, &taken, scores);
            if scores.iter().all(|s| *s <= candidate.score) {
                taken.push(candidate.node);
            }
        }
        taken
    }

    /// Adds the link `from → to`, unless it exists. A list that reaches one and a half times `most` links is cut back to `most`.
    fn link(&self, lists: &mut [Vec<u32>], from: u32, to: u32, most: usize) {
        let list = &mut lists[from as usize];
        if list.contains(&to) {
            return;
        }
        list.push(to);
        if list.len() >= most + most.div_ceil(2) {
            self.cut(from, list, most);
        }
    }

    /// Cuts a list of links down to `most` diverse ones.
    fn cut(&self, node: u32, list: &mut Vec<u32>, most: usize) {
        if list.len() > most {
            *list = self.diverse(&self.ranked(node, list), most);
        }
    }
}

/// Makes every node reachable from `entry`. An unreachable node gets a link from a reachable node: among those that it links to, the one
/// with the fewest links.
///
/// If many keys are nearly equal, cutting lists can leave a node without links to it. After this function, a beam as wide as the graph
/// finds every key.
pub(crate) fn reach_all(lists: &mut [Vec<u32>], entry: u32) {
    let mut reached = vec![false; lists.len()];
    spread(lists, entry, &mut reached);
    for node in 0..lists.len() as u32 {
        if reached[node as usize] {
            continue;
        }
        let near = lists[node as usize].iter().copied().filter(|&other| reached[other as usize]);
        let from = near.min_by_key(|&other| (lists[other as usize].len(), other)).unwrap_or(entry);
        lists[from as usize].push(node);
        spread(lists, node, &mut reached);
    }
}

/// Marks all nodes that can be reached from `node`.
fn spread(lists: &[Vec<u32>], node: u32, reached: &mut [bool]) {
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut reached[node as usize], true) {
            open.extend(lists[node as usize].iter().filter(|&&other| !reached[other as usize]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::graph::hnsw::{Hnsw, HnswParams};
    use crate::index::graph::roar::{Roar, RoarParams};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const HNSW: HnswParams = HnswParams { links: 16, width: 100 };
    const ROAR: RoarParams = RoarParams { nearest: 50, links: 16, width: 100 };

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// Rows around a few centres, all shifted by the same vector, as keys are.
    fn clustered(n: usize, d: usize, seed: u64) -> Vec<f32> {
        const CENTRES: usize = 20;
        let (centres, mean) = (noise(CENTRES * d, seed), noise(d, seed + 1));
        let mut rows = noise(n * d, seed + 2);
        for (i, row) in rows.chunks_mut(d).enumerate() {
            let centre = &centres[i * 7 % CENTRES * d..][..d];
            row.iter_mut().zip(centre).zip(&mean).for_each(|((x, c), m)| *x = 0.5 * *x + c + 3.0 * m);
        }
        rows
    }

    fn scorer<'a>(query: &'a [f32], keys: &'a [f32]) -> impl FnMut(&[u32], &mut [f32]) + 'a {
        |nodes, out| linear::scores_of(query, keys, nodes, out)
    }

    fn ranking(query: &[f32], keys: &[f32]) -> Vec<Scored> {
        let nodes: Vec<u32> = (0..(keys.len() / query.len()) as u32).collect();
        let mut scores = vec![0.0; nodes.len()];
        scorer(query, keys)(&nodes, &mut scores);
        let mut ranking: Vec<Scored> = nodes.iter().zip(scores).map(|(&node, score)| Scored { node, score }).collect();
        ranking.sort_unstable_by(|a, b| b.cmp(a));
        ranking
    }

    /// Returns the mean share of the `k` best keys that searches of this width find, and the mean share of nodes that they score.
    fn recall(
        keys: &[f32],
        queries: &[f32],
        d: usize,
        k: usize,
        mut search: impl FnMut(&mut Beam, &[f32]) -> Vec<Scored>,
    ) -> (f64, f64) {
        let mut beam = Beam::new(keys.len() / d);
        let (mut hits, count) = (0, queries.len() / d);
        for query in queries.chunks(d) {
            let found = search(&mut beam, query);
            hits += ranking(query, keys)[..k].iter().filter(|best| found[..k].contains(best)).count();
        }
        let scored = beam.effort.scored as f64 / (count * keys.len() / d) as f64;
        (hits as f64 / (count * k) as f64, scored)
    }

    #[test]
    fn a_beam_as_wide_as_the_graph_ranks_every_key_exactly() {
        let d = 8;
        let mut repeated = noise(300 * d, 3);
        // Repeats a few keys far more often than a node has links.
        (0..300 * d).for_each(|i| repeated[i] = repeated[i % (3 * d)]);
        let cases =
            [noise(d, 1), noise(2 * d, 1), noise(500 * d, 2), clustered(500, d, 4), repeated, vec![0.0; 200 * d]];
        for keys in cases {
            let n = keys.len() / d;
            let queries = noise(40 * d, 5);
            let (hnsw, roar) = (Hnsw::build(&keys, d, HNSW, 1), Roar::build(&keys, d, &queries, ROAR));
            let narrow = HnswParams { links: 2, width: 3 };
            let narrow = Hnsw::build(&keys, d, narrow, 1);
            let mut beam = Beam::new(n);
            for query in queries.chunks(d).take(5) {
                let exact = ranking(query, &keys);
                assert_eq!(hnsw.search(n, &mut beam, scorer(query, &keys)), exact);
                assert_eq!(narrow.search(n, &mut beam, scorer(query, &keys)), exact);
                assert_eq!(roar.search(n, &mut beam, scorer(query, &keys)), exact);
            }
            for k in [1, n.div_ceil(2)] {
                assert_eq!(hnsw.search(k, &mut beam, scorer(&queries[..d], &keys)).len(), k);
                assert_eq!(roar.search(k, &mut beam, scorer(&queries[..d], &keys)).len(), k);
            }
        }
    }

    #[test]
    fn most_of_the_best_are_found_by_scoring_few() {
        let (n, d, k) = (6000, 32, 64);
        let keys = clustered(n, d, 1);
        let (queries, others) = (noise(40 * d, 9), noise(2000 * d, 10));
        let hnsw = Hnsw::build(&keys, d, HNSW, 1);
        let search = |beam: &mut Beam, query: &[f32]| hnsw.search(4 * k, beam, scorer(query, &keys));
        let (found, scored) = recall(&keys, &queries, d, k, search);
        assert!(found >= 0.95 && scored < 0.4, "hnsw: {found} by scoring {scored}");
        let roar = Roar::build(&keys, d, &others, ROAR);
        let search = |beam: &mut Beam, query: &[f32]| roar.search(4 * k, beam, scorer(query, &keys));
        let (found, scored) = recall(&keys, &queries, d, k, search);
        assert!(found >= 0.95 && scored < 0.4, "roar: {found} by scoring {scored}");
    }

    #[test]
    fn wider_beams_find_more() {
        let (n, d, k) = (4000, 32, 20);
        let keys = clustered(n, d, 1);
        let queries = noise(40 * d, 9);
        let hnsw = Hnsw::build(&keys, d, HnswParams { links: 6, width: 20 }, 1);
        let of = |width| recall(&keys, &queries, d, k, |beam, query| hnsw.search(width, beam, scorer(query, &keys)));
        let (narrow, middle, wide) = (of(k), of(4 * k), of(20 * k));
        assert!(narrow.0 < middle.0 && middle.0 < wide.0, "{narrow:?} {middle:?} {wide:?}");
        assert!(narrow.1 < middle.1 && middle.1 < wide.1, "{narrow:?} {middle:?} {wide:?}");
    }

    #[test]
    fn a_seed_gives_one_graph_and_another_seed_another() {
        let (d, keys) = (16, clustered(800, 16, 2));
        let graph = |seed| Hnsw::build(&keys, d, HNSW, seed);
        assert_eq!(graph(5), graph(5));
        assert_ne!(graph(5), graph(6));
    }

    #[test]
    fn effort_is_what_was_scored_and_read() {
        let (d, keys) = (16, clustered(900, 16, 3));
        let hnsw = Hnsw::build(&keys, d, HNSW, 1);
        let (mut beam, mut scored) = (Beam::new(900), 0);
        let query = noise(d, 1);
        let mut count = |nodes: &[u32], out: &mut [f32]| {
            scored += nodes.len() as u64;
            linear::scores_of(&query, &keys, nodes, out);
        };
        hnsw.search(50, &mut beam, &mut count);
        assert_eq!(beam.effort.scored, scored);
        assert!(beam.effort.expanded >= 50 && beam.effort.links >= beam.effort.scored - 10, "{:?}", beam.effort);
        assert_eq!(beam.effort.bytes(), 4 * (beam.effort.links + 2 * beam.effort.expanded));
    }

    #[test]
    fn links_are_bounded_and_counted() {
        let (n, d) = (700, 16);
        let keys = noise(n * d, 4);
        let roar = Roar::build(&keys, d, &noise(50 * d, 5), ROAR);
        let hnsw = Hnsw::build(&keys, d, HnswParams { links: 4, width: 50 }, 1);
        // 8 links on level 0, 4 for less than 1/3 of the nodes on upper levels, the ends of lists, and room for the links that make all
        // nodes reachable.
        assert!(hnsw.bytes() < n * 4 * (8 + 1 + 4) && hnsw.bytes() > n * 4 * 4, "{}", hnsw.bytes());
        assert!(roar.bytes() < n * 4 * (32 + 2) && roar.bytes() > n * 4 * 4, "{}", roar.bytes());
        let lists: [&[u32]; 3] = [&[1, 2], &[], &[0]];
        let links = Links::new(lists.into_iter());
        assert_eq!((links.nodes(), links.of(0), links.of(1), links.of(2)), (3, lists[0], lists[1], lists[2]));
        assert_eq!(links.bytes(), 4 * (3 + 4));
    }

    #[test]
    fn whatever_cannot_be_reached_is_linked() {
        let mut lists = vec![vec![1], vec![], vec![1, 0], vec![], vec![3]];
        reach_all(&mut lists, 0);
        assert_eq!(lists, [vec![1, 3], vec![2], vec![1, 0], vec![4], vec![3]]);
    }
}
