//! Single kernels at the shape of a model's layer: the building blocks of methods and engines.
//!
//! Kernels for one KV head run for all KV heads of a layer, spread over threads as in the engine.

use std::time::Instant;

use anyhow::Result;
use half::bf16;
use rayon::prelude::*;

use super::row::BenchRow;
use super::turns::{Runs, Turn};
use spattn_attention::kv::LayerKv;
use spattn_attention::mix_seed;
use spattn_kernels::hamming::{TieBreakOffsets, hamming_scores};
use spattn_kernels::linear::linear_rows;
use spattn_kernels::matmul::matmul;
use spattn_kernels::tiles::{self, LeftTiles, RightTiles};
use spattn_kernels::topk::top_k;
use spattn_kernels::{Accumulator, attend_list, attend_range};
use spattn_model::dimensions::Dimensions;

/// A kernel with its operands.
pub struct Kernel<'k> {
    /// Its name.
    pub name: &'static str,
    /// Its dimensions, as `key=value,...`.
    pub params: String,
    bytes: u64,
    flops: u64,
    density: f64,
    run: Box<dyn FnMut() + Send + 'k>,
}

impl Runs for Kernel<'_> {
    fn turn(&mut self, _: usize) -> Result<Turn> {
        let start = Instant::now();
        (self.run)();
        Ok(Turn::of(start.elapsed()))
    }

    fn count(&self, row: &mut BenchRow) {
        (row.bytes, row.limit_bytes, row.flops, row.density) = (self.bytes, self.bytes, self.flops, self.density);
    }
}

/// Gathering kernels read one in this many tokens.
const SPARSE: usize = 16;
/// Bits of a signature.
const BITS: usize = 128;
/// The rows of a matrix product with weights during prefill.
const ROWS: usize = 512;

/// All kernels on keys and values of one layer; `queries` are `[head][d]`.
pub fn all<'k>(dimensions: &'k Dimensions, kv: &'k LayerKv, queries: &'k [f32]) -> Vec<Kernel<'k>> {
    let mut kernels = attending(kv, queries);
    kernels.extend(selecting(kv, queries));
    kernels.extend(multiplying(dimensions));
    kernels
}

/// Generates numbers cheaply.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).into_par_iter().map(|i| (i % 61) as f32 / 61.0 - 0.5).collect()
}

fn narrow(count: usize) -> Vec<bf16> {
    numbers(count).into_iter().map(bf16::from_f32).collect()
}

/// Kernels that attend all tokens of every KV head, or gathered tokens.
fn attending<'k>(kv: &'k LayerKv, queries: &'k [f32]) -> Vec<Kernel<'k>> {
    let (d, kv_heads, tokens) = (kv.keys.d(), kv.keys.kv_heads(), kv.tokens());
    let group = queries.len() / d / kv_heads;
    let bytes = (kv.keys.stored_bytes() + kv.values.stored_bytes()) as u64;
    let flops = (4 * queries.len() * tokens) as u64;
    let over = move |picks: Option<&[u32]>, out: &mut [f32]| {
        out.par_chunks_exact_mut(group * d).zip(queries.par_chunks_exact(group * d)).enumerate().for_each(
            |(head, (out, queries))| {
                let (keys, values) = (kv.keys.head(head), kv.values.head(head));
                let mut acc = Accumulator::new(group, d);
                match picks {
                    None => attend_range(queries, keys, values, &mut acc),
                    Some(picks) => attend_list(queries, keys, values, picks, &[], &mut acc),
                }
                acc.finish(out);
            },
        );
    };
    // The gathered tokens are neither neighbours nor evenly spaced.
    let picked: Vec<u32> =
        (0..tokens as u64).filter(|t| mix_seed(1, *t).is_multiple_of(SPARSE as u64)).map(|t| t as u32).collect();
    let share = picked.len() as f64 / tokens.max(1) as f64;
    let (mut out, mut gathered) = (vec![0.0; queries.len()], vec![0.0; queries.len()]);
    let of_share = |all: u64| (share * all as f64) as u64;
    let params = format!("group={group},d={d}");
    vec![
        Kernel {
            name: "attend_range",
            params: params.clone(),
            bytes,
            flops,
            density: 1.0,
            run: Box::new(move || over(None, &mut out)),
        },
        Kernel {
            name: "attend_list",
            params,
            bytes: of_share(bytes),
            flops: of_share(flops),
            density: share,
            run: Box::new(move || over(Some(&picked), &mut gathered)),
        },
    ]
}

/// Kernels that score all tokens of every KV head, or select by these scores.
fn selecting<'k>(kv: &'k LayerKv, queries: &'k [f32]) -> Vec<Kernel<'k>> {
    let (d, kv_heads, tokens) = (kv.keys.d(), kv.keys.kv_heads(), kv.tokens());
    let group = queries.len() / d / kv_heads;
    let words = BITS / u32::BITS as usize;
    let signatures: Vec<u32> = (0..(kv_heads * tokens * words) as u64).map(|i| mix_seed(2, i) as u32).collect();
    let asked: Vec<u32> = (0..(kv_heads * group * words) as u64).map(|i| mix_seed(3, i) as u32).collect();
    let mut distances = vec![0.0; kv_heads * group * tokens];
    let scores: Vec<f32> = (0..(kv_heads * tokens) as u64).map(|i| mix_seed(4, i) as u32 as f32).collect();
    let k = tokens.div_ceil(SPARSE);
    vec![
        Kernel {
            name: "hamming_scores",
            params: format!("bits={BITS},group={group}"),
            bytes: 4 * (kv_heads * tokens * (words + group)) as u64,
            flops: 0,
            density: 1.0,
            run: Box::new(move || {
                let heads =
                    distances.par_chunks_exact_mut(group * tokens).zip(signatures.par_chunks_exact(tokens * words));
                heads.zip(asked.par_chunks_exact(group * words)).for_each(|((out, planes), asked)| {
                    hamming_scores(asked, planes, words, TieBreakOffsets::default(), out);
                });
            }),
        },
        Kernel {
            name: "top_k",
            params: format!("k={k}"),
            bytes: 4 * (kv_heads * (tokens + k)) as u64,
            flops: 0,
            density: 1.0,
            run: Box::new(move || {
                scores.par_chunks_exact(tokens).for_each(|scores| drop(std::hint::black_box(top_k(scores, k))));
            }),
        },
    ]
}

/// Kernels that multiply by a weight matrix of the model: one row, as in a decode step, and many, as in prefill.
fn multiplying<'k>(dimensions: &Dimensions) -> Vec<Kernel<'k>> {
    let c = dimensions.config();
    let (inputs, outputs) = (c.hidden_size, c.intermediate_size);
    let product = |rows: usize| {
        let (weights, x) = (narrow(inputs * outputs), numbers(rows * inputs));
        let mut out = vec![0.0; rows * outputs];
        Kernel {
            name: "linear",
            params: format!("rows={rows},inputs={inputs},outputs={outputs},dtype=bf16"),
            bytes: (2 * weights.len() + 4 * (x.len() + out.len())) as u64,
            flops: 2 * (rows * inputs * outputs) as u64,
            density: 1.0,
            run: Box::new(move || linear_rows(&x, &weights, inputs, &mut out)),
        }
    };
    vec![product(1), product(ROWS), tiled_product(ROWS, inputs, outputs), dense_product(ROWS, inputs, inputs)]
}

/// The same product with both factors rounded to bf16 and packed into tiles: the weights once, the rows each turn.
fn tiled_product<'k>(rows: usize, inputs: usize, outputs: usize) -> Kernel<'k> {
    let (weights, x) = (RightTiles::of_rows(&narrow(inputs * outputs), inputs), numbers(rows * inputs));
    let mut out = vec![0.0; rows * outputs];
    Kernel {
        name: "linear_bf16",
        params: format!("rows={rows},inputs={inputs},outputs={outputs},unit={}", tiles::unit().name()),
        bytes: (weights.bytes() + 4 * (x.len() + out.len())) as u64,
        flops: 2 * (rows * inputs * outputs) as u64,
        density: 1.0,
        run: Box::new(move || tiles::multiply(&LeftTiles::new(&x, inputs), &weights, &mut out)),
    }
}

/// A matrix product in f32.
fn dense_product<'k>(rows: usize, depth: usize, width: usize) -> Kernel<'k> {
    let (a, b) = (numbers(rows * depth), numbers(depth * width));
    let mut out = vec![0.0; rows * width];
    Kernel {
        name: "matmul",
        params: format!("rows={rows},depth={depth},width={width},dtype=f32"),
        bytes: 4 * (a.len() + b.len() + out.len()) as u64,
        flops: 2 * (rows * depth * width) as u64,
        density: 1.0,
        run: Box::new(move || matmul(&a, depth, &b, width, &mut out)),
    }
}
