//! Checks a `tokenizer.json`: its parts are known, its replacements cannot make a text grow without limit, and its patterns end in time.
//!
//! A tokenizer's file is untrusted. Its normalizer and decoder may replace text again and again, and its patterns may backtrack without
//! end. Both are tried on made-up texts before the file is used; the time of a pattern on every possible text cannot be known.

use std::time::{Duration, Instant};

use fancy_regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// The most that all replacements together may make a text longer, as a factor.
const MOST_GROWTH: f64 = 256.0;

/// The most time that the patterns of a file may take on all made-up texts together.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest pattern, in bytes. Those of known tokenizers have up to 700.
const LONGEST_PATTERN: usize = 20_000;

/// Length of the made-up texts, in characters.
const TRIED: usize = 1000;

#[derive(Deserialize)]
struct TokenizerParts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
}

/// Checks the text of a `tokenizer.json`. Invalid JSON passes: the tokenizer's reader reports it.
///
/// # Errors
/// What is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    let Ok(parts) = serde_json::from_str::<TokenizerParts>(text) else { return Ok(()) };
    for (name, part) in [("normalizer", &parts.normalizer), ("decoder", &parts.decoder)] {
        if part.as_ref().is_some_and(replaces_nothing) {
            return Err(format!("its {name} replaces an empty text, which is between any two characters"));
        }
        let growth = part.as_ref().map_or(1.0, growth);
        if growth > MOST_GROWTH {
            return Err(format!(
                "the replacements of its {name} may make a text {growth:.0} times longer, more than {MOST_GROWTH:.0}"
            ));
        }
    }
    let mut patterns = Vec::new();
    for part in [&parts.normalizer, &parts.pre_tokenizer, &parts.decoder].into_iter().flatten() {
        collect(part, &mut patterns);
    }
    try_all(&patterns)
}

/// A part of a tokenizer: its key, the key of the list in a `Sequence` of such parts, and its known kinds.
type PartKinds = (&'static str, &'static str, &'static [&'static str]);

/// The parts, with the kinds of the tokenizers library.
const KINDS: [PartKinds; 5] = [
    ("model", "", &["BPE", "WordPiece", "WordLevel", "Unigram"]),
    (
        "normalizer",
        "normalizers",
        &[
            "BertNormalizer",
            "ByteLevel",
            "Lowercase",
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Nmt",
            "Precompiled",
            "Prepend",
            "Replace",
            "Sequence",
            "Strip",
            "StripAccents",
        ],
    ),
    (
        "pre_tokenizer",
        "pretokenizers",
        &[
            "BertPreTokenizer",
            "ByteLevel",
            "CharDelimiterSplit",
            "Digits",
            "FixedLength",
            "Metaspace",
            "Punctuation",
            "Sequence",
            "Split",
            "UnicodeScripts",
            "Whitespace",
            "WhitespaceSplit",
        ],
    ),
    (
        "post_processor",
        "processors",
        &["BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"],
    ),
    (
        "decoder",
        "decoders",
        &[
            "BPEDecoder",
            "ByteFallback",
            "ByteLevel",
            "CTC",
            "Fuse",
            "Metaspace",
            "Replace",
            "Sequence",
            "Strip",
            "WordPiece",
        ],
    ),
];

/// Finds a part of a kind that the library does not know; the library's own error does not name it. Returns what is wrong, and the known
/// kinds.
pub fn unknown_kind(text: &str) -> Option<(String, String)> {
    let tokenizer: Value = serde_json::from_str(text).ok()?;
    KINDS.iter().find_map(|(part, list, known)| {
        let kind = unknown_in(&tokenizer[*part], list, known)?;
        let kind: String = kind.chars().take(40).collect();
        Some((format!("its `{part}` has a `{kind}`, which is not known"), format!("known: {}", known.join(", "))))
    })
}

fn unknown_in<'a>(part: &'a Value, list: &str, known: &[&str]) -> Option<&'a str> {
    let own = part["type"].as_str().filter(|kind| !known.contains(kind));
    own.or_else(|| part[list].as_array()?.iter().find_map(|inner| unknown_in(inner, list, known)))
}

/// Whether a part replaces the empty text, which makes the library fail.
fn replaces_nothing(part: &Value) -> bool {
    part["type"] == "Replace" && part["pattern"]["String"] == "" || children(part).any(replaces_nothing)
}

/// The factor by which all replacements in this part, one after the other, can make a text longer.
fn growth(part: &Value) -> f64 {
    let own = match part["type"] == "Replace" {
        true => replacement_growth(&part["pattern"], part["content"].as_str().unwrap_or("")),
        false => 1.0,
    };
    let inner: f64 = children(part).map(growth).product();
    own * inner
}

fn replacement_growth(pattern: &Value, content: &str) -> f64 {
    let content = content.chars().count() as f64;
    match pattern["String"].as_str() {
        Some(replaced) => (content / replaced.chars().count() as f64).max(1.0),
        // It also matches between any two characters.
        None if pattern["Regex"].as_str().is_some_and(matches_nothing) => content + 1.0,
        None => content.max(1.0),
    }
}

fn matches_nothing(pattern: &str) -> bool {
    pattern.len() > LONGEST_PATTERN || Regex::new(pattern).is_ok_and(|regex| regex.is_match("").unwrap_or(true))
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(all) => Box::new(all.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Collects all patterns in a part.
fn collect<'a>(part: &'a Value, patterns: &mut Vec<&'a str>) {
    patterns.extend(part["Regex"].as_str());
    children(part).for_each(|child| collect(child, patterns));
}

fn try_all(patterns: &[&str]) -> Result<(), String> {
    let start = Instant::now();
    let texts = texts();
    for pattern in patterns {
        if pattern.len() > LONGEST_PATTERN {
            return Err(format!("a pattern has {} bytes, more than {LONGEST_PATTERN}", pattern.len()));
        }
        let Ok(regex) = Regex::new(pattern) else { continue };
        for text in &texts {
            for found in regex.find_iter(text) {
                let shown: String = pattern.chars().take(80).collect();
                if found.is_err() {
                    return Err(format!("the pattern `{shown}` backtracks too often"));
                }
                if start.elapsed() > PATIENCE {
                    return Err(format!("its patterns, such as `{shown}`, take too long"));
                }
            }
        }
    }
    Ok(())
}

/// Runs of one piece followed by another character, on which backtracking patterns take longest.
fn texts() -> Vec<String> {
    let pieces = ["a", "A", " ", "1", ".", "\n", "é", "中", "ab", "a ", "a1", "(", "Aa", " \n"];
    pieces.iter().map(|piece| piece.repeat(TRIED / piece.chars().count()) + "!").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replaces(times: usize, pattern: &Value, content: &str) -> Value {
        let one = json!({"type": "Replace", "pattern": pattern, "content": content});
        json!({"normalizer": {"type": "Sequence", "normalizers": vec![one; times]}})
    }

    #[test]
    fn replacements_that_grow_are_refused() {
        let grows = [
            replaces(40, &json!({"Regex": "."}), "ab"),
            replaces(40, &json!({"String": "a"}), "aa"),
            replaces(40, &json!({"Regex": "x*"}), "b"),
            replaces(1, &json!({"String": "a"}), &"b".repeat(1000)),
            json!({"decoder": replaces(9, &json!({"String": "a"}), "bb")["normalizer"]}),
        ];
        for tokenizer in grows {
            let error = check(&tokenizer.to_string()).unwrap_err();
            assert!(error.contains("times longer, more than 256"), "{error}");
        }
    }

    #[test]
    fn an_empty_text_cannot_be_replaced() {
        for part in ["normalizer", "decoder"] {
            let tokenizer = json!({part: replaces(2, &json!({"String": ""}), "b")["normalizer"]});
            let error = check(&tokenizer.to_string()).unwrap_err();
            assert_eq!(error, format!("its {part} replaces an empty text, which is between any two characters"));
        }
    }

    #[test]
    fn a_part_of_an_unknown_kind_is_named() {
        let named = |tokenizer: Value| unknown_kind(&tokenizer.to_string());
        for (tokenizer, said, known) in [
            (json!({"model": {"type": "Tiktoken"}}), "its `model` has a `Tiktoken`, which is not known", "BPE, "),
            (
                json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lower"}]}}),
                "its `normalizer` has a `Lower`, which is not known",
                "Lowercase",
            ),
            (json!({"decoder": {"type": "Bytes"}}), "its `decoder` has a `Bytes`, which is not known", "ByteLevel"),
        ] {
            let (what, hint) = named(tokenizer).unwrap();
            assert!(what == said && hint.starts_with("known: ") && hint.contains(known), "{what} {hint}");
        }
        // Neither `content` nor entries of a vocabulary are kinds.
        let fine = json!({
            "model": {"type": "BPE", "vocab": {"type": 0}}, "normalizer": {"type": "Prepend", "prepend": "x"},
            "pre_tokenizer": null, "post_processor": {"type": "TemplateProcessing", "special_tokens": {"type": "x"}},
        });
        assert_eq!(named(fine), None);
    }

    #[test]
    fn replacements_of_known_tokenizers_pass() {
        for (times, pattern, content) in [
            (1, json!({"String": " "}), "▁"),
            (6, json!({"Regex": "\\s+"}), " "),
            (20, json!({"String": "``"}), "\""),
            (2, json!({"String": "…"}), "..."),
        ] {
            assert_eq!(check(&replaces(times, &pattern, content).to_string()), Ok(()));
        }
    }

    #[test]
    fn patterns_that_go_back_without_end_are_refused() {
        for pattern in [r"(?=x)y|(a+)+(?=b)c", r"(a|aa)+(?<!a)\b!!", r"(\w+\s?)+(?<=#)x"] {
            let split = json!({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}}});
            let start = Instant::now();
            let error = check(&split.to_string()).unwrap_err();
            assert!(error.contains("too"), "{error}");
            assert!(start.elapsed() < 10 * PATIENCE);
        }
        let long = json!({"pre_tokenizer": [{"pattern": {"Regex": "a".repeat(30_000)}}]});
        assert!(check(&long.to_string()).unwrap_err().contains("more than 20000"));
    }

    #[test]
    fn patterns_of_known_tokenizers_pass() {
        // Patterns of GPT-2, and of the kind that Llama 3, Qwen 2 and GPT-4o use.
        for pattern in [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}|\s+(?!\S)|\s+",
        ] {
            let split =
                json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"pattern": {"Regex": pattern}}]}});
            assert_eq!(check(&split.to_string()), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_reader() {
        assert_eq!(check("{"), Ok(()));
        assert_eq!(check(r#"{"pre_tokenizer": {"pattern": {"Regex": "("}}}"#), Ok(()));
    }
}
