//! lm-eval's `exact_match` for AIME: compares the content of the last `\boxed{}`, or else the text between the first and the last
//! dollar sign, or else the whole answer, after normalising the LaTeX of both sides.
//!
//! If the published program fails to normalise a text, it compares both texts unchanged, and so does this.

use super::python::{is_digit, strip};

/// 1 if prediction and answer are equal after normalisation.
pub fn aime(prediction: &str, answer: &str) -> f64 {
    let said = boxed(prediction).unwrap_or_else(|| in_dollars(prediction));
    let is_same = match (one_way(said), one_way(answer)) {
        (Some(said), Some(answer)) => said == answer,
        _ => said == answer,
    };
    f64::from(u8::from(is_same))
}

/// Whether an answer is not empty after normalisation.
pub fn compares(answer: &str) -> bool {
    one_way(answer).is_none_or(|text| !text.is_empty())
}

fn in_dollars(text: &str) -> &str {
    match (text.find('$'), text.rfind('$')) {
        (Some(first), Some(last)) if first < last => &text[first + 1..last],
        _ => text,
    }
}

/// The content of the last box; `None` if there is no box, or if it is not closed.
fn boxed(text: &str) -> Option<&str> {
    const SPACED: &str = "\\boxed ";
    if let Some((_, last)) = text.rsplit_once(SPACED) {
        return last.split('$').next();
    }
    // The published code also finds `\fbox`, but does not open it, so it is not looked for here.
    let start = text.rfind("\\boxed")?;
    let mut open = 0;
    for (at, c) in text[start..].char_indices() {
        open += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if c == '}' && open == 0 {
            return text[start..start + at].strip_prefix("\\boxed{");
        }
    }
    None
}

/// Normalised LaTeX; `None` if the published program fails on the text.
fn one_way(text: &str) -> Option<String> {
    const REPLACED: [(&str, &str); 10] = [
        ("\n", ""),
        ("\\!", ""),
        ("\\\\", "\\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\$", ""),
    ];
    let text = REPLACED.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let text = without_unit(&text)?.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.");
    if text.is_empty() {
        return Some(text);
    }
    let text = if text.starts_with('.') { format!("0{text}") } else { text };
    let text = match text.split('=').collect::<Vec<_>>()[..] {
        [name, value] if name.chars().count() <= 2 => value.to_owned(),
        _ => text,
    };
    let text = fractions(&roots(&text)?.replace(' ', ""))?;
    slash(if text == "0.5" { "\\frac{1}{2}".to_owned() } else { text })
}

fn without_unit(text: &str) -> Option<&str> {
    match text.split("\\text{ ").collect::<Vec<_>>()[..] {
        [_] => Some(text),
        [number, _] => Some(number),
        _ => None,
    }
}

/// Rewrites `\sqrt3` as `\sqrt{3}`.
fn roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut written = parts.next()?.to_owned();
    for part in parts {
        let first = part.chars().next()?;
        match first {
            '{' => written += &format!("\\sqrt{part}"),
            first => written += &format!("\\sqrt{{{first}}}{}", &part[first.len_utf8()..]),
        }
    }
    Some(written)
}

/// Rewrites `\frac12` and `\frac1{2}` as `\frac{1}{2}`; a text with a `\frac` of a single character is left unchanged.
fn fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut written = parts.next()?.to_owned();
    for part in parts {
        written += "\\frac";
        let mut characters = part.chars();
        let above = characters.next()?;
        if above == '{' {
            written += part;
            continue;
        }
        let Some(below) = characters.next() else { return Some(text.to_owned()) };
        let rest = characters.as_str();
        match below {
            '{' => written += &format!("{{{above}}}{{{rest}"),
            below => written += &format!("{{{above}}}{{{below}}}{rest}"),
        }
    }
    Some(written)
}

/// Rewrites `1/2` as `\frac{1}{2}`.
fn slash(text: String) -> Option<String> {
    let [above, below] = text.split('/').collect::<Vec<_>>()[..] else { return Some(text) };
    match (whole(above)?, whole(below)?) {
        (true, true) => Some(format!("\\frac{{{above}}}{{{below}}}")),
        _ => Some(text),
    }
}

/// Whether a whole number is written as Python prints it; `None` if Python's `int` rejects the text.
fn whole(text: &str) -> Option<bool> {
    let bare = strip(text);
    let digits = bare.strip_prefix(['+', '-']).unwrap_or(bare);
    let is_read = digits.split('_').all(|part| !part.is_empty() && part.chars().all(is_digit));
    let is_plain = bare == text && !text.starts_with('+') && digits.bytes().all(|b| b.is_ascii_digit());
    let has_no_zero = digits == "0" && !text.starts_with('-') || !digits.starts_with('0');
    is_read.then_some(is_plain && has_no_zero)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        prediction: String,
        answer: String,
        score: f64,
    }

    #[test]
    fn scores_are_those_of_the_published_program() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../../../tests/golden/aime.json")).unwrap();
        assert!(cases.len() > 500 && cases.iter().filter(|case| case.score == 1.0).count() > 100);
        for Case { prediction, answer, score } in cases {
            assert_eq!(aime(&prediction, &answer), score, "{prediction:?} for {answer:?}");
        }
    }

    #[test]
    fn the_last_box_counts_before_dollars_and_these_before_all() {
        assert_eq!(aime("First \\boxed{7}, no: \\boxed{204}.", "204"), 1.0);
        assert_eq!(aime("It is $204$ then.", "204"), 1.0);
        assert_eq!(aime("204", "204"), 1.0);
        assert_eq!(aime(" 204\n", "204"), 1.0, "spaces are left out");
        assert_eq!(aime("The answer is 204", "204"), 0.0, "words are not");
        assert_eq!(aime("\\boxed{204", "204"), 0.0, "a box that does not end");
        assert_eq!(aime("\\boxed{25}", "025"), 0.0, "texts are compared");
    }
}
