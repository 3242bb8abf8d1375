//! Parses arguments: our spellings and those of other programs. Errors say what to write instead.
//!
//! The tables of foreign flags and commands are data in `crates/eval/src/config/foreign_flags.rs`. A flag that means the same as one of
//! ours is its alias in every subcommand that has ours. Any other foreign flag, a value that belongs to another flag, and a name where a
//! flag is needed are refused with one line that names our way. An unknown flag gets a suggestion only if it is a typo of one of ours.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Parser};

use super::help_headings::with_headings;
use super::parser_errors::in_one_line;
use spattn_attention::methods;
use spattn_base::error::{UsageError, nearest};
use spattn_base::text;
use spattn_eval::config::foreign_flags::{self, FOREIGN_COMMANDS, Here};
use spattn_tasks::{catalog, groups};

/// Why arguments are refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Refused by a rule of this file.
    Ours(UsageError),
    /// Refused by the argument parser, which also reports a request for help or the version this way.
    Parser(clap::Error),
}

/// A command line with the aliases of all its flags and commands, and with headings in its help.
fn command<C: Parser>() -> Command {
    with_headings(with_aliases(C::command()))
}

/// Parses arguments; the first is the program's name.
///
/// # Errors
/// What is wrong with the arguments.
pub(super) fn parse<C: Parser>(arguments: &[OsString]) -> Result<C, Refusal> {
    let root = command::<C>();
    let typed: Vec<String> = arguments.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Some(flag) = typed.iter().find(|arg| is_long_with_one_dash(arg) && foreign_flags::find(arg).is_some()) {
        return Err(Refusal::Ours(unexpected(flag, hint_of_flag(&root, &called(&root, &typed), flag))));
    }
    let mut matches = root.clone().try_get_matches_from(arguments).map_err(|error| explained(error, &root, &typed))?;
    if let Some(error) = misplaced_value(&called(&root, &typed), &typed) {
        return Err(Refusal::Ours(error));
    }
    C::from_arg_matches_mut(&mut matches).map_err(|error| Refusal::Parser(error.format(&mut root.clone())))
}

/// Gives every flag its foreign spellings, and every command its foreign names, unless these are already taken.
fn with_aliases(command: Command) -> Command {
    let taken: Vec<String> = command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    let letters: Vec<char> = command.get_arguments().filter_map(Arg::get_short).collect();
    let with_spellings = |arg: Arg| {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        let spellings = foreign_flags::spellings(&long);
        let (short, other): (Vec<String>, Vec<String>) = spellings.into_iter().partition(|name| name.len() == 1);
        let short = short.into_iter().filter_map(|name| name.chars().next()).filter(|letter| !letters.contains(letter));
        arg.aliases(other.into_iter().filter(|name| !taken.contains(name))).short_aliases(short)
    };
    let command = command.mut_args(with_spellings);
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    command.mut_subcommands(|sub| {
        let others = FOREIGN_COMMANDS.iter().filter(|(_, ours)| *ours == sub.get_name()).map(|(theirs, _)| *theirs);
        let others: Vec<&str> = others.filter(|theirs| !names.iter().any(|name| name == theirs)).collect();
        with_aliases(sub.aliases(others))
    })
}

/// The innermost subcommand that arguments name.
fn called(root: &Command, typed: &[String]) -> Command {
    let mut command = root.clone();
    for name in typed {
        let Some(sub) = command.find_subcommand(name) else { break };
        command = sub.clone();
    }
    command
}

/// The innermost subcommand that the process's arguments name. The first argument is the program's name.
pub(super) fn called_command<C: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Command {
    let typed: Vec<String> = arguments.into_iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    called(&command::<C>(), &typed)
}

/// Whether an argument is one dash and a name of several letters, which our parser would read as several flags.
fn is_long_with_one_dash(arg: &str) -> bool {
    arg.len() > 2 && arg.starts_with('-') && !arg.starts_with("--")
}

/// The parser's error, reworded where our words say more.
fn explained(error: clap::Error, root: &Command, typed: &[String]) -> Refusal {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let command = called(root, typed);
    let ours = match (error.kind(), context(ContextKind::InvalidArg), context(ContextKind::InvalidSubcommand)) {
        (ErrorKind::UnknownArgument, Some(typed), _) if typed.starts_with('-') => {
            unexpected(&typed, hint_of_flag(root, &command, &typed))
        }
        (ErrorKind::UnknownArgument, Some(typed), _) => unexpected(&typed, hint_of_name(&command, &typed)),
        (ErrorKind::InvalidSubcommand, _, Some(typed)) => unknown_command(&command, &typed),
        (ErrorKind::ValueValidation, Some(flag), _) if flag.starts_with("--samples") => {
            match context(ContextKind::InvalidValue).filter(|value| is_share(value)) {
                Some(value) => share_of_examples(&value),
                None => return plain(error, root, typed),
            }
        }
        _ => return plain(error, root, typed),
    };
    Refusal::Ours(ours)
}

/// The parser's error in one line. Help and the version stay as they are.
fn plain(error: clap::Error, root: &Command, typed: &[String]) -> Refusal {
    let mut root = root.clone();
    // Usage lines need the full names of subcommands, with their parents' names.
    root.build();
    match in_one_line(&error, &called(&root, typed)) {
        Some(ours) => Refusal::Ours(ours),
        None => Refusal::Parser(error),
    }
}

fn unexpected(typed: &str, hint: Option<String>) -> UsageError {
    let name = typed.split('=').next().unwrap_or_default();
    let error = UsageError::new(format!("unexpected argument '{}' found", text::shown(name)));
    UsageError { hint, ..error }
}

/// What to write instead of an unknown flag: the foreign flag's line in the table, this command's nearest flag, or the command that has
/// it.
fn hint_of_flag(root: &Command, command: &Command, typed: &str) -> Option<String> {
    let name = typed.split('=').next().unwrap_or_default();
    let of = |command: &Command| -> Vec<String> {
        command.get_arguments().filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))).collect()
    };
    let known = of(command);
    match foreign_flags::find(name).map(|flag| flag.here) {
        Some(Here::Instead(line)) => return Some(line.to_owned()),
        Some(Here::Same(ours)) if known.contains(&format!("--{ours}")) => return Some(format!("write --{ours}")),
        _ => {}
    }
    let ours = match foreign_flags::find(name).map(|flag| flag.here) {
        Some(Here::Same(ours)) => format!("--{ours}"),
        _ => name.replace('_', "-"),
    };
    if let Some(near) = ours.starts_with("--").then(|| nearest(&ours, &known)).flatten() {
        return Some(format!("did you mean `{near}`?"));
    }
    let others: Vec<&str> =
        root.get_subcommands().filter(|sub| of(sub).contains(&ours)).map(Command::get_name).collect();
    match others.first() {
        Some(_) if !known.iter().any(|flag| flag != "--help" && flag != "--version") => {
            Some(format!("flags follow the command: `spattn {} {ours} ...`", others[0]))
        }
        Some(_) => Some(format!("{ours} is a flag of {}", others.join(", "))),
        None => None,
    }
}

/// What to write instead of a bare name: the flag that takes it.
fn hint_of_name(command: &Command, typed: &str) -> Option<String> {
    let has = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    let bare = typed.split(':').next().unwrap_or_default();
    let is_method = methods::all().any(|entry| entry.name == bare);
    let flag = match () {
        () if is_method && has("method") => "--method",
        () if has("task") && typed.starts_with("jsonl:") => "--task",
        () if has("model") && is_model(typed) => "--model",
        () if has("config") && Path::new(typed).extension().is_some_and(|ending| ending == "toml") => "--config",
        () => return has("task").then(|| near_task(bare)).flatten().map(|task| format!("write --task {task}")),
    };
    Some(format!("write {flag} {}", text::shown(typed)))
}

/// The task or group of this name, with its family or without (`gsm8k` for `gen/gsm8k`).
fn near_task(name: &str) -> Option<String> {
    let tasks = catalog().into_iter().map(|task| task.name);
    let all: Vec<String> = groups().into_iter().map(|(name, _)| name).chain(tasks).collect();
    nearest(name, &all).map(str::to_owned)
}

fn unknown_command(command: &Command, typed: &str) -> UsageError {
    let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    let hint = match nearest(typed, &known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("commands: {}", known.join(", ")),
    };
    UsageError::new(format!("unrecognized subcommand '{}'", text::shown(typed))).hint(hint)
}

/// Whether a number of examples is written as a share: `0.1` or `10%`.
fn is_share(value: &str) -> bool {
    let number = value.strip_suffix('%').unwrap_or(value).parse::<f64>();
    number.is_ok_and(|number| value.ends_with('%') || (number > 0.0 && number < 1.0))
}

fn share_of_examples(value: &str) -> UsageError {
    UsageError::new(format!("a share of the examples was asked for: {}", text::shown(value)))
        .hint("give their number, --samples N: how sure a score is depends on the number, not on the share")
}

/// Refuses a value meant for another flag: in llama.cpp, `-m` takes a model and `-t` a number of threads.
fn misplaced_value(command: &Command, typed: &[String]) -> Option<UsageError> {
    let has = |long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    let of = |letter: &str, long: &str| values(typed, letter, long);
    if has("method")
        && has("model")
        && let Some(model) = of("-m", "--method").into_iter().find(|value| is_model(value))
    {
        let shown = text::shown(&model);
        return Some(
            UsageError::new(format!("-m names a method, and {shown} is a model"))
                .hint(format!("write --model {shown}")),
        );
    }
    let is_number = |value: &String| !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let threads = of("-t", "--task").into_iter().find(is_number).filter(|_| has("task") && has("threads"))?;
    Some(
        UsageError::new(format!("-t names a task, and {threads} is a number"))
            .hint(format!("threads are --threads {threads}")),
    )
}

/// Whether a text names a model rather than a method or task: a GGUF file, a folder with a config, a hub id.
fn is_model(text: &str) -> bool {
    let bare = text.split([':', '@']).next().unwrap_or_default();
    let is_hub_id = || {
        let parts: Vec<&str> = bare.split('/').collect();
        let is_known = |name: &str| catalog().iter().any(|task| task.name == name);
        matches!(parts[..], [owner, name] if !owner.is_empty() && !name.is_empty())
            && !text.contains('=')
            && !is_known(bare)
    };
    text.to_lowercase().ends_with(".gguf") || Path::new(text).join("config.json").is_file() || is_hub_id()
}

/// The values given to a flag, in any of the four ways to write one.
fn values(typed: &[String], letter: &str, long: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (at, arg) in typed.iter().enumerate() {
        if arg == letter || arg == long {
            all.extend(typed.get(at + 1).cloned());
        } else if let Some(value) = arg.strip_prefix(long).and_then(|rest| rest.strip_prefix('=')) {
            all.push(value.to_owned());
        } else if let Some(value) = arg.strip_prefix(letter).filter(|_| !arg.starts_with("--")) {
            all.push(value.trim_start_matches('=').to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use spattn_eval::config::flag::Accepts;
    use spattn_eval::config::foreign_flags::FOREIGN_FLAGS;

    fn typed(line: &str) -> Result<String, Refusal> {
        let arguments: Vec<OsString> = ["spattn"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        parse::<Cli>(&arguments).map(|cli| format!("{cli:?}"))
    }

    #[track_caller]
    fn refused(line: &str) -> UsageError {
        match typed(line) {
            Err(Refusal::Ours(error)) => error,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// A value that our flag takes; `None` for a switch.
    fn value_of(flag: &str) -> Option<String> {
        let row = crate::cli::flags().into_iter().find(|row| row.name == Some(flag));
        match row.map(|row| row.accepts) {
            // `--config` has no row in the table: it is a field of the arguments.
            None => Some("quick".to_owned()),
            Some(Accepts::Switch(_)) => None,
            // The lines below are split at spaces.
            Some(Accepts::Text { taken, .. }) => taken.split(' ').next().map(str::to_owned),
            Some(Accepts::Anything) => Some("somewhere".to_owned()),
            Some(_) => Some("3".to_owned()),
        }
    }

    #[test]
    fn every_row_is_taken_as_our_flag_or_refused_with_its_line() {
        for flag in FOREIGN_FLAGS {
            for name in flag.names {
                match flag.here {
                    Here::Same(ours) => {
                        let value = value_of(ours).map_or(String::new(), |value| format!(" {value}"));
                        let (theirs, ours) = (format!("eval {name}{value}"), format!("eval --{ours}{value}"));
                        assert_eq!(typed(&theirs).unwrap(), typed(&ours).unwrap(), "{theirs}");
                    }
                    Here::Instead(line) => {
                        for given in
                            [format!("eval {name} 8"), format!("eval {name}=8"), format!("eval --quiet {name}")]
                        {
                            if given.contains('=') && !name.starts_with("--") {
                                continue;
                            }
                            let error = refused(&given);
                            assert_eq!(error.what, format!("unexpected argument '{name}' found"), "{given}");
                            assert_eq!(error.hint.as_deref(), Some(line), "{given}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn flags_that_lines_name_exist() {
        let known: Vec<String> = command::<Cli>()
            .get_subcommands()
            .flat_map(|sub| {
                sub.get_subcommands().chain([sub]).flat_map(|sub| sub.get_arguments().cloned()).collect::<Vec<_>>()
            })
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        for flag in FOREIGN_FLAGS {
            let Here::Instead(line) = flag.here else { continue };
            // Flags in this quoted command belong to the other program.
            let ours = line.replace("`--data_dir 4096`", "");
            for word in ours.split([' ', ',', ';', ':', '`']).filter(|word| word.starts_with("--")) {
                assert!(known.iter().any(|known| known == word), "{:?} names {word}: {line}", flag.names);
            }
        }
    }

    #[test]
    fn our_flags_are_taken_with_underscores_and_others_by_every_command_that_has_ours() {
        for (theirs, ours) in [
            ("eval --sparse_from question", "eval --sparse-from question"),
            ("eval --no_full -L 3", "eval --no-full --samples 3"),
            ("sweep quick --limit 3", "sweep quick --samples 3"),
            ("tune -m quest --tasks ruler/vt", "tune -m quest --task ruler/vt"),
            ("report a --output_path b", "report a --out b"),
            ("data export-eval --tasks ruler/vt --lengths 1024 --limit 2", "data export-eval -t ruler/vt -l 1024 -n 2"),
        ] {
            assert_eq!(typed(theirs).unwrap(), typed(ours).unwrap(), "{theirs}");
        }
    }

    #[test]
    fn commands_of_others_are_ours() {
        for (theirs, ours) in FOREIGN_COMMANDS {
            let known = command::<Cli>();
            let found = known.find_subcommand(theirs).unwrap_or_else(|| panic!("{theirs}"));
            assert_eq!(found.get_name(), *ours);
        }
        assert_eq!(typed("run --limit 2").unwrap(), typed("eval --samples 2").unwrap());
        assert_eq!(typed("ls tasks").unwrap(), typed("list tasks").unwrap());
    }

    #[test]
    fn suggestions_are_near_or_not_made() {
        let hint = |line: &str| refused(line).hint;
        assert_eq!(hint("eval --lenght 4096").as_deref(), Some("did you mean `--length`?"));
        assert_eq!(hint("eval --no-ful").as_deref(), Some("did you mean `--no-full`?"));
        for far in ["eval --decision x", "eval --abcdefgh", "report a --zzz", "eval -X"] {
            assert_eq!(hint(far), None, "{far}");
        }
        assert_eq!(hint("evl").as_deref(), Some("did you mean `eval`?"));
        assert!(hint("xyzzy").unwrap().starts_with("commands: eval, sweep"));
    }

    #[test]
    fn a_flag_of_another_command_and_a_flag_without_a_command_are_told() {
        assert!(refused("report a --samples 3").hint.unwrap().starts_with("--samples is a flag of eval, sweep"));
        let error = refused("--model ./m --tasks ruler");
        assert_eq!(error.what, "unexpected argument '--model' found");
        assert_eq!(error.hint.as_deref(), Some("flags follow the command: `spattn eval --model ...`"));
    }

    #[test]
    fn what_the_parser_says_is_one_line_with_a_hint() {
        for (line, what, hint) in [
            ("list method", "invalid value 'method' for '<WHAT>'", "did you mean `methods`? it takes tasks, methods,"),
            ("bench xyzzy", "invalid value 'xyzzy' for '<WHAT>'", "it takes attention, prefill,"),
            ("report a --format latx", "invalid value 'latx' for '--format <FORMAT>'", "did you mean `latex`?"),
            (
                "eval -n x",
                "invalid value 'x' for '--samples <N>': it should be a whole number from 1 to",
                "for example: --samples",
            ),
            ("eval -m", "a value is required for '--method <SPEC>' but none was supplied", "for example: "),
            ("list", "required arguments were not provided: <WHAT>", "for example: spattn list tasks"),
            ("report", "required arguments were not provided: <DIR>...", "for example: spattn report results/"),
            ("eval --resume --overwrite", "the argument '--resume' cannot be used with '--overwrite'", "leave one"),
            ("list tasks --json=1", "unexpected value '1' for '--json' found; no more were expected", "for example: "),
            ("status", "required arguments were not provided: <DIR>", "for example: spattn status"),
            ("eval --json --json", "the argument '--json' cannot be used multiple times", "give it once"),
            ("completions foo", "invalid value 'foo' for '<SHELL>'", "it takes bash,"),
        ] {
            let error = refused(line);
            assert!(error.what.starts_with(what), "{line}: {}", error.what);
            let told = error.hint.unwrap_or_default();
            assert!(told.starts_with(hint), "{line}: {told}");
            assert!(!format!("{}{told}", error.what).contains('\n'), "{line}");
        }
        assert!(
            matches!(typed("eval --help"), Err(Refusal::Parser(_))) && matches!(typed("data"), Err(Refusal::Parser(_)))
        );
        let hidden = refused("eval -n \u{1b}[31mx");
        assert!(hidden.what.contains("'\\u{1b}[31mx'"), "{}", hidden.what);
    }

    #[test]
    fn names_and_values_at_a_wrong_place_are_told_where_they_belong() {
        for (line, what, hint) in [
            ("tune magicpig", "unexpected argument 'magicpig' found", "write --method magicpig"),
            ("eval gsm8k", "unexpected argument 'gsm8k' found", "write --task gen/gsm8k"),
            ("eval ruler/vt", "unexpected argument 'ruler/vt' found", "write --task ruler/vt"),
            ("eval Qwen/Qwen3-8B", "unexpected argument 'Qwen/Qwen3-8B' found", "write --model Qwen/Qwen3-8B"),
            ("eval -m a.gguf", "-m names a method, and a.gguf is a model", "write --model a.gguf"),
            ("eval -t 8", "-t names a task, and 8 is a number", "threads are --threads 8"),
            ("eval --limit 0.1", "a share of the examples was asked for: 0.1", "give their number"),
            ("eval -n 10%", "a share of the examples was asked for: 10%", "give their number"),
        ] {
            let error = refused(line);
            assert_eq!(error.what, what, "{line}");
            assert!(error.hint.as_deref().is_some_and(|given| given.starts_with(hint)), "{line}: {:?}", error.hint);
        }
        assert!(typed("eval -m quest -m topk:k=8 -t ruler/vt").is_ok());
    }
}
