//! Device forms: methods that select on the device that holds the prefix.
//!
//! A method's host form is the [`Method`](super::Method) trait. A [`DeviceForm`] is optional, and batched: it builds an index of
//! all KV heads of a layer, and picks for all heads of all rows that share the method, into lists that are attended where they
//! are. Nothing waits for it. What it picks is what the host form would pick, but for scores that differ by rounding, and so is
//! what it costs: what is known beforehand is counted by the [formula](DeviceForm::cost) that the host form counts by, and picks
//! are counted on the device until a run [settles](crate::Sequence::collect_device_counters).
//!
//! For methods of a [`Scorer`](crate::scored::scorer::Scorer) and a [`Picker`](crate::scored::select::Picker) each of the two has a form of its own,
//! and whatever has both goes together ([`Scored`](crate::scored::method::Scored)).

pub(crate) mod form;
pub(crate) mod layer;
pub(crate) mod scorer;
#[cfg(feature = "cuda")]
pub(crate) mod workspaces;
