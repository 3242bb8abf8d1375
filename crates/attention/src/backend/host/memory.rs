//! Memory of a device that there is not.

use std::convert::Infallible;
use std::marker::PhantomData;

/// Keys and values of one layer in a device's memory: no value of this type exists.
#[derive(Debug, Clone, Copy)]
pub struct KvHandle<'a> {
    pub(super) never: Infallible,
    _memory: PhantomData<&'a ()>,
}
