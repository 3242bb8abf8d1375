//! Recognises a config in YAML, which other programs use, and shows its first keys in TOML. This is no YAML parser: everything but plain
//! values and lists of values is left out.

use super::flag::{Flag, Holds};
use super::foreign_flags::{self, Here};
use super::settings::SETTINGS;
use spattn_base::error::UsageError;

/// The most keys that a hint shows.
const MOST_KEYS: usize = 4;

/// The error for a text in YAML, with its first keys in TOML; `None` if the text does not look like YAML.
pub(super) fn refusal(text: &str, file: &str) -> Option<UsageError> {
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#') || line.trim() == "---";
    let (at, first) = text.lines().enumerate().find(|(_, line)| !is_comment(line))?;
    pair(first)?;
    let toml: Vec<String> = in_toml(text).into_iter().take(MOST_KEYS).collect();
    let hint = match toml.is_empty() {
        true => "`spattn list configs` shows configs that work".to_owned(),
        false => format!("write: {}", toml.join("; ")),
    };
    Some(UsageError::new(format!("{file}:{}: this is YAML, and configs are TOML", at + 1)).hint(hint))
}

/// The lines of TOML for keys that are ours, or that another program uses for one of ours.
fn in_toml(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((key, value)) = pair(line) else { continue };
        let Some(row) = row(key) else { continue };
        let values = match value {
            "" => lines[at + 1..].iter().map_while(|line| line.trim_start().strip_prefix("- ")).map(scalar).collect(),
            _ => values(value),
        };
        let values: Vec<String> =
            values.into_iter().filter(|value| !["", "null", "~"].contains(&value.as_str())).collect();
        let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
        match (&values[..], row.holds) {
            ([], _) => {}
            ([one], Holds::One | Holds::OneOrMany) => all.push(format!("{} = {one}", row.id)),
            (several, _) => all.push(format!("{} = [{}]", row.id, several.join(", "))),
        }
    }
    all
}

/// The key and value of a line `key: value`; `None` for indented lines, which belong to another key.
fn pair(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    (is_key && (value.is_empty() || value.starts_with(' '))).then(|| (key, value.trim()))
}

/// The row of a key: by its name, by the name of its flag, or by another program's name for the flag.
fn row(key: &str) -> Option<&'static Flag> {
    let name = key.replace('_', "-");
    let foreign = foreign_flags::find(&format!("--{name}")).map(|flag| flag.here);
    let ours = |flag: &&Flag| match foreign {
        Some(Here::Same(ours)) => flag.name == Some(ours),
        _ => flag.id == key || flag.name == Some(name.as_str()),
    };
    SETTINGS.iter().find(ours)
}

/// The items of a list in brackets, or a single value.
fn values(text: &str) -> Vec<String> {
    let text = without_comment(text);
    match text.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
        Some(list) => list.split(',').map(scalar).collect(),
        None => vec![scalar(text)],
    }
}

/// A value without quotes and without a trailing comment.
fn scalar(text: &str) -> String {
    let text = without_comment(text);
    let inner = ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
    inner.unwrap_or(text).to_owned()
}

fn without_comment(text: &str) -> &str {
    text.split(" #").next().unwrap_or_default().trim()
}

/// A value in TOML syntax.
fn quoted(value: &str) -> String {
    let is_bare = value.parse::<f64>().is_ok() || ["true", "false"].contains(&value);
    match is_bare {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_programs_are_ours_and_the_rest_is_left_out() {
        let kvpress = "output_dir: \"./results\"\n\nmodel: \"meta-llama/x\"\npress_name: \"knorm\"\nfraction: 1.0\ndevice: null  # any\nseed: 42\n";
        assert_eq!(in_toml(kvpress), ["model = 'meta-llama/x'", "seed = 42"]);
        assert_eq!(
            in_toml("tasks: [a, 'b']\nlengths:\n- 4096\n- 8192\nsink: [4, 8]\n"),
            ["tasks = ['a', 'b']", "lengths = [4096, 8192]", "sink = [4, 8]"]
        );
        assert!(refusal(kvpress, "c.yaml").unwrap().hint.unwrap().starts_with("write: model = "));
    }

    #[test]
    fn toml_and_prose_are_no_yaml() {
        for text in ["model = 'a'\n", "model 'a'", "", "# only\n", "see http://x\n", "a b: c\n"] {
            assert!(refusal(text, "c.toml").is_none(), "{text}");
        }
        assert!(refusal("---\nzzz: 3\n", "c").unwrap().hint.unwrap().contains("list configs"));
    }
}
