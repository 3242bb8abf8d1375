//! [`HostReason`]: why tokens are selected on the host although a GPU holds the prefix.

use std::fmt;

use crate::kv::KvDtype;
use crate::types::positions::Positions;

/// Why a method with its parameters, a model's shape or a protocol selects on the host although a GPU holds the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostReason {
    /// The method has no GPU implementation ([`DeviceForm`](super::form::DeviceForm)).
    NoForm,
    /// The GPU implementation does not support this setting.
    Setting {
        /// The parameter.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The method is set to attend on the host what it selects, so it selects there.
    AttendsOnHost,
    /// This way of selecting by scores has no GPU implementation.
    Selection(&'static str),
    /// There is nothing to select: only static tokens are attended.
    SelectsNothing,
    /// The budget of a `density` is not computed yet; it is when a sequence starts.
    UnsolvedDensity,
    /// The kernels do not support heads of this width.
    HeadWidth {
        /// Width of the model's heads.
        d: usize,
        /// The widest that the kernels support.
        most: usize,
        /// Widths are multiples of this.
        multiple_of: usize,
    },
    /// The kernels do not support this many numbers for each key.
    IndexWidth {
        /// Numbers of the index for each key.
        numbers: usize,
        /// The most that the kernels support.
        most: usize,
    },
    /// The kernels do not support keys and values of this type.
    Storage(KvDtype),
    /// Tokens after the prefix become candidates (`tail`), and the GPU implementation selects among those of the prefix.
    MovingCandidates,
    /// Tokens are attended at other positions than their own.
    MovedPositions,
    /// Statistics of the prompt that the index needs were not gathered.
    NoStatistics,
    /// A layer scales logits by another factor than one over the root of a head's width.
    SoftmaxScale,
    /// A layer caps logits, or has sinks.
    SoftmaxRule,
}

impl HostReason {
    /// The reason of a parameter whose value the GPU implementation does not support.
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

    /// Why a policy's tokens cannot be selected on a GPU: candidates and positions that differ from those of a form.
    pub(crate) fn of_run(positions: Positions, has_moving_candidates: bool) -> Vec<Self> {
        let reasons =
            [(has_moving_candidates, Self::MovingCandidates), (positions != Positions::Original, Self::MovedPositions)];
        reasons.into_iter().filter(|(holds, _)| *holds).map(|(_, reason)| reason).collect()
    }
}

impl fmt::Display for HostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoForm => f.write_str("it has no GPU implementation"),
            Self::Setting { key, value } => write!(f, "its GPU implementation does not support {key}={value}"),
            Self::AttendsOnHost => f.write_str("attend_on=host attends there what it selects"),
            Self::Selection(way) => write!(f, "selecting {way} has no GPU implementation"),
            Self::SelectsNothing => f.write_str("it selects no tokens"),
            Self::UnsolvedDensity => f.write_str("its budget is computed from the density when a sequence starts"),
            Self::HeadWidth { d, most, multiple_of: 1 } => {
                write!(f, "heads have {d} channels, and the kernels support up to {most}")
            }
            Self::HeadWidth { d, most, multiple_of } => {
                write!(f, "heads have {d} channels, and the kernels support multiples of {multiple_of} up to {most}")
            }
            Self::IndexWidth { numbers, most } => {
                write!(f, "its index has {numbers} numbers for each key, and the kernels support up to {most}")
            }
            Self::Storage(dtype) => write!(f, "the kernels do not support keys in {}", dtype.name()),
            Self::MovingCandidates => f.write_str("tokens after the prefix become candidates (tail)"),
            Self::MovedPositions => f.write_str("it attends tokens at other positions than their own"),
            Self::NoStatistics => f.write_str("the statistics of the prompt that its index needs were not gathered"),
            Self::SoftmaxScale => f.write_str("the model scales logits by a factor of its own"),
            Self::SoftmaxRule => f.write_str("the model caps logits or has attention-sink logits"),
        }
    }
}
