//! What a run stores: records, the file that they are appended to, and the prompts beside it.
//!
//! How records are made is in `run`, what is computed from them in `summary`.

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
