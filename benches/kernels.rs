//! Times of the CPU kernels at the shapes of the built-in model and of Llama-3.1-8B, with the bytes or FLOPs that limit them.
//!
//! Run with `cargo bench`; `scripts/bench_reference.py` times PyTorch on the same shapes.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use spattn::kernels::cpu::codes::{CodeGroup, CodeRange, Factors, GROUP, group_scores};
use spattn::kernels::cpu::hamming::{TieBreakOffsets, hamming_scores};
use spattn::kernels::cpu::hyperplanes::Hyperplanes;
use spattn::kernels::cpu::linear::{linear_rows, scores};
use spattn::kernels::cpu::prefill::{PackedHead, RowVisibility, block_attention, causal_attention};
use spattn::kernels::cpu::quantised::{BlockRows, BlockType, RowLayout, linear_quantised};
use spattn::kernels::cpu::roof::read_all;
use spattn::kernels::cpu::share::top_share;
use spattn::kernels::cpu::topk::top_k;
use spattn::kernels::cpu::{Accumulator, Rows, attend_list, attend_range, weighted_list};

fn noise(n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(n as u64);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn narrow(n: usize) -> Vec<bf16> {
    noise(n).into_iter().map(bf16::from_f32).collect()
}

/// (name, query heads, KV heads, head width)
const SHAPES: [(&str, usize, usize, usize); 2] = [("builtin", 4, 2, 64), ("llama-3.1-8b", 32, 8, 128)];

fn prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefill_attention");
    group.sample_size(10);
    for (name, heads, kv_heads, d) in SHAPES {
        let tokens = 4096;
        let q = noise(tokens * heads * d);
        let (k, v) = (narrow(tokens * d), narrow(tokens * d));
        let mut out = vec![0.0; q.len()];
        // Half of the full square, with 2 products of 2 FLOPs for each channel.
        group.throughput(Throughput::Elements((tokens * tokens / 2 * heads * d * 4) as u64));
        group.bench_function(format!("{name}/{tokens}"), |b| {
            b.iter(|| {
                let packed: Vec<PackedHead> =
                    (0..kv_heads).map(|_| PackedHead::new(Rows::Bf16(&k), Rows::Bf16(&v), d)).collect();
                causal_attention(&q, &packed, heads, 0.125, &mut out);
                black_box(&out);
            })
        });
        // One block of rows and one head at the end of the prompt, over an eighth of the tokens.
        let (rows, seen) = (64, (0..tokens as u32).step_by(8).collect::<Vec<u32>>());
        let sights = vec![RowVisibility { common: seen.len(), stretch: 0..0, singles: Vec::new() }; rows];
        let (queries, out) = (&q[..rows * heads * d], &mut out[..rows * heads * d]);
        group.throughput(Throughput::Elements((rows * seen.len() * d * 4) as u64));
        group.bench_function(format!("{name}/block_of_64_rows_1_8/{tokens}"), |b| {
            b.iter(|| {
                let packed = PackedHead::gathered(Rows::Bf16(&k), Rows::Bf16(&v), d, &seen);
                block_attention(queries, (0, heads), &packed, &sights, 0.125, out);
                black_box(&*out);
            })
        });
    }
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode_attention");
    for (name, heads, kv_heads, d) in SHAPES {
        let (tokens, g) = (16_384, heads / kv_heads);
        let q = noise(g * d);
        let (k, v) = (narrow(tokens * d), narrow(tokens * d));
        let picks: Vec<u32> = (0..tokens as u32).step_by(16).collect();
        let mut out = vec![0.0; g * d];
        let mut run = |picks: Option<&[u32]>| {
            let mut acc = Accumulator::new(g, d);
            match picks {
                None => attend_range(&q, Rows::Bf16(&k), Rows::Bf16(&v), &mut acc),
                Some(picks) => attend_list(&q, Rows::Bf16(&k), Rows::Bf16(&v), picks, &[], &mut acc),
            }
            acc.finish(&mut out);
            black_box(&out);
        };
        group.throughput(Throughput::Bytes((tokens * d * 4) as u64));
        group.bench_function(format!("{name}/full/{tokens}"), |b| b.iter(|| run(None)));
        group.throughput(Throughput::Bytes((picks.len() * d * 4) as u64));
        group.bench_function(format!("{name}/gather_1_16/{tokens}"), |b| b.iter(|| run(Some(&picks))));
    }
}

fn linear(c: &mut Criterion) {
    let mut group = c.benchmark_group("linear");
    group.sample_size(20);
    let (outputs, inputs) = (1536, 256);
    let w = narrow(outputs * inputs);
    for rows in [1, 8, 64, 2048] {
        let x = noise(rows * inputs);
        let mut out = vec![0.0; rows * outputs];
        group.throughput(Throughput::Elements((2 * rows * outputs * inputs) as u64));
        group.bench_function(format!("ours/{rows}x{inputs}x{outputs}"), |b| {
            b.iter(|| linear_rows(&x, &w, inputs, black_box(&mut out)))
        });
    }
}

fn hyperplanes(c: &mut Criterion) {
    let mut group = c.benchmark_group("hyperplane_sides");
    group.sample_size(10);
    let (count, d) = (1500, 64);
    let planes = Hyperplanes::new(&noise(count * d), d);
    for rows in [2, 16_384] {
        let x = noise(rows * d);
        let mut bits = vec![0; rows * planes.words()];
        group.throughput(Throughput::Elements((2 * rows * count * d) as u64));
        group.bench_function(format!("{rows}x{d}x{count}"), |b| b.iter(|| planes.side_bits(&x, black_box(&mut bits))));
    }
}

fn hamming(c: &mut Criterion) {
    let mut group = c.benchmark_group("hamming");
    let (rows, queries) = (1 << 18, 2);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for words in [1, 2, 8, 32] {
        let planes: Vec<u32> = (0..rows * words).map(|_| rng.random()).collect();
        let query: Vec<u32> = (0..queries * words).map(|_| rng.random()).collect();
        let mut out = vec![0.0; queries * rows];
        group.throughput(Throughput::Bytes((4 * words * rows) as u64));
        group.bench_function(format!("{queries}x{rows}x{}bits", 32 * words), |b| {
            b.iter(|| hamming_scores(&query, &planes, words, TieBreakOffsets::default(), black_box(&mut out)))
        });
    }
}

fn select(c: &mut Criterion) {
    let mut group = c.benchmark_group("top_k");
    for n in [16_384, 32_768] {
        let scores = noise(n);
        group.throughput(Throughput::Elements(n as u64));
        for k in [64, n / 16] {
            group.bench_function(format!("{k}_of_{n}"), |b| b.iter(|| black_box(top_k(&scores, k))));
        }
        let logits: Vec<f32> = scores.iter().map(|x| 8.0 * x).collect();
        for p in [0.5, 0.95] {
            group.bench_function(format!("share_{p}_of_{n}"), |b| b.iter(|| black_box(top_share(&logits, 1.0, p, 0))));
        }
    }
}

/// Scores of a group of four query heads over 32K tokens of one KV head, for the forms in which methods store keys.
fn score(c: &mut Criterion) {
    let mut group = c.benchmark_group("scores");
    let (tokens, queries) = (32_768, 4);
    let mut out = vec![0.0; queries * tokens];
    for width in [32, 128] {
        let (q, keys) = (noise(queries * width), narrow(tokens * width));
        group.throughput(Throughput::Bytes((2 * keys.len()) as u64));
        group.bench_function(format!("bf16/{queries}x{width}x{tokens}"), |b| {
            b.iter(|| scores(&q, &keys, width, black_box(&mut out)))
        });
    }
    let columns = 32;
    let q = noise(queries * columns);
    let ranges: Vec<CodeRange> =
        noise(2 * columns).chunks(2).map(|x| CodeRange { min: x[0], step: x[1].abs() }).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for bits in [4, 2] {
        let of_group = GROUP * bits / 8 * columns;
        let codes: Vec<u8> = (0..tokens / GROUP * of_group).map(|_| rng.random()).collect();
        let mut factors = Factors::default();
        group.throughput(Throughput::Bytes((codes.len() + tokens / GROUP * columns * 8) as u64));
        group.bench_function(format!("{bits}bits/{queries}x{columns}x{tokens}"), |b| {
            b.iter(|| {
                let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(tokens).collect();
                for (codes, first) in codes.chunks(of_group).zip((0..).step_by(GROUP)) {
                    factors.set(&q, &ranges);
                    let group = CodeGroup { codes, ranges: &ranges, bits, tokens: GROUP };
                    group_scores(group, &factors, &mut rows, first);
                }
                black_box(&out);
            })
        });
    }
    let (channels, keys) = ([3, 17, 40, 41, 77, 90, 101, 127], narrow(128 * tokens));
    let (weights, out) = (noise(channels.len()), &mut out[..tokens]);
    group.throughput(Throughput::Bytes((2 * channels.len() * tokens) as u64));
    group.bench_function(format!("channels/{}x{tokens}", channels.len()), |b| {
        b.iter(|| {
            out.fill(0.0);
            weighted_list(Rows::Bf16(&keys), &channels, &weights, black_box(out));
        })
    });
}

/// Memory-bound kernels: plain reading, scattered rows, weights of one row; none of it fits into a cache.
fn memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("memory");
    group.sample_size(20);
    let buffer = vec![1.0f32; 32 << 20];
    group.throughput(Throughput::Bytes(size_of_val(buffer.as_slice()) as u64));
    group.bench_function("read", |b| b.iter(|| black_box(read_all(&buffer))));
    drop(buffer);
    let (tokens, d) = (1 << 19, 128);
    let keys = vec![bf16::from_f32(0.5); tokens * d];
    let picks: Vec<u32> = (0..tokens as u32).filter(|t| t.wrapping_mul(2_654_435_761) >> 28 == 0).collect();
    group.throughput(Throughput::Bytes((2 * picks.len() * d) as u64));
    group.bench_function(format!("rows_gathered/{}_of_{tokens}", picks.len()), |b| {
        b.iter(|| black_box(Rows::Bf16(&keys).gather(&picks, d)))
    });
    drop(keys);
    let (inputs, outputs) = (4096, 14_336);
    let (x, w) = (noise(inputs), vec![bf16::from_f32(0.5); inputs * outputs]);
    let mut out = vec![0.0; outputs];
    group.throughput(Throughput::Bytes((2 * w.len()) as u64));
    group.bench_function(format!("linear/1x{inputs}x{outputs}"), |b| {
        b.iter(|| linear_rows(&x, &w, inputs, black_box(&mut out)))
    });
    drop(w);
    for block_type in BlockType::ALL {
        // Any bytes are blocks.
        let bytes = block_type.bytes_of(inputs * outputs);
        let mut blocks: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
        group.throughput(Throughput::Bytes(bytes as u64));
        for layout in [RowLayout::Rows, RowLayout::Strips] {
            if layout == RowLayout::Strips {
                if block_type.strip_rows().is_none() {
                    continue;
                }
                block_type.lay_side_by_side(&mut blocks, inputs);
            }
            let parts = [BlockRows { block_type, layout, blocks: &blocks }];
            let name = format!("linear_quantised/{}/{layout:?}/1x{inputs}x{outputs}", block_type.name());
            group.bench_function(name, |b| b.iter(|| linear_quantised(&x, &parts, inputs, black_box(&mut out))));
        }
    }
}

criterion_group!(kernels, prefill, decode, linear, hyperplanes, hamming, select, score, memory);
criterion_main!(kernels);
