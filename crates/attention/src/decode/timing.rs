//! The time that a sequence takes: to build its index, and for the attention of its steps.

use std::ops::{AddAssign, Sub};
use std::time::Duration;

use spattn_base::clock;

/// Build time of a sequence's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexTime {
    /// The build time if the sequence were alone on its prefix.
    pub whole: Duration,
    /// The part of it that was spent for an earlier sequence on the same prefix.
    pub reused: Duration,
}

impl AddAssign for IndexTime {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.reused += other.reused;
    }
}

/// Attention time of a sequence's decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionTime {
    /// Time of selection: processor time, or device time.
    pub select: Duration,
    /// Its breakdown, if the method reports one and [it was requested](crate::Sequence::with_selection_breakdown).
    pub parts: clock::Parts,
    /// Time of attention over the selected and static tokens, by the same clock.
    pub attend: Duration,
    /// Time of measuring fidelity and misses, by the same clock; not part of any method.
    pub compare: Duration,
    /// Wall time attributed to this sequence, from steps in which several sequences may attend at once.
    pub elapsed: Duration,
}

impl AttentionTime {
    /// Time of selection, attention and comparison together.
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

    /// The time added since `earlier`.
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

/// Processor time spent on threads other than the caller's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ParallelTime {
    /// Time of selection.
    pub(super) select: Duration,
    /// Its breakdown into scoring and selecting.
    pub(super) parts: clock::Parts,
}

impl From<ParallelTime> for AttentionTime {
    fn from(ParallelTime { select, parts }: ParallelTime) -> Self {
        Self { select, parts, ..Self::default() }
    }
}
