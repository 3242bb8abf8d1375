//! Device forms: methods that select on the device that holds the prefix.
//!
//! A method's host form is the [`Method`](crate::Method) trait. A [`DeviceForm`](form::DeviceForm) is optional, and batched: it
//! builds an index of all KV heads of a layer, and selects for all heads of all rows that share the method, into token lists that
//! attention reads on the device. Nothing waits for it. It selects what the host form would select, except for scores that differ
//! by rounding, and costs the same: costs known beforehand come from the [formula](form::DeviceForm::cost) of the host form, and
//! selected tokens are counted on the device until
//! [the counters are collected](crate::Sequence::collect_device_counters).
//!
//! For methods of a [`Scorer`](crate::scored::scorer::Scorer) and a [`Picker`](crate::scored::select::Picker), each of the two has a
//! device form of its own, and a method with both has one too ([`Scored`](crate::scored::method::Scored)).

pub(crate) mod form;
pub(crate) mod layer;
pub(crate) mod scorer;
#[cfg(feature = "cuda")]
pub(crate) mod workspaces;
