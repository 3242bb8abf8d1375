//! What commands that run a model begin with: threads, data, and how they are stopped.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};

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

/// A flag that Ctrl-C raises; a second Ctrl-C ends the program at once (records are whole lines).
pub(super) fn stop_on_interrupt() -> Result<Arc<AtomicBool>> {
    // A program has one handler, and a command may run several matrices.
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(stop) = STOP.get() {
        return Ok(stop.clone());
    }
    let stop = STOP.get_or_init(Arc::default).clone();
    let raised = stop.clone();
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(super::INTERRUPTED));
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(stop)
}
