//! Compares `config.json`, the tokenizer and the chat template with a reference's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::check::{Check, first_few};
use super::reference::{HfChat, HfLine};

/// Keys of `config.json` that do not affect the model.
const IGNORED: &[&str] =
    &["_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"];
/// The number of characters of a text that a fault shows.
const SHOWN: usize = 40;

/// Checks that `config.json` has the reference's values.
pub(super) fn judge_config(ours: &Map<String, Value>, theirs: &Map<String, Value>) -> Check {
    const NAME: &str = "config.json";
    let (ours, theirs) = (flat(ours), flat(theirs));
    let shared = ours.iter().filter_map(|(key, value)| Some((key, value, theirs.get(key)?)));
    let is_other = |(_, a, b): &(&String, &Value, &Value)| !is_same(a, b);
    let faults: Vec<String> =
        shared.filter(is_other).map(|(key, a, b)| format!("`{key}` is {a}, the reference's {b}")).collect();
    let lacking = |a: &BTreeMap<String, Value>, b: &BTreeMap<String, Value>| -> Vec<String> {
        a.iter()
            .filter(|(key, value)| !value.is_null() && !b.contains_key(*key))
            .map(|(k, _)| format!("`{k}`"))
            .collect()
    };
    if !faults.is_empty() {
        let advice =
            "take config.json and the reference from one place; each of these keys may change what is computed";
        return Check::fail(NAME, first_few(&faults), advice).measured(faults.len() as f64, 0.0);
    }
    let mut found = "no key differs".to_owned();
    for (whose, keys) in [("only here", lacking(&ours, &theirs)), ("only in the reference", lacking(&theirs, &ours))] {
        if !keys.is_empty() {
            found += &format!("; {whose}: {}", first_few(&keys));
        }
    }
    Check::pass(NAME, found).measured(0.0, 0.0)
}

/// Whether two values are the same. Numbers compare by value, and fractions as f32, which GGUF files store. A list of one value is the
/// same as that value.
fn is_same(a: &Value, b: &Value) -> bool {
    let is_whole = a.is_u64() && b.is_u64();
    match (a.as_f64(), b.as_f64(), a, b) {
        (Some(a), Some(b), ..) => a == b || !is_whole && a as f32 == b as f32,
        (_, _, Value::Array(list), one) | (_, _, one, Value::Array(list)) if list.len() == 1 && !one.is_array() => {
            is_same(&list[0], one)
        }
        _ => a == b,
    }
}

/// Flattens nested objects: their keys are joined with dots.
fn flat(object: &Map<String, Value>) -> BTreeMap<String, Value> {
    let of_key = |(key, value): (&String, &Value)| match value {
        Value::Object(inner) => flat(inner).into_iter().map(|(k, v)| (format!("{key}.{k}"), v)).collect(),
        value => vec![(key.clone(), value.clone())],
    };
    object.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str())).flat_map(of_key).collect()
}

/// A text's tokens by the verified model's tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OurLine {
    /// The tokens, without any token in front.
    pub ids: Vec<u32>,
    /// The text that the tokens are decoded to.
    pub decoded: String,
}

/// Checks that texts have the reference's tokens, and that these are decoded to the reference's texts.
pub(super) fn judge_lines(ours: &[OurLine], theirs: &[HfLine]) -> Check {
    const NAME: &str = "tokenizer";
    let fault = |(ours, theirs): (&OurLine, &HfLine)| {
        let text = shown(&theirs.text);
        if let Some(at) = first_other(&ours.ids, &theirs.ids) {
            let of = |ids: &[u32]| ids.get(at).map_or("none".to_owned(), u32::to_string);
            return Some(format!("{text}: token {at} is {}, the reference's {}", of(&ours.ids), of(&theirs.ids)));
        }
        (ours.decoded != theirs.decoded).then(|| {
            format!("{text} is decoded as {}, by the reference as {}", shown(&ours.decoded), shown(&theirs.decoded))
        })
    };
    let faults: Vec<String> = ours.iter().zip(theirs).filter_map(fault).collect();
    let count = theirs.len();
    match faults.first() {
        None => Check::pass(NAME, format!("{count} texts with the same tokens")).measured(0.0, 0.0),
        Some(first) => Check::fail(
            NAME,
            format!("{} of {count} texts differ: {first}", faults.len()),
            "tokenizer.json is of another model, was cut, or has a part that is read in another way",
        )
        .measured(faults.len() as f64, 0.0),
    }
}

/// Returns the first place where two lists differ.
fn first_other(a: &[u32], b: &[u32]) -> Option<usize> {
    let differs = a.iter().zip(b).position(|(a, b)| a != b);
    differs.or((a.len() != b.len()).then(|| a.len().min(b.len())))
}

/// Special tokens of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialTokens<'a> {
    /// The tokens that are put in front of a text.
    pub front: &'a [u32],
    /// BOS, if there is one.
    pub bos: Option<u32>,
    /// Ids that end a generation.
    pub eos: &'a [u32],
}

/// Checks that special tokens are the reference's. More ids that end a generation are no fault.
pub(super) fn judge_special(ours: SpecialTokens<'_>, theirs: SpecialTokens<'_>) -> Check {
    const NAME: &str = "special tokens";
    let mut faults = Vec::new();
    if ours.front != theirs.front {
        faults.push(format!("{:?} are put in front of a text, by the reference {:?}", ours.front, theirs.front));
    }
    if let (Some(a), Some(b)) = (ours.bos, theirs.bos)
        && a != b
    {
        faults.push(format!("BOS is {a}, the reference's {b}"));
    }
    let missing: Vec<u32> = theirs.eos.iter().filter(|id| !ours.eos.contains(id)).copied().collect();
    if !missing.is_empty() {
        faults.push(format!("{missing:?} end a generation for the reference only"));
    }
    match faults.is_empty() {
        true => Check::pass(NAME, format!("front {:?}, ends {:?}", ours.front, ours.eos)),
        false => Check::fail(
            NAME,
            first_few(&faults),
            "compare tokenizer_config.json, special_tokens_map.json and generation_config.json",
        ),
    }
}

/// Checks that the chat template renders the reference's prompt. `ours` holds text and tokens.
pub(super) fn judge_chat(ours: Option<(&str, &[u32])>, theirs: Option<&HfChat>) -> Check {
    const NAME: &str = "chat template";
    const ADVICE: &str = "compare `chat_template` in tokenizer_config.json and chat_template.jinja";
    let ((text, ids), theirs) = match (ours, theirs) {
        (None, None) => return Check::skipped(NAME, "neither side has one"),
        (Some(_), None) => return Check::fail(NAME, "the reference has none", ADVICE),
        (None, Some(_)) => return Check::fail(NAME, "only the reference has one", ADVICE),
        (Some(ours), Some(theirs)) => (ours, theirs),
    };
    if text != theirs.text {
        let at = text.chars().zip(theirs.text.chars()).take_while(|(a, b)| a == b).count();
        let rest = |text: &str| shown(&text.chars().skip(at).collect::<String>());
        let found = format!("character {at}: {}, by the reference {}", rest(text), rest(&theirs.text));
        return Check::fail(NAME, found, ADVICE);
    }
    match first_other(ids, &theirs.ids) {
        None => Check::pass(NAME, format!("one turn, {} tokens equal", ids.len())),
        Some(_) if ids.ends_with(&theirs.ids) => Check::note(
            NAME,
            format!(
                "same text; {:?} are put in front of it, by transformers only without a template",
                &ids[..ids.len() - theirs.ids.len()]
            ),
        ),
        Some(at) => {
            Check::fail(NAME, format!("same text, but token {at} differs"), "special tokens are split differently")
        }
    }
}

/// Returns the beginning of a text, quoted.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn keys_that_differ_are_named() {
        let theirs = object(json!({"vocab_size": 256, "rope_theta": 1e4, "rope": {"factor": 8.0}, "torch_dtype": "f"}));
        let same = object(json!({"vocab_size": 256.0, "rope_theta": 10000, "rope": {"factor": 8}, "torch_dtype": "g"}));
        assert_eq!(judge_config(&same, &theirs).found, "no key differs");
        let gguf = object(json!({"vocab_size": [256], "rope_theta": 1e4, "rope": {"factor": 7.999_999_999}}));
        assert_eq!(judge_config(&gguf, &theirs).found, "no key differs");
        let other = object(json!({"vocab_size": 200, "rope": {"factor": 4.0}, "bias": true}));
        let check = judge_config(&other, &theirs);
        assert!(check.is_failure());
        assert_eq!(check.found, "`rope.factor` is 4.0, the reference's 8.0, `vocab_size` is 200, the reference's 256");
        let fewer = object(json!({"vocab_size": 256, "bias": true, "x": null}));
        assert_eq!(
            judge_config(&fewer, &theirs).found,
            "no key differs; only here: `bias`; only in the reference: `rope.factor`, `rope_theta`"
        );
    }

    fn line(ids: &[u32], decoded: &str) -> OurLine {
        OurLine { ids: ids.to_vec(), decoded: decoded.to_owned() }
    }

    #[test]
    fn a_text_with_other_tokens_is_named() {
        let theirs = ["one", "two"].map(|text| HfLine { text: text.into(), ids: vec![1, 2], decoded: text.into() });
        assert!(!judge_lines(&[line(&[1, 2], "one"), line(&[1, 2], "two")], &theirs).is_failure());
        let cut = judge_lines(&[line(&[1, 2], "one"), line(&[1], "t")], &theirs);
        assert_eq!(cut.found, "1 of 2 texts differ: \"two\": token 1 is none, the reference's 2");
        let decoded = judge_lines(&[line(&[1, 2], "One"), line(&[1, 2], "two")], &theirs);
        assert_eq!(decoded.found, "1 of 2 texts differ: \"one\" is decoded as \"One\", by the reference as \"one\"");
    }

    #[test]
    fn special_tokens_that_differ_are_named() {
        let theirs = SpecialTokens { front: &[1], bos: Some(1), eos: &[2] };
        assert!(!judge_special(SpecialTokens { eos: &[2, 3], ..theirs }, theirs).is_failure());
        let none = judge_special(SpecialTokens { front: &[], bos: None, eos: &[3] }, theirs);
        assert_eq!(
            none.found,
            "[] are put in front of a text, by the reference [1], [2] end a generation for the reference only"
        );
        assert!(judge_special(SpecialTokens { bos: Some(0), ..theirs }, theirs).is_failure());
    }

    #[test]
    fn a_prompt_that_differs_is_told_with_its_place() {
        let theirs = HfChat { user: "hi".into(), text: "<s>user: hi".into(), ids: vec![1, 5, 6] };
        let judged = |text, ids: &'static [u32]| judge_chat(Some((text, ids)), Some(&theirs));
        assert_eq!(judged("<s>user: hi", &[1, 5, 6]).found, "one turn, 3 tokens equal");
        assert_eq!(judged("<s>User: hi", &[1, 5, 6]).found, r#"character 3: "User: hi", by the reference "user: hi""#);
        assert!(judged("<s>user: hi", &[1, 5, 7]).is_failure());
        assert!(!judged("<s>user: hi", &[0, 1, 5, 6]).is_failure());
        assert!(judge_chat(None, Some(&theirs)).is_failure() && !judge_chat(None, None).is_failure());
    }
}
