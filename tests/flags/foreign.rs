//! `docs/coming-from.md` has every row of the tables of foreign flags, commands and presses, verbatim.

use std::fs;
use std::path::Path;

use spattn::attention::methods::kvpress::{Meaning, PARAMETERS, PRESSES};
use spattn::eval::config::foreign_flags::{FOREIGN_COMMANDS, FOREIGN_FLAGS, Here};

const PAGE: &str = "docs/coming-from.md";
const MARK: &str =
    "<!-- made from the tables of presses and foreign flags: UPDATE_PAGES=1 cargo test --test flags -->\n\n";

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn cells(cells: &[&str]) -> String {
    format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
}

/// A line with its flags marked as code, except those that are marked already.
fn in_code(line: &str) -> String {
    let flags = |part: &str| {
        let word = |word: &str| {
            let bare = word.trim_end_matches([',', ';', ':', '.']);
            match word.starts_with("--") || word == "-m" {
                true => format!("`{bare}`{}", &word[bare.len()..]),
                false => word.to_owned(),
            }
        };
        part.split(' ').map(word).collect::<Vec<_>>().join(" ")
    };
    let part = |(at, part): (usize, &str)| if at % 2 == 0 { flags(part) } else { part.to_owned() };
    line.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

#[test]
fn flags_are_set_in_code_and_commands_stay() {
    assert_eq!(
        in_code("give --samples N; `spattn x --task T` or -m M"),
        "give `--samples` N; `spattn x --task T` or `-m` M"
    );
}

fn page() -> String {
    let mut text = "| press | here | difference |\n|---|---|---|\n".to_owned();
    for press in PRESSES {
        let here = press.here.map_or("–".to_owned(), |spec| format!("`{spec}`"));
        text += &cells(&[&listed(press.names), &here, press.about]);
    }
    text += "\n| parameter | of | here |\n|---|---|---|\n";
    for parameter in PARAMETERS {
        let here = match parameter.here {
            Meaning::Same(ours) => format!("`{ours}`"),
            Meaning::Rest(ours) => format!("`{ours}` = 1 − it"),
            Meaning::Other(line) => line.to_owned(),
        };
        text += &cells(&[&format!("`{}`", parameter.theirs), &listed(parameter.methods), &here]);
    }
    text += "\n## Flags\n\n| there | of | here |\n|---|---|---|\n";
    for flag in FOREIGN_FLAGS {
        let here = match flag.here {
            Here::Same(ours) => format!("the same as `--{ours}`"),
            Here::Instead(line) => in_code(line),
        };
        text += &cells(&[&listed(flag.names), flag.programs, &here]);
    }
    text += "\n## Commands\n\n| there | here |\n|---|---|\n";
    for (theirs, ours) in FOREIGN_COMMANDS {
        text += &cells(&[&format!("`{theirs}`"), &format!("`spattn {ours}`")]);
    }
    text
}

#[test]
fn the_page_for_users_of_other_programs_has_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(&path).unwrap();
    let at = text.find(MARK).expect("the page has a mark") + MARK.len();
    let (head, listed) = text.split_at(at);
    let made = page();
    if std::env::var_os("UPDATE_PAGES").is_some() {
        return fs::write(&path, format!("{head}{made}")).unwrap();
    }
    assert_eq!(listed, made, "{PAGE} is not what the tables say: UPDATE_PAGES=1 cargo test --test flags");
}
