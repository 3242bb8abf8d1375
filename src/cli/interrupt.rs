//! Ctrl-C: every command answers it within a second or two, with one line that says what is kept and how to go on, and with exit status 130.
//!
//! From the program's start on, a thread waits for the signal. By default, it prints the line and ends the program at once, which is safe
//! at any time: files are written under temporary names and renamed, and records are whole lines. A command that can keep more by ending
//! itself registers a flag ([`stop_within_grace`]), checks it regularly, and prints the line itself ([`answer`]). If it does not end within
//! its grace period, in the middle of a large matrix operation for example, the thread ends the program. So does a second Ctrl-C.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::exit::{Done, INTERRUPTED};
use spattn_base::{disk, memory, meter};

/// The time that a command has to end by itself if it checks its flag once for each chunk or step.
pub(super) const GRACE: Duration = Duration::from_millis(1200);

type Line = Arc<dyn Fn() -> String + Send + Sync>;

/// What the running command does on Ctrl-C.
struct Plan {
    /// What is kept and how to go on.
    line: Line,
    /// How long the command has to end by itself; `None` if it checks no flag.
    grace: Option<Duration>,
}

static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
static IS_SAID: AtomicBool = AtomicBool::new(false);

/// Temporary folders to remove if the thread ends the program.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes a temporary folder if the thread ends the program.
pub(super) fn remove_at_end(folder: &Path) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

fn set(line: Line, grace: Option<Duration>) {
    *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Plan { line, grace });
}

fn plan() -> (Option<Line>, Option<Duration>) {
    let plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    plan.as_ref().map_or((None, None), |plan| (Some(plan.line.clone()), plan.grace))
}

/// From now on, Ctrl-C ends the program at once. `line` says what is kept then, and how to go on.
pub(super) fn end_with(line: impl Fn() -> String + Send + Sync + 'static) {
    set(Arc::new(line), None);
}

/// From now on, Ctrl-C raises `stop`. The command has [`GRACE`] to end; then the program is ended. `line` says what is kept then, and how
/// to go on. Register a flag only once.
///
/// # Errors
/// If the system does not let signals be watched.
pub(super) fn stop_within_grace(
    stop: &Arc<AtomicBool>,
    line: impl Fn() -> String + Send + Sync + 'static,
) -> Result<()> {
    let failed = "cannot watch for Ctrl-C";
    flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), stop.clone()).context(failed)?;
    flag::register(SIGINT, stop.clone()).context(failed)?;
    // Code that waits for another process checks this flag.
    flag::register(SIGINT, spattn_base::interrupt::flag()).context(failed)?;
    set(Arc::new(line), Some(GRACE));
    Ok(())
}

/// Replaces the line of a command that has registered its flag.
pub(super) fn say_instead(line: impl Fn() -> String + Send + Sync + 'static) {
    set(Arc::new(line), Some(GRACE));
}

/// Prints the line, unless it was printed before. For a command that ended because its flag was raised.
pub(super) fn answer() -> Done {
    say();
    Done::Interrupted
}

fn say() {
    if IS_SAID.swap(true, Ordering::SeqCst) {
        return;
    }
    meter::clear();
    match plan().0 {
        Some(line) => eprintln!("interrupted: {}", line()),
        None => eprintln!("interrupted"),
    }
}

/// Starts the thread that waits for Ctrl-C. If no thread can be started, or the limit on address space leaves no room for one, the system's
/// default action remains until a command registers its flag.
///
/// # Errors
/// If the system does not let signals be watched.
#[cfg(unix)]
pub(super) fn watch() -> Result<()> {
    use std::os::unix::net::UnixStream;
    if !memory::has_room_for_helpers() {
        return Ok(());
    }
    let failed = "cannot watch for Ctrl-C";
    let (heard, signal) = UnixStream::pair().context(failed)?;
    let thread = std::thread::Builder::new().name("interrupt".to_owned());
    if thread.spawn(move || end_after(heard)).is_ok() {
        signal_hook::low_level::pipe::register(SIGINT, signal).context(failed)?;
    }
    Ok(())
}

/// Does nothing: the system's default action remains until a command registers its flag.
#[cfg(not(unix))]
pub(super) fn watch() -> Result<()> {
    Ok(())
}

/// Ends the program when a signal arrives on `heard`.
#[cfg(unix)]
fn end_after(mut heard: std::os::unix::net::UnixStream) {
    use std::io::Read;
    let mut byte = [0];
    loop {
        match heard.read(&mut byte) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(1) => break,
            // The other end is closed, so no signal will arrive.
            _ => return,
        }
    }
    // A second signal ends the wait.
    let wait = |heard: &mut std::os::unix::net::UnixStream, byte: &mut [u8], time: Duration| {
        let _ = heard.set_read_timeout(Some(time));
        let _ = heard.read(byte);
    };
    if let Some(grace) = plan().1 {
        wait(&mut heard, &mut byte, grace);
    }
    if IS_SAID.load(Ordering::SeqCst) {
        // The command has printed its line and is about to end.
        wait(&mut heard, &mut byte, GRACE);
    }
    say();
    disk::remove_unfinished();
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let _ = std::fs::remove_dir_all(folder);
    }
    signal_hook::low_level::exit(i32::from(INTERRUPTED));
}
