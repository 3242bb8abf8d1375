//! [`DeviceForm`]: how a method selects on the device that holds the prefix, for all rows of a step that share it.

use crate::cost::Cost;
#[cfg(feature = "cuda")]
use crate::device::layer::{DeviceIndex, DeviceLayer, DeviceStep, PrefixStatsView};
#[cfg(feature = "cuda")]
use crate::device::workspaces::{DeviceScratch, DeviceWorkspace};
use crate::kv::{KvDtype, KvShape};
use crate::types::budget::Context;
use crate::types::prompt_shape::PromptShape;
#[cfg(feature = "cuda")]
use spattn_cuda::{Gpu, GpuError, HeldTokens};
use spattn_kernels::GPU_ROW_WIDTHS;

/// What a step of one KV head is like, as far as the cost of picking depends on it.
#[derive(Debug, Clone, Copy)]
pub struct StepShape {
    /// Query heads of the group.
    pub group: usize,
    /// Width of a head.
    pub d: usize,
    /// Storage type of keys and values.
    pub dtype: KvDtype,
    /// Tokens that may be picked.
    pub candidates: usize,
    /// Tokens that are attended whatever is picked.
    pub exact: usize,
    /// How much is picked, in units that the method knows.
    pub number: u32,
}

/// Whoever builds or picks has asked whether a form fits.
#[cfg(feature = "cuda")]
pub(crate) const FITS: &str = "a form is used where it fits";

/// The width of the rows in which an index holds so many numbers of each key, if there are such rows.
pub(crate) fn row_width(numbers: usize) -> Option<usize> {
    GPU_ROW_WIDTHS.into_iter().find(|width| (1..=*width).contains(&numbers))
}

/// A method's form on a device. Its candidates are those of the prefix, unless [runs hold something](Self::holds).
pub trait DeviceForm: Send + Sync {
    /// Whether there is a form for keys and values of this shape.
    fn fits(&self, shape: KvShape) -> bool;

    /// Generated tokens that attend what was picked once, before something is picked anew: whoever steps keeps it so long.
    fn refresh(&self) -> usize {
        1
    }

    /// What it costs to score the candidates of one KV head at a step, and to pass over the scores.
    fn cost(&self, step: &StepShape) -> Cost;

    /// What picking costs beyond that, where it depends on what is found: entries of an index that were read, and tokens
    /// that were picked, of all lists together.
    fn cost_of_picks(&self, _step: &StepShape, _entries: u64, _picked: u64) -> Cost {
        Cost::default()
    }

    /// Whether the products of the query heads of a group of so many with the tokens that they then attend are part of that
    /// [cost](Self::cost): attention takes them over, and they count there alone. Not by default.
    fn takes_products(&self, _group: usize) -> bool {
        false
    }

    /// Whether a row's [number](Self::budget_units) says all that a budget says, so that rows of methods which differ in nothing else are picked
    /// for together; not by default.
    fn units_encode_budget(&self) -> bool {
        false
    }

    /// How much is picked in a context of a prefix with so many candidates, in units that the method knows.
    fn budget_units(&self, context: Context, candidates: usize) -> u32;

    /// Bytes of the device's memory that its indexes of all layers of a prefix take at most.
    fn index_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize;

    /// Whether runs hold something of their own, which follows the tokens behind the prefix.
    fn holds(&self) -> bool {
        false
    }

    /// Bytes of the device's memory that what a run holds at a layer takes at most; nothing by default.
    fn held_bytes(&self, _prefix: &PromptShape) -> usize {
        0
    }

    /// Bytes of the device's memory that the lists of one row take at most; they are used again from layer to layer.
    fn list_bytes(&self, prefix: &PromptShape) -> usize;

    /// The index of all KV heads of a layer.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn build_all(&self, layer: &DeviceLayer<'_>, learned: &PrefixStatsView<'_>) -> Result<DeviceIndex, GpuError>;

    /// What a run that goes on from an index to `total` tokens in context holds at the layer, and changes from step to
    /// step; nothing by default.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn start_all(&self, _gpu: &Gpu, _index: &DeviceIndex, _total: usize) -> Result<Option<HeldTokens>, GpuError> {
        Ok(None)
    }

    /// Picks for all heads of all rows of a step, into a list for each query head or each KV head. All work is only asked for.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn select_all(
        &self,
        step: &DeviceStep<'_>,
        index: &DeviceIndex,
        room: &mut DeviceWorkspace,
        scratch: &mut DeviceScratch,
    ) -> Result<(), GpuError>;

    /// Scores all candidates and picks nothing, for whoever times that alone; what is returned says whether
    /// [`select_all`](Self::select_all) does so too.
    ///
    /// # Errors
    /// If the device fails.
    #[cfg(feature = "cuda")]
    fn score_only(
        &self,
        _step: &DeviceStep<'_>,
        _index: &DeviceIndex,
        _scratch: &mut DeviceScratch,
    ) -> Result<MaterializesScores, GpuError> {
        Ok(MaterializesScores::No)
    }
}

/// Whether a form writes scores of all candidates and picks by them.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaterializesScores {
    /// It has no such scores.
    No,
    /// It could, and picks without them.
    ForTimingOnly,
    /// Whatever it picks.
    Yes,
}
