//! How the time of a run was spent, for its last line of output.

use std::time::Duration;

use spattn_base::memory::peak_bytes;
use spattn_eval::run::stopwatch::PhaseTimes;
use spattn_model::engine::GpuUse;

/// How the time of this run was spent.
pub(super) struct RunTiming {
    pub(super) all: Duration,
    pub(super) spent: PhaseTimes,
    pub(super) gpu: GpuUse,
}

impl std::fmt::Display for RunTiming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PhaseTimes { prefill, index, steps, solo } = self.spent;
        let rest = self.all.saturating_sub(self.spent.total());
        let [all, prefill, index, steps, solo, rest] =
            [self.all, prefill, index, steps, solo, rest].map(|t| t.as_secs_f64());
        write!(f, "{all:.1} s: prefill {prefill:.1}, indexes {index:.1}, steps {steps:.1}, ")?;
        if !self.spent.solo.is_zero() {
            write!(f, "solo timing {solo:.1}, ")?;
        }
        write!(f, "the rest {rest:.1}.")?;
        if let Some(bytes) = peak_bytes() {
            write!(f, " Peak memory {:.1} GB.", bytes as f64 / 1e9)?;
        }
        if self.gpu.most_bytes > 0 { write!(f, "\n{}", self.gpu) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_phase_took_is_the_rest() {
        let s = Duration::from_secs;
        let spent = PhaseTimes { prefill: s(2), index: s(1), steps: s(3), solo: s(0) };
        let timing = RunTiming { all: s(10), spent, gpu: GpuUse::default() };
        let start = "10.0 s: prefill 2.0, indexes 1.0, steps 3.0, the rest 4.0.";
        assert!(timing.to_string().starts_with(start), "{timing}");
        let alone = RunTiming { spent: PhaseTimes { solo: s(4), ..spent }, ..timing };
        assert!(alone.to_string().contains("steps 3.0, solo timing 4.0, the rest 0.0."), "{alone}");
    }
}
