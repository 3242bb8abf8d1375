//! Splits a template into tokens, with jinja2's rules for white space around tags.
//!
//! `trim_blocks` and `lstrip_blocks` are on, as in transformers. Line ends become `\n`, and the last one is removed.

use std::sync::Arc;

use super::limits::{Fault, unsupported};

/// A token of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// Text between tags, as it is printed.
    Data(Arc<str>),
    /// `{{`.
    PrintBegin,
    /// `}}`.
    PrintEnd,
    /// `{%`.
    TagBegin,
    /// `%}`.
    TagEnd,
    /// A name or keyword.
    Name(Arc<str>),
    /// A string.
    Text(Arc<str>),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// An operator or bracket.
    Op(&'static str),
    /// The end of the template.
    End,
}

/// Longer operators come first.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",",
];

/// White space as in Python's `str.isspace`.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// All tokens with the lines on which they start. The last is [`Token::End`].
pub fn tokens(source: &str) -> Result<Vec<(Token, usize)>, Fault> {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    let mut lexer = Lexer { text: &text, at: 0, line: 1, line_starts: true, found: Vec::new() };
    lexer.template().map_err(|fault| fault.at(lexer.line))?;
    let line = lexer.line;
    lexer.found.push((Token::End, line));
    Ok(lexer.found)
}

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Print,
    Block,
    Comment,
    Raw,
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: usize,
    /// Whether the next text starts a line.
    line_starts: bool,
    found: Vec<(Token, usize)>,
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.text[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|b| *b == b'\n').count();
        self.line_starts = passed.ends_with('\n');
        self.at += bytes;
    }

    fn push(&mut self, token: Token) {
        self.found.push((token, self.line));
    }

    fn push_data(&mut self, data: &str) {
        if !data.is_empty() {
            self.push(Token::Data(data.into()));
        }
    }

    fn template(&mut self) -> Result<(), Fault> {
        while let Some((before, tag, sign, length)) = self.next_tag() {
            let data = self.stripped(before, sign, tag == Tag::Print);
            self.push_data(data);
            self.advance(before.len() + length);
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Raw => self.raw()?,
                Tag::Print => self.inside(Token::PrintBegin, Token::PrintEnd)?,
                Tag::Block => self.inside(Token::TagBegin, Token::TagEnd)?,
            }
        }
        let rest = self.rest();
        self.push_data(rest);
        Ok(())
    }

    /// The text before the next tag, the kind of the tag, its sign (`-` or `+`), and the length of its opening in bytes.
    fn next_tag(&self) -> Option<(&'t str, Tag, Option<char>, usize)> {
        let rest = self.rest();
        let mut from = 0;
        loop {
            let at = from + rest[from..].find('{')?;
            let opening = &rest[at..];
            let tag = match opening.as_bytes().get(1) {
                Some(b'{') => Some(Tag::Print),
                Some(b'%') => Some(Tag::Block),
                Some(b'#') => Some(Tag::Comment),
                _ => None,
            };
            if let Some(tag) = tag {
                let sign = opening[2..].chars().next().filter(|c| matches!(c, '-' | '+'));
                let length = 2 + sign.map_or(0, char::len_utf8);
                return Some(match raw_opening(&opening[length..]).filter(|_| tag == Tag::Block) {
                    Some(more) => (&rest[..at], Tag::Raw, sign, length + more),
                    None => (&rest[..at], tag, sign, length),
                });
            }
            from = at + 1;
        }
    }

    /// The text before a tag, without the white space that the tag's sign or `lstrip_blocks` removes.
    fn stripped(&self, before: &'t str, sign: Option<char>, print: bool) -> &'t str {
        match sign {
            Some('-') => before.trim_end_matches(is_space),
            None if !print => {
                let start = before.rfind('\n').map_or(0, |at| at + 1);
                let indented = !before[start..].is_empty() && before[start..].chars().all(is_space);
                if indented && (start > 0 || self.line_starts) { &before[..start] } else { before }
            }
            _ => before,
        }
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let rest = self.rest();
        let end = rest.find("#}").ok_or_else(|| Fault::new("Missing end of comment tag"))?;
        let signed = rest[..end].chars().last().filter(|c| matches!(c, '-' | '+'));
        let after = &rest[end + 2..];
        self.advance(end + 2 + removed_after(after, signed));
        Ok(())
    }

    fn raw(&mut self) -> Result<(), Fault> {
        let rest = self.rest();
        let mut from = 0;
        loop {
            let at = from + rest[from..].find("{%").ok_or_else(|| Fault::new("Missing end of raw directive"))?;
            if let Some((sign, length)) = raw_ending(&rest[at..]) {
                let data = self.stripped(&rest[..at], sign, false);
                self.push_data(data);
                self.advance(at + length);
                return Ok(());
            }
            from = at + 2;
        }
    }

    /// Reads the tokens of a tag.
    fn inside(&mut self, begin: Token, end: Token) -> Result<(), Fault> {
        self.push(begin);
        let mut open: Vec<char> = Vec::new();
        loop {
            if let Some(length) = self.ending(&end).filter(|_| open.is_empty()) {
                self.push(end);
                self.advance(length);
                return Ok(());
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return Ok(()) };
            if is_space(first) {
                self.advance(rest.len() - rest.trim_start_matches(is_space).len());
                continue;
            }
            let (token, length) = match first {
                '0'..='9' => number(rest, self.text[..self.at].ends_with('.'))?,
                '\'' | '"' => string(rest, first)?,
                c if c.is_alphanumeric() || c == '_' => name(rest)?,
                _ => operator(rest, first)?,
            };
            if let Token::Op(op) = token {
                balance(&mut open, op)?;
            }
            self.push(token);
            self.advance(length);
        }
    }

    /// The length in bytes of the end of the tag, with the white space that it removes after it, if the tag ends here.
    fn ending(&self, end: &Token) -> Option<usize> {
        let rest = self.rest();
        let closing = if *end == Token::PrintEnd { "}}" } else { "%}" };
        if let Some(after) = rest.strip_prefix('-').and_then(|r| r.strip_prefix(closing)) {
            return Some(3 + removed_after(after, Some('-')));
        }
        if *end == Token::PrintEnd {
            return rest.starts_with(closing).then_some(2);
        }
        if rest.strip_prefix('+').is_some_and(|r| r.starts_with(closing)) {
            return Some(3);
        }
        rest.strip_prefix(closing).map(|after| 2 + removed_after(after, None))
    }
}

/// The number of bytes of white space that the end of a block or comment removes after it.
fn removed_after(after: &str, sign: Option<char>) -> usize {
    match sign {
        Some('-') => after.len() - after.trim_start_matches(is_space).len(),
        None => usize::from(after.starts_with('\n')),
        Some(_) => 0,
    }
}

/// The length in bytes of the opening of a raw block, if the text after `{%` and its sign opens one.
fn raw_opening(after: &str) -> Option<usize> {
    let inner = after.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let left = match inner.strip_prefix("-%}") {
        Some(rest) => rest.trim_start_matches(is_space),
        None => inner.strip_prefix("%}")?,
    };
    Some(after.len() - left.len())
}

/// The sign of `{% endraw %}` and its length in bytes, if the text begins with it.
fn raw_ending(text: &str) -> Option<(Option<char>, usize)> {
    let after = text.strip_prefix("{%")?;
    let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
    let after = &after[usize::from(sign.is_some())..];
    let inner = after.trim_start_matches(is_space).strip_prefix("endraw")?.trim_start_matches(is_space);
    let closing = inner.chars().next().filter(|c| matches!(c, '-' | '+'));
    let rest = inner[usize::from(closing.is_some())..].strip_prefix("%}")?;
    Some((sign, text.len() - rest.len() + removed_after(rest, closing)))
}

fn balance(open: &mut Vec<char>, op: &str) -> Result<(), Fault> {
    let closing = match op {
        "(" => ')',
        "[" => ']',
        "{" => '}',
        ")" | "]" | "}" => {
            return match open.pop() {
                Some(expected) if op.starts_with(expected) => Ok(()),
                Some(expected) => Err(Fault::new(format!("unexpected '{op}', expected '{expected}'"))),
                None => Err(Fault::new(format!("unexpected '{op}'"))),
            };
        }
        _ => return Ok(()),
    };
    open.push(closing);
    Ok(())
}

fn operator(rest: &str, first: char) -> Result<(Token, usize), Fault> {
    match OPERATORS.iter().find(|op| rest.starts_with(**op)) {
        Some(op) => Ok((Token::Op(op), op.len())),
        None => Err(Fault::new(format!("unexpected char {first:?}"))),
    }
}

fn name(rest: &str) -> Result<(Token, usize), Fault> {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match rest[..end].is_ascii() {
        true => Ok((Token::Name(rest[..end].into()), end)),
        false => Err(unsupported("a name with letters that are not ASCII")),
    }
}

/// Length of a run of digits, with single underscores between them.
fn digits(text: &str, is_digit: impl Fn(u8) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    loop {
        let underscore = usize::from(end > 0 && bytes.get(end) == Some(&b'_'));
        match bytes.get(end + underscore) {
            Some(b) if is_digit(*b) => end += underscore + 1,
            _ => return end,
        }
    }
}

/// Reads a number. `after_dot` means that it follows a dot, so that it is an index without a fraction.
fn number(rest: &str, after_dot: bool) -> Result<(Token, usize), Fault> {
    let whole = digits(rest, |b| b.is_ascii_digit());
    let fraction = rest[whole..].strip_prefix('.').map_or(0, |r| digits(r, |b| b.is_ascii_digit()));
    let fraction = if fraction > 0 { fraction + 1 } else { 0 };
    let exponent = exponent(&rest[whole + fraction..]);
    let length = whole + fraction + exponent;
    if !after_dot && length > whole {
        let parsed = rest[..length].replace('_', "").parse().map_err(|_| Fault::new("a number cannot be read"))?;
        return Ok((Token::Float(parsed), length));
    }
    integer(rest)
}

fn exponent(text: &str) -> usize {
    let Some(after) = text.strip_prefix(['e', 'E']) else { return 0 };
    let sign = usize::from(after.starts_with(['+', '-']));
    match digits(&after[sign..], |b| b.is_ascii_digit()) {
        0 => 0,
        found => 1 + sign + found,
    }
}

fn integer(rest: &str) -> Result<(Token, usize), Fault> {
    let prefix = rest.get(..2).unwrap_or("").to_ascii_lowercase();
    let radix = match prefix.as_str() {
        "0b" => 2,
        "0o" => 8,
        "0x" => 16,
        _ => 10,
    };
    let is_digit = |b: u8| char::from(b).is_digit(radix);
    let prefixed = match rest.get(2..).filter(|_| radix != 10) {
        // One underscore may follow the prefix.
        Some(r) => {
            let underscore = usize::from(r.starts_with('_'));
            digits(&r[underscore..], is_digit) + if digits(&r[underscore..], is_digit) > 0 { underscore } else { 0 }
        }
        None => 0,
    };
    let (radix, start, length) = match prefixed {
        0 if rest.starts_with('0') => (10, 0, digits(rest, |b| b == b'0')),
        0 => (10, 0, digits(rest, |b| b.is_ascii_digit())),
        found => (radix, 2, 2 + found),
    };
    let value = i128::from_str_radix(&rest[start..length].replace('_', ""), radix);
    Ok((Token::Int(value.map_err(|_| unsupported("an integer of more than 127 bits"))?), length))
}

fn string(rest: &str, quote: char) -> Result<(Token, usize), Fault> {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Ok((Token::Text(unescaped(&rest[1..at])?.into()), at + 1));
        }
    }
    Err(Fault::new(format!("unexpected char {quote:?}: the string has no end")))
}

/// Resolves escapes as jinja2 does: characters beyond ASCII are escaped first, then Python's `unicode-escape` codec decodes the string.
fn unescaped(text: &str) -> Result<String, Fault> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            None => return Err(Fault::new("\\ at end of string")),
            Some('\n') => {}
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\u{b}'),
            Some(c @ '0'..='7') => out.push(octal(c, &mut chars)?),
            Some('x') => out.push(hexadecimal(2, &mut chars)?),
            Some('u') => out.push(hexadecimal(4, &mut chars)?),
            Some('U') => out.push(hexadecimal(8, &mut chars)?),
            Some('N') => return Err(unsupported("a character by its name, \\N{...},")),
            Some(c) if c.is_ascii() => out.extend(['\\', c]),
            // After a backslash, the codec sees `\\` followed by the letters of the character's escape, and keeps those.
            Some(c) => out.push_str(&match u32::from(c) {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    Ok(out)
}

fn octal(first: char, chars: &mut std::str::Chars) -> Result<char, Fault> {
    let mut code = first.to_digit(8).unwrap_or(0);
    for _ in 0..2 {
        let Some(digit) = chars.as_str().chars().next().and_then(|c| c.to_digit(8)) else { break };
        code = code * 8 + digit;
        chars.next();
    }
    character(code)
}

fn hexadecimal(length: usize, chars: &mut std::str::Chars) -> Result<char, Fault> {
    let text = chars.as_str();
    let code = text.get(..length).filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
    let code = code.and_then(|t| u32::from_str_radix(t, 16).ok());
    let code = code.ok_or_else(|| Fault::new("a truncated \\x, \\u or \\U escape in a string"))?;
    *chars = text[length..].chars();
    character(code)
}

fn character(code: u32) -> Result<char, Fault> {
    char::from_u32(code).ok_or_else(|| unsupported("an escape that is no character (a surrogate, or beyond Unicode)"))
}
