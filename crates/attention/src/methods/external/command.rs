//! The command line of a scorer: its words, and how long it may take to answer.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A command as the user gave it. No shell reads it: blanks separate words, and text in single quotes is one word or part of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CommandLine {
    text: String,
    words: Vec<String>,
    /// The longest that an answer may take.
    pub limit: Duration,
}

impl CommandLine {
    /// Splits a command into its words.
    ///
    /// # Errors
    /// Why it is not a command.
    pub fn parse(text: &str, limit: Duration) -> Result<Self, &'static str> {
        let words = words(text)?;
        if words.is_empty() {
            return Err("it is empty");
        }
        Ok(Self { text: text.to_owned(), words, limit })
    }

    /// The program. A bare name that is a file in the working directory is that file; the system looks up all others.
    pub fn program(&self) -> String {
        let name = &self.words[0];
        match !name.contains('/') && Path::new(name).is_file() {
            true => format!("./{name}"),
            false => name.clone(),
        }
    }

    /// Its arguments.
    pub fn arguments(&self) -> &[String] {
        &self.words[1..]
    }

    /// The command as given.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.text)
    }
}

fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    for c in text.chars() {
        match c {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\0' => return Err("it has a NUL character"),
            c if c.is_whitespace() && !is_quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if is_quoted { Err("a single quote has no second one") } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_part_words_except_between_single_quotes() {
        let words = |text: &str| CommandLine::parse(text, Duration::ZERO).map(|command| command.words);
        assert_eq!(words("python3  my.py --k 3").unwrap(), ["python3", "my.py", "--k", "3"]);
        assert_eq!(words("'my program' --text='a b' ''").unwrap(), ["my program", "--text=a b", ""]);
        assert_eq!(words("echo $HOME ; ls | cat").unwrap(), ["echo", "$HOME", ";", "ls", "|", "cat"], "no shell");
        assert_eq!(words("'my program"), Err("a single quote has no second one"));
        assert_eq!(words("  "), Err("it is empty"));
        assert_eq!(words("a\0b"), Err("it has a NUL character"));
    }
}
