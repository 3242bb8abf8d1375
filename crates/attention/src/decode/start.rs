//! Starts a sequence: solves the method's parameter for a density if needed, and finds or builds the index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Probe;
use crate::configured::Configured;
use crate::decode::index_cache::{IndexCache, IndexSetKey};
use crate::decode::sequence::{Selector, Sequence};
use crate::decode::timing::IndexTime;
use crate::kv::{DeviceFailure, KvError, KvReads, Prefix, ReadCounter};
use crate::method::{AnyMethod, Solved};
use crate::types::budget::Context;

/// Why a sequence could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Keys and values of the prefix could not be read.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The device failed while it built an index.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
}

/// A method whose parameter was solved for its density.
type SolvedMethod = Solved<Arc<dyn AnyMethod>>;

impl IndexCache {
    /// Starts a sequence of `method` on the prefix; builds its index unless an earlier sequence built it.
    ///
    /// # Errors
    /// If keys and values of the prefix cannot be read, or a device fails while it builds the index.
    pub fn fork(&mut self, method: &Configured, fidelity: bool) -> Result<Sequence, StartError> {
        let mut method = method.clone();
        let (prefix, quantising) = self.stored_as(method.policy.kv_dtype)?;
        let start = Instant::now();
        let (solved, solve_reads) = self.solve(&prefix, &method)?;
        let solved = solved.map(|solved| {
            method.method = solved.method;
            solved.params
        });
        let solve_time = if solved.is_some() { start.elapsed() } else { Duration::ZERO };
        let mut fork = self.fork_as_is(prefix, &method, fidelity)?;
        fork.index_time += quantising;
        fork.index_time.whole += solve_time;
        Ok(Sequence { solved, solve_reads, ..fork })
    }

    /// Returns the method with its parameter solved for the requested density (`None` if there is nothing to solve),
    /// and what solving read, if the prefix cannot be borrowed.
    fn solve(&self, prefix: &Prefix, method: &Configured) -> Result<(Option<SolvedMethod>, KvReads), KvError> {
        let tokens = self.prefix.tokens();
        let candidates = method.method.exact(&method.policy, tokens, tokens).candidates(tokens);
        let dense = self.prefix.specs().dense(&method.policy);
        if candidates.is_empty() || dense.iter().all(|dense| *dense) {
            return Ok((None, KvReads::default()));
        }
        let context = self.mean_context(method);
        let Self { queries, dtype, .. } = self;
        let reads = ReadCounter::default();
        let probe = Probe { prefix, queries, dtype: *dtype, dense: &dense, candidates, context, reads: &reads };
        Ok((method.method.solve(&probe)?, self.reads_of(&reads)))
    }

    /// The mean context of the tokens that are certain to follow: the rest of the prompt, and the given tokens after
    /// it.
    pub(super) fn mean_context(&self, method: &Configured) -> Context {
        let tokens = self.prefix.tokens();
        let follow = self.prompt_tokens.saturating_sub(tokens) + self.given_tokens;
        let total = tokens + follow.div_ceil(2).max(1);
        let fixed = method.method.exact(&method.policy, tokens, total).tokens(total);
        Context::new(total, &(0..total - fixed))
    }

    fn fork_as_is(&mut self, prefix: Arc<Prefix>, method: &Configured, fidelity: bool) -> Result<Sequence, StartError> {
        let tokens = self.prefix.tokens();
        let exact = method.method.exact(&method.policy, tokens, tokens);
        let candidates = exact.candidates(tokens);
        let dense = self.prefix.specs().dense(&method.policy);
        let on_device = !fidelity && !candidates.is_empty() && self.can_select_on_device(method);
        let (schedule, kv_dtype) = (method.policy.schedule.clone(), method.policy.kv_dtype);
        let settings = method.method.index_key();
        let name = (!settings.is_of_several_methods()).then(|| method.name.clone());
        let key = IndexSetKey { method: name, settings, exact, dense: dense.clone(), schedule, kv_dtype, on_device };
        let known = self.sets.get(&key).cloned();
        let is_known = known.is_some();
        let indexes = match known {
            Some(set) => set,
            None => {
                let set = Arc::new(match on_device {
                    true => self.build_on_device(method, &candidates, &dense)?,
                    false => self.build(&prefix, method, candidates.clone(), &dense)?,
                });
                self.sets.insert(key, set.clone());
                set
            }
        };
        let gathering = self.gathering_time(&method.method.prompt_needs());
        let index_time = IndexTime {
            whole: indexes.build_time + gathering.whole,
            reused: if is_known { indexes.build_time } else { Duration::ZERO } + gathering.reused,
        };
        let fork = Sequence::new(self, prefix, method.clone(), (indexes, index_time), candidates, dense, fidelity);
        Ok(match on_device {
            true => Sequence { selector: Selector::device(self.prefix.layers()), ..fork },
            false => fork,
        })
    }
}
