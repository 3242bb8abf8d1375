//! Detokenised WikiText, as lm-eval's task `wikitext` reads it.
//!
//! The file has blanks around punctuation, `@-@` within compounds and `= Title =` for headings. lm-eval removes these from each article
//! before a model reads it, but divides the likelihood by the bytes and words of the original article. So its figures per byte and word
//! are lower than those for the file's text. Rules, order and counts are those of lm_eval 0.4.13,
//! `tasks/wikitext/preprocess_wikitext.py`; articles are those of the data set that it reads (`EleutherAI/wikitext_document_level`).

use std::ops::Range;

use crate::metrics::python::{is_space, strip};

/// A text made from an original, which knows the part of the original that each of its bytes stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detokenised {
    /// The detokenised text: all articles in order, each on its own lines.
    pub text: String,
    /// For each byte of `text`, the end of the part of the original that it stands for.
    ends: Vec<usize>,
    /// The bytes of the original at which words begin as lm-eval counts them, in ascending order.
    words: Vec<usize>,
}

impl Detokenised {
    /// Detokenises a file of WikiText.
    pub fn new(file: &str) -> Self {
        let (mut all, mut words) = (Tracked::default(), Vec::new());
        let mut before = 0;
        for article in articles(file) {
            if before > 0 {
                all.push_literal("\n", before..before + 1);
                before += 1;
            }
            words.extend(word_places(&article).map(|place| before + place));
            let kept = detokenised(&article);
            all.text.push_str(&kept.text);
            all.ends.extend(kept.ends.iter().map(|end| before + end));
            before += article.len();
            // Blanks that were cut off at an article's end belong to its last byte.
            if let (false, Some(last)) = (kept.ends.is_empty(), all.ends.last_mut()) {
                *last = before;
            }
        }
        Self { text: all.text, ends: all.ends, words }
    }

    /// The number of bytes of the original that these bytes of the text stand for.
    pub fn original_bytes(&self, bytes: Range<usize>) -> usize {
        let original = self.original(bytes);
        original.end - original.start
    }

    /// The number of words that begin in the part of the original that these bytes of the text stand for. lm-eval counts the pieces
    /// between runs of white space, so white space at the beginning or end of an article adds an empty piece.
    pub fn original_words(&self, bytes: Range<usize>) -> usize {
        let original = self.original(bytes);
        let before = |place: usize| self.words.partition_point(|word| *word < place);
        before(original.end) - before(original.start)
    }

    fn original(&self, bytes: Range<usize>) -> Range<usize> {
        let end_of = |bytes: usize| if bytes == 0 { 0 } else { self.ends[bytes - 1] };
        end_of(bytes.start)..end_of(bytes.end)
    }
}

/// Splits a file into its articles. Text before the first title is an article too, unless it is blank.
fn articles(file: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in file.split('\n') {
        if is_title(line) {
            let article = std::mem::take(&mut lines).join("\n");
            if !strip(&article).is_empty() {
                all.push(article);
            }
        }
        lines.push(line);
    }
    all.push(lines.join("\n"));
    all
}

/// Whether a line is the title of an article (`= Title =`); headings within an article have more signs on each side.
fn is_title(line: &str) -> bool {
    let line = line.replace("= = =", "===").replace("= =", "==");
    let line = strip(&line);
    line.starts_with("= ") && line.ends_with(" =")
}

/// Where the pieces of an article between runs of white space begin: the first at the beginning of the article, every other at the last
/// byte of the run before it.
fn word_places(article: &str) -> impl Iterator<Item = usize> {
    let ends_run = |(at, c): (usize, char)| {
        let next = article[at + c.len_utf8()..].chars().next();
        (is_space(c) && !next.is_some_and(is_space)).then_some(at)
    };
    [0].into_iter().chain(article.char_indices().filter_map(ends_run))
}

/// Applies lm-eval's rules in its order, since some rules remove what later ones would match.
fn detokenised(article: &str) -> Tracked {
    let rules: &[(&str, &str)] = &[
        (" @-@ ", "-"),
        (" @,@ ", ","),
        (" @.@ ", "."),
        (" : ", ": "),
        (" ; ", "; "),
        (" . ", ". "),
        (" ! ", "! "),
        (" ? ", "? "),
        (" , ", ", "),
    ];
    let last: &[(&str, &str)] = &[
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" \u{b0} ", "\u{b0}"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    ];
    let replaced = |text: Tracked, rules: &[(&str, &str)]| {
        rules
            .iter()
            .fold(text, |text, (from, to)| if text.text.contains(from) { text.replaced(from, to) } else { text })
    };
    let text = Tracked::new(article).replaced("s '", "s'").with_broken_digits();
    let text = replaced(text, rules);
    let pairs = [('(', ')'), ('[', ']'), ('{', '}'), ('"', '"'), ('\'', '\'')];
    let text = pairs.into_iter().fold(text, |text, (open, close)| text.trimmed_within(open, close));
    replaced(text, last)
}

/// A text under construction, which knows the part of the original that each of its bytes stands for.
#[derive(Debug, Default)]
struct Tracked {
    text: String,
    /// For each byte, the end of the part of the original that it stands for.
    ends: Vec<usize>,
}

impl Tracked {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), ends: (1..=text.len()).collect() }
    }

    /// Appends bytes of another text unchanged.
    fn push_part(&mut self, of: &Tracked, bytes: Range<usize>) {
        self.text.push_str(&of.text[bytes.clone()]);
        self.ends.extend(&of.ends[bytes]);
    }

    /// Appends a text that stands for these bytes of the original, divided evenly among its bytes.
    fn push_literal(&mut self, text: &str, original: Range<usize>) {
        let (n, bytes) = (text.len(), original.end - original.start);
        self.text.push_str(text);
        self.ends.extend((1..=n).map(|i| original.start + (i * bytes).div_ceil(n)));
    }

    /// The part of the original that these bytes stand for.
    fn original(&self, bytes: Range<usize>) -> Range<usize> {
        let start = bytes.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..bytes.end.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    fn replaced(&self, from: &str, to: &str) -> Self {
        let found = self.text.match_indices(from).map(|(at, _)| at..at + from.len());
        self.with(found, |_| to)
    }

    /// The text with each of these ranges, given in order, replaced by a text.
    fn with<'t>(&self, ranges: impl Iterator<Item = Range<usize>>, text: impl Fn(&str) -> &'t str) -> Self {
        let (mut out, mut from) = (Self::default(), 0);
        for range in ranges {
            out.push_part(self, from..range.start);
            out.push_literal(text(&self.text[range.clone()]), self.original(range.clone()));
            from = range.end;
        }
        out.push_part(self, from..self.text.len());
        out
    }

    /// Applies a rule that is a mistake in lm-eval: a digit between slashes, with an apostrophe and a blank before it, is replaced by
    /// the text of the rule's own pattern.
    fn with_broken_digits(self) -> Self {
        let is_digit = |at: usize| self.text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let is_slash = |at: usize| self.text.as_bytes().get(at) == Some(&b'/');
        let mut found: Vec<Range<usize>> = Vec::new();
        for (at, mark) in self.text.match_indices("/' ") {
            let digit = at + mark.len();
            let is_free = found.last().is_none_or(|last| last.end <= at);
            if is_free && is_digit(digit) && is_slash(digit + 1) {
                found.push(at..digit + 2);
            }
        }
        if found.is_empty() {
            return self;
        }
        self.with(found.into_iter(), |_| "/'[0-9]/")
    }

    /// Removes white space directly inside a pair of marks. Pairs do not overlap; a mark without its partner is left unchanged.
    fn trimmed_within(self, open: char, close: char) -> Self {
        let (mut out, mut from) = (Self::default(), 0);
        while let Some(opened) = self.text[from..].find(open).map(|at| from + at + open.len_utf8()) {
            let Some(closed) = self.text[opened..].find(close).map(|at| opened + at) else { break };
            let inside = &self.text[opened..closed];
            let kept = inside.trim_start_matches(is_space);
            let start = closed - kept.len();
            let end = start + kept.trim_end_matches(is_space).len();
            out.push_part(&self, from..opened);
            out.push_part(&self, start..end);
            out.push_part(&self, closed..closed + close.len_utf8());
            from = closed + close.len_utf8();
        }
        out.push_part(&self, from..self.text.len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    /// An article as lm-eval reads it.
    #[derive(Deserialize)]
    struct Golden {
        page: String,
        text: String,
        words: usize,
        bytes: usize,
    }

    #[derive(Deserialize)]
    struct GoldenFile {
        file: String,
        pages: Vec<Golden>,
    }

    fn golden() -> Vec<GoldenFile> {
        serde_json::from_str(include_str!("../../../../tests/golden/wikitext.json")).unwrap()
    }

    #[test]
    fn articles_texts_and_counts_are_lm_evals() {
        let mut pages = 0;
        for GoldenFile { file, pages: expected } in golden() {
            let own = articles(&file);
            assert_eq!(own, expected.iter().map(|p| p.page.clone()).collect::<Vec<_>>());
            for page in &expected {
                assert_eq!(detokenised(&page.page).text, page.text, "{:?}", page.page);
                assert_eq!(word_places(&page.page).count(), page.words, "{:?}", page.page);
                assert_eq!(page.page.len(), page.bytes);
            }
            let all = Detokenised::new(&file);
            assert_eq!(all.text, expected.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join("\n"));
            if expected.iter().all(|p| !p.text.is_empty()) {
                let whole = 0..all.text.len();
                let breaks = expected.len() - 1;
                assert_eq!(all.original_words(whole.clone()), expected.iter().map(|p| p.words).sum::<usize>());
                assert_eq!(all.original_bytes(whole), expected.iter().map(|p| p.bytes).sum::<usize>() + breaks);
            }
            pages += expected.len();
        }
        assert!(pages > 100, "{pages}");
    }

    /// Figures of lm-eval's own rules on the whole file, if the file is there.
    #[test]
    fn the_published_test_text_is_lm_evals_to_the_byte() {
        use spattn_model::checksum::sha256_hex;
        let Some(data) = crate::ruler::testing::shared_data() else { return };
        let all = Detokenised::new(&std::fs::read_to_string(data.join("wikitext2/wiki.test.raw")).unwrap());
        let (articles, n) = (62, all.text.len());
        assert_eq!((all.original_words(0..n), all.original_bytes(0..n)), (241_335, 1_290_527 + articles - 1));
        let sha256 = "3fa07a8bbac5f86805465b0947086d095a116516845dc14a02f56b87b1da4774";
        assert_eq!((n, sha256_hex(all.text.as_bytes()).as_str()), (1_240_527, sha256));
    }

    #[test]
    fn a_part_counts_what_it_stands_for_in_the_original() {
        let all = Detokenised::new("a well @-@ known man , he");
        assert_eq!(all.text, "a well-known man, he");
        let at = |text: &str| all.text.find(text).unwrap()..all.text.find(text).unwrap() + text.len();
        assert_eq!((all.original_bytes(at("well")), all.original_bytes(at("-"))), (4, 5));
        assert_eq!(all.original_bytes(at("man,")), 5, "with the blank that was there");
        assert_eq!(
            all.original_words(at("well-known")),
            2,
            "`@-@` and `known` begin in it; `well` begins at the blank before"
        );
        assert_eq!(all.original_words(0..all.text.len()), 7);
    }

    proptest! {
        /// The two parts of a text that is cut anywhere add up to the whole, and nothing is out of order.
        #[test]
        fn parts_add_up(file in "([a-c' =\n\"(){}@,.°]|= = |s '| @-@ | N |\u{1f}){0,60}", cut in 0.0f64..1.0) {
            let all = Detokenised::new(&file);
            prop_assert!(all.ends.is_sorted() && all.ends.len() == all.text.len());
            let mut cut = (all.text.len() as f64 * cut) as usize;
            while !all.text.is_char_boundary(cut) { cut -= 1; }
            let n = all.text.len();
            for of in [Detokenised::original_bytes, Detokenised::original_words] {
                prop_assert_eq!(of(&all, 0..cut) + of(&all, cut..n), of(&all, 0..n));
            }
        }
    }
}
