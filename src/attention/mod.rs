//! Sparse attention: the [`Method`] trait, spec strings, the uniform policy, and the engine that
//! attends what a method picks.
//!
//! A method is one file in `methods/` and one line in its registry. It says what it stores when the
//! prefix is ready, which tokens (and weights) it picks for a step's queries, and what that cost. It
//! never attends: [`Fork`] does, the same way for all methods. Models, tasks and records are unknown here.

mod engine;
pub mod fidelity;
mod head;
mod method;
pub mod methods;
mod policy;
mod spec;

pub use engine::{Fork, IndexCache};
pub use method::{AnyMethod, Exact, HeadPrefix, Method, Picks, PrefillPattern, Selection, Step, Weighting, mix_seed};
pub use policy::{DenseLayers, Policy};
pub use spec::{Budget, MethodSpec, Params, expand_grid};

use std::sync::Arc;

/// A method with its parameters and policy resolved: what one cell of a run evaluates.
#[derive(Clone)]
pub struct Configured {
    /// Bare name, such as `topk`.
    pub name: &'static str,
    /// Canonical `key=value,...`: what sets the budget always, other parameters and the policy only where
    /// they differ from the default.
    pub params: String,
    /// Sink, window and dense layers.
    pub policy: Policy,
    /// The method itself.
    pub method: Arc<dyn AnyMethod>,
}

impl Configured {
    /// `name` or `name:params`, as a user would write it.
    pub fn label(&self) -> String {
        if self.params.is_empty() { self.name.to_owned() } else { format!("{}:{}", self.name, self.params) }
    }
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label())
    }
}
