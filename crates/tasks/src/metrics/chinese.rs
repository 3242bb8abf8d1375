//! LongBench's scores for Chinese text: the English scores, on words that the segmenter `jieba` finds.
//!
//! The published code segments text with the Python package `jieba` 0.42.1: its default dictionary, and a hidden Markov model for
//! other words. The crate `jieba-rs` has the same dictionary and model, but leaves some runs of Latin letters and digits whole
//! (`COVID-19`, `U.S.`); this module splits them as the package does. `tests/golden/jieba.json` has the package's output for
//! several hundred texts.

use std::sync::LazyLock;

use jieba_rs::Jieba;

use super::python::words;
use super::{qa_f1, rouge};

/// The segmenter, made at first use because loading the dictionary takes a fraction of a second.
static SEGMENTER: LazyLock<Jieba> = LazyLock::new(|| {
    let mut jieba = Jieba::new();
    // The package's dictionary lists one word (`B超`, frequency 3) twice, and counts both in the total frequency.
    jieba.add_word("\0", Some(3), None);
    jieba
});

/// Punctuation that the published normalisation removes besides ASCII punctuation; as published, it contains `》` but not `《`.
const PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

/// `qa_f1_zh_score`: F1 of the multisets of words, lower-cased and without punctuation and white space.
pub fn qa_f1_zh(prediction: &str, reference: &str) -> f64 {
    qa_f1::f1(&normalized_words(prediction), &normalized_words(reference))
}

/// InfiniteBench's `qa_f1_score_zh`: F1 of the multisets of characters, lower-cased and without punctuation and white space.
pub fn qa_f1_zh_characters(prediction: &str, reference: &str) -> f64 {
    let characters = |text: &str| normalize(text).chars().map(String::from).collect::<Vec<_>>();
    qa_f1::f1(&characters(prediction), &characters(reference))
}

/// Whether [`qa_f1_zh`] finds words in a reference.
pub fn compares_words(reference: &str) -> bool {
    !normalized_words(reference).is_empty()
}

/// Whether [`qa_f1_zh_characters`] finds characters in a reference.
pub fn compares_characters(reference: &str) -> bool {
    !normalize(reference).is_empty()
}

/// `rouge_zh_score`: ROUGE-L of the words, joined by spaces.
pub fn rouge_l_zh(prediction: &str, reference: &str) -> f64 {
    rouge::rouge_l(&segment(prediction).join(" "), &segment(reference).join(" "))
}

fn normalized_words(text: &str) -> Vec<String> {
    segment(text).into_iter().map(normalize).filter(|word| !word.is_empty()).collect()
}

/// `normalize_zh_answer`.
fn normalize(word: &str) -> String {
    let lower = word.to_lowercase();
    let kept: String = lower.chars().filter(|c| !c.is_ascii_punctuation() && !PUNCTUATION.contains(*c)).collect();
    words(&kept).collect()
}

/// `jieba.cut(text, cut_all=False)`.
/// The Python package looks for words in runs of the characters of [`is_in_words`]; every other character is a word of its own. The
/// crate allows more (rare) Chinese characters in a run, so runs are found here.
pub fn segment(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.find(|c| !is_in_words(c)).unwrap_or(rest.len());
        let alone = if rest.starts_with("\r\n") { 2 } else { first.len_utf8() };
        let (word, after) = rest.split_at(if run > 0 { run } else { alone });
        match run {
            0 => found.push(word),
            _ => SEGMENTER.cut(word, true).into_iter().for_each(|token| cut_latin(token.word, &mut found)),
        }
        rest = after;
    }
    found
}

/// Splits a word that is not in the dictionary as the package splits text outside its Markov model: into runs of letters and digits
/// (with one decimal fraction and a percent sign, [`latin_length`]) and the characters between them. The crate would join letters
/// and digits across `.`, `_` and `-`.
fn cut_latin<'t>(word: &'t str, found: &mut Vec<&'t str>) {
    if !word.is_ascii() || SEGMENTER.has_word(word) {
        return found.push(word);
    }
    let mut rest = word;
    while !rest.is_empty() {
        let end = match latin_length(rest) {
            0 => rest.find(|c: char| c.is_ascii_alphanumeric()).unwrap_or(rest.len()),
            length => length,
        };
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
}

/// The length in bytes of a match of `[a-zA-Z0-9]+(?:\.\d+)?%?` at the start of an ASCII text.
fn latin_length(text: &str) -> usize {
    let run = |from: usize, of: fn(&u8) -> bool| text.bytes().skip(from).take_while(of).count();
    let word = run(0, u8::is_ascii_alphanumeric);
    let fraction = if text[word..].starts_with('.') { run(word + 1, u8::is_ascii_digit) } else { 0 };
    let end = word + if fraction > 0 { fraction + 1 } else { 0 };
    if word > 0 && text[end..].starts_with('%') {
        end + 1
    } else if word > 0 {
        end
    } else {
        0
    }
}

/// The characters in which the Python package looks for words: `[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]`.
fn is_in_words(c: char) -> bool {
    ('\u{4e00}'..='\u{9fd5}').contains(&c) || c.is_ascii_alphanumeric() || "+#&._%-".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_as_the_published_segmenter_does() {
        // Python: list(jieba.cut(...)) of version 0.42.1.
        assert_eq!(segment("我来到北京清华大学"), ["我", "来到", "北京", "清华大学"]);
        assert_eq!(segment("他来到了网易杭研大厦"), ["他", "来到", "了", "网易", "杭研", "大厦"]);
        assert_eq!(segment("龘靐㐀㐁"), ["龘", "靐", "㐀", "㐁"]);
    }

    #[test]
    fn words_are_found_as_the_package_finds_them_in_many_texts() {
        let golden: Vec<(String, Vec<String>)> =
            serde_json::from_str(include_str!("../../../../tests/golden/jieba.json")).unwrap();
        assert!(golden.len() > 500);
        let wrong: Vec<_> = golden.iter().filter(|(text, words)| segment(text) != *words).collect();
        let shown: Vec<_> = wrong.iter().take(10).map(|(text, words)| (text, words, segment(text))).collect();
        assert!(wrong.is_empty(), "{} of {} texts: {shown:#?}", wrong.len(), golden.len());
    }

    #[test]
    fn names_with_hyphens_and_points_score_as_published() {
        // Python gives COVID, -, 19, 疫情 and COVID, blank, 19, 疫情; hyphen and blank do not count as words.
        assert_eq!(qa_f1_zh("COVID-19疫情", "COVID 19疫情"), 1.0);
        // Python gives U, ., S, . and U, ., blank, S, .; the blank disappears when words are joined and split again.
        assert_eq!(rouge_l_zh("U.S.", "U. S."), rouge_l_zh("U. S.", "U. S."));
    }

    #[test]
    fn punctuation_and_white_space_are_no_words() {
        assert_eq!(normalized_words("Ａ，b。 《C》\u{3000}"), ["ａ", "b", "《", "c"]);
        assert_eq!(qa_f1_zh("，。", "，。"), 0.0);
    }
}
