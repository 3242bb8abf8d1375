//! A base task: a definition file and the generator of its examples.

use anyhow::Result;

use super::fit::{Draft, Request};
use super::published;
use super::template::{RulerDefinition, TaskDefinition};
use crate::seed::Draw;
use crate::{Positions, TaskOptions};

/// A base task: its definition file and its generator.
pub(crate) struct Base {
    /// Its name, which is also the name of the group of its tasks.
    pub(super) name: &'static str,
    /// The definition file's text.
    pub(super) file: &'static str,
    /// Makes the generator of one task.
    pub(super) make: fn(&RulerDefinition, &TaskDefinition, &TaskOptions) -> Result<Box<dyn Generator>>,
}

/// Makes the examples of one task.
pub(crate) trait Generator: Send + Sync {
    /// Where text and words come from, for the record.
    fn source(&self) -> String;
    /// The largest example that fits the request.
    fn generate(&self, request: &Request) -> Result<Draft>;
    /// Number of examples, if a data set limits it.
    fn available(&self) -> Option<usize> {
        None
    }
    /// Digest of the user's data that examples are made of; empty if there are none.
    fn data(&self) -> String {
        String::new()
    }
    /// What the user should know about the data, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An order of `count` items: RULER's fixed shuffle if positions are as published, else a shuffle by `draw`.
pub(super) fn shuffled_order(count: usize, positions: Positions, draw: &mut Draw) -> Vec<usize> {
    if positions == Positions::Published {
        return published::order(count);
    }
    let mut order: Vec<usize> = (0..count).collect();
    draw.shuffle(&mut order);
    order
}
