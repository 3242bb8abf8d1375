//! Limits hints to what the called command can do.
//!
//! Settings are checked far below the command line, where the command is not known. A length that is too great gets the same hint in
//! `eval`, which has a flag for lengths, and in `reproduce`, whose lengths come from an item's file. So before a hint is printed, the flags
//! that it names are compared with those of the command, and parts that only another command could follow are left out.

use std::collections::BTreeSet;

/// Replaces advice on flags that `reproduce` does not have.
const OF_ITEMS: &str = "tasks, lengths and methods are those of the item's file (docs/papers.md says how to run one of your own); \
                        --real=NAME --model FILE leaves out lengths beyond those that a model of the list was trained for";

/// A command that was called: its name, and its flags as they are typed (`--out`, `-o`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Called {
    pub name: String,
    pub flags: BTreeSet<String>,
}

impl Called {
    /// Reads a command's name and flags from the parser.
    pub(super) fn of(command: &clap::Command) -> Self {
        let long = |arg: &clap::Arg| arg.get_long().map(|name| format!("--{name}"));
        let short = |arg: &clap::Arg| arg.get_short().map(|letter| format!("-{letter}"));
        let flags = command.get_arguments().flat_map(|arg| long(arg).into_iter().chain(short(arg)));
        let of_all = ["--help", "-h", "--version", "-V"].map(str::to_owned);
        Self { name: command.get_name().to_owned(), flags: flags.chain(of_all).collect() }
    }

    /// The parts of a hint that this command can follow; `None` if nothing is left. If `reproduce` loses a part, the hint says what to do
    /// there instead.
    pub(super) fn hint(&self, hint: &str) -> Option<String> {
        let parts = parts(hint);
        let own: Vec<&(&str, &str)> = parts.iter().filter(|(_, part)| self.foreign(part).is_none()).collect();
        if own.len() == parts.len() {
            return Some(hint.to_owned());
        }
        let joined = |(at, (separator, part)): (usize, &&(&str, &str))| {
            if at == 0 { (*part).to_owned() } else { format!("{separator}{part}") }
        };
        let kept: String = own.iter().enumerate().map(joined).collect();
        let instead = (self.name == "reproduce").then(|| OF_ITEMS.to_owned());
        let all: Vec<String> = Some(kept).filter(|kept| !kept.is_empty()).into_iter().chain(instead).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The first flag in a text that the command does not have. Text between backticks, or after a program's name, is a command of its own
    /// and is not searched.
    fn foreign<'t>(&self, text: &'t str) -> Option<&'t str> {
        let outside = text.split('`').step_by(2);
        let words = outside.flat_map(|part| {
            let own = ["spattn ", "cargo "].iter().filter_map(|program| part.find(program)).min();
            part[..own.unwrap_or(part.len())].split_whitespace()
        });
        words.filter_map(flag).find(|flag| !self.flags.contains(*flag) && *flag != "--features")
    }
}

/// Splits a hint into parts that can be followed separately, each with the separator before it.
fn parts(hint: &str) -> Vec<(&'static str, &str)> {
    const SEPARATORS: [&str; 3] = ["; ", ", or ", ", and "];
    let (mut all, mut rest, mut before) = (Vec::new(), hint, "");
    let next = |text: &str| {
        let found = SEPARATORS.iter().filter_map(|separator| Some((text.find(separator)?, *separator)));
        // A separator inside a quoted command does not end a part.
        found.filter(|(at, _)| text[..*at].matches('`').count().is_multiple_of(2)).min()
    };
    while let Some((at, separator)) = next(rest) {
        all.push((before, &rest[..at]));
        (before, rest) = (separator, &rest[at + separator.len()..]);
    }
    all.push((before, rest));
    all
}

/// The flag that a word starts with, as `--length` or `-n`, without what follows its name.
fn flag(word: &str) -> Option<&str> {
    let word = word.trim_start_matches(['(', '"', '\'']);
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
    let dashes = word.len() - name.len();
    let is_one = if dashes == 2 { end > 1 } else { end == 1 && name.starts_with(|c: char| c.is_ascii_alphabetic()) };
    is_one.then(|| &word[..dashes + end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn called(name: &str) -> Called {
        let mut root = Cli::command();
        root.build();
        Called::of(root.find_subcommand(name).unwrap())
    }

    #[test]
    fn a_hint_names_flags_of_the_command_alone() {
        let length = "choose a shorter --length, or run it anyway with --allow-extrapolation";
        assert_eq!(called("eval").hint(length).as_deref(), Some(length));
        assert_eq!(
            called("bench").hint("leave --weights out, or use `bench decode`").unwrap(),
            "leave --weights out, or use `bench decode`"
        );
        assert_eq!(called("calibrate").hint(length).as_deref(), Some("choose a shorter --length"));
        assert_eq!(called("reproduce").hint(length).as_deref(), Some(OF_ITEMS));
        assert_eq!(
            called("reproduce").hint("ask for fewer samples (--samples); or a longer --length").unwrap(),
            format!("ask for fewer samples (--samples); {OF_ITEMS}")
        );
        assert_eq!(called("report").hint("give one with -m, or leave out --no-full"), None);
        assert_eq!(called("reproduce").foreign(OF_ITEMS), None, "its own advice can be followed");
    }

    #[test]
    fn commands_that_a_hint_quotes_are_left_as_they_are() {
        let quoted = "make it with `spattn calibrate NAME --out DIR --task T; --length 3, or --tokens 5`";
        assert_eq!(called("report").hint(quoted).as_deref(), Some(quoted));
        let open = "then: spattn report DIR --anonymous --out OTHER";
        assert_eq!(called("eval").hint(open).as_deref(), Some(open));
        let build = "use --device cpu, or build with --features cuda";
        assert_eq!(called("eval").hint(build).as_deref(), Some(build));
        for (word, found) in [("--a", None), ("-12.5", None), ("(--samples)", Some("--samples")), ("-n;", Some("-n"))] {
            assert_eq!(flag(word), found, "{word}");
        }
        assert_eq!((flag("--real=NAME"), flag("--"), flag("-"), flag("-x2")), (Some("--real"), None, None, None));
    }

    /// The crates write each hint once, for any command that may reach it. Each command prints the parts that it can follow.
    #[test]
    fn hints_of_the_sources_can_be_followed_by_every_command() {
        let hints = hints_of_sources();
        assert!(hints.len() > 300, "{} hints were found", hints.len());
        let mut root = Cli::command();
        root.build();
        let commands: Vec<Called> = root.get_subcommands().map(Called::of).collect();
        for hint in &hints {
            for command in &commands {
                let told = command.hint(hint);
                let foreign = told.as_deref().and_then(|told| command.foreign(told));
                assert_eq!(foreign, None, "{} is told: {told:?}", command.name);
            }
        }
        // A flag that no command has is a typo.
        let known: BTreeSet<String> =
            commands.iter().flat_map(|command| command.flags.clone()).chain(of_subcommands(&root)).collect();
        let all = Called { name: "all".to_owned(), flags: known };
        let unknown: Vec<(&String, &str)> = hints.iter().filter_map(|hint| Some((hint, all.foreign(hint)?))).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    fn of_subcommands(root: &clap::Command) -> Vec<String> {
        let inner = root.get_subcommands().flat_map(|command| command.get_subcommands());
        inner.flat_map(|command| Called::of(command).flags).collect()
    }

    /// An installed program has no folder of scripts, so a text that names a script also names the page that explains it.
    #[test]
    fn what_names_a_script_names_a_page_of_the_documentation() {
        let is_explained = |text: &str| !text.contains("scripts/") || text.contains("docs/");
        let told: Vec<String> =
            code_of_sources().iter().flat_map(|code| texts(code)).filter(|text| text.contains("scripts/")).collect();
        assert!(told.len() > 5, "{told:?}");
        // Help quotes commands for a checkout; the program's own help page says where the scripts are.
        let bare: Vec<&String> =
            told.iter().filter(|text| !is_explained(text) && !text.starts_with("Examples:")).collect();
        assert!(bare.is_empty(), "{bare:?}");
    }

    /// All texts between quotes on lines that are not comments.
    fn texts(code: &str) -> Vec<String> {
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = lines.map(|line| format!("{line}\n")).collect::<String>().replace("'\"'", "");
        let (mut all, mut rest) = (Vec::new(), code.as_str());
        while let Some((_, behind)) = rest.split_once('"') {
            let Some((text, next)) = literal(behind) else { break };
            all.push(text);
            rest = next;
        }
        all
    }

    /// The texts of all `.hint("...")` and `hint: "..."` in the sources, with their placeholders.
    fn hints_of_sources() -> Vec<String> {
        let begins = [".hint(\"", ".hint(format!(\"", "hint = \"", "HINT: &str = \"", ".hint(\n"];
        let of = |code: &String| -> Vec<String> {
            begins.iter().flat_map(|begin| code.split(begin).skip(1).filter_map(begun)).collect()
        };
        code_of_sources().iter().flat_map(of).collect()
    }

    /// The code of all sources, without their tests.
    fn code_of_sources() -> Vec<String> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![root.join("src"), root.join("crates")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    found.push(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned());
                }
            }
        }
        found
    }

    /// The text of a literal that begins on this line, or after white space on the next.
    fn begun(rest: &str) -> Option<String> {
        let own = match rest.strip_prefix(char::is_whitespace) {
            None => rest,
            Some(late) => {
                let late = late.trim_start();
                late.strip_prefix("format!(").unwrap_or(late).trim_start().strip_prefix('"')?
            }
        };
        literal(own).map(|(text, _)| text)
    }

    /// The text up to its closing quote, and what follows the quote.
    fn literal(rest: &str) -> Option<(String, &str)> {
        let (mut text, mut characters) = (String::new(), rest.chars());
        loop {
            match characters.next()? {
                '"' => return Some((text, characters.as_str())),
                '\\' => match characters.next()? {
                    '\n' => characters = characters.as_str().trim_start().chars(),
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
    }
}
