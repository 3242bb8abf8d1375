//! Jinja for chat templates: prints what Python's jinja2 prints with the settings of transformers, or returns an error that names what is
//! not supported.
//!
//! Chat templates are programs written for Python, from untrusted sources. A general engine such as minijinja (which fills in the templates
//! of our own tasks) has fixed rules of its own for types, attributes and operators, and allocates as much as a template demands. Here
//! every value follows Python's rules, steps and bytes are counted before they are spent (`limits`), and a template runs on a thread whose
//! stack can hold the deepest nesting that is allowed.
//!
//! `tests/golden/jinja.json` holds the output of jinja2 for several hundred constructs.

mod ast;
mod date;
mod filter_names;
mod filters;
mod format;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod hostile_tests;
mod json;
mod lexer;
mod limits;
mod lookup;
mod machine;
mod methods;
mod numbers;
mod parser;
mod passed;
mod predicates;
mod strings;
mod value;

use std::sync::Arc;
use std::thread;

use serde_json::Map;

use ast::Statement;
pub use limits::Fault;
use limits::{Budget, STACK_BYTES};
use value::Value;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: Vec<Statement>,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What is wrong or not supported, with its line.
    pub fn parse(source: &str) -> Result<Self, Fault> {
        let body = on_own_stack(|| parser::parse(source))?;
        Ok(Self { body })
    }

    /// Renders the template with these variables.
    ///
    /// # Errors
    /// What fails, is not supported or exceeds a limit, with its line.
    pub fn render(&self, variables: &Map<String, serde_json::Value>) -> Result<String, Fault> {
        let budget = |bytes| Budget::for_input(bytes);
        on_own_stack(|| {
            let budget = budget(variables.values().map(text_bytes).sum());
            let given =
                variables.iter().map(|(name, value)| Ok((Arc::from(name.as_str()), Value::from_json(value, &budget)?)));
            machine::run(&self.body, given.collect::<Result<_, Fault>>()?, &budget)
        })
    }
}

/// Bytes of all strings in a value.
fn text_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(all) => all.iter().map(text_bytes).sum(),
        serde_json::Value::Object(map) => map.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// Runs `work` on a thread with a stack of known size.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
        let started = worker.spawn_scoped(scope, work);
        let started = started.map_err(|e| Fault::new(format!("no thread can be started to run it: {e}")))?;
        started.join().unwrap_or_else(|_| {
            Err(Fault::new("the interpreter of templates failed, which is a defect of this program"))
        })
    })
}
