//! A GPU hashes queries, the host samples tokens and attends them, and the GPU merges the result with what it attends itself
//! (`attend_on=host` of `magicpig`).

use std::sync::Arc;

use spattn::attention::{Configured, IndexCache, Sequence};
use spattn::cost::{Cost, LayerCosts};
use spattn::kernels::cuda::{
    Attention, AttentionWorkspace, Buffer, CollisionWorkspace, Gpu, HostDeviceVec, LayerRule, Prefix, Queries, Storage,
    TableNumbers, TableShape, Tail, Tokens, Unit, Weights,
};
use spattn::kv::{KvDtype, LayerKv, Tier, TierBytes};
use spattn::model::config::ModelConfig;
use spattn::model::cuda::{Following, LayerAlone};
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::Device;
use spattn::model::tensors::Weights as ModelWeights;

use super::golden_model::{Golden, load};
use super::host_tier::both;
use super::several::{small, tokens, with_prompt};
use super::{
    CUDA, Kv, PICKING, STORAGES, assert_alike, assert_near, cache, dot, fetch, gpu, method, noise, run_in_steps, scale,
    send, softmax, storage_of, stored, tolerance,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const PREFIX: usize = 700;
const TAIL: usize = 5;

/// Returns a partial softmax of some tokens of the prefix with lowered logits, in f64, and the logits and values of these tokens.
fn partial_of<'k>(
    query: &[f32],
    kv: &'k Kv,
    kv_head: usize,
    d: usize,
    some: &[usize],
) -> (Vec<f32>, Vec<(f64, &'k [f32])>) {
    let lowered = |token: usize| 0.5 - (token as f64 * 0.37).sin();
    let logit = |token: usize| dot(query, kv.key(kv_head, token)) * f64::from(scale(d)) - lowered(token);
    let parts: Vec<(f64, &[f32])> = some.iter().map(|token| (logit(*token), kv.value(kv_head, *token))).collect();
    let most = parts.iter().map(|(logit, _)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let mut partial = vec![0.0f64; 2 + d];
    partial[0] = most;
    for (logit, value) in &parts {
        let weight = (logit - most).exp();
        partial[1] += weight;
        partial[2..].iter_mut().zip(*value).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    (partial.into_iter().map(|x| x as f32).collect(), parts)
}

/// Compares merged attention with sums in f64. `strength` moves the logits of the host's tokens far from those of the GPU's, either way.
fn check_merging(gpu: &Gpu, storage: Storage, d: usize, strength: [f32; 2]) {
    let mut prefix = Kv::new(KV_HEADS, PREFIX, d, 900, storage);
    let following = Kv::new(KV_HEADS, TAIL, d, 902, storage);
    let total = PREFIX + TAIL;
    let is_static = |token: usize| !(4..PREFIX - 20).contains(&token);
    for (i, x) in prefix.keys.iter_mut().enumerate() {
        *x *= strength[usize::from(is_static(i / d % PREFIX))];
    }
    prefix.keys = stored(&prefix.keys, storage);
    let there = prefix.send(gpu, PREFIX, storage);
    let tail = send(gpu, &following.within(0, 1, 8), storage);
    let queries = stored(&noise(2 * HEADS * d, 904), storage);
    let asked = send(gpu, &queries, storage);
    let tail = Tail { buffer: &tail, layers: 1, capacity: 8, kv_heads: KV_HEADS, d, storage };
    let mut attention = Attention::new(2, HEADS, (2 * KV_HEADS, 2 * 29 * KV_HEADS), gpu.processors());
    let mut expected = Vec::new();
    for row in 0..2 {
        for kv_head in 0..KV_HEADS {
            let (head, queries_of) = (2 * kv_head, 2);
            let tokens = Tokens { sink: 4, recent: PREFIX - 20, total, picked: &[] };
            let unit = Unit { row, head, queries: queries_of, kv_head, tail: &tail, tokens, weights: Weights::Softmax };
            attention.add(0, &unit, PREFIX);
        }
        for head in 0..HEADS {
            let (kv_head, query) = (head / 2, &queries[(row * HEADS + head) * d..][..d]);
            // No token is sampled for the last head.
            let some: Vec<usize> = (4..PREFIX - 20).filter(|token| head < 3 && token % (3 + head) == row).collect();
            let (partial, mut parts) = partial_of(query, &prefix, kv_head, d, &some);
            attention.give_partial(row, head, &partial);
            let logit = |key: &[f32]| dot(query, key) * f64::from(scale(d));
            for token in (0..PREFIX).filter(|token| is_static(*token)) {
                parts.push((logit(prefix.key(kv_head, token)), prefix.value(kv_head, token)));
            }
            for token in 0..TAIL {
                parts.push((logit(following.key(kv_head, token)), following.value(kv_head, token)));
            }
            expected.extend(softmax(&parts, d).1);
        }
    }
    let of = Prefix {
        cache: cache(&there, PREFIX, &prefix, storage),
        tokens: PREFIX,
        layer: 0,
        scale: scale(d),
        rule: LayerRule::PLAIN,
    };
    let mut room = AttentionWorkspace::default();
    let prepared = gpu.prepare(&mut attention, &mut room, d).unwrap();
    let mut out = send(gpu, &vec![f32::NAN; 2 * HEADS * d], storage);
    let mut wide = gpu.upload(&vec![f32::NAN; 2 * HEADS * d]).unwrap();
    gpu.attend(&prepared, &of, &asked, HEADS * d, &mut out, Some(&mut wide)).unwrap();
    let found = fetch(gpu, &wide, 2 * HEADS * d, Storage::F32);
    // Large logits have larger rounding errors.
    let allowed = tolerance(storage).max(5e-5);
    assert_near(&found, &expected, allowed, &format!("{storage:?}, {d} channels, {strength:?}"));
}

#[test]
#[ignore = "needs a GPU"]
fn partial_softmaxes_are_merged_with_what_the_gpu_attends() {
    let gpu = gpu();
    for storage in STORAGES {
        for d in [64, 128, 72] {
            for strength in [[1.0, 1.0], [9.0, 1.0], [1.0, 9.0]] {
                check_merging(&gpu, storage, d, strength);
            }
        }
    }
}

/// A query that equals a key has its code, so the key's token is in the query's bucket; and every token is in each table once.
#[test]
#[ignore = "needs a GPU"]
fn tables_and_codes_come_to_the_host() {
    let gpu = gpu();
    let (d, first, heads) = (64, 3, 40);
    for (count, bits, tables, storage) in
        [(900, 4, 21, Storage::Bf16), (900, 10, 7, Storage::F32), (66_000, 6, 5, Storage::F16)]
    {
        let kv = Kv::new(2, first + count, d, 910, storage);
        let there = kv.send(&gpu, first + count, storage);
        let planes = noise(bits * tables * d, 911);
        let shape = TableShape { bits, tables, d };
        let keys = cache(&there, first + count, &kv, storage);
        let made = gpu.hash_keys(&keys, first..first + count, shape, (&planes, false)).unwrap();
        // Each row asks for keys of one KV head.
        let token = |row: usize, head: usize| (row * 377 + head * 19) % count;
        let asked: Vec<f32> =
            (0..2 * heads).flat_map(|i| kv.key(i / heads, first + token(i / heads, i % heads)).to_vec()).collect();
        let (buffer, mut rows) = (send(&gpu, &asked, storage), HostDeviceVec::default());
        rows.set(&gpu, vec![0, 1]).unwrap();
        let queries = Queries { queries: &buffer, stride: heads * d, heads, rows: &rows };
        let (planes, mut room) = (gpu.upload(&planes).unwrap(), CollisionWorkspace::default());
        let codes = gpu.hash_queries(&queries, storage, shape, &planes, &mut room).unwrap();
        assert_eq!(codes.len(), 2 * heads * tables);
        for kv_head in 0..2 {
            let down = made.download(&gpu, kv_head).unwrap();
            assert!(down.mean.is_empty() && down.lengths.len() == count, "{count} tokens");
            let (bounds, sorted): (Vec<u32>, Vec<u32>) = match down.numbers {
                TableNumbers::Narrow(bounds, sorted) => {
                    assert!(count < 65_536);
                    (bounds.into_iter().map(u32::from).collect(), sorted.into_iter().map(u32::from).collect())
                }
                TableNumbers::Wide(bounds, sorted) => (bounds, sorted),
            };
            for (table, (bounds, sorted)) in bounds.chunks((1 << bits) + 1).zip(sorted.chunks(count)).enumerate() {
                let mut all = sorted.to_vec();
                all.sort_unstable();
                assert!(all.iter().enumerate().all(|(i, token)| *token as usize == i), "{count} tokens, table {table}");
                for head in 0..heads {
                    let code = usize::from(codes[(kv_head * heads + head) * tables + table]);
                    let bucket = &sorted[bounds[code] as usize..bounds[code + 1] as usize];
                    assert!(
                        bucket.contains(&(token(kv_head, head) as u32)),
                        "{count} tokens, table {table}, query {head}"
                    );
                }
            }
            let length = kv.key(kv_head, first).iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((down.lengths[0] - length).abs() < 1e-4 * length);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_host_reads_pinned_memory_where_it_is() {
    let gpu = gpu();
    let numbers: Vec<f32> = noise(3_000_000, 920);
    let there: Buffer = gpu.upload(&numbers).unwrap();
    assert!(there.host_numbers::<f32>(0, 1).unwrap().is_none());
    let mut pinned = gpu.alloc_on_host(there.bytes()).unwrap();
    for turn in 0..3 {
        // The copy may be on its way when its numbers are asked for.
        gpu.copy(&there, 4 * turn, &mut pinned, 0, there.bytes() - 4 * turn).unwrap();
        let found = pinned.host_numbers::<f32>(0, numbers.len() - turn).unwrap().unwrap();
        assert!(found == &numbers[turn..], "turn {turn}");
    }
    assert_eq!(pinned.host_numbers::<f32>(40, 3).unwrap().unwrap(), &numbers[12..15]);
}

/// Settings of sampling methods, each of which is run with the host attending.
const SAMPLED: [&str; 4] = [
    "magicpig:K=4,L=20",
    "magicpig:K=5,L=9,center=false,min_collisions=1,u_floor=1e-4",
    "magicpig:K=4,L=12,seed=3,dense_layers=0",
    "magicpig:K=3,L=10,sink=4,local=10",
];

fn on_host(specs: &[&str]) -> Vec<Configured> {
    specs.iter().map(|spec| method(&format!("{spec},attend_on=host"))).collect()
}

/// Returns the bus bytes of a sequence: those of static tokens of the prefix, queries, codes of `tables` tables, and partial softmaxes.
fn expected_bus(fork: &Sequence, tables: usize, heads: usize) -> u64 {
    let (shape, prefix, method) = (fork.prefix().shape(), fork.prefix().tokens(), fork.method());
    let element = shape.dtype.bytes();
    let dense = (0..fork.prefix().layers()).filter(|layer| fork.is_dense(*layer)).count();
    let sparse = fork.prefix().layers() - dense;
    let of_step = |total: usize| {
        let exact = method.method.exact(&method.policy, prefix, total);
        let attended = exact.sink + prefix - exact.recent.min(prefix);
        let of_row = attended * shape.kv_heads * shape.row_bytes();
        let of_heads = heads * (shape.d * element + 2 * tables + 4 * (2 + shape.d));
        sparse * (of_row + of_heads) + dense * prefix * shape.kv_heads * shape.row_bytes()
    };
    (prefix + 1..=fork.tokens()).map(of_step).sum::<usize>() as u64
}

/// Returns the costs of a sequence without the bytes that crossed the bus.
fn on_no_bus(fork: &Sequence) -> LayerCosts {
    let mut costs = fork.costs().clone();
    (0..costs.layers().len()).for_each(|layer| costs.layer_mut(layer).fetched = TierBytes::default());
    costs
}

/// The results of some methods: the logits of each step, and the sequences.
type Runs = (Vec<Vec<Vec<f32>>>, Vec<Sequence>);

/// Returns how many of the methods sampled the same tokens in all steps, with the same costs and nearly the same logits. Rounding may
/// change the code of a query near a hyperplane, after which nothing need be equal; all attend about as many tokens.
fn alike(what: &str, (ours, forks): &Runs, (expected, others): &Runs) -> usize {
    let is_alike = |i: usize| {
        let worst = ours.iter().zip(expected).flat_map(|(ours, expected)| {
            assert_eq!(ours[i].len(), expected[i].len(), "{what}, method {i}");
            ours[i].iter().zip(&expected[i]).map(|(a, b)| (a - b).abs())
        });
        let worst = worst.fold(0.0, f32::max);
        let costs = [on_no_bus(&forks[i]), on_no_bus(&others[i])];
        let totals = costs.each_ref().map(|costs| costs.total(|_| true));
        let attended = totals.map(|total| total.attended_tokens);
        let what =
            format!("{what}, {}: {attended:?} tokens attended, logits off by {worst}", forks[i].method().label());
        println!("{what}");
        assert!(worst.is_finite() && attended[0].abs_diff(attended[1]) <= attended[1] / 20, "{what}");
        assert_eq!(totals[0].steps, totals[1].steps, "{what}");
        if attended[0] != attended[1] || worst >= 2e-3 {
            return false;
        }
        assert_alike(&costs[0], &costs[1], &what);
        true
    };
    (0..forks.len()).filter(|i| is_alike(*i)).count()
}

/// Runs settings of `magicpig` with the selected tokens attended on the GPU and on the host; returns for how many of them both were alike.
fn alike_to_device(what: &str, below: &Golden, specs: &[&str], rows: usize) -> usize {
    let there: Vec<Configured> = specs.iter().map(|spec| method(spec)).collect();
    let of = |methods: &[Configured]| run_in_steps(below, below, methods, (false, false), (rows, false));
    let (device, host) = (of(&there), of(&on_host(specs)));
    for ((fork, other), spec) in host.1.iter().zip(&device.1).zip(specs) {
        let what = format!("{what} {spec}, {rows} rows");
        assert!(!fork.selects_on_device() && other.selects_on_device(), "{what}");
        assert_eq!(fork.prefix().source().tier(0), Tier::Host, "{what}");
        assert_eq!(fork.aux_bits(), other.aux_bits(), "{what}");
        let tables = spec.split("L=").nth(1).and_then(|rest| rest.split(',').next()).unwrap().parse().unwrap();
        let bus = fork.costs().total(|_| true).fetched.host;
        assert_eq!(bus, expected_bus(fork, tables, below.decoder.config().heads), "{what}");
    }
    alike(&format!("{what}, {rows} rows"), &host, &device)
}

#[test]
#[ignore = "needs a GPU"]
fn what_the_host_attends_is_what_the_gpu_would_attend() {
    for name in PICKING {
        let [_, below] = both(name);
        for rows in [1, 30] {
            let found = alike_to_device(name, &below, &SAMPLED, rows);
            assert!(found + 1 >= SAMPLED.len(), "{name}, {rows} rows: {found} of {} are alike", SAMPLED.len());
        }
    }
}

/// Tables have many tokens, heads suit tensor cores, and KV heads are dealt to threads. The queries of a model's first layer do not depend
/// on who attends, so one layer in f32 is equal; after it, one of some 10^6 signs may differ by rounding.
#[test]
#[ignore = "needs a GPU"]
fn long_contexts_are_attended_on_the_host_alike() {
    let specs = ["magicpig:K=6,L=40", "magicpig:K=8,L=60,sink=4,local=64", "magicpig:K=5,L=20,min_collisions=1"];
    for (dtype, layers) in [(KvDtype::F32, 1), (KvDtype::F32, 5), (KvDtype::Bf16, 5)] {
        let shape = |config: &mut ModelConfig| {
            (config.heads, config.kv_heads, config.head_dim) = (8, 4, 128);
            config.keep_layers(&(0..layers).collect::<Vec<_>>());
        };
        let dimensions = Dimensions::new(&small("llama-3.1-8b", shape), dtype);
        let mut decoder = Decoder::load(&dimensions, &ModelWeights::random(3), CUDA).unwrap();
        decoder.keep_kv_on_host(None);
        let mut below = with_prompt(decoder);
        below.prompt = tokens(6000, 5);
        for rows in [1, 30] {
            let found = alike_to_device(&format!("long, {dtype:?}, {layers} layers"), &below, &specs, rows);
            assert!(layers > 1 || found == specs.len(), "{rows} rows: {found} are alike");
        }
    }
}

/// Compared with a CPU, beside other methods, with indexed tokens of the tail, and with fidelity to exact attention.
#[test]
#[ignore = "needs a GPU"]
fn steps_with_a_part_on_the_host_are_those_of_the_cpu() {
    for name in PICKING {
        let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(name, device));
        let [_, below] = both(name);
        let mut methods = on_host(&["magicpig:K=4,L=12", SAMPLED[0], SAMPLED[1]]);
        methods.extend(on_host(&["magicpig:K=4,L=20,local=6,tail=indexed"]));
        methods.extend(["full", "quest:k=32", "topk:k=16,tail=indexed"].map(method));
        for fidelity in [false, true] {
            let expected = run_in_steps(&cuda, &cpu, &methods, (fidelity, false), (30, false));
            let ours = run_in_steps(&below, &below, &methods, (fidelity, false), (30, false));
            let found = alike(&format!("{name}, fidelity {fidelity}"), &ours, &expected);
            assert!(found + 1 >= methods.len(), "{name}, fidelity {fidelity}: {found} of {} are alike", methods.len());
            for (fork, other) in ours.1.iter().zip(&expected.1) {
                let Some((ours, other)) = fork.fidelity().zip(other.fidelity()) else { continue };
                let [a, b] = [ours, other].map(|meter| meter.output_error().concat());
                let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
                let what = format!("{name} {}: output errors {} and {}", fork.method().label(), mean(&a), mean(&b));
                assert!((mean(&a) - mean(&b)).abs() < 1e-3 + mean(&b) / 20.0, "{what}");
            }
        }
    }
}

/// One layer, as benches time it, with token numbers of 16 and of 32 bits in tables.
#[test]
#[ignore = "needs a GPU"]
fn a_layer_alone_with_a_part_on_the_host_gives_what_a_cpu_gives() {
    const BATCH: usize = 3;
    let gpu = Arc::new(gpu());
    for (dtype, d, tokens) in [(KvDtype::F32, 16, 700), (KvDtype::Bf16, 128, 20_001), (KvDtype::F16, 64, 70_000)] {
        let storage = storage_of(dtype);
        let drawn = |seed: u64| {
            let mut kv = LayerKv::new(dtype, KV_HEADS, d, tokens);
            let width = KV_HEADS * d;
            let rows = [0, 1].map(|part| stored(&noise((tokens + 1) * width, seed + part), storage));
            kv.append_rows(&rows[0][..tokens * width], &rows[1][..tokens * width]);
            (kv, rows.map(|rows| rows[tokens * width..].to_vec()))
        };
        let drawn = [drawn(940), drawn(950)];
        let with_next = drawn.each_ref().map(|(kv, [key, value])| (kv, Following { key, value }));
        let alone = Arc::new(LayerAlone::new(gpu.clone(), HEADS, &with_next, BATCH, (2, Tier::Host)).unwrap());
        let queries: Vec<f32> = noise(BATCH * HEADS * d, 960).iter().map(|q| 3.0 * q).collect();
        let queries = stored(&queries, storage);
        alone.ask(queries.clone()).unwrap();
        let mut there = IndexCache::new(alone.prefix().clone(), dtype, 0);
        let none = there.fork(&method("topk:k=3"), false).unwrap();
        assert!(alone.run_part(none, 1).unwrap().is_none());
        for spec in ["magicpig:K=7,L=40", "magicpig:K=9,L=15,center=false,min_collisions=1"] {
            let method = method(&format!("{spec},attend_on=host"));
            let mut run = alone.run_part(there.fork(&method, false).unwrap(), 100).unwrap().expect(spec);
            let times = run.step().unwrap();
            assert!(times.whole > times.host && !times.host.is_zero(), "{spec}: {times:?}");
            let (ours, mut attended) = (run.outputs().unwrap(), 0);
            for (i, own) in queries.chunks_exact(HEADS * d).enumerate() {
                let (kv, [key, value]) = &drawn[i % 2];
                let mut here = IndexCache::new(spattn::kv::Prefix::new(vec![kv.clone()]), dtype, 0);
                let (mut fork, mut expected) = (here.fork(&method, false).unwrap(), vec![0.0; HEADS * d]);
                fork.step(0, own, key, value, &mut expected).unwrap();
                let expected: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
                let what = format!("{dtype:?} {d} wide, {tokens} tokens, {spec}, sequence {i}");
                assert_near(&ours[i * HEADS * d..][..HEADS * d], &expected, tolerance(storage).max(2e-3) * 2.0, &what);
                attended += fork.costs().total(|_| true).attended_tokens;
            }
            // A number near zero may have another hash.
            let found = run.fork().costs().total(|_| true);
            let ours = found.attended_tokens;
            assert!(ours.abs_diff(attended) <= attended / 1000, "{dtype:?}, {spec}: {ours} and {attended}");
            // The GPU looks up the same codes in the same tables.
            let device = super::method(spec);
            let mut whole = alone.run(there.fork(&device, false).unwrap()).unwrap().expect(spec);
            whole.step().unwrap();
            let theirs = Cost { fetched: found.fetched, ..whole.fork().costs().total(|_| true) };
            assert_eq!(theirs, found, "{dtype:?}, {spec}");
            let expected: Vec<f64> = whole.outputs().unwrap().iter().map(|x| f64::from(*x)).collect();
            assert_near(
                &run.outputs().unwrap(),
                &expected,
                tolerance(storage).max(1e-4),
                &format!("{dtype:?}, {spec}"),
            );
            // More steps than the tail has room for at first.
            (0..99).for_each(|_| assert!(run.step().is_ok(), "{spec}"));
            assert!(run.outputs().unwrap().iter().all(|x| x.is_finite()), "{spec}");
        }
    }
}
