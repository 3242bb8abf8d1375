//! Launches of a build without a device: the traits are empty and every form
//! implements them.

use std::any::Any;
use std::ops::Range;

use super::memory::KvHandle;
use crate::backend::index::{DeviceIndex, IndexLayer, PrefixStatsView};
use crate::kv::{DeviceFailure, KvDtype};
use crate::types::attention_spec::SoftmaxScale;

/// Launches of a [`DeviceForm`](crate::DeviceForm).
pub trait DeviceLaunch {}
impl<F: ?Sized> DeviceLaunch for F {}

/// Launches of a [`SearchedMask`](crate::SearchedMask).
pub trait MaskLaunch {}
impl<F: ?Sized> MaskLaunch for F {}

/// Launches of a [`DeviceScorer`](crate::backend::scorer::DeviceScorer).
pub(crate) trait ScorerLaunch {}
impl<F: ?Sized> ScorerLaunch for F {}

/// Launches of a [`DevicePicker`](crate::backend::scorer::DevicePicker).
pub(crate) trait PickerLaunch {}
impl<F: ?Sized> PickerLaunch for F {}

/// Launches of an [`IndexBuilder`](crate::IndexBuilder).
pub trait BuilderLaunch {}
impl<F: ?Sized> BuilderLaunch for F {}

/// Builds the indexes by which the host selects at a layer.
pub(crate) fn build_heads(
    _: &(impl BuilderLaunch + ?Sized),
    kv: KvHandle<'_>,
    _: &IndexLayer<'_>,
) -> Result<Vec<Box<dyn Any + Send + Sync>>, DeviceFailure> {
    match kv.never {}
}

/// Builds the index of all KV heads of a layer.
pub(crate) fn build_index(
    _: &(impl DeviceLaunch + ?Sized),
    kv: KvHandle<'_>,
    _: (usize, SoftmaxScale, KvDtype, Range<usize>),
    _: &PrefixStatsView<'_>,
) -> Result<DeviceIndex, DeviceFailure> {
    match kv.never {}
}

/// Waits for all launched work.
pub(crate) fn finish(kv: KvHandle<'_>) -> Result<(), DeviceFailure> {
    match kv.never {}
}
