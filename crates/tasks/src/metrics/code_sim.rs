//! LongBench's code similarity: `fuzz.ratio` of `fuzzywuzzy` 0.18.0 on the first line of code.
//!
//! `fuzzywuzzy` uses `difflib`, or `python-Levenshtein` if that is installed, which LongBench does not require. `difflib` counts the
//! characters of common blocks. `python-Levenshtein` counts those of the longest common subsequence: never fewer, and usually more.
//! Published figures may be of either kind.

use std::collections::HashMap;

use rapidfuzz::distance::indel;

/// `code_sim_score`: [`ratio`] of the answer to the first line of code.
pub fn code_sim(prediction: &str, answer: &str) -> f64 {
    rounded(first_line_of_code(prediction), answer, ratio)
}

/// `code_sim_score` if `python-Levenshtein` (0.27.5) is installed: [`levenshtein_ratio`] instead of [`ratio`].
pub fn code_sim_levenshtein(prediction: &str, answer: &str) -> f64 {
    rounded(first_line_of_code(prediction), answer, levenshtein_ratio)
}

/// The first line of a prediction without a backquote, `#` or `//`; empty if every line has one of them.
fn first_line_of_code(prediction: &str) -> &str {
    prediction.trim_start_matches('\n').split('\n').find(|line| !is_excluded(line)).unwrap_or("")
}

fn is_excluded(line: &str) -> bool {
    line.contains('`') || line.contains('#') || line.contains("//")
}

/// `fuzz.ratio / 100`: 1 for equal texts, 0 if one is empty, else `ratio` of their characters, rounded to whole percent (half to even).
fn rounded(a: &str, b: &str, ratio: fn(&[char], &[char]) -> f64) -> f64 {
    if a == b {
        return 1.0;
    }
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    (100.0 * ratio(&a, &b)).round_ties_even() / 100.0
}

/// `difflib`'s ratio: twice the number of characters in matching blocks, over the length of both texts.
fn ratio(a: &[char], b: &[char]) -> f64 {
    2.0 * Matcher::new(a, b).matching() as f64 / (a.len() + b.len()) as f64
}

/// `Levenshtein.ratio`: 1 minus the number of insertions and deletions over the length of both texts. The order of operations
/// matters where the result is a half percent.
fn levenshtein_ratio(a: &[char], b: &[char]) -> f64 {
    1.0 - indel::distance(a.iter().copied(), b.iter().copied()) as f64 / (a.len() + b.len()) as f64
}

/// `difflib.SequenceMatcher(None, a, b)`: finds the longest common block, then those to its left and right, and so on.
struct Matcher<'a> {
    a: &'a [char],
    b: &'a [char],
    /// The positions of each character in `b`, without popular characters.
    positions: HashMap<char, Vec<usize>>,
}

/// A common block: `a[start_a..start_a + len]` equals `b[start_b..start_b + len]`.
#[derive(Clone, Copy)]
struct Block {
    start_a: usize,
    start_b: usize,
    len: usize,
}

impl<'a> Matcher<'a> {
    fn new(a: &'a [char], b: &'a [char]) -> Self {
        let mut positions: HashMap<char, Vec<usize>> = HashMap::new();
        for (j, c) in b.iter().enumerate() {
            positions.entry(*c).or_default().push(j);
        }
        // difflib's "autojunk": in a text of at least 200 characters, no block starts with a character that makes up over 1 % of the
        // text.
        const AUTOJUNK_LEN: usize = 200;
        if b.len() >= AUTOJUNK_LEN {
            let popular = b.len() / 100 + 1;
            positions.retain(|_, at| at.len() <= popular);
        }
        Self { a, b, positions }
    }

    /// Number of characters in all matching blocks.
    fn matching(&self) -> usize {
        let mut total = 0;
        let mut open = vec![(0, self.a.len(), 0, self.b.len())];
        while let Some((low_a, high_a, low_b, high_b)) = open.pop() {
            let block = self.longest(low_a, high_a, low_b, high_b);
            if block.len == 0 {
                continue;
            }
            total += block.len;
            open.push((low_a, block.start_a, low_b, block.start_b));
            open.push((block.start_a + block.len, high_a, block.start_b + block.len, high_b));
        }
        total
    }

    /// `find_longest_match`: the longest block (among equal ones the earliest in `a`, then in `b`), extended by popular characters at
    /// both ends.
    fn longest(&self, low_a: usize, high_a: usize, low_b: usize, high_b: usize) -> Block {
        let mut block = self.longest_of_rare(low_a, high_a, low_b, high_b);
        while block.start_a > low_a && block.start_b > low_b && self.a[block.start_a - 1] == self.b[block.start_b - 1] {
            block = Block { start_a: block.start_a - 1, start_b: block.start_b - 1, len: block.len + 1 };
        }
        while block.start_a + block.len < high_a
            && block.start_b + block.len < high_b
            && self.a[block.start_a + block.len] == self.b[block.start_b + block.len]
        {
            block.len += 1;
        }
        block
    }

    fn longest_of_rare(&self, low_a: usize, high_a: usize, low_b: usize, high_b: usize) -> Block {
        let mut best = Block { start_a: low_a, start_b: low_b, len: 0 };
        // For each position in `b`, the length of the common block that ends there and at the previous character of `a`.
        let mut ending: HashMap<usize, usize> = HashMap::new();
        for i in low_a..high_a {
            let mut next = HashMap::new();
            for &j in self.positions.get(&self.a[i]).into_iter().flatten() {
                if j < low_b {
                    continue;
                }
                if j >= high_b {
                    break;
                }
                let len = j.checked_sub(1).and_then(|before| ending.get(&before)).unwrap_or(&0) + 1;
                next.insert(j, len);
                if len > best.len {
                    best = Block { start_a: i + 1 - len, start_b: j + 1 - len, len };
                }
            }
            ending = next;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_code_is_compared() {
        assert_eq!(code_sim("\n\n```python\n# note\nreturn x\n", "return x"), 1.0);
        assert_eq!(code_sim("x = 1 // 2", "x = 1 // 2"), 0.0);
        assert_eq!(code_sim("# only", ""), 1.0);
    }

    #[test]
    fn half_percents_round_to_even() {
        // 2·1 / 16 = 12.5 %, 2·3 / 16 = 37.5 %.
        assert_eq!(code_sim("abcdefgh", "a1234567"), 0.12);
        assert_eq!(code_sim("abcdefgh", "abc12345"), 0.38);
        assert_eq!(code_sim_levenshtein("abcdefgh", "a1234567"), 0.12);
    }

    #[test]
    fn popular_characters_start_no_block_in_long_texts() {
        let answer = "ab".repeat(100);
        assert_eq!(code_sim("xab", &answer), 0.0);
        assert!(code_sim("xab", &answer[..198]) > 0.0);
        assert!(code_sim_levenshtein("xab", &answer) > 0.0, "it knows no popular ones");
    }
}
