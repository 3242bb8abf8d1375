//! Parses the text of a config file into [`Settings`]. Errors name the line and the key.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{InvalidValue, Settings};
use super::yaml;
use spattn_base::error::{UsageError, in_plain_words};

const HINT: &str = "`spattn list configs` shows configs that work";

impl Settings {
    /// Parses a config's text. `file` is its name in errors.
    ///
    /// # Errors
    /// `FILE:LINE: KEY: what` for invalid TOML, an unknown key, and a value of the wrong type or out of bounds. If the text is YAML, the
    /// error says so and shows its first keys in TOML.
    pub fn parse(text: &str, file: &str) -> Result<Self, UsageError> {
        let settings: Self = parse_toml(text, file).map_err(|error| yaml::refusal(text, file).unwrap_or(error))?;
        settings.check_values().map_err(|InvalidValue { key, item, error }| {
            let at = value_span(text, key, item).map(|span| span.start);
            UsageError { what: format!("{}: `{key}`: {}", place(text, file, at), error.what), ..error }
        })?;
        Ok(settings)
    }
}

/// Parses a TOML text. `file` is its name in errors.
///
/// # Errors
/// `FILE:LINE: KEY: what` for invalid TOML, an unknown key, or a value of the wrong type.
pub fn parse_toml<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, UsageError> {
    toml::from_str(text).map_err(|e: toml::de::Error| {
        let at = e.span().map(|span| span.start);
        let key = at.and_then(|at| key_at(text, at)).map_or(String::new(), |key| format!("`{key}`: "));
        let place = place(text, file, at);
        match unknown_key(e.message()) {
            Some(unknown) => UsageError { what: format!("{place}: {}", unknown.what), ..unknown },
            None => UsageError::new(format!("{place}: {key}{}", in_plain_words(e.message()))).hint(HINT),
        }
    })
}

/// `FILE:LINE` of the byte at `at`; only `FILE` if `at` is `None`.
fn place(text: &str, file: &str, at: Option<usize>) -> String {
    at.map_or(file.to_owned(), |at| format!("{file}:{}", line(text, at)))
}

/// The number of the line that contains a byte, counted from 1.
fn line(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|b| *b == b'\n').count()
}

/// The key whose value contains the byte at `at`; `None` if there is none, or if the text is invalid TOML.
fn key_at(text: &str, byte: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?.into_inner();
    let holds = |value: &Spanned<DeValue<'_>>| value.span().contains(&byte);
    table.iter().find(|(_, value)| holds(value)).map(|(key, _)| key.get_ref().to_string())
}

/// The byte range of a key's value; if the value is a list, of the given item.
fn value_span(text: &str, key: &str, item: usize) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?.into_inner();
    let (_, value) = table.iter().find(|(k, _)| k.get_ref().as_ref() == key)?;
    let of_item = value.get_ref().as_array().and_then(|items| items.get(item)).map(Spanned::span);
    Some(of_item.unwrap_or_else(|| value.span()))
}

/// The error for an unknown key, from the TOML parser's message "unknown field `a`, expected one of `b`, `c`".
fn unknown_key(message: &str) -> Option<UsageError> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    Some(UsageError::unknown("key", quoted.next()?, quoted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(text: &str, expected: &str) {
        let error = Settings::parse(text, "test.toml").unwrap_err();
        assert!(error.what.starts_with(expected), "{}", error.what);
        assert!(error.hint.is_some() && !error.what.contains('\n'), "{error:?}");
    }

    #[test]
    fn yaml_is_named_and_its_first_keys_are_given_in_toml() {
        let error = Settings::parse(
            "# mine\nmodel: a/b  # the model\ntasks:\n  - ruler/vt\n  - ruler/cwe\nlimit: 5\n",
            "c.yaml",
        )
        .unwrap_err();
        assert_eq!(error.what, "c.yaml:2: this is YAML, and configs are TOML");
        let toml = "model = 'a/b'\ntasks = ['ruler/vt', 'ruler/cwe']\nsamples = 5";
        assert_eq!(error.hint.unwrap(), format!("write: {}", toml.replace('\n', "; ")));
        Settings::parse(toml, "c.toml").unwrap();
    }

    #[test]
    fn every_mistake_names_the_line_and_the_key() {
        wrong("samples = 3\nlenghts = [1]", "test.toml:2: unknown key `lenghts`");
        wrong("\nsamples = -1", "test.toml:2: `samples`: invalid value: integer `-1`, expected a whole number");
        wrong("samples = 'x'", "test.toml:1: `samples`: invalid type: string \"x\", expected a whole number");
        wrong("samples = 99999999999999999999", "test.toml:1: `samples`: ");
        wrong("samples = 9223372036854775807", "test.toml:1: `samples`: 9223372036854775807 samples");
        wrong("samples = 0", "test.toml:1: `samples`: 0 samples");
        wrong("lengths = [\n 1024,\n '4k']", "test.toml:3: `lengths`: invalid type: string \"4k\"");
        wrong("lengths = [\n 1024,\n 4294967296]", "test.toml:3: `lengths`: a length of 4294967296");
        wrong("lengths = 4096", "test.toml:1: `lengths`: invalid type: integer `4096`, expected a list, in brackets");
        wrong("seed = 'x'", "test.toml:1: `seed`: invalid type: string \"x\", expected a whole number");
        wrong("seed = [1, -2]", "test.toml:1: `seed`: invalid value: integer `-2`");
        wrong("seed = {a = 1}", "test.toml:1: `seed`: invalid type: an object, expected a value or a list of values");
        wrong("sink = [4,\n 99999999]", "test.toml:2: `sink`: 99999999");
        wrong("fidelity = 'yes'", "test.toml:1: `fidelity`: invalid type: string \"yes\", expected true or false");
        wrong("positions = 'x'", "test.toml:1: `positions`: unknown value `x`");
        wrong("data = 3", "test.toml:1: `data`: invalid type: integer `3`, expected a path, in quotes");
        wrong("dtype = 'f64'", "test.toml:1: `dtype`: unknown dtype `f64`");
        wrong("sparse_from = ['decode', 'x']", "test.toml:1: `sparse_from`: unknown start of sparse attention `x`");
        wrong("dense_layers = ['none',\n'3-1']", "test.toml:2: `dense_layers`: dense layers `3-1`");
        wrong("methods = ['full',\n\n'topk:k=x']", "test.toml:3: `methods`: method `topk`: `k=x` is out of range");
        wrong("samples = 3\nsamples = 4", "test.toml:2: ");
        wrong("samples 3", "test.toml:1: ");
    }
}
