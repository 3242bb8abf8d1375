//! Hierarchical navigable small worlds (Malkov and Yashunin 2020).
//!
//! Every node is on level 0; each higher level holds about one in `M` nodes of the level below. A search walks greedily through the upper
//! levels, each of which gets closer in a few steps, and then searches level 0 with a beam. A new node is linked on each of its levels to
//! `M` diverse nodes among the nearest found, and those link back; a node keeps at most `M` links on upper levels and `2M` on level 0.
//!
//! **Levels and order.** Each node draws `u` uniformly; its level is `⌊−ln u / ln M⌋`. Nodes are inserted by ascending `u`, the highest
//! level first. So the entry never changes, a level's nodes are the first ones inserted, and neighbours in the text are not inserted one
//! after the other.
//!
//! **Inner products.** A search follows `q·k`, but a link is between two keys, and there are several ways to define which keys are near.
//! Measured on the built-in model (recall of the 64 best, means over 96 queries a layer and three texts of 4,000 tokens; in brackets the
//! inner products computed, as a share of all):
//! | keys are near by | `ef=2k` | `ef=4k` |
//! |---|---|---|
//! | distance | 0.947 (0.25) | 0.983 (0.39) |
//! | distance, keys made equally long by one more coordinate (Bachrach et al. 2014) | 0.950 (0.25) | 0.984 (0.39) |
//! | inner product of keys less their mean | 0.965 (0.27) | 0.991 (0.42) |
//! | angle between keys less their mean | 0.976 (0.28) | 0.994 (0.44) |
//!
//! The angle is used here. The inner product of the keys themselves (Morozov and Babenko 2018) found 0.73 of them on the one text tried:
//! all keys share a large mean, and a few long keys are neighbours of all others.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::index::graph::{Beam, Links, Points, Scored, reach_all};

/// How a graph is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HnswParams {
    /// Number of links of a new node on each level (`M`).
    pub links: usize,
    /// Width of the beam that searches for these links (`efConstruction`).
    pub width: usize,
}

/// The graph over the candidates of one KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hnsw {
    /// Links on levels from 1 up; nodes are ranks in [`order`](Self::order).
    upper: Vec<Links>,
    /// The nodes of level 1 in order of insertion; those of higher levels come first.
    order: Vec<u32>,
    ground: Links,
    /// The first node inserted, from which all nodes of level 0 can be reached.
    entry: u32,
}

impl Hnsw {
    /// Builds the graph over `keys: [node][d]`; there must be at least one key.
    pub fn build(keys: &[f32], d: usize, params: HnswParams, seed: u64) -> Self {
        let (order, level_sizes) = draw_levels(keys.len() / d, params.links, seed);
        let by_rank: Vec<f32> = order.iter().flat_map(|&node| &keys[node as usize * d..][..d]).copied().collect();
        let mut builder = Builder::new(Points::new(by_rank, d), params, &level_sizes);
        (1..order.len() as u32).for_each(|node| builder.insert(node));
        builder.finish(order)
    }

    /// Returns the best nodes that a beam of `width` finds, at most `width`, best first. `score` writes the scores of nodes.
    pub fn search(&self, width: usize, beam: &mut Beam, mut score: impl FnMut(&[u32], &mut [f32])) -> Vec<Scored> {
        let mut rank = 0;
        for links in self.upper.iter().rev() {
            let of_ranks = |ranks: &[u32], out: &mut [f32]| {
                let nodes: Vec<u32> = ranks.iter().map(|r| self.order[*r as usize]).collect();
                score(&nodes, out);
            };
            rank = beam.search(&[rank], 1, |r| links.of(r), of_ranks)[0].node;
        }
        let near = self.order.get(rank as usize).copied().unwrap_or(self.entry);
        // Start at the entry as well, from which all keys can be reached.
        beam.search(&[near, self.entry], width, |node| self.ground.of(node), score)
    }

    /// Number of nodes of the graph.
    pub fn nodes(&self) -> usize {
        self.ground.nodes()
    }

    /// Number of bytes stored.
    pub fn bytes(&self) -> usize {
        let upper: usize = self.upper.iter().map(Links::bytes).sum();
        upper + size_of_val(self.order.as_slice()) + self.ground.bytes() + size_of_val(&self.entry)
    }
}

/// Returns the nodes in order of insertion, and the number of nodes on each level, from 0 up.
fn draw_levels(nodes: usize, links: usize, seed: u64) -> (Vec<u32>, Vec<usize>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // In (0, 1], so that the logarithm is finite.
    let draws: Vec<f64> = (0..nodes).map(|_| 1.0 - rng.random::<f64>()).collect();
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    order.sort_by(|&a, &b| draws[a as usize].total_cmp(&draws[b as usize]).then(a.cmp(&b)));
    let scale = 1.0 / (links.max(2) as f64).ln();
    let level = |node: u32| (-draws[node as usize].ln() * scale) as usize;
    let levels = order.first().map_or(1, |&first| level(first) + 1);
    let sizes = (0..levels).map(|l| order.partition_point(|&node| level(node) >= l)).collect();
    (order, sizes)
}

/// A graph under construction; nodes are ranks in the order of insertion.
struct Builder {
    points: Points,
    params: HnswParams,
    /// Lists of links on each level, from 0 up.
    levels: Vec<Vec<Vec<u32>>>,
    beam: Beam,
}

impl Builder {
    fn new(points: Points, params: HnswParams, level_sizes: &[usize]) -> Self {
        let levels = level_sizes.iter().map(|&size| vec![Vec::new(); size]).collect();
        let beam = Beam::new(points.nodes());
        Self { points, params, levels, beam }
    }

    fn most_links(&self, level: usize) -> usize {
        if level == 0 { 2 * self.params.links } else { self.params.links }
    }

    /// Links a node to earlier ones; node 0 must exist.
    fn insert(&mut self, node: u32) {
        let points = &self.points;
        let mut entries = vec![0];
        for level in (0..self.levels.len()).rev() {
            let is_member = (node as usize) < self.levels[level].len();
            let width = if is_member { self.params.width } else { 1 };
            let lists = &self.levels[level];
            let score = |others: &[u32], out: &mut [f32]| points.likeness(node, others, out);
            let found = self.beam.search(&entries, width, |other| &lists[other as usize], score);
            if is_member {
                let chosen = points.diverse(&found, self.params.links);
                let most = self.most_links(level);
                let lists = &mut self.levels[level];
                chosen.iter().for_each(|&other| points.link(lists, other, node, most));
                lists[node as usize] = chosen;
            }
            entries = found.iter().map(|f| f.node).collect();
        }
    }

    fn finish(mut self, mut order: Vec<u32>) -> Hnsw {
        for level in 0..self.levels.len() {
            let most = self.most_links(level);
            for (node, list) in self.levels[level].iter_mut().enumerate() {
                self.points.cut(node as u32, list, most);
            }
        }
        reach_all(&mut self.levels[0], 0);
        let mut ground = vec![Vec::new(); order.len()];
        for (list, &node) in self.levels[0].iter().zip(&order) {
            ground[node as usize] = list.iter().map(|&rank| order[rank as usize]).collect();
        }
        let pack = |lists: &Vec<Vec<u32>>| Links::new(lists.iter().map(Vec::as_slice));
        let entry = order[0];
        order.truncate(self.levels.get(1).map_or(0, Vec::len));
        order.shrink_to_fit();
        Hnsw { upper: self.levels[1..].iter().map(pack).collect(), order, ground: pack(&ground), entry }
    }
}
