//! `spattn`: an evaluation harness for sparse attention.
//!
//! This crate is the program. The crates in `crates/` are its parts. Each imports only from crates before it in this order (see
//! `ARCHITECTURE.md`):
//!
//! `spattn-base`, `spattn-stats`, `spattn-hub` → `spattn-kernels` → `spattn-cuda` → `spattn-attention` → `spattn-model` →
//! `spattn-tasks` → `spattn-eval` → `spattn-lab` → `spattn`.
//!
//! Within this crate: [`launch`] → [`report`] → [`cli`].

#[macro_use]
extern crate spattn_base;

pub use spattn_attention::{cost, kv};
pub use spattn_base::{clock, disk, error, foreign, given, memory, privacy, text};
pub use spattn_lab::{analyze, bench, tune};
pub use {
    spattn_attention as attention, spattn_eval as eval, spattn_model as model, spattn_stats as stats,
    spattn_tasks as tasks,
};

/// Compute kernels of all devices.
pub mod kernels {
    #[cfg(feature = "cuda")]
    pub use spattn_cuda as cuda;
    pub use spattn_kernels as cpu;
    pub use spattn_kernels::heap;
}

pub mod cli;
pub mod launch;
pub mod report;
pub mod version;
