//! Chat templates: a conversation becomes the text the model was trained to see.
//!
//! Templates are Jinja written for Python; what they use beyond Jinja (string methods,
//! `raise_exception`, `strftime_now`, Python's `tojson`, the `generation` tag) is supplied here so
//! that the text equals that of Hugging Face's `apply_chat_template`. Tokens are the business of
//! [`tokenizer`](super::tokenizer).

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use serde_json::ser::Formatter;

use crate::error::UsageError;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What the assistant is told before all turns.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".to_owned(), content: content.into() }
    }

    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_owned(), content: content.into() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    file: String,
    bos: Option<String>,
    eos: Option<String>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template; `file` names it in errors, `bos` and `eos` are the texts of the special
    /// tokens it may print (`bos_token`, `eos_token`).
    ///
    /// # Errors
    /// A syntax error, with its line.
    pub fn parse(source: &str, file: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, UsageError> {
        let source = without_generation_tags(source);
        let environment = environment()
            .and_then(|mut env| env.add_template_owned(NAME, source).map(|()| env))
            .map_err(|e| UsageError::new(format!("{file}: the chat template cannot be read: {}", one_line(&e))))?;
        Ok(Self { environment, file: file.to_owned(), bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// The text of a conversation, up to the place where the assistant's answer starts.
    ///
    /// `variables` are further names the template may look at, such as `enable_thinking`.
    ///
    /// # Errors
    /// If the template refuses the conversation (`raise_exception`) or fails.
    pub fn render(
        &self,
        messages: &[Message],
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, UsageError> {
        let mut context = variables.clone();
        let null = serde_json::Value::Null;
        context.insert("messages".to_owned(), serde_json::to_value(messages).unwrap_or(null.clone()));
        context.insert("add_generation_prompt".to_owned(), true.into());
        // Present but empty, as the reference passes them.
        context.insert("tools".to_owned(), null.clone());
        context.insert("documents".to_owned(), null);
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if let Some(token) = token {
                context.insert(name.to_owned(), token.as_str().into());
            }
        }
        let failed = |e: Error| UsageError::new(format!("{}: the chat template fails: {}", self.file, one_line(&e)));
        self.environment.get_template(NAME).and_then(|t| t.render(Serde(&context))).map_err(failed)
    }
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| strftime(format));
    env.add_filter("tojson", to_json);
    Ok(env)
}

/// The message and, except for what the template itself raises, the line.
fn one_line(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned).replace('\n', " ");
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The `generation` tag only marks text for training; a condition that always holds prints the same
/// and keeps the tag's whitespace control.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|e| start + e + 2) else { break };
        let tag = &rest[start..end];
        out.push_str(&rest[..start]);
        match tag.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['}', '%', '-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// The date a template sees as today's: a fixed one, because a prompt that changes with the day
/// gives runs that cannot be repeated. It is the one the Llama 3 templates fall back to.
fn strftime(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = match chars.next() {
            Some('-') => chars.next(),
            other => other,
        };
        out.push_str(match directive {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('d') => "26",
            Some('b') => "Jul",
            Some('B') => "July",
            Some('a') => "Fri",
            Some('A') => "Friday",
            Some('j') => "208",
            Some('H' | 'M' | 'S') => "00",
            Some('%') => "%",
            other => {
                let what = format!("strftime_now: `%{}` is not supported", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        });
    }
    Ok(out)
}

/// Python's `json.dumps(x, ensure_ascii=False, ...)`: nothing is escaped for HTML, and `, ` and `: ` separate.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let failed = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}"));
    let mut json = serde_json::to_value(&value).map_err(|e| failed(&e))?;
    if sorted == Some(true) {
        json.sort_all_objects();
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut out = Vec::new();
    let style = PythonStyle { item, key, indent, depth: 0, filled: false };
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(|e| failed(&e))?;
    let text = String::from_utf8(out).map_err(|e| failed(&e))?;
    Ok(if ascii == Some(true) { escape_non_ascii(&text) } else { text })
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        }
    }
    out
}

struct PythonStyle {
    item: String,
    key: String,
    indent: Option<usize>,
    depth: usize,
    /// Whether the container that is being closed has any item.
    filled: bool,
}

impl PythonStyle {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.break_line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.break_line(writer)
    }

    fn break_line<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(width) => write!(writer, "\n{}", " ".repeat(width * self.depth)),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonStyle {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str) -> Result<String, UsageError> {
        ChatTemplate::parse(template, "t.jinja", Some("<s>"), None)?.render(&[Message::user("hi")], &Map::new())
    }

    #[test]
    fn json_is_written_as_python_does() {
        let value = r#"{"b": [1, 2.5, []], "a": {"x": none, "é": "<&'"}, "e": {}}"#;
        assert_eq!(
            render(&format!("{{{{ {value} | tojson }}}}")).unwrap(),
            r#"{"b": [1, 2.5, []], "a": {"x": null, "é": "<&'"}, "e": {}}"#
        );
        assert_eq!(
            render(&format!("{{{{ {value} | tojson(indent=2, ensure_ascii=true, sort_keys=true) }}}}")).unwrap(),
            "{\n  \"a\": {\n    \"x\": null,\n    \"\\u00e9\": \"<&'\"\n  },\n  \"b\": [\n    1,\n    2.5,\n    []\n  ],\n  \"e\": {}\n}"
        );
        let compact = format!("{{{{ {value} | tojson(separators=[',', ':']) }}}}");
        assert_eq!(render(&compact).unwrap(), r#"{"b":[1,2.5,[]],"a":{"x":null,"é":"<&'"},"e":{}}"#);
    }

    #[test]
    fn the_date_does_not_move() {
        assert_eq!(render("{{ strftime_now('%d %b %Y, %A 100%%') }}").unwrap(), "26 Jul 2024, Friday 100%");
        assert!(render("{{ strftime_now('%Q') }}").unwrap_err().what.ends_with("`%Q` is not supported"));
    }

    #[test]
    fn unset_tokens_print_nothing() {
        assert_eq!(render("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}").unwrap(), "<s>||True");
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let refused = render("\n{{ raise_exception('no system turn, please') }}").unwrap_err();
        assert_eq!(refused.what, "t.jinja: the chat template fails: line 2: no system turn, please");
        let broken = render("a\n{% if %}").unwrap_err().what;
        assert!(broken.starts_with("t.jinja: the chat template cannot be read: line 2: "), "{broken}");
    }
}
