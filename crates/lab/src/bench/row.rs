//! The stored form of one measurement.

use serde::{Deserialize, Serialize};

/// One measurement: something that was timed at one shape, context and batch.
///
/// Times are medians over rounds. Their intervals are 95 % by order statistics, `None` below six rounds. A value that could not be measured
/// or has no meaning for the operation is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// The operation: `attention`, `prefill`, `index`, `decode` or `kernel`.
    pub op: String,
    /// The name of a published shape, or of a model.
    pub shape: String,
    /// The device: `cpu`, or the GPU's name.
    pub device: String,
    /// Storage type of keys and values.
    pub dtype: String,
    /// Threads of the processor.
    pub threads: usize,
    /// Tokens in context.
    pub context: usize,
    /// The number of sequences that step together, each with its own context.
    pub batch: usize,
    /// Layers that are timed together.
    pub layers: usize,
    /// The name of a method without parameters, of a kernel, or of a peer such as `torch_sdpa_bf16`.
    pub method: String,
    /// Its parameters as `key=value,...`.
    pub params: String,
    /// The parameters that were solved for a density at this context, in the same form; empty if none were.
    #[serde(default)]
    pub solved: String,
    /// Whether this is another program.
    pub peer: bool,
    /// Tokens attended over tokens in context; 1 for what attends all.
    pub density: f64,
    /// Median time, in microseconds.
    pub time_us: f64,
    /// Lower end of the interval.
    pub time_low_us: Option<f64>,
    /// Upper end of the interval.
    pub time_high_us: Option<f64>,
    /// The number of rounds.
    pub rounds: usize,
    /// The interquartile range over the median.
    pub spread: f64,
    /// The time of `full` in the same run over this time; `None` if `full` was not run.
    pub speedup_vs_full: Option<f64>,
    /// Bytes touched: keys, values and auxiliary data read, and scores written and read again.
    pub bytes: u64,
    /// Bytes of keys, values and auxiliary data alone: the least that the method has to read for its selection.
    pub limit_bytes: u64,
    /// Bytes touched per second, in 10⁹.
    pub gbps: f64,
    /// Floating-point operations, a multiply-add as two; 0 if they are not counted.
    pub flops: u64,
    /// Operations per second, in 10⁹.
    pub gflops: f64,
    /// `gbps` over the bandwidth of plain reading in the same run.
    pub bandwidth_share: Option<f64>,
    /// The time that the method's limits allow, over the measured time: `limit_bytes` at that bandwidth, and those of them that cross the
    /// bus at that of the link.
    pub limit_share: Option<f64>,
    /// The time of scoring candidates, a part of `select_us`, for methods that write scores. Without `pick_us`, the scoring was timed as if
    /// its scores were written.
    pub score_us: Option<f64>,
    /// Lower end of its interval, if scoring is timed by turns of its own.
    #[serde(default)]
    pub score_low_us: Option<f64>,
    /// Upper end of its interval.
    #[serde(default)]
    pub score_high_us: Option<f64>,
    /// The time of choosing tokens by their scores, the other part.
    pub pick_us: Option<f64>,
    /// The time of selecting: scoring, choosing, and the work around them.
    pub select_us: Option<f64>,
    /// Lower end of its interval.
    #[serde(default)]
    pub select_low_us: Option<f64>,
    /// Upper end of its interval.
    #[serde(default)]
    pub select_high_us: Option<f64>,
    /// The time of attending the selection.
    pub attend_us: Option<f64>,
    /// Lower end of its interval.
    #[serde(default)]
    pub attend_low_us: Option<f64>,
    /// Upper end of its interval.
    #[serde(default)]
    pub attend_high_us: Option<f64>,
    /// The median of what is left of a step's time: the weights.
    pub weights_us: Option<f64>,
    /// Lower end of its interval.
    #[serde(default)]
    pub weights_low_us: Option<f64>,
    /// Upper end of its interval.
    #[serde(default)]
    pub weights_high_us: Option<f64>,
    /// Milliseconds to build the index, over all sequences and KV heads.
    pub index_ms: Option<f64>,
    /// Bits of auxiliary memory for each token and KV head.
    pub aux_bits: Option<f64>,
    /// Bytes of auxiliary memory over all tokens, KV heads, layers and sequences.
    pub aux_bytes: Option<u64>,
    /// Of `limit_bytes`, those that are read over the bus, if keys and values are in host memory below a GPU.
    #[serde(default)]
    pub bus_bytes: Option<u64>,
    /// `bus_bytes` per second, in 10⁹.
    #[serde(default)]
    pub bus_gbps: Option<f64>,
    /// `bus_gbps` over the bandwidth of copies from pinned memory to the GPU in the same run.
    #[serde(default)]
    pub link_share: Option<f64>,
    /// Of `limit_bytes`, those that the host reads, if it attends for a GPU what it selects: the index, and keys and values of selected tokens.
    #[serde(default)]
    pub host_bytes: Option<u64>,
    /// `host_bytes` per second, in 10⁹.
    #[serde(default)]
    pub host_gbps: Option<f64>,
    /// `host_gbps` over the bandwidth of plain reading by the host's threads in the same run.
    #[serde(default)]
    pub host_share: Option<f64>,
}

impl BenchRow {
    /// The parameters, given and solved.
    pub fn all_params(&self) -> String {
        [self.params.as_str(), self.solved.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// The machine's limits, as the simplest code reached them in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Roof {
    /// The bandwidth of reading a buffer much larger than the caches, in 10⁹ bytes per second.
    pub read_gbps: f64,
    /// The rate of multiply-adds on registers, in 10⁹ operations per second; a multiply-add counts as two.
    pub peak_gflops: f64,
    /// Whether `peak_gflops` is that of bf16 tile products, because matrix products use bf16.
    #[serde(default)]
    pub is_tiled: bool,
    /// The bandwidths of copies between pinned host memory and the GPU, to the GPU and back, in 10⁹ bytes per second; only if keys and values
    /// are in host memory.
    #[serde(default)]
    pub link_gbps: Option<[f64; 2]>,
    /// The bandwidth of the host's threads reading a buffer much larger than their caches, in 10⁹ bytes per second; only if keys and values are
    /// in host memory below a GPU.
    #[serde(default)]
    pub host_gbps: Option<f64>,
}

/// The results of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The rows, by context and batch and then in the order given; `full` first.
    pub rows: Vec<BenchRow>,
    /// The machine's limits.
    pub roof: Roof,
    /// Notes for the reader, such as the properties of keys and values, or times that vary much.
    pub notes: Vec<String>,
}
