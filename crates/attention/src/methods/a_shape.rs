//! `a_shape`: sink and sliding window at original positions, a common baseline (MInference, Jiang et al. 2024; HiP).
//!
//! Selects nothing and stores nothing; a decode step attends sink and window only. It is
//! [`streaming_llm`](super::streaming_llm) without positions within the cache. It has its own name, and a wide sink in
//! its preset, because results are published under that name.

use std::num::NonZero;
use std::sync::Arc;

use super::ParamInfo;
use super::streaming_llm::SinkAndWindow;
use crate::kv::MOST_TOKENS;
use crate::methods::{MethodEntry, Preset};
use crate::{Positions, Role};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "a_shape",
    role: Role::Method,
    about: "sink and sliding window only, at original positions",
    reference: "a baseline of MInference (Jiang et al. 2024, arXiv:2407.02490) and HiP (arXiv:2406.09827)",
    params: &[ParamInfo { key: "window", default: "256", about: "last tokens attended, the current one included" }],
    presets: &[Preset {
        name: "repo",
        values: &[("sink", "128"), ("window", "3968")],
        source: "MInference's code, models_patch.py: n_init 128, n_local 3968",
    }],
    build: |params| {
        let window = params.tuned_within("window", NonZero::new(256).expect("not 0"), 1..=MOST_TOKENS)?;
        Ok(Arc::new(SinkAndWindow { window, keep: None, slides: true, positions: Positions::Original }))
    },
};
