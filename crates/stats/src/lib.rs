//! Means and differences of plain numbers, with intervals that keep their coverage at the edge of the range.
//!
//! Nothing here knows records. No interval uses random numbers: the same values give the same bits, in any order of the contexts.
//! [`score()`] and [`difference()`] are for scores in 0..=1, [`ratios`] for perplexities. [`several`] combines means and corrects for many
//! comparisons, [`verdict`] says whether a loss is within a limit, and [`evidence`] is for repeated looks.
//!
//! Examples about the same context are not independent, so the number of contexts counts: a [`Sample`] knows which of its values share a
//! context.

mod distributions;
pub mod evidence;
pub mod ratios;
pub mod several;
pub mod verdict;

mod correlation;
mod difference;
mod level;
mod median;
mod sample;
mod score;

#[cfg(test)]
mod coverage;
#[cfg(test)]
mod verdict_simulation;

pub use correlation::correlation;
pub use difference::{difference, difference_at, gain_p, is_gain, least_detectable, nearest_detectable};
pub use level::{CONFIDENCE, Level};
pub use median::{median, median_interval};
pub use sample::{Estimate, LEAST_CONTEXTS, Sample, mean, mean_interval, quantile};
pub use score::score;
