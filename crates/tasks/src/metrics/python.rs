//! Python's definitions of white space, digits and words, which differ from Rust's.
//!
//! The published scorers are written in Python, so a port with Rust's own predicates would give other scores.

/// `str.isspace` of one character: Unicode white space, and the four separators U+001C..=U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.split()`: the words between runs of white space, without empty ones.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// `\w` of `re`: a letter, a number of any kind, or the underscore.
/// Rust's alphabetic characters also include vowel signs and circled letters, unlike Python's. That makes a difference only for an
/// English article directly beside one of them.
pub fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// `re.findall(r"\d+", text)`: the runs of decimal digits of any script.
pub fn digit_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_digit(c)).filter(|run| !run.is_empty())
}

/// `\d` of `re`: Unicode's category Nd (`char::is_numeric` would add fractions and Roman numerals).
pub fn is_digit(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    let c = c as u32;
    let following = DIGIT_ZEROS.partition_point(|zero| *zero <= c);
    following > 0 && c - DIGIT_ZEROS[following - 1] < 10
}

/// The first digit, zero, of each run of ten decimal digits in Unicode 14, which Python 3.11 uses.
#[rustfmt::skip]
const DIGIT_ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0,
    0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_what_python_strips() {
        assert_eq!(strip("\u{1f}\u{3000}\t x\u{85}\u{a0}"), "x");
        assert_eq!(strip("\u{200b}x\u{7}"), "\u{200b}x\u{7}");
    }

    #[test]
    fn digits_of_every_script_count_and_fractions_do_not() {
        assert!(['0', '9', '٣', '९', '０', '９', '\u{1d7ff}', '\u{1fbf9}'].into_iter().all(is_digit));
        assert!(!['a', '²', '½', 'Ⅷ', '三', '\u{1fbfa}', '\u{66a}'].into_iter().any(is_digit));
        assert_eq!(digit_runs("a12b٣४ 5").collect::<Vec<_>>(), ["12", "٣४", "5"]);
    }
}
