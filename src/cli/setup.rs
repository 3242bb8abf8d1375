//! What commands that run a model begin with: threads, data, and how they are stopped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::UsageError;
use crate::eval::config::system_text;
use crate::model::data::{DataFolder, DataSource};
use crate::tasks::assets;

/// Limits the threads of the whole program.
pub(super) fn set_threads(threads: Option<usize>) -> Result<()> {
    match threads {
        None => Ok(()),
        Some(n) => rayon::ThreadPoolBuilder::new().num_threads(n).build_global().context("cannot start threads"),
    }
}

/// Where the data are, and what to record of them.
pub(super) fn find_data(spec: &Path) -> Result<DataFolder> {
    let data = DataSource::parse(spec)?.resolve(&assets::patterns())?;
    data.notes.iter().for_each(|n| eprintln!("note: {n}"));
    Ok(data)
}

/// The text of `--system-prompt`.
pub(super) fn system_prompt(given: Option<&str>) -> Result<Option<String>, UsageError> {
    let of_flag = |e: UsageError| UsageError { what: format!("--system-prompt: {}", e.what), ..e };
    given.map(system_text).transpose().map_err(of_flag)
}

/// A flag that Ctrl-C raises; a second Ctrl-C ends the program at once (records are whole lines).
pub(super) fn stop_on_interrupt() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    raise_on_interrupt(&stop)?;
    Ok(stop)
}

/// Has Ctrl-C raise a flag, a second one end the program.
pub(super) fn raise_on_interrupt(stop: &Arc<AtomicBool>) -> Result<()> {
    let failed = "cannot watch for Ctrl-C";
    flag::register_conditional_shutdown(SIGINT, i32::from(super::INTERRUPTED), stop.clone()).context(failed)?;
    flag::register(SIGINT, stop.clone()).context(failed)?;
    Ok(())
}

/// Has what schedulers send before they take a machine away raise a flag, and a second flag that tells it from Ctrl-C.
/// Sent again, it changes nothing: they may send it to a whole group of processes that pass it on. While `is_planning`, when there
/// is nothing to lose, it ends the program at once.
pub(super) fn raise_on_preemption(stop: &Arc<AtomicBool>, is_planning: &Arc<AtomicBool>) -> Result<Arc<AtomicBool>> {
    let is_preempted = Arc::new(AtomicBool::new(false));
    for signal in PREEMPTION {
        flag::register_conditional_shutdown(*signal, i32::from(super::PREEMPTED), is_planning.clone())
            .context("cannot watch for the scheduler's signals")?;
        for raised in [&is_preempted, stop] {
            flag::register(*signal, raised.clone()).context("cannot watch for the scheduler's signals")?;
        }
    }
    Ok(is_preempted)
}

#[cfg(unix)]
const PREEMPTION: &[i32] = &[SIGTERM, signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2];
#[cfg(not(unix))]
const PREEMPTION: &[i32] = &[SIGTERM];
