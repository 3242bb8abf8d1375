//! Ctrl-C: every command answers it within a second or two, with one line that says what is kept and how to go on, and with exit status 130.
//!
//! From the program's start on, a thread waits for the signal. Unless the command has said otherwise, the thread prints the line and ends the
//! program at once, which is safe at any time: files are written aside and renamed, and records are whole lines. A command that can keep more
//! by ending itself gets a flag ([`stop_within`]), looks at it where it can, and prints the line itself ([`answer`]). If its time is up
//! before that, in the middle of a large matrix for example, the thread ends the program for it. So does a second Ctrl-C.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::exit::{Done, INTERRUPTED};
use spattn_base::{disk, memory, meter};

/// What a command that looks at its flag once for each chunk or step may take.
pub(super) const GRACE: Duration = Duration::from_millis(1200);

type Line = Arc<dyn Fn() -> String + Send + Sync>;

/// How the running command answers.
struct Plan {
    /// What is kept and how to go on.
    line: Line,
    /// How long the command has to end by itself; `None` if it does not look.
    grace: Option<Duration>,
}

static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
static IS_SAID: AtomicBool = AtomicBool::new(false);

/// Temporary folders, which are removed when the program is ended here.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes a temporary folder too if the program is ended here.
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

/// From now on, Ctrl-C raises `stop`. The command has [`GRACE`] to end; then the program is ended. `line` says what is kept then, and how to
/// go on. A flag is given once.
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
    // Who waits for another process looks there.
    flag::register(SIGINT, spattn_base::interrupt::flag()).context(failed)?;
    set(Arc::new(line), Some(GRACE));
    Ok(())
}

/// Replaces the line of a command that has its flag.
pub(super) fn say_instead(line: impl Fn() -> String + Send + Sync + 'static) {
    set(Arc::new(line), Some(GRACE));
}

/// Prints the line, unless that was done, for a command that ended because its flag was raised.
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

/// Waits for Ctrl-C from now on. Where no thread can be started, or the limit on address space leaves no room for one, the system's own action
/// remains until a command asks for its flag.
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

/// The system's own action remains until a command asks for its flag.
#[cfg(not(unix))]
pub(super) fn watch() -> Result<()> {
    Ok(())
}

/// Ends the program when something is heard.
#[cfg(unix)]
fn end_after(mut heard: std::os::unix::net::UnixStream) {
    use std::io::Read;
    let mut byte = [0];
    loop {
        match heard.read(&mut byte) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(1) => break,
            // Nobody will write any more.
            _ => return,
        }
    }
    // A second one ends the wait.
    let wait = |heard: &mut std::os::unix::net::UnixStream, byte: &mut [u8], time: Duration| {
        let _ = heard.set_read_timeout(Some(time));
        let _ = heard.read(byte);
    };
    if let Some(grace) = plan().1 {
        wait(&mut heard, &mut byte, grace);
    }
    if IS_SAID.load(Ordering::SeqCst) {
        // The command has answered, and is about to end.
        wait(&mut heard, &mut byte, GRACE);
    }
    say();
    disk::remove_unfinished();
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let _ = std::fs::remove_dir_all(folder);
    }
    signal_hook::low_level::exit(i32::from(INTERRUPTED));
}
