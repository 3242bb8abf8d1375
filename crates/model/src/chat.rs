//! Chat templates, which render a conversation as the text that the model was trained on.
//!
//! Templates are Jinja written for Python; [`jinja`](super::jinja) runs them, so that the text equals that of Hugging Face's
//! `apply_chat_template`. [`tokenizer`](super::tokenizer) turns it into tokens.

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::jinja::{Fault, Template};
use spattn_base::error::UsageError;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Whose turn it is: `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the turn.
    pub content: String,
}

impl Message {
    /// A system prompt.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".to_owned(), content: content.into() }
    }

    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_owned(), content: content.into() }
    }
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    file: String,
    tokens: Vec<(String, String)>,
}

/// What the user can do if a template does not work.
const HINT: &str = "use --no-chat to leave the template out, or correct it in a copy of the model's folder";

/// The most characters of a fault that are shown: a template may raise a message of any length.
const SHOWN: usize = 300;

impl ChatTemplate {
    /// Parses a template. `file` is its name in errors; `bos` and `eos` are the texts of the special tokens that it may print
    /// (`bos_token`, `eos_token`).
    ///
    /// # Errors
    /// A syntax error or an unsupported construct, with its line.
    pub fn parse(source: &str, file: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, UsageError> {
        let template = Template::parse(source).map_err(|fault| told(file, "cannot be read", &fault))?;
        let mut chat = Self { template, file: file.to_owned(), tokens: Vec::new() };
        for (name, token) in [("bos_token", bos), ("eos_token", eos)] {
            chat.tokens.extend(token.map(|token| (name.to_owned(), token.to_owned())));
        }
        Ok(chat)
    }

    /// Adds the text of another special token that the template may print, such as `unk_token`.
    pub fn with_token(mut self, name: &str, token: &str) -> Self {
        self.tokens.push((name.to_owned(), token.to_owned()));
        self
    }

    /// The file of the template.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Renders a conversation, up to where the assistant's answer starts.
    ///
    /// `variables` are additional template variables, such as `enable_thinking`.
    ///
    /// # Errors
    /// If the template refuses the conversation (`raise_exception`), fails, or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, UsageError> {
        let mut context = variables.clone();
        let null = serde_json::Value::Null;
        context.insert("messages".to_owned(), serde_json::to_value(messages).unwrap_or(null.clone()));
        context.insert("add_generation_prompt".to_owned(), true.into());
        // Defined but empty, as in transformers.
        context.insert("tools".to_owned(), null.clone());
        context.insert("documents".to_owned(), null);
        for (name, token) in &self.tokens {
            context.insert(name.clone(), token.as_str().into());
        }
        self.template.render(&context).map_err(|fault| told(&self.file, "fails", &fault))
    }

    /// An error about the template, with a hint.
    pub fn fault(&self, what: &str) -> UsageError {
        UsageError::new(format!("{}: the chat template {what}", self.file)).hint(HINT)
    }
}

/// A fault in one line of limited length, without control characters, which would affect a terminal.
fn told(file: &str, how: &str, fault: &Fault) -> UsageError {
    let line = fault.line.map_or(String::new(), |line| format!("line {line}: "));
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut what: String = fault.what.chars().take(SHOWN).map(plain).collect();
    if fault.what.chars().nth(SHOWN).is_some() {
        what.push('…');
    }
    UsageError::new(format!("{file}: the chat template {how}: {line}{what}")).hint(HINT)
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
        assert!(refused.hint.unwrap().starts_with("use --no-chat"));
        let broken = render("a\n{% if %}").unwrap_err().what;
        assert!(broken.starts_with("t.jinja: the chat template cannot be read: line 2: "), "{broken}");
    }

    #[test]
    fn a_message_of_any_length_is_one_short_line_without_controls() {
        let error = render("{{ raise_exception('\\x1b]52;c;eA==\\x07 a\\nb' ~ 'x' * 5000000) }}").unwrap_err().what;
        assert!(error.chars().count() < 400 && !error.contains(char::is_control), "{error}");
        assert!(error.contains("a bxxx") && error.ends_with("xxx…"), "{error}");
    }
}
