//! The command line. Each subcommand has a file; arguments go in, an exit status comes out.

pub mod analyze;
mod arguments;
pub mod bench;
pub mod bench_args;
pub mod calibrate;
mod completions;
pub mod data;
mod data_sets;
pub mod doctor;
pub mod eval;
mod exit;
mod export_eval;
mod help_headings;
mod hints;
mod interrupt;
mod launch;
pub mod list;
mod matrix;
mod numbers;
mod output;
mod parser_errors;
mod prompt_args;
pub mod report;
pub mod reproduce;
mod run_args;
mod run_flags;
pub mod score;
mod score_rows;
mod setup;
mod show_prompts;
pub mod status;
pub mod sweep;
pub mod tune;
pub mod tune_args;
mod tune_reading;
mod tune_schedules;
mod tune_shapes;
mod verdict_flags;
pub mod verify;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::arguments::Refusal;
pub use self::exit::Done;
use self::exit::{ErrorWithHint, INTERRUPTED, NOT_SAFE, PREEMPTED};
use self::hints::Called;
pub use self::run_flags::flags;
use crate::version::PROGRAM;
use spattn_attention::kv::{KvError, Tier};
use spattn_attention::methods::{MethodEntry, register};
use spattn_base::error::{RunFailure, UsageError};
use spattn_base::text;
use spattn_kernels::check_isa;
use spattn_model::engine::EngineError;

/// Evaluate sparse attention: accuracy, cost and latency of any method at any budget, on one table.
///
/// `spattn eval` without arguments runs a small matrix on the built-in model in under a minute.
#[derive(Debug, Parser)]
#[command(name = "spattn", version = PROGRAM.line(), propagate_version = true, max_term_width = 100, help_expected = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Eval(Box<eval::EvalArgs>),
    Sweep(Box<sweep::SweepArgs>),
    Reproduce(reproduce::ReproduceArgs),
    Analyze(analyze::AnalyzeArgs),
    Tune(Box<tune_args::TuneArgs>),
    Bench(bench_args::BenchArgs),
    Calibrate(calibrate::CalibrateArgs),
    Data(data::DataArgs),
    List(list::ListArgs),
    Report(report::ReportArgs),
    Status(status::StatusArgs),
    Score(score::ScoreArgs),
    Doctor(doctor::DoctorArgs),
    Verify(verify::VerifyArgs),
    /// Print a completion script for a shell
    ///
    /// Example: spattn completions bash > /etc/bash_completion.d/spattn
    Completions {
        /// bash, elvish, fish, powershell or zsh
        ///
        /// Example: spattn completions zsh
        shell: clap_complete::Shell,
    },
}

/// Runs the program with the process's arguments. The exit status is 0 when done, 1 if a run failed, 2 for wrong arguments or configs, 3
/// if no method was shown to be as safe as `--safe-within` asks for, 75 if a scheduler stopped it or its terminal was closed, 130 if the
/// user stopped it.
pub fn main() -> ExitCode {
    main_with(&[])
}

/// Does the same as [`main`], with further methods that all commands know by name. It is the `main` of a crate that adds its own methods
/// (`examples/my_method.rs`).
pub fn main_with(methods: &'static [MethodEntry]) -> ExitCode {
    let registered = register(methods).map_err(anyhow::Error::from);
    let cli = match registered.and_then(|()| parsed()) {
        Ok(cli) => cli,
        Err(error) => return explain(&error, None, None),
    };
    let called = Called::of(&arguments::called_command::<Cli>(std::env::args_os()));
    match dispatch(cli.command) {
        Ok(Done::Completed) => ExitCode::SUCCESS,
        Ok(Done::NotSafe) => ExitCode::from(NOT_SAFE),
        Ok(Done::Interrupted) => ExitCode::from(INTERRUPTED),
        Ok(Done::Preempted) => ExitCode::from(PREEMPTED),
        Err(error) => match error.downcast::<ErrorWithHint>() {
            Ok(ErrorWithHint { error, advice }) => explain(&error, Some(&advice), Some(&called)),
            Err(error) => explain(&error, None, Some(&called)),
        },
    }
}

/// Parses the process's arguments.
///
/// # Errors
/// What is wrong with the arguments. If the parser refuses them, or help was asked for, the process ends instead. The parser repeats
/// arguments verbatim and in colours, so if one has characters that a terminal would interpret, its error is printed as plain text.
fn parsed() -> anyhow::Result<Cli> {
    let is_command = |arg: OsString| {
        let arg = arg.to_string_lossy();
        text::shown(&arg) != arg
    };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    arguments::parse(&arguments).map_err(|refusal| match refusal {
        Refusal::Ours(error) => error.into(),
        Refusal::Parser(error) => {
            if error.use_stderr() && arguments.into_iter().any(is_command) {
                eprintln!("{}", error.to_string().trim_end());
                std::process::exit(error.exit_code());
            }
            error.exit()
        }
    })
}

/// Checks arguments, given without the program's name. Nothing is run, and no file is read.
///
/// # Errors
/// The parser's error message.
pub fn check_arguments(arguments: &[OsString]) -> Result<(), String> {
    let all: Vec<OsString> = [OsString::from(NAME)].into_iter().chain(arguments.iter().cloned()).collect();
    match arguments::parse::<Cli>(&all) {
        Err(Refusal::Ours(error)) => Err(error.to_string()),
        Err(Refusal::Parser(error)) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The program's name if the process does not know its own.
const NAME: &str = "spattn";

/// The program's name, which differs from `spattn` if another crate calls [`main_with`].
fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    let stem = Path::new(&called).file_stem().and_then(|stem| stem.to_str());
    let is_plain = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    stem.filter(is_plain).unwrap_or(NAME).to_owned()
}

impl Command {
    /// The number of threads, if the user gave it.
    fn threads(&self) -> Option<usize> {
        match self {
            Self::Eval(args) => args.run.flags.threads,
            Self::Sweep(args) => args.run.flags.threads,
            Self::Reproduce(args) => args.threads.0,
            Self::Analyze(args) => args.threads.0,
            Self::Tune(args) => args.threads.0,
            Self::Bench(args) => args.threads.0,
            Self::Calibrate(args) => args.threads.0,
            Self::Verify(args) => args.threads.0,
            _ => None,
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<Done> {
    check_isa()?;
    numbers::check_threads_variable()?;
    setup::write_errors_instead_of_signals()?;
    interrupt::watch()?;
    if !matches!(command, Command::List(_) | Command::Completions { .. }) {
        setup::start_threads(command.threads())?;
    }
    if !matches!(command, Command::Report(_) | Command::Status(_) | Command::Score(_) | Command::Doctor(_)) {
        interrupt::end_with(|| "nothing was run yet; what was downloaded is kept".to_owned());
    }
    match command {
        Command::Eval(args) => return eval::run_eval(*args),
        Command::Sweep(args) => return sweep::run_sweep(*args),
        Command::Reproduce(args) => return reproduce::run_reproduce(args),
        Command::Analyze(args) => return analyze::run_analyze(&args),
        Command::Tune(args) => return tune::run_tune(*args),
        Command::Bench(args) => return bench::run_bench(&args),
        Command::Calibrate(args) => return calibrate::run_calibrate(args),
        Command::Data(args) => return data::run_data(args),
        Command::List(args) => list::list_catalog(args)?,
        Command::Report(args) => return report::write_report(args),
        Command::Status(args) => status::show_status(&args)?,
        Command::Score(args) => score::score_predictions(args)?,
        Command::Doctor(args) => doctor::examine(&args)?,
        Command::Verify(args) => verify::run_verify(&args)?,
        Command::Completions { shell } => output::print_data(&completions::script(shell, Cli::command(), &program()))?,
    }
    Ok(Done::Completed)
}

/// Prints an error as one line, then its hint, limited to what the called command can follow, and the advice.
fn explain(error: &anyhow::Error, advice: Option<&str>, called: Option<&Called>) -> ExitCode {
    if output::is_enough(error) {
        return ExitCode::SUCCESS;
    }
    let line: Vec<String> = error.chain().map(|e| e.to_string().replace('\n', " ")).collect();
    eprintln!("error: {}", line.join(": "));
    let usage = error.downcast_ref::<UsageError>();
    let failure = error.downcast_ref::<RunFailure>().map(|failure| failure.hint.as_str());
    let hint = usage.and_then(|u| u.hint.as_deref()).or(failure).or_else(|| of_room(error)).or_else(|| of_tier(error));
    let hint = hint.and_then(|hint| called.map_or_else(|| Some(hint.to_owned()), |called| called.hint(hint)));
    for hint in hint.into_iter().chain(advice.map(str::to_owned)) {
        eprintln!("  hint: {hint}");
    }
    ExitCode::from(if usage.is_some() { 2 } else { 1 })
}

/// Advice if the system limits the size of files. The message of a full disk needs none.
fn of_room(error: &anyhow::Error) -> Option<&'static str> {
    let mut kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let is_limited = kinds.any(|kind| kind == ErrorKind::FileTooLarge);
    is_limited.then_some("the system limits how large a file may be: raise `ulimit -f`, or write to another disk")
}

/// Advice if a KV cache on disk failed.
fn of_tier(error: &anyhow::Error) -> Option<&'static str> {
    let EngineError::Kv(error) = error.downcast_ref::<EngineError>()? else { return None };
    match (error, error.tier()) {
        (KvError::Unwritten { .. }, Some(Tier::Disk)) => {
            Some("make room where --out is, or choose another disk by --out; `--dry-run` says how much a prompt takes")
        }
        (_, Some(Tier::Disk)) => Some(
            "another program or the disk changed what was written in the folder of --out: choose another disk by --out, or leave --kv-tier out",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kv_cache_on_disk_that_fails_has_a_hint() {
        let why = || "no space".to_owned();
        let hint = |error: KvError| of_tier(&anyhow::Error::new(EngineError::Kv(error)).context("example 3"));
        let full = hint(KvError::Unwritten { layer: 1, tier: Tier::Disk, why: why() });
        assert!(full.is_some_and(|hint| hint.starts_with("make room")));
        let gone = hint(KvError::Unread { layer: 1, tier: Tier::Disk, why: why() });
        assert!(gone.is_some_and(|hint| hint.contains("changed what was written")));
        assert_eq!(hint(KvError::Unread { layer: 1, tier: Tier::Device, why: why() }), None);
        assert_eq!(of_tier(&anyhow::anyhow!("no space")), None);
    }

    #[test]
    fn a_file_that_cannot_grow_has_a_hint() {
        let error = anyhow::Error::new(io::Error::new(ErrorKind::FileTooLarge, "cannot write a")).context("the report");
        assert!(of_room(&error).is_some_and(|hint| hint.contains("ulimit -f")));
        assert_eq!(of_room(&anyhow::Error::new(io::Error::from(ErrorKind::NotFound))), None);
    }

    #[test]
    fn every_argument_has_help_with_an_example() {
        let mut cli = Cli::command();
        cli.build();
        cli.clone().debug_assert();
        let inner = |c: &clap::Command| c.get_subcommands().cloned().collect::<Vec<_>>();
        let commands = inner(&cli).into_iter().flat_map(|c| inner(&c).into_iter().chain([c]));
        for command in commands.filter(|c| c.get_name() != "help") {
            for argument in command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())) {
                let help = argument.get_long_help().map(|h| h.to_string()).unwrap_or_default();
                assert!(help.contains("xample:"), "{} {}: {help}", command.get_name(), argument.get_id());
            }
        }
    }
}
