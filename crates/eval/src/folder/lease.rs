//! A lease on a folder, kept in a file. It keeps a second writer out where the file system has no locks, or where its locks hold on one
//! machine only, as on network file systems.
//!
//! The file is created exclusively. It names its owner, and has a counter that the owner increments while it lives. If the counter does not
//! change for [`PATIENCE`], the owner is gone, whatever the clocks of the two machines say. A truncated file (disk full, or killed while
//! writing) has no owner and is replaced as a whole. To take over, a process writes its own name, waits, and checks that its name is still
//! there. A suspended owner that later finds another name there stops writing.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use spattn_base::disk::{open_here, read_here, replace_here};
use spattn_base::privacy;

/// The name of the file within a folder.
pub const OWNER: &str = ".owner";
/// The interval at which an owner increments its counter.
const BEAT: Duration = Duration::from_secs(5);
/// How long a counter must stay the same before its owner counts as gone.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a new name must stay in the file before it counts, because two processes may take over at the same time.
const SETTLE: Duration = Duration::from_secs(1);

/// The most bytes of the file that are read.
const MOST_BYTES: u64 = 1 << 16;

/// The state of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Nothing,
    Owner(Owner),
    /// An incomplete owner's file.
    CutShort,
}

impl Found {
    /// Reads the file.
    ///
    /// # Errors
    /// If the file is not an owner's file, or cannot be read.
    fn at(path: &Path) -> io::Result<Self> {
        let bytes = match read_here(path, MOST_BYTES) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::Nothing),
            bytes => bytes?,
        };
        if let Ok(owner) = serde_json::from_slice(&bytes) {
            return Ok(Self::Owner(owner));
        }
        let (beginning, text) = (b"{\"host\"", bytes.trim_ascii());
        // After a crash of the machine, a file may consist of zeros.
        let is_cut = text.iter().all(|byte| *byte == 0) || text.starts_with(beginning) || beginning.starts_with(text);
        match is_cut {
            true => Ok(Self::CutShort),
            false => {
                let what = format!("{OWNER} exists, and spattn did not write it");
                Err(io::Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The machine's name, or the node's name from the scheduler.
    pub host: String,
    /// The machine's boot id, if the system has one.
    #[serde(default)]
    pub boot: String,
    /// The process number.
    pub pid: u32,
    /// When the process asked for the lease, in nanoseconds since 1970: distinguishes processes with the same number.
    pub since: u128,
    /// The counter, incremented while the process lives.
    pub count: u64,
}

impl Owner {
    /// This process as an owner.
    fn this() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let (host, boot) = machine(privacy::is_left_out());
        Self { host, boot, pid: std::process::id(), since, count: 0 }
    }

    /// Whether the owner is on this machine, in this boot. Names are compared both plain and with the user hidden.
    fn is_here(&self) -> bool {
        [true, false].into_iter().any(|is_left_out| machine(is_left_out) == (self.host.clone(), self.boot.clone()))
    }

    /// Whether both are the same owner; counters may differ.
    fn is(&self, other: &Self) -> bool {
        (&self.host, &self.boot, self.pid, self.since) == (&other.host, &other.boot, other.pid, other.since)
    }

    /// Reads the owner of a folder; `None` if there is none, or the file cannot be read.
    pub fn of(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&read_here(&dir.join(OWNER), MOST_BYTES).ok()?).ok()
    }

    /// Whether the folder's owner lives. On this machine, an owner whose process has ended does not; otherwise, an owner lives if its file
    /// changed recently, by the times of files.
    pub fn is_alive(dir: &Path) -> bool {
        if Self::of(dir).is_some_and(|o| o.is_here() && is_ended(&o)) {
            return false;
        }
        let changed = fs::metadata(dir.join(OWNER)).and_then(|file| file.modified());
        changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < 2 * PATIENCE))
    }
}

/// This machine's name and boot id; if the user is to be hidden, a substitute for the name, and no boot id.
fn machine(is_left_out: bool) -> (String, String) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    if is_left_out { (privacy::machine(&host(), &boot), String::new()) } else { (host(), boot) }
}

/// This machine's name.
pub fn host() -> String {
    let named = fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    named.map_or_else(|| "unknown machine".to_owned(), |name| name.trim().to_owned())
}

/// A folder that only this process writes to, until the lease is dropped.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    owner: Owner,
    shared: Arc<Shared>,
    beating: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    is_lost: AtomicBool,
    /// The time of the last increment; `None` tells the thread to end.
    last: Mutex<Option<Instant>>,
    ended: Condvar,
}

/// The reason why a folder cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The folder has an owner.
    #[error("process {} on {} writes to it", .0.pid, .0.host)]
    Owned(Owner),
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Lease {
    /// Takes the lease of an existing folder. `is_locked` says that this process holds a lock of the file system, so that no other process
    /// on this machine can be writing there.
    ///
    /// # Errors
    /// [`Refused::Owned`] if another process writes there; finding out takes up to [`PATIENCE`].
    pub fn take(dir: &Path, is_locked: bool) -> Result<Self, Refused> {
        Self::take_within(dir, is_locked, PATIENCE, SETTLE)
    }

    fn take_within(dir: &Path, is_locked: bool, patience: Duration, settle: Duration) -> Result<Self, Refused> {
        let (path, owner) = (dir.join(OWNER), Owner::this());
        match create(&path, &owner) {
            Ok(()) => return Ok(Self::acquired(path, owner)),
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.into()),
            Err(_) => {}
        }
        let mut found = Found::at(&path)?;
        if found == Found::CutShort {
            // Another process may be writing the file right now.
            std::thread::sleep(settle);
            found = Found::at(&path)?;
        }
        let is_followed_at_once = match &found {
            // Under the lock, an owner with our process number is no writer, unless the lock's file was replaced.
            Found::Owner(found) => found.is_here() && (is_ended(found) || is_locked && found.pid == owner.pid),
            _ => false,
        };
        if !is_followed_at_once && let Found::Owner(found) = found {
            wait_for_silence(dir, found, patience)?;
        }
        write(&path, &owner)?;
        if !is_followed_at_once {
            std::thread::sleep(settle);
        }
        match Owner::of(dir) {
            Some(now) if !now.is(&owner) => Err(Refused::Owned(now)),
            _ => Ok(Self::acquired(path, owner)),
        }
    }

    fn acquired(path: PathBuf, owner: Owner) -> Self {
        let (is_lost, last) = (AtomicBool::new(false), Mutex::new(Some(Instant::now())));
        let shared = Arc::new(Shared { is_lost, last, ended: Condvar::new() });
        let (of_thread, path_there, mut own) = (shared.clone(), path.clone(), owner.clone());
        let beat = move || {
            let mut last = of_thread.last.lock().unwrap_or_else(PoisonError::into_inner);
            while last.is_some() {
                let waited = of_thread.ended.wait_timeout(last, BEAT);
                last = waited.unwrap_or_else(PoisonError::into_inner).0;
                if last.is_none() || of_thread.is_lost.load(Ordering::Relaxed) {
                    break;
                }
                own.count += 1;
                match Found::at(&path_there) {
                    Ok(Found::Owner(found)) if !found.is(&own) => of_thread.is_lost.store(true, Ordering::Relaxed),
                    Ok(Found::Owner(_) | Found::CutShort) => drop(write(&path_there, &own)),
                    // The folder may have been replaced by another one.
                    Ok(Found::Nothing) | Err(_) => {}
                }
                *last = Some(Instant::now());
            }
        };
        // If no thread can be started, the lease is not renewed. Then only the lock protects the folder.
        let beating = std::thread::Builder::new().name("lease".to_owned()).spawn(beat).ok();
        Self { path, owner, shared, beating }
    }

    /// Whether the lease is still this process's. After a long suspension, reads the file to find out.
    pub fn is_held(&self) -> bool {
        if self.shared.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let last = self.shared.last.try_lock().ok().and_then(|last| *last);
        if last.is_some_and(|last| last.elapsed() > PATIENCE / 2) && !stands(&self.path, &self.owner) {
            self.shared.is_lost.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.ended.notify_all();
        if let Some(thread) = self.beating.take() {
            let _ = thread.join();
        }
        let is_own = matches!(Found::at(&self.path), Ok(Found::Owner(found)) if found.is(&self.owner));
        if is_own && !self.shared.is_lost.load(Ordering::Relaxed) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the file names no other owner. A file that cannot be read counts as unchanged.
fn stands(path: &Path, owner: &Owner) -> bool {
    let found = read_here(path, MOST_BYTES).ok().and_then(|bytes| serde_json::from_slice::<Owner>(&bytes).ok());
    found.is_none_or(|found| found.is(owner))
}

fn create(path: &Path, owner: &Owner) -> io::Result<()> {
    let mut file = match open_here(path, OpenOptions::new().write(true).create_new(true)) {
        // The caller examines the file that exists.
        Err(_) if fs::symlink_metadata(path).is_ok() => return Err(ErrorKind::AlreadyExists.into()),
        file => file?,
    };
    file.write_all(&line(owner)).inspect_err(|_| drop(fs::remove_file(path)))
}

/// Replaces the file as a whole, so that readers always find a complete one.
fn write(path: &Path, owner: &Owner) -> io::Result<()> {
    replace_here(path, &line(owner))
}

fn line(owner: &Owner) -> Vec<u8> {
    let mut line = serde_json::to_vec(owner).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Whether the owner's process, which ran on this machine, has ended.
fn is_ended(owner: &Owner) -> bool {
    let processes = Path::new("/proc");
    processes.join("self").exists() && !processes.join(owner.pid.to_string()).exists()
}

/// Waits until the file has not changed for `patience`.
fn wait_for_silence(dir: &Path, found: Owner, patience: Duration) -> Result<(), Refused> {
    let (mut told, start) = (false, Instant::now());
    while start.elapsed() < patience {
        std::thread::sleep(patience / 30);
        match Owner::of(dir) {
            // The owner has released it.
            None if !dir.join(OWNER).exists() => return Ok(()),
            Some(now) if now != found => return Err(Refused::Owned(now)),
            _ => {}
        }
        if !told && start.elapsed() > patience / 10 {
            told = true;
            let Owner { pid, host, .. } = &found;
            let (dir, wait) = (dir.display(), patience.as_secs());
            eprintln!("note: process {pid} on {host} has a lock on {dir}: waiting {wait} s to see whether it is alive");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);
    const SETTLE: Duration = Duration::from_millis(50);

    /// Takes a lease as on a file system without locks.
    fn take(dir: &Path) -> Result<Lease, Refused> {
        Lease::take_within(dir, false, PATIENCE, SETTLE)
    }

    fn elsewhere(count: u64) -> Owner {
        Owner { host: "elsewhere".into(), boot: "b".into(), pid: 7, since: 1, count }
    }

    #[test]
    fn a_folder_has_one_owner_and_none_when_it_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let lease = take(dir.path()).unwrap();
        assert!(lease.is_held() && Owner::of(dir.path()).unwrap().is(&lease.owner) && Owner::is_alive(dir.path()));
        drop(lease);
        assert!(Owner::of(dir.path()).is_none() && !Owner::is_alive(dir.path()));
        drop(take(dir.path()).unwrap());
    }

    #[test]
    fn an_owner_elsewhere_that_lives_refuses_a_second() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join(OWNER), &elsewhere(0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(PATIENCE / 2);
                write(&dir.path().join(OWNER), &elsewhere(1)).unwrap();
            });
            let Err(Refused::Owned(owner)) = take(dir.path()) else { panic!("it lives") };
            assert_eq!(owner, elsewhere(1));
        });
        assert_eq!(Owner::of(dir.path()), Some(elsewhere(1)), "its name stays");
    }

    #[test]
    fn an_owner_elsewhere_that_is_silent_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join(OWNER), &elsewhere(5)).unwrap();
        let start = Instant::now();
        let lease = take(dir.path()).unwrap();
        assert!(start.elapsed() >= PATIENCE && lease.is_held());
    }

    #[test]
    fn one_that_was_cut_short_is_followed_at_once_and_another_programs_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OWNER);
        let whole = line(&elsewhere(5));
        for cut in [0, 1, 5, 20, whole.len() - 2] {
            for is_locked in [false, true] {
                fs::write(&path, &whole[..cut]).unwrap();
                let start = Instant::now();
                let lease = Lease::take_within(dir.path(), is_locked, 100 * PATIENCE, SETTLE).unwrap();
                assert!(start.elapsed() < 10 * PATIENCE && lease.is_held() && Owner::of(dir.path()).is_some(), "{cut}");
            }
        }
        fs::write(&path, [0; 200]).unwrap();
        drop(take(dir.path()).unwrap());
        for foreign in ["alice", "{\"name\": \"alice\"}", "[1"] {
            fs::write(&path, foreign).unwrap();
            let error = take(dir.path()).unwrap_err().to_string();
            assert!(error.contains(".owner exists, and spattn did not write it"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn one_that_is_completed_meanwhile_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OWNER);
        fs::write(&path, "{\"host\"").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SETTLE / 2);
                write(&path, &elsewhere(0)).unwrap();
                std::thread::sleep(SETTLE + PATIENCE / 2);
                write(&path, &elsewhere(1)).unwrap();
            });
            assert!(matches!(take(dir.path()), Err(Refused::Owned(_))));
        });
    }

    #[test]
    fn a_lock_that_was_removed_lets_nobody_in_while_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let lives = Owner { pid: std::os::unix::process::parent_id(), since: 1, ..Owner::this() };
        write(&dir.path().join(OWNER), &lives).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(PATIENCE / 2);
                write(&dir.path().join(OWNER), &Owner { count: 1, ..lives.clone() }).unwrap();
            });
            // This process holds the lock of a new file, and the owner that of the removed one.
            assert!(matches!(Lease::take_within(dir.path(), true, PATIENCE, SETTLE), Err(Refused::Owned(_))));
        });
    }

    #[test]
    fn of_two_that_follow_at_the_same_time_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join(OWNER), &elsewhere(5)).unwrap();
        let taken: Vec<_> = std::thread::scope(|scope| {
            let both: Vec<_> = (0..2).map(|_| scope.spawn(|| take(dir.path()))).collect();
            both.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1, "{taken:?}");
    }

    #[test]
    fn one_that_ended_on_this_machine_is_followed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        // The largest possible process number is 2^22.
        let ended = Owner { pid: u32::MAX, ..Owner::this() };
        write(&dir.path().join(OWNER), &ended).unwrap();
        let start = Instant::now();
        if is_ended(&ended) {
            drop(take(dir.path()).unwrap());
            assert!(start.elapsed() < PATIENCE);
        }
        // Under the lock, the owner is an earlier process with the same number.
        write(&dir.path().join(OWNER), &Owner { since: 1, ..Owner::this() }).unwrap();
        let start = Instant::now();
        drop(Lease::take_within(dir.path(), true, PATIENCE, SETTLE).unwrap());
        assert!(start.elapsed() < PATIENCE);
    }

    #[test]
    fn an_owner_that_finds_another_name_owns_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lease = take(dir.path()).unwrap();
        write(&dir.path().join(OWNER), &elsewhere(0)).unwrap();
        *lease.shared.last.lock().unwrap() = Instant::now().checked_sub(super::PATIENCE);
        assert!(!lease.is_held());
        drop(lease);
        assert_eq!(Owner::of(dir.path()), Some(elsewhere(0)), "and removes nothing");
    }
}
