//! Wordings of the tasks other than the published ones: those in `training_rows.toml`, and random ones.
//!
//! A model trained on a handful of wordings recognises these and fails on others. So many wordings have no fixed text: random
//! words surround the placeholders, the same throughout a row. What remains to be learnt is the task: to find the value next to a
//! key, in whatever words.

use super::draw::percent;
use super::train_file::{ChainWording, DocumentWording, FILE, ListWording, NeedleWording};
use crate::ruler::NeedleKind;
use crate::ruler::World;
use crate::seed::Draw;
use crate::text::words::dictionary_words;

/// The source of a row's wording.
enum WordingSource<'a, T> {
    /// The task.
    Published,
    /// `training_rows.toml`.
    Listed(&'a T),
    /// Random words.
    Drawn,
}

fn wording_source<'a, T>(listed: &'a [T], draw: &mut Draw) -> WordingSource<'a, T> {
    let wording = &FILE.wording;
    match draw.below(100) {
        n if n >= wording.percent => WordingSource::Published,
        n if n * 100 >= wording.percent * wording.drawn => WordingSource::Listed(draw.pick(listed)),
        _ => WordingSource::Drawn,
    }
}

/// The wording of needles and their questions; `None` for the published one.
pub fn needles(value: NeedleKind, draw: &mut Draw) -> Option<NeedleWording> {
    match wording_source(&FILE.wording.needles, draw) {
        WordingSource::Published => None,
        WordingSource::Listed(listed) => Some(listed.clone()),
        WordingSource::Drawn => Some(drawn_needles(value, draw)),
    }
}

/// The wording of assignments; `None` for the published one.
pub fn chains(draw: &mut Draw) -> Option<ChainWording> {
    match wording_source(&FILE.wording.chains, draw) {
        WordingSource::Published => None,
        WordingSource::Listed(listed) => Some(listed.clone()),
        WordingSource::Drawn => Some(drawn_chains(draw)),
    }
}

/// The wording of a list and of the question for `count` of its words; `None` for the published one.
pub fn common(count: &str, draw: &mut Draw) -> Option<ListWording> {
    match wording_source(&FILE.wording.common, draw) {
        WordingSource::Published => None,
        WordingSource::Listed(listed) => {
            Some(ListWording { ask: listed.ask.replace("{count}", count), ..listed.clone() })
        }
        WordingSource::Drawn => {
            let (intro, ask) = (intro(draw), list_question(count, draw));
            let item = draw.pick(&FILE.wording.items).clone();
            Some(ListWording { intro, ask, item })
        }
    }
}

/// The wording around coded text; `None` for the published one.
pub fn frequent(draw: &mut Draw) -> Option<ListWording> {
    match wording_source(&FILE.wording.frequent, draw) {
        WordingSource::Published => None,
        WordingSource::Listed(listed) => Some(listed.clone()),
        WordingSource::Drawn => {
            let count = draw.pick(&["three", "3", "the three", "three words", "3 words"]);
            let (intro, ask) = (intro(draw), list_question(count, draw));
            Some(ListWording { intro, ask, item: String::new() })
        }
    }
}

/// The wording around documents; `None` for the published one.
pub fn documents(draw: &mut Draw) -> Option<DocumentWording> {
    match wording_source(&FILE.wording.documents, draw) {
        WordingSource::Published => None,
        WordingSource::Listed(listed) => Some(listed.clone()),
        WordingSource::Drawn => Some(DocumentWording {
            intro: intro(draw),
            ask: match draw.below(3) {
                0 => "{query}".to_owned(),
                _ => format!("{}: {{query}}", capital(&words(1, 4, draw))),
            },
            prefix: match draw.below(4) {
                0 => String::new(),
                1 => format!("\n{}:", capital(&words(1, 1, draw))),
                _ => format!(" {}:", capital(&words(1, 2, draw))),
            },
            frame: draw.pick(&FILE.wording.frames).clone(),
        }),
    }
}

fn drawn_needles(value: NeedleKind, draw: &mut Draw) -> NeedleWording {
    // A value that is a word cannot be told from other words beside it, so no word may follow it.
    let (between, behind) = if value == NeedleKind::Words { (2, 0) } else { (4, 4) };
    let joint = match draw.below(4) {
        0 => draw.pick(&[":", " =", " ->", " -", ","]).to_string(),
        1 => format!(" {}:", words(1, between, draw)),
        _ => format!(" {}", typed(1, between, draw)),
    };
    // In half of the wordings the value precedes its key, which is harder: it is read before the key shows that it matters.
    let (first, second) = if percent(50, draw) { ("{key}", "{value}") } else { ("{value}", "{key}") };
    let start = if percent(70, draw) { capital(&lead(draw)) } else { String::new() };
    let end = if behind > 0 && percent(45, draw) { format!(" {}", typed(1, behind, draw)) } else { String::new() };
    let stop = draw.pick(&[".", ".", ".", ";", "!", ""]);
    let statement = format!("{start}{first}{joint} {second}{end}{stop}");
    let (ask, prefix) = question("{key}", draw);
    let (ask_all, prefix_all) = if percent(50, draw) { question("{key}", draw) } else { (ask.clone(), prefix.clone()) };
    let plural = |text: &str| text.replace("{one}", "{type}");
    NeedleWording {
        intro: if percent(50, draw) { draw.pick(&FILE.wording.needles).intro.clone() } else { intro(draw) },
        statement,
        ask,
        prefix,
        ask_all: plural(&ask_all),
        prefix_all: plural(&prefix_all),
    }
}

/// Words before the key of a statement.
fn lead(draw: &mut Draw) -> String {
    let comma = if percent(25, draw) { "," } else { "" };
    format!("{}{comma} ", typed(1, 6, draw))
}

/// A question about `about`, and the beginning of its answer.
fn question(about: &str, draw: &mut Draw) -> (String, String) {
    let stop = draw.pick(&["?", "?", "?", ".", ":"]);
    let ask = match draw.below(10) {
        0 => format!("{about}{}", draw.pick(&[":", "?", " =", " ->"])),
        1..=5 => format!("{} {about}{stop}", capital(&typed(1, 6, draw))),
        _ => format!("{} {about} {}{stop}", capital(&typed(1, 4, draw)), typed(1, 5, draw)),
    };
    let prefix = match draw.below(10) {
        0..=2 => String::new(),
        3 => format!("{}{}:", draw.pick(&[" ", "\n"]), capital(&words(1, 2, draw))),
        4 => format!(" {}", capital(&typed(1, 5, draw))),
        5 => format!(" {} {about}", capital(&typed(1, 4, draw))),
        6 => format!(" {about} {}", typed(1, 3, draw)),
        7 => format!(" {} {about} {}:", capital(&typed(1, 3, draw)), typed(1, 3, draw)),
        _ => format!(" {} {about} {}", capital(&typed(1, 4, draw)), typed(1, 4, draw)),
    };
    (ask, prefix)
}

fn drawn_chains(draw: &mut Draw) -> ChainWording {
    let start = if percent(60, draw) { format!("{} ", words(1, 2, draw)) } else { String::new() };
    let start = if percent(50, draw) { capital(&start) } else { start };
    let joint = match draw.below(3) {
        0 => draw.pick(&[" =", " :=", ":", " <-", " is"]).to_string(),
        _ => format!(" {}", words(1, 3, draw)),
    };
    let of_link = if percent(50, draw) { joint.clone() } else { format!("{joint} {}", words(1, 3, draw)) };
    let stop = draw.pick(&["", ".", ";"]);
    let ends = draw.pick(&[": ", ": ", ":", "? ", "?", " "]);
    let ask = match draw.below(3) {
        0 => format!("{} {{query}}{ends}", capital(&words(2, 8, draw))),
        1 => format!("{} {{query}} {}{ends}", capital(&words(1, 5, draw)), words(1, 5, draw)),
        _ => format!(
            "{} {{query}}? {} {{num_v}} {}{ends}",
            capital(&words(1, 6, draw)),
            capital(&words(1, 4, draw)),
            words(1, 5, draw)
        ),
    };
    ChainWording {
        intro: if percent(40, draw) { draw.pick(&FILE.wording.chains).intro.clone() } else { intro(draw) },
        first: format!("{start}{{variable}}{joint} {{value}}{stop}"),
        link: format!("{start}{{variable}}{of_link} {{previous}}{stop}"),
        ask,
    }
}

/// A question for a list of `count` words.
fn list_question(count: &str, draw: &mut Draw) -> String {
    let ask = match draw.below(3) {
        0 => format!("{} {count}", capital(&words(1, 5, draw))),
        1 => format!("{} {count} {}", capital(&words(1, 4, draw)), words(1, 5, draw)),
        _ => capital(&words(3, 9, draw)),
    };
    match draw.below(3) {
        0 => format!("{ask}:"),
        1 => format!("{ask}{} {}:", draw.pick(&[".", "?"]), capital(&words(1, 2, draw))),
        _ => format!("{ask}{} {}:", draw.pick(&[".", "?"]), capital(&words(2, 9, draw))),
    }
}

/// The made-up world in other words: each fact gets a word of its own, which its question shares.
pub fn other_world(world: &World, draw: &mut Draw) -> World {
    let mut world = world.clone();
    let mut own_words = std::collections::BTreeMap::new();
    for (name, form) in &mut world.sentences {
        let subject = name.split('_').next().unwrap_or(name).to_owned();
        let mut sentence = match draw.below(3) {
            0 => format!("{} {{{subject}}}", capital(&words(1, 3, draw))),
            _ => format!("{{{subject}}}"),
        };
        for fact in placeholders(form).into_iter().filter(|fact| *fact != subject) {
            let own = (*draw.pick(dictionary_words())).to_owned();
            let (before, after) = (sometimes(words(1, 2, draw), draw), sometimes(words(1, 2, draw), draw));
            // The question often has another form of the word than the sentence, like lie for lies or earn for earned.
            let ending = draw.pick(&["", "", "", "s", "ed", "ing"]);
            sentence += &format!(" {before}{own}{ending} {after}{{{fact}}}");
            own_words.insert((name.clone(), fact), own);
        }
        *form = sentence + ".";
    }
    for question in &mut world.questions {
        let own: Vec<&str> = question
            .uses
            .iter()
            .flat_map(|used| own_words.iter().filter(move |((name, _), _)| name == used))
            // For a sentence with several facts, only the word of the requested fact is used.
            .filter(|((_, fact), _)| {
                question.via.is_some() || *fact == question.answer || question.uses.len() > 1 || is_subject(question)
            })
            .map(|(_, own)| own.as_str())
            .collect();
        let of = format!("{{{}}}", question.of);
        let asked = draw.pick(&["What", "Which", "Where", "Who", "When", "How", "Tell me what", "Name what"]);
        let own = own.join(&format!(" {} ", words(1, 2, draw)));
        question.ask = match draw.below(3) {
            0 => format!("{asked} {own} {of}?"),
            1 => format!("{asked} {} {of} {}{own}?", words(1, 2, draw), sometimes(words(1, 2, draw), draw)),
            _ => format!("{asked} {}{own} {} {of}?", sometimes(words(1, 2, draw), draw), words(1, 2, draw)),
        };
    }
    world
}

/// Whether the answer is the subject of a sentence, as in "who ... in this city?".
fn is_subject(question: &crate::ruler::WorldQuestion) -> bool {
    question.uses.iter().any(|used| used.starts_with(question.answer.as_str()))
}

fn placeholders(form: &str) -> Vec<String> {
    form.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(name, _)| name.to_owned()).collect()
}

fn sometimes(text: String, draw: &mut Draw) -> String {
    if percent(50, draw) { format!("{text} ") } else { String::new() }
}

/// An introduction that contains `{context}`.
fn intro(draw: &mut Draw) -> String {
    let sentence = |draw: &mut Draw| format!("{}.", capital(&words(4, 14, draw)));
    let after = draw.pick(&["\n", "\n\n"]);
    match draw.below(4) {
        0 => format!("{{context}}{after}"),
        1 => format!("{}{after}{{context}}{after}", sentence(draw)),
        2 => format!("{} {}\n{{context}}{after}", sentence(draw), sentence(draw)),
        _ => format!("{}:\n{{context}}{after}", capital(&words(1, 5, draw))),
    }
}

/// From `low` to `high` words, most of them frequent ones.
fn words(low: usize, high: usize, draw: &mut Draw) -> String {
    let word = |draw: &mut Draw| match draw.below(5) {
        0 => (*draw.pick(dictionary_words())).to_owned(),
        _ => draw.pick(&FILE.wording.words).clone(),
    };
    (0..draw.between(low, high)).map(|_| word(draw)).collect::<Vec<_>>().join(" ")
}

/// Like [`words`]; in 30 % of the cases one word is the placeholder for the kind of value.
fn typed(low: usize, high: usize, draw: &mut Draw) -> String {
    let text = words(low, high, draw);
    if !percent(30, draw) {
        return text;
    }
    let mut list: Vec<&str> = text.split(' ').collect();
    let at = draw.below(list.len());
    list[at] = "{one}";
    list.join(" ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
