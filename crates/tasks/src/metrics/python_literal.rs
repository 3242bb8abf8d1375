//! Parser of Python literals, like `ast.literal_eval`: some data sets write fields as literals, and a published scorer parses predictions
//! as literals.
//!
//! Values are returned as JSON. Literals without a JSON form (bytes, complex numbers) are rejected, and dictionary entries whose key is
//! not a text are dropped.

use serde_json::{Map, Number, Value};

use super::python::is_space;

/// The deepest nesting of brackets; a text with deeper nesting is not a literal.
const DEEPEST: usize = 64;

/// The value of a literal, which may have white space around it; `None` if the text is not a literal.
pub fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(is_space);
    }

    /// Skips `expected` and the white space after it; returns `false` if the rest does not start with it.
    fn takes(&mut self, expected: &str) -> bool {
        let rest = self.rest.strip_prefix(expected);
        self.rest = rest.unwrap_or(self.rest);
        if rest.is_some() {
            self.skip_space();
        }
        rest.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        match self.rest.chars().next()? {
            '{' => self.dict(depth),
            '[' => self.list("[", "]", depth).map(|(items, _)| Value::Array(items)),
            '(' => {
                // Brackets around one value without a comma are not a tuple.
                let (mut items, comma) = self.list("(", ")", depth)?;
                if items.len() == 1 && !comma { items.pop() } else { Some(Value::Array(items)) }
            }
            '0'..='9' | '-' | '+' | '.' => self.number(),
            _ => self.name().or_else(|| self.text().map(Value::String)),
        }
    }

    /// The values between two brackets, and whether a comma comes after one of them.
    fn list(&mut self, open: &str, close: &str, depth: usize) -> Option<(Vec<Value>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        self.takes(open);
        while !self.takes(close) {
            if !items.is_empty() && !comma {
                return None;
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
            let found = self.takes(",");
            if !found {
                return self.takes(close).then_some((items, comma));
            }
            comma = true;
        }
        Some((items, comma))
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        let mut fields = Map::new();
        self.takes("{");
        while !self.takes("}") {
            let key = self.value(depth + 1)?;
            self.skip_space();
            if !self.takes(":") {
                return None;
            }
            let value = self.value(depth + 1)?;
            self.skip_space();
            if let Value::String(key) = key {
                fields.insert(key, value);
            }
            if !self.takes(",") {
                return self.takes("}").then_some(Value::Object(fields));
            }
        }
        Some(Value::Object(fields))
    }

    fn name(&mut self) -> Option<Value> {
        let names = [("None", Value::Null), ("True", Value::Bool(true)), ("False", Value::Bool(false))];
        let (name, value) = names.into_iter().find(|(name, _)| self.rest.starts_with(name))?;
        let after = &self.rest[name.len()..];
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        self.rest = if ends { after } else { self.rest };
        ends.then_some(value)
    }

    fn number(&mut self) -> Option<Value> {
        let digits = self.rest.trim_start_matches(['-', '+']);
        let signs = &self.rest[..self.rest.len() - digits.len()];
        let mut end = 0;
        for (at, c) in digits.char_indices() {
            let signs_an_exponent = matches!(c, '-' | '+') && digits[..at].ends_with(['e', 'E']);
            if !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || signs_an_exponent) {
                break;
            }
            end = at + c.len_utf8();
        }
        let (number, rest) = digits.split_at(end);
        self.rest = rest;
        let number = number.replace('_', "");
        let negative = signs.matches('-').count() % 2 == 1;
        match number.parse::<i64>() {
            // Python rejects other whole numbers that begin with a zero.
            Ok(whole) if whole == 0 || !number.starts_with('0') => {
                Some(Value::from(if negative { -whole } else { whole }))
            }
            Ok(_) => None,
            Err(_) => {
                let float: f64 =
                    number.parse().ok().filter(|_| number.starts_with(|c: char| c.is_ascii_digit() || c == '.'))?;
                Number::from_f64(if negative { -float } else { float }).map(Value::Number)
            }
        }
    }

    /// A string literal, or several adjacent ones, which are joined.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let letters = self.rest.find(['\'', '"'])?;
            let raw = match &self.rest[..letters] {
                "" | "u" | "U" => false,
                "r" | "R" => true,
                _ => return None,
            };
            self.rest = &self.rest[letters..];
            self.quoted(raw, &mut text)?;
            self.skip_space();
            let goes_on = ["'", "\"", "r'", "r\"", "R'", "R\"", "u'", "u\"", "U'", "U\""];
            if !goes_on.iter().any(|start| self.rest.starts_with(start)) {
                return Some(text);
            }
        }
    }

    fn quoted(&mut self, raw: bool, text: &mut String) -> Option<()> {
        let quote = self.next()?;
        // Two more quotes open a triple-quoted string; one more closes an empty string.
        let two = [quote; 2].iter().collect::<String>();
        let triple = self.rest.starts_with(&two);
        self.rest = if triple { &self.rest[2..] } else { self.rest };
        let end = if triple { format!("{two}{quote}") } else { quote.to_string() };
        loop {
            if let Some(rest) = self.rest.strip_prefix(end.as_str()) {
                self.rest = rest;
                return Some(());
            }
            match self.next()? {
                '\n' | '\r' if !triple => return None,
                '\\' if raw => text.extend(['\\', self.next()?]),
                '\\' => self.escaped(text)?,
                c => text.push(c),
            }
        }
    }

    /// Reads an escape sequence after its backslash.
    fn escaped(&mut self, text: &mut String) -> Option<()> {
        let c = self.next()?;
        let plain = match c {
            '\n' => return Some(()),
            '\\' | '\'' | '"' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            'x' => self.coded(2)?,
            'u' => self.coded(4)?,
            'U' => self.coded(8)?,
            '0'..='7' => {
                let more = self.rest.chars().take(2).take_while(|c| c.is_digit(8)).count();
                let digits = format!("{c}{}", &self.rest[..more]);
                self.rest = &self.rest[more..];
                char::from_u32(u32::from_str_radix(&digits, 8).ok()?)?
            }
            // Characters by their Unicode name are not supported.
            'N' => return None,
            other => {
                text.push('\\');
                other
            }
        };
        text.push(plain);
        Some(())
    }

    /// The character with a code of `digits` hexadecimal digits. Half of a surrogate pair, which is not a character, becomes the
    /// replacement character.
    fn coded(&mut self, digits: usize) -> Option<char> {
        let code = self.rest.get(..digits).filter(|code| code.chars().all(|c| c.is_ascii_hexdigit()))?;
        let code = u32::from_str_radix(code, 16).ok()?;
        self.rest = &self.rest[digits..];
        match code {
            0xd800..=0xdfff => Some(char::REPLACEMENT_CHARACTER),
            _ => char::from_u32(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn values_are_pythons() {
        for (text, value) in [
            (
                r#" {'a': "b", 'c': [1, -2, 3.5, 1e3,], 'd': (), } "#,
                json!({"a": "b", "c": [1, -2, 3.5, 1000.0], "d": []}),
            ),
            ("[None, True, False]", json!([null, true, false])),
            ("('x')", json!("x")),
            ("('x',)", json!(["x"])),
            (r"'it\'s \x41\u00e9\101\q' ", json!("it's AéA\\q")),
            (r#"'one' "two" r'\n'"#, json!("onetwo\\n")),
            ("'''it's\nlong'''", json!("it's\nlong")),
            ("''", json!("")),
            ("{1: 'a', 'b': 'c'}", json!({"b": "c"})),
            (r"'\ud83d'", json!("\u{fffd}")),
            ("1_000", json!(1000)),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_literal_is_none() {
        for text in [
            "",
            "{",
            "{'a'}",
            "{'a': }",
            "['a' 'b'",
            "[1 2]",
            "[,]",
            "'a\n'",
            "null",
            "true",
            "Nonesuch",
            "a",
            "b'x'",
            "f'x'",
            r"'\N{DASH}'",
            "{'a': 'b'} more",
            "01",
            "1.2.3",
            "'a",
            r"'\x4'",
            "1 + 1",
            "inf",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), None);
    }

    proptest! {
        /// JSON without `true`, `false` and `null` is also valid Python.
        #[test]
        fn reads_what_json_writes(texts in proptest::collection::vec(any::<String>(), 0..4), number in any::<i32>()) {
            let value = json!({"texts": texts, "number": number});
            prop_assert_eq!(parse(&value.to_string()), Some(value));
        }

        #[test]
        fn never_panics(text in r#"[\[\](){}'"\\,: a-zA-Z0-9\n.+_-]{0,40}"#) {
            let _ = parse(&text);
        }
    }
}
