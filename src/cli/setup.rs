//! What commands set up first: threads, data, and the signals of schedulers. [`interrupt`](super::interrupt) handles Ctrl-C.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::SIGTERM;
use signal_hook::flag;

use super::exit::PREEMPTED;
use spattn_base::error::{RunFailure, UsageError};
use spattn_base::{interrupt, memory};
use spattn_eval::config::value::system_text;
use spattn_model::data::{DataFolder, DataSource};
use spattn_tasks::data_files;

/// Starts the thread pool of the program, with `threads` threads or one for each core.
///
/// # Errors
/// If the system does not start that many threads.
pub(super) fn start_threads(threads: Option<usize>) -> Result<(), RunFailure> {
    // If the pool started at its first use, a failure to start threads would be a panic.
    rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build_global().map_err(no_threads)?;
    // Each thread reserves address space when it first allocates. The memory limit is measured after that.
    rayon::broadcast(|_| drop(std::hint::black_box(Box::new(0_u8))));
    let _ = memory::limit();
    Ok(())
}

/// The error that the system cannot start more threads.
pub(super) fn no_threads(error: impl std::fmt::Display) -> RunFailure {
    RunFailure {
        what: format!("cannot start threads: {error}"),
        hint: "take fewer with --threads, or raise the limit on processes (`ulimit -u`, or that of the control group)"
            .to_owned(),
    }
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail with an error, as on a full disk. Without this, the system ends the
/// program with a signal and no message.
pub(super) fn write_errors_instead_of_signals() -> Result<()> {
    #[cfg(unix)]
    flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).context("cannot watch for signals")?;
    Ok(())
}

/// Finds the data, and how records identify them.
pub(super) fn find_data(spec: &Path) -> Result<DataFolder> {
    let data = DataSource::parse(spec)?.resolve(&data_files::patterns())?;
    data.notes.iter().for_each(|n| eprintln!("note: {n}"));
    Ok(data)
}

/// The text of `--system-prompt`.
pub(super) fn system_prompt(given: Option<&str>) -> Result<Option<String>, UsageError> {
    let of_flag = |e: UsageError| UsageError { what: format!("--system-prompt: {}", e.what), ..e };
    given.map(system_text).transpose().map_err(of_flag)
}

/// Makes the signals that schedulers send before they take a machine away raise `stop`, and a second flag that tells them from Ctrl-C.
/// Further signals change nothing, because a scheduler may send them to a group of processes that pass them on. While `is_planning` is
/// set, nothing can be lost, so they end the program at once.
pub(super) fn raise_on_preemption(stop: &Arc<AtomicBool>, is_planning: &Arc<AtomicBool>) -> Result<Arc<AtomicBool>> {
    let is_preempted = Arc::new(AtomicBool::new(false));
    for signal in PREEMPTION.iter().copied().chain(hang_up()) {
        flag::register_conditional_shutdown(signal, i32::from(PREEMPTED), is_planning.clone())
            .context("cannot watch for the scheduler's signals")?;
        for raised in [&is_preempted, stop, &interrupt::flag()] {
            flag::register(signal, raised.clone()).context("cannot watch for the scheduler's signals")?;
        }
    }
    Ok(is_preempted)
}

/// The signal of a closed terminal, unless the program was started to ignore it (`nohup`).
fn hang_up() -> Option<i32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    #[cfg(unix)]
    return (!is_ignored(&status, signal_hook::consts::SIGHUP)?).then_some(signal_hook::consts::SIGHUP);
    #[cfg(not(unix))]
    None
}

/// Whether a signal is ignored, according to the text of `/proc/self/status`; `None` if it does not say.
fn is_ignored(status: &str, signal: i32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}

#[cfg(unix)]
const PREEMPTION: &[i32] = &[SIGTERM, signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2];
#[cfg(not(unix))]
const PREEMPTION: &[i32] = &[SIGTERM];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_as_the_system_writes_them() {
        // The first signal is the lowest bit.
        for (mask, signal, expected) in [
            ("0000000000000001", 1, Some(true)),
            ("0000000000000001", 2, Some(false)),
            ("0000000000001000", 13, Some(true)),
            ("fffffffffffffffe", 1, Some(false)),
            ("8000000000000000", 64, Some(true)),
            ("x", 1, None),
        ] {
            let status = format!("SigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\nSigCgt:\t0000000000000000\n");
            assert_eq!(is_ignored(&status, signal), expected, "{mask}, {signal}");
        }
        assert_eq!(is_ignored("Name:\tspattn\n", 1), None);
    }
}
