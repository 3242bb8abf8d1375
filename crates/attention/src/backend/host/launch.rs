//! Launches of a build without a device: the traits are empty and hold for every form.

use std::ops::Range;

use super::memory::KvHandle;
use crate::backend::index::{DeviceIndex, PrefixStatsView};
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

/// Builds the index of all KV heads of a layer.
pub(crate) fn build_index(
    _: &(impl DeviceLaunch + ?Sized),
    kv: KvHandle<'_>,
    _: (usize, SoftmaxScale, KvDtype, Range<usize>),
    _: &PrefixStatsView<'_>,
) -> Result<DeviceIndex, DeviceFailure> {
    match kv.never {}
}

/// Waits for all that was launched.
pub(crate) fn finish(kv: KvHandle<'_>) -> Result<(), DeviceFailure> {
    match kv.never {}
}
