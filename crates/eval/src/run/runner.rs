//! The runner of a matrix: a plan's model with its weights, and its tasks.
//!
//! Its work is in the files above: `prepared_example` makes examples, `attempt` runs one and handles failures,
//! `records_of_example` makes records, and `run_plan` loops over all.

use std::ops::Deref;

use anyhow::{Context, Result};

pub use super::attempt::is_fatal;
use crate::examples::example_input::ExampleInput;
use crate::plan::planner::{Planner, TaskLength};
use crate::plan::work::prefill_work;
use spattn_model::Model;

/// A matrix to be run, with the model's weights in memory.
pub struct Runner<'a> {
    /// The planner of the same model.
    pub planner: Planner<'a>,
    /// The model.
    pub model: &'a Model,
}

impl<'a> Deref for Runner<'a> {
    type Target = Planner<'a>;

    fn deref(&self) -> &Planner<'a> {
        &self.planner
    }
}

impl Runner<'_> {
    /// The work of an example of this length.
    pub(super) fn work(&self, length: usize) -> u64 {
        prefill_work(&self.model.dimensions, length)
    }

    /// A cell's name for users, with the seed if there are several.
    pub(super) fn name_with_seed(&self, place: TaskLength, seed: u64) -> String {
        let seed = if self.config.seeds.len() > 1 { format!(", seed {seed}") } else { String::new() };
        self.name_of(place) + &seed
    }
}

impl Planner<'_> {
    /// The name of an example, with which its errors begin.
    pub(super) fn example_name(&self, place: TaskLength, index: usize) -> String {
        let task = &self.tasks[place.task];
        match task.is_sized() {
            true => format!("{} at {}, example {index}", task.name(), place.length),
            false => format!("{}, example {index}", task.name()),
        }
    }

    /// Makes the input of an example, and checks that it fits the model.
    pub(crate) fn material(&self, place: TaskLength, index: usize, seed: u64) -> Result<ExampleInput> {
        let task = &self.tasks[place.task];
        let make = || self.make_example(task.as_ref(), place.length, index, seed);
        let checked = |material| self.check_fits(task.as_ref(), &material).map(|()| material);
        make().and_then(|material| Ok(checked(material)?)).with_context(|| self.example_name(place, index))
    }
}
