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
    /// The variables of templates: the fields, and `turn` after [`ask`](Self::ask).
    seen: Filled,
}

impl Fields {
    /// The fields of a row.
    ///
    /// # Errors
    /// Does not fail in practice: only a wrong setting of Jinja's syntax would.
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

    /// Sets the template variable `turn`: the number of the row's question, from 0.
    pub fn ask(&mut self, turn: usize) {
        self.seen = minijinja::context! { turn, ..self.row.clone() };
    }

    /// Renders a template.
    ///
    /// # Errors
    /// If a field is missing, or is not a text, number or boolean.
    pub fn text(&self, template: &str) -> Result<String> {
        self.env.render_str(template, &self.seen).map_err(|e| unfilled(template, &e))
    }

    /// Renders a template of a prompt, which must not use blank fields.
    ///
    /// # Errors
    /// Those of [`text`](Self::text); also if a field is blank.
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

    /// Evaluates a Jinja expression.
    ///
    /// # Errors
    /// Those of [`text`](Self::text).
    pub fn value(&self, expression: &str) -> Result<Filled> {
        let value = self.env.compile_expression(expression).and_then(|compiled| compiled.eval(&self.seen));
        value.map_err(|e| unfilled(expression, &e))
    }

    /// Evaluates a Jinja expression that gives a list of texts.
    ///
    /// # Errors
    /// Those of [`text`](Self::text); also if the value is not a list.
    pub fn list(&self, expression: &str) -> Result<Vec<String>> {
        let list = self.value(expression)?;
        // A text would be split into characters.
        anyhow::ensure!(matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable), "no list for `{expression}`");
        let item = |value: Filled| match is_text(&value) {
            true => Ok(value.to_string()),
            false if value.is_undefined() => Err(anyhow::anyhow!("a field is missing for `{expression}`")),
            false => Err(anyhow::anyhow!("`{expression}` has an item that is {}, not text", value.kind())),
        };
        list.try_iter()?.map(item).collect()
    }
}

/// Fields that may be blank because published rows leave them empty: `ctx_b` of HellaSwag.
const MAY_BE_BLANK: [&str; 1] = ["ctx_b"];

/// The error for a row that lacks what a template needs.
fn unfilled(template: &str, error: &Error) -> anyhow::Error {
    let what = match error.kind() {
        ErrorKind::UndefinedError => "a field is missing".to_owned(),
        ErrorKind::InvalidOperation => error.detail().map_or_else(|| error.to_string(), str::to_owned),
        _ => error.to_string(),
    };
    anyhow::anyhow!("{what} for `{}`", template.replace('\n', "\\n"))
}
