//! Limits for templates: steps, memory and depth. Exceeding one is a [`Fault`].

use std::cell::Cell;

/// Longest template, in bytes.
pub const SOURCE_BYTES: usize = 1 << 20;

/// How deep expressions and tags may be nested.
pub const NESTING: usize = 100;

/// How deep an expression's tree may be. A chain of operators, filters or attributes counts too.
pub const TREE: usize = 400;

/// How deep values may be nested.
pub const VALUE_DEPTH: usize = 100;

/// How deep calls, loops and expressions may be nested while a template runs.
pub const CALLS: usize = 2500;

/// Stack of the thread that parses and runs a template: [`CALLS`] of the largest frames fit in it.
pub const STACK_BYTES: usize = 64 << 20;

const STEPS: u64 = 4_000_000;
const BYTES: u64 = 64 << 20;

/// Why a template cannot be parsed, or fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// The line of the template, from 1.
    pub line: Option<usize>,
}

impl Fault {
    /// A fault whose line is still unknown.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), line: None }
    }

    /// The same fault, on this line if it had none.
    pub fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

/// The fault for something that Python's jinja2 supports and this interpreter does not.
pub fn unsupported(what: &str) -> Fault {
    Fault::new(format!("{what} is not supported"))
}

/// The steps and bytes that a rendering may still use.
#[derive(Debug)]
pub struct Budget {
    steps: Cell<u64>,
    bytes: Cell<u64>,
}

impl Budget {
    /// The budget of a template whose variables hold `bytes` bytes of text, since a template may process a long prompt character by
    /// character.
    pub fn for_input(bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { steps: Cell::new(STEPS + 8 * bytes), bytes: Cell::new(BYTES + 64 * bytes) }
    }

    /// Counts steps.
    ///
    /// # Errors
    /// If too few are left.
    pub fn work(&self, steps: usize) -> Result<(), Fault> {
        match self.steps.get().checked_sub(steps as u64) {
            Some(left) => self.steps.set(left),
            None => return Err(Fault::new("it takes too many steps; does a loop have no end?")),
        }
        Ok(())
    }

    /// Counts bytes before they are allocated, and the work of filling them. Freed bytes are not credited, so an allocation in a loop
    /// counts each time.
    ///
    /// # Errors
    /// If too few are left.
    pub fn make(&self, bytes: usize) -> Result<(), Fault> {
        match self.bytes.get().checked_sub(bytes as u64) {
            Some(left) => self.bytes.set(left),
            None => {
                return Err(Fault::new("it makes too much text or too many values; does a loop or macro have no end?"));
            }
        }
        self.work(bytes / 64)
    }
}
