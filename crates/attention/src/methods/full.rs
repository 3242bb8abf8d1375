//! `full`: exact attention over all tokens (Vaswani et al. 2017), the reference of every table.
//!
//! It selects nothing and stores nothing. A decode step costs what dense attention costs.

use std::sync::Arc;

use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::MethodEntry;
use crate::{HeadPrefix, Method, Policy, PrefillPattern, Role, Selection, StaticTokens, Step, TailRule};

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "full",
    role: Role::Reference,
    about: "exact attention over the whole context (the reference)",
    reference: "exact attention (Vaswani et al. 2017, arXiv:1706.03762)",
    params: &[],
    presets: &[],
    build: |_| Ok(Arc::new(Full)),
};

/// Attends everything: all tokens are static.
struct Full;

impl Method for Full {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("it attends everything")
    }

    fn is_static_only(&self) -> bool {
        true
    }

    fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        Ok(Selection::PerHead(Vec::new()))
    }

    fn exact(&self, _: &Policy, _: usize, _: usize) -> StaticTokens {
        StaticTokens::all()
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(PrefillPattern::Dense)
    }
}
