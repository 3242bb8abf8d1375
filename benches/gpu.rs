//! Kernels on a GPU at the shapes of Llama-3.1-8B, compared with the bandwidth of a copy: `cargo bench --features cuda --bench gpu`.
//!
//! Each figure is the mean over consecutive launches. Weights and caches are larger than the device's caches, or several copies take turns.

#[cfg(not(feature = "cuda"))]
fn main() {
    println!("built without the feature cuda: nothing to measure");
}

#[cfg(feature = "cuda")]
fn main() {
    gpu::main();
}

#[cfg(feature = "cuda")]
mod gpu {
    use spattn::kernels::cuda::{
        Attention, AttentionWorkspace, Buffer, Cache, Gpu, Into, LayerRule, Prefix, Rows, Storage, Tail, Tokens, Unit,
        WeightMatrix, Weights,
    };
    use std::time::Instant;

    const STORAGE: Storage = Storage::Bf16;
    const D: usize = 128;
    const KV_HEADS: usize = 8;
    const HEADS: usize = 32;

    /// The seconds of one launch, as the mean over `times` launches.
    fn time(gpu: &Gpu, times: usize, mut launch: impl FnMut(usize)) -> f64 {
        (0..3).for_each(&mut launch);
        gpu.synchronize().unwrap();
        let start = Instant::now();
        (0..times).for_each(&mut launch);
        gpu.synchronize().unwrap();
        start.elapsed().as_secs_f64() / times as f64
    }

    /// Random numbers from -1 to 1 in bf16: a million, repeated.
    fn noise(gpu: &Gpu, count: usize) -> Buffer {
        let mut state = 88172645463325252u64;
        let drawn: Vec<half::bf16> = (0..count.min(1 << 20))
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                half::bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
            })
            .collect();
        let (drawn, bytes) = (gpu.upload(&drawn).unwrap(), 2 * count);
        let mut buffer = gpu.alloc(bytes).unwrap();
        for at in (0..bytes).step_by(drawn.bytes()) {
            gpu.copy(&drawn, 0, &mut buffer, at, drawn.bytes().min(bytes - at)).unwrap();
        }
        buffer
    }

    pub fn main() {
        let gpu = Gpu::open(0).unwrap();
        let copy = gpu.copy_bandwidth().unwrap();
        println!("{}: a copy moves {:.2} TB/s", gpu.info().unwrap().name, copy / 1e12);
        products(&gpu, copy);
        decode(&gpu, copy);
        prefill(&gpu);
    }

    fn products(gpu: &Gpu, copy: f64) {
        println!(
            "\nproducts with a weight matrix\n{:>16} {:>6} {:>9} {:>7} {:>7}",
            "matrix", "rows", "us", "TB/s", "share"
        );
        for (outputs, inputs) in [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128_256, 4096)] {
            let bytes = 2 * outputs * inputs;
            let copies = (400_000_000 / bytes).max(1) + 1;
            let weights: Vec<Buffer> = (0..copies).map(|_| noise(gpu, outputs * inputs)).collect();
            for rows in [1, 2, 8, 32] {
                let x = noise(gpu, rows * inputs);
                let mut out = gpu.alloc(4 * rows * outputs).unwrap();
                let seconds = time(gpu, 50, |i| {
                    let w = WeightMatrix { data: &weights[i % copies], outputs, inputs };
                    gpu.multiply(STORAGE, w, &x, rows, &mut out, Into::Narrow).unwrap();
                });
                let rate = bytes as f64 / seconds;
                let matrix = format!("{outputs}x{inputs}");
                println!("{matrix:>16} {rows:>6} {:>9.1} {:>7.2} {:>7.2}", seconds * 1e6, rate / 1e12, rate / copy);
            }
        }
    }

    fn decode(gpu: &Gpu, copy: f64) {
        println!(
            "\ndecode attention, {HEADS}/{KV_HEADS} heads of {D}\n{:>8} {:>6} {:>6} {:>7} {:>9} {:>7} {:>7}",
            "context", "picks", "rows", "blocks", "us", "TB/s", "share"
        );
        for context in [8192, 32_768, 131_072] {
            let bytes = 2 * context * KV_HEADS * D * 2;
            let copies = (400_000_000 / bytes).max(1) + 1;
            let caches: Vec<[Buffer; 2]> =
                (0..copies).map(|_| [noise(gpu, bytes / 4), noise(gpu, bytes / 4)]).collect();
            let tail = gpu.alloc(2 * KV_HEADS * 64 * D * 2).unwrap();
            let tail = Tail { buffer: &tail, layers: 1, capacity: 64, kv_heads: KV_HEADS, d: D, storage: STORAGE };
            let picks: Vec<u32> = (0..context as u32).step_by(16).map(|t| t + (t / 16 * 7) % 16).collect();
            for (picked, rows) in [(false, 1), (false, 4), (true, 1), (true, 16)] {
                let queries = noise(gpu, rows * HEADS * D);
                let mut out = gpu.alloc(2 * rows * HEADS * D).unwrap();
                let mut room = AttentionWorkspace::default();
                for blocks in [2, 3, 4] {
                    let expected = if picked { picks.len() } else { context };
                    let mut attention =
                        Attention::spread(rows, HEADS, rows * KV_HEADS * expected, blocks * gpu.processors());
                    for (row, kv_head) in (0..rows).flat_map(|row| (0..KV_HEADS).map(move |kv_head| (row, kv_head))) {
                        let tokens = match picked {
                            true => Tokens { sink: 0, recent: context + 1, total: context + 1, picked: &picks },
                            false => Tokens { sink: 0, recent: 0, total: context + 1, picked: &[] },
                        };
                        let (head, queries, weights) = (kv_head * HEADS / KV_HEADS, HEADS / KV_HEADS, Weights::Softmax);
                        let unit = Unit { row, head, queries, kv_head, tail: &tail, tokens, weights };
                        attention.add(0, &unit, context);
                    }
                    // Lists are uploaded once; only attention and merging are timed.
                    let prepared = gpu.prepare(&mut attention, &mut room, D).unwrap();
                    let seconds = time(gpu, 40, |i| {
                        let [keys, values] = &caches[i % copies];
                        let cache = Cache {
                            keys,
                            values,
                            keys_at: 0,
                            values_at: 0,
                            capacity: context,
                            kv_heads: KV_HEADS,
                            d: D,
                            storage: STORAGE,
                        };
                        let prefix = Prefix {
                            cache,
                            tokens: context,
                            layer: 0,
                            scale: 1.0 / (D as f32).sqrt(),
                            rule: LayerRule::PLAIN,
                        };
                        gpu.attend(&prepared, &prefix, &queries, HEADS * D, &mut out, None).unwrap();
                    });
                    let read =
                        bytes as f64 * rows as f64 * if picked { picks.len() as f64 / context as f64 } else { 1.0 };
                    let picks = if picked { "1/16" } else { "all" };
                    println!(
                        "{context:>8} {picks:>6} {rows:>6} {blocks:>7} {:>9.1} {:>7.2} {:>7.2}",
                        seconds * 1e6,
                        read / seconds / 1e12,
                        read / seconds / copy
                    );
                }
            }
        }
    }

    fn prefill(gpu: &Gpu) {
        println!(
            "\nprefill attention, {HEADS}/{KV_HEADS} heads of {D}\n{:>8} {:>8} {:>9} {:>9}",
            "rows", "first", "ms", "TFLOP/s"
        );
        for (count, first) in [(4096, 0), (8192, 0), (8192, 24_576), (32_768, 0)] {
            let total = first + count;
            let stride = (HEADS + 2 * KV_HEADS) * D;
            let queries = noise(gpu, count * stride);
            let [keys, values] = [(); 2].map(|()| noise(gpu, KV_HEADS * total * D));
            let cache = Cache {
                keys: &keys,
                values: &values,
                keys_at: 0,
                values_at: 0,
                capacity: total,
                kv_heads: KV_HEADS,
                d: D,
                storage: STORAGE,
            };
            let mut out = gpu.alloc(2 * count * HEADS * D).unwrap();
            let rows = Rows {
                queries: &queries,
                skip: 0,
                stride,
                count,
                heads: HEADS,
                first,
                scale: 1.0 / (D as f32).sqrt(),
                rule: LayerRule::PLAIN,
            };
            let seconds = time(gpu, 10, |_| gpu.prefill_attention(&rows, &cache, &mut out).unwrap());
            let pairs = count as f64 * first as f64 + count as f64 * (count as f64 + 1.0) / 2.0;
            let flops = 4.0 * pairs * (HEADS * D) as f64;
            println!("{count:>8} {first:>8} {:>9.3} {:>9.0}", seconds * 1e3, flops / seconds / 1e12);
        }
    }
}
