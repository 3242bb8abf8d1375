//! The date that templates see.

use super::limits::{Fault, unsupported};

/// Formats the date that templates see as today's. It is fixed, because prompts that change with the day would make runs unrepeatable. It
/// is the default date of the Llama 3 templates: Friday, 26 July 2024, midnight.
///
/// # Errors
/// A directive of C's `strftime` that depends on the machine or is unknown.
pub fn strftime(format: &str) -> Result<String, Fault> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (directive, plain) = match chars.next() {
            Some('-') => (chars.next().filter(|c| *c != 'f'), true),
            other => (other, false),
        };
        let text = directive.and_then(field);
        let Some(text) = text.filter(|text| !plain || text.bytes().all(|b| b.is_ascii_digit() || b == b' ')) else {
            let sign = if plain { "-" } else { "" };
            return Err(unsupported(&format!("strftime_now: `%{sign}{}`", directive.unwrap_or(' '))));
        };
        out.push_str(if plain { without_padding(text) } else { text });
    }
    Ok(out)
}

fn without_padding(digits: &str) -> &str {
    match digits.trim_start_matches(['0', ' ']) {
        "" if !digits.is_empty() => "0",
        other => other,
    }
}

fn field(directive: char) -> Option<&'static str> {
    Some(match directive {
        'Y' | 'G' => "2024",
        'y' | 'g' => "24",
        'C' => "20",
        'm' => "07",
        'd' | 'e' => "26",
        'b' | 'h' => "Jul",
        'B' => "July",
        'a' => "Fri",
        'A' => "Friday",
        'j' => "208",
        'u' | 'w' => "5",
        'U' => "29",
        'W' | 'V' => "30",
        'H' | 'M' | 'S' => "00",
        'I' => "12",
        'k' => " 0",
        'l' => "12",
        'p' => "AM",
        'P' => "am",
        'f' => "000000",
        'D' | 'x' => "07/26/24",
        'F' => "2024-07-26",
        'T' | 'X' => "00:00:00",
        'R' => "00:00",
        'r' => "12:00:00 AM",
        'c' => "Fri Jul 26 00:00:00 2024",
        'Z' | 'z' => "",
        'n' => "\n",
        't' => "\t",
        '%' => "%",
        _ => return None,
    })
}
