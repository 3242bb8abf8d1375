//! The engine on a GPU and its kernels, compared with naive sums, Hugging Face transformers and the engine on the CPU.
//!
//! Every test here needs a GPU and is ignored elsewhere; `scripts/gpu_check.sh` runs them on a machine with one.
#![cfg(feature = "cuda")]

#[path = "gpu/ahead.rs"]
mod ahead;
#[path = "gpu/attend_on_host.rs"]
mod attend_on_host;
#[path = "gpu/copies.rs"]
mod copies;
mod golden_model;
#[path = "gpu/host_tier.rs"]
mod host_tier;
#[path = "gpu/key_cache.rs"]
mod key_cache;
#[path = "gpu/lists.rs"]
mod lists;
#[path = "gpu/several.rs"]
mod several;
#[path = "gpu/token_cache.rs"]
mod token_cache;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use golden_model::{decoder, load, names_on_gpus};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use spattn::attention::artefact::{self, Artefact, ArtefactInfo, FORMAT, ModelShape};
use spattn::attention::calibration::{Assignment, PrefillChunk, TextKind};
use spattn::attention::methods::{self, CALIBRATIONS, METHODS, SelectionPlace, configure};
use spattn::attention::{
    AttentionSpec, Configured, IndexCache, LayerSpecs, MaterializesScores, Params, Policy, PrefillPattern, PromptNeed,
    PromptShape, PromptStats, RecentQueries, Sequence, SparsePrefill, expand_grid, mask_list_bytes,
};
use spattn::cost::{Cost, LayerCosts};
use spattn::kernels::cpu::distribution::{divergence, log_sum_exp};
use spattn::kernels::cpu::quantised::BlockType;
use spattn::kernels::cpu::topk::{argmax, top_k};
use spattn::kernels::cuda::{
    Attention, AttentionWorkspace, BlockLists, BlockShape, Buffer, Cache, ChannelLists, ChosenChannels, CodeRounding,
    CodedBounds, CodedBoundsWorkspace, CodedKeys, CollisionWorkspace, Columns, Directions, DrawWorkspace, FiniteCheck,
    Gate, Gpu, GpuError, HeldList, HeldSizes, HeldTokens, HoldingPrefix, HoldingRow, HoldingWorkspace, HostDeviceVec,
    IndexRows, Into, KeySides, KeysByChannel, LabelCodes, LayerRule, Nearest, Nets, NormalizedRows, Norms, PageBounds,
    Pages, PerRowTokens, Positions, Prefix, ProjectedQueries, QuantisedMatrix, Queries, QueryGrowth, Reduction,
    RmsNorm, Rotation, Routes, RowPart, RowSum, Rows, Run, SamplingSpec, ScoreWorkspace, Scores, Signatures, Storage,
    TableShape, Tail, TailRow, TailRows, TieOrder, TokenListLayout, TokenLists, Tokens, Unit, WeightMatrix, Weights,
};
use spattn::kv::{KvDtype, KvStore, LayerKv, Tier};
use spattn::model::config::ModelConfig;
use spattn::model::cuda::{Following, LayerAlone, PromptAlone};
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::Device;
use spattn::model::engine::{Prefill, Stream};
use spattn::model::source::ModelSource;
use spattn::model::token_scores::{Distributions, PredictingRows, scores_of_logits};
use spattn::model::{gguf, tensors};

/// Returns the default attention of one layer with heads `d` channels wide.
fn one_layer(d: usize) -> LayerSpecs {
    LayerSpecs::uniform(1, AttentionSpec::of_width(d))
}

/// Caps a logit as a layer with this cap does.
fn capped(logit: f64, cap: Option<f32>) -> f64 {
    cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
}

/// Returns the factor of the logits of heads `d` channels wide.
fn scale(d: usize) -> f32 {
    1.0 / (d as f32).sqrt()
}

const STORAGES: [Storage; 3] = [Storage::F32, Storage::F16, Storage::Bf16];

fn gpu() -> Gpu {
    Gpu::open(0).expect("these tests need a GPU")
}

/// Returns numbers from -1 to 1, the same for the same seed.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns how a GPU stores numbers of this type.
fn storage_of(dtype: KvDtype) -> Storage {
    match dtype {
        KvDtype::F16 => Storage::F16,
        KvDtype::Bf16 => Storage::Bf16,
        KvDtype::F32 => Storage::F32,
    }
}

/// Rounds the numbers to `storage`.
fn stored(numbers: &[f32], storage: Storage) -> Vec<f32> {
    let round = |x: &f32| match storage {
        Storage::F32 => *x,
        Storage::F16 => f16::from_f32(*x).to_f32(),
        Storage::Bf16 => bf16::from_f32(*x).to_f32(),
    };
    numbers.iter().map(round).collect()
}

fn send(gpu: &Gpu, numbers: &[f32], storage: Storage) -> Buffer {
    match storage {
        Storage::F32 => gpu.upload(numbers),
        Storage::F16 => gpu.upload(&numbers.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()),
        Storage::Bf16 => gpu.upload(&numbers.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>()),
    }
    .unwrap()
}

fn fetch(gpu: &Gpu, buffer: &Buffer, count: usize, storage: Storage) -> Vec<f32> {
    fn get<T: spattn::kernels::cuda::Plain>(gpu: &Gpu, buffer: &Buffer, count: usize) -> Vec<T> {
        let mut numbers = vec![T::default(); count];
        gpu.download(buffer, 0, &mut numbers).unwrap();
        numbers
    }
    match storage {
        Storage::F32 => get(gpu, buffer, count),
        Storage::F16 => get::<f16>(gpu, buffer, count).into_iter().map(f16::to_f32).collect(),
        Storage::Bf16 => get::<bf16>(gpu, buffer, count).into_iter().map(bf16::to_f32).collect(),
    }
}

/// Returns the allowed rounding error of `storage` against f64, as a share of the norm.
fn tolerance(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 2e-6,
        Storage::F16 => 1e-3,
        Storage::Bf16 => 6e-3,
    }
}

fn length(numbers: &[f64]) -> f64 {
    numbers.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Returns `‖a − b‖ / ‖b‖`.
fn relative(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    (difference / norm.max(1e-30)).sqrt()
}

/// Asserts that numbers are near those expected, and not NaN.
fn assert_near(a: &[f32], b: &[f64], tolerance: f64, what: &str) {
    let off = relative(a, b);
    assert!(off < tolerance, "{what}: off by {off:.2e}, {tolerance:.0e} is allowed");
}

#[test]
#[ignore = "needs a GPU"]
fn products_of_one_and_many_rows() {
    let gpu = gpu();
    for storage in STORAGES {
        for (rows, outputs, inputs) in [
            (1, 17, 8),
            (1, 64, 256),
            (1, 130, 4096),
            (1, 9, 2056),
            // More outputs than warps, ring buffers that wrap around, and rows too long for staging.
            (1, 5000, 264),
            (1, 40, 14336),
            (1, 5, 40_008),
            (1, 3, 120_000),
            (2, 64, 256),
            (3, 33, 264),
            (4, 130, 4096),
            (5, 40, 72),
            (70, 96, 512),
        ] {
            let (w, x) = (noise(outputs * inputs, 1), noise(rows * inputs, 2));
            let (w_stored, x_stored) = (stored(&w, storage), stored(&x, storage));
            let exact: Vec<f64> = (0..rows * outputs)
                .map(|i| {
                    let (row, output) =
                        (&x_stored[i / outputs * inputs..], &w_stored[i % outputs * inputs..][..inputs]);
                    row.iter().zip(output).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                })
                .collect();
            let (w, x) = (send(&gpu, &w, storage), send(&gpu, &x, storage));
            for into in [Into::Narrow, Into::Wide, Into::Add] {
                let wide = if into == Into::Narrow { storage } else { Storage::F32 };
                let before = vec![if into == Into::Add { 0.5 } else { f32::NAN }; rows * outputs];
                let mut out = send(&gpu, &before, wide);
                let weights = WeightMatrix { data: &w, outputs, inputs };
                gpu.multiply(storage, weights, &x, rows, &mut out, into).unwrap();
                let expected: Vec<f64> =
                    exact.iter().map(|sum| sum + if into == Into::Add { 0.5 } else { 0.0 }).collect();
                let what = format!("{storage:?} {rows}x{inputs} by {outputs} {into:?}");
                // The longest sums have 100,000 products in sequence.
                let tolerance = tolerance(wide) * (1.0 + inputs as f64 / 30_000.0);
                assert_near(&fetch(&gpu, &out, rows * outputs, wide), &expected, tolerance, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_quantised_blocks_and_their_rows() {
    let gpu = gpu();
    let shapes = [
        (1, 1, 256),
        (1, 70, 4096),
        (2, 33, 768),
        (3, 40, 4352),
        (4, 7, 512),
        (7, 65, 256),
        (1, 5, 14336),
        (9, 200, 1024),
        // More outputs than fit all multiprocessors at once, with one warp a row, and with two of which one is partly idle.
        (1, 9001, 512),
        (1, 2203, 2304),
        // On tensor cores: exactly one tile, tiles that overlap, fewer rows than a tile, and rows that are not whole chunks.
        (1, 16, 256),
        (1, 17, 512),
        (1, 37, 1280),
        (1, 100, 28672),
        (1, 15, 2304),
        (1, 9001, 544),
    ];
    for block_type in BlockType::ALL {
        let fits = |(_, _, inputs): &&(usize, usize, usize)| inputs.is_multiple_of(block_type.numbers());
        for &(rows, outputs, inputs) in shapes.iter().filter(fits) {
            let drawn = tensors::Weights::random_in(outputs as u64, block_type);
            let tensor = drawn.read("a.weight", &[outputs, inputs]).unwrap();
            let (numbers, w) = (tensor.to_f32(), gpu.upload_blocks(block_type, &tensor.bytes, inputs).unwrap());
            let tokens: Vec<u32> = [outputs - 1, 0, outputs / 2].map(|token| token as u32).to_vec();
            let mut x = send(&gpu, &vec![f32::NAN; 3 * inputs], Storage::F32);
            gpu.embed_quantised(&w, &gpu.upload(&tokens).unwrap(), 3, &mut x, 1.5).unwrap();
            let rows_of = |token: &u32| &numbers[*token as usize * inputs..][..inputs];
            let expected: Vec<f32> = tokens.iter().flat_map(rows_of).map(|number| 1.5 * number).collect();
            assert_eq!(fetch(&gpu, &x, 3 * inputs, Storage::F32), expected, "rows of {}", block_type.name());
            for storage in STORAGES {
                let (first, count) = (outputs / 3, outputs - outputs / 3);
                let mut wide = send(&gpu, &vec![f32::NAN; count * inputs], storage);
                gpu.dequantise(storage, &w, first, count, &mut wide).unwrap();
                let expected = stored(&numbers[first * inputs..], storage);
                assert_eq!(fetch(&gpu, &wide, count * inputs, storage), expected, "{}", block_type.name());
                let x = noise(rows * inputs, 2);
                let name = block_type.name();
                check_quantised_product(&gpu, storage, &w, &numbers, rows, (name, &x));
                // Tensor cores split x by the largest number of a chunk, so some numbers are far larger or smaller than those around them.
                if rows > 1 || outputs < 16 || inputs % 256 != 0 {
                    continue;
                }
                let far = |(i, x): (usize, f32)| match (i % 97, i % 89) {
                    (5, _) => 150.0 * x,
                    (_, 7) => 1e-5 * x,
                    _ => x,
                };
                let x: Vec<f32> = x.into_iter().enumerate().map(far).collect();
                check_quantised_product(&gpu, storage, &w, &numbers, rows, (&format!("{name}, far apart"), &x));
            }
        }
    }
}

/// The size of the smallest group with its own scale, over all types of blocks.
const GROUP: usize = 16;

/// Returns the size of a product if nothing cancelled: the largest number of each group times the sum of `|x|` over it.
fn without_cancelling(w: &[f32], x: &[f32]) -> f64 {
    let groups = w.chunks_exact(GROUP).zip(x.chunks_exact(GROUP));
    let of_group = |(w, x): (&[f32], &[f32])| {
        let most = w.iter().fold(0.0, |most: f64, w| most.max(f64::from(w.abs())));
        most * x.iter().map(|x| f64::from(x.abs())).sum::<f64>()
    };
    groups.map(of_group).sum()
}

/// Compares a product that writes some columns of an output with sums in f64.
fn check_quantised_product(
    gpu: &Gpu,
    storage: Storage,
    w: &QuantisedMatrix,
    numbers: &[f32],
    rows: usize,
    (name, x): (&str, &[f32]),
) {
    let (outputs, inputs, x) = (w.outputs(), w.inputs(), stored(x, storage));
    let on_device = send(gpu, &x, storage);
    let columns = Columns { first: 3, stride: outputs + 5 };
    for into in [Into::Narrow, Into::Wide, Into::Add] {
        let wide = if into == Into::Narrow { storage } else { Storage::F32 };
        let before = if into == Into::Add { 0.5 } else { -7.0 };
        let mut out = send(gpu, &vec![before; rows * columns.stride], wide);
        gpu.multiply_quantised(storage, w, &on_device, rows, (&mut out, columns), into).unwrap();
        let got = fetch(gpu, &out, rows * columns.stride, wide);
        for (row, (got, x)) in got.chunks_exact(columns.stride).zip(x.chunks_exact(inputs)).enumerate() {
            let (own, others) = (&got[3..3 + outputs], [&got[..3], &got[3 + outputs..]].concat());
            assert!(others.iter().all(|number| *number == before), "other columns are left alone");
            let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
            let expected: Vec<f64> =
                numbers.chunks_exact(inputs).map(|w| dot(w) + if into == Into::Add { 0.5 } else { 0.0 }).collect();
            let what =
                format!("{name}: row {row} of {rows}, {outputs} outputs of {inputs} inputs, {storage:?} {into:?}");
            // Codes are multiplied with 128 added, which costs up to seven bits of f32.
            assert_near(own, &expected, tolerance(wide).max(2e-5), &what);
            // Of the 17 numbers that it adds up, a tensor core cuts off what is below 2^-23 of the largest: half of that on average, twice
            // for a group of 32.
            if wide == Storage::F32 {
                let most: Vec<f64> = numbers.chunks_exact(inputs).map(|w| without_cancelling(w, x)).collect();
                let off = relative(own, &expected) * length(&expected) / length(&most);
                assert!(off < 17.0 / f64::from(1 << 23), "{what}: off by {off:.2e} of what does not cancel");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn weights_in_blocks_give_the_logits_of_the_cpu() {
    let small = |shape: &str| {
        let texts = ModelSource::parse(&format!("random:{shape}")).unwrap().resolve_texts().unwrap();
        let mut config = texts.config().unwrap();
        (config.vocab_size, config.hidden_size, config.intermediate_size) = (300, 256, 512);
        (config.heads, config.kv_heads, config.head_dim) = (4, 2, 64);
        config.keep_layers(&[0, 1]);
        config
    };
    let plain = small("llama-3.2-1b");
    let mut scaled = plain.clone();
    scaled.block.embedding_scale = 16.5;
    // In Q4_K, rows of 96 numbers are not whole blocks, so only some matrices of the experts are in blocks.
    let mut with_experts = small("qwen3-30b-a3b");
    let experts = with_experts.block.experts.as_mut().unwrap();
    (experts.count, experts.used, experts.width) = (6, 2, 96);
    let few = [BlockType::Q8_0, BlockType::Q4K];
    let others = few.into_iter().flat_map(|block_type| [(&scaled, block_type), (&with_experts, block_type)]);
    let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 300).collect();
    for (config, block_type) in BlockType::ALL.into_iter().map(|block_type| (&plain, block_type)).chain(others) {
        let weights = tensors::Weights::random_in(3, block_type);
        check_logits_of_blocks(config, &weights, &tokens, &format!("{} of {}", block_type.name(), config.family));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn weights_in_blocks_and_plain_ones_in_one_matrix_give_the_logits_of_the_cpu() {
    // In two layers of this file, only some of the queries, keys and values are in blocks.
    let file = golden_model::root().join("../gguf/mixed.gguf");
    let (texts, weights) = gguf::open(&file, "mixed".into()).unwrap();
    let config = texts.config().unwrap();
    let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % config.vocab_size as u32).collect();
    check_logits_of_blocks(&config, &weights, &tokens, "mixed.gguf");
}

/// Compares the logits of a prompt and of the steps after it with those of the CPU, with weights kept in their blocks on both.
fn check_logits_of_blocks(config: &ModelConfig, weights: &tensors::Weights, tokens: &[u32], what: &str) {
    let dimensions = Dimensions::new(config, KvDtype::F32).keeping_blocks(weights);
    assert!(dimensions.blocks().is_some());
    let [cpu, gpu] = [Device::Cpu, CUDA].map(|device| {
        let decoder = Decoder::load(&dimensions, weights, device).unwrap();
        let (prompt, following) = tokens.split_at(tokens.len() - 6);
        let prefill = decoder.prefill(prompt, tokens.len()).unwrap();
        let mut cache = IndexCache::new(prefill.prefix.clone(), KvDtype::F32, 0);
        let mut fork = cache.fork(&method("full"), false).unwrap();
        let mut logits = prefill.logits;
        for token in following {
            let stepped = decoder.step(&mut [Stream { fork: &mut fork, tokens: &[*token] }], tokens.len()).unwrap();
            logits.extend(stepped.concat());
        }
        logits
    });
    assert_close(&gpu, &cpu, 1e-4, what);
}

#[test]
#[ignore = "needs a GPU"]
fn norms_gates_and_biases_and_what_is_not_finite() {
    let gpu = gpu();
    let (rows, hidden) = (5, 200);
    for storage in STORAGES {
        let (x, weight) = (noise(rows * hidden, 3), noise(hidden, 4));
        let expected: Vec<f64> = x[2 * hidden..]
            .chunks_exact(hidden)
            .flat_map(|row| {
                let square: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
                let rms = (square / hidden as f64 + 1e-5).sqrt();
                row.iter().zip(&weight).map(move |(x, w)| f64::from(*x) / rms * f64::from(*w)).collect::<Vec<_>>()
            })
            .collect();
        let (on_device, weight) = (gpu.upload(&x).unwrap(), gpu.upload(&weight).unwrap());
        let mut out = send(&gpu, &vec![f32::NAN; rows * hidden], storage);
        let mut broken = gpu.upload(&[u64::MAX]).unwrap();
        let norm = RmsNorm { weight: Some(&weight), eps: 1e-5, hidden };
        let check = FiniteCheck { broken: &mut broken, mark: 7, first_row: 100 };
        gpu.rms_norm(storage, norm, &on_device, 2..5, &mut out, check).unwrap();
        assert_near(&fetch(&gpu, &out, 3 * hidden, storage), &expected, tolerance(storage), "a norm");
        let told = |broken: &Buffer| {
            let mut word = [0u64];
            gpu.download(broken, 0, &mut word).unwrap();
            word[0]
        };
        assert_eq!(told(&broken), u64::MAX);
        let mut spoilt = x.clone();
        (spoilt[3 * hidden + 150], spoilt[4 * hidden]) = (f32::INFINITY, f32::NAN);
        let spoilt = gpu.upload(&spoilt).unwrap();
        for (mark, skip) in [(7, 2), (9, 0)] {
            let check = FiniteCheck { broken: &mut broken, mark, first_row: 100 };
            gpu.rms_norm(storage, norm, &spoilt, skip..skip + 3, &mut out, check).unwrap();
        }
        assert_eq!(told(&broken), 7 << 32 | 101, "the first layer, and in it the first row");

        let (no_norm, check) =
            (RmsNorm { weight: None, ..norm }, FiniteCheck { broken: &mut broken, mark: 7, first_row: 100 });
        gpu.rms_norm(storage, no_norm, &on_device, 2..5, &mut out, check).unwrap();
        let copied: Vec<f64> = x[2 * hidden..].iter().map(|x| f64::from(*x)).collect();
        assert_near(&fetch(&gpu, &out, 3 * hidden, storage), &copied, tolerance(storage), "no norm");

        // A part of each row, in place.
        let (first, width) = (40, 120);
        let mut in_place = send(&gpu, &x, storage);
        let held = stored(&x, storage);
        let mut expected: Vec<f64> = held.iter().map(|x| f64::from(*x)).collect();
        let part_weight = noise(width, 8);
        for row in expected.chunks_exact_mut(hidden) {
            let part = &mut row[first..][..width];
            let rms = (part.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-5).sqrt();
            part.iter_mut().zip(&part_weight).for_each(|(x, w)| *x = *x / rms * f64::from(*w));
        }
        let part_weight = gpu.upload(&part_weight).unwrap();
        let part_norm = RmsNorm { weight: Some(&part_weight), eps: 1e-5, hidden: width };
        gpu.norm_part(storage, &mut in_place, RowPart { rows, stride: hidden, first }, part_norm).unwrap();
        assert_near(&fetch(&gpu, &in_place, rows * hidden, storage), &expected, tolerance(storage).max(1e-5), "a part");

        // Branches, normed and not.
        let branch = noise(rows * hidden, 9);
        let branch_weight = noise(hidden, 10);
        let (branch_there, weight_there) = (gpu.upload(&branch).unwrap(), gpu.upload(&branch_weight).unwrap());
        for normed in [false, true] {
            let mut stream = gpu.upload(&x).unwrap();
            let given = normed.then_some(&weight_there);
            gpu.add_branch(&mut stream, &branch_there, rows, hidden, given, (1e-5, 0.25)).unwrap();
            let mut expected = Vec::new();
            for (x, branch) in x.chunks_exact(hidden).zip(branch.chunks_exact(hidden)) {
                let square: f64 = branch.iter().map(|x| f64::from(*x).powi(2)).sum();
                let rms = (square / hidden as f64 + 1e-5).sqrt();
                expected.extend(x.iter().zip(branch).zip(&branch_weight).map(|((x, y), w)| {
                    let y = if normed { f64::from(*y) / rms * f64::from(*w) } else { f64::from(*y) };
                    f64::from(*x) + 0.25 * y
                }));
            }
            assert_near(&fetch(&gpu, &stream, rows * hidden, Storage::F32), &expected, 1e-5, "a branch");
        }

        let gate_up = noise(rows * 2 * hidden, 5);
        let held = stored(&gate_up, storage);
        let expected: Vec<f64> = (0..rows * hidden)
            .map(|i| {
                let row = &held[i / hidden * 2 * hidden..];
                let (gate, up) = (f64::from(row[i % hidden]), f64::from(row[hidden + i % hidden]));
                gate / (1.0 + (-gate).exp()) * up
            })
            .collect();
        gpu.gate(Gate::Silu, storage, &send(&gpu, &gate_up, storage), rows, &mut out, hidden).unwrap();
        assert_near(&fetch(&gpu, &out, rows * hidden, storage), &expected, tolerance(storage).max(1e-5), "a gate");
        let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh());
        let expected: Vec<f64> = (0..rows * hidden)
            .map(|i| {
                let row = &held[i / hidden * 2 * hidden..];
                gelu(f64::from(row[i % hidden])) * f64::from(row[hidden + i % hidden])
            })
            .collect();
        gpu.gate(Gate::GeluTanh, storage, &send(&gpu, &gate_up, storage), rows, &mut out, hidden).unwrap();
        assert_near(&fetch(&gpu, &out, rows * hidden, storage), &expected, tolerance(storage).max(1e-5), "GELU");
        // Half of the gates, and of the values, are beyond the limit.
        let (slope, limit) = (1.702f32, 0.5f32);
        let expected: Vec<f64> = (0..rows * hidden)
            .map(|i| {
                let row = &held[i / hidden * 2 * hidden..];
                let (gate, up) = (f64::from(row[i % hidden].min(limit)), row[hidden + i % hidden].clamp(-limit, limit));
                gate / (1.0 + (-f64::from(slope) * gate).exp()) * (f64::from(up) + 1.0)
            })
            .collect();
        let clamped = Gate::Clamped { slope, limit };
        gpu.gate(clamped, storage, &send(&gpu, &gate_up, storage), rows, &mut out, hidden).unwrap();
        assert_near(&fetch(&gpu, &out, rows * hidden, storage), &expected, tolerance(storage).max(1e-5), "clamped");

        // More rows than one dimension of a grid allows.
        let many = (1 << 16) + 9;
        let gate_up = stored(&noise(many * 16, 7), storage);
        let mut gated = send(&gpu, &vec![f32::NAN; many * 8], storage);
        gpu.gate(Gate::Silu, storage, &send(&gpu, &gate_up, storage), many, &mut gated, 8).unwrap();
        let expected: Vec<f64> = (0..many * 8)
            .map(|i| {
                let (gate, up) = (f64::from(gate_up[i / 8 * 16 + i % 8]), f64::from(gate_up[i / 8 * 16 + 8 + i % 8]));
                gate / (1.0 + (-gate).exp()) * up
            })
            .collect();
        assert_near(&fetch(&gpu, &gated, many * 8, storage), &expected, tolerance(storage).max(1e-5), "many rows");

        let bias = noise(hidden, 6);
        let before = fetch(&gpu, &out, rows * hidden, storage);
        gpu.add_bias(storage, &mut out, rows, &gpu.upload(&bias).unwrap(), hidden).unwrap();
        let expected: Vec<f64> =
            before.iter().enumerate().map(|(i, x)| f64::from(*x) + f64::from(bias[i % hidden])).collect();
        assert_near(&fetch(&gpu, &out, rows * hidden, storage), &expected, tolerance(storage), "a bias");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn few_rows_pass_experts_with_biases_and_without() {
    let gpu = gpu();
    // A warp computes an output and a block has four warps, so the last block has two outputs.
    let (count, used, inputs, outputs) = (5, 2, 264, 22);
    for storage in STORAGES {
        let of_experts = |numbers: usize, seed: u64| -> Vec<Vec<f32>> {
            (0..count as u64).map(|expert| noise(numbers, seed + expert)).collect()
        };
        let matrices: Vec<Vec<f32>> =
            of_experts(outputs * inputs, 200).iter().map(|numbers| stored(numbers, storage)).collect();
        let biases = of_experts(outputs, 300);
        let matrices_there: Vec<Buffer> = matrices.iter().map(|numbers| send(&gpu, numbers, storage)).collect();
        let biases_there: Vec<Buffer> = biases.iter().map(|numbers| gpu.upload(numbers).unwrap()).collect();
        for (rows, has_biases) in [(1, true), (1, false), (3, true), (8, true), (8, false)] {
            let slots = rows * used;
            // The last expert, and another one.
            let chosen: Vec<u32> =
                (0..slots).map(|slot| if slot % used == 0 { slot as u32 / 2 % 4 } else { 4 }).collect();
            let weights: Vec<f32> = (0..slots).map(|slot| 0.1 + slot as f32 / 20.0).collect();
            let all: Vec<&Buffer> = matrices_there.iter().collect();
            let with: Vec<&Buffer> = biases_there.iter().filter(|_| has_biases).collect();
            let there = gpu.expert_matrices(&all, &with, (outputs, inputs, storage)).unwrap();
            let (chosen_there, weights_there) = (gpu.upload(&chosen).unwrap(), gpu.upload(&weights).unwrap());
            let routes = Routes { chosen: &chosen_there, weights: &weights_there, used };
            let output_of = |slot: usize, x: &[f32], output: usize| -> f64 {
                let expert = chosen[slot] as usize;
                let bias = if has_biases { f64::from(biases[expert][output]) } else { 0.0 };
                dot(&matrices[expert][output * inputs..][..inputs], x) + bias
            };
            let what = format!("{storage:?}, {rows} rows, biases {has_biases}");

            let x = stored(&noise(rows * inputs, 7), storage);
            let mut out = send(&gpu, &vec![f32::NAN; slots * outputs], storage);
            gpu.expert_rows(&there, &routes, rows, &send(&gpu, &x, storage), &mut out).unwrap();
            let expected: Vec<f64> = (0..slots * outputs)
                .map(|i| output_of(i / outputs, &x[i / outputs / used * inputs..][..inputs], i % outputs))
                .collect();
            assert_near(&fetch(&gpu, &out, slots * outputs, storage), &expected, tolerance(storage).max(1e-5), &what);

            let x = stored(&noise(slots * inputs, 8), storage);
            let mut out = send(&gpu, &vec![0.5; rows * outputs], Storage::F32);
            gpu.expert_sums(&there, &routes, rows, &send(&gpu, &x, storage), &mut out).unwrap();
            let expected: Vec<f64> = (0..rows * outputs)
                .map(|i| {
                    let (row, output) = (i / outputs, i % outputs);
                    let of_slot =
                        |slot: usize| f64::from(weights[slot]) * output_of(slot, &x[slot * inputs..][..inputs], output);
                    0.5 + (row * used..(row + 1) * used).map(of_slot).sum::<f64>()
                })
                .collect();
            assert_near(&fetch(&gpu, &out, rows * outputs, Storage::F32), &expected, 1e-5, &what);
        }
    }
}

/// Keys and values of `kv_heads` heads, to be stored with NaN after them.
struct Kv {
    keys: Vec<f32>,
    values: Vec<f32>,
    kv_heads: usize,
    tokens: usize,
    d: usize,
}

impl Kv {
    fn new(kv_heads: usize, tokens: usize, d: usize, seed: u64, storage: Storage) -> Self {
        let numbers = |seed| stored(&noise(kv_heads * tokens * d, seed), storage);
        Self { keys: numbers(seed), values: numbers(seed + 1), kv_heads, tokens, d }
    }

    fn key(&self, head: usize, token: usize) -> &[f32] {
        &self.keys[(head * self.tokens + token) * self.d..][..self.d]
    }

    fn value(&self, head: usize, token: usize) -> &[f32] {
        &self.values[(head * self.tokens + token) * self.d..][..self.d]
    }

    fn send(&self, gpu: &Gpu, capacity: usize, storage: Storage) -> [Buffer; 2] {
        self.padded(capacity).map(|numbers| send(gpu, &numbers, storage))
    }

    fn padded(&self, capacity: usize) -> [Vec<f32>; 2] {
        [&self.keys, &self.values].map(|numbers| {
            let mut padded = vec![f32::NAN; self.kv_heads * capacity * self.d];
            for head in 0..self.kv_heads {
                let rows = &numbers[head * self.tokens * self.d..][..self.tokens * self.d];
                padded[head * capacity * self.d..][..rows.len()].copy_from_slice(rows);
            }
            padded
        })
    }

    /// Returns several layers of which only `layer` is not NaN.
    fn within(&self, layer: usize, layers: usize, capacity: usize) -> Vec<f32> {
        let own = self.padded(capacity).concat();
        let mut all = vec![f32::NAN; layers * own.len()];
        all[layer * own.len()..][..own.len()].copy_from_slice(&own);
        all
    }
}

fn cache<'a>([keys, values]: &'a [Buffer; 2], capacity: usize, kv: &Kv, storage: Storage) -> Cache<'a> {
    Cache { keys, values, keys_at: 0, values_at: 0, capacity, kv_heads: kv.kv_heads, d: kv.d, storage }
}

/// Returns the softmax of logits over values: (log-sum-exp, output).
fn softmax(parts: &[(f64, &[f32])], d: usize) -> (f64, Vec<f64>) {
    let most = parts.iter().map(|(logit, _)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = parts.iter().map(|(logit, _)| (logit - most).exp()).sum();
    let mut out = vec![0.0; d];
    for (logit, value) in parts {
        let weight = (logit - most).exp() / sum;
        out.iter_mut().zip(*value).for_each(|(out, v)| *out += weight * f64::from(*v));
    }
    (most + sum.ln(), out)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// A case of decode attention: what two rows attend, and with which weights.
#[derive(Clone, Copy, Debug)]
struct Case {
    d: usize,
    group: usize,
    prefix: usize,
    tails: [usize; 2],
    exact: [(usize, usize); 2],
    picks: usize,
    weighting: &'static str,
}

#[test]
#[ignore = "needs a GPU"]
fn decode_attention_over_any_selection() {
    let gpu = gpu();
    let mut cases = Vec::new();
    for d in [8, 64, 80, 96, 128, 256] {
        for group in [1, 2, 3, 4, 7, 8, 12] {
            cases.push(Case {
                d,
                group,
                prefix: 300,
                tails: [1, 9],
                exact: [(4, 290), (0, 305)],
                picks: 40,
                weighting: "shared",
            });
        }
    }
    for weighting in ["none", "shared", "lowered", "each", "each lowered", "given", "rest"] {
        for picks in [0, 1, 700] {
            cases.push(Case {
                d: 64,
                group: 4,
                prefix: 1000,
                tails: [0, 130],
                exact: [(0, 999), (16, 1100)],
                picks,
                weighting,
            });
        }
    }
    cases.push(Case {
        d: 128,
        group: 4,
        prefix: 20_000,
        tails: [3, 1],
        exact: [(0, 0), (0, 0)],
        picks: 0,
        weighting: "none",
    });
    cases.push(Case {
        d: 128,
        group: 4,
        prefix: 0,
        tails: [1, 5],
        exact: [(0, 0), (0, 0)],
        picks: 0,
        weighting: "none",
    });
    for storage in STORAGES {
        for case in &cases {
            for rule in [(None, false), (None, true), (Some(0.4), true)] {
                check_case(&gpu, *case, storage, rule);
            }
        }
    }
}

/// Compares the attention of a case with sums in f64; `cap` is the cap of logits.
fn check_case(gpu: &Gpu, case: Case, storage: Storage, (cap, has_sinks): (Option<f32>, bool)) {
    let Case { d, group, prefix: prefix_tokens, tails, exact, picks, weighting } = case;
    let (kv_heads, rows) = (2, 2);
    let heads = kv_heads * group;
    let prefix = Kv::new(kv_heads, prefix_tokens, d, 10, storage);
    let tails: Vec<Kv> =
        tails.iter().enumerate().map(|(i, t)| Kv::new(kv_heads, *t, d, 20 + 2 * i as u64, storage)).collect();
    let stride = heads * d + 24;
    let sinks = noise(heads, 31);
    let queries = stored(&noise(rows * stride, 30), storage);
    let prefix_buffers = prefix.send(gpu, prefix_tokens + 3, storage);
    // The layer between two others.
    let (layer, layers) = (1, 3);
    let tail_buffers: Vec<Buffer> =
        tails.iter().map(|tail| send(gpu, &tail.within(layer, layers, 130), storage)).collect();
    let prefix_cache = cache(&prefix_buffers, prefix_tokens + 3, &prefix, storage);
    let tail_views: Vec<Tail> =
        tail_buffers.iter().map(|buffer| Tail { buffer, layers, capacity: 130, kv_heads, d, storage }).collect();
    let mut attention = Attention::new(rows, heads, (rows * heads, 4 * rows * prefix_tokens.max(1)), gpu.processors());
    let mut expected = Vec::new();
    for row in 0..rows {
        let (total, (sink, recent)) = (prefix_tokens + tails[row].tokens, exact[row]);
        let token = |kv_head: usize, token: usize| match token.checked_sub(prefix_tokens) {
            None => (prefix.key(kv_head, token), prefix.value(kv_head, token)),
            Some(behind) => (tails[row].key(kv_head, behind), tails[row].value(kv_head, behind)),
        };
        for kv_head in 0..kv_heads {
            let lists: Vec<Vec<u32>> = (0..group)
                .map(|h| {
                    let seed = if weighting.starts_with("each") || weighting == "given" { h as u64 } else { 0 };
                    let mut order: Vec<u32> = (sink as u32..recent as u32).collect();
                    let keys = noise(order.len(), 50 + seed);
                    order.sort_by(|a, b| keys[*a as usize - sink].total_cmp(&keys[*b as usize - sink]));
                    order.truncate(picks);
                    order
                })
                .collect();
            let extra = noise(lists[0].len(), 60);
            let given: Vec<f32> = extra.iter().map(|x| x.abs() / extra.len() as f32).collect();
            let (shares, rest) = (noise(group, 70).iter().map(|x| x.abs() * 0.9).collect::<Vec<f32>>(), noise(d, 71));
            let unit = |head: usize, queries: usize, tokens, weights| Unit {
                row,
                head: kv_head * group + head,
                queries,
                kv_head,
                tail: &tail_views[row],
                tokens,
                weights,
            };
            let part = |sink, recent, picked| Tokens { sink, recent, total, picked };
            let mut add = |place, unit: Unit| attention.add(place, &unit, prefix_tokens);
            let none: &[u32] = &[];
            match weighting {
                "none" => add(0, unit(0, group, part(sink, recent, none), Weights::Softmax)),
                "shared" => add(0, unit(0, group, part(sink, recent, &lists[0]), Weights::Softmax)),
                "lowered" => add(0, unit(0, group, part(sink, recent, &lists[0]), Weights::LogBias(&extra))),
                "rest" => {
                    add(0, unit(0, group, part(sink, recent, none), Weights::Softmax));
                    add(1, unit(0, group, part(0, total, &lists[0]), Weights::Softmax));
                    (0..group).for_each(|h| attention.give_rest(row, kv_head * group + h, shares[h], &rest));
                }
                _ => {
                    add(0, unit(0, group, part(sink, recent, none), Weights::Softmax));
                    for (h, list) in lists.iter().enumerate() {
                        let weights = match weighting {
                            "each" => Weights::Softmax,
                            "each lowered" => Weights::LogBias(&extra),
                            _ => Weights::Explicit(&given, 0.3),
                        };
                        add(1, unit(h, 1, part(0, total, list), weights));
                    }
                }
            }
            for (h, list) in lists.iter().enumerate() {
                let query = &queries[row * stride + (kv_head * group + h) * d..][..d];
                let logit = |t: usize| capped(dot(query, token(kv_head, t).0) / (d as f64).sqrt(), cap);
                let mut parts: Vec<(f64, &[f32])> =
                    (0..sink).chain(recent..total).map(|t| (logit(t), token(kv_head, t).1)).collect();
                let picked: Vec<usize> =
                    if weighting == "none" { Vec::new() } else { list.iter().map(|t| *t as usize).collect() };
                let lowered = weighting.ends_with("lowered");
                let lower = |i: usize| if lowered { f64::from(extra[i]) } else { 0.0 };
                let of_picks: Vec<(f64, &[f32])> =
                    picked.iter().enumerate().map(|(i, t)| (logit(*t) - lower(i), token(kv_head, *t).1)).collect();
                let sum: Vec<f32>;
                let value: Vec<f32>;
                if weighting == "given" {
                    let mut out = vec![0.0f64; d];
                    for (weight, t) in given.iter().zip(&picked) {
                        let value = token(kv_head, *t).1;
                        out.iter_mut().zip(value).for_each(|(out, v)| *out += f64::from(*weight) * f64::from(*v));
                    }
                    sum = out.iter().map(|x| *x as f32).collect();
                    parts.push((f64::from(0.3f32), &sum));
                } else {
                    parts.extend(&of_picks);
                }
                if weighting == "rest" && !picked.is_empty() {
                    let share = f64::from(shares[h]);
                    value = rest.clone();
                    parts.push((softmax(&of_picks, d).0 + (share / (1.0 - share)).ln(), &value));
                }
                let nothing = vec![0.0; d];
                if has_sinks {
                    parts.push((f64::from(sinks[kv_head * group + h]), &nothing));
                }
                let out = if parts.is_empty() { vec![0.0; d] } else { softmax(&parts, d).1 };
                expected.extend(out);
            }
        }
    }
    let queries = send(gpu, &queries, storage);
    let mut out = send(gpu, &vec![f32::NAN; rows * heads * d], storage);
    let mut wide = gpu.upload(&vec![f32::NAN; rows * heads * d]).unwrap();
    let mut room = AttentionWorkspace::default();
    let sinks = gpu.upload(&sinks).unwrap();
    let rule = LayerRule { soft_cap: cap, sinks: has_sinks.then_some(&sinks), ..LayerRule::PLAIN };
    let prefix = Prefix { cache: prefix_cache, tokens: prefix_tokens, layer, scale: scale(prefix_cache.d), rule };
    let prepared = gpu.prepare(&mut attention, &mut room, d).unwrap();
    gpu.attend(&prepared, &prefix, &queries, stride, &mut out, Some(&mut wide)).unwrap();
    let what = format!("{storage:?} {case:?} {cap:?}, sinks {has_sinks}");
    assert_near(&fetch(gpu, &out, rows * heads * d, storage), &expected, tolerance(storage), &what);
    assert_near(&fetch(gpu, &wide, rows * heads * d, Storage::F32), &expected, 1e-5, &what);
}

/// Queries of three rows, as the kernels take them. The last and the first row are scored.
struct Asked {
    numbers: Vec<f32>,
    buffer: Buffer,
    stride: usize,
    heads: usize,
    rows: HostDeviceVec<u32>,
}

impl Asked {
    const ROWS: [usize; 2] = [2, 0];

    fn new(gpu: &Gpu, heads: usize, d: usize, storage: Storage) -> Self {
        let stride = heads * d + 24;
        let numbers = stored(&noise(3 * stride, 110), storage);
        let mut rows = HostDeviceVec::default();
        rows.set(gpu, Self::ROWS.map(|row| row as u32).to_vec()).unwrap();
        Self { buffer: send(gpu, &numbers, storage), numbers, stride, heads, rows }
    }

    fn queries(&self) -> Queries<'_> {
        Queries { queries: &self.buffer, stride: self.stride, heads: self.heads, rows: &self.rows }
    }

    fn query(&self, row: usize, head: usize, d: usize) -> &[f32] {
        &self.numbers[Self::ROWS[row] * self.stride + head * d..][..d]
    }
}

/// Asserts that scores are near those expected, up to the rounding of sums of `d` numbers; exactly if `d` is 0.
fn assert_scores(scores: &[f32], expected: &[f64], d: usize, what: &str) {
    assert_eq!(scores.len(), expected.len(), "{what}");
    for (i, (score, expected)) in scores.iter().zip(expected).enumerate() {
        let off = (f64::from(*score) - expected).abs();
        assert!(off <= 1e-6 * d as f64, "{what}: score {i} is {score}, not {expected}");
    }
}

/// A function of two numbers.
type Pair = fn(f64, f64) -> f64;

/// Checks that the scores of two rows from `score` are near `exact(row, head, column)`, and the reduced ones near their sums and maxima.
fn check_scores(
    gpu: &Gpu,
    (heads, kv_heads, d): (usize, usize, usize),
    columns: usize,
    score: impl Fn(Option<Reduction>, &mut ScoreWorkspace) -> Result<(), GpuError>,
    exact: impl Fn(usize, usize, usize) -> f64,
    what: &str,
) {
    let (mut room, group) = (ScoreWorkspace::default(), heads / kv_heads);
    score(None, &mut room).unwrap();
    let expected = |list: usize| -> Vec<f64> { (0..columns).map(|c| exact(list / heads, list % heads, c)).collect() };
    for list in 0..2 * heads {
        let scores = room.of(None).download(gpu, list / heads, list % heads).unwrap();
        assert_scores(&scores, &expected(list), d, what);
    }
    let pairs: [(Reduction, Pair); 2] = [(Reduction::Sum, |a, b| a + b), (Reduction::Max, f64::max)];
    for (reduction, pair) in pairs {
        score(Some(reduction), &mut room).unwrap();
        for list in 0..2 * kv_heads {
            let of_heads: Vec<Vec<f64>> = (0..group).map(|head| expected(list * group + head)).collect();
            let reduced: Vec<f64> =
                (0..columns).map(|c| of_heads[1..].iter().fold(of_heads[0][c], |x, head| pair(x, head[c]))).collect();
            let scores = room.of(Some(reduction)).download(gpu, list / kv_heads, list % kv_heads).unwrap();
            assert_scores(&scores, &reduced, group * d, &format!("{what} {reduction:?}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn scores_of_candidates() {
    let gpu = gpu();
    let kv_heads = 2;
    let mut cases: Vec<(usize, usize, usize)> = Vec::new();
    for d in [8, 32, 64, 80, 96, 128, 256] {
        cases.extend((1..=8).chain([12, 16, 21]).map(|group| (d, group, 301)));
    }
    cases.extend([1, 2, 3, 4, 5, 255, 256, 257, 2000].map(|tokens| (128, 4, tokens)));
    for storage in STORAGES {
        for (d, group, candidates) in &cases {
            let (d, group, candidates, first) = (*d, *group, *candidates, 3);
            let heads = kv_heads * group;
            let kv = Kv::new(kv_heads, first + candidates + 2, d, 120, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let asked = Asked::new(&gpu, heads, d, storage);
            let mut room = ScoreWorkspace::default();
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let tokens = first..first + candidates;
            let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                gpu.score_keys(&asked.queries(), 0..2, &keys, tokens.clone(), reduction, room)
            };
            let exact = |row: usize, head: usize, column: usize| {
                dot(asked.query(row, head, d), kv.key(head / group, first + column))
            };
            let what = format!("{storage:?} d {d} group {group}, {candidates} candidates");
            check_scores(&gpu, (heads, kv_heads, d), candidates, score, exact, &what);
            // One row alone.
            gpu.score_keys(&asked.queries(), 1..2, &keys, tokens.clone(), None, &mut room).unwrap();
            let expected: Vec<f64> = (0..candidates).map(|column| exact(1, heads - 1, column)).collect();
            assert_scores(&room.of(None).download(&gpu, 0, heads - 1).unwrap(), &expected, d, &what);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn bounds_of_pages_and_their_scores() {
    let gpu = gpu();
    let (kv_heads, first) = (2, 3);
    for storage in STORAGES {
        for (d, group) in [(8, 1), (64, 4), (80, 3), (128, 8), (256, 2)] {
            for (size, candidates) in
                [(1, 1), (1, 37), (5, 4), (5, 5), (5, 101), (16, 64), (16, 301), (64, 333), (1000, 7), (16, 5000)]
            {
                let heads = kv_heads * group;
                let kv = Kv::new(kv_heads, first + candidates + 2, d, 130, storage);
                let buffers = kv.send(&gpu, kv.tokens + 5, storage);
                let pages = Pages { tokens: first..first + candidates, size };
                let count = pages.count();
                let nothing = vec![f32::NAN; kv_heads * count * d];
                let (mut lower, mut upper) = (send(&gpu, &nothing, storage), send(&gpu, &nothing, storage));
                let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
                gpu.page_bounds(&keys, &pages, &mut lower, &mut upper).unwrap();
                let bound = |fold: fn(f32, f32) -> f32| -> Vec<f32> {
                    let place = |i: usize| (i / (count * d), i / d % count, i % d);
                    let of = |(head, page, channel): (usize, usize, usize)| {
                        let begin = first + page * size;
                        let tokens = begin + 1..(begin + size).min(first + candidates);
                        tokens.fold(kv.key(head, begin)[channel], |folded, t| fold(folded, kv.key(head, t)[channel]))
                    };
                    (0..kv_heads * count * d).map(|i| of(place(i))).collect()
                };
                let what = format!("{storage:?} d {d} group {group}, {candidates} candidates by {size}");
                let (least, most) = (bound(f32::min), bound(f32::max));
                assert_eq!(fetch(&gpu, &lower, least.len(), storage), least, "{what}");
                assert_eq!(fetch(&gpu, &upper, most.len(), storage), most, "{what}");
                let asked = Asked::new(&gpu, heads, d, storage);
                let bounds = PageBounds { lower: &lower, upper: &upper, pages: count, kv_heads, d, storage };
                let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                    gpu.score_bounds(&asked.queries(), 0..2, &bounds, reduction, room)
                };
                let exact = |row: usize, head: usize, page: usize| {
                    let at = (head / group * count + page) * d;
                    let product = |(i, q): (usize, &f32)| {
                        f64::from(*q) * f64::from(if *q > 0.0 { most[at + i] } else { least[at + i] })
                    };
                    asked.query(row, head, d).iter().enumerate().map(product).sum()
                };
                check_scores(&gpu, (heads, kv_heads, d), count, score, exact, &what);
            }
        }
    }
}

/// Returns the values of labels of `bits` bits, `[token][width]`: each channel is scaled by its range over 128 tokens.
fn labels_of(rows: &[f32], width: usize, bits: u32) -> Vec<f32> {
    const GROUP: usize = 128;
    let top = (1 << bits) as f32 - 1.0;
    let mut labels = rows.to_vec();
    for group in labels.chunks_mut(GROUP * width) {
        for channel in 0..width {
            let own = || group.iter().skip(channel).step_by(width).copied();
            let (least, most) = (own().fold(f32::INFINITY, f32::min), own().fold(f32::NEG_INFINITY, f32::max));
            let step = (most - least) / top;
            for x in group.iter_mut().skip(channel).step_by(width) {
                let code = if step > 0.0 { ((*x - least) / step).round().clamp(0.0, top) } else { 0.0 };
                *x = least + step * code;
            }
        }
    }
    labels
}

/// Codes bounds `[page][d]` in a few bits, each channel by its own range over 128 pages, rounded up or down.
fn coded_bounds(bounds: &[f32], d: usize, bits: u32, up: bool) -> Vec<f32> {
    const GROUP: usize = 128;
    let top = (1 << bits) as f32 - 1.0;
    let mut coded = bounds.to_vec();
    for group in coded.chunks_mut(GROUP * d) {
        for channel in 0..d {
            let own = || group.iter().skip(channel).step_by(d).copied();
            let (least, most) = (own().fold(f32::INFINITY, f32::min), own().fold(f32::NEG_INFINITY, f32::max));
            let mut step = (most - least) / top;
            while up && least + step * top < most {
                step = step.next_up();
            }
            let value = |code: f32| least + step * code;
            for x in group.iter_mut().skip(channel).step_by(d).filter(|_| step > 0.0) {
                let place = (*x - least) / step;
                let code = if up { place.ceil().min(top) } else { place.floor().min(top) };
                // The quotient is rounded, so this code may be on the wrong side of the bound; then the next one is right.
                let is_wrong = if up { value(code) < *x } else { value(code) > *x };
                *x = value(match (is_wrong, up) {
                    (false, _) => code,
                    (true, true) => code + 1.0,
                    (true, false) => code - 1.0,
                });
            }
        }
    }
    coded
}

#[test]
#[ignore = "needs a GPU"]
fn bounds_of_pages_in_few_bits_and_their_scores() {
    let gpu = gpu();
    let kv_heads = 2;
    for storage in STORAGES {
        for (d, page, group, tokens) in [
            (64, 16, 4, 16),
            (64, 5, 3, 643),
            (128, 16, 7, 2500),
            (128, 1, 1, 129),
            (80, 7, 2, 900),
            (32, 16, 12, 4100),
        ] {
            let (heads, first) = (kv_heads * group, 3);
            let kv = Kv::new(kv_heads, first + tokens, d, 170, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let pages = Pages { tokens: first..first + tokens, size: page };
            let bound = |kv_head: usize, fold: fn(f32, f32) -> f32| -> Vec<f32> {
                let of = |i: usize| {
                    let begin = first + i / d * page;
                    let own = begin..(begin + page).min(first + tokens);
                    own.map(|t| kv.key(kv_head, t)[i % d]).reduce(fold).expect("a page has a token")
                };
                (0..pages.count() * d).map(of).collect()
            };
            let asked = Asked::new(&gpu, heads, d, storage);
            for bits in [4, 2] {
                let shape = CodedBounds { bits, pages: pages.count(), kv_heads, d };
                let codes = gpu.code_bounds(&keys, &pages, bits).unwrap();
                let stored: Vec<[Vec<f32>; 2]> = (0..kv_heads)
                    .map(|head| {
                        [(f32::min as fn(f32, f32) -> f32, false), (f32::max, true)]
                            .map(|(fold, up)| coded_bounds(&bound(head, fold), d, bits as u32, up))
                    })
                    .collect();
                let exact = |row: usize, head: usize, column: usize| {
                    let [lower, upper] = &stored[head / group];
                    let product = |(c, q): (usize, &f32)| {
                        let bound = if *q > 0.0 { upper[column * d + c] } else { lower[column * d + c] };
                        f64::from(*q) * f64::from(bound)
                    };
                    asked.query(row, head, d).iter().enumerate().map(product).sum()
                };
                let room = RefCell::new(CodedBoundsWorkspace::default());
                let score = |reduction: Option<Reduction>, scores: &mut ScoreWorkspace| {
                    let queries = asked.queries();
                    let room = &mut room.borrow_mut();
                    gpu.score_coded_bounds((&queries, 0..2), storage, (&shape, &codes), reduction, (scores, room))
                };
                let what =
                    format!("{storage:?} {bits} bits, pages of {page}, {d} channels, group {group}, {tokens} tokens");
                check_scores(&gpu, (heads, kv_heads, 80 * d), pages.count(), score, exact, &what);
            }
        }
    }
}

/// Returns different channels for each of `heads` heads, ascending.
fn some_channels(heads: usize, width: usize, d: usize) -> Vec<u32> {
    let of_head = |head: usize| {
        let mut channels: Vec<u32> = (0..width).map(|i| ((i * 7 + 3 * head) % d) as u32).collect();
        channels.sort_unstable();
        channels.dedup();
        let mut free = (0..d as u32).filter(|c| !channels.contains(c)).collect::<Vec<_>>().into_iter();
        while channels.len() < width {
            channels.push(free.next().unwrap());
        }
        channels.sort_unstable();
        channels
    };
    (0..heads).flat_map(of_head).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn labels_of_keys_and_their_scores() {
    let gpu = gpu();
    // Three KV heads with channels for two: the third one uses those of the first.
    let (kv_heads, known, first) = (3, 2, 3);
    for storage in STORAGES {
        for (d, width, group, tokens) in [
            (16, 4, 1, 1),
            (64, 16, 4, 127),
            (64, 5, 3, 128),
            (128, 32, 4, 700),
            (128, 33, 2, 300),
            (128, 100, 8, 129),
            (128, 128, 7, 257),
            (64, 16, 12, 1000),
        ] {
            let heads = kv_heads * group;
            let kv = Kv::new(kv_heads, first + tokens + 2, d, 160, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let chosen = some_channels(known, width, d);
            let buffer = gpu.upload(&chosen).unwrap();
            let channels = ChannelLists { buffer: &buffer, heads: known, width };
            let own = |kv_head: usize| &chosen[kv_head % known * width..][..width];
            let of_head = |kv_head: usize| -> Vec<f32> {
                let row = |t: usize| own(kv_head).iter().map(move |c| (t, *c));
                (0..tokens).flat_map(row).map(|(t, c)| kv.key(kv_head, first + t)[c as usize]).collect()
            };
            let asked = Asked::new(&gpu, heads, d, storage);
            for bits in [4, 2] {
                let labels = LabelCodes { channels, bits, tokens, kv_heads };
                let [mut ranges, mut codes] = labels.bytes().map(|bytes| gpu.upload(&vec![0xffu8; bytes]).unwrap());
                gpu.build_labels(&keys, (first, CodeRounding::Nearest), &labels, [&mut ranges, &mut codes]).unwrap();
                let stored: Vec<Vec<f32>> =
                    (0..kv_heads).map(|head| labels_of(&of_head(head), width, bits as u32)).collect();
                let exact = |row: usize, head: usize, column: usize| {
                    let (kv_head, query) = (head / group, asked.query(row, head, d));
                    let product = |(c, x): (&u32, &f32)| f64::from(query[*c as usize]) * f64::from(*x);
                    own(kv_head).iter().zip(&stored[kv_head][column * width..]).map(product).sum()
                };
                let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                    let queries = asked.queries();
                    gpu.score_labels((&queries, 0..2), (d, storage), &labels, [&ranges, &codes], reduction, room)
                };
                // A factor has 16 bits, and codes are read as larger than they are.
                let allowed = 40 * width;
                let what = format!("{storage:?} {bits} bits, {width} of {d} channels, group {group}, {tokens} tokens");
                check_scores(&gpu, (heads, kv_heads, allowed), tokens, score, exact, &what);
            }
            if width > 128 || storage == Storage::F32 && !width.is_multiple_of(8) {
                continue;
            }
            let padded = [32, 64, 128].into_iter().find(|padded| *padded >= width).unwrap();
            let noise = vec![f32::NAN; kv_heads * tokens * padded];
            let mut rows = send(&gpu, &noise, storage);
            gpu.gather_keys(&keys, first..first + tokens, &channels, padded, &mut rows).unwrap();
            let mut made = send(&gpu, &vec![f32::NAN; 2 * heads * padded], storage);
            let of_queries = (&asked.queries(), 0..2);
            gpu.gather_queries(of_queries, (d, kv_heads, storage), &channels, padded, &mut made).unwrap();
            let mut in_order = HostDeviceVec::default();
            in_order.set(&gpu, vec![0, 1]).unwrap();
            let queries = ProjectedQueries { high: &made, low: None, heads, width: padded, rows: &in_order };
            let index = IndexRows { rows: &rows, count: tokens, kv_heads, storage };
            let exact = |row: usize, head: usize, column: usize| {
                let (query, key) = (asked.query(row, head, d), kv.key(head / group, first + column));
                let product = |c: &u32| f64::from(query[*c as usize]) * f64::from(key[*c as usize]);
                own(head / group).iter().map(product).sum()
            };
            let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                gpu.score_rows(&queries, &index, reduction, room)
            };
            check_scores(
                &gpu,
                (heads, kv_heads, d),
                tokens,
                score,
                exact,
                &format!("{storage:?} {width} of {d} as stored"),
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn keys_and_queries_on_a_few_directions() {
    let gpu = gpu();
    let (kv_heads, known, first) = (3, 2, 3);
    for storage in STORAGES {
        for (d, count, group, tokens) in
            [(16, 4, 1, 1), (64, 16, 4, 63), (64, 64, 3, 64), (128, 32, 4, 700), (128, 100, 8, 129)]
        {
            let heads = kv_heads * group;
            let kv = Kv::new(kv_heads, first + tokens + 2, d, 170, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let directions = noise(known * count * d, 171);
            let buffer = gpu.upload(&directions).unwrap();
            let of_gpu = Directions { buffer: &buffer, heads: known, count, d };
            let direction = |kv_head: usize, i: usize| &directions[(kv_head % known * count + i) * d..][..d];
            let padded = [32, 64, 128].into_iter().find(|padded| *padded >= count).unwrap();
            let mut rows = send(&gpu, &vec![f32::NAN; kv_heads * tokens * padded], storage);
            gpu.project_keys(&keys, first..first + tokens, &of_gpu, padded, &mut rows).unwrap();
            let projected = fetch(&gpu, &rows, kv_heads * tokens * padded, storage);
            let expected: Vec<f64> = (0..kv_heads * tokens * padded)
                .map(|i| {
                    let (row, column) = (i / padded, i % padded);
                    let key = kv.key(row / tokens, first + row % tokens);
                    if column < count { dot(key, direction(row / tokens, column)) } else { 0.0 }
                })
                .collect();
            let what = format!("{storage:?} {count} of {d}, group {group}, {tokens} tokens");
            assert_near(&projected, &expected, tolerance(storage), &what);
            let asked = Asked::new(&gpu, heads, d, storage);
            let nothing = vec![f32::NAN; 2 * heads * padded];
            let (mut most, mut rest) = (send(&gpu, &nothing, storage), send(&gpu, &nothing, storage));
            let (asking, rows_of) = (asked.queries(), 0..2);
            gpu.project_queries(
                (&asking, rows_of.clone()),
                (kv_heads, storage),
                &of_gpu,
                (padded, false),
                [&mut most, &mut rest],
            )
            .unwrap();
            let mut in_order = HostDeviceVec::default();
            in_order.set(&gpu, vec![0, 1]).unwrap();
            let rest = (storage != Storage::F32).then_some(&rest);
            let queries = ProjectedQueries { high: &most, low: rest, heads, width: padded, rows: &in_order };
            let index = IndexRows { rows: &rows, count: tokens, kv_heads, storage };
            let exact = |row: usize, head: usize, column: usize| {
                let (query, at) = (asked.query(row, head, d), (head / group * tokens + column) * padded);
                let term = |i: usize| dot(query, direction(head / group, i)) * f64::from(projected[at + i]);
                (0..count).map(term).sum()
            };
            let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                gpu.score_rows(&queries, &index, reduction, room)
            };
            // Each factor is a sum of `d` numbers, in 16 bits or more.
            check_scores(&gpu, (heads, kv_heads, 64 * d), tokens, score, exact, &what);
            // The queries of a group, summed first.
            let (mut most, mut rest) = (send(&gpu, &nothing, storage), send(&gpu, &nothing, storage));
            gpu.project_queries(
                (&asking, rows_of.clone()),
                (kv_heads, storage),
                &of_gpu,
                (padded, true),
                [&mut most, &mut rest],
            )
            .unwrap();
            let rest = (storage != Storage::F32).then_some(&rest);
            let queries = ProjectedQueries { high: &most, low: rest, heads: kv_heads, width: padded, rows: &in_order };
            let mut room = ScoreWorkspace::default();
            gpu.score_rows(&queries, &index, Some(Reduction::Sum), &mut room).unwrap();
            for list in 0..2 * kv_heads {
                let of_group = |c: usize| {
                    let heads = (0..group).map(|head| list % kv_heads * group + head);
                    heads.map(|head| exact(list / kv_heads, head, c)).sum()
                };
                let expected: Vec<f64> = (0..tokens).map(of_group).collect();
                let scores = room.of(Some(Reduction::Sum)).download(&gpu, list / kv_heads, list % kv_heads).unwrap();
                assert_scores(&scores, &expected, 64 * d * group, &format!("{what}, added up first"));
            }
        }
    }
}

/// Returns the logarithm of the probability that a token at this cosine collides in at least `least` of `tables` tables of `bits` planes.
fn log_probability(cosine: f64, [bits, tables, least]: [usize; 3], floor: f64) -> f64 {
    let one = (1.0 - cosine.clamp(-1.0, 1.0).acos() / std::f64::consts::PI).powi(bits as i32);
    let none = (1.0 - one).powi(tables as i32);
    let once = tables as f64 * one * (1.0 - one).powi(tables as i32 - 1);
    (floor + if least == 1 { 1.0 - none } else { 1.0 - none - once }).ln()
}

#[test]
#[ignore = "needs a GPU"]
fn tokens_that_collide_are_sampled_with_their_probability() {
    let gpu = gpu();
    let (kv_heads, first, farthest, steps) = (2, 3, 0.9, 4096);
    for storage in STORAGES {
        for (d, group, tokens, bits, tables, least, is_centred) in [
            (16, 1, 1, 1, 2, 2, false),
            (64, 4, 700, 4, 10, 2, true),
            (128, 3, 5001, 10, 150, 2, true),
            (128, 2, 70_000, 13, 9, 1, true),
            (80, 2, 300_001, 9, 33, 2, false),
        ] {
            let shape = [bits, tables, least];
            let heads = kv_heads * group;
            let what = format!("{storage:?}, {tokens} tokens, {shape:?}");
            let kv = Kv::new(kv_heads, first + tokens + 2, d, 190, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let planes = noise(bits * tables * d, 191);
            let floor = if least == 1 { 1e-4 } else { 0.0 };
            let sine = |step: usize| step as f64 * farthest / f64::from(steps);
            let log = |step: usize| log_probability(1.0 - 2.0 * sine(step).powi(2), shape, floor) as f32;
            let log_probabilities: Vec<f32> = (0..=steps as usize).map(log).collect();
            let mut on_gpu = HostDeviceVec::default();
            on_gpu.set(&gpu, log_probabilities).unwrap();
            let chances = SamplingSpec { least: least as u8, floor, log_probabilities: &on_gpu, farthest };
            let of_gpu = TableShape { bits, tables, d };
            let made = gpu.hash_keys(&keys, first..first + tokens, of_gpu, (&planes, is_centred)).unwrap();
            let asked = Asked::new(&gpu, heads, d, storage);
            let (mut lists, mut room) = (TokenLists::default(), CollisionWorkspace::default());
            let layout = TokenListLayout::new(heads, tokens).expecting(9).weighted();
            lists.resize(&gpu, layout, vec![first + tokens; 2]).unwrap();
            gpu.sample_collisions(&asked.queries(), &keys, (&made, &chances), &mut lists, &mut room).unwrap();
            // In long contexts only one head is compared, because the reference is slow.
            for list in (0..2 * heads).filter(|list| tokens < 5000 || list % heads + 1 == heads) {
                let (row, head) = (list / heads, list % heads);
                let (kv_head, query) = (head / group, asked.query(row, head, d));
                let mean: Vec<f64> = (0..d)
                    .map(|c| (0..tokens).map(|t| f64::from(kv.key(kv_head, first + t)[c])).sum::<f64>() / tokens as f64)
                    .map(|mean| if is_centred { mean } else { 0.0 })
                    .collect();
                let sides: Vec<bool> = planes.chunks_exact(d).map(|plane| dot(query, plane) > 0.0).collect();
                let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
                let query_length = dot(query, query).sqrt();
                let (mut expected, mut unsure, mut entries) = (Vec::new(), std::collections::BTreeSet::new(), 0);
                for token in 0..tokens {
                    let key: Vec<f64> =
                        kv.key(kv_head, first + token).iter().zip(&mean).map(|(k, m)| f64::from(*k) - m).collect();
                    let side = |plane: &[f32]| plane.iter().zip(&key).map(|(p, k)| f64::from(*p) * k).sum::<f64>();
                    let mut equal = 0;
                    for (planes, sides) in planes.chunks_exact(bits * d).zip(sides.chunks_exact(bits)) {
                        let own: Vec<f64> = planes.chunks_exact(d).map(side).collect();
                        if own.iter().any(|side| side.abs() < 2e-5) {
                            unsure.insert(token as u32);
                        }
                        equal += usize::from(own.iter().zip(sides).all(|(own, side)| (*own > 0.0) == *side));
                    }
                    entries += equal;
                    if equal >= least {
                        let along: f64 = query.iter().zip(&key).map(|(q, k)| f64::from(*q) * k).sum();
                        let lengths = query_length * length(&key);
                        expected.push((token as u32, if lengths > 0.0 { along / lengths } else { 0.0 }));
                    }
                }
                assert!(tables * unsure.len() <= tables + tokens * tables / 50, "{what}: {} unsure", unsure.len());
                let found = lists.download(&gpu, row, head).unwrap();
                let weights = lists.download_weights(&gpu, row, head).unwrap();
                let read = lists.download_entries(&gpu, row, head).unwrap();
                assert!(found.is_sorted() && (read as usize).abs_diff(entries) <= tables * unsure.len(), "{what}");
                let sure = |token: &u32| !unsure.contains(token);
                let ours: Vec<(u32, f32)> = found.iter().map(|token| token - first as u32).zip(weights).collect();
                let ours: Vec<(u32, f32)> = ours.into_iter().filter(|(token, _)| sure(token)).collect();
                expected.retain(|(token, _)| sure(token));
                assert_eq!(
                    ours.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
                    expected.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
                    "{what}, row {row}, head {head}"
                );
                for ((token, ours), (_, cosine)) in ours.iter().zip(&expected) {
                    let exact = log_probability(*cosine, shape, floor);
                    let off = (f64::from(*ours) - exact).abs();
                    assert!(off < 1e-3 * exact.abs().max(1.0), "{what}, token {token}: {ours}, not {exact}");
                }
            }
        }
    }
}

/// Returns the output of a net with three layers for `x`, in f64.
fn through_net(x: &[f32], layers: [(&[f32], &[f32]); 3]) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (i, (weights, biases)) in layers.into_iter().enumerate() {
        let output = |(row, bias): (&[f32], &f32)| {
            row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(*bias)
        };
        let out: Vec<f64> = weights.chunks(x.len()).zip(biases).map(output).collect();
        x = if i < 2 { out.iter().map(|y| y / (1.0 + (-y).exp())).collect() } else { out };
    }
    x
}

#[test]
#[ignore = "needs a GPU"]
fn signatures_by_nets_and_their_distances() {
    let gpu = gpu();
    let (kv_heads, known, first) = (3, 2, 3);
    for storage in STORAGES {
        for (d, bits, group, each, tokens) in
            [(16, 8, 1, 1, 1), (64, 32, 4, 1, 200), (64, 40, 3, 3, 65), (128, 32, 4, 1, 1100), (128, 128, 2, 2, 64)]
        {
            let heads = kv_heads * group;
            let kv = Kv::new(kv_heads, first + tokens + 2, d, 180, storage);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            let asked = Asked::new(&gpu, heads, d, storage);
            let what = format!("{storage:?} {bits} bits of {d}, group {group}, {each} nets, {tokens} tokens");
            // Weights of a size that keeps sums about as large as their inputs.
            let layers = |nets: usize, seed: u64| -> [(Vec<f32>, Vec<f32>); 3] {
                std::array::from_fn(|i| {
                    let outputs = if i < 2 { d } else { bits };
                    let weights: Vec<f32> = noise(nets * outputs * d, seed + i as u64);
                    let weights = weights.iter().map(|w| w * (3.0 / d as f32).sqrt()).collect::<Vec<_>>();
                    (stored(&weights, Storage::F16), noise(nets * outputs, seed + 9 + i as u64))
                })
            };
            let send_nets = |nets: usize, layers: &[(Vec<f32>, Vec<f32>); 3]| {
                let halves = |w: &[f32]| w.iter().map(|w| f16::from_f32(*w)).collect::<Vec<_>>();
                let layers = std::array::from_fn(|i| (halves(&layers[i].0), layers[i].1.clone()));
                Nets::new(&gpu, nets, (d, bits), layers).unwrap()
            };
            let bits_of = |net: usize, layers: &[(Vec<f32>, Vec<f32>); 3], x: &[f32]| {
                let own = |i: usize| {
                    let outputs = layers[i].1.len() / (layers[2].1.len() / bits);
                    (&layers[i].0[net * outputs * d..][..outputs * d], &layers[i].1[net * outputs..][..outputs])
                };
                through_net(x, [own(0), own(1), own(2)])
            };
            let words = bits.div_ceil(32);
            // A sign may differ only if the sum is almost zero.
            let check = |word: &dyn Fn(usize) -> u32, expected: &[f64]| {
                for (bit, y) in expected.iter().enumerate() {
                    let set = word(bit / 32) >> (bit % 32) & 1 == 1;
                    assert!(set == (*y > 0.0) || y.abs() < 1e-4, "{what}: bit {bit} of {y}");
                }
                if !bits.is_multiple_of(32) {
                    assert_eq!(word(words - 1) >> (bits % 32), 0, "{what}");
                }
            };
            let (of_keys, of_queries) = (layers(known * each, 200), layers(known * group, 300));
            let nets = send_nets(known * each, &of_keys);
            let stride = tokens.next_multiple_of(4);
            let mut signed = gpu.upload(&vec![u32::MAX; kv_heads * each * words * stride]).unwrap();
            gpu.sign_keys(&keys, first..first + tokens, &nets, each, &mut signed).unwrap();
            let mut planes = vec![0u32; kv_heads * each * words * stride];
            gpu.download(&signed, 0, &mut planes).unwrap();
            for net in 0..kv_heads * each {
                for t in 0..tokens {
                    let expected = bits_of(net % (known * each), &of_keys, kv.key(net / each, first + t));
                    check(&|word| planes[(net * words + word) * stride + t], &expected);
                }
            }
            let nets = send_nets(known * group, &of_queries);
            let mut made = gpu.upload(&vec![u32::MAX; 2 * heads * words]).unwrap();
            gpu.sign_queries((&asked.queries(), 0..2), storage, &nets, &mut made).unwrap();
            let mut of_rows = vec![0u32; 2 * heads * words];
            gpu.download(&made, 0, &mut of_rows).unwrap();
            for i in 0..2 * heads {
                let expected = bits_of(i % heads % (known * group), &of_queries, asked.query(i / heads, i % heads, d));
                check(&|word| of_rows[i * words + word], &expected);
            }
            // Distances are whole numbers, so all scores are equal bit by bit.
            let ties = TieOrder { seed: [77, 5], levels: 9, unit: 1.0 / 8192.0, ..TieOrder::default() };
            let index = Signatures { buffer: &signed, kv_heads, nets: each, words, tokens };
            let exact = |row: usize, head: usize, column: usize| {
                let net = head / group * each + if each == 1 { 0 } else { head % group };
                let differ = |word: usize| {
                    let key = planes[(net * words + word) * stride + column];
                    f64::from((key ^ of_rows[(row * heads + head) * words + word]).count_ones())
                };
                f64::from(level(&ties, column)) / 8192.0 - (0..words).map(differ).sum::<f64>()
            };
            let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                gpu.score_signatures((&made, 2, heads), &index, ties, reduction, room)
            };
            check_scores(&gpu, (heads, kv_heads, 0), tokens, score, exact, &what);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn keys_are_signed_by_hyperplanes_at_the_length_of_the_longest() {
    let (gpu, kv_heads, first) = (gpu(), 3, 3);
    for storage in STORAGES {
        for (d, bits, tokens) in [(16, 8, 1), (64, 32, 200), (80, 130, 65), (128, 300, 1100), (12, 33, 64)] {
            let mut kv = Kv::new(kv_heads, first + tokens + 2, d, 510, storage);
            // A value of zeros counts as the shortest other one.
            let zero = (kv.tokens + first + tokens / 2) * d;
            kv.values[zero..zero + d].fill(0.0);
            let buffers = kv.send(&gpu, kv.tokens + 5, storage);
            let keys = cache(&buffers, kv.tokens + 5, &kv, storage);
            for (is_centred, by_values) in [(false, None), (true, None), (false, Some(3.5)), (true, Some(0.5))] {
                let width = d + 1 + usize::from(by_values.is_some());
                let normals = noise(bits * width, 511);
                let sides = KeySides { normals: &normals, bits, is_centred, by_values };
                let signed = gpu.sign_key_sides(&keys, first..first + tokens, &sides).unwrap();
                let (words, stride) = (bits.div_ceil(32), tokens.next_multiple_of(4));
                let mut stored = vec![u32::MAX; kv_heads * words * stride];
                gpu.download(&signed, 0, &mut stored).unwrap();
                for head in 0..kv_heads {
                    let lengthened = lengthened_keys(&kv, head, first..first + tokens, (is_centred, by_values));
                    for (t, key) in lengthened.iter().enumerate() {
                        for bit in 0..32 * words {
                            let word = stored[(head * words + bit / 32) * stride + t];
                            let is_set = word >> (bit % 32) & 1 == 1;
                            let normal = normals.chunks_exact(width).nth(bit);
                            let side = normal.map(|n| key.iter().zip(n).map(|(x, n)| x * f64::from(*n)).sum::<f64>());
                            // A sign may differ only if the sum is almost zero.
                            let is_right = side.map_or(!is_set, |side| is_set == (side > 0.0) || side.abs() < 1e-3);
                            let what =
                                format!("{storage:?} {bits} bits of {d}, {tokens} tokens, {is_centred} {by_values:?}");
                            assert!(is_right, "{what}: bit {bit} of token {t} is {is_set}, its side {side:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Keys of a KV head with their further coordinates, as `lsh_bits` defines them: less their mean, the scaled logarithm of the value's norm, and
/// what lengthens them to the longest.
fn lengthened_keys(
    kv: &Kv,
    head: usize,
    tokens: Range<usize>,
    (is_centred, by_values): (bool, Option<f64>),
) -> Vec<Vec<f64>> {
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut keys: Vec<Vec<f64>> = tokens.clone().map(|t| wide(kv.key(head, t))).collect();
    if is_centred {
        let count = keys.len() as f64;
        let mean: Vec<f64> = (0..kv.d).map(|c| keys.iter().map(|key| key[c]).sum::<f64>() / count).collect();
        keys.iter_mut().for_each(|key| key.iter_mut().zip(&mean).for_each(|(x, m)| *x -= m));
    }
    if let Some(factor) = by_values {
        let norms: Vec<f64> = tokens.map(|t| norm(&wide(kv.value(head, t)))).collect();
        let least = norms.iter().copied().filter(|n| *n > 0.0).fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 1.0 };
        keys.iter_mut().zip(&norms).for_each(|(key, n)| key.push(factor * n.max(least).ln()));
    }
    let longest = keys.iter().map(|key| norm(key)).fold(0.0, f64::max);
    let lengthen = |key: &mut Vec<f64>| key.push((longest * longest - norm(key).powi(2)).max(0.0).sqrt());
    keys.iter_mut().for_each(lengthen);
    keys
}

/// Returns the tie level of a token among those at the same distance.
fn level(ties: &TieOrder, place: usize) -> u32 {
    let mix = |x: u32| {
        let x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
        let x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
        x ^ x >> 16
    };
    let [low, high] = ties.seed;
    mix(mix(place as u32 ^ low) ^ high).checked_shr(32 - ties.levels).unwrap_or(0)
}

/// Random signatures of keys, and of the queries of three rows.
struct Signed {
    /// The number of KV heads, of query heads for each, and of nets for each.
    heads: [usize; 3],
    words: usize,
    tokens: usize,
    /// `[kv_head][net][word][token, padded to a multiple of four]`.
    keys: Vec<u32>,
    /// `[row][head][word]`.
    queries: Vec<u32>,
}

impl Signed {
    /// Makes keys with random bits under the mask `bits` and zeros elsewhere.
    fn new(heads: [usize; 3], words: usize, tokens: usize, bits: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(bits));
        let [kv_heads, group, nets] = heads;
        let planes = kv_heads * nets * words * tokens.next_multiple_of(4);
        let keys = (0..planes).map(|_| random.random::<u32>() & bits).collect();
        let queries = (0..3 * kv_heads * group * words).map(|_| random.random()).collect();
        Self { heads, words, tokens, keys, queries }
    }

    fn distance(&self, row: usize, head: usize, token: usize) -> u32 {
        let ([kv_heads, group, nets], words) = (self.heads, self.words);
        let plane = head / group * nets + if nets == 1 { 0 } else { head % group };
        let key = |word: usize| self.keys[(plane * words + word) * self.tokens.next_multiple_of(4) + token];
        let query = |word: usize| self.queries[(row * kv_heads * group + head) * words + word];
        (0..words).map(|word| (key(word) ^ query(word)).count_ones()).sum()
    }

    /// Returns the tokens nearest to some heads of a row together.
    fn nearest(&self, row: usize, heads: Range<usize>, k: usize, ties: &TieOrder) -> Vec<u32> {
        let all = |token: usize| heads.clone().map(|head| self.distance(row, head, token)).sum::<u32>();
        let mut order: Vec<_> = (0..self.tokens).map(|t| (all(t), u32::MAX - level(ties, t), t as u32)).collect();
        order.sort_unstable();
        let mut nearest: Vec<u32> = order[..k].iter().map(|(_, _, token)| *token).collect();
        nearest.sort_unstable();
        nearest
    }
}

/// Checks the nearest tokens among keys that are all equal, that have few different values, and that have many.
fn check_nearest(gpu: &Gpu, shape: [usize; 3], words: usize, tokens: usize, ties: TieOrder) {
    let ([kv_heads, group, nets], first) = (shape, 3);
    for bits in [0, 7, u32::MAX] {
        let signed = Signed::new(shape, words, tokens, bits);
        let (buffer, queries) = (gpu.upload(&signed.keys).unwrap(), gpu.upload(&signed.queries).unwrap());
        let keys = Signatures { buffer: &buffer, kv_heads, nets, words, tokens };
        for (reduction, of_list) in [(None, 1), (Some(Reduction::Sum), group)] {
            let Some(nearest) = Nearest::new(gpu, (3, kv_heads * group), keys, reduction) else {
                assert!(reduction.is_some() && nets > 1, "nothing finds {words} words of groups of {group}");
                continue;
            };
            let count = kv_heads * group / of_list;
            for chosen in [[0, 1, tokens], [tokens / 16, tokens / 3, tokens - 1]] {
                let (mut lists, mut numbers) = (TokenLists::default(), HostDeviceVec::default());
                lists.resize(gpu, TokenListLayout::new(count, tokens), vec![first + tokens; 3]).unwrap();
                numbers.set(gpu, chosen.iter().map(|k| *k as u32).collect()).unwrap();
                gpu.nearest_signatures(nearest, &queries, ties, (&numbers, first), &mut lists).unwrap();
                for (row, list) in (0..3).flat_map(|row| (0..count).map(move |list| (row, list))) {
                    let found = lists.download(gpu, row, list).unwrap();
                    let expected = signed.nearest(row, list * of_list..(list + 1) * of_list, chosen[row], &ties);
                    let expected: Vec<u32> = expected.into_iter().map(|token| token + first as u32).collect();
                    let what = format!("{shape:?} heads, {words} words of {tokens} tokens, bits {bits:x}, {ties:?}");
                    assert!(found == expected, "{what}, {reduction:?}: {} of list {list}, row {row}", chosen[row]);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_nearest_signatures_are_found_at_once() {
    let gpu = gpu();
    let ties = |levels: u32| TieOrder {
        seed: [77, 5],
        levels,
        unit: 1.0 / (1u32 << (levels + 4)) as f32,
        ..TieOrder::default()
    };
    let shapes = [
        ([2, 4, 1], 1),
        ([2, 3, 1], 1),
        ([3, 1, 1], 1),
        ([1, 8, 1], 1),
        ([2, 2, 1], 1),
        ([2, 2, 1], 3),
        ([1, 5, 5], 2),
    ];
    for (shape, words) in shapes {
        for tokens in [1, 5, 1000, 5001] {
            check_nearest(&gpu, shape, words, tokens, ties(15));
        }
        check_nearest(&gpu, shape, words, 3000, ties(3));
    }
    check_nearest(&gpu, [2, 4, 1], 1, 3000, TieOrder::default());
    check_nearest(&gpu, [1, 1, 1], 8, 3000, ties(12));
}

/// Each kernel that finds the nearest signatures runs once, briefly enough for a tool that checks every access.
#[test]
#[ignore = "needs a GPU"]
fn each_kernel_finds_the_nearest_signatures() {
    let gpu = gpu();
    let ties = TieOrder { seed: [1, 2], levels: 15, unit: 1.0 / (1u32 << 17) as f32, ..TieOrder::default() };
    for (shape, words) in [([2, 4, 1], 1), ([1, 1, 1], 1), ([1, 2, 1], 3)] {
        check_nearest(&gpu, shape, words, 1000, ties);
    }
}

/// Lists are so long that every block has many tokens, or so many that few blocks work on each.
#[test]
#[ignore = "needs a GPU"]
fn the_nearest_of_many_signatures_are_found_at_once() {
    let gpu = gpu();
    let ties = TieOrder { seed: [7, 50], levels: 15, unit: 1.0 / (1u32 << 17) as f32, ..TieOrder::default() };
    check_nearest(&gpu, [2, 4, 1], 1, 40_000, ties);
    check_nearest(&gpu, [2, 2, 1], 3, 40_000, ties);
    check_nearest(&gpu, [8, 4, 1], 1, 70_000, ties);
    check_nearest(&gpu, [2, 4, 1], 1, 300_001, ties);
    check_nearest(&gpu, [1, 2, 1], 2, 500_000, ties);
}

/// Returns scores with the distribution of this name.
fn scores_like(kind: &str, count: usize, seed: u64) -> Vec<f32> {
    let numbers = noise(count, seed);
    let kind = |(i, x): (usize, f32)| match kind {
        "noise" => x,
        "negative" => -1.0 - x.abs() * 1e-3,
        "equal" => 0.25,
        "few" => (x * 3.0).round(),
        "zeros" => [0.0, -0.0][i % 2],
        "wide" => x.powi(9) * 1e30,
        "odd" => [x, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 0.0, -0.0][i % 7],
        _ => unreachable!("a kind of scores"),
    };
    numbers.into_iter().enumerate().map(kind).collect()
}

/// One list of a run by the published algorithm, with maps and f64.
struct NaiveHeld {
    heavy: BTreeMap<usize, f64>,
    window: BTreeMap<usize, f64>,
    budget: usize,
}

impl NaiveHeld {
    fn slide(&mut self, first: usize, total: usize) {
        self.window.insert(total - 1, 0.0);
        let staying = self.window.split_off(&first);
        self.heavy.extend(std::mem::replace(&mut self.window, staying));
        while self.heavy.len() > self.budget {
            let lighter = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
            let lightest = self.heavy.iter().map(|(token, mass)| (*token, *mass)).min_by(lighter).unwrap().0;
            self.heavy.remove(&lightest);
        }
    }

    fn weigh(&mut self, sink: usize, logit: impl Fn(usize) -> f64) {
        let held: Vec<usize> = (0..sink).chain(self.heavy.keys().copied()).chain(self.window.keys().copied()).collect();
        let weights: Vec<f64> = held.iter().map(|token| logit(*token).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (token, weight) in held.iter().zip(weights) {
            let mass = self.heavy.get_mut(token).or(self.window.get_mut(token));
            mass.into_iter().for_each(|mass| *mass += weight / sum);
        }
    }
}

/// Two runs of the same prefix take turns, with two rows of one and one row of the other in each step.
#[test]
#[ignore = "needs a GPU"]
fn heavy_hitters_are_those_of_the_algorithm() {
    let gpu = gpu();
    let (tokens, tail_capacity) = (700, 80);
    for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
        for (kv_heads, group, d, by_group, budget, window, sink) in [
            (2, 3, 64, false, 50, 40, 4),
            (1, 12, 128, false, 300, 270, 0),
            (1, 12, 128, true, 300, 270, 1),
            (2, 1, 256, true, 1, 1, 3),
            (3, 2, 40, true, 1000, 30, 2),
        ] {
            let what = format!("{storage:?}, {kv_heads} x {group} heads of {d}, {budget} and {window}");
            let (heads, lists) = (kv_heads * group, if by_group { kv_heads } else { kv_heads * group });
            let kv = Kv::new(kv_heads, tokens, d, 5, storage);
            let prefix = kv.send(&gpu, tokens, storage);
            let tails: Vec<Kv> = (0..2).map(|run| Kv::new(kv_heads, tail_capacity, d, 50 + run, storage)).collect();
            let sent: Vec<[Buffer; 2]> = tails.iter().map(|tail| tail.send(&gpu, tail_capacity, storage)).collect();
            let begun: Vec<HeldList> = (0..lists)
                .map(|list| {
                    let masses = noise(tokens, 900 + list as u64).iter().map(|x| x.abs()).collect::<Vec<f32>>();
                    let first = tokens - window;
                    let mut heavy: Vec<usize> = (sink..first).collect();
                    heavy.sort_by(|a, b| masses[*b].total_cmp(&masses[*a]));
                    heavy.truncate(budget);
                    heavy.sort_unstable();
                    HeldList {
                        masses: heavy.iter().map(|token| masses[*token]).collect(),
                        tokens: heavy.into_iter().map(|token| token as u32).collect(),
                        window: masses[first..].to_vec(),
                    }
                })
                .collect();
            let first = HeldTokens::upload(&gpu, HeldSizes { budget, window }, tokens, &begun).unwrap();
            assert_eq!(first.download(&gpu, tokens).unwrap(), begun, "{what}");
            let naive_of = |list: &HeldList| NaiveHeld {
                heavy: list.tokens.iter().map(|t| *t as usize).zip(list.masses.iter().map(|m| f64::from(*m))).collect(),
                window: (tokens - window..).zip(list.window.iter().map(|m| f64::from(*m))).collect(),
                budget,
            };
            let mut naive: Vec<Vec<NaiveHeld>> = (0..2).map(|_| begun.iter().map(naive_of).collect()).collect();
            let mut held: Vec<HeldTokens> = (0..2).map(|_| first.with_room(&gpu, tokens).unwrap()).collect();
            let mut totals = [tokens; 2];
            let (mut picked, mut room) = (TokenLists::default(), HoldingWorkspace::default());
            for step in 0..25 {
                // The rows of the queries, and the runs that they belong to.
                let runs = if step % 2 == 0 { [0, 1, 0] } else { [1, 0, 1] };
                let queries = stored(&noise(3 * heads * d, 7000 + step), storage);
                let mut rows = HostDeviceVec::default();
                rows.set(&gpu, vec![2, 0, 1]).unwrap();
                for (run, held) in held.iter_mut().enumerate() {
                    let total = totals[run] + 2;
                    if !held.has_room(total) {
                        *held = held.with_room(&gpu, total).unwrap();
                    }
                }
                let holding: Vec<HoldingRow<'_>> = runs
                    .iter()
                    .map(|run| {
                        totals[*run] += 1;
                        let tail = cache(&sent[*run], tail_capacity, &tails[*run], storage);
                        HoldingRow { held: &held[*run], tail, total: totals[*run] }
                    })
                    .collect();
                let asked = Queries { queries: &send(&gpu, &queries, storage), stride: heads * d, heads, rows: &rows };
                let keys = HoldingPrefix { keys: cache(&prefix, tokens, &kv, storage), tokens, sink, scale: scale(d) };
                gpu.evict_and_weigh(&asked, &keys, &holding, &mut picked, &mut room).unwrap();
                for (i, (run, row)) in runs.iter().zip(&holding).enumerate() {
                    for (list, naive) in naive[*run].iter_mut().enumerate() {
                        naive.slide(row.total - window, row.total);
                        let mut ours = picked.download(&gpu, i, list).unwrap();
                        ours.sort_unstable();
                        let expected: Vec<u32> = naive.heavy.keys().map(|token| *token as u32).collect();
                        assert_eq!(ours, expected, "{what}, step {step}, row {i}, list {list}");
                        let of_list = heads / lists;
                        for head in list * of_list..(list + 1) * of_list {
                            let query = &queries[([2, 0, 1][i] * heads + head) * d..][..d];
                            let key = |token: usize| match token.checked_sub(tokens) {
                                None => kv.key(head / group, token),
                                Some(behind) => tails[*run].key(head / group, behind),
                            };
                            naive.weigh(sink, |token| dot(query, key(token)) / (d as f64).sqrt());
                        }
                    }
                }
            }
            for (run, naive) in naive.iter().enumerate() {
                let ours = held[run].download(&gpu, totals[run]).unwrap();
                assert_eq!(ours.len(), naive.len());
                for (ours, naive) in ours.iter().zip(naive) {
                    let masses: Vec<f64> = naive.heavy.values().chain(naive.window.values()).copied().collect();
                    assert_near(&[&ours.masses[..], &ours.window].concat(), &masses, 1e-4, &what);
                }
            }
        }
    }
}

/// Returns the tokens of the pages that the host selects.
fn pages_of(scores: &[f32], k: usize, pages: &Pages) -> Vec<u32> {
    let Pages { tokens, size } = pages;
    let of = |page: u32| {
        let begin = tokens.start + page as usize * size;
        begin as u32..(begin + size).min(tokens.end) as u32
    };
    top_k(scores, k).into_iter().flat_map(of).collect()
}

/// Selects two lists for each row from `scores` on the device; `chosen` has each row's number of pages.
fn pick_there(gpu: &Gpu, scores: &[f32], chosen: &[usize], pages: &Pages) -> TokenLists {
    let (mut lists, mut numbers, mut on_device) = (TokenLists::default(), HostDeviceVec::default(), Scores::default());
    let most = chosen.iter().max().map_or(0, |most| (most * pages.size).min(pages.tokens.len()));
    lists.resize(gpu, TokenListLayout::new(2, most), vec![pages.tokens.end; chosen.len()]).unwrap();
    numbers.set(gpu, chosen.iter().map(|k| *k as u32).collect()).unwrap();
    // One launch for the first row, and one for the others.
    let row = 2 * pages.count();
    let (front, back) = scores.split_at(row);
    for (first, scores) in [(0, front), (1, back)] {
        on_device.resize(gpu, scores.len() / row, 2, pages.count()).unwrap();
        on_device.upload(gpu, scores).unwrap();
        gpu.top_pages(&on_device, (&numbers, None), first, pages, &mut lists).unwrap();
    }
    lists
}

/// Checks the device's selections for scores of some kinds, with two lists for each row.
fn check_picks(gpu: &Gpu, pages: &Pages, kinds: &[&str], chosen: &[usize]) {
    let n = pages.count();
    for kind in kinds {
        let scores = scores_like(kind, 2 * chosen.len() * n, 140);
        let lists = pick_there(gpu, &scores, chosen, pages);
        // Of many lists, only some are checked, from both launches.
        for (i, scores) in scores.chunks_exact(n).enumerate().step_by(if chosen.len() > 3 { 7 } else { 1 }) {
            let picked = lists.download(gpu, i / 2, i % 2).unwrap();
            let expected = pages_of(scores, chosen[i / 2], pages);
            assert!(picked == expected, "{kind}, {} of {n} of {pages:?}: list {i}", chosen[i / 2]);
        }
    }
}

/// Some rows' candidates end earlier than others': the scores after them are negative infinity, and their last page may be short.
#[test]
#[ignore = "needs a GPU"]
fn pages_of_rows_that_end_earlier_are_picked_up_to_their_end() {
    let gpu = gpu();
    for (tokens, size, earlier) in [(4..704, 7, 60), (4..9_004, 1, 130), (3..50_000, 5, 2_000), (0..300_000, 16, 9_999)]
    {
        let ends = [tokens.end, tokens.end - earlier, tokens.end - 1];
        let (pages, n) = (Pages { tokens: tokens.clone(), size }, tokens.len().div_ceil(size));
        for share in [0.001, 0.06, 1.0] {
            let own = ends.map(|end| Pages { tokens: tokens.start..end, size });
            let chosen = own.each_ref().map(|own| ((share * own.count() as f64) as u32).max(1));
            let mut scores = noise(3 * 2 * n, 145);
            for (list, scores) in scores.chunks_exact_mut(n).enumerate() {
                scores[own[list / 2].count()..].fill(f32::NEG_INFINITY);
                // Makes sure that the last page of each row is selected.
                scores[own[list / 2].count() - 1] = f32::INFINITY;
            }
            let (mut lists, mut on_device) = (TokenLists::default(), Scores::default());
            let [mut numbers, mut there] = [HostDeviceVec::default(), HostDeviceVec::default()];
            let most = chosen.iter().max().map_or(0, |most| *most as usize * size).min(tokens.len());
            lists.resize(&gpu, TokenListLayout::new(2, most), ends.to_vec()).unwrap();
            numbers.set(&gpu, chosen.to_vec()).unwrap();
            there.set(&gpu, ends.map(|end| end as u32).to_vec()).unwrap();
            on_device.resize(&gpu, 3, 2, n).unwrap();
            on_device.upload(&gpu, &scores).unwrap();
            gpu.top_pages(&on_device, (&numbers, Some(&there)), 0, &pages, &mut lists).unwrap();
            for (list, scores) in scores.chunks_exact(n).enumerate() {
                let expected = pages_of(scores, chosen[list / 2] as usize, &own[list / 2]);
                let picked = lists.download(&gpu, list / 2, list % 2).unwrap();
                assert!(picked == expected, "{tokens:?}, pages of {size}, a share of {share}, list {list}");
            }
        }
    }
}

/// The rows' candidates that the index of a prefix of 50 tokens lacks: four of the prefix and some of the tail, none, and two of the prefix
/// and one of the tail.
const BEHIND: [Range<usize>; 3] = [46..59, 50..50, 48..51];

#[test]
#[ignore = "needs a GPU"]
fn keys_behind_a_prefix_are_gathered_and_their_scores_follow() {
    let (gpu, prefix_tokens, room, lists, of_prefix) = (gpu(), 50, 16, 3, 46);
    for (storage, d, page) in [(Storage::F32, 20, 1), (Storage::F16, 64, 3), (Storage::Bf16, 8, 5)] {
        let prefix = Kv::new(2, prefix_tokens, d, 300, storage);
        let tails = [9, 0, 1].map(|tokens| Kv::new(2, tokens, d, 310 + tokens as u64, storage));
        let sent = prefix.send(&gpu, 60, storage);
        let tails_sent = tails.each_ref().map(|tail| tail.send(&gpu, 12, storage));
        let row = |i: usize| TailRow {
            keys: cache(&tails_sent[i], 12, &tails[i], storage),
            tokens: BEHIND[i].clone(),
            columns: of_prefix..of_prefix + BEHIND[i].len(),
            page,
            open: (i == 2).then_some(7),
        };
        let mut rows = TailRows::default();
        rows.set(&gpu, &[row(0), row(1), row(2)], room, prefix_tokens).unwrap();
        let gathered = rows.gather(&gpu, &cache(&sent, 60, &prefix, storage), prefix_tokens, &(0..3)).unwrap();
        for head in 0..2 {
            let [keys, _] = gathered.download_rows(&gpu, head, 0..3 * room).unwrap();
            for (at, key) in keys.chunks_exact(d).enumerate().filter(|(at, _)| !BEHIND[at / room].is_empty()) {
                // A row's tokens in whole pages: the last page is filled up with its last token, and is then repeated.
                let own: Vec<usize> = BEHIND[at / room].clone().collect();
                let pages: Vec<&[usize]> = own.chunks(page).collect();
                let of_page = pages[(at % room / page).min(pages.len() - 1)];
                let token = of_page[(at % room % page).min(of_page.len() - 1)];
                let expected = match token.checked_sub(prefix_tokens) {
                    Some(behind) => tails[at / room].key(head, behind),
                    None => prefix.key(head, token),
                };
                assert_eq!(key, expected, "{storage:?}, head {head}, place {at}");
            }
        }
        // Also only rows 1 and 2, so that tables and scores begin with row 1.
        for some in [0..3, 1..3] {
            let (count, most) = (some.len(), BEHIND.iter().map(Range::len).max().unwrap());
            let (scores, own) = (noise(count * lists * of_prefix, 320), noise(count * lists * count * room, 321));
            let (mut there, mut of_rows) = (ScoreWorkspace::default(), Scores::default());
            there.reserve_behind(most);
            there.of_mut(None).resize(&gpu, count, lists, of_prefix).unwrap();
            there.of_mut(None).upload(&gpu, &scores).unwrap();
            of_rows.resize(&gpu, count, lists, count * room).unwrap();
            of_rows.upload(&gpu, &own).unwrap();
            rows.join(&gpu, &some, Some(&of_rows), there.of_mut(None)).unwrap();
            for (row, list) in (0..count).flat_map(|row| (0..lists).map(move |list| (row, list))) {
                let (number, place) = (some.start + row, row * lists + list);
                let mut expected = scores[place * of_prefix..][..of_prefix].to_vec();
                expected.extend(&own[place * count * room + row * room..][..BEHIND[number].len()]);
                expected.resize(of_prefix + most, f32::NEG_INFINITY);
                if number == 2 {
                    expected[7] = f32::INFINITY;
                }
                assert_eq!(there.of(None).download(&gpu, row, list).unwrap(), expected, "row {number}, list {list}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_pages_with_the_largest_scores_are_those_that_the_host_picks() {
    let gpu = gpu();
    for (size, tokens) in [
        (1, 5..6),
        (1, 0..4),
        (1, 4..9),
        (1, 4..1000),
        (1, 0..4096),
        (1, 4..5001),
        (1, 0..70_000),
        (1, 4..131_075),
        (5, 4..7),
        (5, 4..1000),
        (16, 0..64),
        (16, 4..9000),
        (64, 4..9001),
        (1000, 4..500),
    ] {
        let pages = Pages { tokens, size };
        let n = pages.count();
        for chosen in [[0, 1, n], [n / 2, n.saturating_sub(1), n + 5], [n.min(2), n / 16, n / 3]] {
            check_picks(&gpu, &pages, &["noise", "negative", "equal", "few", "zeros", "wide", "odd"], &chosen);
        }
    }
    // Lists so many that fewer blocks work on each, and lists so long that a block has many open candidates.
    for (rows, tokens) in [(20, 5000), (20, 65_536), (20, 65_537), (17, 140_000), (20, 270_000), (2, 530_000)] {
        let pages = Pages { tokens: 3..3 + tokens, size: 1 };
        let chosen: Vec<usize> = (0..rows).map(|row| [tokens / 16, tokens / 3, 77][row % 3]).collect();
        check_picks(&gpu, &pages, &["noise", "equal", "few", "wide"], &chosen);
    }
}

/// Each selection kernel runs with a representative sample and with a misleading one, briefly enough for a tool that checks every access.
#[test]
#[ignore = "needs a GPU"]
fn each_kernel_picks_the_largest_of_scores() {
    let gpu = gpu();
    for (rows, tokens) in [(2, 900), (2, 20_000), (20, 20_000), (40, 20_000), (2, 300_000)] {
        let pages = Pages { tokens: 3..3 + tokens, size: 1 };
        let chosen: Vec<usize> = (0..rows).map(|row| [tokens / 16, tokens / 3][row % 2]).collect();
        check_picks(&gpu, &pages, &["noise", "few"], &chosen);
    }
}

/// Returns the order in which scores are selected.
fn by_score(scores: &[f32]) -> Vec<u32> {
    let score = |i: &u32| Some(scores[*i as usize]).filter(|x| !x.is_nan()).unwrap_or(f32::NEG_INFINITY);
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
    order
}

/// Returns the least and the greatest number of largest scores that hold a share of the mass, within rounding.
fn needed_for_share(scores: &[f32], order: &[u32], (share, scale): (f64, f32), least: usize) -> [usize; 2] {
    let n = order.len();
    let max = f64::from(scores[order[0] as usize]);
    if share >= 1.0 || least >= n {
        return [n; 2];
    }
    if !max.is_finite() {
        return [least.max(1); 2];
    }
    let mut mass = 0.0;
    let covered = order.iter().map(|i| {
        let logit = f64::from(scale) * (f64::from(scores[*i as usize]) - max);
        mass += if logit.is_nan() { 0.0 } else { logit.exp() };
        mass
    });
    let covered: Vec<f64> = covered.collect();
    let needed = |share: f64| (covered.partition_point(|c| *c < share * mass) + 1).min(n).max(least);
    const ROUNDING: f64 = 2e-6;
    [needed(share * (1.0 - ROUNDING)), needed((share * (1.0 + ROUNDING)).min(1.0))]
}

#[test]
#[ignore = "needs a GPU"]
fn the_fewest_pages_with_a_share_of_the_mass_are_picked() {
    let gpu = gpu();
    for (size, tokens) in
        [(1, 5..6), (1, 4..9), (1, 4..1000), (1, 4..70_000), (5, 4..1000), (16, 4..9000), (1000, 4..500)]
    {
        let pages = Pages { tokens, size };
        let n = pages.count();
        for kind in ["noise", "negative", "equal", "few", "zeros", "wide", "odd"] {
            for (share, scale, least) in
                [(0.5, 1.0, 0), (0.95, 9.0, 3), (1e-6, 0.3, 0), (0.3, 0.1, n / 2), (0.9, 1.0, n + 1), (1.0, 1.0, 0)]
            {
                let scores = scores_like(kind, 4 * n, 150);
                let (mut lists, mut on_device) = (TokenLists::default(), Scores::default());
                let layout = TokenListLayout::new(2, pages.tokens.len()).expecting(1);
                lists.resize(&gpu, layout, vec![pages.tokens.end; 2]).unwrap();
                on_device.resize(&gpu, 2, 2, n).unwrap();
                on_device.upload(&gpu, &scores).unwrap();
                gpu.top_share(&on_device, (share, scale, least), 0, &pages, &mut lists).unwrap();
                for (i, scores) in scores.chunks_exact(n).enumerate() {
                    let what = format!("{kind}, {share} by {scale}, at least {least}, {pages:?}: list {i}");
                    let picked = lists.download(&gpu, i / 2, i % 2).unwrap();
                    let order = by_score(scores);
                    let [fewest, most] = needed_for_share(scores, &order, (share, scale), least);
                    let count = picked
                        .iter()
                        .map(|t| (*t as usize - pages.tokens.start) / size)
                        .collect::<std::collections::BTreeSet<_>>();
                    assert!((fewest..=most).contains(&count.len()), "{what}: {} of {fewest} to {most}", count.len());
                    let mut expected: Vec<u32> = order[..count.len()].to_vec();
                    expected.sort_unstable();
                    let tokens = |page: u32| {
                        let begin = pages.tokens.start + page as usize * size;
                        begin as u32..(begin + size).min(pages.tokens.end) as u32
                    };
                    assert!(picked == expected.into_iter().flat_map(tokens).collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
}

/// Returns the input of [`spattn::kernels::cuda::DrawWorkspace`]: the keys of generators with these seeds.
fn draw_keys(seeds: impl IntoIterator<Item = u64>) -> Vec<u32> {
    let words = |seed| ChaCha8Rng::seed_from_u64(seed).get_seed();
    seeds.into_iter().flat_map(|seed| words(seed).as_chunks::<4>().0.to_vec()).map(u32::from_le_bytes).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn draws_are_those_of_the_host() {
    let gpu = gpu();
    for tokens in [5..6, 4..9, 4..1030, 0..70_000] {
        let n = tokens.len();
        for (draws, scale) in [(1, 1.0), (7, 0.3), (64, 1.0), (5000, 0.1), (5000, 8.0)] {
            let scores: Vec<f32> = noise(4 * n, 700).iter().map(|x| 3.0 * x).collect();
            let (mut lists, mut on_device, mut room) =
                (TokenLists::default(), Scores::default(), DrawWorkspace::default());
            let most = draws.min(n);
            // The scores belong to the second and third of three rows.
            lists.resize(&gpu, TokenListLayout::new(2, most).weighted(), vec![tokens.end; 3]).unwrap();
            on_device.resize(&gpu, 2, 2, n).unwrap();
            on_device.upload(&gpu, &scores).unwrap();
            room.keys.set(&gpu, draw_keys(0..6)).unwrap();
            gpu.draw_tokens(&on_device, (draws, scale), 1, tokens.clone(), &mut lists, &mut room).unwrap();
            for (i, scores) in scores.chunks_exact(n).enumerate() {
                let what = format!("{tokens:?}, {draws} draws by {scale}: list {i}");
                let [row, list] = [1 + i / 2, i % 2];
                let logits = scores.iter().map(|s| f64::from(scale) * f64::from(*s));
                let up_to: Vec<f64> = logits
                    .scan(0.0, |sum, logit| {
                        *sum += logit.exp();
                        Some(*sum)
                    })
                    .collect();
                let mass = up_to[n - 1];
                let mut rng = ChaCha8Rng::seed_from_u64((2 * row + list) as u64);
                let (mut expected, mut near) = (vec![0u32; n], 0);
                for _ in 0..draws {
                    let x = rng.random::<f64>() * mass;
                    let drawn = up_to.partition_point(|sum| *sum <= x).min(n - 1);
                    expected[drawn] += 1;
                    // Rounding may count a number near a bound for the neighbouring token.
                    near += usize::from(
                        [drawn.saturating_sub(1), drawn].iter().any(|i| (up_to[*i] - x).abs() < 1e-5 * mass),
                    );
                }
                let picked = lists.download(&gpu, row, list).unwrap();
                let weights = lists.download_weights(&gpu, row, list).unwrap();
                assert!(
                    picked.is_sorted_by(|a, b| a < b) && picked.iter().all(|t| tokens.contains(&(*t as usize))),
                    "{what}"
                );
                let (mut found, mut strange) = (0, 0);
                for (token, weight) in picked.iter().zip(weights) {
                    let i = *token as usize - tokens.start;
                    // exp(scaled score - weight), over the mass, is the token's share of the draws.
                    let left = (f64::from(scale) * f64::from(scores[i]) - f64::from(weight)).exp() / mass;
                    let times = (left * draws as f64).round();
                    assert!((left * draws as f64 / times - 1.0).abs() < 1e-3, "{what}: {left} of the draws");
                    strange += (times as usize).abs_diff(expected[i] as usize);
                    found += times as usize;
                }
                assert_eq!(found, draws, "{what}");
                assert!(strange <= 2 * near, "{what}: {strange} draws elsewhere, {near} near a bound");
                assert_eq!(lists.download_entries(&gpu, row, list).unwrap(), 0, "{what}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn codes_stand_for_centroids() {
    let gpu = gpu();
    const KV_HEADS: usize = 3;
    for (d, parts, count, tokens, group) in [
        (32, 2, 64, 1usize, 1),
        (128, 2, 64, 5003, 4),
        (128, 16, 256, 2050, 5),
        (64, 5, 8, 999, 9),
        (256, 40, 256, 70, 2),
    ] {
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let heads = KV_HEADS * group;
            let stride = tokens.next_multiple_of(4);
            let centroids = noise(KV_HEADS * count * d, 31);
            let code = |head: usize, part: usize, token: usize| (token * 7 + head * 5 + part * 3 + token / 11) % count;
            let of_list = |list: usize| {
                (0..stride)
                    .map(move |token| if token < tokens { code(list / parts, list % parts, token) as u8 } else { 0 })
            };
            let codes: Vec<u8> = (0..KV_HEADS * parts).flat_map(of_list).collect();
            let asked = Asked::new(&gpu, heads, d, storage);
            let (codes, on_device) = (gpu.upload(&codes).unwrap(), gpu.upload(&centroids).unwrap());
            let keys = CodedKeys { codes: &codes, centroids: &on_device, parts, count, tokens, kv_heads: KV_HEADS };
            let key = |kv_head: usize, token: usize| -> Vec<f32> {
                let of_part = |part: usize| {
                    let row = kv_head * count + code(kv_head, part, token);
                    centroids[row * d..][part * d / parts..(part + 1) * d / parts].iter().copied()
                };
                (0..parts).flat_map(of_part).collect()
            };
            let score = |reduction: Option<Reduction>, room: &mut ScoreWorkspace| {
                gpu.score_codes((&asked.queries(), 0..2), (d, storage), &keys, reduction, &mut None, room)
            };
            let exact =
                |row: usize, head: usize, token: usize| dot(asked.query(row, head, d), &key(head / group, token));
            let what = format!("{storage:?} d {d} group {group}, {parts} parts of {count}, {tokens} tokens");
            check_scores(&gpu, (heads, KV_HEADS, d), tokens, score, exact, &what);
        }
    }
}

/// Computes logits by the `r` largest channels of a query, or of its group's queries together, from the definition.
fn logits_by_channels(queries: &[&[f32]], own: &[f32], r: usize, keys: &[&[f32]]) -> Vec<f64> {
    let d = own.len();
    let mut order: Vec<usize> = (0..d).collect();
    let size = |c: usize| queries.iter().map(|q| f64::from(q[c].abs())).sum::<f64>();
    order.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
    let chosen = &order[..r];
    let sum = |channels: &[usize]| channels.iter().map(|c| f64::from(own[*c].abs())).sum::<f64>();
    let tau = (d as f64 * sum(chosen) / sum(&order)).sqrt();
    let logit = |key: &&[f32]| chosen.iter().map(|c| f64::from(own[*c]) * f64::from(key[*c])).sum::<f64>() / tau;
    keys.iter().map(logit).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn queries_choose_channels_and_picks_leave_shares_over() {
    let gpu = gpu();
    for storage in STORAGES {
        for (group, d, tokens, r) in [
            (1, 16, 3..5, 1),
            (3, 64, 4..1030, 8),
            (4, 128, 0..5003, 32),
            (12, 80, 7..2500, 80),
            (4, 128, 4..40_000, 13),
        ] {
            let (kv_heads, n) = (2, tokens.len());
            let (heads, capacity) = (kv_heads * group, tokens.end + 3);
            let kv = Kv::new(kv_heads, capacity, d, 700, storage);
            let buffers = kv.send(&gpu, capacity, storage);
            let of = cache(&buffers, capacity, &kv, storage);
            let [keys, means] = KeysByChannel::bytes(n, kv_heads, d, storage.bytes());
            let (mut keys, mut means) = (gpu.alloc(keys).unwrap(), gpu.alloc(means).unwrap());
            gpu.keys_by_channel(&of, tokens.clone(), [&mut keys, &mut means]).unwrap();
            let ours = fetch(&gpu, &means, kv_heads * d, Storage::F32);
            let mean = |i: usize| tokens.clone().map(|t| f64::from(kv.value(i / d, t)[i % d])).sum::<f64>() / n as f64;
            let what = format!("{storage:?}, {group} x {d}, {n} tokens, {r} channels");
            assert_near(&ours, &(0..kv_heads * d).map(mean).collect::<Vec<_>>(), 1e-6, &what);
            let index = KeysByChannel { keys: &keys, means: &means, tokens: n, kv_heads, d, storage };
            let asked = Asked::new(&gpu, heads, d, storage);
            for count in [heads, kv_heads] {
                let (mut channels, mut weights, mut room) = (None, None, ScoreWorkspace::default());
                let mut chosen =
                    ChosenChannels { channels: &mut channels, weights: &mut weights, count: r, lists: count };
                gpu.choose_channels(&asked.queries(), 0..2, (d, storage), &mut chosen).unwrap();
                let reduction = (count == kv_heads).then_some(Reduction::Sum);
                gpu.score_channels(&chosen, (2, heads), &index, reduction, &mut room).unwrap();
                let mut exact = Vec::new();
                for (row, head) in (0..2).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    let each = heads / count;
                    let first = head / each * each;
                    let together: Vec<&[f32]> = (first..first + each).map(|h| asked.query(row, h, d)).collect();
                    let keys: Vec<&[f32]> = tokens.clone().map(|t| kv.key(head / group, t)).collect();
                    exact.push(logits_by_channels(&together, asked.query(row, head, d), r, &keys));
                    let scores = room.of(None).download(&gpu, row, head).unwrap();
                    assert_scores(&scores, &exact[exact.len() - 1], d, &format!("{what}, row {row}, head {head}"));
                }
                for list in 0..2 * count {
                    let scores = room.of(reduction).download(&gpu, list / count, list % count).unwrap();
                    let own = &exact[list * (heads / count)..][..heads / count];
                    let sums: Vec<f64> = (0..n).map(|t| own.iter().map(|logits| logits[t]).sum()).collect();
                    assert_scores(&scores, &sums, group * d, &format!("{what}, list {list} of {count}"));
                }
                // The first row selects few tokens, the second one all.
                let picked = [n.div_ceil(9), n];
                let (mut lists, mut numbers) = (TokenLists::default(), HostDeviceVec::default());
                lists.resize(&gpu, TokenListLayout::new(count, n), vec![tokens.end; 2]).unwrap();
                numbers.set(&gpu, picked.map(|k| k as u32).to_vec()).unwrap();
                let pages = Pages { tokens: tokens.clone(), size: 1 };
                gpu.top_pages(room.of(reduction), (&numbers, None), 0, &pages, &mut lists).unwrap();
                gpu.rest_shares(&room, tokens.start, &index, 0, &mut lists).unwrap();
                for row in 0..2 {
                    let shares = lists.download_shares(&gpu, row).unwrap();
                    for (head, share) in shares.into_iter().enumerate() {
                        let picked = lists.download(&gpu, row, head * count / heads).unwrap();
                        let logits = &exact[row * heads + head];
                        let (all, inside) = (
                            logits.iter().map(|x| x.exp()).sum::<f64>(),
                            picked.iter().map(|t| logits[*t as usize - tokens.start].exp()).sum::<f64>(),
                        );
                        let expected = if row == 1 { 0.0 } else { 1.0 - inside / all };
                        let off = (f64::from(share) - expected).abs();
                        assert!(off <= 1e-5 * expected, "{what}, row {row}, head {head}: {share}, not {expected}");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_lists_hold_is_counted() {
    let gpu = gpu();
    // Each row has two lists: for the two query heads of one KV head, or for two KV heads with one or three query heads each.
    for (kv_heads, heads) in [(1, 2), (2, 6), (2, 2)] {
        for (size, tokens, chosen) in
            [(1, 4..300, [10, 0, 296]), (16, 4..1001, [9, 63, 62]), (1, 10..900_000, [100_000, 3, 899_990])]
        {
            let pages = Pages { tokens: tokens.clone(), size };
            let scores = scores_like("noise", 6 * pages.count(), 150);
            let lists = pick_there(&gpu, &scores, &chosen, &pages);
            let (width, offset) = (kv_heads + heads + 1, 5);
            let before = vec![7u64; offset + width + 1];
            let counters: Vec<Buffer> = (0..2).map(|_| gpu.upload(&before).unwrap()).collect();
            // Two rows of one run, and one of another.
            let of_rows = [(&counters[0], 1), (&counters[1], 3), (&counters[0], 2)];
            let mut room = HostDeviceVec::default();
            for _ in 0..2 {
                gpu.count_picks(&lists, (kv_heads, heads), tokens.clone(), &of_rows, offset, &mut room).unwrap();
            }
            let mut expected = [before.clone(), before.clone()];
            for (row, (run, times)) in [(0, 2), (1, 6), (0, 4)].into_iter().enumerate() {
                let own: Vec<Vec<u32>> = (0..2).map(|list| lists.download(&gpu, row, list).unwrap()).collect();
                let sums = &mut expected[run][offset..];
                if kv_heads == 2 {
                    (0..2).for_each(|kv_head| sums[kv_head] += times * own[kv_head].len() as u64);
                    (0..heads).for_each(|h| sums[2 + h] += times * own[h / (heads / 2)].len() as u64);
                } else {
                    let all: std::collections::BTreeSet<u32> = own.iter().flatten().copied().collect();
                    sums[0] += times * all.len() as u64;
                    (0..2).for_each(|h| sums[1 + h] += times * own[h].len() as u64);
                }
            }
            for (counters, expected) in counters.iter().zip(&expected) {
                let mut counted = vec![0u64; expected.len()];
                gpu.download(counters, 0, &mut counted).unwrap();
                assert_eq!(&counted, expected, "{heads} heads of {kv_heads}, {chosen:?} of {tokens:?} by {size}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn lists_of_the_device_are_attended_as_those_of_the_host() {
    let gpu = gpu();
    let (d, kv_heads, prefix_tokens, total) = (64, 2, 400, 403);
    for storage in STORAGES {
        // One list for each KV head with one or three query heads.
        for group in [1, 3] {
            let heads = kv_heads * group;
            let prefix = Kv::new(kv_heads, prefix_tokens, d, 160, storage);
            let buffers = prefix.send(&gpu, prefix_tokens, storage);
            let tail_kv = Kv::new(kv_heads, 3, d, 170, storage);
            let tail_buffer = send(&gpu, &tail_kv.within(0, 1, 8), storage);
            let tail = Tail { buffer: &tail_buffer, layers: 1, capacity: 8, kv_heads, d, storage };
            let queries = send(&gpu, &noise(3 * heads * d, 180), storage);
            let pages = Pages { tokens: 4..390, size: 16 };
            let scores = scores_like("noise", 6 * pages.count(), 190);
            let lists = pick_there(&gpu, &scores, &[3, 0, 25], &pages);
            let outs = [false, true].map(|there| {
                let mut attention = Attention::new(3, heads, (3 * heads, 3 * heads * 200), gpu.processors());
                for row in 0..3 {
                    for kv_head in 0..kv_heads {
                        let picked = lists.download(&gpu, row, kv_head).unwrap();
                        let unit = |sink, recent, picked| Unit {
                            row,
                            head: kv_head * group,
                            queries: group,
                            kv_head,
                            tail: &tail,
                            tokens: Tokens { sink, recent, total, picked },
                            weights: Weights::Softmax,
                        };
                        match (there, row) {
                            (false, 2) => {
                                attention.add(0, &unit(4, 390, &[]), prefix_tokens);
                                attention.add(1, &unit(0, total, &picked), prefix_tokens);
                            }
                            (true, 2) => {
                                attention.add(0, &unit(4, 390, &[]), prefix_tokens);
                                attention.add_list(1, &unit(0, total, &[]), lists.list(row, kv_head), prefix_tokens);
                            }
                            (false, _) => attention.add(0, &unit(4, 390, &picked), prefix_tokens),
                            (true, _) => {
                                attention.add_list(0, &unit(4, 390, &[]), lists.list(row, kv_head), prefix_tokens);
                            }
                        }
                    }
                }
                let mut out = send(&gpu, &vec![f32::NAN; 3 * heads * d], storage);
                let mut wide = gpu.upload(&vec![f32::NAN; 3 * heads * d]).unwrap();
                let of = Prefix {
                    cache: cache(&buffers, prefix_tokens, &prefix, storage),
                    tokens: prefix_tokens,
                    layer: 0,
                    scale: scale(d),
                    rule: LayerRule::PLAIN,
                };
                let mut room = AttentionWorkspace::default();
                let prepared = gpu.prepare(&mut attention, &mut room, d).unwrap();
                gpu.attend(&prepared, &of, &queries, heads * d, &mut out, Some(&mut wide)).unwrap();
                fetch(&gpu, &wide, 3 * heads * d, Storage::F32)
            });
            let expected: Vec<f64> = outs[0].iter().map(|x| f64::from(*x)).collect();
            assert_near(&outs[1], &expected, 1e-5, &format!("{storage:?}, group {group}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn long_lists_go_up_in_pieces() {
    let gpu = gpu();
    for count in [1, 65_536, 65_537, 1 << 20, (1 << 20) + 3, 3 << 20] {
        let numbers: Vec<u32> = (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let mut buffer = gpu.alloc(4 * count + 4).unwrap();
        // Twice in a row, so that the first copy may still be running when the second begins.
        gpu.upload_to(&mut buffer, 4, &vec![7u32; count]).unwrap();
        gpu.upload_to(&mut buffer, 4, &numbers).unwrap();
        let mut back = vec![0u32; count];
        gpu.download(&buffer, 4, &mut back).unwrap();
        assert!(back == numbers, "{count} numbers");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn prefill_attention_of_odd_sizes() {
    let gpu = gpu();
    for storage in STORAGES {
        for (d, group) in [(16, 1), (64, 2), (80, 3), (96, 1), (128, 4), (128, 7), (256, 2)] {
            for (rows, first) in [(1, 0), (2, 61), (63, 1), (129, 77), (200, 300)] {
                let kv_heads = 2;
                let (heads, total, stride) = (kv_heads * group, first + rows, (kv_heads * group + 2 * kv_heads) * d);
                let kv = Kv::new(kv_heads, total, d, 80, storage);
                let buffers = kv.send(&gpu, total + 5, storage);
                let queries = stored(&noise(rows * stride, 90), storage);
                let (sinks, nothing) = (noise(heads, 91), vec![0.0; d]);
                let expected = |window: Option<usize>, cap: Option<f32>, has_sinks: bool| -> Vec<f64> {
                    let of_row = |i: usize| {
                        let (row, head) = (i / heads, i % heads);
                        let (query, kv_head) = (&queries[row * stride + head * d..][..d], head / group);
                        let end = first + row + 1;
                        let logit = |t: usize| capped(dot(query, kv.key(kv_head, t)) / (d as f64).sqrt(), cap);
                        let seen = window.map_or(0, |window| end.saturating_sub(window))..end;
                        let mut parts: Vec<(f64, &[f32])> = seen.map(|t| (logit(t), kv.value(kv_head, t))).collect();
                        parts.extend(has_sinks.then(|| (f64::from(sinks[head]), nothing.as_slice())));
                        softmax(&parts, d).1
                    };
                    (0..rows * heads).flat_map(of_row).collect()
                };
                let sinks_there = gpu.upload(&sinks).unwrap();
                let queries_there = send(&gpu, &queries, storage);
                let cache = cache(&buffers, total + 5, &kv, storage);
                for (window, soft_cap, has_sinks) in [
                    (None, None, false),
                    (Some(1), None, false),
                    (Some(70), None, false),
                    (None, Some(0.4), false),
                    (None, None, true),
                    (Some(129), Some(0.4), true),
                ] {
                    let rule = LayerRule { window, soft_cap, sinks: has_sinks.then_some(&sinks_there) };
                    let rows_of = Rows {
                        queries: &queries_there,
                        skip: 0,
                        stride,
                        count: rows,
                        heads,
                        first,
                        scale: scale(d),
                        rule,
                    };
                    let mut out = send(&gpu, &vec![f32::NAN; rows * heads * d], storage);
                    gpu.prefill_attention(&rows_of, &cache, &mut out).unwrap();
                    let expected = expected(window, soft_cap, has_sinks);
                    let what =
                        format!("{storage:?} d {d} group {group}, {rows} rows from {first}, {window:?} {soft_cap:?}");
                    assert_near(&fetch(&gpu, &out, rows * heads * d, storage), &expected, tolerance(storage), &what);
                }
            }
        }
    }
}

/// Blocks have random lists, with and without diagonals and extra tokens for single rows. Each row attends, each token once, those of its
/// list and its diagonals before its start, all tokens from its start to itself, and its extra tokens with a bias on their logits.
#[test]
#[ignore = "needs a GPU"]
fn blocks_of_rows_attend_lists_and_stretches() {
    let gpu = gpu();
    // The width, the heads of a group, the rows of a block, and whether a group shares its lists.
    let cases = [
        (16, 1, 32, false),
        (64, 4, 32, true),
        (128, 4, 32, false),
        (128, 2, 64, true),
        (80, 3, 48, true),
        (256, 2, 17, true),
    ];
    for storage in [Storage::F16, Storage::Bf16] {
        for (d, group, block_rows, shared) in cases {
            for (rows, first) in [(1, 0), (63, 1), (130, 300), (200, 77)] {
                let kv_heads = 2;
                let (heads, total, stride) = (kv_heads * group, first + rows, (kv_heads * group + 2 * kv_heads) * d);
                let kv = Kv::new(kv_heads, total, d, 82, storage);
                let buffers = kv.send(&gpu, total + 5, storage);
                let queries = stored(&noise(rows * stride, 92), storage);
                let lists = if shared { kv_heads } else { heads };
                let shape = BlockShape { rows, block_rows, lists };
                let draws = noise(shape.blocks() * lists * total, 93);
                let listed = |block: usize, list: usize| -> Vec<u32> {
                    let end = first + (block * block_rows + block_rows).min(rows);
                    let of = &draws[(block * lists + list) * total..][..end];
                    // The list holds none, some, or all of the tokens.
                    let bound = [2.0, 0.3, -2.0][(block + list) % 3];
                    (0..end as u32).filter(|token| of[*token as usize] > bound).collect()
                };
                let draws_of_starts = noise(lists * rows, 94);
                let start = |list: usize, row: usize| {
                    let share = f64::from(draws_of_starts[list * rows + row]).abs();
                    ((first + row) as f64 * share) as usize
                };
                // Every third list has no diagonals; the others have a third of the near distances and few of the far ones.
                let draws_of_distances = noise(lists * total, 95);
                let distances = |list: usize| -> Vec<usize> {
                    let bound = |distance: usize| if distance < 50 { 0.4 } else { 0.96 };
                    let of = &draws_of_distances[list * total..][..total];
                    (0..total).filter(|distance| list % 3 != 2 && of[*distance] > bound(*distance)).collect()
                };
                let before = |has_diagonals: bool, list: usize, row: usize| -> std::collections::BTreeSet<usize> {
                    let listed = listed(row / block_rows, list).into_iter().map(|token| token as usize);
                    let diagonals = if has_diagonals { distances(list) } else { Vec::new() };
                    let met = diagonals.into_iter().filter_map(|distance| (first + row).checked_sub(distance));
                    listed.chain(met).filter(|token| *token < start(list, row)).collect()
                };
                // Two of three rows have some of the other tokens before the start, in descending order, with or without a bias.
                let draws_of_own = noise(lists * rows * total, 96);
                let own = |has_diagonals: bool, list: usize, row: usize| -> Vec<(u32, f32)> {
                    let (before, draws) =
                        (before(has_diagonals, list, row), &draws_of_own[(list * rows + row) * total..][..total]);
                    let bound = [0.0, 0.9, 5.0][(list + row) % 3];
                    let left = (0..start(list, row)).filter(|t| !before.contains(t) && draws[*t] > bound);
                    let weight = |t: usize| if group == 3 { 0.0 } else { 3.0 * draws[t] - 1.0 };
                    left.map(|t| (t as u32, weight(t))).rev().collect()
                };
                let expected = |has_diagonals: bool, has_own: bool| {
                    let mut expected = Vec::new();
                    for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                        let (query, kv_head) = (&queries[row * stride + head * d..][..d], head / group);
                        let list = head * lists / heads;
                        let plain = before(has_diagonals, list, row).into_iter().chain(start(list, row)..=first + row);
                        let own = if has_own { own(has_diagonals, list, row) } else { Vec::new() };
                        let weighted = own.into_iter().map(|(t, weight)| (t as usize, f64::from(weight)));
                        let part = |(t, weight): (usize, f64)| {
                            (dot(query, kv.key(kv_head, t)) / (d as f64).sqrt() + weight, kv.value(kv_head, t))
                        };
                        let parts: Vec<(f64, &[f32])> = plain.map(|t| (t, 0.0)).chain(weighted).map(part).collect();
                        expected.extend(softmax(&parts, d).1);
                    }
                    expected
                };
                let ways = [(false, false), (false, true), (true, true), (true, false)];
                let expected = ways.map(|(has_diagonals, has_own)| expected(has_diagonals, has_own));
                let all: Vec<Vec<Run>> =
                    (0..shape.blocks() * lists).map(|i| Run::of(&listed(i / lists, i % lists))).collect();
                let most = (0..shape.blocks() * lists).map(|i| listed(i / lists, i % lists).len()).max().unwrap();
                let starts = (0..lists).flat_map(|list| (0..rows).map(move |row| (list, row)));
                let starts = starts.map(|(list, row)| start(list, row) as u32).collect();
                let mut seen = BlockLists::default();
                seen.resize(&gpu, shape, most, starts).unwrap();
                seen.write(&gpu, &all.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
                for i in [0, shape.blocks() * lists - 1] {
                    assert_eq!(seen.download(&gpu, i / lists, i % lists).unwrap(), listed(i / lists, i % lists));
                }
                let mut out = send(&gpu, &vec![f32::NAN; rows * heads * d], storage);
                let queries = send(&gpu, &queries, storage);
                let rows_of = Rows {
                    queries: &queries,
                    skip: 0,
                    stride,
                    count: rows,
                    heads,
                    first,
                    scale: scale(d),
                    rule: LayerRule::PLAIN,
                };
                let diagonals: Vec<Vec<usize>> = (0..lists).map(distances).collect();
                for ((has_diagonals, has_own), expected) in ways.into_iter().zip(&expected) {
                    let of_block = |i: usize| {
                        let (block, list, mut of) = (i / lists, i % lists, PerRowTokens::default());
                        for row in (block * block_rows..rows.min((block + 1) * block_rows)).filter(|_| has_own) {
                            of.add_row(own(has_diagonals, list, row).into_iter());
                        }
                        of
                    };
                    let of_blocks: Vec<PerRowTokens> = (0..shape.blocks() * lists).map(of_block).collect();
                    seen.set_own(&gpu, &of_blocks.iter().collect::<Vec<_>>(), (heads, d)).unwrap();
                    if has_diagonals {
                        let all: Vec<&[usize]> = diagonals.iter().map(Vec::as_slice).collect();
                        seen.set_diagonals(&gpu, &all, total - 1).unwrap();
                    }
                    gpu.attend_blocks(&rows_of, &cache(&buffers, total + 5, &kv, storage), &seen, &mut out).unwrap();
                    let what = format!(
                        "{storage:?} d {d} group {group} blocks of {block_rows}, {rows} rows from {first}, diagonals {has_diagonals}, own tokens {has_own}"
                    );
                    assert_near(&fetch(&gpu, &out, rows * heads * d, storage), expected, tolerance(storage), &what);
                }
            }
        }
    }
}

/// The prompt is so long that the lists of planned masks are uploaded in several pieces; each row attends its own tokens.
#[test]
#[ignore = "needs a GPU"]
fn long_prompts_are_read_by_planned_masks_in_pieces() {
    let gpu = gpu();
    let (heads, kv_heads, d, tokens, dtype) = (32, 8, 64, 20_000, KvDtype::F16);
    let policy = Policy { sink: 4, local: 40, ..Policy::default() };
    let prompt = PromptShape { layers: 1, heads, kv_heads, d, tokens };
    let all = size_of::<u32>() * heads * tokens * tokens.div_ceil(64);
    let queries = stored(&noise(tokens * heads * d, 66), Storage::F16);
    let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
    kv.append_rows(&noise(tokens * kv_heads * d, 67), &noise(tokens * kv_heads * d, 68));
    for spec in [
        "vertical_slash:vertical=20,slash=30",
        "reformer:bucket=40,hashes=2",
        "hyper_attention:sample=60,block=32,min_seq_len=1000",
    ] {
        let method = configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
        assert!(mask_list_bytes(&method, &prompt, tokens, dtype) < all, "{spec}: one piece holds all rows");
        assert_read_alike(&gpu, &method, &queries, heads, &kv, &[tokens]);
    }
}

/// Checks that a device prefills with a mask as the host does, in chunks of the given rows: the same output and the same cost.
fn assert_read_alike(gpu: &Gpu, method: &Configured, queries: &[f32], heads: usize, kv: &LayerKv, chunks: &[usize]) {
    let storage = storage_of(kv.shape().dtype);
    let is_rows = matches!(method.method.prefill_pattern(), Some(PrefillPattern::Rows(_)));
    let rounding = if is_rows { 1e-3 } else { 0.0 };
    let mut here = SparsePrefill::new(method, &one_layer(kv.keys.d()), 7).unwrap();
    let mut expected = vec![f32::NAN; queries.len()];
    here.attend(&PrefillChunk::new(0, 0, queries, heads, kv), &mut expected).unwrap();
    let costs = here.into_costs();
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    for chunk in chunks {
        let (out, counted) = read_there(gpu, method, queries, heads, kv, *chunk);
        let what = format!("{} {storage:?}, {} tokens in chunks of {chunk}", method.label(), kv.tokens());
        assert_near(&out, &expected, tolerance(storage), &what);
        let (ours, theirs) = (counted.total(|_| true), costs.total(|_| true));
        // Where each row has its own selection, the host rounds the number of products of each block of rows.
        let off = (ours.score_flops as f64 - theirs.score_flops as f64).abs();
        assert!(
            off <= rounding * theirs.score_flops as f64,
            "{what}: {} against {}",
            ours.score_flops,
            theirs.score_flops
        );
        assert_eq!(Cost { score_flops: 0, ..ours }, Cost { score_flops: 0, ..theirs }, "{what}");
        assert_eq!(counted.head_densities(0), costs.head_densities(0), "{what}");
    }
}

/// Prefills with a mask on a device, in chunks. Returns the output and its cost.
fn read_there(
    gpu: &Gpu,
    method: &Configured,
    queries: &[f32],
    heads: usize,
    kv: &LayerKv,
    chunk: usize,
) -> (Vec<f32>, LayerCosts) {
    let (shape, tokens) = (kv.shape(), kv.tokens());
    let storage = storage_of(shape.dtype);
    let width = heads * shape.d;
    let rows_of = |rows: &KvStore| -> Vec<f32> { (0..shape.kv_heads).flat_map(|h| rows.head(h).to_f32()).collect() };
    let (keys, values) = (send(gpu, &rows_of(&kv.keys), storage), send(gpu, &rows_of(&kv.values), storage));
    let cache = Cache {
        keys: &keys,
        values: &values,
        keys_at: 0,
        values_at: 0,
        capacity: tokens,
        kv_heads: shape.kv_heads,
        d: shape.d,
        storage,
    };
    let mut sparse = SparsePrefill::new(method, &one_layer(kv.keys.d()), 7).unwrap();
    let (mut all, whole) = (Vec::new(), queries);
    let chunk = sparse.chunk_rows(chunk);
    for (i, queries) in queries.chunks(chunk * width).enumerate() {
        let count = queries.len() / width;
        let (queries, mut out) = (send(gpu, queries, storage), send(gpu, &vec![f32::NAN; count * width], storage));
        let rows = Rows {
            queries: &queries,
            skip: 0,
            stride: width,
            count,
            heads,
            first: i * chunk,
            scale: scale(kv.keys.d()),
            rule: LayerRule::PLAIN,
        };
        // Only a mask that is planned over the whole prompt reads this, and it gets the prompt in one chunk.
        let shown = PrefillChunk::new(0, 0, whole, heads, kv);
        assert!(sparse.attend_on_device(gpu, &shown, &rows, &cache, &mut out, None).unwrap(), "{}", method.label());
        all.extend(fetch(gpu, &out, count * width, storage));
    }
    sparse.collect_device_counters(gpu, 0..1, (heads, shape)).unwrap();
    (all, sparse.into_costs())
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_are_read_by_masks_as_on_the_host() {
    let gpu = gpu();
    let policy = Policy { sink: 4, local: 40, ..Policy::default() };
    let methods = [
        "streaming_llm:window=100",
        "bigbird:window=48,blocks=3,block=16",
        "bigbird:window=48,blocks=3,block=16,per=kv_head",
        "hip:k=64",
        "hip:k=64,per=kv_head,b_q=64,b_sq=3,query_offset=last",
        "hip:k=48,b_k=4,b_sk=2,key_offset=last,representative=last",
        "hip:k=40,b_q=16,b_sq=1,b_k=1,representative=first",
        "hip:density=0.3,b_k=8,b_sk=3",
        "hip:k=64,vd=true,vertical=30,slash=40",
        "hip:k=64,vd=true,vertical=200,slash=300,snapshot=5,per=kv_head,b_q=64,b_sq=3,query_offset=last",
        "hip:density=0.3,b_k=8,b_sk=3,vd=true,vertical=0,slash=9",
        "hip:k=40,vd=true,window=row",
        "vertical_slash:vertical=30,slash=50",
        "vertical_slash:vertical=100,slash=3,snapshot=5,per=kv_head",
        "vertical_slash:vertical=0,slash=500",
        "minference:k=100,block=64",
        "minference:density=0.3,block=48,snapshot=16",
        "flexprefill:gamma=0.4,tau=0",
        "flexprefill:gamma=0.3,tau=1,block=32",
        "hyper_attention:sample=40,block=16,min_seq_len=32",
        "hyper_attention:sample=600,block=8,min_seq_len=100,lsh_num_projs=4",
        "hyper_attention:sample=0,block=100,min_seq_len=200",
        "hyper_attention:density=0.4",
        "reformer:bucket=64",
        "reformer:bucket=24,hashes=2",
        "reformer:density=0.3",
    ];
    for (dtype, d) in [(KvDtype::F16, 64), (KvDtype::Bf16, 128)] {
        let storage = if dtype == KvDtype::F16 { Storage::F16 } else { Storage::Bf16 };
        let (heads, kv_heads, tokens) = (6, 2, 941);
        let queries = stored(&noise(tokens * heads * d, 61), storage);
        let values = noise(tokens * kv_heads * d, 63);
        // Different keys; and one key for all tokens, so that blocks have equal scores and the first ones are kept.
        let own_keys = noise(tokens * kv_heads * d, 62);
        let shared_keys: Vec<f32> =
            own_keys.chunks(kv_heads * d).flat_map(|_| own_keys[..kv_heads * d].to_vec()).collect();
        let of_keys = |keys: &[f32]| {
            let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
            kv.append_rows(keys, &values);
            kv
        };
        let (kv, alike) = (of_keys(&own_keys), of_keys(&shared_keys));
        for (spec, kv) in methods.into_iter().flat_map(|spec| [(spec, &kv), (spec, &alike)]) {
            let method = configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
            assert_read_alike(&gpu, &method, &queries, heads, kv, &[tokens.next_multiple_of(64), 320]);
        }
    }
}

/// Each row of a prompt attends what it selects. From the first row with candidates on, the device selects for blocks of rows at a time.
/// Numbers are multiples of an eighth, so that products are exact, and equal scores are equal on both.
#[test]
#[ignore = "needs a GPU"]
fn prompts_are_read_by_a_selection_for_each_row_as_on_the_host() {
    let gpu = gpu();
    let methods = [
        "topk:k=9",
        "topk:k=9,per=kv_head",
        "topk:ratio=0.1",
        "quest:page=4,k=12",
        "quest:page=16,ratio=0.1,per=kv_head",
        "double_sparsity:k=9,kind=random,label_bits=16",
        "double_sparsity:k=40,kind=random,label_bits=16,per=kv_head",
    ];
    let mut tested = 0;
    let coarse =
        |count: usize, seed: u64| -> Vec<f32> { noise(count, seed).iter().map(|x| (x * 8.0).round() / 8.0).collect() };
    for (dtype, d) in [(KvDtype::F16, 64), (KvDtype::Bf16, 128), (KvDtype::F32, 64)] {
        let (heads, kv_heads, tokens) = (6, 2, 941);
        let queries = coarse(tokens * heads * d, 71);
        let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
        kv.append_rows(&coarse(tokens * kv_heads * d, 72), &noise(tokens * kv_heads * d, 73));
        for (sink, local) in [(4, 40), (0, 1)] {
            let policy = Policy { sink, local, ..Policy::default() };
            for spec in methods {
                let method = configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
                if method.method.device_form().is_ok_and(|form| form.fits(kv.shape()) && form.grows(kv.shape())) {
                    assert_read_alike(&gpu, &method, &queries, heads, &kv, &[tokens.next_multiple_of(64), 320]);
                    tested += 1;
                }
            }
        }
    }
    assert!(tested >= 30, "{tested} of 42 were read by the GPU");
}

/// Labels of four bits are rounded alike on both, except for their scales, so a few rows of a prompt may select other tokens.
#[test]
#[ignore = "needs a GPU"]
fn rows_select_by_codes_as_on_the_host() {
    let gpu = gpu();
    let (dtype, heads, kv_heads, d, tokens) = (KvDtype::F16, 6, 2, 64, 941);
    let queries = stored(&noise(tokens * heads * d, 74), Storage::F16);
    let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
    kv.append_rows(&noise(tokens * kv_heads * d, 75), &noise(tokens * kv_heads * d, 76));
    let policy = Policy { sink: 4, local: 40, ..Policy::default() };
    for spec in ["double_sparsity:k=9,kind=random", "double_sparsity:ratio=0.1,kind=random"] {
        let method = configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
        let mut here = SparsePrefill::new(&method, &one_layer(d), 7).unwrap();
        let mut expected = vec![f32::NAN; queries.len()];
        here.attend(&PrefillChunk::new(0, 0, &queries, heads, &kv), &mut expected).unwrap();
        let (out, counted) = read_there(&gpu, &method, &queries, heads, &kv, 320);
        assert_eq!(counted.head_densities(0), here.into_costs().head_densities(0), "{spec}");
        let is_off = |(ours, theirs): &(&[f32], &[f32])| {
            let theirs: Vec<f64> = theirs.iter().map(|x| f64::from(*x)).collect();
            relative(ours, &theirs) > tolerance(Storage::F16)
        };
        let off = out.chunks_exact(d).zip(expected.chunks_exact(d)).filter(is_off).count();
        assert!(off * 200 <= tokens * heads, "{spec}: {off} of {} outputs are of other tokens", tokens * heads);
    }
}

/// The last rows of several equal contexts give the same as those rows in a prefill of the whole prompt on the host.
#[test]
#[ignore = "needs a GPU"]
fn last_rows_of_several_contexts_are_those_of_one() {
    let gpu = Arc::new(gpu());
    let (heads, kv_heads, d, tokens, first, batch) = (6, 2, 64, 941, 896, 3);
    let policy = Policy { sink: 4, local: 40, ..Policy::default() };
    let width = heads * d;
    let queries = stored(&noise(tokens * width, 81), Storage::F16);
    let mut kv = LayerKv::new(KvDtype::F16, kv_heads, d, tokens);
    kv.append_rows(&noise(tokens * kv_heads * d, 82), &noise(tokens * kv_heads * d, 83));
    for spec in [None, Some("hip:k=64"), Some("hip:k=64,per=kv_head"), Some("streaming_llm:window=100")] {
        let mut expected = vec![f32::NAN; queries.len()];
        let method = spec.map(|spec| configure(&expand_grid(spec).unwrap()[0], &policy).unwrap());
        let sparse = || method.as_ref().map(|method| SparsePrefill::new(method, &one_layer(kv.keys.d()), 7).unwrap());
        match sparse() {
            Some(mut mask) => mask.attend(&PrefillChunk::new(0, 0, &queries, heads, &kv), &mut expected).unwrap(),
            None => attend_densely(&queries, heads, &kv, &mut expected),
        }
        let mut there = PromptAlone::new(gpu.clone(), heads, &queries[first * width..], &kv, batch).unwrap();
        let shown = PrefillChunk::new(0, first, &queries[first * width..], heads, &kv);
        assert!(there.read(&shown, sparse().as_mut()).unwrap().is_some(), "{spec:?} takes the host");
        let ours = there.outputs().unwrap();
        assert_eq!(ours.len(), (tokens - first) * batch * width);
        for (i, ours) in ours.chunks_exact(width).enumerate() {
            let (row, sequence) = (first + i / batch, i % batch);
            let row: Vec<f64> = expected[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
            assert_near(
                ours,
                &row,
                tolerance(Storage::F16),
                &format!("{spec:?}, row {}, sequence {sequence}", i / batch),
            );
        }
    }
}

/// Computes the output of dense attention for every row of a prompt, in f64.
fn attend_densely(queries: &[f32], heads: usize, kv: &LayerKv, out: &mut [f32]) {
    let (shape, width) = (kv.shape(), heads * kv.shape().d);
    let (d, group) = (shape.d, heads / shape.kv_heads);
    let of = |rows: &KvStore| -> Vec<Vec<f32>> { (0..shape.kv_heads).map(|head| rows.head(head).to_f32()).collect() };
    let (keys, values) = (of(&kv.keys), of(&kv.values));
    out.par_chunks_mut(width).enumerate().for_each(|(row, out)| {
        for (head, out) in out.chunks_mut(d).enumerate() {
            let query = &queries[row * width + head * d..][..d];
            let of_token = |token: usize| {
                let at = token * d..(token + 1) * d;
                (dot(query, &keys[head / group][at.clone()]) / (d as f64).sqrt(), &values[head / group][at])
            };
            let parts: Vec<(f64, &[f32])> = (0..=row).map(of_token).collect();
            let attended = softmax(&parts, d).1;
            out.iter_mut().zip(attended).for_each(|(out, x)| *out = x as f32);
        }
    });
}

/// Short prompts have extra tokens for single rows or none: without sink and window, every other token is an extra one; with a window, some
/// rows have none.
#[test]
#[ignore = "needs a GPU"]
fn short_prompts_are_read_by_masks_with_tokens_of_rows_own() {
    let gpu = gpu();
    let (heads, kv_heads, d, dtype) = (6, 2, 128, KvDtype::Bf16);
    for tokens in [1, 2, 64, 65, 130] {
        let queries = stored(&noise(tokens * heads * d, 71), Storage::Bf16);
        let mut kv = LayerKv::new(dtype, kv_heads, d, tokens);
        kv.append_rows(&noise(tokens * kv_heads * d, 72), &noise(tokens * kv_heads * d, 73));
        for (sink, local) in [(0, 0), (3, 100)] {
            let policy = Policy { sink, local, ..Policy::default() };
            for spec in ["hyper_attention:sample=10,block=4,min_seq_len=3", "reformer:bucket=9,hashes=2", "reformer"] {
                let method = configure(&expand_grid(spec).unwrap()[0], &policy).unwrap();
                assert_read_alike(&gpu, &method, &queries, heads, &kv, &[tokens]);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_keys_receive_from_a_prompt() {
    let gpu = gpu();
    for storage in STORAGES {
        for (d, group) in [(16, 1), (64, 2), (80, 3), (128, 4), (256, 2)] {
            for (rows, first) in [(1, 0), (2, 61), (63, 1), (129, 77), (200, 300)] {
                let kv_heads = 2;
                let (heads, total, stride) = (kv_heads * group, first + rows, (kv_heads * group + 2 * kv_heads) * d);
                let kv = Kv::new(kv_heads, total, d, 81, storage);
                let buffers = kv.send(&gpu, total + 5, storage);
                let numbers = stored(&noise(rows * stride, 91), storage);
                let mut expected = vec![0.0; heads * total];
                for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    let query = &numbers[row * stride + head * d..][..d];
                    let logit = |t: usize| dot(query, kv.key(head / group, t)) / (d as f64).sqrt();
                    let weights: Vec<f64> = (0..=first + row).map(|t| logit(t).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    expected[head * total..].iter_mut().zip(&weights).for_each(|(mass, weight)| *mass += weight / sum);
                }
                let queries = send(&gpu, &numbers, storage);
                let rows_of = Rows {
                    queries: &queries,
                    skip: 0,
                    stride,
                    count: rows,
                    heads,
                    first,
                    scale: scale(d),
                    rule: LayerRule::PLAIN,
                };
                let cache = cache(&buffers, total + 5, &kv, storage);
                let mut out = send(&gpu, &vec![f32::NAN; rows * heads * d], storage);
                let mut log_sums = send(&gpu, &vec![f32::NAN; rows * heads], Storage::F32);
                gpu.prefill_attention_and_sums(&rows_of, &cache, &mut out, &mut log_sums).unwrap();
                let received = |pieces: &[usize]| {
                    let (mut masses, mut from) = (vec![Vec::new(); heads], 0);
                    for &to in pieces {
                        masses.iter_mut().for_each(|mass| mass.resize(first + to, 0.0));
                        let mut there = gpu.upload(&masses.concat()).unwrap();
                        gpu.add_attention_mass(&rows_of, &cache, &log_sums, from..to, &mut there).unwrap();
                        let back = fetch(&gpu, &there, heads * (first + to), Storage::F32);
                        masses = back.chunks_exact(first + to).map(<[f32]>::to_vec).collect();
                        from = to;
                    }
                    masses.concat()
                };
                let what = format!("{storage:?} d {d} group {group}, {rows} rows from {first}");
                let whole = received(&[rows]);
                // The logarithms come from the same products as the weights, so only the sums differ by rounding.
                assert_near(&whole, &expected, 2e-5, &what);
                let parts: Vec<usize> = [1, 17, 100].into_iter().filter(|to| *to < rows).chain([rows]).collect();
                assert_eq!(whole, received(&parts), "{what}, in pieces");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rotation_with_norms_and_places() {
    let gpu = gpu();
    let (rows, heads, kv_heads, d, capacity, first) = (3, 4, 2, 16, 9, 5);
    let width = (heads + 2 * kv_heads) * d;
    for storage in STORAGES {
        let ways = [(d, false), (d, true), (d / 2, false), (d / 2, true), (0, false)];
        for (normed, (rotated, neighbours), growth) in [false, true]
            .into_iter()
            .flat_map(|normed| ways.map(|way| (normed, way)))
            .flat_map(|(normed, way)| [None, Some(0.25f32)].map(|growth| (normed, way, growth)))
        {
            let x = stored(&noise(rows * width, 100), storage);
            let norms = [noise(d, 101), noise(d, 102)];
            let inverse: Vec<f32> = (0..rotated / 2).map(|i| 0.5f32.powi(i as i32)).collect();
            let positions = [70_000u32, 3, 11];
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (row, position) in expected.chunks_exact_mut(width).zip(positions) {
                for (head, x) in row[..(heads + kv_heads) * d].chunks_exact_mut(d).enumerate() {
                    if normed {
                        let rms = (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + 1e-5).sqrt();
                        let norm = &norms[usize::from(head >= heads)];
                        x.iter_mut().zip(norm).for_each(|(x, n)| *x = *x / rms * f64::from(*n));
                    }
                    for (i, frequency) in inverse.iter().enumerate() {
                        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                        let (one, other) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + rotated / 2) };
                        let (a, b) = (x[one], x[other]);
                        (x[one], x[other]) = ((a * cos - b * sin) * 1.5, (b * cos + a * sin) * 1.5);
                    }
                    // One of the three positions is within the first step, and one at the beginning of the second.
                    let grown = growth.map_or(1.0, |beta| 1.0 + f64::from(beta) * f64::from(1 + position / 11).ln());
                    x.iter_mut().filter(|_| head < heads).for_each(|x| *x *= grown);
                }
            }
            let [query, key] = norms.map(|norm| gpu.upload(&norm).unwrap());
            let norms = normed.then_some(Norms { query: &query, key: &key, eps: 1e-5 });
            let (positions, inverse) = (gpu.upload(&positions).unwrap(), gpu.upload(&inverse).unwrap());
            let positions = Positions {
                positions: &positions,
                rotated,
                neighbours,
                inverse: &inverse,
                by_row: false,
                scaling: 1.5,
            };
            let growth = growth.map(|beta| QueryGrowth { beta, step: 11 });
            let rotation = Rotation { rows, heads, norms, positions, growth };
            let kv = Kv::new(kv_heads, capacity, d, 0, storage);
            let buffers = kv.send(&gpu, capacity, storage);
            let mut on_device = send(&gpu, &x, storage);
            gpu.rope(&mut on_device, &rotation, &cache(&buffers, capacity, &kv, storage), first).unwrap();
            let rotated = fetch(&gpu, &on_device, rows * width, storage);
            assert_near(&rotated, &expected, tolerance(storage).max(1e-5), "rows");
            let mut alone = send(&gpu, &x, storage);
            gpu.rope_queries(&mut alone, &rotation, (kv_heads, d, storage)).unwrap();
            let alone = fetch(&gpu, &alone, rows * width, storage);
            for ((alone, rotated), x) in alone.chunks(width).zip(rotated.chunks(width)).zip(x.chunks(width)) {
                let (queries, rest) = alone.split_at(heads * d);
                assert!(queries == &rotated[..heads * d] && rest == &x[heads * d..], "queries alone");
            }
            for (part, buffer) in buffers.iter().enumerate() {
                let held = fetch(&gpu, buffer, kv_heads * capacity * d, storage);
                for head in 0..kv_heads {
                    for row in 0..rows {
                        let at = (heads + part * kv_heads + head) * d;
                        let (ours, exact) =
                            (&held[(head * capacity + first + row) * d..][..d], &expected[row * width + at..][..d]);
                        assert_near(ours, exact, tolerance(storage).max(1e-5), "a key or value in its place");
                    }
                    assert_eq!(
                        held[head * capacity * d..][..first * d],
                        [&kv.keys, &kv.values][part][head * capacity * d..][..first * d]
                    );
                }
            }
        }
    }
}

fn method(spec: &str) -> Configured {
    configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap()
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < tolerance, "{what}: off by {worst}");
}

const CUDA: Device = Device::cuda(0);

#[test]
#[ignore = "needs a GPU"]
fn logits_equal_the_reference_at_positions_beyond_1000() {
    for name in &names_on_gpus() {
        let g = load(name, CUDA);
        let all = g.decoder.all_logits(&g.prompt).unwrap();
        let vocab = g.decoder.config().vocab_size;
        for (position, expected) in g.positions.iter().zip(&g.logits) {
            assert_close(&all[position * vocab..][..vocab], expected, 1e-4, &format!("{name} at {position}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn greedy_continuations_are_identical_from_any_split_of_the_prompt() {
    for name in &names_on_gpus() {
        let g = load(name, CUDA);
        let n = g.prompt.len();
        for prefix in [n, n - 40, 3] {
            let (continuation, logits) = g.continues(prefix);
            assert_eq!(continuation, g.continuation, "{name} from a prefix of {prefix}");
            assert_close(&logits, &g.last_logits, 1e-4, &format!("{name}, last step, prefix of {prefix}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_likeliest_tokens_are_those_that_the_host_finds() {
    let (gpu, rows) = (gpu(), 6);
    for columns in [1, 31, 1000, 151_936] {
        // Many logits are equal.
        let mut logits: Vec<f32> = noise(rows * columns, 700).iter().map(|x| (4.0 * x).round()).collect();
        let (of_row, last) = (|row: usize| row * columns..(row + 1) * columns, columns - 1);
        logits[of_row(1)].iter_mut().for_each(|x| *x = -x.abs());
        logits[of_row(1)][last] = 0.0;
        logits[of_row(2)].iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 == 0 { -0.0 } else { 0.0 });
        logits[of_row(3)][last] = f32::NAN;
        logits[of_row(4)][last / 2] = f32::NEG_INFINITY;
        let there = gpu.upload(&logits).unwrap();
        let found = gpu.argmax(&there, (rows, columns), &mut None).unwrap();
        let expected = logits.chunks_exact(columns).map(|row| {
            let is_finite = row.iter().all(|logit| logit.is_finite());
            is_finite.then(|| argmax(row) as u32)
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{columns} columns");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn sums_and_divergences_of_rows_have_the_bits_of_the_host() {
    let (gpu, rows) = (gpu(), 5);
    for columns in [1, 15, 16, 100, 2048, 4099, 151_936] {
        // Rows differ in the spread of their logits.
        let logits = |seed: u64| -> Vec<f32> {
            let numbers = noise(rows * columns, seed);
            numbers
                .chunks(columns)
                .zip([1.0, 5.0, 40.0, 900.0, 0.0])
                .flat_map(|(row, factor)| row.iter().map(move |x| factor * x))
                .collect()
        };
        let (full, own) = (logits(801), logits(802));
        let targets: Vec<u32> = (0..rows).map(|row| (row * 7919 % columns) as u32).collect();
        let [of_full, of_own] = [&full, &own].map(|logits| gpu.upload(logits).unwrap());
        let sums = |there: &Buffer| -> Vec<RowSum> {
            gpu.row_sums(there, columns, &targets).unwrap().into_iter().map(|sum| sum.unwrap()).collect()
        };
        let (sums_of_full, sums_of_own) = (sums(&of_full), sums(&of_own));
        for ((sum, row), target) in sums_of_own.iter().zip(own.chunks(columns)).zip(&targets) {
            assert_eq!(sum.log_sum_exp().to_bits(), log_sum_exp(row).to_bits(), "{columns} columns");
            assert_eq!((sum.top as usize, sum.of_target), (argmax(row), row[*target as usize]), "{columns} columns");
        }
        let log_z = |sums: &[RowSum]| sums.iter().map(RowSum::log_sum_exp).collect::<Vec<f64>>();
        let (log_z, other_log_z) = (log_z(&sums_of_full), log_z(&sums_of_own));
        // All rows, and those from the second on.
        for first in [0, 1] {
            let rows = NormalizedRows { logits: &of_full, first, log_z: &log_z[first..] };
            let others = NormalizedRows { logits: &of_own, first, log_z: &other_log_z[first..] };
            let found = gpu.row_divergences(rows, others, columns).unwrap();
            for (row, found) in (first..).zip(found) {
                let of = |logits: &[f32]| logits[row * columns..(row + 1) * columns].to_vec();
                let expected = divergence(&of(&full), log_z[row], &of(&own), other_log_z[row]);
                assert_eq!(
                    found.to_bits(),
                    expected.to_bits(),
                    "row {row} of {columns} columns: {found} for {expected}"
                );
            }
        }
        let mut broken = own.clone();
        broken[columns - 1] = f32::NAN;
        let found = gpu.row_sums(&gpu.upload(&broken).unwrap(), columns, &targets).unwrap();
        assert!(found[0].is_none() && found[1].is_some(), "{columns} columns");
    }
}

/// A sum, and the sum of the absolute values of its terms.
#[derive(Clone, Copy, Default)]
struct NaiveSum {
    sum: f64,
    sizes: f64,
}

impl NaiveSum {
    fn add(&mut self, term: f64) {
        self.sum += term;
        self.sizes += term.abs();
    }

    fn of(terms: impl Iterator<Item = f64>) -> Self {
        let mut sum = Self::default();
        terms.for_each(|term| sum.add(term));
        sum
    }

    /// Whether another order of the terms may give `found`; with an f32 number anywhere in between, it would be farther off.
    fn is(&self, found: f64) -> bool {
        (found - self.sum).abs() <= 1e-12 * self.sizes
    }
}

/// A row or channel at the end of a tile, stage or chunk that is left out, counted twice or taken from another head makes an error of a
/// whole term. What follows the rows is NaN.
#[test]
#[ignore = "needs a GPU"]
fn moments_of_rows_are_sums_over_all_of_them() {
    let (gpu, heads) = (gpu(), 3);
    for d in [1, 5, 8, 64, 80, 128, 256] {
        for rows in [0, 1, 31, 1000, 5000] {
            let numbers = noise(heads * rows * d, 900 + d as u64);
            let buffer = gpu.upload(&[&numbers[..], &vec![f32::NAN; 64 * d]].concat()).unwrap();
            let moments = || gpu.moments(&buffer, (heads, rows, d)).unwrap();
            let found = moments();
            assert_eq!(found.len(), heads);
            // Sums in the order in which blocks end would differ between runs.
            assert!(found == moments(), "{rows} rows of {d}: other sums when they are computed again");
            for (head, found) in found.iter().enumerate() {
                let (mut sum, mut products) = (vec![NaiveSum::default(); d], vec![NaiveSum::default(); d * d]);
                for row in numbers.chunks(heads * d).map(|row| &row[head * d..][..d]) {
                    for ((x, sum), products) in row.iter().zip(&mut sum).zip(products.chunks_mut(d)) {
                        sum.add(f64::from(*x));
                        products.iter_mut().zip(row).for_each(|(sum, y)| sum.add(f64::from(*x) * f64::from(*y)));
                    }
                }
                let what = format!("head {head}, {rows} rows of {d}");
                assert_eq!((found.sum.len(), found.products.len()), (d, d * d), "{what}");
                for (i, (found, sum)) in found.sum.iter().zip(&sum).enumerate() {
                    assert!(sum.is(*found), "{what}, channel {i}: {found}, not {}", sum.sum);
                }
                for (at, (found, sum)) in found.products.iter().zip(&products).enumerate() {
                    let (i, j) = (at / d, at % d);
                    assert!(sum.is(*found), "{what}, channels {i} and {j}: {found}, not {}", sum.sum);
                }
            }
        }
    }
}

/// Ranges of tokens whose forms and norms are computed, with the channels of a head and the query heads of a group.
const FORMED: [(usize, Range<usize>, usize); 9] = [
    (1, 0..1, 1),
    (5, 3..34, 3),
    (8, 1..1001, 2),
    (20, 9..73, 1),
    (64, 7..1030, 7),
    (64, 128..128, 2),
    (80, 64..200, 1),
    (128, 5..505, 4),
    (256, 130..350, 3),
];

/// Means and matrices have more bits than f32 numbers. A form is far off if it is of another token, head, KV head or matrix, lacks the
/// channels at the end of a tile, or uses a matrix that is not given.
#[test]
#[ignore = "needs a GPU"]
fn forms_of_keys_are_those_of_each_head_of_the_group() {
    let gpu = gpu();
    let wide = |count: usize, seed: u64| -> Vec<f64> {
        let (high, low) = (noise(count, seed), noise(count, seed + 1));
        high.iter().zip(low).map(|(high, low)| f64::from(*high) + 1e-8 * f64::from(low)).collect()
    };
    for (storage, (d, tokens, group)) in STORAGES.into_iter().flat_map(|storage| FORMED.map(|case| (storage, case))) {
        // NaN follows the range.
        let (kv, capacity) = (Kv::new(2, tokens.end, d, 910, storage), tokens.end + 70);
        let buffers = kv.send(&gpu, capacity, storage);
        let of = cache(&buffers, capacity, &kv, storage);
        let (mean, halves) = (wide(group * d, 920), wide(group * d * d, 930));
        let entry = |head: usize, i: usize, j: usize| halves[(head * d + i.min(j)) * d + i.max(j)];
        let matrix: Vec<f64> = (0..group * d * d).map(|at| entry(at / (d * d), at / d % d, at % d)).collect();
        for (kv_head, matrix) in (0..2).flat_map(|head| [(head, None), (head, Some(&matrix[..]))]) {
            let found = gpu.forms(&of, kv_head, tokens.clone(), &mean, matrix).unwrap();
            assert_eq!(found.len(), group * tokens.len());
            let places = (0..group).flat_map(|head| tokens.clone().map(move |token| (head, token)));
            for ((head, token), [linear, quadratic]) in places.zip(found) {
                let key: Vec<f64> = kv.key(kv_head, token).iter().map(|x| f64::from(*x)).collect();
                let of_mean = NaiveSum::of(key.iter().zip(&mean[head * d..]).map(|(x, m)| x * m));
                let of_matrix = NaiveSum::of(matrix.into_iter().flat_map(|matrix| {
                    let rows = matrix[head * d * d..].chunks(d).zip(&key);
                    rows.flat_map(|(row, x)| row.iter().zip(&key).map(move |(m, y)| m * x * y))
                }));
                assert!(
                    of_mean.is(linear) && of_matrix.is(quadratic),
                    "{storage:?}, {d} channels, matrix {}, KV head {kv_head}, head {head}, token {token}: \
                     {linear} and {quadratic}, not {} and {}",
                    matrix.is_some(),
                    of_mean.sum,
                    of_matrix.sum
                );
            }
        }
    }
}

/// Squares in f64 and sums in f32 or in another order would have other bits.
#[test]
#[ignore = "needs a GPU"]
fn norms_of_values_have_the_bits_of_the_host() {
    let gpu = gpu();
    for (storage, (d, tokens, _)) in STORAGES.into_iter().flat_map(|storage| FORMED.map(|case| (storage, case))) {
        let mut kv = Kv::new(2, tokens.end, d, 940, storage);
        // Numbers from large to small, so that sums lose bits that depend on the order.
        let shrink = |(i, x): (usize, &mut f32)| *x *= 0.25f32.powi((i * 7 % 13) as i32);
        kv.values.iter_mut().enumerate().for_each(shrink);
        kv.values = stored(&kv.values, storage);
        let capacity = tokens.end + 70;
        let buffers = kv.send(&gpu, capacity, storage);
        let of = cache(&buffers, capacity, &kv, storage);
        for kv_head in 0..2 {
            let found = gpu.value_norms(&of, kv_head, tokens.clone()).unwrap();
            assert_eq!(found.len(), tokens.len());
            for (token, found) in tokens.clone().zip(found) {
                let sum = kv.value(kv_head, token).iter().fold(0.0, |sum, x| sum + f64::from(x * x));
                let what = format!("{storage:?}, {d} channels, KV head {kv_head}, token {token}");
                assert_eq!(found.to_bits(), sum.sqrt().to_bits(), "{what}: {found}, not {}", sum.sqrt());
            }
        }
    }
}

/// One of the models caps its logits, so the host computes its distributions.
#[test]
#[ignore = "needs a GPU"]
fn tokens_are_scored_on_the_device_as_on_the_host() {
    for name in ["llama3", "qwen2", "gemma2"] {
        let g = load(name, CUDA);
        let (_, rows) = g.decoder.prefill_rows(&g.prompt, 0, None).unwrap();
        let spec = method("streaming_llm:window=8");
        let mut sparse = SparsePrefill::new(&spec, g.decoder.layer_specs(), 0).unwrap();
        let (_, own) = g.decoder.prefill_rows(&g.prompt, 0, Some(&mut sparse)).unwrap();
        let count = 12.min(g.prompt.len() - 1);
        let hidden = g.decoder.config().hidden_size;
        let (positions, targets): (Vec<usize>, &[u32]) = ((0..count).collect(), &g.prompt[1..=count]);
        let of_full = PredictingRows { rows: &rows[..count * hidden], positions: &positions, targets };
        let of_own = PredictingRows { rows: &own[..count * hidden], ..of_full };
        let logits_there = |parts: &[PredictingRows<'_>]| g.decoder.row_logits(parts.iter().copied()).unwrap();
        let (full, scores_of_full) = g.decoder.distributions(logits_there(&[of_full]), of_full).unwrap();
        // Two parts: one compared with `full`, the other alone.
        let parts = [(of_own, Some(&full)), (of_full, None)];
        let scores = g.decoder.score_tokens(logits_there(&[of_own, of_full]), &parts).unwrap();

        let logits = |rows: PredictingRows<'_>| g.decoder.logits(rows.rows, |row| row).unwrap();
        let (on_host, of_themselves) = Distributions::of_logits(&logits(of_full), targets);
        let both = g.decoder.logits(&[of_own.rows, of_full.rows].concat(), |row| row % count).unwrap();
        let (logits_of_own, logits_of_full) = both.split_at(both.len() / 2);
        assert_eq!(scores_of_full, of_themselves, "{name}");
        assert_eq!(scores[0], scores_of_logits(logits_of_own, targets, Some(&on_host)), "{name}");
        assert_eq!(scores[1], scores_of_logits(logits_of_full, targets, None), "{name}");
        assert!(scores[0].iter().any(|score| score.compared.unwrap().kl > 0.0), "{name}: the window loses nothing");
        let broken = PredictingRows { rows: &vec![f32::NAN; hidden], positions: &[7], targets: &[0] };
        let scored =
            g.decoder.row_logits([broken]).and_then(|logits| g.decoder.score_tokens(logits, &[(broken, None)]));
        assert!(scored.is_err_and(|error| error.to_string().contains("position 7")), "{name}");
    }
}

fn streams<'s>(forks: &'s mut [Sequence], tokens: &'s [Vec<u32>]) -> Vec<Stream<'s>> {
    forks.iter_mut().zip(tokens).map(|(fork, tokens)| Stream { fork, tokens }).collect()
}

/// One of the models caps its logits, so the host chooses its tokens.
#[test]
#[ignore = "needs a GPU"]
fn steps_that_choose_take_the_tokens_that_the_logits_say() {
    for name in ["llama3", "qwen2", "gemma2"] {
        let g = load(name, CUDA);
        let n = g.prompt.len();
        let read = g.decoder.prefill(&g.prompt[..n - 3], n).unwrap();
        let mut cache = IndexCache::new(read.prefix, KvDtype::F32, 0);
        let mut forks = || -> Vec<Sequence> {
            ["full", "streaming_llm:window=20"].map(|spec| cache.fork(&method(spec), false).unwrap()).into()
        };
        let (mut chosen, mut by_logits) = (forks(), forks());
        let mut next = vec![g.prompt[n - 3..].to_vec(); chosen.len()];
        for step in 0..40 {
            let logits = g.decoder.step(&mut streams(&mut by_logits, &next), n).unwrap();
            let tokens = g.decoder.step_argmax(&mut streams(&mut chosen, &next), n).unwrap();
            let expected: Vec<u32> = logits.iter().map(|logits| argmax(logits) as u32).collect();
            assert_eq!(tokens, expected, "{name}, step {step}");
            next = tokens.into_iter().map(|token| vec![token]).collect();
        }
    }
}

/// Methods with every kind of selection and weighting.
const SPECS: [&str; 16] = [
    "full",
    "topk:k=16",
    "quest:k=32",
    "hip:k=32",
    "magicpig:K=4,L=12",
    "oracle_sampling:budget=16",
    "sparq:k=16,r=4",
    "streaming_llm:window=20",
    "streaming_llm:window=20,rolling=true",
    "snapkv:k=16",
    "h2o:k=16",
    "random:k=16",
    "topk:k=16,tail=indexed",
    "tova:k=16",
    "vattention:density=0.2",
    "pqcache:k=16",
];

/// Methods for a single layer that select on the device or not at all.
const ALONE: [&str; 17] = [
    "full",
    "streaming_llm:window=100",
    "topk:k=64",
    "topk:ratio=0.05,per=kv_head",
    "quest:k=128,per=kv_head",
    "lsh_bits:k=128",
    "lsh_bits:bits=40,k=100,per=kv_head",
    "hip:k=128",
    "hip:k=100,per=kv_head,b_k=4,b_sk=3",
    "hip:k=96,b_k=8,b_sk=2,key_offset=last,representative=first",
    "hip:k=100000",
    "magicpig:K=7,L=40",
    "magicpig:K=9,L=15,center=false,min_collisions=1",
    "sparq:k=128",
    "topp:p=0.6",
    "sparq:k=100,r=3,per=kv_head",
    "sparq:k=30000,r=d/4,per=kv_head,reduce=max",
];

#[test]
#[ignore = "needs a GPU"]
fn a_layer_alone_gives_what_the_host_gives() {
    const HEADS: usize = 8;
    const KV_HEADS: usize = 2;
    const BATCH: usize = 3;
    let gpu = Arc::new(gpu());
    for (dtype, d, tokens, tier) in [
        (KvDtype::F32, 16, 700, Tier::Device),
        (KvDtype::Bf16, 64, 3000, Tier::Device),
        (KvDtype::Bf16, 128, 20_001, Tier::Device),
        (KvDtype::F16, 128, 5000, Tier::Device),
        (KvDtype::Bf16, 128, 20_001, Tier::Host),
    ] {
        let storage = match dtype {
            KvDtype::F32 => Storage::F32,
            KvDtype::F16 => Storage::F16,
            KvDtype::Bf16 => Storage::Bf16,
        };
        let drawn = |seed: u64| {
            let mut kv = LayerKv::new(dtype, KV_HEADS, d, tokens);
            let rows = stored(&noise(2 * (tokens + 1) * KV_HEADS * d, seed), storage);
            let mut rows = rows.chunks_exact(KV_HEADS * d).map(<[f32]>::to_vec);
            for _ in 0..tokens {
                let (key, value) = (rows.next().unwrap(), rows.next().unwrap());
                kv.append(&key, &value);
            }
            (kv, rows.next().unwrap(), rows.next().unwrap())
        };
        // Three sequences, of which the third repeats the first.
        let drawn = [drawn(400), drawn(500)];
        let with_next = drawn.each_ref().map(|(kv, key, value)| (kv, Following { key, value }));
        let alone = Arc::new(LayerAlone::new(gpu.clone(), HEADS, &with_next, BATCH, (2, tier)).unwrap());
        let queries: Vec<f32> = noise(BATCH * HEADS * d, 600).iter().map(|q| 3.0 * q).collect();
        let queries = stored(&queries, storage);
        let mut there = IndexCache::new(alone.prefix().clone(), dtype, 0);
        for spec in ALONE {
            let method = method(spec);
            assert!(there.can_stay_on_device(&method), "{spec}");
            alone.ask(queries.clone()).unwrap();
            let mut run = alone.run(there.fork(&method, false).unwrap()).unwrap().expect(spec);
            let times = run.times().unwrap();
            assert!(times.whole > std::time::Duration::ZERO, "{spec}: {times:?}");
            // On Hopper, the nearest signatures are selected without writing scores.
            let scores = match spec.split(':').next().unwrap() {
                "topk" | "quest" | "sparq" | "topp" => MaterializesScores::Yes,
                "lsh_bits" if gpu.info().unwrap().capability.0 == 9 => MaterializesScores::ForTimingOnly,
                "lsh_bits" => MaterializesScores::Yes,
                _ => MaterializesScores::No,
            };
            assert_eq!(run.materializes_scores(), scores, "{spec}");
            assert_eq!(times.score.is_zero(), scores == MaterializesScores::No, "{spec}: {times:?}");
            let (ours, mut attended) = (run.outputs().unwrap(), 0);
            for (i, own) in queries.chunks_exact(HEADS * d).enumerate() {
                let (kv, key, value) = &drawn[i % 2];
                let mut here = IndexCache::new(spattn::kv::Prefix::new(vec![kv.clone()]), dtype, 0);
                let (mut fork, mut expected) = (here.fork(&method, false).unwrap(), vec![0.0; HEADS * d]);
                fork.step(0, own, key, value, &mut expected).unwrap();
                let expected: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
                let what = format!("{dtype:?} {d} wide, {tokens} tokens, {spec}, sequence {i}");
                // Either of two nearly equal scores may be selected.
                assert_near(&ours[i * HEADS * d..][..HEADS * d], &expected, tolerance(storage).max(2e-3) * 2.0, &what);
                attended += fork.costs().total(|_| true).attended_tokens;
            }
            // A number near zero may have another hash.
            let ours = run.fork().costs().total(|_| true).attended_tokens;
            let allowed = if spec.starts_with("magicpig") { attended / 1000 } else { 0 };
            assert!(ours.abs_diff(attended) <= allowed, "{dtype:?}, {spec}: {ours} tokens attended, not {attended}");
        }
    }
}

/// Runs all methods in [`SPECS`] after `reader` has read most of a prompt; returns the logits of each step, and the sequences.
///
/// Both devices continue from the same numbers, because a single different bit of a hash would change what is sampled.
fn run_all(
    reader: &golden_model::Golden,
    golden: &golden_model::Golden,
    fidelity: bool,
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    run_some(reader, golden, &SPECS, fidelity, false)
}

/// Does what [`run_all`] does for some methods; the host may select for all of them.
fn run_some(
    reader: &golden_model::Golden,
    golden: &golden_model::Golden,
    specs: &[&str],
    fidelity: bool,
    on_host: bool,
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    let methods: Vec<Configured> = specs.iter().map(|spec| method(spec)).collect();
    run_methods(reader, golden, &methods, fidelity, on_host)
}

/// Does what [`run_some`] does for methods that may have a calibration.
fn run_methods(
    reader: &golden_model::Golden,
    golden: &golden_model::Golden,
    methods: &[Configured],
    fidelity: bool,
    on_host: bool,
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    run_in_steps(reader, golden, methods, (fidelity, on_host), (30, false))
}

/// Does what [`run_methods`] does with `rows` rows in a step; misses of selection ahead may be counted.
fn run_in_steps(
    reader: &golden_model::Golden,
    golden: &golden_model::Golden,
    methods: &[Configured],
    (fidelity, on_host): (bool, bool),
    (rows, counts_misses): (usize, bool),
) -> (Vec<Vec<Vec<f32>>>, Vec<Sequence>) {
    let (decoder, n) = (&golden.decoder, golden.prompt.len());
    let prefix = n - 90;
    let needs = methods.iter().flat_map(|m| m.method.prompt_needs()).collect();
    let mut stats = PromptStats::new(&needs, decoder.prompt_shape(prefix));
    let mut queries = RecentQueries::of_prefix(prefix);
    let read = reader.decoder.prefill_observed(&golden.prompt[..prefix], n, &mut |chunk| {
        stats.observe(chunk)?;
        queries.observe(chunk)
    });
    let mut read = read.unwrap().prefix;
    if decoder.gpu().is_none() {
        let layers = (0..read.layers()).map(|layer| read.layer(layer).unwrap().clone()).collect();
        read = spattn::kv::Prefix::with_specs(layers, read.specs().clone());
    }
    let mut cache = IndexCache::new(read, decoder.dtype(), 0)
        .with_stats(stats)
        .with_queries(queries)
        .with_rotation(decoder.rotation(n, n).unwrap());
    if on_host {
        cache = cache.selecting_on_host();
    }
    let mut fork = |method: &Configured| {
        let fork = cache.fork(method, fidelity).unwrap();
        if counts_misses { fork.counting_misses() } else { fork }
    };
    let mut forks: Vec<Sequence> = methods.iter().map(&mut fork).collect();
    let mut logits = Vec::new();
    for tokens in golden.prompt[prefix..].chunks(rows) {
        let mut streams: Vec<Stream> = forks.iter_mut().map(|fork| Stream { fork, tokens }).collect();
        logits.push(decoder.step(&mut streams, n).unwrap());
    }
    decoder.collect_device_counters(&mut forks).unwrap();
    (logits, forks)
}

/// A plain model, and one whose queries grow with their position.
const PICKING: [&str; 2] = ["llama3", "ministral3"];

#[test]
fn every_way_to_pick_runs_on_the_cpu() {
    for model in PICKING {
        let cpu = load(model, Device::Cpu);
        let (first, second) = (run_all(&cpu, &cpu, false), run_all(&cpu, &cpu, false));
        assert_eq!(first.0, second.0, "{model}");
        run_some(&cpu, &cpu, &THERE, false, true);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_way_to_pick_gives_what_the_cpu_gives() {
    PICKING.into_iter().for_each(check_every_way_to_pick);
}

fn check_every_way_to_pick(model: &str) {
    let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(model, device));
    for fidelity in [false, true] {
        let ((ours, forks), (expected, others)) = (run_all(&cuda, &cuda, fidelity), run_all(&cuda, &cpu, fidelity));
        for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            for ((ours, expected), spec) in ours.iter().zip(expected).zip(SPECS) {
                assert_close(ours, expected, 2e-3, &format!("{model} {spec}, step {step}, fidelity {fidelity}"));
            }
        }
        for ((ours, other), spec) in forks.iter().zip(&others).zip(SPECS) {
            assert_eq!(ours.tokens(), other.tokens(), "{model} {spec}");
            assert_eq!(ours.costs(), other.costs(), "{model} {spec}");
            if let (Some(ours), Some(other)) = (ours.fidelity(), other.fidelity()) {
                let [a, b] = [ours, other].map(|meter| meter.output_error().concat());
                let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-3, "{model} {spec}: output error off by {worst}");
            }
        }
    }
}

/// Steps whose shape repeats are recorded and launched again; steps of several rows are not.
#[test]
#[ignore = "needs a GPU"]
fn recorded_steps_give_what_launched_ones_give() {
    // A plain model, one whose experts have biases, and one whose queries grow.
    ["llama3", "gpt-oss", "ministral3"].into_iter().for_each(check_recorded_steps);
}

fn check_recorded_steps(model: &str) {
    let g = load(model, CUDA);
    let n = g.prompt.len();
    let specs = ["full", "streaming_llm:window=20", "streaming_llm:window=20,dense_layers=0"];
    let prefixes = [n - 120, n - 300, n - 120];
    let forks = |prefix: usize| -> Vec<Sequence> {
        let read = g.decoder.prefill(&g.prompt[..prefix], n).unwrap();
        let mut cache = IndexCache::new(read.prefix, KvDtype::F32, 0);
        specs.iter().map(|spec| cache.fork(&method(spec), false).unwrap()).collect()
    };
    let (mut alone, mut together) = (prefixes.map(forks), prefixes.map(forks));
    // Tails outgrow their first capacity of 64 tokens.
    for (step, token) in g.prompt[..80].iter().enumerate() {
        for (own, shared) in alone.iter_mut().zip(&mut together) {
            let mut streams: Vec<Stream> =
                shared.iter_mut().map(|fork| Stream { fork, tokens: std::slice::from_ref(token) }).collect();
            let expected = g.decoder.step(&mut streams, n).unwrap();
            for ((fork, expected), spec) in own.iter_mut().zip(expected).zip(specs) {
                let stream = Stream { fork, tokens: std::slice::from_ref(token) };
                let ours = g.decoder.step(&mut [stream], n).unwrap();
                assert_close(&ours[0], &expected, 1e-4, &format!("{model} {spec}, step {step}"));
            }
        }
    }
}

/// Kernels of a step start before earlier ones have ended, and wait for them. Launched one by one or recorded, they compute the same bits
/// as kernels that run one after the other.
#[test]
#[ignore = "needs a GPU"]
fn kernels_that_overlap_give_the_same_bits() {
    let texts = ModelSource::parse("random:llama-3.2-1b").unwrap().resolve_texts().unwrap();
    let mut config = texts.config().unwrap();
    (config.vocab_size, config.hidden_size, config.intermediate_size) = (3000, 1024, 2816);
    (config.heads, config.kv_heads, config.head_dim) = (16, 4, 64);
    config.keep_layers(&[0, 1, 2, 3, 4, 5, 6, 7]);
    for dtype in [KvDtype::Bf16, KvDtype::F32] {
        let plain = (tensors::Weights::random(3), false);
        let in_blocks = |block_type| (tensors::Weights::random_in(3, block_type), true);
        for (weights, kept) in [plain, in_blocks(BlockType::Q4K), in_blocks(BlockType::Q6K)] {
            let dimensions = Dimensions::new(&config, dtype);
            let dimensions = if kept { dimensions.keeping_blocks(&weights) } else { dimensions };
            let decoder = Decoder::load(&dimensions, &weights, CUDA).unwrap();
            for spec in ["full", "topk:k=200"] {
                check_overlap(&decoder, spec, &format!("{dtype:?}, blocks {kept}, {spec}"));
            }
        }
    }
}

fn check_overlap(decoder: &Decoder, spec: &str, what: &str) {
    let tokens: Vec<u32> = (0..2100).map(|i| (i * 37 + 11) % 3000).collect();
    let n = tokens.len();
    let [long, short] = [2000, 1000].map(|prefix| decoder.prefill(&tokens[..prefix], n).unwrap().prefix);
    let fork = |prefix: &Arc<_>| -> Sequence {
        IndexCache::new(Arc::clone(prefix), decoder.dtype(), 0).fork(&method(spec), false).unwrap()
    };
    let step = |fork: &mut Sequence, token: &u32| {
        decoder.step(&mut [Stream { fork, tokens: std::slice::from_ref(token) }], n).unwrap().concat()
    };
    // Steps that alternate with those of another prefix differ in their launches, so none is recorded.
    let run = |overlaps: bool, recorded: bool| -> Vec<Vec<f32>> {
        decoder.cuda().expect("the decoder is on a GPU").device().overlap_kernels(overlaps);
        let (mut own, mut other) = (fork(&long), fork(&short));
        let steps = tokens[2000..2060].iter().map(|token| {
            if !recorded {
                step(&mut other, token);
            }
            step(&mut own, token)
        });
        steps.collect()
    };
    let expected = run(false, false);
    assert!(expected.iter().flatten().all(|logit| logit.is_finite()), "{what}");
    for (overlaps, recorded) in [(true, true), (true, false), (false, true), (true, true)] {
        assert!(run(overlaps, recorded) == expected, "{what}, overlapping: {overlaps}, one fork alone: {recorded}");
    }
}

/// Methods that select on the device, or whose selection does not depend on the step.
const THERE: [&str; 88] = [
    "topk:k=16",
    "topk:k=1",
    "topk:k=5000",
    "topk:ratio=0.1",
    "topk:density=0.5",
    "topk:k=16,per=kv_head",
    "topk:k=16,per=kv_head,reduce=max",
    "topk:k=16,dense_layers=0",
    "quest:k=32",
    "quest:page=5,k=32",
    "quest:page=64,k=100",
    "quest:page=7,k=20,per=kv_head",
    "quest:k=1,min_pages=3,per=kv_head,reduce=max",
    "quest:k=32,summary_bits=4",
    "quest:page=5,k=20,summary_bits=2,per=kv_head",
    "quest:page=5,k=20,summary_bits=4,per=kv_head,reduce=max",
    "quest:page=5,k=20,summary_bits=4,tail=indexed",
    "quest:page=7,k=20,local=0,summary_bits=2,tail=indexed,per=kv_head",
    "double_sparsity:kind=random,channels=4,k=16",
    "double_sparsity:kind=random,channels=d,label_bits=2,k=20,per=kv_head",
    "double_sparsity:kind=random,channels=d,k=20,per=kv_head,reduce=max",
    // By queries made from the previous layer's input.
    "double_sparsity:kind=random,channels=4,k=16,offload=true",
    "double_sparsity:kind=random,channels=d,k=20,per=kv_head,offload=true,dense_layers=0",
    "magicpig:K=4,L=20",
    "magicpig:K=5,L=9,center=false,min_collisions=1,u_floor=1e-4",
    "hip:k=16,r_m=1",
    "hip:k=16,b_k=4,per=kv_head,r_m=1",
    "hip:k=16,r_m=8",
    "hip:k=32,b_k=4,b_sk=2,key_offset=last,r_m=7",
    // The selection is kept for later steps, but not at a dense layer.
    "hip:k=16,r_m=4,dense_layers=0",
    "lsh_bits:k=16",
    "lsh_bits:bits=40,label=av,k=20,per=kv_head",
    "lsh_bits:bits=300,label=av,center=true,ties=first,k=20",
    "sparq:k=16,r=4",
    "sparq:k=1,r=1,per=kv_head",
    "sparq:k=5000",
    "sparq:ratio=0.1,r=d/4,per=kv_head,reduce=max",
    "topp:p=0.5",
    "topp",
    "topp:density=0.4",
    "topk:pick=topp,p=0.7,per=kv_head",
    "topk:pick=topp,p=1",
    // Among many draws, some fall within rounding of a bound; `draws_are_those_of_the_host` covers those.
    "oracle_sampling:budget=16",
    "oracle_sampling:budget=1",
    "infllm:page=8,k=24,representatives=3,window=10",
    "infllm:page=5,k=24,window=30,per=kv_head,reduce=max",
    "infllm:page=7,k=24,representatives=30,per=kv_head",
    "pqcache:k=16",
    "pqcache:subspaces=4,bits=3,k=20,per=kv_head,reduce=max",
    "pqcache:subspaces=5,bits=8,k=20,per=kv_head",
    "quest:page=5,pick=topp,p=0.6,min_pages=4",
    "h2o:k=16,recent=20",
    "h2o:k=1,recent=1,per=kv_head",
    "h2o:k=30,recent=7,per=kv_head,reduce=max",
    // Tokens that leave the window are kept forever, or for some time.
    "h2o:k=1000000,recent=9",
    "h2o:sink=0,k=200,recent=300",
    "h2o",
    // The GPU builds the index by which the host selects.
    "snapkv:k=16",
    "snapkv:k=20,window=70,kernel=5,pool=avg,per=kv_head",
    "snapkv:k=0",
    "pyramid_kv:k=16,window=9",
    "ada_kv:k=16",
    "ada_kv:k=20,window=64,per=kv_head,reduce=max",
    "expected_attention:k=16",
    "expected_attention:k=20,queries=65536,dense_layers=0",
    "expected_attention:ratio=0.1,queries=100,covariance=false,norm=false",
    "expected_attention:k=0",
    "bigbird:window=32,block=8",
    "random:k=16",
    "random:ratio=0.2,per=kv_head",
    // Tokens of the tail become candidates: of 90, some or nearly all.
    "topk:k=16,tail=indexed",
    "topk:ratio=0.1,tail=window:5,per=kv_head",
    "topk:k=5000,local=0,tail=indexed",
    "quest:page=5,k=20,tail=indexed",
    "quest:page=7,k=20,local=0,tail=indexed,per=kv_head",
    "quest:page=64,k=100,tail=window:3,per=kv_head,reduce=max",
    "double_sparsity:kind=random,channels=4,k=16,tail=indexed",
    "double_sparsity:kind=random,channels=d,label_bits=2,k=20,local=0,tail=indexed,per=kv_head",
    "double_sparsity:kind=random,channels=4,k=16,local=0,tail=indexed,offload=true",
    "double_sparsity:kind=random,channels=d,k=20,tail=window:40,per=kv_head,offload=true",
    "hip:k=16,r_m=1,tail=indexed",
    "hip:k=32,b_k=4,b_sk=2,key_offset=last,r_m=7,local=0,tail=indexed",
    "hip:k=48,b_k=8,per=kv_head,r_m=1,local=0,tail=indexed",
    "hip:k=16,r_m=3,dense_layers=0,tail=indexed",
    // Each layer has its own budget.
    "topk:k=16,schedule=linear",
    // The first layer has no budget.
    "topk:k=1,schedule=linear",
    "quest:page=5,k=32,schedule=linear,tail=window:9",
    "topk:k=0",
];

#[test]
#[ignore = "needs a GPU"]
fn what_the_device_picks_is_what_the_host_picks_and_costs_the_same() {
    // One KV head, and two; queries that grow.
    ["llama3", "qwen2", "ministral3"].into_iter().for_each(check_picks_there);
}

/// Checks that costs are equal, except for what the heads of a group read together, because nearly equal scores may be ordered differently.
/// Random draws may select the neighbouring token if scores round differently, so their number of distinct tokens may differ by one or two.
fn assert_alike(a: &LayerCosts, b: &LayerCosts, what: &str) {
    let draws = what.starts_with("oracle_sampling");
    for (layer, (ours, others)) in a.layers().iter().zip(b.layers()).enumerate() {
        let densities = [a, b].map(|costs| costs.head_densities(layer));
        if draws {
            let apart = densities[0].iter().zip(&densities[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-3, "{what}, layer {layer}: {densities:?}");
            continue;
        }
        assert_eq!(densities[0], densities[1], "{what}, layer {layer}");
        let (a, b) = (ours, others);
        assert_eq!(Cost { kv_bytes: 0, ..*a }, Cost { kv_bytes: 0, ..*b }, "{what}, layer {layer}");
        assert!(
            a.kv_bytes.abs_diff(b.kv_bytes) * 500 <= a.kv_bytes,
            "{what}, layer {layer}: {} {}",
            a.kv_bytes,
            b.kv_bytes
        );
    }
}

/// Methods that learn from a model's prompt before they select on the device.
const LEARNED: [&str; 10] = [
    "hash_attention:k=16",
    "hash_attention:ties=first,k=20,per=kv_head",
    "hash_attention:k=20,per=kv_head,reduce=max",
    "hash_attention:ratio=0.1,per=kv_head",
    "loki:k=16",
    "loki:k=20,per=kv_head",
    "double_sparsity:k=16",
    "hash_attention:k=16,local=4,tail=indexed",
    "hash_attention:ties=first,k=20,per=kv_head,tail=window:5",
    "double_sparsity:k=16,local=0,tail=indexed",
];

#[test]
fn every_method_that_selects_on_the_device_is_compared_with_the_host() {
    for method in METHODS.iter().filter(|method| method.selection_place() == SelectionPlace::Device) {
        let is_of = |spec: &&str| spec.split(':').next() == Some(method.name);
        assert!(THERE.iter().chain(&LEARNED).any(is_of), "no spec of {} is compared", method.name);
    }
}

fn check_picks_there(model: &str) {
    let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(model, device));
    let (ours, forks) = run_some(&cuda, &cuda, &THERE, false, false);
    for (golden, on_host) in [(&cuda, true), (&cpu, false)] {
        let (expected, others) = run_some(&cuda, golden, &THERE, false, on_host);
        for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            for ((ours, expected), spec) in ours.iter().zip(expected).zip(THERE) {
                assert_close(ours, expected, 2e-3, &format!("{model} {spec}, step {step}"));
            }
        }
        for ((fork, other), spec) in forks.iter().zip(&others).zip(THERE) {
            assert_eq!(fork.tokens(), other.tokens(), "{spec}");
            assert_alike(fork.costs(), other.costs(), spec);
            assert_eq!((fork.aux_bits(), fork.kv_bytes_held()), (other.aux_bits(), other.kv_bytes_held()), "{spec}");
            let name = spec.split(':').next().unwrap();
            let place = methods::find(name).unwrap().selection_place();
            let picks_there = place == SelectionPlace::Device && !spec.ends_with("k=0");
            let picks_here = place != SelectionPlace::HostOnce;
            let expected = (picks_there, !picks_there && picks_here);
            assert_eq!((fork.selects_on_device(), fork.selects_on_host()), expected, "{spec}");
            assert_eq!((other.selects_on_device(), other.selects_on_host()), (false, picks_here), "{spec}");
        }
    }
}

/// Learns a kind of calibration from a model's prompt.
fn learned(golden: &golden_model::Golden, kind: &str) -> Artefact {
    let (config, n) = (golden.decoder.config(), golden.prompt.len());
    let model = ModelShape {
        weights_sha256: "golden".to_owned(),
        layers: config.layers,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    };
    let rotation = golden.decoder.rotation(n, n).unwrap();
    let of = Assignment { rotation: Some(rotation), model: &model, seed: 1, tokens: n, text: TextKind::Tasks };
    let settings = if kind == "hash_attention" { "hash_attention:steps=20,top=16,queries=32" } else { kind };
    let spec = expand_grid(settings).unwrap().remove(0);
    let calibration = CALIBRATIONS.iter().find(|calibration| calibration.kind == kind).unwrap();
    let mut collector = (calibration.start)(&of, &mut Params::new(&spec)).unwrap();
    golden.decoder.prefill_observed(&golden.prompt, n, &mut |chunk| collector.observe(chunk)).unwrap();
    collector.end_prompt(n);
    let collected = collector.finish();
    let info = ArtefactInfo {
        format: FORMAT,
        kind: kind.to_owned(),
        model,
        data: "the golden prompt".to_owned(),
        seed: 1,
        blocks: 1,
        tokens: n,
        settings: collected.settings,
    };
    Artefact::parse(kind, artefact::write(&info, &collected.tensors)).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn methods_that_have_learned_pick_what_the_host_picks() {
    for model in ["llama3", "qwen2"] {
        let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(model, device));
        let learned = ["hash_attention", "loki", "double_sparsity"].map(|kind| (kind, learned(&cpu, kind)));
        let methods = LEARNED.map(|spec| {
            let kind = spec.split(':').next().unwrap();
            let (_, artefact) = learned.iter().find(|(of, _)| *of == kind).unwrap();
            method(spec).calibrated(artefact).unwrap()
        });
        let (ours, forks) = run_methods(&cuda, &cuda, &methods, false, false);
        let (expected, others) = run_methods(&cuda, &cpu, &methods, false, false);
        for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            for ((ours, expected), spec) in ours.iter().zip(expected).zip(LEARNED) {
                assert_close(ours, expected, 2e-3, &format!("{model} {spec}, step {step}"));
            }
        }
        for ((fork, other), spec) in forks.iter().zip(&others).zip(LEARNED) {
            assert_alike(fork.costs(), other.costs(), spec);
            assert!(fork.selects_on_device() && !fork.selects_on_host() && other.selects_on_host(), "{model} {spec}");
        }
    }
}

/// Several threads observe a chunk at once. The copy for one of them must not be scheduled such that it waits for itself.
#[test]
#[ignore = "needs a GPU"]
fn many_threads_may_look_at_what_a_device_reads() {
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let g = load("llama3", CUDA);
        let n = g.prompt.len();
        for _ in 0..20 {
            let look = |chunk: &PrefillChunk<'_>| {
                let looked = (0..64).into_par_iter().map(|i| match i % 3 {
                    0 => chunk.last_queries(n - i).unwrap().len(),
                    1 => chunk.queries().unwrap().len(),
                    _ => chunk.kv().unwrap().tokens(),
                });
                assert!(looked.all(|numbers| numbers > 0));
                Ok(())
            };
            g.decoder.prefill_observed(&g.prompt, n, &mut { look }).unwrap();
        }
        done.send(()).unwrap();
    });
    waiting.recv_timeout(std::time::Duration::from_secs(60)).expect("no thread waits for itself");
}

/// Returns the inputs of all layers for a prompt, `[layer][token][hidden]`, as an observer of its chunks sees them.
fn inputs_of_layers(name: &str, device: Device) -> Vec<Vec<f32>> {
    let g = load(name, device);
    let mut inputs = vec![Vec::new(); g.decoder.config().layers];
    let mut look = |chunk: &PrefillChunk<'_>| {
        inputs[chunk.layer].extend_from_slice(&chunk.input()?.expect("an engine provides inputs"));
        Ok(())
    };
    g.decoder.prefill_observed(&g.prompt, g.prompt.len(), &mut look).unwrap();
    inputs
}

#[test]
#[ignore = "needs a GPU"]
fn layers_get_the_inputs_that_they_get_on_the_cpu() {
    for name in ["llama3", "qwen2", "gemma2"] {
        let (ours, expected) = (inputs_of_layers(name, CUDA), inputs_of_layers(name, Device::Cpu));
        for (layer, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(ours.len(), expected.len(), "{name}, layer {layer}");
            let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let off = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            assert!(off <= 1e-4 * largest, "{name}, layer {layer}: {off} of {largest}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn runs_of_one_method_are_picked_for_together() {
    let g = load("llama3", CUDA);
    // The last ones share only an index, so the answer of one cannot be used for another.
    let specs = [
        "topk:k=16",
        "quest:k=32",
        "topk:k=16",
        "topk:k=24",
        "topk:k=16",
        "quest:k=32",
        "sparq:k=16,r=4",
        "sparq:k=16,r=8",
        "sparq:k=24,r=8",
        "lsh_bits:k=16",
        "lsh_bits:k=16,ties=first",
    ];
    let (together, forks) = run_some(&g, &g, &specs, false, false);
    for (i, spec) in specs.iter().enumerate() {
        let (alone, fork) = run_some(&g, &g, &[spec], false, false);
        for (together, alone) in together.iter().zip(&alone) {
            assert_close(&together[i], &alone[0], 1e-3, spec);
        }
        assert_eq!(forks[i].costs(), fork[0].costs(), "{spec}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn costs_may_be_looked_at_on_the_way() {
    let g = load("llama3", CUDA);
    let (n, topk) = (g.prompt.len(), method("topk:k=16"));
    let read = g.decoder.prefill(&g.prompt[..n - 40], n).unwrap();
    let mut cache = IndexCache::new(read.prefix, KvDtype::F32, 0);
    let [mut often, mut once] = [0; 2].map(|_| cache.fork(&topk, false).unwrap());
    for tokens in g.prompt[n - 40..].chunks(10) {
        g.decoder.step(&mut [Stream { fork: &mut often, tokens }], n).unwrap();
        g.decoder.collect_device_counters([&mut often]).unwrap();
        g.decoder.step(&mut [Stream { fork: &mut once, tokens }], n).unwrap();
    }
    g.decoder.collect_device_counters([&mut once]).unwrap();
    assert_eq!(often.costs(), once.costs());
}

#[test]
#[ignore = "needs a GPU"]
fn sixteen_bits_are_picked_from_alike() {
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let f32s = load("llama3", Device::Cpu);
        let g = golden_model::Golden { decoder: decoder("llama3", dtype, CUDA), ..f32s };
        let specs = [
            "topk:k=16",
            "topk:k=16,per=kv_head",
            "quest:page=5,k=32",
            "double_sparsity:kind=random,channels=d/2,label_bits=16,k=16",
        ];
        let [(ours, forks), (expected, others)] = [false, true].map(|on_host| run_some(&g, &g, &specs, false, on_host));
        for (i, spec) in specs.iter().enumerate() {
            for (ours, expected) in ours.iter().zip(&expected) {
                assert_close(&ours[i], &expected[i], 0.1, &format!("{dtype:?} {spec}"));
            }
            let attended = |fork: &Sequence| fork.costs().total(|_| true).attended_tokens;
            assert_eq!(attended(&forks[i]), attended(&others[i]), "{dtype:?} {spec}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_prefix_is_gone_on_with() {
    let g = load("qwen3", CUDA);
    let n = g.prompt.len();
    let whole = g.decoder.prefill(&g.prompt, n).unwrap();
    for (read, kept) in [(n - 200, n - 200), (n - 100, n - 333), (n, 50)] {
        let begun = g.decoder.prefill(&g.prompt[..read], n).unwrap();
        let prefix = Arc::into_inner(begun.prefix).unwrap();
        let gone_on = g.decoder.prefill_after(prefix, kept, &g.prompt, n, &mut |_| Ok(())).unwrap();
        assert_close(&gone_on.logits, &whole.logits, 1e-4, &format!("{kept} of {read} kept"));
        for layer in 0..whole.prefix.layers() {
            let keys = |prefill: &Prefill| prefill.prefix.layer(layer).unwrap().keys.head(0).to_f32();
            assert_close(&keys(&gone_on), &keys(&whole), 1e-4, "keys");
        }
    }
}

/// Returns the attention mass of all heads of all layers over a prompt that is read in two parts.
fn masses(g: &golden_model::Golden) -> Vec<f32> {
    let (decoder, n) = (&g.decoder, g.prompt.len());
    let needs = std::collections::BTreeSet::from([PromptNeed::AttentionMass]);
    let mut stats = PromptStats::of_nested(&needs, decoder.prompt_shape(n - 300), &[n]);
    let begun = decoder.prefill_observed(&g.prompt[..n - 300], n, &mut |chunk| stats.observe(chunk)).unwrap();
    let mut stats = stats.continued(&needs, n).expect("it was foreseen");
    let prefix = Arc::into_inner(begun.prefix).unwrap();
    decoder.prefill_after(prefix, n - 300, &g.prompt, n, &mut |chunk| stats.observe(chunk)).unwrap();
    let shape = decoder.prompt_shape(n);
    let heads = (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |head| (layer, head)));
    heads
        .flat_map(|(layer, head)| {
            let head = stats.head(layer, head);
            (0..head.group()).flat_map(|h| head.attention_mass(h).to_vec()).collect::<Vec<f32>>()
        })
        .collect()
}

#[test]
#[ignore = "needs a GPU"]
fn attention_mass_is_gathered_as_on_the_cpu() {
    let [ours, expected] = [CUDA, Device::Cpu].map(|device| masses(&load("llama3", device)));
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    assert_near(&ours, &expected, 1e-4, "masses");
}

#[test]
#[ignore = "needs a GPU"]
fn sixteen_bit_storage_stays_near() {
    let g = load("qwen2", Device::Cpu);
    let n = g.prompt.len();
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let of = |device| decoder("qwen2", dtype, device).prefill(&g.prompt, n).unwrap().logits;
        assert_close(&of(CUDA), &of(Device::Cpu), 0.3, &format!("{dtype:?}"));
    }
}
