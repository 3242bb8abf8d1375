//! Errors that a user can cause and act on, and the "did you mean" search they share.
//!
//! Every crate may return a [`UsageError`]; the command line turns it into exit status 2. Failures of a run (a truncated file, a full disk)
//! are ordinary `anyhow` errors, or a [`RunFailure`] if there is a hint: exit status 1.

use std::fmt;

use crate::text;

/// A mistake in the arguments, a config or a spec: what is wrong, and what to do about it.
///
/// Displayed as one line; the command line prints the hint on its own line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct UsageError {
    /// What is wrong and where, in one line.
    pub what: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl UsageError {
    /// An error without a hint.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Makes the error "unknown {kind} `name`", with the nearest of `known` or, if none is near, all of them as the hint.
    pub fn unknown<S: AsRef<str>>(kind: &str, name: &str, known: impl IntoIterator<Item = S>) -> Self {
        let known: Vec<String> = known.into_iter().map(|k| k.as_ref().to_owned()).collect();
        let hint = match nearest(name, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => format!("there is no {kind} to choose from"),
            None if known.len() > MOST_LISTED => format!("`spattn list {kind}s` shows all {}", known.len()),
            None => format!("known: {}", Joined(&known)),
        };
        Self::new(format!("unknown {kind} `{name}`")).hint(hint)
    }
}

/// A failure of a run that the user can do something about: exit status 1, and a hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct RunFailure {
    /// What failed and why, in one line.
    pub what: String,
    /// What the user can do about it.
    pub hint: String,
}

/// Returns an error and its causes in one line of bounded length, as it is printed and stored.
pub fn in_one_line(error: &anyhow::Error) -> String {
    text::cut(&format!("{error:#}"), text::LONGEST_LINE).replace('\n', " ")
}

/// Largest number of names that a hint lists.
const MOST_LISTED: usize = 40;

/// Returns the entry of `known` that `name` was most likely meant to be, if any is close enough.
///
/// A name without its group (`cwe` for `ruler/cwe`), or another part of a name (`f1` for `qa_f1`), matches the shortest name that contains
/// it; case is ignored. A name that differs only in punctuation (`figure15` for `figure-15`) comes before one with a wrong letter.
pub fn nearest<'a, S: AsRef<str>>(name: &str, known: &'a [S]) -> Option<&'a str> {
    const A_SLIP: usize = 1;
    const MOST_SLIPS: usize = 3;
    // No known name is this long: nothing is near, and computing distances would take long.
    const LONGEST: usize = 200;
    if name.len() > LONGEST {
        return None;
    }
    let name = &name.to_lowercase();
    let all = || known.iter().map(|k| (k.as_ref(), k.as_ref().to_lowercase()));
    let same = || all().find(|(_, k)| k == name);
    let after_group = || all().find(|(_, k)| k.rsplit_once('/').is_some_and(|(_, last)| last == name));
    let letters = letters_of(name);
    let same_letters = || all().find(|(_, k)| !letters.is_empty() && letters_of(k) == letters);
    let containing = || all().filter(|(_, k)| is_part(name, k)).min_by_key(|(_, k)| k.len());
    // At most a third of the letters may be wrong, and no more than a few; otherwise it is a different name.
    let similar = |most: usize| {
        all()
            .map(|(shown, k)| (strsim::damerau_levenshtein(name, &k), k.chars().count(), shown))
            .filter(|(distance, letters, _)| *distance <= most.min(letters / 3))
            .min_by_key(|(distance, ..)| *distance)
            .map(|(.., shown)| shown)
    };
    let whole = same().or_else(after_group).or_else(same_letters).map(|(shown, _)| shown);
    let part = || containing().map(|(shown, _)| shown);
    whole.or_else(|| similar(A_SLIP)).or_else(part).or_else(|| similar(MOST_SLIPS))
}

/// Returns the letters and digits of a name.
fn letters_of(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Whether `name` occurs in `whole` as a part bounded by the ends, `/` or `_`.
fn is_part(name: &str, whole: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| matches!(c, '/' | '_'));
    !name.is_empty()
        && whole
            .match_indices(name)
            .any(|(at, found)| ends(whole[..at].chars().next_back()) && ends(whole[at + found.len()..].chars().next()))
}

/// Returns a parser's message (of TOML or JSON) in one line, with plain words instead of Rust's for what was expected.
pub fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &str); 13] = [
        ("expected a sequence", "expected a list, in brackets"),
        ("expected a boolean", "expected true or false"),
        ("expected path string", "expected a path, in quotes"),
        ("expected a string", "expected a text, in quotes"),
        ("expected a map", "expected an object"),
        ("expected value", "expected a value"),
        ("invalid type: sequence", "invalid type: a list"),
        ("invalid type: map", "invalid type: an object"),
        ("unknown variant", "unknown value"),
        ("a tuple of size", "a list of length"),
        ("tuple of", "list of"),
        ("` as u128", "`"),
        ("` as i128", "`"),
    ];
    const OF_NO_KIND: &str = "data did not match any variant of untagged enum ";
    if let Some((before, rest)) = message.split_once(OF_NO_KIND) {
        let after = rest.split_once(' ').map_or(String::new(), |(_, after)| format!(" {after}"));
        return format!("{before}it has none of the known forms{after}");
    }
    let plain = WORDS.iter().fold(message.replace('\n', " "), |text, (rust, plain)| text.replace(rust, plain));
    let Some((before, expected)) = plain.split_once("expected ") else { return plain };
    let end = expected.find([' ', ',']).unwrap_or(expected.len());
    let (word, rest) = expected.split_at(end);
    let meant = match word {
        "usize" | "u64" | "u32" | "u16" | "u8" | "i64" | "i32" => "a whole number",
        "f64" | "f32" => "a number",
        // The name of the type follows.
        "struct" => {
            let rest = rest.trim_start().split_once(' ').map_or(String::new(), |(_, rest)| format!(" {rest}"));
            return format!("{before}expected an object{rest}");
        }
        _ => return plain,
    };
    format!("{before}expected {meant}{rest}")
}

struct Joined<'a>(&'a [String]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_suggest_the_nearest() {
        let e = UsageError::unknown("method", "topkk", ["full", "topk", "quest"]);
        assert_eq!(e.to_string(), "unknown method `topkk`");
        assert_eq!(e.hint.as_deref(), Some("did you mean `topk`?"));
    }

    #[test]
    fn parts_of_names_and_other_capitals_suggest_the_whole_name() {
        let tasks = ["ruler", "ruler/niah_single_2", "ruler/vt", "ruler_reworded/vt", "kv_retrieval", "mcq/mmlu"];
        assert_eq!(nearest("vt", &tasks), Some("ruler/vt"));
        assert_eq!(nearest("mmlu", &tasks), Some("mcq/mmlu"));
        assert_eq!(nearest("single_2", &tasks), Some("ruler/niah_single_2"));
        assert_eq!(nearest("RULER", &tasks), Some("ruler"));
        assert_eq!(nearest("ruler/VTT", &tasks), Some("ruler/vt"));
        assert_eq!(nearest("f1", &["qa_f1_zh", "qa_f1"]), Some("qa_f1"));
        assert_eq!(nearest("pages", &["min_pages", "page"]), Some("page"), "a letter too many is nearer");
        assert_eq!(nearest("figure15", &["figure-5", "figure-15"]), Some("figure-15"), "punctuation is no letter");
        assert_eq!(nearest("--", &["-", "_a"]), None, "punctuation alone is near nothing");
        assert_eq!(nearest("zzz", &tasks), None);
        for far in ["ruler/passage", "kv_cache", "models", "mcq/squad"] {
            assert_eq!(nearest(far, &tasks), None, "{far} is near nothing");
        }
        assert_eq!(nearest(&"r".repeat(1 << 20), &tasks), None);
        assert_eq!(nearest("", &tasks), None);
    }

    #[test]
    fn many_names_are_counted_instead_of_listed() {
        let many: Vec<String> = (100..150).map(|i| format!("task_{i}")).collect();
        let hint = UsageError::unknown("task", "zzz", &many).hint.unwrap();
        assert_eq!(hint, "`spattn list tasks` shows all 50");
    }

    #[test]
    fn types_of_rust_are_said_in_plain_words() {
        for (rust, plain) in [
            ("invalid value: integer `-1`, expected usize", "invalid value: integer `-1`, expected a whole number"),
            (
                "invalid type: null, expected f64 at line 1 column 9",
                "invalid type: null, expected a number at line 1 column 9",
            ),
            (
                "invalid type: string \"x\", expected a sequence",
                "invalid type: string \"x\", expected a list, in brackets",
            ),
            ("invalid type: integer `3`, expected struct Record", "invalid type: integer `3`, expected an object"),
            ("unknown variant `x`,\nexpected `a` or `b`", "unknown value `x`, expected `a` or `b`"),
            (
                "data did not match any variant of untagged enum Model at line 3",
                "it has none of the known forms at line 3",
            ),
            ("missing field `task`", "missing field `task`"),
        ] {
            assert_eq!(in_plain_words(rust), plain);
        }
    }

    #[test]
    fn far_names_list_what_there_is() {
        let e = UsageError::unknown("method", "zzz", ["full", "topk"]);
        assert_eq!(e.hint.as_deref(), Some("known: full, topk"));
    }
}
