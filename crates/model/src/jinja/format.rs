//! Python's two ways to format values: `%` and `str.format`.

use super::limits::{Budget, Fault, unsupported};
use super::lookup;
use super::passed::Passed;
use super::strings::{Place, pad};
use super::value::{Value, float_text};

/// The largest precision. A float has at most 1,074 digits after the point.
const DIGITS: i128 = 1100;

/// How a value is formatted.
#[derive(Debug, Default, Clone)]
struct Layout {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: i128,
    grouping: Option<char>,
    precision: Option<i128>,
    kind: Option<char>,
}

// --- `%` ---

/// `text % values`.
///
/// # Errors
/// If the values do not match the directives.
pub fn percent(text: &str, values: &Value, budget: &Budget) -> Result<Value, Fault> {
    let positional = match values {
        Value::Tuple(items) => items.all.clone(),
        other => vec![other.clone()],
    };
    let mapping = matches!(values, Value::Dict(_) | Value::List(_));
    let mut filling = Filling { values, next: positional.into_iter(), by_name: false };
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            budget.make(c.len_utf8())?;
            out.push(c);
            continue;
        }
        let value = filling.take(&mut chars, budget)?;
        budget.make(value.len())?;
        out.push_str(&value);
    }
    if filling.next.next().is_some() && !mapping && !filling.by_name {
        return Err(Fault::new("not all arguments converted during string formatting"));
    }
    Ok(Value::text(&out))
}

struct Filling<'v> {
    values: &'v Value,
    next: std::vec::IntoIter<Value>,
    by_name: bool,
}

impl Filling<'_> {
    fn next_value(&mut self) -> Result<Value, Fault> {
        self.next.next().ok_or_else(|| Fault::new("not enough arguments for format string"))
    }

    /// The text of one directive, which starts after its `%`.
    fn take(&mut self, chars: &mut std::str::Chars, budget: &Budget) -> Result<String, Fault> {
        let mut named = None;
        if chars.as_str().starts_with('(') {
            let rest = &chars.as_str()[1..];
            let end = rest.find(')').ok_or_else(|| Fault::new("incomplete format key"))?;
            named = Some(lookup_name(self.values, &rest[..end], budget)?);
            self.by_name = true;
            *chars = rest[end + 1..].chars();
        }
        let mut layout = Layout::default();
        while let Some(flag) = chars.as_str().chars().next().filter(|c| "-+ #0".contains(*c)) {
            chars.next();
            match flag {
                '-' => layout.align = Some('<'),
                '+' => layout.sign = Some('+'),
                ' ' => layout.sign = layout.sign.or(Some(' ')),
                '#' => layout.alternate = true,
                _ => layout.zero = true,
            }
        }
        layout.width = self.number(chars)?.unwrap_or(0);
        if layout.width < 0 {
            layout.align = Some('<');
            layout.width = layout.width.saturating_neg();
        }
        if chars.as_str().starts_with('.') {
            chars.next();
            layout.precision = Some(self.number(chars)?.unwrap_or(0).max(0));
        }
        while chars.as_str().starts_with(['h', 'l', 'L']) {
            chars.next();
        }
        let kind = chars.next().ok_or_else(|| Fault::new("incomplete format"))?;
        if kind == '%' {
            return Ok("%".to_owned());
        }
        let value = match named {
            Some(value) => value,
            None => self.next_value()?,
        };
        directive(kind, &value, layout, budget)
    }

    /// Reads a number, or `*`, which takes one of the values.
    fn number(&mut self, chars: &mut std::str::Chars) -> Result<Option<i128>, Fault> {
        if chars.as_str().starts_with('*') {
            chars.next();
            return self.next_value()?.as_int().map(Some).ok_or_else(|| Fault::new("* wants int"));
        }
        let text = chars.as_str();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        if end == 0 {
            return Ok(None);
        }
        *chars = text[end..].chars();
        text[..end].parse().map(Some).map_err(|_| Fault::new("a width or precision is too big"))
    }
}

fn lookup_name(values: &Value, name: &str, budget: &Budget) -> Result<Value, Fault> {
    let Value::Dict(dict) = values else { return Err(Fault::new("format requires a mapping")) };
    budget.work(1)?;
    dict.get_text(name).cloned().ok_or_else(|| Fault::new(format!("no value for the key '{name}'")))
}

fn directive(kind: char, value: &Value, mut layout: Layout, budget: &Budget) -> Result<String, Fault> {
    layout.kind = Some(kind);
    match kind {
        's' | 'r' => {
            let mut text = String::new();
            if kind == 's' {
                value.print(&mut text, budget)?
            } else {
                value.represent(&mut text, budget)?
            }
            layout.zero = false;
            layout.align = layout.align.or(Some('>'));
            lay_text(&text, &layout, budget)
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole = match value.used()? {
                Value::Float(number) if matches!(kind, 'd' | 'i' | 'u') => truncated(*number)?,
                other => other.as_int().ok_or_else(|| {
                    Fault::new(format!("%{kind} format: a real number is required, not {}", other.type_name()))
                })?,
            };
            layout.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
            lay_int(whole, &layout, budget)
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => match value.used()?.as_float() {
            Some(number) => lay_float(number, &layout, budget),
            None => Err(Fault::new(format!("must be real number, not {}", value.type_name()))),
        },
        'c' => {
            let text = match value.used()? {
                Value::Int(code) => u32::try_from(*code).ok().and_then(char::from_u32).map(String::from),
                Value::Text(text) => Some(text.to_string()).filter(|text| text.chars().count() == 1),
                _ => None,
            };
            let text = text.ok_or_else(|| Fault::new("%c requires int or char"))?;
            layout.align = layout.align.or(Some('>'));
            layout.zero = false;
            lay_text(&text, &Layout { precision: None, ..layout }, budget)
        }
        'a' => Err(unsupported("the conversion `a`")),
        other => Err(Fault::new(format!("unsupported format character '{other}'"))),
    }
}

/// The integer part of a float.
///
/// # Errors
/// NaN, infinity, or an integer that is too large.
pub fn truncated(number: f64) -> Result<i128, Fault> {
    match number {
        n if n.is_nan() => Err(Fault::new("cannot convert float NaN to integer")),
        n if n.is_infinite() => Err(Fault::new("cannot convert float infinity to integer")),
        n if n.abs() >= 1e38 => Err(unsupported("an integer of more than 127 bits")),
        n => Ok(n.trunc() as i128),
    }
}

// --- Layout ---

fn lay_text(text: &str, layout: &Layout, budget: &Budget) -> Result<String, Fault> {
    let kept = match layout.precision.and_then(|most| usize::try_from(most).ok()) {
        Some(most) => text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at]),
        None => text,
    };
    padded(kept, layout, '<', budget)
}

fn padded(text: &str, layout: &Layout, default: char, budget: &Budget) -> Result<String, Fault> {
    let place = match layout.align.unwrap_or(default) {
        '<' => Place::Left,
        '^' => return centered(text, layout, budget),
        _ => Place::Right,
    };
    pad(text, layout.width, layout.fill.unwrap_or(' '), place, budget)
}

/// Centers a text as `format` does: with an odd number of fill characters, one more on the right.
fn centered(text: &str, layout: &Layout, budget: &Budget) -> Result<String, Fault> {
    let length = text.chars().count() as i128;
    let left = (layout.width - length).max(0) / 2;
    let fill = layout.fill.unwrap_or(' ');
    let half = pad(text, length + left, fill, Place::Right, budget)?;
    pad(&half, layout.width, fill, Place::Left, budget)
}

/// Formats a number from its digits: sign, prefix, and fill characters or zeros.
fn lay_number(negative: bool, prefix: &str, digits: &str, layout: &Layout, budget: &Budget) -> Result<String, Fault> {
    let sign = match (negative, layout.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        (false, _) => "",
    };
    let head = format!("{sign}{prefix}");
    let zeros = layout.align == Some('=') || (layout.zero && layout.align.is_none());
    if zeros {
        if layout.grouping.is_some() && layout.width > 0 {
            return Err(unsupported("zeros with separators of thousands"));
        }
        let fill = layout.fill.unwrap_or(if layout.zero { '0' } else { ' ' });
        let body = pad(digits, layout.width.saturating_sub(head.chars().count() as i128), fill, Place::Right, budget)?;
        return Ok(head + &body);
    }
    padded(&(head + digits), layout, '>', budget)
}

fn lay_int(value: i128, layout: &Layout, budget: &Budget) -> Result<String, Fault> {
    let size = value.unsigned_abs();
    let (prefix, mut digits) = match layout.kind.unwrap_or('d') {
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        'o' => ("0o", format!("{size:o}")),
        'b' => ("0b", format!("{size:b}")),
        _ => ("", size.to_string()),
    };
    if let Some(precision) = layout.precision {
        digits = pad(&digits, precision, '0', Place::Right, budget)?;
    }
    let digits = grouped(&digits, layout);
    lay_number(value < 0, if layout.alternate { prefix } else { "" }, &digits, layout, budget)
}

/// Digits with the layout's thousands separators.
fn grouped(digits: &str, layout: &Layout) -> String {
    let Some(separator) = layout.grouping else { return digits.to_owned() };
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i) % 3 == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

fn lay_float(value: f64, layout: &Layout, budget: &Budget) -> Result<String, Fault> {
    let precision = layout.precision.unwrap_or(6);
    if precision > DIGITS {
        return Err(unsupported(&format!("a precision above {DIGITS}")));
    }
    let precision = usize::try_from(precision).unwrap_or(0);
    let kind = layout.kind.unwrap_or('r');
    let size = value.abs();
    let mut digits = match kind {
        _ if !size.is_finite() => float_text(size),
        'f' | 'F' => format!("{size:.precision$}"),
        'e' | 'E' => exponential(size, precision),
        'g' | 'G' if layout.alternate => return Err(unsupported("the flag `#` of `g`")),
        'g' | 'G' => general(size, precision.max(1)),
        '%' => format!("{:.precision$}%", size * 100.0),
        _ => float_text(size),
    };
    if layout.alternate && precision == 0 && size.is_finite() {
        return Err(unsupported("the flag `#` of a float"));
    }
    if kind.is_ascii_uppercase() {
        digits = digits.to_uppercase();
    }
    lay_number(value.is_sign_negative() && !value.is_nan(), "", &grouped(&digits, layout), layout, budget)
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(size: f64, precision: usize) -> String {
    let scientific = format!("{size:.*e}", precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..precision as i32).contains(&exponent) {
        let behind = usize::try_from(precision as i32 - 1 - exponent).unwrap_or(0);
        return trim(&format!("{size:.behind$}"));
    }
    let text = exponential(size, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    format!("{}e{exponent}", trim(digits))
}

// --- `str.format` ---

/// `text.format(...)`.
///
/// # Errors
/// If the text is not a valid format, or the values do not match it.
pub fn format(text: &str, passed: &Passed, budget: &Budget) -> Result<Value, Fault> {
    let mut out = String::new();
    let mut rest = text;
    let mut counted = Counted::default();
    while let Some(at) = rest.find(['{', '}']) {
        budget.make(at)?;
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(Fault::new("Single '}' encountered in format string"));
        }
        let end = rest.find(['{', '}']).ok_or_else(|| Fault::new("expected '}' before end of string"))?;
        if rest[end..].starts_with('{') {
            return Err(unsupported("a field within a field of `format`"));
        }
        let filled = field(&rest[..end], passed, &mut counted, budget)?;
        budget.make(filled.len())?;
        out.push_str(&filled);
        rest = &rest[end + 1..];
    }
    budget.make(rest.len())?;
    out.push_str(rest);
    Ok(Value::text(&out))
}

#[derive(Default)]
struct Counted {
    next: usize,
    by_number: bool,
}

fn field(text: &str, passed: &Passed, counted: &mut Counted, budget: &Budget) -> Result<String, Fault> {
    let (name, spec) = text.split_once(':').unwrap_or((text, ""));
    let (name, conversion) = match name.split_once('!') {
        Some((name, conversion)) => (name, Some(conversion)),
        None => (name, None),
    };
    let value = field_value(name, passed, counted, budget)?;
    let mut converted = String::new();
    let value = match conversion {
        None => value,
        Some("s") => {
            value.print(&mut converted, budget)?;
            Value::text(&converted)
        }
        Some("r") => {
            value.represent(&mut converted, budget)?;
            Value::text(&converted)
        }
        Some(other) => return Err(unsupported(&format!("the conversion `!{other}`"))),
    };
    formatted(&value, spec, budget)
}

fn field_value(name: &str, passed: &Passed, counted: &mut Counted, budget: &Budget) -> Result<Value, Fault> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(end);
    let mut value = if first.is_empty() || first.bytes().all(|b| b.is_ascii_digit()) {
        let automatic = first.is_empty();
        if (automatic && counted.by_number) || (!automatic && counted.next > 0) {
            return Err(Fault::new("cannot switch between automatic field numbering and manual field specification"));
        }
        let index = if automatic { counted.next } else { first.parse().unwrap_or(usize::MAX) };
        counted.next += usize::from(automatic);
        counted.by_number |= !automatic;
        let missing = || Fault::new("a replacement index is out of range for the positional arguments");
        passed.positional.get(index).cloned().ok_or_else(missing)?
    } else {
        let found = passed.named.iter().find(|(named, _)| **named == *first);
        found.map(|(_, value)| value.clone()).ok_or_else(|| Fault::new(format!("no value for the field '{first}'")))?
    };
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = lookup::attribute(&value, &after[..end])?;
            rest = &after[end..];
        } else if let Some((key, after)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            let key = key.parse().map_or_else(|_| Value::text(key), Value::Int);
            value = lookup::item(&value, &key, budget)?;
            rest = after;
        } else {
            return Err(Fault::new("a field of a format string cannot be read"));
        }
    }
    Ok(value)
}

/// `format(value, spec)`.
fn formatted(value: &Value, spec: &str, budget: &Budget) -> Result<String, Fault> {
    if spec.is_empty() {
        let mut out = String::new();
        value.print(&mut out, budget)?;
        return Ok(out);
    }
    let layout = layout(spec)?;
    let kind = layout.kind;
    match value {
        Value::Text(text) if matches!(kind, None | Some('s')) => {
            if layout.sign.is_some() || layout.alternate || layout.grouping.is_some() || layout.align == Some('=') {
                return Err(Fault::new("a sign, `#`, `=` or separator is not allowed in the format of a string"));
            }
            lay_text(text, &layout, budget)
        }
        Value::Int(_) | Value::Bool(_) if matches!(kind, None | Some('d' | 'x' | 'X' | 'o' | 'b')) => {
            if layout.precision.is_some() {
                return Err(Fault::new("Precision not allowed in integer format specifier"));
            }
            if layout.grouping.is_some() && !matches!(kind, None | Some('d')) {
                return Err(unsupported("separators of digits that are not decimal"));
            }
            lay_int(value.as_int().unwrap_or(0), &layout, budget)
        }
        Value::Int(_) | Value::Bool(_) | Value::Float(_)
            if matches!(kind, Some('f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%')) =>
        {
            lay_float(value.as_float().unwrap_or(0.0), &layout, budget)
        }
        Value::Float(number) if kind.is_none() && layout.precision.is_none() => lay_float(*number, &layout, budget),
        other => Err(unsupported(&format!("the format `{spec}` of a {}", other.type_name()))),
    }
}

/// Parses `[[fill]align][sign][#][0][width][,][.precision][type]`.
fn layout(spec: &str) -> Result<Layout, Fault> {
    let mut layout = Layout::default();
    let is_align = |c: char| "<>=^".contains(c);
    let chars: Vec<char> = spec.chars().collect();
    let mut at = 0;
    if chars.get(1).copied().is_some_and(is_align) {
        layout.fill = chars.first().copied();
        at = 1;
    }
    if chars.get(at).copied().is_some_and(is_align) {
        layout.align = chars.get(at).copied();
        at += 1;
    }
    let mut take = |wanted: &str| {
        let found = chars.get(at).copied().filter(|c| wanted.contains(*c));
        at += usize::from(found.is_some());
        found
    };
    layout.sign = take("+- ");
    layout.alternate = take("#").is_some();
    layout.zero = take("0").is_some();
    let number = |take: &mut dyn FnMut(&str) -> Option<char>| {
        let mut value: Option<i128> = None;
        while let Some(digit) = take("0123456789") {
            let digit = i128::from(digit.to_digit(10).unwrap_or(0));
            value = Some(value.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        value
    };
    layout.width = number(&mut take).unwrap_or(0);
    layout.grouping = take(",_");
    if take(".").is_some() {
        let missing = || Fault::new("Format specifier missing precision");
        layout.precision = Some(number(&mut take).ok_or_else(missing)?);
    }
    layout.kind = take("sdxXobfFeEgG%");
    layout.fill = layout.fill.or(layout.zero.then_some('0'));
    match at == chars.len() {
        true => Ok(layout),
        false => Err(unsupported(&format!("the format `{}`", super::value::shortened(spec)))),
    }
}
