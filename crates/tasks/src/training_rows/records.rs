//! Rows of the families `kv` (retrieval from a JSON object), `passkey` and `copy`.

use std::collections::HashSet;

use super::books::Books;
use super::draw::percent;
use super::needles::{haystack_units, word_key};
use super::row::{Class, RowBuilder, scatter};
use super::train_file::FILE;
use crate::ruler::definition;
use crate::ruler::substitute;
use crate::ruler::{NeedleTexts, uuid};
use crate::seed::Draw;

/// Writes a JSON object of random keys and values and asks for some of the values.
pub fn write_pairs(row: &mut RowBuilder, draw: &mut Draw) {
    let text = &FILE.kv;
    let Some((before, after)) = text.context.split_once("{context}") else { return };
    row.context(before);
    let kind = draw.below(10);
    let record = |draw: &mut Draw| match kind {
        0..=6 => (uuid(draw.bits()), uuid(draw.bits())),
        7 => (word_key(draw), draw.between(1000, 9_999_999).to_string()),
        8 => (word_key(draw), uuid(draw.bits())),
        _ => (draw.between(10_000, 9_999_999).to_string(), word_key(draw)),
    };
    let line = |(key, value): &(String, String)| format!("\"{key}\": \"{value}\"");
    let a_question =
        |(key, value): &(String, String)| (substitute(&text.ask, &[("key", key)]), format!(" \"{value}\""));
    let first = record(draw);
    let (question, answer) = a_question(&first);
    let one = row.question_cost(&question, &answer) + 2;
    let questions = (row.length() * draw.between(3, 40) / 100).max(one);
    let mut room = row.left().saturating_sub(row.cost(after) + questions + 4);
    let mut taken = HashSet::new();
    let mut records = Vec::new();
    let mut next = first;
    loop {
        // One more token for the brace and the comma.
        let cost = row.cost(&format!("\n {},", line(&next))) + 1;
        if cost > room {
            break;
        }
        if taken.insert(next.0.clone()) {
            room -= cost;
            records.push(next);
        }
        next = record(draw);
    }
    let lines: Vec<String> = records.iter().map(line).collect();
    row.context(&format!("{{{}}}", lines.join(",\n ")));
    row.context(after);
    draw.shuffle(&mut records);
    for (number, asked) in records.iter().enumerate() {
        let (question, answer) = a_question(asked);
        let question = if number == 0 { question } else { format!("\n\n{question}") };
        if !row.ask(&question, &answer, Class::Answer) {
            return;
        }
    }
}

/// Writes lines of noise or sentences with one passkey, and asks for it.
pub fn write_passkey(row: &mut RowBuilder, draw: &mut Draw, books: &Books) {
    let text = &FILE.passkey;
    let Some((before, after)) = text.context.split_once("{context}") else { return };
    let noise = definition("niah").and_then(|(_, file)| toml::from_str::<NeedleTexts>(file).ok()).map(|s| s.noise);
    row.context(before);
    let digits = draw.between(3, 6) as u32;
    let value = draw.between(1, 10usize.pow(digits)).to_string();
    let statement = substitute(&text.statement, &[("value", &value)]);
    let answer = format!(" {value}.");
    let room = row.left().saturating_sub(
        row.cost(after) + row.cost(&format!("\n{statement}")) + row.question_cost(&text.ask, &answer) + 2,
    );
    let in_noise = percent(70, draw);
    let units = haystack_units(row, room, in_noise, &noise.unwrap_or_default(), draw, books);
    // As published, a line of noise precedes the line of the key, and another follows it.
    let context = if in_noise && percent(70, draw) {
        let (head, tail) = units.split_at(draw.below(units.len() + 1));
        format!("{}\n{statement}\n{}", head.join(" "), tail.join(" "))
    } else {
        scatter(units, vec![statement], draw).join(if in_noise { "\n" } else { " " })
    };
    row.context(&context);
    row.context(after);
    row.ask(&text.ask, &answer, Class::Answer);
}

/// Writes random words, UUIDs, numbers and letters, in which some sequences are repeated.
pub fn write_copy(row: &mut RowBuilder, draw: &mut Draw) {
    let mut runs: Vec<Vec<String>> = Vec::new();
    loop {
        let repeats = !runs.is_empty() && percent(60, draw);
        let run: Vec<String> = match repeats {
            true => runs[draw.below(runs.len())].clone(),
            false => {
                let pieces = draw.between(4, 12);
                (0..pieces).map(|_| piece(draw)).collect()
            }
        };
        // A repeated sequence can be predicted from its third piece on.
        let seen = if repeats { 2.min(run.len()) } else { run.len() };
        let (head, tail) = (run[..seen].concat(), run[seen..].concat());
        if row.cost(&head) + row.cost(&tail) > row.left() {
            return;
        }
        row.context(&head);
        if !tail.is_empty() {
            row.push(&tail, Class::Copy, false);
        }
        if !repeats {
            runs.push(run);
        }
    }
}

fn piece(draw: &mut Draw) -> String {
    match draw.below(4) {
        0 => format!(" {}", uuid(draw.bits())),
        1 => format!(" {}", draw.between(1, 9_999_999)),
        2 => {
            let length = draw.between(3, 7);
            format!(" {}", draw.letters(length, b'a'))
        }
        _ => format!(" {}", word_key(draw)),
    }
}
