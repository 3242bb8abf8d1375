//! Timing several things on one machine. They take turns, round after round, so that changes of the machine affect all of them alike.
//! Between two turns a buffer much larger than the caches is read.
//!
//! That read serves two purposes: it evicts what the last turn left in the caches, as a model's weights do between two steps of the same
//! layer; and it measures the bandwidth that times are compared with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::row::{BenchRow, Roof};
use spattn_kernels::precision::{MatmulPrecision, matmul_precision};
use spattn_kernels::roof::{multiply_adds, multiply_tiles, read_all};
use spattn_stats::{Sample, median_interval};

/// Turns that do not count, because indexes, code and memory are used for the first time.
const WARM_UP: usize = 2;
/// Multiply-adds for a few milliseconds.
const PEAK_ROUNDS: usize = 1 << 20;
/// Tile products for a few milliseconds.
const PEAK_PRODUCTS: usize = 1 << 12;

/// The time of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Turn {
    /// Wall-clock time.
    pub time: Duration,
    /// The part for scoring candidates.
    pub score: Duration,
    /// The part for choosing by scores.
    pub pick: Duration,
    /// The part for selecting, scoring and choosing included.
    pub select: Duration,
    /// The part for attending.
    pub attend: Duration,
}

impl Turn {
    /// A turn without parts.
    pub fn of(time: Duration) -> Self {
        Self { time, ..Self::default() }
    }

    /// What neither selects nor attends.
    pub fn rest(&self) -> Duration {
        self.time.saturating_sub(self.select + self.attend)
    }
}

/// Something that takes turns.
pub trait Runs {
    /// Takes turn `number`, counted from 0 with warm-ups.
    ///
    /// # Errors
    /// If it fails; the benchmark ends then.
    fn turn(&mut self, number: usize) -> anyhow::Result<Turn>;

    /// Adds to a row what was counted in its turns; nothing by default.
    fn count(&self, _row: &mut BenchRow) {}
}

/// What happens between turns.
pub trait Between {
    /// Evicts what the last turn left in the caches.
    ///
    /// # Errors
    /// If a device fails.
    fn before_turn(&mut self) -> anyhow::Result<()>;

    /// Measures the machine's limits.
    ///
    /// # Errors
    /// As [`before_turn`](Self::before_turn).
    fn after_round(&mut self) -> anyhow::Result<()>;
}

impl Between for Flood {
    fn before_turn(&mut self) -> anyhow::Result<()> {
        self.read();
        Ok(())
    }

    fn after_round(&mut self) -> anyhow::Result<()> {
        self.compute();
        Ok(())
    }
}

/// A buffer larger than any cache.
pub struct Flood {
    buffer: Vec<f32>,
    times: Vec<Duration>,
    peaks: Vec<f64>,
}

impl Flood {
    /// Its size: eight times the last-level cache of most machines, and more than a process's share of any.
    const BYTES: usize = 256 << 20;

    /// Allocates the buffer and writes it, so that its pages exist.
    pub fn new() -> Self {
        let buffer = (0..Self::BYTES / size_of::<f32>()).map(|i| (i % 64) as f32).collect();
        Self { buffer, times: Vec::new(), peaks: Vec::new() }
    }

    /// Reads the whole buffer.
    fn read(&mut self) {
        let start = Instant::now();
        std::hint::black_box(read_all(&self.buffer));
        self.times.push(start.elapsed());
    }

    /// Computes on registers for a moment.
    fn compute(&mut self) {
        let start = Instant::now();
        let operations = match matmul_precision() {
            MatmulPrecision::F32 => multiply_adds(PEAK_ROUNDS),
            MatmulPrecision::Bf16 => multiply_tiles(PEAK_PRODUCTS),
        };
        self.peaks.push(operations as f64 / start.elapsed().as_secs_f64() / 1e9);
    }

    /// The limits: medians of bandwidth and computation over all rounds.
    pub fn roof(&mut self) -> Roof {
        while self.times.len() < WARM_UP + 3 {
            self.read();
            self.compute();
        }
        let rates = self.times.iter().skip(1).map(|time| Self::BYTES as f64 / time.as_secs_f64() / 1e9);
        let of = |values: Vec<f64>| median_interval(&Sample::independent(&values)).map_or(0.0, |median| median.mean);
        let is_tiled = matmul_precision() == MatmulPrecision::Bf16;
        Roof {
            read_gbps: of(rates.collect()),
            peak_gflops: of(self.peaks.clone()),
            is_tiled,
            link_gbps: None,
            host_gbps: None,
        }
    }
}

impl Default for Flood {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs warm-ups and then `rounds` rounds of turns, and returns the turns of each of `runners`. Each round begins with another runner.
/// `None` if `stop` was raised.
///
/// # Errors
/// As the runners' turns.
pub fn in_turns(
    runners: &mut [&mut (dyn Runs + Send + '_)],
    rounds: usize,
    between: &mut dyn Between,
    stop: &AtomicBool,
    mut progress: impl FnMut(usize, usize),
) -> anyhow::Result<Option<Vec<Vec<Turn>>>> {
    let (count, all) = (runners.len(), WARM_UP + rounds);
    let mut taken: Vec<Vec<Turn>> = (0..count).map(|_| Vec::with_capacity(rounds)).collect();
    for number in 0..all {
        for i in 0..count {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let runner = (i + number) % count;
            between.before_turn()?;
            // Runs inside the thread pool, so that no thread has to be woken for every product.
            let turn = rayon::scope(|_| runners[runner].turn(number))?;
            if number >= WARM_UP {
                taken[runner].push(turn);
            }
        }
        between.after_round()?;
        progress(number + 1, all);
    }
    Ok(Some(taken))
}

/// The number of turns that [`in_turns`] takes for `rounds` rounds, warm-ups included.
pub fn turns(rounds: usize) -> usize {
    WARM_UP + rounds
}

/// The distribution of some times, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timing {
    /// The median.
    pub median_us: f64,
    /// Its 95 % interval by order statistics; `None` below six times.
    pub ends_us: Option<(f64, f64)>,
    /// The interquartile range over the median.
    pub spread: f64,
}

impl Timing {
    /// For at least one time.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut values: Vec<f64> = times.map(|time| 1e6 * time.as_secs_f64()).collect();
        let estimate = median_interval(&Sample::independent(&values));
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values.get((share * (values.len().max(1) - 1) as f64).round() as usize);
        let between = at(0.75).zip(at(0.25)).map_or(0.0, |(high, low)| high - low);
        let median_us = estimate.as_ref().map_or(0.0, |estimate| estimate.mean);
        let spread = if median_us > 0.0 { between / median_us } else { 0.0 };
        Self { median_us, ends_us: estimate.and_then(|estimate| estimate.ends), spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn what_neither_selects_nor_attends_is_the_rest() {
        let [time, select, attend] = [10, 3, 4].map(Duration::from_micros);
        assert_eq!(Turn { select, attend, ..Turn::of(time) }.rest(), Duration::from_micros(3));
        // Parts are timed by themselves: together they may take longer.
        assert_eq!(Turn { select: time, attend, ..Turn::of(time) }.rest(), Duration::ZERO);
    }

    #[test]
    fn each_round_begins_with_another_and_warming_up_does_not_count() {
        struct Named<'a>(u64, &'a Mutex<Vec<(usize, u64)>>);
        impl Runs for Named<'_> {
            fn turn(&mut self, number: usize) -> anyhow::Result<Turn> {
                self.1.lock().unwrap().push((number, self.0));
                Ok(Turn::of(Duration::from_micros(10 * self.0 + number as u64)))
            }
        }
        let order = Mutex::new(Vec::new());
        let (mut first, mut second) = (Named(0, &order), Named(1, &order));
        let mut flood = Flood { buffer: vec![1.0; 100], times: Vec::new(), peaks: Vec::new() };
        let taken = in_turns(&mut [&mut first, &mut second], 2, &mut flood, &AtomicBool::new(false), |_, _| ());
        let taken = taken.unwrap().unwrap();
        assert_eq!(*order.lock().unwrap(), [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1), (3, 1), (3, 0)]);
        let times: Vec<Vec<u128>> =
            taken.iter().map(|turns| turns.iter().map(|turn| turn.time.as_micros()).collect()).collect();
        assert_eq!(times, [[2, 3], [12, 13]]);
        assert_eq!(flood.times.len(), 8, "caches are emptied before every turn");
        let stopped = in_turns(&mut [&mut first], 2, &mut flood, &AtomicBool::new(true), |_, _| ()).unwrap();
        assert!(stopped.is_none());
    }

    #[test]
    fn times_are_medians_with_what_they_scatter() {
        let of = |values: &[u64]| Timing::of(values.iter().map(|us| Duration::from_micros(*us)));
        assert_eq!(of(&[5]), Timing { median_us: 5.0, ends_us: None, spread: 0.0 });
        let nine = of(&[90, 10, 80, 20, 70, 30, 60, 40, 50]);
        assert!((nine.median_us - 50.0).abs() < 1e-9 && (nine.spread - 0.8).abs() < 1e-9, "{nine:?}");
        let (low, high) = nine.ends_us.unwrap();
        assert!((low - 20.0).abs() < 1e-9 && (high - 80.0).abs() < 1e-9, "{nine:?}");
    }
}
