//! Makes the inputs of the next context while a GPU works on this one: to generate and tokenize a prompt of 64K tokens takes a processor
//! most of a second.
//!
//! They are the inputs that would be made later, with the same errors.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::Result;

use super::runner::Runner;
use crate::examples::example_input::ExampleInput;
use crate::plan::planner::TaskLength;
use crate::records::timing::Latency;

/// Inputs that are ready, by the index of the example and its seed, or why there are none.
pub(super) type Made = BTreeMap<(usize, u64), Result<ExampleInput>>;

/// The inputs of the next context, which a thread is making. When this is dropped, the thread ends after the example that it is making.
pub(super) struct InputsAhead<'scope> {
    making: Option<ScopedJoinHandle<'scope, Made>>,
    is_dropped: Arc<AtomicBool>,
}

impl Drop for InputsAhead<'_> {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

impl<'scope> InputsAhead<'scope> {
    /// Nothing is being made.
    pub(super) fn none() -> Self {
        Self { making: None, is_dropped: Arc::default() }
    }

    /// Begins to make the inputs of these examples of a place, until `stop` is raised.
    pub(super) fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        (runner, stop): (&'env Runner<'env>, &'env AtomicBool),
        place: TaskLength,
        examples: Vec<(usize, u64)>,
    ) -> Self {
        if examples.is_empty() {
            return Self::none();
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        let dropped = is_dropped.clone();
        let make = move || {
            let goes_on = |_: &(usize, u64)| ![stop, &dropped].into_iter().any(|flag| flag.load(Ordering::Relaxed));
            let input = |(index, seed)| ((index, seed), runner.material(place, index, seed));
            examples.into_iter().take_while(goes_on).map(input).collect()
        };
        Self { making: Some(scope.spawn(make)), is_dropped }
    }

    /// Waits for what is being made. Resumes a panic of its thread.
    pub(super) fn take(&mut self) -> Made {
        let made = self.making.take().map(|making| making.join().unwrap_or_else(|panic| resume_unwind(panic)));
        made.unwrap_or_default()
    }
}

impl Runner<'_> {
    /// Whether inputs are made ahead: where a GPU computes, and no method is timed alone on the machine. On a CPU this would take time from
    /// the steps that are timed.
    pub(super) fn makes_inputs_ahead(&self) -> bool {
        self.model.decoder.gpu().is_some() && self.config.latency != Latency::Solo
    }
}
