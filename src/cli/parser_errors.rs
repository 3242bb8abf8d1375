//! Shortens the argument parser's errors, which span many lines, to one line with a hint.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use spattn_base::error::{UsageError, nearest};
use spattn_base::text;

/// The most characters of a value that an error repeats.
const MOST_SHOWN: usize = 200;

/// The parser's error about an argument of `command` in one line; `None` if help or the version was asked for, which is no error.
pub(super) fn in_one_line(error: &clap::Error, command: &Command) -> Option<UsageError> {
    let (what, hint) = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return None;
        }
        ErrorKind::InvalidValue => match value(error).is_empty() {
            true => (format!("a value is required for '{}' but none was supplied", argument(error)), None),
            false => (wrong_value(error), of_known_values(error)),
        },
        ErrorKind::ValueValidation => {
            let why = error.source().map_or(String::new(), |why| format!(": {why}"));
            (format!("{}{why}", wrong_value(error)), None)
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = words(error, ContextKind::InvalidArg).join(", ");
            (format!("required arguments were not provided: {missing}"), None)
        }
        ErrorKind::ArgumentConflict => {
            let others = words(error, ContextKind::PriorArg);
            match others.as_slice() {
                [] => (first_paragraph(error), None),
                [other] if *other == argument(error) => {
                    (format!("the argument '{other}' cannot be used multiple times"), Some("give it once".to_owned()))
                }
                _ => (
                    format!("the argument '{}' cannot be used with '{}'", argument(error), others.join("', '")),
                    Some("leave one of them out".to_owned()),
                ),
            }
        }
        _ => (first_paragraph(error), None),
    };
    let help = || format!("`{} --help` shows all arguments", called(command));
    let hint = hint.or_else(|| example(command, &argument(error))).unwrap_or_else(help);
    Some(UsageError::new(text::in_line(&what).into_owned()).hint(text::in_line(&hint).into_owned()))
}

/// The texts of this kind in an error, as a list.
fn words(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    }
}

/// The wrong argument as help shows it, for example `--samples <N>`.
fn argument(error: &clap::Error) -> String {
    words(error, ContextKind::InvalidArg).into_iter().next().unwrap_or_default()
}

fn value(error: &clap::Error) -> String {
    words(error, ContextKind::InvalidValue).into_iter().next().unwrap_or_default()
}

fn wrong_value(error: &clap::Error) -> String {
    let value = value(error);
    let shown: String = value.chars().take(MOST_SHOWN).collect();
    let more = if shown.len() < value.len() { "..." } else { "" };
    format!("invalid value '{shown}{more}' for '{}'", argument(error))
}

/// A hint with the values that an argument takes, and the nearest one if it may be a typo.
fn of_known_values(error: &clap::Error) -> Option<String> {
    let known = words(error, ContextKind::ValidValue);
    let near = nearest(&value(error), &known).map(|near| format!("did you mean `{near}`? "));
    (!known.is_empty()).then(|| format!("{}it takes {}", near.unwrap_or_default(), known.join(", ")))
}

/// The example in the help of an argument.
fn example(command: &Command, argument: &str) -> Option<String> {
    let arg = command.get_arguments().find(|arg| arg.to_string() == argument)?;
    let help = Arg::get_long_help(arg)?.to_string();
    let example = help.lines().find_map(|line| line.trim().strip_prefix("Example: "))?;
    Some(format!("for example: {example}"))
}

/// The command and its program's name, as typed in a shell.
fn called(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

/// The parser's message without its advice.
fn first_paragraph(error: &clap::Error) -> String {
    let said = error.to_string();
    let first = said.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.trim_start_matches("error:").split_whitespace().collect();
    words.join(" ")
}
