//! The table of flags agrees with what the program accepts, what the manual's page says, and what identifies a run.
//!
//! Its rows are in `crates/eval/src/config/flags.rs`.

#[path = "flags/foreign.rs"]
mod foreign;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rayon::prelude::*;
use spattn::cli::flags;
use spattn::eval::config::flag::{Accepts, Flag, Holds};
use tempfile::TempDir;

struct Ran {
    status: Option<i32>,
    stderr: String,
}

fn spattn(dir: &Path, args: &[String]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf").env("RAYON_NUM_THREADS", "1");
    let out = command.output().unwrap();
    Ran { status: out.status.code(), stderr: String::from_utf8_lossy(&out.stderr).into_owned() }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

// ---- wrong values ----

/// Arguments just outside a flag's bounds, or of another kind.
fn wrong_arguments(flag: &Flag) -> Vec<String> {
    let numbers = |least: usize, most: usize| {
        let below = least.checked_sub(1).map(|below| below.to_string());
        let above = (most < usize::MAX).then(|| (most as u128 + 1).to_string());
        let others = ["-1", "1.5", "x", ""].map(str::to_owned);
        below.into_iter().chain(above).chain(others).collect()
    };
    match flag.accepts {
        Accepts::Unsaid => panic!("the row `{}` does not say which values there are", flag.id),
        Accepts::Switch(_) => vec!["yes".to_owned()],
        Accepts::Whole { least, most } | Accepts::Tokens { least, most } => numbers(least, most),
        Accepts::Decimal { least, most } => [(least - 0.5).to_string(), (most + 0.5).to_string()]
            .into_iter()
            .chain(["x", "", "nan"].map(str::to_owned))
            .collect(),
        Accepts::Seed => numbers(0, u64::MAX as usize).into_iter().chain(["18446744073709551616".to_owned()]).collect(),
        Accepts::Threads => numbers(1, 10_000_000),
        Accepts::Text { refused, .. } => {
            assert!(!refused.is_empty(), "the row `{}` has no text that is refused", flag.id);
            refused.iter().map(|text| (*text).to_owned()).collect()
        }
        Accepts::Anything => Vec::new(),
    }
}

/// Values of a key just outside its bounds, or of another type, as a config would write them.
fn wrong_values(flag: &Flag) -> Vec<String> {
    let text = |text: &str| format!("'{text}'");
    let items: Vec<String> = match flag.accepts {
        Accepts::Switch(_) => ["'yes'", "1", "0.5"].map(str::to_owned).to_vec(),
        Accepts::Text { .. } | Accepts::Anything => {
            let refused = wrong_arguments(flag);
            refused.iter().map(|refused| text(refused)).chain(["3", "true", "1.5"].map(str::to_owned)).collect()
        }
        // An argument that is not a number is a string in a config.
        _ => wrong_arguments(flag)
            .iter()
            .map(|value| if value.parse::<f64>().is_ok() { value.clone() } else { text(value) })
            .chain(["true".to_owned(), "'4K'".to_owned()])
            .collect(),
    };
    match flag.holds {
        Holds::One => items.into_iter().chain(["[[1]]".to_owned()]).collect(),
        // The last value is not in brackets.
        Holds::List => items.iter().map(|item| format!("[{item}]")).chain(["'x'".to_owned(), "1".to_owned()]).collect(),
        Holds::OneOrMany => items.iter().flat_map(|item| [item.clone(), format!("[{item}]")]).collect(),
    }
}

/// How the program's answer to a wrong value is faulty; `None` if it is right.
fn fault(flag: &Flag, given: &str, ran: &Ran) -> Option<String> {
    let error = ran.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    // Some messages name the kind of value that is expected instead, such as a shape.
    let kinds = flag.value_name.split('|').map(str::to_lowercase).filter(|kind| kind.len() > 3);
    let names = [flag.id, flag.name.unwrap_or(flag.id)].map(str::to_owned).into_iter().chain(kinds);
    let is_named = names.into_iter().any(|name| !name.is_empty() && error.contains(&name));
    match (ran.status, is_named) {
        (Some(2), true) => None,
        (Some(2), false) => Some(format!("{given}: the error does not name it: {error}")),
        (status, _) => Some(format!("{given}: status {status:?}: {}", ran.stderr.trim())),
    }
}

#[test]
fn values_out_of_bounds_are_refused_as_a_flag_and_as_a_key() {
    let inputs: Vec<(&Flag, String, bool)> = flags()
        .into_iter()
        .flat_map(|flag| {
            let arguments = flag.name.map_or(Vec::new(), |_| wrong_arguments(flag));
            let values = if flag.is_key { wrong_values(flag) } else { Vec::new() };
            let arguments = arguments.into_iter().map(move |value| (flag, value, false));
            arguments.chain(values.into_iter().map(move |value| (flag, value, true)))
        })
        .collect();
    assert!(inputs.len() > 200, "{} inputs", inputs.len());
    let faults: Vec<String> = inputs
        .par_iter()
        .filter_map(|(flag, value, is_key)| {
            let dir = TempDir::new().unwrap();
            let (given, mut args) = match is_key {
                true => (format!("{} = {value}", flag.id), words("sweep c.toml --dry-run")),
                false => (format!("--{}={value}", flag.name.unwrap()), words("sweep quick --dry-run")),
            };
            match is_key {
                true => fs::write(dir.path().join("c.toml"), &given).unwrap(),
                false => args.push(given.clone()),
            }
            fault(flag, &given, &spattn(dir.path(), &args))
        })
        .collect();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), inputs.len(), faults.join("\n"));
}

#[test]
#[should_panic(expected = "the row `` does not say which values there are")]
fn a_row_without_bounds_is_refused() {
    wrong_arguments(&Flag::value("more", "N"));
}

#[test]
#[should_panic(expected = "has no text that is refused")]
fn a_row_of_texts_that_refuses_none_is_refused() {
    wrong_values(&Flag::value("more", "TEXT").texts("any", &[]));
}

#[test]
fn a_value_that_is_taken_or_refused_without_a_name_is_told() {
    let flag = Flag::value("more", "N").whole(1, 9);
    let ran = |status, stderr: &str| Ran { status: Some(status), stderr: stderr.to_owned() };
    assert_eq!(wrong_arguments(&flag), ["0", "10", "-1", "1.5", "x", ""]);
    assert!(fault(&flag, "--more=10", &ran(0, "")).is_some());
    assert!(fault(&flag, "--more=10", &ran(2, "error: 10 is too many")).is_some());
    assert_eq!(fault(&flag, "--more=10", &ran(2, "error: --more: 10 is too many")), None);
}

// ---- the page ----

const PAGE: &str = "docs/settings.md";

/// The accepted values, in words.
fn values(flag: &Flag) -> String {
    match flag.accepts {
        Accepts::Unsaid => panic!("the row `{}` does not say which values there are", flag.id),
        Accepts::Switch(sets) => format!("`{sets}` with the flag"),
        Accepts::Whole { least, most } => format!("{least} to {most}"),
        Accepts::Tokens { least, most } => format!("{least} to {most}; `--{} 4K`", flag.name.unwrap()),
        Accepts::Decimal { least, most } => format!("{least} to {most}, with decimals"),
        Accepts::Seed => format!("0 to {}", u64::MAX),
        Accepts::Threads => "from 1".to_owned(),
        Accepts::Text { taken, .. } => format!("such as `{taken}`").replace('|', "\\|"),
        Accepts::Anything => "any".to_owned(),
    }
}

/// A flag as users write it.
fn written(flag: &Flag) -> String {
    let Some(name) = flag.name else { return String::new() };
    let short = flag.short.map_or(String::new(), |short| format!(", `-{short}`"));
    let value = if flag.value_name.is_empty() { String::new() } else { format!(" {}", flag.value_name) };
    format!("`--{name}{value}`{short}").replace('|', "\\|")
}

fn page() -> String {
    let (keys, others): (Vec<&Flag>, Vec<&Flag>) = flags().into_iter().partition(|flag| flag.is_key);
    let mut text =
        "| key | flag | values | `--resume` with another value | what it is |\n|---|---|---|---|---|\n".to_owned();
    for flag in keys {
        let key = match flag.holds {
            Holds::One => format!("`{}`", flag.id),
            Holds::List => format!("`{}` (a list)", flag.id),
            Holds::OneOrMany => format!("`{}` (or a list)", flag.id),
        };
        let resumed = if flag.identity.is_some() { "refused" } else { "" };
        let cells = [key, written(flag), values(flag), resumed.to_owned(), flag.help().replace('|', "\\|")];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text += "\nFlags that are no keys, as they say how to run and not what:\n\n| flag | values | what it is |\n|---|---|---|\n";
    for flag in others {
        text += &format!("| {} | {} | {} |\n", written(flag), values(flag), flag.help().replace('|', "\\|"));
    }
    text
}

/// The page up to the mark, and the part after it that is made from the table.
fn split(text: &str) -> (&str, &str) {
    const MARK: &str = "<!-- made from the table of flags: UPDATE_PAGES=1 cargo test --test flags -->\n\n";
    let at = text.find(MARK).expect("the page has a mark") + MARK.len();
    text.split_at(at)
}

#[test]
fn the_page_of_settings_lists_every_flag_and_key_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let text = fs::read_to_string(&path).unwrap();
    let (head, listed) = split(&text);
    let made = page();
    if std::env::var_os("UPDATE_PAGES").is_some() {
        return fs::write(&path, format!("{head}{made}")).unwrap();
    }
    for (listed, made) in listed.lines().zip(made.lines()) {
        assert_eq!(listed, made, "{PAGE} is not what the table says: UPDATE_PAGES=1 cargo test --test flags");
    }
    assert_eq!(listed.lines().count(), made.lines().count(), "{PAGE} lacks rows, or has some that are no flags");
}

// ---- identity ----

/// Rows that the run below cannot change, or that their own rule refuses. `tests/commands/identity.rs` changes them.
const NOT_CHANGED_HERE: [&str; 10] = [
    "about",
    "model",
    "device",
    "data",
    "calibration",
    "chat",
    "system_prompt",
    "thinking",
    "thinking_tokens",
    "anonymous",
];

/// Rows that change nothing on their own, each with the setting that they need.
const WITH: [(&str, &str); 3] =
    [("top_p", "temperature = 0.5"), ("repeats", "temperature = 0.5"), ("kv_memory", "kv_tier = 'disk'")];

#[test]
fn a_resumed_run_refuses_another_value_of_what_is_its_identity_and_of_nothing_else() {
    const RUN: &str = "eval -q --config c.toml --out run";
    let base = "tasks = ['ruler/vt']\nlengths = [1024]\nsamples = 1\nmethods = ['topk:k=16']\n";
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("c.toml"), base).unwrap();
    let first = spattn(dir.path(), &words(RUN));
    assert_eq!(first.status, Some(0), "{}", first.stderr);
    let rows: Vec<&Flag> = flags().into_iter().filter(|f| f.is_key && !NOT_CHANGED_HERE.contains(&f.id)).collect();
    for flag in rows {
        let value = match flag.accepts {
            Accepts::Switch(sets) => sets.to_string(),
            Accepts::Whole { .. } | Accepts::Seed => "3".to_owned(),
            Accepts::Tokens { .. } => "1100".to_owned(),
            Accepts::Decimal { .. } => "0.5".to_owned(),
            Accepts::Text { taken, .. } => format!("'{taken}'"),
            other => panic!("{}: {other:?}", flag.id),
        };
        let value = if flag.holds == Holds::List { format!("[{value}]") } else { value };
        let beside = WITH.iter().find(|(id, _)| *id == flag.id).map_or("", |(_, line)| line);
        let others = base.lines().chain([beside]).filter(|line| !line.starts_with(&format!("{} =", flag.id)));
        let text: String = others.map(|line| format!("{line}\n")).collect();
        fs::write(dir.path().join("c.toml"), format!("{text}{} = {value}\n", flag.id)).unwrap();
        let resumed = spattn(dir.path(), &words(&format!("{RUN} --resume")));
        let name = format!("--{}", flag.name.unwrap());
        match flag.identity {
            Some(_) => {
                assert_eq!(resumed.status, Some(2), "{}: {}", flag.id, resumed.stderr);
                assert!(resumed.stderr.contains(&name), "the error does not name {name}: {}", resumed.stderr);
            }
            None => assert_eq!(resumed.status, Some(0), "{}: {}", flag.id, resumed.stderr),
        }
    }
}
