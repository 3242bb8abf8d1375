//! Causal attention of many query rows at once, blocked: no `n × n` matrix in memory.
//!
//! Keys are packed once into transposed panels and values into panels, so that both products run as
//! register-tiled `C += A·B`; the softmax between them is the online one. Work is split over
//! (KV head, block of queries); each output row is computed by one thread in a fixed order.

use rayon::prelude::*;

use super::attend::softmax_block;
use super::rows::{Elem, Rows, with_rows};
use super::simd::{Simd, dispatch};

/// Query rows of one work item; a multiple of every register tile's height.
const QUERY_ROWS: usize = 48;
/// Keys between two rescalings of the running sums.
const KEY_BLOCK: usize = 128;
/// Widest panel of columns.
const PANEL: usize = 64;

/// Keys and values of one KV head, packed for [`causal_attention`].
pub struct PackedHead {
    /// `[block][d][KEY_BLOCK]`, zero beyond the last token.
    keys: Vec<f32>,
    /// `[panel][token][panel width]`, tokens rounded up to whole blocks.
    values: Vec<f32>,
    tokens: usize,
    d: usize,
}

impl PackedHead {
    /// Packs `[tokens][d]` rows.
    pub fn new(keys: Rows, values: Rows, d: usize) -> Self {
        let tokens = keys.elements() / d;
        assert_eq!(keys.elements(), values.elements(), "as many keys as values");
        let blocks = tokens.div_ceil(KEY_BLOCK);
        let mut packed =
            Self { keys: vec![0.0; blocks * KEY_BLOCK * d], values: vec![0.0; blocks * KEY_BLOCK * d], tokens, d };
        with_rows!(keys, data => packed.pack_keys(data));
        with_rows!(values, data => packed.pack_values(data));
        packed
    }

    fn pack_keys<T: Elem>(&mut self, rows: &[T]) {
        let d = self.d;
        for (block, rows) in self.keys.chunks_mut(KEY_BLOCK * d).zip(rows.chunks(KEY_BLOCK * d)) {
            for (i, row) in rows.chunks(d).enumerate() {
                for (c, x) in row.iter().enumerate() {
                    block[c * KEY_BLOCK + i] = x.to_f32();
                }
            }
        }
    }

    fn pack_values<T: Elem>(&mut self, rows: &[T]) {
        let (d, padded) = (self.d, self.values.len() / self.d);
        for first in (0..d).step_by(PANEL) {
            let width = (d - first).min(PANEL);
            let panel = &mut self.values[padded * first..][..padded * width];
            for (out, row) in panel.chunks_mut(width).zip(rows.chunks(d)) {
                for (o, x) in out.iter_mut().zip(&row[first..]) {
                    *o = x.to_f32();
                }
            }
        }
    }
}

/// Causal attention for the last `rows` tokens of the packed sequence.
///
/// `queries` and `out` are `[rows][heads][d]`; query heads of a group are adjacent, so head `h` reads
/// KV head `h / (heads / kv_heads)`. Row `i` attends tokens `0..=tokens - rows + i`. `scale` multiplies
/// the logits.
pub fn causal_attention(queries: &[f32], kv: &[PackedHead], heads: usize, scale: f32, out: &mut [f32]) {
    let d = kv[0].d;
    let group = heads / kv.len();
    let rows = queries.len() / (heads * d);
    assert_eq!(queries.len(), rows * heads * d, "queries are not whole rows");
    assert_eq!(out.len(), queries.len(), "output shape");
    assert!(kv.iter().all(|h| h.tokens >= rows && h.d == d), "fewer keys than queries");
    // Late blocks see more keys: handing them out first keeps threads evenly busy.
    let mut work: Vec<(usize, &mut [f32])> = out.chunks_mut(QUERY_ROWS * heads * d).enumerate().collect();
    work.reverse();
    work.into_par_iter().with_max_len(1).for_each(|(block, out)| {
        let first = block * QUERY_ROWS;
        for head in 0..heads {
            let tile = Tile { queries, heads, head, first, rows: out.len() / (heads * d), scale };
            attend_tile(tile, &kv[head / group], rows, out);
        }
    });
}

/// One block of query rows of one head.
#[derive(Clone, Copy)]
struct Tile<'a> {
    queries: &'a [f32],
    heads: usize,
    head: usize,
    first: usize,
    rows: usize,
    scale: f32,
}

dispatch! {
    fn attend_tile[](tile: Tile, kv: &PackedHead, total_rows: usize, out: &mut [f32]) = attend_tile_kernel
}

#[inline(always)]
unsafe fn attend_tile_kernel<S: Simd>(tile: Tile, kv: &PackedHead, total_rows: usize, out: &mut [f32]) {
    let d = kv.d;
    let padded = kv.values.len() / d;
    let mut q = vec![0.0f32; QUERY_ROWS * d];
    for i in 0..tile.rows {
        let row = &tile.queries[((tile.first + i) * tile.heads + tile.head) * d..][..d];
        for (q, x) in q[i * d..].iter_mut().zip(row) {
            *q = x * tile.scale;
        }
    }
    let mut max = [f32::NEG_INFINITY; QUERY_ROWS];
    let mut sum = [0.0f32; QUERY_ROWS];
    let mut acc = vec![0.0f32; QUERY_ROWS * d];
    let mut logits = vec![0.0f32; QUERY_ROWS * KEY_BLOCK];
    // Tokens visible to the first row; each later row sees one more.
    let visible = kv.tokens - total_rows + tile.first + 1;
    let blocks = (visible + tile.rows - 1).div_ceil(KEY_BLOCK);
    for block in 0..blocks {
        let start = block * KEY_BLOCK;
        let keys = &kv.keys[start * d..][..KEY_BLOCK * d];
        // SAFETY: the CPU supports `S` (caller). `q`, `acc` hold QUERY_ROWS rows of `d`, `logits`
        // QUERY_ROWS rows of KEY_BLOCK, `keys` `d` rows of KEY_BLOCK; values are checked below.
        unsafe { product::<S>(&q, d, d, keys, KEY_BLOCK, KEY_BLOCK, &mut logits, KEY_BLOCK, false, tile.rows) };
        for i in 0..tile.rows {
            let row = &mut logits[i * KEY_BLOCK..][..KEY_BLOCK];
            let seen = (visible + i).saturating_sub(start);
            if seen == 0 {
                // Nothing of this block is visible to this row: no weight, and no change of its sums.
                row.fill(0.0);
                continue;
            }
            if seen < KEY_BLOCK {
                row[seen..].fill(f32::NEG_INFINITY);
            }
            // SAFETY: KEY_BLOCK is a multiple of every lane count; the CPU supports `S`.
            let rescale = unsafe { softmax_block::<S>(row, &mut max[i], &mut sum[i]) };
            if rescale != 1.0 {
                for o in &mut acc[i * d..][..d] {
                    *o *= rescale;
                }
            }
        }
        for first in (0..d).step_by(PANEL) {
            let width = (d - first).min(PANEL);
            let panel = &kv.values[padded * first + start * width..][..KEY_BLOCK * width];
            // SAFETY: as above; `acc[first..]` has rows `d` apart with `width` columns within them.
            unsafe {
                product::<S>(&logits, KEY_BLOCK, KEY_BLOCK, panel, width, width, &mut acc[first..], d, true, tile.rows)
            };
        }
    }
    for i in 0..tile.rows {
        let out = &mut out[(i * tile.heads + tile.head) * d..][..d];
        for (o, a) in out.iter_mut().zip(&acc[i * d..]) {
            *o = a / sum[i];
        }
    }
}

/// `C (+)= A · B` for the first `rows` rows: `a: [rows][depth]` with stride `lda`, `b: [depth][width]`
/// with stride `ldb`, `c` with stride `ldc`.
///
/// # Safety
/// The CPU supports `S`; shapes are checked.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn product<S: Simd>(
    a: &[f32],
    lda: usize,
    depth: usize,
    b: &[f32],
    ldb: usize,
    width: usize,
    c: &mut [f32],
    ldc: usize,
    accumulate: bool,
    rows: usize,
) {
    assert!(rows > 0 && depth > 0);
    assert!(a.len() >= (rows - 1) * lda + depth && b.len() >= (depth - 1) * ldb + width);
    assert!(c.len() >= (rows - 1) * ldc + width);
    let p = Product { a: a.as_ptr(), lda, depth, b: b.as_ptr(), ldb, c: c.as_mut_ptr(), ldc, accumulate };
    let mut j = 0;
    while j < width {
        let vectors = (width - j) / S::LANES;
        // SAFETY: tiles stay within `rows` and `width`, whose extents were asserted above.
        j += unsafe {
            if vectors >= S::TILE_VECTORS && S::TILE_VECTORS == 4 {
                columns::<S, 4>(p, rows, j)
            } else if vectors >= 2 && S::TILE_VECTORS >= 2 {
                columns::<S, 2>(p, rows, j)
            } else if vectors >= 1 {
                columns::<S, 1>(p, rows, j)
            } else {
                one_column(p, rows, j)
            }
        };
    }
}

#[derive(Clone, Copy)]
struct Product {
    a: *const f32,
    lda: usize,
    depth: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    accumulate: bool,
}

/// # Safety
/// `rows` rows and columns `j..j + C * LANES` exist in the product; the CPU supports `S`.
#[inline(always)]
unsafe fn columns<S: Simd, const C: usize>(p: Product, rows: usize, j: usize) -> usize {
    let mut i = 0;
    // SAFETY: `i` advances by the tile's height only while that many rows are left.
    unsafe {
        if S::TILE_ROWS == 6 {
            while i + 6 <= rows {
                tile::<S, 6, C>(p, i, j);
                i += 6;
            }
        }
        while i + 4 <= rows {
            tile::<S, 4, C>(p, i, j);
            i += 4;
        }
        while i < rows {
            tile::<S, 1, C>(p, i, j);
            i += 1;
        }
    }
    C * S::LANES
}

/// # Safety
/// Rows `i..i + R` and columns `j..j + C * LANES` exist in the product; the CPU supports `S`.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(p: Product, i: usize, j: usize) {
    // SAFETY: all accesses are inside the tile and the depth (caller).
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        for k in 0..p.depth {
            let row = p.b.add(k * p.ldb + j);
            let mut b = [S::splat(0.0); C];
            for (v, b) in b.iter_mut().enumerate() {
                *b = S::load(row.add(v * S::LANES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = S::splat(*p.a.add((i + r) * p.lda + k));
                for v in 0..C {
                    acc[v] = S::fma(a, b[v], acc[v]);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (v, sum) in acc.iter().enumerate() {
                let out = p.c.add((i + r) * p.ldc + j + v * S::LANES);
                let sum = if p.accumulate { S::add(S::load(out), *sum) } else { *sum };
                S::store(out, sum);
            }
        }
    }
}

/// # Safety
/// `rows` rows and column `j` exist in the product.
#[inline(always)]
unsafe fn one_column(p: Product, rows: usize, j: usize) -> usize {
    for i in 0..rows {
        // SAFETY: inside the product (caller).
        unsafe {
            let mut sum = 0.0;
            for k in 0..p.depth {
                sum += *p.a.add(i * p.lda + k) * *p.b.add(k * p.ldb + j);
            }
            let out = p.c.add(i * p.ldc + j);
            *out = if p.accumulate { *out + sum } else { sum };
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::{Accumulator, attend_range};
    use half::f16;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    /// Row by row with the decode kernel, which has a reference of its own.
    fn row_by_row(q: &[f32], kv: &[(Vec<f16>, Vec<f16>)], heads: usize, d: usize, rows: usize, scale: f32) -> Vec<f32> {
        let tokens = kv[0].0.len() / d;
        let group = heads / kv.len();
        let mut out = vec![0.0; q.len()];
        for i in 0..rows {
            for h in 0..heads {
                let at = (i * heads + h) * d;
                let query: Vec<f32> = q[at..at + d].iter().map(|x| x * scale).collect();
                let (k, v) = &kv[h / group];
                let seen = 0..tokens - rows + i + 1;
                let mut acc = Accumulator::new(1, d);
                attend_range(&query, Rows::F16(k).slice(seen.clone(), d), Rows::F16(v).slice(seen, d), &mut acc);
                acc.finish(&mut out[at..at + d]);
            }
        }
        out
    }

    #[test]
    fn equals_row_by_row_attention() {
        for (tokens, rows, heads, kv_heads, d) in
            [(1, 1, 2, 1, 64), (130, 130, 4, 2, 64), (500, 97, 2, 2, 32), (300, 50, 8, 1, 128), (150, 150, 1, 1, 20)]
        {
            let q = noise(rows * heads * d, 1);
            let half = |seed| noise(tokens * d, seed).into_iter().map(f16::from_f32).collect::<Vec<_>>();
            let kv: Vec<_> = (0..kv_heads as u64).map(|h| (half(2 + h), half(20 + h))).collect();
            let packed: Vec<_> = kv.iter().map(|(k, v)| PackedHead::new(Rows::F16(k), Rows::F16(v), d)).collect();
            let scale = 1.0 / (d as f32).sqrt();
            let mut out = vec![f32::NAN; q.len()];
            causal_attention(&q, &packed, heads, scale, &mut out);
            for (a, b) in out.iter().zip(row_by_row(&q, &kv, heads, d, rows, scale)) {
                assert!((a - b).abs() < 2e-5, "tokens {tokens} d {d}: {a} against {b}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (tokens, heads, d) = (333, 4, 64);
        let q = noise(tokens * heads * d, 3);
        let (k, v) = (noise(tokens * d, 4), noise(tokens * d, 5));
        let packed = [PackedHead::new(Rows::F32(&k), Rows::F32(&v), d)];
        let run = |threads| {
            let mut out = vec![0.0; q.len()];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| causal_attention(&q, &packed, heads, 0.125, &mut out));
            out
        };
        assert_eq!(run(1), run(3));
    }
}
