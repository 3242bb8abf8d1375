//! Methods that are sparse during prefill and decode densely.

use crate::cost::Cost;
use crate::kv::KvError;
use crate::{HeadPrefix, Method, Policy, PrefillPattern, PromptMask, Selection, StaticTokens, Step, TailRule};

/// A method that is a mask over whole prompts. Decoding is dense, so nothing is selected or stored.
pub(super) struct PrefillOnly<M>(pub(super) M);

impl<M: PromptMask + 'static> Method for PrefillOnly<M> {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        Ok(Selection::PerHead(Vec::new()))
    }

    fn exact(&self, _: &Policy, _: usize, _: usize) -> StaticTokens {
        StaticTokens::all()
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(PrefillPattern::Whole(&self.0))
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("it attends everything once the prompt has been read")
    }

    fn is_static_only(&self) -> bool {
        true
    }

    fn decodes_densely(&self) -> bool {
        true
    }
}
