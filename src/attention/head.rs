//! One KV head of a run: the shared prefix and the private tail seen as one sequence, and attending to it.

use std::ops::Range;

use super::method::{Exact, Picks, Rotation, Selection, Weighting};
use crate::cost::Cost;
use crate::kernels::cpu::{Accumulator, Rows, attend_list, attend_range, weighted_list};
use crate::kv::{LayerKv, Prefix};

/// Keys and values of one head: prefix and tail.
pub(super) struct HeadKv<'a> {
    pub(super) prefix_keys: Rows<'a>,
    pub(super) prefix_values: Rows<'a>,
    pub(super) tail_keys: Rows<'a>,
    pub(super) tail_values: Rows<'a>,
    pub(super) prefix_tokens: usize,
    pub(super) tail_tokens: usize,
    pub(super) d: usize,
}

/// Queries of a group `[group][d]`, times the scale of the logits.
pub(super) struct Queries {
    scaled: Vec<f32>,
    /// The same at another position, for the first exact part.
    to_sink: Option<Vec<f32>>,
}

impl Queries {
    pub(super) fn new(queries: &[f32], scale: f32) -> Self {
        Self { scaled: queries.iter().map(|q| q * scale).collect(), to_sink: None }
    }

    /// Sees the first exact part from `positions` nearer. Only distances count, so this is the same as moving
    /// that part's keys, with fewer vectors to turn.
    pub(super) fn nearer_to_sink(mut self, positions: usize, d: usize, rotation: &dyn Rotation) -> Self {
        let mut turned = self.scaled.clone();
        turned.chunks_exact_mut(d).for_each(|query| rotation.turn_back(query, positions));
        self.to_sink = Some(turned);
        self
    }
}

impl<'a> HeadKv<'a> {
    pub(super) fn new(prefix: &'a Prefix, tail: &'a LayerKv, layer: usize, kv_head: usize) -> Self {
        let kv = prefix.layer(layer);
        Self {
            prefix_keys: kv.keys.head(kv_head),
            prefix_values: kv.values.head(kv_head),
            tail_keys: tail.keys.head(kv_head),
            tail_values: tail.values.head(kv_head),
            prefix_tokens: prefix.tokens(),
            tail_tokens: tail.tokens(),
            d: kv.keys.d(),
        }
    }

    /// Attends positions `range` (of prefix and tail together) into `acc`; returns how many there were.
    pub(super) fn attend_positions(&self, scaled: &[f32], range: Range<usize>, acc: &mut Accumulator) -> usize {
        let p = self.prefix_tokens;
        let in_prefix = range.start.min(p)..range.end.min(p);
        let in_tail = range.start.max(p) - p..range.end.max(p) - p;
        if !in_prefix.is_empty() {
            attend_range(
                scaled,
                self.prefix_keys.slice(in_prefix.clone(), self.d),
                self.prefix_values.slice(in_prefix.clone(), self.d),
                acc,
            );
        }
        if !in_tail.is_empty() {
            attend_range(
                scaled,
                self.tail_keys.slice(in_tail.clone(), self.d),
                self.tail_values.slice(in_tail.clone(), self.d),
                acc,
            );
        }
        in_prefix.len() + in_tail.len()
    }

    /// Tokens in context.
    pub(super) fn total(&self) -> usize {
        self.prefix_tokens + self.tail_tokens
    }

    fn row_bytes(&self) -> usize {
        2 * self.d * self.prefix_keys.elem_bytes()
    }

    /// Attends the exact parts and the selection; returns tokens attended by each query head.
    pub(super) fn attend(
        &self,
        queries: &Queries,
        exact: Exact,
        selection: Option<&Selection>,
        out: &mut [f32],
        cost: &mut Cost,
    ) -> Vec<usize> {
        let scaled = &queries.scaled;
        let group = scaled.len() / self.d;
        let mut acc = Accumulator::new(group, self.d);
        let to_sink = queries.to_sink.as_ref().unwrap_or(scaled);
        let fixed = self.attend_positions(to_sink, 0..exact.sink, &mut acc)
            + self.attend_positions(scaled, exact.recent..self.total(), &mut acc);
        let mut read = fixed;
        let mut attended = vec![fixed; group];
        match selection {
            None => {}
            Some(Selection::Shared(picks)) => {
                self.attend_picks(scaled, picks, &mut acc);
                read += picks.tokens.len();
                attended.iter_mut().for_each(|n| *n += picks.tokens.len());
            }
            Some(Selection::PerHead(heads)) => {
                assert_eq!(heads.len(), group, "one set of picks for each query head");
                for (h, picks) in heads.iter().enumerate() {
                    let mut own = Accumulator::new(1, self.d);
                    self.attend_picks(&scaled[h * self.d..][..self.d], picks, &mut own);
                    acc.merge_query(h, &own);
                    attended[h] += picks.tokens.len();
                }
                read += self.union(heads);
            }
        }
        cost.kv_bytes += (read * self.row_bytes()) as u64;
        cost.attend_flops += selection.map_or(0, |s| s.remainders() * 2 * self.d) as u64;
        acc.finish(out);
        attended
    }

    /// How many different tokens the heads of a group picked: what a kernel that takes them together reads.
    fn union(&self, heads: &[Picks]) -> usize {
        if let [only] = heads {
            return only.tokens.len();
        }
        let mut seen = vec![0u64; self.total().div_ceil(u64::BITS as usize)];
        for token in heads.iter().flat_map(|picks| &picks.tokens) {
            seen[(token / u64::BITS) as usize] |= 1 << (token % u64::BITS);
        }
        seen.into_iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Attends tokens of prefix and tail, with a bias for each or none.
    fn attend_tokens(&self, scaled: &[f32], tokens: &[u32], bias: &[f32], acc: &mut Accumulator) {
        let first_behind = self.prefix_tokens as u32;
        if tokens.iter().all(|t| *t < first_behind) {
            return attend_list(scaled, self.prefix_keys, self.prefix_values, tokens, bias, acc);
        }
        let [before, behind] = self.parts(tokens, bias);
        attend_list(scaled, self.prefix_keys, self.prefix_values, &before.0, &before.1, acc);
        attend_list(scaled, self.tail_keys, self.tail_values, &behind.0, &behind.1, acc);
    }

    /// Tokens of the prefix and, numbered from its end, those behind it, each with its number of `with`, if there are
    /// any.
    fn parts(&self, tokens: &[u32], with: &[f32]) -> [(Vec<u32>, Vec<f32>); 2] {
        let first_behind = self.prefix_tokens as u32;
        let mut parts: [(Vec<u32>, Vec<f32>); 2] = Default::default();
        for (i, token) in tokens.iter().enumerate() {
            let part = &mut parts[usize::from(*token >= first_behind)];
            part.0.push(if *token < first_behind { *token } else { *token - first_behind });
            part.1.extend(with.get(i));
        }
        parts
    }

    fn attend_picks(&self, scaled: &[f32], picks: &Picks, acc: &mut Accumulator) {
        match &picks.weighting {
            Weighting::Softmax => self.attend_tokens(scaled, &picks.tokens, &[], acc),
            Weighting::LogBias(bias) => self.attend_tokens(scaled, &picks.tokens, bias, acc),
            Weighting::Remainder { shares, value } => {
                assert_eq!(shares.len(), acc.queries(), "one share for each query head");
                let mut picked = Accumulator::new(acc.queries(), self.d);
                self.attend_tokens(scaled, &picks.tokens, &[], &mut picked);
                let mut outputs = vec![0.0; scaled.len()];
                picked.finish(&mut outputs);
                for (h, (share, output)) in shares.iter().zip(outputs.chunks_exact(self.d)).enumerate() {
                    let log_mass = picked.log_sum_exp(h);
                    acc.merge(h, log_mass, output);
                    acc.merge(h, log_mass + (share / (1.0 - share)).ln(), value);
                }
            }
            Weighting::Direct { weights, log_mass } => {
                let mut output = vec![0.0; self.d];
                let [before, behind] = self.parts(&picks.tokens, weights);
                weighted_list(self.prefix_values, &before.0, &before.1, &mut output);
                if !behind.0.is_empty() {
                    let mut rest = vec![0.0; self.d];
                    weighted_list(self.tail_values, &behind.0, &behind.1, &mut rest);
                    output.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
                }
                for h in 0..acc.queries() {
                    acc.merge(h, *log_mass, &output);
                }
            }
        }
    }
}
