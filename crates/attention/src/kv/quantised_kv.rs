//! A prefix stored as codes in host memory, as in a system with a quantised KV cache.
//!
//! It is made from a finished prefix: a token's codes depend only on the prefix's numbers, not on how the prompt was read. Readers get the
//! decoded numbers, in the model's storage type. Keys are packed by channel in groups of tokens, values by token in groups of channels
//! (KIVI, §3.2). The last tokens, which fill no group of keys, stay unquantised, like KIVI's residual (§3.3).

use std::ops::Range;

use rayon::prelude::*;

use crate::kv::Prefix;
use crate::kv::head::KvHead;
use crate::kv::layer::LayerKv;
use crate::kv::packed_rows::{Axis, PackedRows};
use crate::kv::prefix_dtype::{GROUP, PrefixDtype};
use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::KvShape;
use crate::kv::source::{Fetched, KvPlace, KvSource, VisitRows};
use crate::kv::tier::{KvError, Tier};

/// Number of tokens packed or read at a time: whole groups.
const AT_ONCE: usize = 8 * GROUP;

/// The keys and values of a prefix, as codes.
#[derive(Debug)]
pub struct QuantisedKv {
    dtype: PrefixDtype,
    shape: KvShape,
    tokens: usize,
    /// The KV heads `[layer][kv_head]`.
    layers: Vec<Vec<QuantisedHead>>,
}

/// A KV head: its first tokens as codes, the others as they were computed.
#[derive(Debug)]
struct QuantisedHead {
    keys: PackedRows,
    values: PackedRows,
    rest: LayerKv,
}

impl QuantisedKv {
    /// Quantises a finished prefix.
    ///
    /// # Errors
    /// If the prefix cannot be read.
    ///
    /// # Panics
    /// If `dtype` is the model's own: there is nothing to quantise.
    pub fn new(prefix: &Prefix, dtype: PrefixDtype) -> Result<Self, KvError> {
        assert!(!dtype.is_exact(), "the model's own type needs no copy");
        let shape = prefix.shape();
        let of_layer = |layer: usize| {
            let heads = (0..shape.kv_heads).into_par_iter();
            heads.map(|kv_head| QuantisedHead::new(prefix, KvPlace { layer, kv_head }, dtype)).collect()
        };
        let layers = (0..prefix.layers()).into_par_iter().map(of_layer).collect::<Result<_, KvError>>()?;
        Ok(Self { dtype, shape, tokens: prefix.tokens(), layers })
    }

    /// Bytes of codes, scales and the tokens that fill no group.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(QuantisedHead::bytes).sum()
    }

    fn coded(&self) -> usize {
        self.dtype.coded_tokens(self.tokens)
    }
}

impl QuantisedHead {
    fn new(prefix: &Prefix, at: KvPlace, dtype: PrefixDtype) -> Result<Self, KvError> {
        let (head, tokens, d) = (prefix.head(at.layer, at.kv_head)?, prefix.tokens(), prefix.shape().d);
        let coded = dtype.coded_tokens(tokens);
        let mut largest = [0.0f32; 2];
        if dtype == PrefixDtype::F8 {
            each_piece(head, coded, |rows| {
                for (largest, rows) in largest.iter_mut().zip(rows) {
                    *largest = largest.max(PackedRows::largest(dtype, rows));
                }
            })?;
        }
        let [of_keys, of_values] = largest;
        let mut keys = PackedRows::empty(dtype, Axis::Channel, (coded, d), of_keys);
        let mut values = PackedRows::empty(dtype, Axis::Token, (coded, d), of_values);
        each_piece(head, coded, |[of_keys, of_values]| {
            keys.push(of_keys);
            values.push(of_values);
        })?;
        let (behind, mut rest) = (head.slice(coded..tokens)?, LayerKv::new(head.dtype(), 1, d, tokens - coded));
        rest.keys.extend(behind.keys());
        rest.values.extend(behind.values());
        Ok(Self { keys, values, rest })
    }

    fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes() + self.rest.bytes()
    }
}

/// Calls `visit` with the keys and values `[token][d]` of the first `tokens` tokens, in pieces of whole groups.
fn each_piece(head: KvHead<'_>, tokens: usize, mut visit: impl FnMut([&[f32]; 2])) -> Result<(), KvError> {
    for first in (0..tokens).step_by(AT_ONCE) {
        let rows = head.slice(first..tokens.min(first + AT_ONCE))?;
        visit([&rows.keys().to_f32(), &rows.values().to_f32()]);
    }
    Ok(())
}

/// Buffers for decoded numbers.
struct Decoded {
    numbers: Vec<f32>,
    kv: LayerKv,
}

impl Decoded {
    fn new(shape: KvShape, tokens: usize) -> Self {
        Self { numbers: vec![0.0; tokens * shape.d], kv: LayerKv::new(shape.dtype, 1, shape.d, tokens) }
    }

    /// Decodes the keys and values of consecutive coded tokens, as many as the buffers hold.
    fn of(&mut self, head: &QuantisedHead, tokens: Range<usize>) -> &LayerKv {
        let d = self.kv.keys.d();
        self.kv.truncate(0, 0);
        let numbers = &mut self.numbers[..tokens.len() * d];
        for (rows, store) in [(&head.keys, &mut self.kv.keys), (&head.values, &mut self.kv.values)] {
            rows.read(tokens.clone(), numbers);
            numbers.chunks_exact(d).for_each(|row| store.append(row));
        }
        &self.kv
    }
}

impl KvSource for QuantisedKv {
    fn shape(&self) -> KvShape {
        self.shape
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn tier(&self, _: usize) -> Tier {
        Tier::Host
    }

    fn row_bytes(&self) -> RowBytes {
        self.dtype.row_bytes(self.shape, self.tokens)
    }

    /// Tokens are decoded where they are stored, so nothing is fetched from another tier.
    fn scan(&self, at: KvPlace, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        assert!(tokens.end <= self.tokens, "tokens {tokens:?} of {}", self.tokens);
        let (head, coded) = (&self.layers[at.layer][at.kv_head], self.coded());
        let packed = tokens.start..tokens.end.min(coded);
        if !packed.is_empty() {
            let mut decoded = Decoded::new(self.shape, packed.len().min(AT_ONCE));
            for first in packed.clone().step_by(AT_ONCE) {
                let kv = decoded.of(head, first..packed.end.min(first + AT_ONCE));
                visit(kv.keys.head(0), kv.values.head(0));
            }
        }
        if tokens.end > coded {
            head.rest.show(0, tokens.start.max(coded) - coded..tokens.end - coded, visit);
        }
        Ok(Fetched::default())
    }

    fn gather(&self, at: KvPlace, tokens: &[u32], out: &mut LayerKv) -> Result<Fetched, KvError> {
        let (head, coded, d) = (&self.layers[at.layer][at.kv_head], self.coded(), self.shape.d);
        let mut decoded = Decoded::new(self.shape, 1);
        for token in tokens {
            let token = *token as usize;
            assert!(token < self.tokens, "token {token} of {}", self.tokens);
            let (kv, own) = match token.checked_sub(coded) {
                None => (decoded.of(head, token..token + 1), 0),
                Some(place) => (&head.rest, place),
            };
            out.keys.extend(kv.keys.head(0).slice(own..own + 1, d));
            out.values.extend(kv.values.head(0).slice(own..own + 1, d));
        }
        Ok(Fetched::default())
    }

    fn into_layers(self: Box<Self>) -> Result<Vec<LayerKv>, KvError> {
        let KvShape { kv_heads, d, dtype } = self.shape;
        let of_layer = |layer: usize| {
            let (mut keys, mut values) = (vec![0.0; self.tokens * kv_heads * d], vec![0.0; self.tokens * kv_heads * d]);
            for kv_head in 0..kv_heads {
                let mut first = 0;
                self.scan(KvPlace { layer, kv_head }, 0..self.tokens, &mut |of_keys, of_values| {
                    for token in 0..of_keys.elements() / d {
                        let at = ((first + token) * kv_heads + kv_head) * d;
                        of_keys.read(token, &mut keys[at..at + d]);
                        of_values.read(token, &mut values[at..at + d]);
                    }
                    first += of_keys.elements() / d;
                })?;
            }
            let mut kv = LayerKv::new(dtype, kv_heads, d, self.tokens);
            kv.append_rows(&keys, &values);
            Ok(kv)
        };
        (0..self.layers.len()).map(of_layer).collect()
    }
}

#[cfg(test)]
#[path = "quantised_kv_tests.rs"]
mod tests;
