//! Compares the decoder with candle-transformers, which computes the same model from the same files.
//!
//! [`designs`] lists the models that candle has, [`limits`] says for which checkpoints they are no referee, [`compute`] runs them on a
//! text, and [`judge`] compares.

mod compute;
mod designs;
mod judge;
mod limits;
mod networks;
#[cfg(test)]
mod tests;

pub(super) use judge::judge;
