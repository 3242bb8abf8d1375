//! Downloads of files, from the network or from a folder that replaces it. A file is moved to its place only when it is complete and
//! checked.
//!
//! Received bytes are kept in a file beside it. A later attempt, also by another process, resumes from them if the expected hash is
//! known, since only the hash shows whether the parts belong together.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checksum::Expected;
use crate::http::{Answer, Client, HttpError, Refusal, parse_url};
use crate::lock::Lock;
use spattn_base::error::UsageError;
use spattn_base::meter::Meter;
use spattn_base::text::size;

const LOCAL: &str = "file://";
/// Consecutive failures without a new byte after which a download is given up.
const MOST_FAILURES: u32 = 5;
/// Complete files with a wrong hash after which a download is given up: the first one may have resumed from a bad part.
const MOST_WRONG: u32 = 2;
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// If a server asks to wait longer than this, the download ends with an error.
const MOST_PATIENT: Duration = Duration::from_secs(120);

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// A request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The content differs from the published file.
    #[error("the download differs from the published file: {difference}")]
    Wrong {
        /// The difference.
        difference: String,
    },
    /// Neither hash nor size is known, so it cannot be checked that the file is complete.
    #[error("its size and hash are not known, and the server states no size")]
    Unverifiable,
    /// The source file in a folder that replaces the network cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file, its partial download or its lock cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The URL is not one for requests.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

impl DownloadError {
    /// What the user can do about it; `again` says what happens if the same command is run again.
    pub fn hint(&self, again: &str) -> String {
        match self {
            Self::Http(error) => error.hint(again),
            Self::Wrong { .. } => {
                format!("the server, a proxy or a mirror changes the file: check proxies and mirrors; {FROM_START}")
            }
            Self::Unverifiable => "use a server that states the size of a file".to_owned(),
            Self::Unreadable { .. } => "check the address of the copy".to_owned(),
            Self::Unwritable { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("free space on the disk; {again}"),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose a folder that can be written to".to_owned()
                }
                _ => format!("check the disk; {again}"),
            },
            Self::Usage(error) => error.hint.clone().unwrap_or_default(),
        }
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Http(error) if error.is_transient())
    }
}

/// A failure of a server that may say how long to wait.
trait Retryable {
    fn asks_to_wait(&self) -> Option<Duration>;
}

impl Retryable for HttpError {
    fn asks_to_wait(&self) -> Option<Duration> {
        self.retry_after()
    }
}

impl Retryable for DownloadError {
    fn asks_to_wait(&self) -> Option<Duration> {
        match self {
            Self::Http(error) => error.retry_after(),
            _ => None,
        }
    }
}

/// What running the same command again does if partial downloads are kept.
pub const GOES_ON: &str = "the same command resumes the download";
/// What it does if they are not.
pub const FROM_START: &str = "the same command downloads the file again";

/// A file to download.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Its URL: `https://`, `http://` or `file://`.
    pub url: &'a str,
    /// The path to which it is moved once it is complete and checked.
    pub target: &'a Path,
    /// The path of the partial download.
    pub unfinished: &'a Path,
    /// The path of another program's partial download, which is taken over if it exists.
    pub earlier: Option<&'a Path>,
    /// The lock on which processes that want the same file wait for each other.
    pub lock: &'a Path,
    /// Its expected size and hash.
    pub expected: Expected<'a>,
}

impl Job<'_> {
    /// What running the same command again does after a failure.
    pub fn again(&self) -> &'static str {
        if self.can_resume() { GOES_ON } else { FROM_START }
    }

    /// Whether a partial download may be resumed: a hash has to show whether the parts belong together.
    fn can_resume(&self) -> bool {
        self.expected.digest.is_some()
    }

    fn unwritable(&self, source: io::Error) -> DownloadError {
        DownloadError::Unwritable { path: self.unfinished.to_owned(), source }
    }
}

/// Downloads files.
#[derive(Debug)]
pub struct Downloader {
    /// Sends the requests.
    pub client: Client,
    /// The pause before the second try; it doubles for each further one.
    pub backoff: Duration,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl Downloader {
    /// Downloads a file, unless it is already complete when this process gets the lock. Waits, retries and damaged files are reported
    /// on standard error.
    ///
    /// # Errors
    /// [`DownloadError`]. Received bytes are kept if the download can be resumed.
    pub fn get(&self, job: &Job<'_>) -> Result<(), DownloadError> {
        let meter = Progress::new(job, self.progress);
        let waits = || meter.say(&format!("{}: another process downloads it; waiting", job.name));
        let no_locks = |e: &io::Error| {
            meter.say(&format!(
                "{}: the file {} cannot be locked ({e}): run one process at a time",
                job.name,
                job.lock.display()
            ));
        };
        let _lock = Lock::take(job.lock, waits, no_locks)
            .map_err(|source| DownloadError::Unwritable { path: job.lock.to_owned(), source })?;
        if is_right(job.target, job.expected) {
            return Ok(());
        }
        if let Some(folder) = job.unfinished.parent() {
            std::fs::create_dir_all(folder).map_err(|e| job.unwritable(e))?;
        }
        if let Some(earlier) = job.earlier.filter(|earlier| earlier.is_file() && !job.unfinished.exists()) {
            std::fs::rename(earlier, job.unfinished).map_err(|e| job.unwritable(e))?;
        }
        self.receive(job, &meter)?;
        std::fs::rename(job.unfinished, job.target)
            .map_err(|source| DownloadError::Unwritable { path: job.target.to_owned(), source })
    }

    /// Tries until the file is complete and right.
    fn receive(&self, job: &Job<'_>, meter: &Progress<'_>) -> Result<(), DownloadError> {
        let mut failures = Failures::new(self.backoff);
        let mut wrong = 0;
        loop {
            let tried = self.attempt(job, meter).and_then(|()| check(job));
            let failure = match tried {
                Ok(()) => return Ok(()),
                Err(failure @ DownloadError::Wrong { .. }) => {
                    // No part of it can be trusted.
                    remove(job.unfinished).map_err(|e| job.unwritable(e))?;
                    wrong += 1;
                    if wrong == MOST_WRONG || job.url.starts_with(LOCAL) {
                        return Err(failure);
                    }
                    meter.say(&format!("{}: {failure}; downloading it again", job.name));
                    continue;
                }
                Err(failure) if failure.is_transient() => failure,
                Err(failure) => return Err(failure),
            };
            let arrived = job.unfinished.metadata().map_or(0, |data| data.len());
            let wait = failures.wait_after(failure, arrived)?;
            meter.say(&format!("{}: {}; trying again in {}", job.name, wait.reason, humane(wait.pause)));
            std::thread::sleep(wait.pause);
        }
    }

    /// Sends one request for the bytes that are missing.
    fn attempt(&self, job: &Job<'_>, meter: &Progress<'_>) -> Result<(), DownloadError> {
        let mut part = Part::open(job)?;
        if let Some(path) = job.url.strip_prefix(LOCAL) {
            return part.copy(Path::new(path), meter);
        }
        if job.expected.bytes == Some(part.bytes) {
            return Ok(());
        }
        let url = parse_url(job.url)?;
        let answer = match self.client.get(&url, part.bytes) {
            // The partial download does not belong to this file.
            Err(HttpError::Refused(Refusal { status: 416, .. })) if part.bytes > 0 => {
                part.start_over()?;
                self.client.get(&url, 0)
            }
            other => other,
        };
        part.take_from(answer?, meter)
    }
}

/// A failure after which the request is repeated.
struct Wait<E> {
    reason: E,
    pause: Duration,
}

/// Counts failures since the last new byte.
struct Failures {
    backoff: Duration,
    in_a_row: u32,
    furthest: u64,
}

impl Failures {
    fn new(backoff: Duration) -> Self {
        Self { backoff, in_a_row: 0, furthest: 0 }
    }

    /// How long to wait after a failure at which `arrived` bytes had been received.
    ///
    /// # Errors
    /// The failure itself, if there were too many or the server asks for too long a wait.
    fn wait_after<E: Retryable>(&mut self, reason: E, arrived: u64) -> Result<Wait<E>, E> {
        if arrived > self.furthest {
            (self.furthest, self.in_a_row) = (arrived, 0);
        }
        self.in_a_row += 1;
        let asked = reason.asks_to_wait();
        if self.in_a_row > MOST_FAILURES || asked.is_some_and(|wait| wait > MOST_PATIENT) {
            return Err(reason);
        }
        let doubled = self.backoff.saturating_mul(1 << (self.in_a_row - 1)).min(LONGEST_WAIT);
        let pause = doubled.mul_f64(jitter()).max(asked.unwrap_or_default());
        Ok(Wait { reason, pause })
    }
}

/// A random number from a half to one, so that processes that failed together do not retry together.
fn jitter() -> f64 {
    let random = RandomState::new().hash_one(std::process::id());
    0.5 + 0.5 * (random as f64 / u64::MAX as f64)
}

fn humane(pause: Duration) -> String {
    format!("{:.1} s", pause.as_secs_f64())
}

/// Sends a request for something small, repeated with the pauses of a download as long as the failure is `worth_another` try. `name`
/// is its name in messages.
///
/// # Errors
/// The last failure.
pub fn with_retries<T>(
    name: &str,
    backoff: Duration,
    worth_another: fn(&HttpError) -> bool,
    mut request: impl FnMut() -> Result<T, HttpError>,
) -> Result<T, HttpError> {
    let mut failures = Failures::new(backoff);
    loop {
        let error = match request() {
            Err(error) if worth_another(&error) => error,
            done => return done,
        };
        let wait = failures.wait_after(error, 0)?;
        eprintln!("note: {name}: {}; trying again in {}", wait.reason, humane(wait.pause));
        std::thread::sleep(wait.pause);
    }
}

/// Whether the file exists and is as expected.
fn is_right(path: &Path, expected: Expected<'_>) -> bool {
    path.is_file() && expected.difference(path).is_ok_and(|difference| difference.is_none())
}

fn check(job: &Job<'_>) -> Result<(), DownloadError> {
    match job.expected.difference(job.unfinished) {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err(DownloadError::Wrong { difference }),
        Err(source) => Err(DownloadError::Unreadable { path: job.unfinished.to_owned(), source }),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A partial download.
struct Part<'a> {
    job: &'a Job<'a>,
    file: File,
    bytes: u64,
}

impl<'a> Part<'a> {
    /// Opens the partial download of an earlier attempt, or an empty one.
    fn open(job: &'a Job<'a>) -> Result<Self, DownloadError> {
        let open = || File::options().create(true).append(true).open(job.unfinished);
        let file = open().map_err(|e| job.unwritable(e))?;
        let bytes = file.metadata().map_err(|e| job.unwritable(e))?.len();
        let mut part = Self { job, file, bytes };
        let too_long = job.expected.bytes.is_some_and(|expected| bytes > expected);
        if bytes > 0 && (too_long || !job.can_resume()) {
            part.start_over()?;
        }
        Ok(part)
    }

    fn start_over(&mut self) -> Result<(), DownloadError> {
        match std::mem::take(&mut self.bytes) {
            0 => Ok(()),
            _ => self.file.set_len(0).map_err(|e| self.job.unwritable(e)),
        }
    }

    /// Reads an answer to its end.
    fn take_from(&mut self, mut answer: Answer, meter: &Progress<'_>) -> Result<(), DownloadError> {
        let expected = self.place(&answer)?;
        if expected.is_none() && !answer.has_end() && self.job.expected.digest.is_none() {
            return Err(DownloadError::Unverifiable);
        }
        let mut buffer = vec![0; 1 << 16];
        loop {
            meter.show(self.bytes, expected);
            match answer.read(&mut buffer)? {
                0 => break,
                read => self.write(&buffer[..read])?,
            }
        }
        self.file.sync_all().map_err(|e| self.job.unwritable(e))?;
        match expected {
            Some(expected) if self.bytes < expected => Err(answer.ends_early(self.bytes, expected).into()),
            _ => Ok(()),
        }
    }

    /// Finds where in the file the answer begins. Returns the size of the file, if known.
    fn place(&mut self, answer: &Answer) -> Result<Option<u64>, DownloadError> {
        let total = match (answer.is_part, answer.range()) {
            // The answer is the whole file, even if only a part was requested.
            (false, _) => {
                self.start_over()?;
                answer.length()
            }
            (true, Some((start, total))) if start == self.bytes => {
                total.or_else(|| answer.length().map(|length| start + length))
            }
            (true, _) => {
                return Err(DownloadError::Wrong {
                    difference: "the server sent another part than was requested".to_owned(),
                });
            }
        };
        match total.and_then(|total| self.job.expected.difference_in_size(total)) {
            Some(difference) => Err(DownloadError::Wrong { difference }),
            None => Ok(self.job.expected.bytes.or(total)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        self.bytes += bytes.len() as u64;
        if let Some(expected) = self.job.expected.bytes.filter(|expected| self.bytes > *expected) {
            let difference = format!("it has more than the {expected} bytes of the published file");
            return Err(DownloadError::Wrong { difference });
        }
        self.file.write_all(bytes).map_err(|e| self.job.unwritable(e))
    }

    /// Copies a file from a folder that replaces the network.
    fn copy(&mut self, from: &Path, meter: &Progress<'_>) -> Result<(), DownloadError> {
        let unreadable = |source| DownloadError::Unreadable { path: from.to_owned(), source };
        self.start_over()?;
        let mut source = File::open(from).map_err(unreadable)?;
        let total = source.metadata().map_err(unreadable)?.len();
        if let Some(difference) = self.job.expected.difference_in_size(total) {
            return Err(DownloadError::Wrong { difference });
        }
        let mut buffer = vec![0; 1 << 16];
        loop {
            meter.show(self.bytes, Some(total));
            match io::Read::read(&mut source, &mut buffer) {
                Ok(0) => return self.file.sync_all().map_err(|e| self.job.unwritable(e)),
                Ok(read) => self.write(&buffer[..read])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(unreadable(e)),
            }
        }
    }
}

/// The progress of a download in bytes, and messages beside it.
struct Progress<'a> {
    meter: RefCell<Meter>,
    name: &'a str,
    /// Bytes that were there when the download began, which do not count for its rate.
    found: Cell<Option<u64>>,
}

impl<'a> Progress<'a> {
    fn new(job: &Job<'a>, is_visible: bool) -> Self {
        let meter = Meter::new(!is_visible, &format!("asking for {}", job.name));
        Self { meter: RefCell::new(meter), name: job.name, found: Cell::new(None) }
    }

    fn show(&self, bytes: u64, total: Option<u64>) {
        let found = self.found.get().unwrap_or(bytes).min(bytes);
        self.found.set(Some(found));
        let said = || match total {
            Some(total) => format!("{} of {}  {}", size(bytes), size(total), self.name),
            None => format!("{}  {}", size(bytes), self.name),
        };
        match total {
            Some(total) => self.meter.borrow_mut().at(bytes, total, found, said),
            None => self.meter.borrow_mut().doing(&said()),
        }
    }

    fn say(&self, line: &str) {
        self.meter.borrow().tell(&format!("note: {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(retry_after: Option<u64>) -> DownloadError {
        DownloadError::Http(HttpError::Refused(Refusal {
            host: "hub".to_owned(),
            status: 429,
            code: None,
            retry_after: retry_after.map(Duration::from_secs),
            by_first_host: true,
        }))
    }

    #[test]
    fn pauses_double_until_it_is_given_up() {
        let mut failures = Failures::new(Duration::from_secs(1));
        for seconds in [1.0, 2.0, 4.0, 8.0, 16.0] {
            let pause = failures.wait_after(busy(None), 0).ok().unwrap().pause.as_secs_f64();
            assert!((0.5 * seconds..=seconds).contains(&pause), "{pause} of {seconds}");
        }
        assert!(failures.wait_after(busy(None), 0).is_err());
        assert!(failures.wait_after(busy(None), 1).is_ok(), "a byte more begins the count again");
    }

    #[test]
    fn a_server_that_asks_to_wait_is_waited_for_within_reason() {
        let mut failures = Failures::new(Duration::from_millis(1));
        assert_eq!(failures.wait_after(busy(Some(7)), 0).ok().unwrap().pause, Duration::from_secs(7));
        let error = failures.wait_after(busy(Some(3600)), 0).err().unwrap();
        assert_eq!(error.to_string(), "hub answers 429 Too Many Requests");
        assert!(error.hint(GOES_ON).contains("wait 3600 s, then the same command resumes"), "{}", error.hint(GOES_ON));
    }

    #[test]
    fn a_folder_stands_in_for_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a"), "some rows\n").unwrap();
        let downloader =
            Downloader { client: Client::new(Default::default()), backoff: Duration::ZERO, progress: false };
        let get = |from: &str, expected| {
            let url = format!("file://{}", at(from).display());
            let (target, unfinished, lock) = (at("new/b"), at("new/b.part"), at("new/b.lock"));
            let job = Job {
                name: "b",
                url: &url,
                target: &target,
                unfinished: &unfinished,
                earlier: None,
                lock: &lock,
                expected,
            };
            downloader.get(&job)
        };
        let wrong = get("a", Expected { bytes: Some(11), digest: None }).unwrap_err().to_string();
        assert_eq!(wrong, "the download differs from the published file: it has 10 bytes, the published file 11");
        assert!(get("nowhere", Expected::default()).unwrap_err().to_string().contains("nowhere: "));
        assert!(!at("new/b").exists());
        get("a", Expected { bytes: Some(10), digest: None }).unwrap();
        assert_eq!(std::fs::read_to_string(at("new/b")).unwrap(), "some rows\n");
        assert!(!at("new/b.part").exists());
    }
}
