//! The times of steps, and the conditions under which they were taken.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use spattn_base::error::UsageError;
use spattn_stats::median;

/// The conditions of times, apart from method and example. Only times under equal conditions can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimingConditions {
    /// Whether every step was also compared with exact attention. On a GPU, or if `latency` is `None`, that is part of the times.
    pub fidelity: bool,
    /// The number of sequences that took each step together; 1 if methods were timed alone.
    pub together: usize,
    /// What step times mean; `None` for wall times of concurrent runs, in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The number of threads.
    pub threads: usize,
    /// The instruction set of the CPU kernels.
    pub simd: String,
    /// The processor's name, if the system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The GPU's name, if the model ran on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Where tokens were selected, if the model ran on a GPU: `host`, or `device` if the host selected none in a
    /// step. What it selected once, before the first step, does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_on: Option<String>,
    /// Where the KV cache was, if not in memory: `host memory`, or `disk` with the memory for its pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<String>,
}

impl TimingConditions {
    /// Whether the model ran on a GPU but tokens were selected on the host. Such a time says little about the method itself.
    pub fn is_of_the_host(&self) -> bool {
        self.select_on.as_deref() == Some("host")
    }
}

impl fmt::Display for TimingConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fidelity, together, latency, threads, simd, cpu, gpu, select_on, kv } = self;
        if let Some(gpu) = gpu {
            write!(f, "on {gpu}, ")?;
        }
        if let Some(place) = select_on {
            match place.as_str() {
                "device" => f.write_str("no step waits for a selection on the host, ")?,
                place => write!(f, "tokens selected on the {place}, ")?,
            }
        }
        if let Some(tier) = kv {
            write!(f, "KV cache on {tier}, ")?;
        }
        let fidelity = if *fidelity { ", with --fidelity" } else { "" };
        let cpu = cpu.as_deref().unwrap_or("unknown processor");
        match latency {
            Some(Latency::Solo) => write!(f, "each alone on {threads} threads{fidelity}, {simd}, {cpu}"),
            Some(Latency::Shared) => {
                write!(f, "shares of {together} together on {threads} threads{fidelity}, {simd}, {cpu}")
            }
            None => write!(f, "{together} together on {threads} threads{fidelity}, {simd}, {cpu}"),
        }
    }
}

/// What the time of a step means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// A method's share of the time in which all methods step together.
    #[default]
    Shared,
    /// The time of a step of one method that runs alone, on all threads.
    Solo,
}

impl Latency {
    /// The names of all values.
    pub const NAMES: [&str; 2] = ["shared", "solo"];

    /// The value's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for Latency {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = [Self::Shared, Self::Solo].into_iter().find(|latency| latency.name() == text);
        known.ok_or_else(|| UsageError::unknown("latency", text, Self::NAMES))
    }
}

/// The time of a method's steps in seconds, by kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    /// Token selection.
    pub select: f64,
    /// Attention over the selected tokens.
    pub attend: f64,
    /// The rest of a step, mainly products with the weights.
    pub weights: f64,
    /// Work beside the steps: comparison with exact attention, scoring of text.
    pub beside: f64,
}

impl StepTime {
    /// The time of the steps.
    pub fn steps(&self) -> f64 {
        self.select + self.attend + self.weights
    }

    /// The time of the steps and of the work beside them.
    pub fn all(&self) -> f64 {
        self.steps() + self.beside
    }

    /// The times with every part multiplied by `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        let Self { select, attend, weights, beside } = self;
        Self { select: factor * select, attend: factor * attend, weights: factor * weights, beside: factor * beside }
    }
}

impl std::ops::AddAssign for StepTime {
    fn add_assign(&mut self, other: Self) {
        self.select += other.select;
        self.attend += other.attend;
        self.weights += other.weights;
        self.beside += other.beside;
    }
}

/// The times of steps of a method that ran alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Solo {
    /// The number of one-token steps in each measurement.
    pub steps: usize,
    /// The mean step time of each measurement in milliseconds, with four significant digits: a method may select once for several steps.
    /// Old records have the median.
    pub ms: Box<[f64]>,
}

impl Solo {
    /// The median over all measurements, in milliseconds, which a disturbed one hardly changes.
    pub fn median(&self) -> Option<f64> {
        median(self.ms.to_vec())
    }
}
