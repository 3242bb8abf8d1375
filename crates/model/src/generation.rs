//! The settings of `generation_config.json` besides the ends of answers, which this program ignores.
//!
//! Answers are greedy, as in the papers' evaluations. Sampling settings are ignored silently, since nobody expects them to affect a greedy
//! answer. Settings that would change a greedy answer in transformers are named in a note.

use serde_json::{Map, Value};

/// Keys that change greedy answers in transformers, and the value at which each has no effect.
const CHANGES: [(&str, Neutral); 15] = [
    ("repetition_penalty", Neutral::Number(1.0)),
    ("encoder_repetition_penalty", Neutral::Number(1.0)),
    ("no_repeat_ngram_size", Neutral::Number(0.0)),
    ("num_beams", Neutral::Number(1.0)),
    ("min_length", Neutral::Number(0.0)),
    ("min_new_tokens", Neutral::Number(0.0)),
    ("guidance_scale", Neutral::Number(1.0)),
    ("penalty_alpha", Neutral::Number(0.0)),
    ("forced_bos_token_id", Neutral::Absent),
    ("forced_eos_token_id", Neutral::Absent),
    ("suppress_tokens", Neutral::Absent),
    ("begin_suppress_tokens", Neutral::Absent),
    ("bad_words_ids", Neutral::Absent),
    ("sequence_bias", Neutral::Absent),
    ("stop_strings", Neutral::Absent),
];

/// The value at which a key has no effect.
enum Neutral {
    Number(f64),
    /// Null or an empty list; any other value changes answers.
    Absent,
}

/// The note that names the settings in `file` that are not applied; `None` if there are none.
pub(super) fn unread(settings: &Map<String, Value>, file: &str) -> Option<String> {
    let asked: Vec<String> =
        CHANGES.iter().filter_map(|(key, neutral)| asked(key, settings.get(*key)?, neutral)).collect();
    (!asked.is_empty()).then(|| {
        format!("{file}: {}: not applied; answers are greedy, and end by EOS or their length alone", asked.join(", "))
    })
}

fn asked(key: &str, value: &Value, neutral: &Neutral) -> Option<String> {
    match (neutral, value) {
        (_, Value::Null) => None,
        (Neutral::Number(neutral), value) if value.as_f64() == Some(*neutral) => None,
        (Neutral::Absent, Value::Array(list)) if list.is_empty() => None,
        (_, Value::Number(number)) => Some(format!("`{key}` {number}")),
        _ => Some(format!("`{key}`")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn note(settings: &Value) -> Option<String> {
        unread(settings.as_object().unwrap(), "g.json")
    }

    #[test]
    fn what_would_change_greedy_answers_is_named() {
        // The settings of Qwen2.5-0.5B-Instruct.
        let qwen = json!({
            "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
            "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"
        });
        let all = "not applied; answers are greedy, and end by EOS or their length alone";
        assert_eq!(note(&qwen), Some(format!("g.json: `repetition_penalty` 1.1: {all}")));
        let several =
            json!({"stop_strings": ["\n"], "suppress_tokens": [5], "min_new_tokens": 3, "forced_bos_token_id": 0});
        let named = "`min_new_tokens` 3, `forced_bos_token_id` 0, `suppress_tokens`, `stop_strings`";
        assert_eq!(note(&several), Some(format!("g.json: {named}: {all}")));
    }

    #[test]
    fn values_that_do_nothing_and_sampling_are_passed_over() {
        // The settings of Llama-3.1-8B-Instruct, and all values without an effect.
        for quiet in [
            json!({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [128001, 128008, 128009]}),
            json!({"repetition_penalty": 1.0, "num_beams": 1, "min_length": 0, "suppress_tokens": null, "stop_strings": []}),
        ] {
            assert_eq!(note(&quiet), None);
        }
    }
}
