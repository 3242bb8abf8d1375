//! Prepares the examples whose records are missing. Each is made once for all protocols, and they are ordered so that
//! neighbours share most of their prefixes.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;

use super::inputs_ahead::Made;
use super::record_key::record_key;
use super::runner::Runner;
use crate::config::run_config::Variant;
use crate::examples::example_input::ExampleInput;
use crate::examples::observer::{RunObserver, SkippedWork};
use crate::plan::manifest::{identity, without_content};
use crate::plan::planner::{Planner, RunPlan, TaskLength};
use spattn_attention::Configured;

/// An example under a variant (seed and protocol), with the methods whose records are missing.
struct PendingExample {
    index: usize,
    variant: Variant,
    methods: Vec<Configured>,
}

/// An example that is ready to run.
#[derive(Clone)]
pub(super) struct PreparedExample {
    pub place: TaskLength,
    /// The index of the example in its task.
    pub index: usize,
    pub variant: Variant,
    /// The methods whose records are missing.
    pub methods: Vec<Configured>,
    pub input: Rc<ExampleInput>,
    /// The number of prompt tokens that are the prefix; they come first.
    pub prefix_tokens: usize,
    /// The lengths in tokens of prefixes that run next, each of which continues the one before, starting with this one.
    pub longer: Vec<usize>,
}

impl PreparedExample {
    /// The tokens of the prefix.
    pub(super) fn prefix(&self) -> &[u32] {
        &self.input.prompt()[..self.prefix_tokens]
    }
}

/// Fills `longer` of each example from the examples after it, which are in the order of the run.
fn link_nested_prefixes(items: &mut [PreparedExample]) {
    for at in (1..items.len()).rev() {
        let (before, next) = (&items[at - 1], &items[at]);
        if next.prefix().starts_with(before.prefix()) {
            let own = Some(next.prefix_tokens).filter(|tokens| *tokens > before.prefix_tokens);
            let longer = own.into_iter().chain(next.longer.iter().copied()).collect();
            items[at - 1].longer = longer;
        }
    }
}

impl Planner<'_> {
    /// The number of missing records of a context's examples. `has` tells whether a record with a key exists.
    pub(super) fn missing_records(
        &self,
        plan: &RunPlan,
        place: TaskLength,
        context: &[usize],
        has: impl Fn(&str) -> bool,
    ) -> usize {
        self.pending_examples(plan, place, context, has).iter().map(|pending| pending.methods.len()).sum()
    }

    /// The examples of a context of which records are missing: index and seed.
    pub(super) fn missing_examples(
        &self,
        plan: &RunPlan,
        place: TaskLength,
        context: &[usize],
        has: impl Fn(&str) -> bool,
    ) -> Vec<(usize, u64)> {
        let pending = self.pending_examples(plan, place, context, has);
        let mut examples: Vec<_> = pending.iter().map(|pending| (pending.index, pending.variant.seed)).collect();
        examples.sort_unstable();
        examples.dedup();
        examples
    }

    /// The examples of a context under all variants, each with the methods whose records are missing.
    fn pending_examples(
        &self,
        plan: &RunPlan,
        place: TaskLength,
        context: &[usize],
        has: impl Fn(&str) -> bool,
    ) -> Vec<PendingExample> {
        let mut pending = Vec::new();
        for variant in self.config.variants() {
            let identity = identity(self.config, variant, self.model, self.data);
            let [identity, before] = [identity.to_string(), without_content(&identity).to_string()];
            for &index in context {
                let task = self.tasks[place.task].name();
                let key = |identity: &str, m: &Configured| record_key(identity, task, place.length, index, m);
                // Old versions made the keys of records without the model's configuration.
                let is_there = |m: &Configured| has(&key(&identity, m)) || has(&key(&before, m));
                let is_missing = |m: &&Configured| plan.has(place, variant, m) && !is_there(m);
                let methods: Vec<Configured> = self.config.methods.iter().filter(is_missing).cloned().collect();
                if !methods.is_empty() {
                    pending.push(PendingExample { index, variant, methods });
                }
            }
        }
        pending
    }
}

impl Runner<'_> {
    /// Prepares the examples of a context whose records are missing. Each is made once for all protocols, unless its input is `ready`, and
    /// those that begin alike become neighbours. If an example cannot be made, the rest of its cell under its seed is left out.
    ///
    /// # Errors
    /// The errors of `watch` about an example that cannot be made.
    pub(super) fn prepare(
        &self,
        plan: &mut RunPlan,
        (place, context): (TaskLength, &[usize]),
        has: impl Fn(&str) -> bool,
        mut ready: Made,
        watch: &mut dyn RunObserver,
    ) -> Result<Vec<PreparedExample>> {
        let mut made: BTreeMap<(u64, usize), Option<Rc<ExampleInput>>> = BTreeMap::new();
        let mut items = Vec::new();
        for PendingExample { index, variant, methods } in self.pending_examples(plan, place, context, has) {
            let seed = variant.seed;
            let known = made.get(&(seed, index)).cloned();
            let input = match known {
                Some(input) => input,
                None => {
                    let input = ready.remove(&(index, seed)).unwrap_or_else(|| self.material(place, index, seed));
                    let input = self.keep_or_skip((place, seed), input, plan, watch)?.map(Rc::new);
                    made.insert((seed, index), input.clone());
                    input
                }
            };
            if let Some(input) = input {
                let (prefix_tokens, longer) = (input.prefix_tokens(variant.protocol), Vec::new());
                items.push(PreparedExample { place, index, variant, methods, input, prefix_tokens, longer });
            }
        }
        items.sort_by(|a, b| a.prefix().cmp(b.prefix()).then(a.variant.seed.cmp(&b.variant.seed)));
        link_nested_prefixes(&mut items);
        Ok(items)
    }

    /// Returns the input of an example. If it could not be made, leaves the rest of its cell under its seed out of the plan.
    fn keep_or_skip(
        &self,
        (place, seed): (TaskLength, u64),
        input: Result<ExampleInput>,
        plan: &mut RunPlan,
        watch: &mut dyn RunObserver,
    ) -> Result<Option<ExampleInput>> {
        let error = match input {
            Ok(input) => return Ok(Some(input)),
            Err(error) => error,
        };
        let of_seed: Vec<_> = self.config.variants().into_iter().filter(|v| v.seed == seed).collect();
        plan.leave_out(place, &of_seed, &self.config.methods);
        watch.failed(SkippedWork { what: self.name_with_seed(place, seed), error })?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::passage;
    use super::*;
    use crate::config::protocol::Protocol;

    #[test]
    fn items_foresee_the_prefixes_that_go_on_from_theirs() {
        let variant = Variant { seed: 1, protocol: Protocol::Question };
        let item = |prompt: &[u32], prefix_tokens| PreparedExample {
            place: TaskLength { task: 0, length: 0 },
            index: 0,
            variant,
            methods: Vec::new(),
            input: Rc::new(ExampleInput::Passage(passage(prompt.to_vec(), 1))),
            prefix_tokens,
            longer: Vec::new(),
        };
        let mut items = [
            item(&[1, 2, 9], 2),
            item(&[1, 2, 3], 3),
            item(&[1, 2, 3, 9], 3),
            item(&[1, 2, 3, 4], 4),
            item(&[5, 6], 1),
            item(&[6, 6, 7], 3),
        ];
        link_nested_prefixes(&mut items);
        let found: Vec<&[usize]> = items.iter().map(|item| item.longer.as_slice()).collect();
        assert_eq!(found, [&[3, 4][..], &[4], &[4], &[], &[], &[]]);
    }
}
