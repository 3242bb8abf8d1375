//! What a run stores: records, the file to which they are appended, and the prompts beside
//! it.
//!
//! Records are made in `run`. What is computed from them is in `summary`.

pub(crate) mod changes;
pub mod costs;
pub mod fidelity;
pub mod interning;
pub(crate) mod lines;
pub mod loaded;
pub mod manifest_keys;
pub mod order;
pub mod prompts;
pub mod record;
pub mod store;
pub mod stored_manifest;
pub mod text_scores;
pub mod timing;
pub(crate) mod validity;

#[doc(hidden)]
pub mod testing;
