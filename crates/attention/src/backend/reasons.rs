//! [`HostReason`]: why tokens are selected on the host although a GPU holds the prefix.

use std::fmt;

use crate::kv::KvDtype;
use crate::types::positions::Positions;
use crate::types::schedule::Schedule;

/// Why a method with its parameters, a model's shape or a protocol selects on the host although a GPU holds the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostReason {
    /// The method has no form on a GPU.
    NoForm,
    /// The form does not do what this setting asks for.
    Setting {
        /// The parameter.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// This way of selecting by scores has no form on a GPU.
    Selection(&'static str),
    /// There is nothing to select: only static tokens are attended.
    SelectsNothing,
    /// The parameter that `density` asks for is not solved yet; it is when a sequence starts.
    UnsolvedDensity,
    /// Kernels do not take heads of this width.
    HeadWidth {
        /// Width of the model's heads.
        d: usize,
        /// The widest that kernels take.
        most: usize,
        /// Widths are multiples of this.
        multiple_of: usize,
    },
    /// Kernels do not support this many numbers for each key.
    IndexWidth {
        /// Numbers of the index for each key.
        numbers: usize,
        /// The most that kernels take.
        most: usize,
    },
    /// Kernels do not take keys and values of this type.
    Storage(KvDtype),
    /// Tokens after the prefix become candidates (`tail`), and a GPU selects among those of the prefix.
    MovingCandidates,
    /// Tokens are attended at other positions than their own.
    MovedPositions,
    /// Layers have budgets of their own (`schedule`).
    LayerBudgets,
    /// Statistics of the prompt that the index needs were not gathered.
    NoStatistics,
    /// A layer scales logits by another factor than one over the root of a head's width.
    SoftmaxScale,
}

impl HostReason {
    /// A parameter's value that the form does not do.
    pub fn setting(key: &'static str, value: impl ToString) -> Self {
        Self::Setting { key, value: value.to_string() }
    }

    /// The width of heads, if kernels do not take it: up to `most` in multiples of `multiple_of`.
    pub(crate) fn of_head_width(d: usize, most: usize, multiple_of: usize) -> Option<Self> {
        let fits = d <= most && d.is_multiple_of(multiple_of);
        (!fits).then_some(Self::HeadWidth { d, most, multiple_of })
    }

    /// The numbers that an index has for each key, if kernels do not support this many.
    pub(crate) fn of_index_width(numbers: usize, most: usize) -> Option<Self> {
        (numbers > most).then_some(Self::IndexWidth { numbers, most })
    }

    /// Why a policy's tokens cannot be selected on a GPU: positions and budgets that differ from those of all forms.
    pub(crate) fn of_run(positions: Positions, schedule: &Schedule, has_moving_candidates: bool) -> Vec<Self> {
        let reasons = [
            (has_moving_candidates, Self::MovingCandidates),
            (positions != Positions::Original, Self::MovedPositions),
            (!schedule.is_uniform(), Self::LayerBudgets),
        ];
        reasons.into_iter().filter(|(holds, _)| *holds).map(|(_, reason)| reason).collect()
    }
}

impl fmt::Display for HostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoForm => f.write_str("it has no form on a GPU"),
            Self::Setting { key, value } => write!(f, "its form on a GPU does not do {key}={value}"),
            Self::Selection(way) => write!(f, "selecting {way} has no form on a GPU"),
            Self::SelectsNothing => f.write_str("it selects nothing"),
            Self::UnsolvedDensity => f.write_str("its density is solved when a sequence starts"),
            Self::HeadWidth { d, most, multiple_of: 1 } => {
                write!(f, "heads are {d} wide, and the kernels take up to {most}")
            }
            Self::HeadWidth { d, most, multiple_of } => {
                write!(f, "heads are {d} wide, and the kernels take multiples of {multiple_of} up to {most}")
            }
            Self::IndexWidth { numbers, most } => {
                write!(f, "its index has {numbers} numbers for each key, and the kernels take up to {most}")
            }
            Self::Storage(dtype) => write!(f, "the kernels do not take keys in {}", dtype.name()),
            Self::MovingCandidates => f.write_str("tokens after the prefix become candidates (tail)"),
            Self::MovedPositions => f.write_str("it attends tokens at other positions than their own"),
            Self::LayerBudgets => f.write_str("layers have budgets of their own (schedule)"),
            Self::NoStatistics => f.write_str("what its index needs of the prompt was not gathered"),
            Self::SoftmaxScale => f.write_str("the model scales logits by a factor of its own"),
        }
    }
}
