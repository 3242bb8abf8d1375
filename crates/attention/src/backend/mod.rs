//! Selection on the device that holds the prefix, and what a build can launch there.
//!
//! A method's host form is the [`Method`](crate::Method) trait. A [`DeviceForm`](form::DeviceForm) is optional. Every build describes
//! it (which heads it fits, what it costs, how much memory it takes); a backend launches it:
//!
//! | | all builds | a build with a backend |
//! |---|---|---|
//! | a method of its own | [`DeviceForm`](form::DeviceForm) | its supertrait `DeviceLaunch`, implemented through `CudaForm` |
//! | a [`Scorer`](crate::scored::scorer::Scorer) | [`DeviceScorer`](scorer::DeviceScorer) | `ScorerLaunch`, through `CudaScorer` |
//! | a [`Picker`](crate::scored::select::Picker) | [`DevicePicker`](scorer::DevicePicker) | `PickerLaunch` |
//! | a mask that is searched for | [`SearchedMask`](crate::SearchedMask) | `MaskLaunch` |
//! | an index of a method that selects on the host | [`IndexBuilder`](builder::IndexBuilder) | `BuilderLaunch`, through `CudaBuilder` |
//!
//! A build has one backend: `cuda/`, or `host/`, which launches nothing and whose traits are empty. Both define the same names, so
//! nothing outside this folder depends on which one it is: a method puts its launches in a module that is compiled with the backend
//! (`#[cfg(feature = "cuda")] mod cuda;`), and the compiler rejects a form without them.
//!
//! A launch builds an index of all KV heads of a layer, or selects for all heads of all rows that share the method, into token lists
//! that attention reads on the device. The host does not wait for it. It selects what the host form would select, except for scores
//! that differ by rounding, and costs the same. Costs known beforehand come from the host form's [formula](form::DeviceForm::cost);
//! selected tokens are counted on the device until [the counters are collected](crate::Sequence::collect_device_counters).

pub(crate) mod builder;
pub(crate) mod form;
pub(crate) mod index;
pub(crate) mod reasons;
pub(crate) mod scorer;
pub(crate) mod workspaces;

#[cfg(not(feature = "cuda"))]
pub(crate) mod host;
#[cfg(not(feature = "cuda"))]
pub(crate) use host as active;

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
pub(crate) use cuda as active;
