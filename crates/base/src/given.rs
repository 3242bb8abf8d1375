//! Files that a user gives the program to read: rows, texts, configs. None of them can make the program wait silently, read without end or
//! exhaust memory.
//!
//! A plain file is opened directly. A pipe (`<(…)`, `/dev/stdin`, a FIFO) can be read only once and not from the middle, so it is copied to
//! a temporary file, once per process, from which readers then read. A device is rejected.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::UsageError;

/// Largest number of bytes of a config, a prompt or another text of settings.
pub const MOST_OF_SETTINGS: u64 = 16 << 20;
/// Largest number of bytes of a text for a model, which is tokenised as a whole.
pub const MOST_OF_TEXT: u64 = 2 << 30;
/// The UTF-8 byte order mark.
pub const MARK: &[u8] = b"\xef\xbb\xbf";

/// A format that stores text in another form.
struct PackedFormat {
    what: &'static str,
    /// Its first bytes.
    first: &'static [u8],
    /// How to extract its text; `FILE` stands for the file.
    hint: &'static str,
}

const PACKED_FORMATS: [PackedFormat; 9] = [
    PackedFormat {
        what: "gzip",
        first: b"\x1f\x8b",
        hint: "unpack it, or give what `zcat FILE` writes: jsonl:<(zcat FILE)",
    },
    PackedFormat {
        what: "zstd",
        first: b"\x28\xb5\x2f\xfd",
        hint: "unpack it, or give what `zstdcat FILE` writes: jsonl:<(zstdcat FILE)",
    },
    PackedFormat {
        what: "xz",
        first: b"\xfd7zXZ\0",
        hint: "unpack it, or give what `xzcat FILE` writes: jsonl:<(xzcat FILE)",
    },
    PackedFormat {
        what: "bzip2",
        first: b"BZh",
        hint: "unpack it, or give what `bzcat FILE` writes: jsonl:<(bzcat FILE)",
    },
    PackedFormat {
        what: "lz4",
        first: b"\x04\x22\x4d\x18",
        hint: "unpack it, or give what `lz4cat FILE` writes: jsonl:<(lz4cat FILE)",
    },
    PackedFormat {
        what: "a zip archive",
        first: b"PK\x03\x04",
        hint: "under a name that ends in .zip, a file in it is given as jsonl:FILE/MEMBER",
    },
    PackedFormat { what: "a 7z archive", first: b"7z\xbc\xaf\x27\x1c", hint: "unpack it" },
    PackedFormat { what: "a table in Parquet", first: b"PAR1", hint: "give it under a name that ends in .parquet" },
    PackedFormat {
        what: "a table in Arrow's format",
        first: b"ARROW1",
        hint: "write it as JSON lines or Parquet: `to_json` and `to_parquet` of the data set",
    },
];

/// Checks that bytes read from a text file are not packed; `name` names the file in messages.
///
/// # Errors
/// If they start like a packed file.
pub fn no_packed(name: &str, bytes: &[u8]) -> Result<(), UsageError> {
    // A digit that differs between files follows bzip2's first bytes.
    let is_so = |packed: &&PackedFormat| {
        bytes.starts_with(packed.first) && (packed.what != "bzip2" || bytes[3..].get(1..7) == Some(b"1AY&SY"))
    };
    match PACKED_FORMATS.iter().find(is_so) {
        None => Ok(()),
        Some(PackedFormat { what, hint, .. }) => {
            Err(UsageError::new(format!("{name}: {what}, not lines of text")).hint(hint.replace("FILE", name)))
        }
    }
}

/// Like [`no_packed`], for a file that another reader opens: reads only its first bytes. Read errors are left to that reader.
///
/// # Errors
/// Those of [`no_packed`].
pub fn no_packed_at(path: &Path) -> Result<(), UsageError> {
    let mut first = Vec::new();
    match plain(path).and_then(|file| file.take(16).read_to_end(&mut first)) {
        Ok(_) => no_packed(&path.display().to_string(), &first),
        Err(_) => Ok(()),
    }
}

/// Limits for reading a pipe.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Largest number of bytes.
    bytes: u64,
    /// Time without a byte after which the user is told what the program waits for.
    tell: Duration,
    /// Time without a byte after which the program gives up.
    silence: Duration,
}

const LIMITS: Limits = Limits { bytes: 2 << 30, tell: Duration::from_secs(3), silence: Duration::from_secs(300) };
/// Number of bytes read from a pipe at a time.
const BLOCK: usize = 1 << 16;
/// Largest number of blocks that wait to be written.
const AHEAD: usize = 8;

/// An open file that can be read at any position.
#[derive(Debug)]
pub struct Given(Inner);

#[derive(Debug)]
enum Inner {
    Plain(File),
    Piped { copy: Copied, at: u64 },
}

/// The content of a pipe.
#[derive(Debug, Clone)]
struct Copied {
    file: Arc<Mutex<File>>,
    length: u64,
}

/// Opens a file that a user named.
///
/// # Errors
/// If it does not exist, is a folder or a device, or cannot be read; for a pipe, also if it sends nothing for five minutes or more than 2
/// GiB.
pub fn open(path: &Path) -> io::Result<Given> {
    open_within(path, LIMITS)
}

/// Opens a file that a user named and that must be a plain file.
///
/// # Errors
/// Those of [`open`], and if it is a pipe.
pub fn plain(path: &Path) -> io::Result<File> {
    match Kind::of(&fs::metadata(path)?) {
        Kind::Plain => File::open(path),
        Kind::Folder => Err(ErrorKind::IsADirectory.into()),
        Kind::Pipe | Kind::Device => Err(wrong("it is a pipe or a device; save it as a file first")),
    }
}

/// Returns all bytes of a plain file that a user named.
///
/// # Errors
/// Those of [`plain`], and if it cannot be read.
pub fn plain_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    plain(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns all bytes of a file that a user named.
///
/// # Errors
/// Those of [`open`], and if there are more than `most`.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let given = open_within(path, Limits { bytes: most.min(LIMITS.bytes), ..LIMITS })?;
    let long = || wrong(format!("longer than {} MiB", most >> 20));
    if given.length()? > most {
        return Err(long());
    }
    let mut bytes = Vec::new();
    given.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(long()) } else { Ok(bytes) }
}

/// Returns the text of a file that a user named, without a byte order mark.
///
/// # Errors
/// Those of [`bytes`], and if it is not UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = bytes(path, most)?;
    let text = std::str::from_utf8(bytes.strip_prefix(MARK).unwrap_or(&bytes));
    text.map(str::to_owned).map_err(|e| io::Error::new(ErrorKind::InvalidData, format!("not UTF-8: {e}")))
}

impl Given {
    /// Number of bytes.
    ///
    /// # Errors
    /// If the system does not provide it.
    pub fn length(&self) -> io::Result<u64> {
        match &self.0 {
            Inner::Plain(file) => Ok(file.metadata()?.len()),
            Inner::Piped { copy, .. } => Ok(copy.length),
        }
    }
}

impl Read for Given {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(file) => file.read(buffer),
            Inner::Piped { copy, at } => {
                let mut file = copy.file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(*at))?;
                let read = file.read(buffer)?;
                *at += read as u64;
                Ok(read)
            }
        }
    }
}

impl Seek for Given {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Inner::Plain(file) => file.seek(to),
            Inner::Piped { copy, at } => {
                let place = match to {
                    SeekFrom::Start(place) => Some(place),
                    SeekFrom::End(by) => copy.length.checked_add_signed(by),
                    SeekFrom::Current(by) => at.checked_add_signed(by),
                };
                *at = place.ok_or(ErrorKind::InvalidInput)?;
                Ok(*at)
            }
        }
    }
}

/// The kind of file that a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Folder,
    Pipe,
    /// A device or a terminal; a terminal is read like a pipe.
    Device,
}

impl Kind {
    fn of(found: &Metadata) -> Self {
        if found.is_file() {
            return Self::Plain;
        }
        if found.is_dir() {
            return Self::Folder;
        }
        #[cfg(unix)]
        if std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type()) {
            return Self::Pipe;
        }
        Self::Device
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what.into())
}

fn open_within(path: &Path, limits: Limits) -> io::Result<Given> {
    let found = fs::metadata(path)?;
    match Kind::of(&found) {
        Kind::Plain => Ok(Given(Inner::Plain(File::open(path)?))),
        Kind::Folder => Err(ErrorKind::IsADirectory.into()),
        Kind::Pipe | Kind::Device => Ok(Given(Inner::Piped { copy: copied_once(path, &found, limits)?, at: 0 })),
    }
}

/// Identifies a pipe by its path, device and inode. `/dev/stdin` and `/dev/fd/0` count as two, but are not given together.
type Key = (PathBuf, u64, u64);

/// The pipes copied so far.
static COPIED: LazyLock<Mutex<HashMap<Key, Copied>>> = LazyLock::new(Mutex::default);

fn copied_once(path: &Path, found: &Metadata, limits: Limits) -> io::Result<Copied> {
    let key = key(path, found);
    // The lock is held while copying, so that others that need the same pipe wait for it.
    let mut all = COPIED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(copied) = all.get(&key) {
        return Ok(copied.clone());
    }
    let copied = copy(path, limits)?;
    all.insert(key, copied.clone());
    Ok(copied)
}

#[cfg(unix)]
fn key(path: &Path, found: &Metadata) -> Key {
    use std::os::unix::fs::MetadataExt;
    (path.to_owned(), found.dev(), found.ino())
}

#[cfg(not(unix))]
fn key(path: &Path, _: &Metadata) -> Key {
    (path.to_owned(), 0, 0)
}

/// Copies a pipe to its end. A separate thread reads it, because only then can the program wait for a writer and give up. After giving up,
/// that thread waits until the program ends, which is soon.
fn copy(path: &Path, limits: Limits) -> io::Result<Copied> {
    let (send, receive) = sync_channel(AHEAD);
    let source = path.to_owned();
    std::thread::Builder::new().name("pipe".to_owned()).spawn(move || read_blocks(&source, &send))?;
    let mut file = tempfile::tempfile()?;
    let mut length = 0;
    while let Some(block) = next(&receive, path, limits)? {
        length += block.len() as u64;
        if length > limits.bytes {
            return Err(wrong(format!(
                "more than {} MiB came through the pipe; save it as a file first",
                limits.bytes >> 20
            )));
        }
        file.write_all(&block)?;
    }
    Ok(Copied { file: Arc::new(Mutex::new(file)), length })
}

/// Returns the next block; `None` at the end.
fn next(receive: &Receiver<io::Result<Vec<u8>>>, path: &Path, limits: Limits) -> io::Result<Option<Vec<u8>>> {
    let (start, mut told) = (Instant::now(), false);
    loop {
        let left = if told { limits.silence } else { limits.tell }.saturating_sub(start.elapsed());
        match receive.recv_timeout(left) {
            Ok(block) => return block.map(Some),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if !told => {
                told = true;
                eprintln!("note: waiting for something to be written to {}; Ctrl-C ends it", path.display());
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(wrong(format!("nothing was written to it for {} s", limits.silence.as_secs_f64())));
            }
        }
    }
}

fn read_blocks(path: &Path, send: &SyncSender<io::Result<Vec<u8>>>) {
    if let Err(error) = try_read_blocks(path, send) {
        // The receiver may no longer exist.
        let _ = send.send(Err(error));
    }
}

fn try_read_blocks(path: &Path, send: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let is_stream = Kind::of(&file.metadata()?) == Kind::Pipe || file.is_terminal();
    loop {
        let mut block = vec![0; BLOCK];
        let read = match file.read(&mut block) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok(());
        }
        // A device without a single byte, such as /dev/null, counts as an empty file.
        if !is_stream {
            return Err(wrong("it is a device, not a file"));
        }
        block.truncate(read);
        if send.send(Ok(block)).is_err() {
            return Ok(());
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

    const QUICK: Limits =
        Limits { bytes: 1 << 20, tell: Duration::from_millis(50), silence: Duration::from_millis(200) };

    fn fifo(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    fn written(path: &Path, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
        let path = path.to_owned();
        // The reader may stop early.
        std::thread::spawn(move || drop(File::options().write(true).open(path).and_then(|mut f| f.write_all(&bytes))))
    }

    #[test]
    fn a_pipe_is_read_once_and_then_from_any_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "rows");
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).take(1 << 20).collect();
        let writer = written(&path, bytes.clone());
        let mut given = open_within(&path, QUICK).unwrap();
        writer.join().unwrap();
        let mut all = Vec::new();
        given.read_to_end(&mut all).unwrap();
        assert!(all == bytes && given.length().unwrap() == bytes.len() as u64);
        // No process writes to it any more.
        let mut again = open_within(&path, QUICK).unwrap();
        let mut four = [0; 4];
        again.seek(SeekFrom::Start(4000)).unwrap();
        again.read_exact(&mut four).unwrap();
        assert_eq!(u32::from_le_bytes(four), 1000);
        assert_eq!(
            (again.seek(SeekFrom::End(-4)).unwrap(), again.seek(SeekFrom::Current(2)).unwrap()),
            (1048572, 1048574)
        );
        assert!(again.seek(SeekFrom::Current(-2_000_000)).is_err());
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_or_that_has_no_end_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| open_within(path, QUICK).unwrap_err().to_string();
        let start = Instant::now();
        assert_eq!(said(&fifo(dir.path(), "silent")), "nothing was written to it for 0.2 s");
        assert!(start.elapsed() < Duration::from_secs(20));
        let endless = fifo(dir.path(), "endless");
        let writer = written(&endless, vec![b'\n'; 4 << 20]);
        assert_eq!(said(&endless), "more than 1 MiB came through the pipe; save it as a file first");
        drop(writer);
    }

    #[test]
    fn devices_and_folders_are_refused_and_an_empty_one_is_an_empty_file() {
        for device in ["/dev/zero", "/dev/urandom"] {
            assert_eq!(open(Path::new(device)).unwrap_err().to_string(), "it is a device, not a file");
        }
        assert_eq!(bytes(Path::new("/dev/null"), 10).unwrap(), b"");
        assert_eq!(open(Path::new("/")).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert!(plain(Path::new("/dev/null")).unwrap_err().to_string().contains("save it as a file"));
    }

    /// Compares with the first bytes as written by `gzip`, `zstd`, `xz`, `bzip2`, `zip` and pyarrow.
    #[test]
    fn packed_files_are_told_by_their_first_bytes() {
        for (bytes, what, hint) in [
            (&b"\x1f\x8b\x08\x00"[..], "r.x: gzip, not lines of text", "jsonl:<(zcat r.x)"),
            (b"\x28\xb5\x2f\xfd\x24", "r.x: zstd, ", "jsonl:<(zstdcat r.x)"),
            (b"\xfd7zXZ\x00\x00", "r.x: xz, ", "jsonl:<(xzcat r.x)"),
            (b"BZh91AY&SY\x01", "r.x: bzip2, ", "jsonl:<(bzcat r.x)"),
            (b"BZh11AY&SY\x01", "r.x: bzip2, ", "jsonl:<(bzcat r.x)"),
            (b"PK\x03\x04\x14", "r.x: a zip archive, ", "jsonl:r.x/MEMBER"),
            (b"PAR1\x15", "r.x: a table in Parquet, ", "ends in .parquet"),
            (b"ARROW1\0\0", "r.x: a table in Arrow's format, ", "to_json"),
        ] {
            let error = no_packed("r.x", bytes).unwrap_err();
            assert!(error.what.starts_with(what) && error.hint.as_ref().unwrap().contains(hint), "{error:?}");
        }
        for text in ["", "{\"x\": 1}", "[", "BZh", "PK", "PAR", "\u{feff}{}"] {
            assert_eq!(no_packed("r.x", text.as_bytes()), Ok(()));
        }
    }

    #[test]
    fn a_text_has_a_limit_and_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, b"\xef\xbb\xbfa\xc3\xa9").unwrap();
        assert_eq!(text(&path, 6).unwrap(), "aé");
        assert!(text(&path, 5).unwrap_err().to_string().starts_with("longer than "));
        fs::write(&path, b"a\xff").unwrap();
        assert!(text(&path, 6).unwrap_err().to_string().starts_with("not UTF-8: "));
        // A sparse file takes no space on the disk, but would take all memory.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(text(&path, MOST_OF_TEXT).unwrap_err().to_string(), "longer than 2048 MiB");
    }
}
