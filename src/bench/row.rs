//! What one measurement of a bench is kept as.

use serde::{Deserialize, Serialize};

/// One line of a bench: something that was timed, at one shape, context and batch.
///
/// Times are medians over rounds; their interval is one of 95 % by order statistics, absent below six rounds. What could
/// not be told, or has no meaning for what was timed, is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// What was timed: `attention`, `prefill`, `index`, `decode` or `kernel`.
    pub op: String,
    /// Whose heads: the name of a published shape, or of a model.
    pub shape: String,
    /// Where: `cpu`, or the GPU's name.
    pub device: String,
    /// Storage type of keys and values.
    pub dtype: String,
    /// Threads of the processor.
    pub threads: usize,
    /// Tokens in context.
    pub context: usize,
    /// Sequences that are stepped together, each with a context of its own.
    pub batch: usize,
    /// Layers that are timed together.
    pub layers: usize,
    /// Bare name of the method, of a kernel, or of a peer such as `torch_sdpa_bf16`.
    pub method: String,
    /// Its parameters as `key=value,...`.
    pub params: String,
    /// What of them was solved for a density at this context, likewise; empty if nothing was.
    #[serde(default)]
    pub solved: String,
    /// Whether it is another program's, run beside ours.
    pub peer: bool,
    /// Tokens attended over tokens in context; 1 for what reads all.
    pub density: f64,
    /// Median time, in microseconds.
    pub time_us: f64,
    /// Lower end of its interval.
    pub time_low_us: Option<f64>,
    /// Upper end.
    pub time_high_us: Option<f64>,
    /// Rounds that the median is over.
    pub rounds: usize,
    /// Distance between the quartiles over the median.
    pub spread: f64,
    /// Time of `full` in the same run over this one; `None` if `full` was not run.
    pub speedup_vs_full: Option<f64>,
    /// Bytes really touched: keys, values and auxiliary data that are read, scores that are written and passed over.
    pub bytes: u64,
    /// Of these, keys, values and auxiliary data: the least that the method could read for what it picked.
    pub limit_bytes: u64,
    /// Bytes touched a second, in 10⁹.
    pub gbps: f64,
    /// Floating-point operations, a multiply-add as two; 0 where nobody counts them.
    pub flops: u64,
    /// Operations a second, in 10⁹.
    pub gflops: f64,
    /// `gbps` over the bandwidth that plain reading reached in the same run.
    pub bandwidth_share: Option<f64>,
    /// Time that the method's own limit (`limit_bytes` at that bandwidth) takes, over the time measured.
    pub limit_share: Option<f64>,
    /// Scoring candidates: part of `select_us`, where a method picks by scores that it writes; without `pick_us`, what writing them
    /// would take.
    pub score_us: Option<f64>,
    /// Lower end of its interval, where scoring is timed by turns of its own.
    #[serde(default)]
    pub score_low_us: Option<f64>,
    /// Upper end.
    #[serde(default)]
    pub score_high_us: Option<f64>,
    /// Picking by scores: the other part.
    pub pick_us: Option<f64>,
    /// Selecting what is attended: both, and what has to be done besides.
    pub select_us: Option<f64>,
    /// Attending it.
    pub attend_us: Option<f64>,
    /// All else of a step: the weights.
    pub weights_us: Option<f64>,
    /// Milliseconds that the index took to build, over all sequences and KV heads.
    pub index_ms: Option<f64>,
    /// Bits of auxiliary memory a token and KV head.
    pub aux_bits: Option<f64>,
    /// Bytes of it over all tokens, KV heads, layers and sequences.
    pub aux_bytes: Option<u64>,
}

impl BenchRow {
    /// Its parameters and what was solved of them.
    pub fn all_params(&self) -> String {
        [self.params.as_str(), self.solved.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// What the machine reached in the same run, by the plainest code there is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Roof {
    /// Bytes a second that plain reading of a buffer far beyond the caches reached, in 10⁹.
    pub read_gbps: f64,
    /// Multiply-adds on numbers in registers: operations a second, in 10⁹, a multiply-add as two.
    pub peak_gflops: f64,
    /// Whether those were products of tiles of bf16 that the core holds, since products were to be in bf16.
    #[serde(default)]
    pub is_tiled: bool,
}

/// All that one call measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// In the order in which they were asked for, by context and batch; `full` first.
    pub rows: Vec<BenchRow>,
    /// What they are held to.
    pub roof: Roof,
    /// What the reader has to know: what keys and values are like, times that scatter.
    pub notes: Vec<String>,
}
