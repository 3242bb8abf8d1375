//! Device memory of a build without a device.

use std::convert::Infallible;
use std::marker::PhantomData;

/// Keys and values of one layer in device memory: no value of this type exists.
#[derive(Debug, Clone, Copy)]
pub struct KvHandle<'a> {
    pub(super) never: Infallible,
    _memory: PhantomData<&'a ()>,
}
