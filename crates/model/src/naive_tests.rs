//! The decoder, compared with an implementation in plain loops and f64 for each field of the [`BlockSpec`].

use std::collections::BTreeMap;

use super::config::{ModelConfig, RopeConfig, RopeScaling};
use super::decoder::Decoder;
use super::device::Device;
use super::dimensions::Dimensions;
use super::engine::Stream;
use super::families::{
    AttentionScale, BlockSpec, ExpertNames, ExpertWeights, Experts, Gate, LayerKind, LayerKinds, QkNormOver,
    QueryGrowth, RopePairs, StackedNames, TensorNames,
};
use super::layers;
use super::rope::{Rope, RopeTable};
use super::source::ModelSource;
use super::tensors::{StoredTensor, StoredType, TensorInfo, TensorSource, Weights, WeightsError};
use spattn_attention::kv::KvDtype;
use spattn_attention::methods::configure;
use spattn_attention::{Configured, IndexCache, Policy, expand_grid};
use spattn_base::error::UsageError;

const NAMES: TensorNames = TensorNames::LLAMA;
const EXPERT_NAMES: ExpertNames = ExpertNames {
    router: "mlp.gate",
    each: "mlp.experts.",
    gate: "gate",
    up: "up",
    down: "down",
    stacked: StackedNames::TRANSFORMERS,
};

/// A small model with grouped query heads; `change` makes it one of another family.
fn config(change: impl Fn(&mut ModelConfig)) -> ModelConfig {
    let texts = ModelSource::parse("random:llama-3.2-1b").unwrap().resolve_texts().unwrap();
    let mut config = texts.config().unwrap();
    (config.vocab_size, config.hidden_size, config.intermediate_size) = (50, 32, 48);
    (config.layers, config.heads, config.kv_heads, config.head_dim) = (2, 4, 2, 8);
    config.tie_word_embeddings = false;
    config.layer_kinds.kinds.truncate(config.layers);
    change(&mut config);
    config
}

/// Tensors that all have different numbers: norms around 1, all others around 0.
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

    /// The rows of matrices, or the entries of biases, concatenated.
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
    /// The RoPE tables, by number.
    ropes: Vec<RopeTable>,
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

    fn rotated(&self, head: &[f64], position: usize, rope: Option<usize>) -> Vec<f64> {
        let Some(rope) = rope else { return head.to_vec() };
        let (cos, sin) = (self.ropes[rope].cos(position), self.ropes[rope].sin(position));
        let n = self.config.rotated();
        // The other channel of its pair, the number of the pair, and the sign of the other channel's term.
        let pair = |i: usize| match self.config.block.rope_pairs {
            RopePairs::Halves if i < n / 2 => (i + n / 2, i, -1.0),
            RopePairs::Halves => (i - n / 2, i - n / 2, 1.0),
            RopePairs::Neighbours if i.is_multiple_of(2) => (i + 1, i / 2, -1.0),
            RopePairs::Neighbours => (i - 1, i / 2, 1.0),
        };
        let turned = |i: usize| match i < n {
            true => {
                let (other, number, sign) = pair(i);
                head[i] * f64::from(cos[number]) + sign * head[other] * f64::from(sin[number])
            }
            false => head[i],
        };
        (0..head.len()).map(turned).collect()
    }

    /// The heads of a projection, normed if they have a norm, and rotated.
    fn heads(&self, rows: &[f64], norm: Option<String>, position: usize, rope: Option<usize>) -> Vec<Vec<f64>> {
        let d = self.config.head_dim;
        let over = match self.config.block.qk_norm_over {
            QkNormOver::Head => d,
            QkNormOver::AllHeads => rows.len(),
        };
        let normed = |rows: &[f64]| norm.as_ref().map_or_else(|| rows.to_vec(), |name| self.norm(name, rows));
        let rows: Vec<f64> = rows.chunks_exact(over).flat_map(normed).collect();
        rows.chunks_exact(d).map(|head| self.rotated(head, position, rope)).collect()
    }

    /// A gated network.
    fn gated(&self, gate_up: &[String], down: String, x: &[f64], width: usize) -> Vec<f64> {
        let bias = self.config.block.mlp_bias;
        let rows = self.linear(gate_up, x, bias);
        let (gate, up) = rows.split_at(width);
        let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| self.gate(*gate, *up)).collect();
        self.linear(&[down], &gated, bias)
    }

    /// The second branch of a layer, which may have experts.
    fn feed_forward(&self, index: usize, x: &[f64]) -> Vec<f64> {
        let (c, names) = (self.config, &self.config.block.names);
        let name = |part: &str| format!("{}{index}.{part}", names.layer);
        let Some(experts) = c.block.experts.filter(|_| c.layer_kind(index).experts) else {
            let gate_up: Vec<String> = names.gate_up.iter().map(|part| name(part)).collect();
            return self.gated(&gate_up, name(names.down), x, c.intermediate_size);
        };
        let logits = self.linear(&[name(experts.names.router)], x, experts.router_bias);
        let mut chosen: Vec<usize> = (0..experts.count).collect();
        chosen.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        chosen.truncate(experts.used);
        let all: f64 = match experts.weights {
            ExpertWeights::AmongAll => logits.iter().map(|logit| logit.exp()).sum(),
            ExpertWeights::AmongUsed => chosen.iter().map(|expert| logits[*expert].exp()).sum(),
        };
        let mut sum = vec![0.0; x.len()];
        for expert in chosen {
            let [gate, up, down] = experts.names.of(expert).map(|part| name(&part));
            let out = self.gated(&[gate, up], down, x, experts.width);
            let weight = logits[expert].exp() / all;
            sum.iter_mut().zip(out).for_each(|(sum, y)| *sum += weight * y);
        }
        sum
    }

    /// The logit of a query and a key before the softmax.
    fn attention_logit(&self, query: &[f64], key: &[f64]) -> f64 {
        let block = &self.config.block;
        let scale = match block.attention_scale {
            AttentionScale::HeadDim => (self.config.head_dim as f64).powf(-0.5),
            AttentionScale::InverseRoot(of) => (of as f64).powf(-0.5),
            AttentionScale::Factor(factor) => f64::from(factor),
        };
        let scaled = scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
        block.attention_cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh())
    }

    /// The factor on a query at a position.
    fn growth(&self, position: usize) -> f64 {
        let Some(QueryGrowth { beta, step }) = self.config.block.query_growth else { return 1.0 };
        1.0 + f64::from(beta) * (1.0 + (position as f64 / step as f64).floor()).ln()
    }

    /// The output for a gate `x` and what it gates, `up`.
    fn gate(&self, x: f64, up: f64) -> f64 {
        match self.config.block.gate {
            Gate::Silu => up * x / (1.0 + (-x).exp()),
            Gate::GeluTanh => up * 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh()),
            Gate::Clamped { slope, limit } => {
                let (slope, limit) = (f64::from(slope), f64::from(limit));
                let x = x.min(limit);
                (up.max(-limit).min(limit) + 1.0) * x / (1.0 + (-slope * x).exp())
            }
        }
    }

    /// The logits after every token.
    fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        self.logits_ahead(tokens, None).0
    }

    /// Like [`logits`](Self::logits), but tokens after a prefix attend to each other and to the tokens of the prefix that `picked` allows.
    /// A layer's tokens are picked by the queries that its weights give for the input of the layer before. Also counts the tokens that the
    /// layer's actual queries would pick.
    fn logits_ahead(&self, tokens: &[u32], picked: Option<Picked>) -> (Vec<Vec<f64>>, Misses) {
        let mut misses = Misses::default();
        let (c, block) = (self.config, &self.config.block);
        let names = &block.names;
        let table = self.numbers.get(&format!("{}.weight", names.embedding));
        let row = |token: u32| &table[token as usize * c.hidden_size..][..c.hidden_size];
        let embed = |token: &u32| row(*token).iter().map(|x| f64::from(*x * block.embedding_scale)).collect();
        let mut x: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
        let mut inputs_before = x.clone();
        for index in 0..c.layers {
            let inputs = x.clone();
            let name = |part: &str| format!("{}{index}.{part}", names.layer);
            let of = |parts: &[&str]| parts.iter().map(|part| name(part)).collect::<Vec<_>>();
            let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
            let LayerKind { window, rope, .. } = c.layer_kind(index);
            let sinks = names.sinks.map(|part| self.numbers.get(&name(part)));
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in x.iter_mut().enumerate() {
                let normed =
                    |part: Option<&str>, x: &[f64]| part.map_or_else(|| x.to_vec(), |part| self.norm(&name(part), x));
                let qkv = self.linear(&of(names.qkv), &normed(names.attention_norm, x), block.qkv_bias);
                let queries = self.heads(&qkv[..q], names.qk_norm.map(|[query, _]| name(query)), position, rope);
                keys.push(self.heads(&qkv[q..q + kv], names.qk_norm.map(|[_, key]| name(key)), position, rope));
                values.push(qkv[q + kv..].to_vec());
                let ahead = self.linear(
                    &of(names.qkv),
                    &normed(names.attention_norm, &inputs_before[position]),
                    block.qkv_bias,
                );
                let ahead = self.heads(&ahead[..q], names.qk_norm.map(|[query, _]| name(query)), position, rope);
                let mut attended = Vec::new();
                for (head, query) in queries.iter().enumerate() {
                    let of_head = head / (c.heads / c.kv_heads);
                    let query: Vec<f64> = query.iter().map(|x| x * self.growth(position)).collect();
                    let picked = picked.filter(|picked| position >= picked.prefix);
                    let picks = |Picked { prefix, k }: Picked, query: &[f64], at: usize| {
                        let score = |at: usize| query.iter().zip(&keys[at][of_head]).map(|(q, k)| q * k).sum::<f64>();
                        (0..prefix).filter(|other| score(*other) > score(at)).count() < k
                    };
                    let is_seen =
                        |at: usize| picked.is_none_or(|picked| at >= picked.prefix || picks(picked, &ahead[head], at));
                    for at in picked.into_iter().filter(|_| index > 0).flat_map(|picked| 0..picked.prefix) {
                        let is_wanted = picked.is_some_and(|picked| picks(picked, &query, at));
                        misses.wanted += u64::from(is_wanted);
                        misses.missed += u64::from(is_wanted && !is_seen(at));
                    }
                    let weight = |(at, keys): (usize, &Vec<Vec<f64>>)| match window {
                        Some(window) if at + window <= position => 0.0,
                        _ if !is_seen(at) => 0.0,
                        _ => self.attention_logit(&query, &keys[of_head]).exp(),
                    };
                    let weights: Vec<f64> = keys.iter().enumerate().map(weight).collect();
                    let sink = sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                    let all: f64 = sink + weights.iter().sum::<f64>();
                    let channel = |i: usize| {
                        let of_token = |(w, values): (&f64, &Vec<f64>)| w * values[of_head * c.head_dim + i];
                        weights.iter().zip(&values).map(of_token).sum::<f64>() / all
                    };
                    attended.extend((0..c.head_dim).map(channel));
                }
                let add = |x: &mut Vec<f64>, branch: Vec<f64>, post_norm: Option<&str>| {
                    let scale = f64::from(block.branch_scale);
                    x.iter_mut().zip(normed(post_norm, &branch)).for_each(|(x, y)| *x += scale * y);
                };
                let output = self.linear(&of(&[names.output]), &attended, block.output_bias);
                add(x, output, names.attention_post_norm);
                let down = self.feed_forward(index, &normed(names.mlp_norm, x));
                add(x, down, names.mlp_post_norm);
            }
            inputs_before = inputs;
        }
        let head = if c.tie_word_embeddings { names.embedding } else { names.head };
        let cap = |logit: f64| block.logit_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh());
        let logits = |x: &Vec<f64>| self.linear(&[head.to_owned()], &self.norm(names.final_norm, x), false);
        let divided = |logit: f64| logit / f64::from(block.logit_divisor);
        (x.iter().map(|x| logits(x).into_iter().map(divided).map(cap).collect()).collect(), misses)
    }
}

/// How many tokens of a prefix are picked: the `k` best of the first `prefix` tokens.
#[derive(Clone, Copy)]
struct Picked {
    prefix: usize,
    k: usize,
}

/// Counts, after the first layer, the tokens that query heads would pick by their own queries, and those of them that the queries computed
/// ahead do not pick.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Misses {
    wanted: u64,
    missed: u64,
}

fn full() -> Result<Configured, UsageError> {
    configure(&expand_grid("full")?[0], &Policy::default())
}

/// A model of four layers, all of one kind.
fn four_layers(change: impl Fn(&mut ModelConfig)) -> ModelConfig {
    config(|config| {
        config.layers = 4;
        let kind = config.layer_kinds.kinds[0];
        config.layer_kinds.kinds.resize(4, kind);
        change(config);
    })
}

fn some_tokens(config: &ModelConfig) -> Vec<u32> {
    (0..40).map(|i| (i * 7 + 3) % config.vocab_size as u32).collect()
}

/// Double Sparsity with exact scores.
fn exact_labels(k: usize, offload: bool) -> Configured {
    let spec = format!("double_sparsity:kind=random,channels=d,label_bits=16,per=query_head,k={k},offload={offload}");
    configure(&expand_grid(&spec).unwrap()[0], &Policy { sink: 0, local: 0, ..Policy::default() }).unwrap()
}

/// For each sequence, the logits after the last token of each step, and its misses. [`stepped`] feeds the tokens after a prefix to
/// sequences of some methods, several at a time and one by one.
type Stepped = (Vec<(usize, Vec<f32>)>, Misses);
fn stepped(decoder: &Decoder, tokens: &[u32], prefix: usize, methods: &[Configured]) -> Vec<Stepped> {
    let prefill = decoder.prefill(&tokens[..prefix], tokens.len()).unwrap();
    let mut cache = IndexCache::new(prefill.prefix, KvDtype::F32, 0);
    let mut forks: Vec<_> = methods.iter().map(|method| cache.fork(method, false).unwrap().counting_misses()).collect();
    let mut logits = vec![Vec::new(); methods.len()];
    for part in [prefix..prefix + 4, prefix + 4..prefix + 5, prefix + 5..tokens.len()] {
        let last = part.end - 1;
        let mut streams: Vec<_> = forks.iter_mut().map(|fork| Stream { fork, tokens: &tokens[part.clone()] }).collect();
        let of_streams = decoder.step(&mut streams, tokens.len()).unwrap();
        logits.iter_mut().zip(of_streams).for_each(|(all, logits)| all.push((last, logits)));
    }
    let misses = forks.iter().map(|fork| {
        let cost = fork.costs().total(|_| true);
        Misses { wanted: cost.wanted_tokens, missed: cost.missed_tokens }
    });
    logits.into_iter().zip(misses).collect()
}

/// Tokens are picked by queries computed from the input of the layer before if the method says so, and by the layer's own queries
/// otherwise. The first layer has only its own. The tokens that the own queries would have picked are counted.
#[test]
fn tokens_are_picked_ahead_by_the_queries_that_the_input_of_the_layer_before_has() {
    let qk_norm = |config: &mut ModelConfig| {
        config.block.qk_norm_over = QkNormOver::Head;
        config.block.names.qk_norm = Some(["q_norm", "k_norm"]);
    };
    let bias = |config: &mut ModelConfig| config.block.qkv_bias = true;
    for change in [&(|_: &mut ModelConfig| ()) as &dyn Fn(&mut ModelConfig), &qk_norm, &bias] {
        let config = four_layers(change);
        let tokens = some_tokens(&config);
        let (numbers, dimensions) = (Numbers::of(&config), Dimensions::new(&config, KvDtype::F32));
        let table = |rope: &Rope| {
            let mut table = RopeTable::new(rope, tokens.len());
            table.grow(tokens.len());
            table
        };
        let naive = Naive { config: &config, numbers: &numbers, ropes: dimensions.ropes().iter().map(table).collect() };
        let decoder = Decoder::load(&dimensions, &Weights::from(Numbers::of(&config)), Device::Cpu).unwrap();
        let (prefix, k) = (30, 5);
        let (expected, misses) = naive.logits_ahead(&tokens, Some(Picked { prefix, k }));
        let both = stepped(&decoder, &tokens, prefix, &[exact_labels(k, true), exact_labels(k, false)]);
        let [(ahead, counted), (own, none)] = &both[..] else { panic!("two methods") };
        for (last, logits) in ahead {
            assert!(worst(logits, &expected[*last]) < 1e-4, "behind token {last}: {}", worst(logits, &expected[*last]));
        }
        assert!(own.iter().any(|(last, logits)| worst(logits, &expected[*last]) > 1e-2), "own queries pick others");
        // Ten tokens, four heads, three layers after the first.
        assert_eq!(misses.wanted, (10 * 4 * 3 * k) as u64);
        assert!(misses.missed > 0 && misses.missed < misses.wanted, "{misses:?}");
        assert_eq!((*counted, *none), (misses, Misses::default()));
    }
}

/// If a layer adds nothing, the queries of the next layer are already known before it. The two layers have different query weights, which
/// shows that those of the next layer are used.
#[test]
fn behind_a_layer_that_adds_nothing_no_token_is_missed() {
    let config = config(|_| ());
    let tokens = some_tokens(&config);
    let dimensions = Dimensions::new(&config, KvDtype::F32);
    let decoder = |adds_nothing: bool| {
        let mut numbers = Numbers::of(&config);
        for part in [NAMES.output, NAMES.down].into_iter().filter(|_| adds_nothing) {
            numbers.tensors.get_mut(&format!("{}0.{part}.weight", NAMES.layer)).unwrap().1.fill(0.0);
        }
        Decoder::load(&dimensions, &Weights::from(numbers), Device::Cpu).unwrap()
    };
    let methods = [exact_labels(5, true), exact_labels(5, false)];
    let of = |adds_nothing: bool| stepped(&decoder(adds_nothing), &tokens, 30, &methods);
    let both = of(true);
    assert_eq!(both[0].1, Misses { wanted: 10 * 4 * 5, missed: 0 });
    assert_eq!(both[0].0, both[1].0, "bit for bit");
    let both = of(false);
    assert!(both[0].1.missed > 0, "a layer that adds something: {:?}", both[0].1);
    assert_ne!(both[0].0, both[1].0);
}

#[test]
fn what_is_picked_ahead_depends_on_no_thread_and_no_other_sequence() {
    let config = four_layers(|_| ());
    let tokens = some_tokens(&config);
    let dimensions = Dimensions::new(&config, KvDtype::F32);
    let decoder = Decoder::load(&dimensions, &Weights::from(Numbers::of(&config)), Device::Cpu).unwrap();
    let methods = [full().unwrap(), exact_labels(5, true), exact_labels(5, false), exact_labels(9, true)];
    let with = |threads: usize, methods: &[Configured]| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| stepped(&decoder, &tokens, 30, methods))
    };
    let all = with(1, &methods);
    assert_eq!(with(3, &methods), all);
    for (method, together) in methods.chunks(1).zip(&all) {
        assert_eq!(&with(2, method)[0], together);
    }
}

fn worst(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

/// Logits of a prefill at all tokens, and of steps after a shorter prefill, both compared with those of the naive decoder.
fn compared(what: &str, config: &ModelConfig) -> Vec<f64> {
    let tokens: Vec<u32> = (0..12).map(|i| (i * 7 + 3) % config.vocab_size as u32).collect();
    let numbers = Numbers::of(config);
    let dimensions = Dimensions::new(config, KvDtype::F32);
    let table = |rope: &Rope| {
        let mut table = RopeTable::new(rope, tokens.len());
        table.grow(tokens.len());
        table
    };
    let naive = Naive { config, numbers: &numbers, ropes: dimensions.ropes().iter().map(table).collect() };
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

/// Uses more rows than a layer's products take at a time.
#[test]
fn the_last_token_has_the_same_bits_alone_and_among_the_rows_of_any_prompt() {
    let config = config(|_| {});
    let tokens: Vec<u32> = (0..300).map(|i| (i * 7 + 3) % config.vocab_size as u32).collect();
    let dimensions = Dimensions::new(&config, KvDtype::F32);
    let decoder = Decoder::load(&dimensions, &Weights::from(Numbers::of(&config)), Device::Cpu).unwrap();
    let (whole, rows) = decoder.prefill_rows(&tokens, 0, None).unwrap();
    let logits = decoder.logits(&rows, |row| row).unwrap();
    assert_eq!(whole.logits, logits[299 * config.vocab_size..]);
    for last in [0, 1, 11, 127, 128, 200, 256, 299] {
        // Only this row passes through the whole last layer.
        let alone = decoder.prefill(&tokens[..=last], tokens.len()).unwrap().logits;
        assert_eq!(alone, logits[last * config.vocab_size..][..config.vocab_size], "row {last}");
    }
}

#[test]
fn every_field_of_a_block_is_computed_as_by_the_naive_decoder() {
    let plain = compared("Llama", &config(|_| {}));
    let gemma = TensorNames {
        attention_post_norm: Some("post_attention_layernorm"),
        mlp_norm: Some("pre_feedforward_layernorm"),
        mlp_post_norm: Some("post_feedforward_layernorm"),
        ..NAMES
    };
    let changes: [(&str, BlockSpec); 26] = [
        ("biases of q, k and v", BlockSpec { qkv_bias: true, ..BlockSpec::LLAMA }),
        ("bias of the output", BlockSpec { output_bias: true, ..BlockSpec::LLAMA }),
        ("biases of the gated layers", BlockSpec { mlp_bias: true, ..BlockSpec::LLAMA }),
        (
            "norms of heads",
            BlockSpec { names: TensorNames { qk_norm: Some(["q_norm", "k_norm"]), ..NAMES }, ..BlockSpec::LLAMA },
        ),
        (
            "norms of all heads together",
            BlockSpec {
                names: TensorNames { qk_norm: Some(["q_norm", "k_norm"]), ..NAMES },
                qk_norm_over: QkNormOver::AllHeads,
                ..BlockSpec::LLAMA
            },
        ),
        ("rotation of a part of each head", BlockSpec { rotated: Some(4), ..BlockSpec::LLAMA }),
        ("rotation of neighbours", BlockSpec { rope_pairs: RopePairs::Neighbours, ..BlockSpec::LLAMA }),
        (
            "rotation of neighbours in a part of each head",
            BlockSpec { rotated: Some(6), rope_pairs: RopePairs::Neighbours, ..BlockSpec::LLAMA },
        ),
        ("scaled branches", BlockSpec { branch_scale: 0.4, ..BlockSpec::LLAMA }),
        ("divided logits", BlockSpec { logit_divisor: 3.0, ..BlockSpec::LLAMA }),
        (
            "no norm before attention",
            BlockSpec { names: TensorNames { attention_norm: None, ..NAMES }, ..BlockSpec::LLAMA },
        ),
        (
            "no norm before the gated layers",
            BlockSpec { names: TensorNames { mlp_norm: None, ..NAMES }, ..BlockSpec::LLAMA },
        ),
        (
            "norms behind branches only",
            BlockSpec { names: TensorNames { attention_norm: None, mlp_norm: None, ..gemma }, ..BlockSpec::LLAMA },
        ),
        ("a clamped gate", BlockSpec { gate: Gate::Clamped { slope: 1.7, limit: 0.3 }, ..BlockSpec::LLAMA }),
        ("GELU", BlockSpec { gate: Gate::GeluTanh, ..BlockSpec::LLAMA }),
        ("norms stored without 1", BlockSpec { norm_offset: 1.0, ..BlockSpec::LLAMA }),
        (
            "another scale of attention",
            BlockSpec { attention_scale: AttentionScale::InverseRoot(2), ..BlockSpec::LLAMA },
        ),
        ("a stated scale of attention", BlockSpec { attention_scale: AttentionScale::Factor(0.9), ..BlockSpec::LLAMA }),
        ("capped attention", BlockSpec { attention_cap: Some(0.5), ..BlockSpec::LLAMA }),
        ("sinks", BlockSpec { names: TensorNames { sinks: Some("self_attn.sinks"), ..NAMES }, ..BlockSpec::LLAMA }),
        ("queries that grow", BlockSpec { query_growth: Some(QueryGrowth { beta: 0.7, step: 3 }), ..BlockSpec::LLAMA }),
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
        // Norms are drawn around 1 in both cases.
        assert!(differs || what == "norms stored without 1", "{what}: as Llama");
    }
    compared("one table for both ends", &config(|c| c.tie_word_embeddings = true));
}

#[test]
fn experts_are_computed_as_by_the_naive_decoder() {
    let with_router_bias = |router_bias, used, weights, mlp_bias, layers: [bool; 2]| {
        let experts = Experts { names: EXPERT_NAMES, count: 5, used, width: 24, weights, router_bias };
        config(|c| {
            c.block = BlockSpec { experts: Some(experts), mlp_bias, ..BlockSpec::LLAMA };
            c.layer_kinds.kinds = layers.map(|experts| LayerKind { experts, ..LayerKind::FULL }).to_vec();
        })
    };
    let of = |used, weights, mlp_bias, layers| with_router_bias(false, used, weights, mlp_bias, layers);
    let both = [true; 2];
    let variants = [
        ("experts", of(2, ExpertWeights::AmongAll, false, both)),
        ("weights that add up to 1", of(2, ExpertWeights::AmongUsed, false, both)),
        ("one more expert", of(3, ExpertWeights::AmongAll, false, both)),
        ("experts with biases", of(2, ExpertWeights::AmongAll, true, both)),
        ("a router with a bias", with_router_bias(true, 2, ExpertWeights::AmongAll, false, both)),
        ("experts in one of two layers", of(2, ExpertWeights::AmongAll, false, [false, true])),
        ("all experts", of(5, ExpertWeights::AmongUsed, false, both)),
    ];
    let logits = variants.map(|(what, config)| (what, compared(what, &config)));
    for (i, (what, one)) in logits.iter().enumerate() {
        for (other, two) in &logits[..i] {
            assert!(one.iter().zip(two).any(|(a, b)| (a - b).abs() > 1e-3), "{what}: as {other}");
        }
    }
}

#[test]
fn every_kind_of_layer_is_computed_as_by_the_naive_decoder() {
    let plain = compared("full layers", &config(|_| {}));
    let other_rope = RopeConfig { theta: 100.0, scaling: RopeScaling::Linear { factor: 3.0 } };
    let changes: [(&str, [LayerKind; 2], Vec<RopeConfig>); 5] = [
        // Prefill reaches beyond the window, and the steps after it go further.
        ("a window", [LayerKind { window: Some(5), ..LayerKind::FULL }, LayerKind::FULL], Vec::new()),
        ("windows of one token", [LayerKind { window: Some(1), ..LayerKind::FULL }; 2], Vec::new()),
        ("a layer that is not rotated", [LayerKind::FULL, LayerKind { rope: None, ..LayerKind::FULL }], Vec::new()),
        (
            "a layer with a rotation of its own",
            [LayerKind { rope: Some(1), ..LayerKind::FULL }, LayerKind::FULL],
            vec![other_rope.clone()],
        ),
        (
            "all at once",
            [
                LayerKind { window: Some(3), rope: Some(1), ..LayerKind::FULL },
                LayerKind { window: Some(9), rope: None, ..LayerKind::FULL },
            ],
            vec![other_rope],
        ),
    ];
    for (what, kinds, further_ropes) in changes {
        let layer_kinds = LayerKinds { kinds: kinds.to_vec(), further_ropes };
        let changed = compared(what, &config(|c| c.layer_kinds = layer_kinds.clone()));
        assert!(changed.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-2), "{what}: as full layers");
    }
}

/// The entries of an identity for a block, in their order, since digests are of its text.
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
    let olmo = TensorNames { attention_norm: None, ..NAMES };
    let further = BlockSpec {
        names: olmo,
        qk_norm_over: QkNormOver::AllHeads,
        rotated: Some(4),
        rope_pairs: RopePairs::Neighbours,
        branch_scale: 0.5,
        logit_divisor: 8.0,
        ..BlockSpec::LLAMA
    };
    let expected = "\"pre_norms\":[false,true],\"qk_norm_over\":\"all_heads\",\"rotated\":4,\"rope_pairs\":\"neighbours\",\
                    \"branch_scale\":0.5,\"logit_divisor\":8.0";
    assert_eq!(of(further), format!("{begin},{expected}}}"));
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
    assert_eq!(Dimensions::new(&config, KvDtype::F32).step_weight_numbers(), matrices - 50 * 32);
}

#[test]
fn a_token_passes_the_experts_that_it_uses_and_no_others() {
    let experts = Experts {
        names: EXPERT_NAMES,
        count: 5,
        used: 2,
        width: 24,
        weights: ExpertWeights::AmongAll,
        router_bias: false,
    };
    let config = config(|c| {
        c.block.experts = Some(experts);
        c.layer_kinds.kinds[1].experts = true;
    });
    let shapes = layers::tensors(&config);
    let matrices: usize =
        shapes.values().filter(|shape| shape.len() == 2).map(|shape| shape.iter().product::<usize>()).sum();
    let dimensions = Dimensions::new(&config, KvDtype::F32);
    assert_eq!(dimensions.weight_numbers(), matrices);
    // Without the embedding table, and three of five experts.
    assert_eq!(dimensions.step_weight_numbers(), matrices - 50 * 32 - 3 * 3 * 24 * 32);
}
