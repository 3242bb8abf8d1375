//! How the time of a run was spent, for its last line of output.

use std::time::Duration;

use spattn_attention::kv::DiskUse;
use spattn_base::memory::peak_bytes;
use spattn_base::text;
use spattn_eval::run::stopwatch::PhaseTimes;
use spattn_model::engine::GpuUse;

/// How the time of this run was spent.
pub(super) struct RunTiming {
    pub(super) all: Duration,
    pub(super) spent: PhaseTimes,
    pub(super) gpu: GpuUse,
    pub(super) disk: DiskUse,
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
        if self.disk.written > 0 {
            write!(f, "\n{}", of_disk(self.disk))?;
        }
        if self.gpu.most_bytes > 0 { write!(f, "\n{}", self.gpu) } else { Ok(()) }
    }
}

/// How much of a KV cache on disk was written and read.
fn of_disk(disk: DiskUse) -> String {
    let DiskUse { written, read_back, pages, hits, page_bytes } = disk;
    let read = (pages - hits).saturating_mul(page_bytes);
    let [written, read_back, read] = [written, read_back, read].map(text::size);
    let share = 100.0 * hits as f64 / pages.max(1) as f64;
    format!(
        "KV cache on disk: {written} written and {read_back} read back in prefill, {read} read in pages after it; {share:.1} % of the pages \
         asked for were in memory."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_phase_took_is_the_rest() {
        let s = Duration::from_secs;
        let spent = PhaseTimes { prefill: s(2), index: s(1), steps: s(3), solo: s(0) };
        let timing = RunTiming { all: s(10), spent, gpu: GpuUse::default(), disk: DiskUse::default() };
        let start = "10.0 s: prefill 2.0, indexes 1.0, steps 3.0, the rest 4.0.";
        assert!(timing.to_string().starts_with(start), "{timing}");
        let alone = RunTiming { spent: PhaseTimes { solo: s(4), ..spent }, ..timing };
        assert!(alone.to_string().contains("steps 3.0, solo timing 4.0, the rest 0.0."), "{alone}");
        assert!(!alone.to_string().contains("on disk"), "{alone}");
    }

    #[test]
    fn what_a_cache_on_disk_took_is_told() {
        let disk = DiskUse { written: 42_000_000, read_back: 63_000_000, pages: 1000, hits: 930, page_bytes: 4096 };
        assert_eq!(
            of_disk(disk),
            "KV cache on disk: 42.0 MB written and 63.0 MB read back in prefill, 287 KB read in pages after it; 93.0 % of the pages asked \
             for were in memory."
        );
    }
}
