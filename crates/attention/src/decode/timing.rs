//! Time of a run: building its index, and the attention of its steps.

use std::ops::{AddAssign, Sub};
use std::time::Duration;

use spattn_base::clock;

/// How long a run's index took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexTime {
    /// What the run would have taken for it alone.
    pub whole: Duration,
    /// How much of that was spent for an earlier run on the same prefix, and not again.
    pub reused: Duration,
}

impl AddAssign for IndexTime {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.reused += other.reused;
    }
}

/// What a run's steps took for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionTime {
    /// Picking what is attended: processor time, or that of a device.
    pub select: Duration,
    /// What that is made of, where the method tells and [somebody asks](Sequence::with_selection_breakdown).
    pub parts: clock::Parts,
    /// Attending it, by the same.
    pub attend: Duration,
    /// Comparing it with exact attention, by the same; no method needs that.
    pub compare: Duration,
    /// Time by the clock for all of this: the run's share of what passed while the streams of a step attended, several at
    /// a time perhaps.
    pub elapsed: Duration,
}

impl AttentionTime {
    /// What was worked.
    pub fn worked(&self) -> Duration {
        self.select + self.attend + self.compare
    }
}

impl AddAssign for AttentionTime {
    fn add_assign(&mut self, other: Self) {
        self.select += other.select;
        self.parts += other.parts;
        self.attend += other.attend;
        self.compare += other.compare;
        self.elapsed += other.elapsed;
    }
}

impl Sub for AttentionTime {
    type Output = Self;

    /// What came on top of `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            select: self.select - earlier.select,
            parts: self.parts - earlier.parts,
            attend: self.attend - earlier.attend,
            compare: self.compare - earlier.compare,
            elapsed: self.elapsed - earlier.elapsed,
        }
    }
}

/// Processor time of sections that are no part of the caller's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ParallelTime {
    /// All of them.
    pub(super) select: Duration,
    /// Those that tell scoring from picking.
    pub(super) parts: clock::Parts,
}

impl From<ParallelTime> for AttentionTime {
    fn from(ParallelTime { select, parts }: ParallelTime) -> Self {
        Self { select, parts, ..Self::default() }
    }
}
