//! The decoder compared with one in plain loops and f64, field by field of the [`BlockSpec`].

use std::collections::BTreeMap;

use super::config::ModelConfig;
use super::decoder::Decoder;
use super::device::Device;
use super::dimensions::Dimensions;
use super::engine::Stream;
use super::families::{BlockSpec, Gate, TensorNames};
use super::layers;
use super::rope::RopeTable;
use super::source::ModelSource;
use super::tensors::{StoredTensor, StoredType, TensorInfo, TensorSource, Weights, WeightsError};
use spattn_attention::kv::KvDtype;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, IndexCache, Policy, expand_grid};
use spattn_base::error::UsageError;

const NAMES: TensorNames = TensorNames::LLAMA;

/// A small model with grouped query heads; `change` makes it one of another family.
fn config(change: impl Fn(&mut ModelConfig)) -> ModelConfig {
    let texts = ModelSource::parse("random:llama-3.2-1b").unwrap().resolve_texts().unwrap();
    let mut config = texts.config().unwrap();
    (config.vocab_size, config.hidden_size, config.intermediate_size) = (50, 32, 48);
    (config.layers, config.heads, config.kv_heads, config.head_dim) = (2, 4, 2, 8);
    config.tie_word_embeddings = false;
    change(&mut config);
    config
}

/// Tensors of which every one has numbers of its own: norms around 1, all others around 0.
#[derive(Debug)]
struct Numbers {
    tensors: BTreeMap<String, (TensorInfo, Vec<f32>)>,
}

impl Numbers {
    fn of(config: &ModelConfig) -> Self {
        let tensors = layers::tensors(config).into_iter().map(|(name, shape)| {
            let count: usize = shape.iter().product();
            let of_name = name.bytes().fold(1u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
            let middle = if name.contains("norm") { 1.0 - config.block.norm_offset } else { 0.0 };
            let number = |i: usize| {
                let bits = (of_name ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let bits = (bits ^ (bits >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                middle + 0.5 * ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0)
            };
            let info = TensorInfo { shape, stored: Ok(StoredType::F32), bytes: 4 * count as u64 };
            (name, (info, (0..count).map(number).collect()))
        });
        Self { tensors: tensors.collect() }
    }

    fn get(&self, name: &str) -> &[f32] {
        &self.tensors[name].1
    }

    /// The rows of matrices, or the entries of biases, one behind the other.
    fn stacked(&self, names: &[String], end: &str) -> Vec<f64> {
        names.iter().flat_map(|name| self.get(&format!("{name}.{end}"))).map(|x| f64::from(*x)).collect()
    }
}

impl TensorSource for Numbers {
    fn label(&self) -> &str {
        "numbers"
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.tensors.get(name)?.0)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<StoredTensor, WeightsError> {
        let (info, numbers) = &self.tensors[name];
        assert_eq!(info.shape, shape, "{name}");
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(StoredTensor { dtype: StoredType::F32, shape: shape.to_vec(), bytes })
    }

    fn sha256(&self) -> Result<String, WeightsError> {
        Ok(String::new())
    }
}

/// A decoder in plain loops.
struct Naive<'a> {
    config: &'a ModelConfig,
    numbers: &'a Numbers,
    angles: RopeTable,
}

impl Naive<'_> {
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let size = (mean + self.config.rms_norm_eps).sqrt();
        let weights = self.numbers.get(&format!("{name}.weight"));
        x.iter().zip(weights).map(|(x, w)| x / size * f64::from(w + self.config.block.norm_offset)).collect()
    }

    fn linear(&self, names: &[String], x: &[f64], bias: bool) -> Vec<f64> {
        let weights = self.numbers.stacked(names, "weight");
        let mut out: Vec<f64> =
            weights.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if bias {
            out.iter_mut().zip(self.numbers.stacked(names, "bias")).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    fn rotated(&self, head: &[f64], position: usize) -> Vec<f64> {
        let (cos, sin) = (self.angles.cos(position), self.angles.sin(position));
        let half = head.len() / 2;
        let turned = |i: usize| match i < half {
            true => head[i] * f64::from(cos[i]) - head[i + half] * f64::from(sin[i]),
            false => head[i] * f64::from(cos[i - half]) + head[i - half] * f64::from(sin[i - half]),
        };
        (0..head.len()).map(turned).collect()
    }

    /// Heads of a projection, normed if there is a norm for them, and rotated.
    fn heads(&self, rows: &[f64], norm: Option<String>, position: usize) -> Vec<Vec<f64>> {
        let normed = |head: &[f64]| norm.as_ref().map_or_else(|| head.to_vec(), |name| self.norm(name, head));
        rows.chunks_exact(self.config.head_dim).map(|head| self.rotated(&normed(head), position)).collect()
    }

    fn gate(&self, x: f64) -> f64 {
        match self.config.block.gate {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh()),
        }
    }

    /// Logits behind every token.
    fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let (c, block) = (self.config, &self.config.block);
        let names = &block.names;
        let table = self.numbers.get(&format!("{}.weight", names.embedding));
        let row = |token: u32| &table[token as usize * c.hidden_size..][..c.hidden_size];
        let embed = |token: &u32| row(*token).iter().map(|x| f64::from(*x * block.embedding_scale)).collect();
        let mut x: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
        for index in 0..c.layers {
            let name = |part: &str| format!("{}{index}.{part}", names.layer);
            let of = |parts: &[&str]| parts.iter().map(|part| name(part)).collect::<Vec<_>>();
            let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in x.iter_mut().enumerate() {
                let qkv = self.linear(&of(names.qkv), &self.norm(&name(names.attention_norm), x), block.qkv_bias);
                let queries = self.heads(&qkv[..q], names.qk_norm.map(|[query, _]| name(query)), position);
                keys.push(self.heads(&qkv[q..q + kv], names.qk_norm.map(|[_, key]| name(key)), position));
                values.push(qkv[q + kv..].to_vec());
                let mut attended = Vec::new();
                for (head, query) in queries.iter().enumerate() {
                    let of_head = head / (c.heads / c.kv_heads);
                    let dot = |keys: &Vec<Vec<f64>>| keys[of_head].iter().zip(query).map(|(k, q)| k * q).sum::<f64>();
                    let weights: Vec<f64> =
                        keys.iter().map(|keys| (dot(keys) / (c.head_dim as f64).sqrt()).exp()).collect();
                    let all: f64 = weights.iter().sum();
                    let channel = |i: usize| {
                        let of_token = |(w, values): (&f64, &Vec<f64>)| w * values[of_head * c.head_dim + i];
                        weights.iter().zip(&values).map(of_token).sum::<f64>() / all
                    };
                    attended.extend((0..c.head_dim).map(channel));
                }
                let add = |x: &mut Vec<f64>, branch: Vec<f64>, post_norm: Option<&str>| {
                    let branch = post_norm.map_or_else(|| branch.clone(), |part| self.norm(&name(part), &branch));
                    x.iter_mut().zip(branch).for_each(|(x, y)| *x += y);
                };
                let output = self.linear(&of(&[names.output]), &attended, block.output_bias);
                add(x, output, names.attention_post_norm);
                let gate_up = self.linear(&of(names.gate_up), &self.norm(&name(names.mlp_norm), x), block.mlp_bias);
                let (gate, up) = gate_up.split_at(c.intermediate_size);
                let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| self.gate(*gate) * up).collect();
                let down = self.linear(&of(&[names.down]), &gated, block.mlp_bias);
                add(x, down, names.mlp_post_norm);
            }
        }
        let head = if c.tie_word_embeddings { names.embedding } else { names.head };
        let cap = |logit: f64| block.logit_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh());
        let logits = |x: &Vec<f64>| self.linear(&[head.to_owned()], &self.norm(names.final_norm, x), false);
        x.iter().map(|x| logits(x).into_iter().map(cap).collect()).collect()
    }
}

fn full() -> Result<Configured, UsageError> {
    configure(&expand_grid("full")?[0], &Policy::default())
}

fn worst(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

/// Logits of prefill at all tokens, and of steps behind a shorter prefill, both compared with the naive decoder's.
fn compared(what: &str, config: &ModelConfig) -> Vec<f64> {
    let tokens: Vec<u32> = (0..12).map(|i| (i * 7 + 3) % config.vocab_size as u32).collect();
    let numbers = Numbers::of(config);
    let dimensions = Dimensions::new(config, KvDtype::F32);
    let naive = Naive { config, numbers: &numbers, angles: dimensions.angles(tokens.len()) };
    let expected = naive.logits(&tokens);
    let decoder = Decoder::load(&dimensions, &Weights::from(Numbers::of(config)), Device::Cpu).unwrap();
    let all: Vec<f64> = expected.concat();
    assert!(worst(&decoder.all_logits(&tokens).unwrap(), &all) < 1e-4, "{what}: prefill");
    let prefill = decoder.prefill(&tokens[..8], tokens.len()).unwrap();
    let mut fork = IndexCache::new(prefill.prefix, KvDtype::F32, 0).fork(&full().unwrap(), false).unwrap();
    let stepped = decoder.step(&mut [Stream { fork: &mut fork, tokens: &tokens[8..] }], tokens.len()).unwrap();
    assert!(worst(&stepped[0], &expected[11]) < 1e-4, "{what}: decoding");
    all
}

#[test]
fn every_field_of_a_block_is_computed_as_by_the_naive_decoder() {
    let plain = compared("Llama", &config(|_| {}));
    let gemma = TensorNames {
        attention_post_norm: Some("post_attention_layernorm"),
        mlp_norm: "pre_feedforward_layernorm",
        mlp_post_norm: Some("post_feedforward_layernorm"),
        ..NAMES
    };
    let changes: [(&str, BlockSpec); 11] = [
        ("biases of q, k and v", BlockSpec { qkv_bias: true, ..BlockSpec::LLAMA }),
        ("bias of the output", BlockSpec { output_bias: true, ..BlockSpec::LLAMA }),
        ("biases of the gated layers", BlockSpec { mlp_bias: true, ..BlockSpec::LLAMA }),
        (
            "norms of heads",
            BlockSpec { names: TensorNames { qk_norm: Some(["q_norm", "k_norm"]), ..NAMES }, ..BlockSpec::LLAMA },
        ),
        ("GELU", BlockSpec { gate: Gate::GeluTanh, ..BlockSpec::LLAMA }),
        ("norms stored without 1", BlockSpec { norm_offset: 1.0, ..BlockSpec::LLAMA }),
        ("scaled embeddings", BlockSpec { embedding_scale: 6.0, ..BlockSpec::LLAMA }),
        ("capped logits", BlockSpec { logit_cap: Some(2.0), ..BlockSpec::LLAMA }),
        ("norms behind branches", BlockSpec { names: gemma, ..BlockSpec::LLAMA }),
        (
            "one matrix for q, k and v",
            BlockSpec { names: TensorNames { qkv: &["qkv_proj"], ..NAMES }, qkv_bias: true, ..BlockSpec::LLAMA },
        ),
        (
            "one matrix for gate and up",
            BlockSpec { names: TensorNames { gate_up: &["gate_up_proj"], ..NAMES }, ..BlockSpec::LLAMA },
        ),
    ];
    for (what, block) in changes {
        let changed = compared(what, &config(|c| c.block = block.clone()));
        let differs = changed.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-2);
        // Norms are drawn around 1 either way.
        assert!(differs || what == "norms stored without 1", "{what}: as Llama");
    }
    compared("one table for both ends", &config(|c| c.tie_word_embeddings = true));
}

/// What an identity holds of a block, and the order in which it does: digests are of its text.
#[test]
fn a_run_is_identified_by_what_differs_from_llama() {
    let of = |block: BlockSpec| serde_json::to_string(&block).unwrap();
    let plain = r#"{"qk_norm":false,"qkv_bias":false,"output_bias":false,"mlp_bias":false}"#;
    assert_eq!(of(BlockSpec::LLAMA), plain);
    let begin = plain.trim_end_matches('}');
    let scaled = BlockSpec { embedding_scale: 2.0, logit_cap: Some(30.0), ..BlockSpec::LLAMA };
    assert_eq!(of(scaled), format!("{begin},\"embedding_scale\":2.0,\"logit_cap\":30.0}}"));
    let names = TensorNames { mlp_post_norm: Some("n"), ..NAMES };
    let gelu = BlockSpec { names, gate: Gate::GeluTanh, norm_offset: 1.0, ..BlockSpec::LLAMA };
    let further = "\"post_norms\":[false,true],\"gate\":\"gelu_tanh\",\"norm_offset\":1.0";
    assert_eq!(of(gelu), format!("{begin},{further}}}"));
}

#[test]
fn stored_matrices_are_counted_from_the_same_layout() {
    let config = config(|_| {});
    let shapes = layers::tensors(&config);
    let matrices: usize =
        shapes.values().filter(|shape| shape.len() == 2).map(|shape| shape.iter().product::<usize>()).sum();
    assert_eq!(Dimensions::new(&config, KvDtype::F32).weight_numbers(), matrices);
}
