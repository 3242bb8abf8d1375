//! One KV head of a sequence: the shared prefix and the sequence's tail as one context, and attention over it.

use std::ops::Range;

use crate::kv::{HeadRows, KvError, KvHead, KvPart, KvRows, LayerKv, Prefix, ReadCounter};
use crate::types::attention_spec::{AttentionSpec, SoftmaxScale};
use crate::types::positions::{Grouped, Rotation};
use crate::types::selection::{AttendedTokens, SelectedTokens, Selection, StaticTokens, Weighting};
use spattn_kernels::pieces::PIECE;
use spattn_kernels::{Accumulator, Joined, Rows, attend_list, attend_range, attend_scored, weighted_list};

/// Keys and values of one KV head: prefix and tail.
pub(crate) struct HeadKv<'a> {
    pub(crate) prefix: KvHead<'a>,
    pub(crate) tail_keys: Rows<'a>,
    pub(crate) tail_values: Rows<'a>,
    pub(crate) prefix_tokens: usize,
    pub(crate) tail_tokens: usize,
    pub(crate) d: usize,
    /// KV head, from 0.
    pub(crate) kv_head: usize,
    /// How the layer attends.
    pub(crate) spec: AttentionSpec,
    /// What was read of the prefix where it is not lent.
    pub(crate) reads: ReadCounter,
}

/// Queries of a group `[group][d]`, times the scale of the logits.
pub(crate) struct Queries<'a> {
    scaled: Vec<f32>,
    far: Option<Far<'a>>,
}

/// The same queries at another position, for the first tokens in context.
struct Far<'a> {
    turned: Vec<f32>,
    /// How many of the first tokens are seen from this position.
    tokens: usize,
    /// The grouped positions of their keys; `None` if their keys keep their positions.
    keys: Option<Grouped<'a>>,
}

impl<'a> Queries<'a> {
    pub(crate) fn new(queries: &[f32], scale: SoftmaxScale) -> Self {
        Self { scaled: scale.scaled(queries), far: None }
    }

    /// Closes the gap between the sink and the recent tokens: the queries see the sink from that much nearer. Only
    /// distances matter, so this equals moving the sink's keys, with fewer rotations.
    pub(crate) fn nearer_to_sink(mut self, exact: StaticTokens, d: usize, rotation: &dyn Rotation) -> Self {
        let mut turned = self.scaled.clone();
        rotation.turn_rows_back(&mut turned, d, exact.recent - exact.sink);
        self.far = Some(Far { turned, tokens: exact.sink, keys: None });
        self
    }

    /// Sees far tokens from `position` at grouped positions.
    pub(crate) fn grouped(mut self, grouped: Grouped<'a>, position: usize, d: usize) -> Self {
        let tokens = grouped.grouping.far(position);
        if tokens > 0 {
            let mut turned = self.scaled.clone();
            grouped.turn_queries(&mut turned, d, position);
            self.far = Some(Far { turned, tokens, keys: Some(grouped) });
        }
        self
    }

    /// The queries of all heads.
    fn all(&self) -> View<'_> {
        let far = self.far.as_ref();
        View { scaled: &self.scaled, turned: far.map_or(&[], |far| &far.turned), far }
    }
}

/// Some heads of [`Queries`].
#[derive(Clone, Copy)]
struct View<'q> {
    scaled: &'q [f32],
    /// Empty if there are no far tokens.
    turned: &'q [f32],
    far: Option<&'q Far<'q>>,
}

impl View<'_> {
    /// One head.
    fn head(self, head: usize, d: usize) -> Self {
        let range = head * d..(head + 1) * d;
        Self { scaled: &self.scaled[range.clone()], turned: self.turned.get(range).unwrap_or(&[]), far: self.far }
    }

    /// Number of far tokens.
    fn far_tokens(self) -> usize {
        self.far.map_or(0, |far| far.tokens)
    }
}

impl<'a> HeadKv<'a> {
    /// # Errors
    /// If the layer's keys and values cannot be read.
    pub(crate) fn new(prefix: &'a Prefix, tail: &'a LayerKv, layer: usize, kv_head: usize) -> Result<Self, KvError> {
        Ok(Self {
            prefix: prefix.head(layer, kv_head)?,
            tail_keys: tail.keys.head(kv_head),
            tail_values: tail.values.head(kv_head),
            prefix_tokens: prefix.tokens(),
            tail_tokens: tail.tokens(),
            d: prefix.shape().d,
            kv_head,
            spec: prefix.spec(layer).clone(),
            reads: ReadCounter::default(),
        })
    }

    /// The same head, cut to the first `total` tokens in context.
    pub(crate) fn up_to(mut self, total: usize) -> Self {
        self.tail_tokens = total - self.prefix_tokens;
        self.tail_keys = self.tail_keys.slice(0..self.tail_tokens, self.d);
        self.tail_values = self.tail_values.slice(0..self.tail_tokens, self.d);
        self
    }

    /// Keys and values of some tokens of the prefix.
    pub(crate) fn read(&self, tokens: Range<usize>) -> Result<HeadRows<'a>, KvError> {
        let rows = self.prefix.slice(tokens)?;
        self.reads.note(&rows);
        Ok(rows)
    }

    /// Attends positions `range` (of prefix and tail together) into `acc`.
    pub(crate) fn attend_positions(
        &self,
        scaled: &[f32],
        range: Range<usize>,
        acc: &mut Accumulator,
    ) -> Result<(), KvError> {
        let p = self.prefix_tokens;
        let in_prefix = range.start.min(p)..range.end.min(p);
        let in_tail = range.start.max(p) - p..range.end.max(p) - p;
        if !in_prefix.is_empty() {
            self.attend_prefix(scaled, in_prefix, acc)?;
        }
        if !in_tail.is_empty() {
            attend_range(
                scaled,
                self.tail_keys.slice(in_tail.clone(), self.d),
                self.tail_values.slice(in_tail.clone(), self.d),
                acc,
            );
        }
        Ok(())
    }

    /// Attends consecutive tokens of the prefix into `acc`. What has to be read is read and attended in the pieces that
    /// [`attend_range`] makes of a long range, so that the sums have the same bits and no buffer holds more than a piece.
    fn attend_prefix(&self, scaled: &[f32], tokens: Range<usize>, acc: &mut Accumulator) -> Result<(), KvError> {
        if self.prefix.in_memory().is_some() || tokens.len() <= PIECE {
            let rows = self.read(tokens)?;
            attend_range(scaled, rows.keys(), rows.values(), acc);
            return Ok(());
        }
        for first in tokens.clone().step_by(PIECE) {
            let rows = self.read(first..(first + PIECE).min(tokens.end))?;
            let mut part = self.spec.accumulator(acc.queries(), self.d);
            attend_range(scaled, rows.keys(), rows.values(), &mut part);
            acc.absorb(&part);
        }
        Ok(())
    }

    /// Rotated keys of prefix and tail, to be read.
    pub(crate) fn keys(&self) -> KvRows<'_> {
        let prefix = KvRows::of_head(self.prefix, KvPart::Keys, self.prefix_tokens, &self.reads);
        prefix.followed_by(self.tail_keys)
    }

    /// The tokens that the layer lets the last token see.
    pub(crate) fn visible(&self) -> Range<usize> {
        self.spec.first_visible(self.total())..self.total()
    }

    /// Tokens in context.
    pub(crate) fn total(&self) -> usize {
        self.prefix_tokens + self.tail_tokens
    }

    /// Attends the static tokens and the selection into `out: [group][d]`.
    pub(crate) fn attend(
        &self,
        queries: &Queries<'_>,
        picked: &AttendedTokens,
        out: &mut [f32],
    ) -> Result<(), KvError> {
        let AttendedTokens { exact, selection } = picked;
        let queries = queries.all();
        let mut acc = self.spec.accumulator(queries.scaled.len() / self.d, self.d);
        self.attend_stretch(queries, 0..exact.sink, &mut acc)?;
        self.attend_stretch(queries, exact.recent..self.total(), &mut acc)?;
        match selection {
            None => {}
            Some(Selection::Shared(picks)) => self.attend_picks(queries, picks, &mut acc)?,
            Some(Selection::PerHead(heads)) => {
                assert_eq!(heads.len(), acc.queries(), "one set of picks for each query head");
                for (h, picks) in heads.iter().enumerate() {
                    let mut own = self.spec.accumulator(1, self.d);
                    self.attend_picks(queries.head(h, self.d), picks, &mut own)?;
                    acc.merge_query(h, &own);
                }
            }
        }
        self.add_sinks(&mut acc);
        acc.finish(out);
        Ok(())
    }

    /// Attends what was selected, for one query head of the group, into a partial softmax of `2 + d` numbers. Static tokens and sinks are
    /// left to the merging side.
    pub(crate) fn attend_picked(
        &self,
        queries: &Queries<'_>,
        head: usize,
        selection: Option<&Selection>,
        partial: &mut [f32],
    ) -> Result<(), KvError> {
        let mut acc = self.spec.accumulator(1, self.d);
        let picks = match selection {
            None => None,
            Some(Selection::Shared(picks)) => Some(picks),
            Some(Selection::PerHead(heads)) => Some(&heads[head]),
        };
        if let Some(picks) = picks {
            self.attend_picks(queries.all().head(head, self.d), picks, &mut acc)?;
        }
        acc.write_partial(0, partial);
        Ok(())
    }

    /// Adds the layer's sinks to what the group attended.
    pub(crate) fn add_sinks(&self, acc: &mut Accumulator) {
        let sinks = self.spec.sinks_of(self.kv_head, acc.queries());
        (0..).zip(sinks).for_each(|(h, sink)| acc.add_sink(h, *sink));
    }

    /// Attends positions `range` (of prefix and tail together) as the queries see them.
    fn attend_stretch(&self, queries: View<'_>, range: Range<usize>, acc: &mut Accumulator) -> Result<(), KvError> {
        let near = queries.far_tokens().clamp(range.start, range.end);
        let far: Vec<u32> = (range.start as u32..near as u32).collect();
        self.attend_tokens(queries, Listed::of(&far), acc)?;
        self.attend_positions(queries.scaled, near..range.end, acc)
    }

    /// Attends tokens of prefix and tail as the queries see them. Scores are of use only where all tokens keep their positions.
    fn attend_tokens(&self, queries: View<'_>, listed: Listed<'_>, acc: &mut Accumulator) -> Result<(), KvError> {
        let Some(Far { tokens: boundary, keys, .. }) = queries.far else {
            return self.attend_some(queries.scaled, listed, acc);
        };
        let [far, near] = parts(listed.tokens, listed.bias, *boundary as u32);
        match keys {
            None => self.attend_some(queries.turned, Listed::biased(&far), acc)?,
            Some(grouped) => self.attend_grouped(queries.turned, grouped, &far.0, &far.1, acc)?,
        }
        self.attend_some(queries.scaled, Listed::biased(&near), acc)
    }

    /// Attends far tokens at grouped positions.
    fn attend_grouped(
        &self,
        turned: &[f32],
        grouped: &Grouped<'_>,
        tokens: &[u32],
        bias: &[f32],
        acc: &mut Accumulator,
    ) -> Result<(), KvError> {
        let [mut keys, values] = self.gathered(tokens)?;
        grouped.turn_keys(&mut keys, self.d, tokens);
        let all: Vec<u32> = (0..tokens.len() as u32).collect();
        attend_list(turned, Rows::F32(&keys), Rows::F32(&values), &all, bias, acc);
        Ok(())
    }

    /// Keys and values `[token][d]` of tokens of prefix and tail, in their order, as f32.
    fn gathered(&self, tokens: &[u32]) -> Result<[Vec<f32>; 2], KvError> {
        if let Some([keys, values]) = self.prefix.in_memory() {
            let joined = [(keys, self.tail_keys), (values, self.tail_values)];
            return Ok(joined.map(|(front, back)| Joined::new(front, back, self.d).gather(tokens)));
        }
        let [before, behind] = self.by_store(tokens, &[]);
        let (read, places) = self.prefix.gather(&before.0)?;
        self.reads.note(&read);
        let in_order = |front: Rows<'_>, back: Rows<'_>| {
            let mut gathered = vec![0.0; tokens.len() * self.d];
            let (mut front_places, mut back_places) = (places.iter(), behind.0.iter());
            for (token, out) in tokens.iter().zip(gathered.chunks_exact_mut(self.d)) {
                let (rows, place) = match (*token as usize) < self.prefix_tokens {
                    true => (front, front_places.next()),
                    false => (back, back_places.next()),
                };
                rows.read(*place.expect("one row per token") as usize, out);
            }
            gathered
        };
        Ok([in_order(read.keys(), self.tail_keys), in_order(read.values(), self.tail_values)])
    }

    /// Attends tokens of prefix and tail at their own positions.
    fn attend_some(&self, scaled: &[f32], listed: Listed<'_>, acc: &mut Accumulator) -> Result<(), KvError> {
        let first_behind = self.prefix_tokens as u32;
        if listed.tokens.iter().all(|t| *t < first_behind) {
            return self.attend_listed(scaled, listed, acc);
        }
        let [before, behind] = self.by_store(listed.tokens, listed.bias);
        let [(_, scores), (_, behind_scores)] = self.by_store(listed.tokens, listed.scores);
        self.attend_listed(scaled, Listed { scores: &scores, ..Listed::biased(&before) }, acc)?;
        let behind = Listed { scores: &behind_scores, ..Listed::biased(&behind) };
        behind.attend(scaled, [self.tail_keys, self.tail_values], acc);
        Ok(())
    }

    /// Attends tokens of the prefix.
    fn attend_listed(&self, scaled: &[f32], listed: Listed<'_>, acc: &mut Accumulator) -> Result<(), KvError> {
        let (rows, tokens) = self.prefix.gather(listed.tokens)?;
        self.reads.note(&rows);
        Listed { tokens: &tokens, ..listed }.attend(scaled, [rows.keys(), rows.values()], acc);
        Ok(())
    }

    /// Splits tokens into those of the prefix and those behind it, which are numbered from its end; as [`parts`].
    fn by_store(&self, tokens: &[u32], with: &[f32]) -> [Part; 2] {
        let first_behind = self.prefix_tokens as u32;
        let [before, mut behind] = parts(tokens, with, first_behind);
        behind.0.iter_mut().for_each(|token| *token -= first_behind);
        [before, behind]
    }

    fn attend_picks(&self, queries: View<'_>, picks: &SelectedTokens, acc: &mut Accumulator) -> Result<(), KvError> {
        let listed = Listed { tokens: &picks.tokens, bias: &[], scores: &picks.scores };
        match &picks.weighting {
            Weighting::Softmax => self.attend_tokens(queries, listed, acc)?,
            Weighting::LogBias(bias) => self.attend_tokens(queries, Listed { bias, ..listed }, acc)?,
            Weighting::Remainder { shares, value } => {
                assert_eq!(shares.len(), acc.queries(), "one share for each query head");
                let mut picked = self.spec.accumulator(acc.queries(), self.d);
                self.attend_tokens(queries, listed, &mut picked)?;
                let mut outputs = vec![0.0; queries.scaled.len()];
                picked.finish(&mut outputs);
                for (h, (share, output)) in shares.iter().zip(outputs.chunks_exact(self.d)).enumerate() {
                    let log_mass = picked.log_sum_exp(h);
                    acc.merge(h, log_mass, output);
                    acc.merge(h, log_mass + (share / (1.0 - share)).ln(), value);
                }
            }
            Weighting::Direct { weights, log_mass } => {
                let mut output = vec![0.0; self.d];
                let [before, behind] = self.by_store(&picks.tokens, weights);
                let (rows, tokens) = self.prefix.gather(&before.0)?;
                self.reads.note(&rows);
                weighted_list(rows.values(), &tokens, &before.1, &mut output);
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
        Ok(())
    }
}

/// Listed tokens, with numbers for each of them or none.
#[derive(Clone, Copy)]
struct Listed<'t> {
    tokens: &'t [u32],
    /// What is subtracted from the logits.
    bias: &'t [f32],
    /// The products of the only query with the keys.
    scores: &'t [f32],
}

impl<'t> Listed<'t> {
    fn of(tokens: &'t [u32]) -> Self {
        Self { tokens, bias: &[], scores: &[] }
    }

    fn biased((tokens, bias): &'t Part) -> Self {
        Self { bias, ..Self::of(tokens) }
    }

    /// Attends the rows of the tokens. Keys are read only if scores are not known.
    fn attend(self, scaled: &[f32], [keys, values]: [Rows<'_>; 2], acc: &mut Accumulator) {
        match self.scores.is_empty() {
            true => attend_list(scaled, keys, values, self.tokens, self.bias, acc),
            false => attend_scored(self.scores, values, self.tokens, self.bias, acc),
        }
    }
}

/// Tokens and a number for each; the numbers are empty if there are none.
type Part = (Vec<u32>, Vec<f32>);

/// Splits tokens at `boundary`, each with its number in `with`, if there are any.
fn parts(tokens: &[u32], with: &[f32], boundary: u32) -> [Part; 2] {
    let mut parts: [Part; 2] = Default::default();
    for (i, token) in tokens.iter().enumerate() {
        let part = &mut parts[usize::from(*token >= boundary)];
        part.0.push(*token);
        part.1.extend(with.get(i));
    }
    parts
}

#[cfg(test)]
mod tests;
