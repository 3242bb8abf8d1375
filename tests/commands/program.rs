//! Runs the program in tests. A check that fails prints the command and all its output.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A command of the program. If it does not behave as expected, all its details are printed.
pub(crate) struct Spattn {
    pub(crate) command: Command,
}

/// The result of a command.
pub(crate) struct Ran {
    pub(crate) command: String,
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program with these arguments.
pub(crate) fn spattn(args: &[&str]) -> Spattn {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    // Never use the user's hub cache, network or colours.
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent/hf");
    command.env_remove("HF_HUB_CACHE").env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    Spattn { command }
}

impl Spattn {
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it in a folder.
    pub(crate) fn within(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn run(mut self) -> Ran {
        let output = self.command.output().unwrap();
        Ran::new(&self.command, output)
    }

    pub(crate) fn spawn(mut self) -> Child {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs it and expects success.
    pub(crate) fn ok(self) -> Ran {
        let ran = self.run();
        ran.check(ran.status == Some(0), "it succeeds");
        ran
    }

    /// Runs it and expects exactly one error line that contains `what`, a hint that contains `hint` (no hint if empty), and an empty
    /// standard output.
    pub(crate) fn fails(self, status: i32, what: &str, hint: &str) -> Ran {
        let ran = self.run();
        ran.check(ran.status == Some(status), &format!("the exit status is {status}"));
        ran.check(!ran.stderr.contains("panicked") && !ran.stderr.contains("backtrace"), "no panic");
        let (errors, rest): (Vec<&str>, Vec<&str>) = ran.stderr.lines().partition(|l| l.starts_with("error: "));
        let (hints, rest): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(|l| l.starts_with("  hint: "));
        ran.check(errors.len() == 1 && rest.is_empty(), "one error line, and hints");
        ran.check(errors[0].contains(what), &format!("the error says: {what}"));
        match hint {
            "" => ran.check(hints.is_empty(), "no hint"),
            hint => ran.check(hints.iter().any(|h| h.contains(hint)), &format!("a hint says: {hint}")),
        }
        ran.check(ran.stdout.is_empty(), "nothing on standard output");
        ran
    }
}

impl Ran {
    pub(crate) fn new(command: &Command, output: Output) -> Self {
        Self {
            command: format!("{command:?}"),
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn check(&self, holds: bool, expected: &str) {
        let Self { command, status, stdout, stderr } = self;
        assert!(
            holds,
            "\nexpected: {expected}\ncommand: {command}\nstatus: {status:?}\nstdout:\n{stdout}\nstderr:\n{stderr}\n"
        );
    }

    #[track_caller]
    pub(crate) fn prints(&self, text: &str) {
        self.check(self.stdout.contains(text), &format!("standard output holds: {text}"));
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let json = serde_json::from_str(&self.stdout);
        self.check(json.is_ok(), "standard output is JSON and nothing else");
        json.unwrap()
    }

    /// Expects success.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.check(self.status == Some(0), "it succeeds");
        self
    }

    /// Expects an error line that contains `what` and a hint that contains `hint`, whatever else is printed.
    #[track_caller]
    pub(crate) fn fails(&self, status: i32, what: &str, hint: &str) {
        self.check(self.status == Some(status), &format!("status {status}"));
        let said = |begin: &str, text: &str| {
            self.stderr.lines().filter(|line| line.starts_with(begin)).any(|line| line.contains(text))
        };
        self.check(said("error: ", what), &format!("an error says: {what}"));
        self.check(said("  hint: ", hint), &format!("a hint says: {hint}"));
        self.check(!self.stderr.contains("panicked"), "no panic");
    }
}
