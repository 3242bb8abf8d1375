//! The fields of a row, and the Jinja templates and expressions over them.

use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value as Filled};
use serde_json::{Map, Value};

use super::filters::{self, is_text};
use spattn_base::text::is_blank;

/// The fields of a row, for templates.
pub(crate) struct Fields {
    env: Environment<'static>,
    row: Filled,
    /// The fields, and what else templates see.
    seen: Filled,
}

impl Fields {
    /// The fields of a row.
    ///
    /// # Errors
    /// None in practice: the syntax is Jinja's own.
    pub fn new(row: &Map<String, Value>) -> Result<Self> {
        let mut env = Environment::new();
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_syntax(SyntaxConfig::builder().keep_trailing_newline(true).build()?);
        env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        filters::add_to(&mut env);
        let row = Filled::from(Serde(row));
        Ok(Self { env, seen: row.clone(), row })
    }

    /// Has templates see which of a row's questions it is, as `turn`.
    pub fn ask(&mut self, turn: usize) {
        self.seen = minijinja::context! { turn, ..self.row.clone() };
    }

    /// The text that a template gives.
    ///
    /// # Errors
    /// If a field is missing or of another kind.
    pub fn text(&self, template: &str) -> Result<String> {
        self.env.render_str(template, &self.seen).map_err(|e| unfilled(template, &e))
    }

    /// The text that a template of a prompt gives, of whose fields none may be blank.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if one is.
    pub fn prompt(&self, template: &str) -> Result<String> {
        let used = self.env.template_from_str(template).map(|t| t.undeclared_variables(false)).unwrap_or_default();
        let is_blank = |name: &&String| {
            let field = self.row.get_attr(name).unwrap_or_default();
            !MAY_BE_BLANK.contains(&name.as_str()) && field.as_str().is_some_and(is_blank)
        };
        match used.iter().filter(is_blank).min() {
            Some(name) => anyhow::bail!("the field `{name}` is empty or white space"),
            None => self.text(template),
        }
    }

    /// What an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn value(&self, expression: &str) -> Result<Filled> {
        let value = self.env.compile_expression(expression).and_then(|compiled| compiled.eval(&self.seen));
        value.map_err(|e| unfilled(expression, &e))
    }

    /// The texts of a list that an expression gives.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if it is no list.
    pub fn list(&self, expression: &str) -> Result<Vec<String>> {
        let list = self.value(expression)?;
        // A text would give its letters.
        anyhow::ensure!(matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable), "no list for `{expression}`");
        let item = |value: Filled| match is_text(&value) {
            true => Ok(value.to_string()),
            false if value.is_undefined() => Err(anyhow::anyhow!("a field is missing for `{expression}`")),
            false => Err(anyhow::anyhow!("`{expression}` has an item that is {}, no text", value.kind())),
        };
        list.try_iter()?.map(item).collect()
    }
}

/// Fields that published rows leave empty: HellaSwag's rest of a context.
const MAY_BE_BLANK: [&str; 1] = ["ctx_b"];

/// What a row lacks, by the template that asks for it.
fn unfilled(template: &str, error: &Error) -> anyhow::Error {
    let what = match error.kind() {
        ErrorKind::UndefinedError => "a field is missing".to_owned(),
        ErrorKind::InvalidOperation => error.detail().map_or_else(|| error.to_string(), str::to_owned),
        _ => error.to_string(),
    };
    anyhow::anyhow!("{what} for `{}`", template.replace('\n', "\\n"))
}
