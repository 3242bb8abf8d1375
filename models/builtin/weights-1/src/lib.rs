//! The first half of the weights of the built-in model of `spattn`: a package of a registry may have 10 MB, and all of them do not fit.

/// The bytes of the file, up to the middle.
pub const WEIGHTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weights.bin"));
