//! A running command: its pipes, each with a thread, and how waiting for it ends.
//!
//! Nothing here can hang: a thread does all writing, and every wait has a time limit. `protocol` says what the bytes mean.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::command::CommandLine;
use super::protocol::LONGEST_LINE;
use spattn_base::interrupt;

/// How long to wait for a command that closed its output to exit, and for the end of its standard error.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a wait checks whether the user stopped the program.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes that are read at once, and how many such pieces may wait to be used.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;

/// Lines of standard error that are kept.
const KEPT_LINES: usize = 5;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process closed its output.
    Ended,
    /// The time limit passed.
    Late,
    /// The user stopped the program.
    Stopped,
    /// The answer is wrong, for this reason.
    Wrong(String),
}

/// A running command.
pub(super) struct Process {
    child: Child,
    input: Sender<Vec<u8>>,
    output: Receiver<Vec<u8>>,
    /// Output that was read but not used yet.
    buffer: VecDeque<u8>,
    errors: Arc<Mutex<VecDeque<String>>>,
    errors_end: Receiver<()>,
}

impl Process {
    /// Starts a command in a process group of its own, so that only the program gets Ctrl-C, and then ends the command.
    ///
    /// # Errors
    /// If the system cannot start it.
    pub fn start(line: &CommandLine) -> io::Result<Self> {
        let mut command = Command::new(line.program());
        command.args(line.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three are pipes") };
        let (input, to_write) = channel();
        thread::spawn(move || write_all(stdin, &to_write));
        let (read, output) = sync_channel(PIECES);
        thread::spawn(move || read_all(stdout, &read));
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let (said_all, errors_end) = channel();
        let kept = errors.clone();
        thread::spawn(move || keep_last_lines(stderr, &kept, said_all));
        Ok(Self { child, input, output, buffer: VecDeque::new(), errors, errors_end })
    }

    /// Queues a message to be written. If the process does not read it, no answer comes.
    pub fn send(&self, message: Vec<u8>) {
        // The writer is gone if the process closed its input.
        let _ = self.input.send(message);
    }

    /// Returns the next line of the output, without its line break.
    ///
    /// # Errors
    /// If it does not come in time, or is not text.
    pub fn line(&mut self, until: Instant) -> Result<String, Fault> {
        let mut looked_at = 0;
        loop {
            if let Some(length) = self.buffer.range(looked_at..).position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..looked_at + length).collect();
                self.buffer.pop_front();
                return String::from_utf8(line).map_err(|_| Fault::Wrong("its answer is no line of text".to_owned()));
            }
            looked_at = self.buffer.len();
            if looked_at > LONGEST_LINE {
                return Err(Fault::Wrong("its answer has no end of line".to_owned()));
            }
            self.read_more(until)?;
        }
    }

    /// Returns the next `count` bytes of the output.
    ///
    /// # Errors
    /// If they do not come in time.
    pub fn bytes(&mut self, count: usize, until: Instant) -> Result<Vec<u8>, Fault> {
        while self.buffer.len() < count {
            self.read_more(until)?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    fn read_more(&mut self, until: Instant) -> Result<(), Fault> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left.min(LOOK)) {
                Ok(piece) => {
                    self.buffer.extend(piece);
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Fault::Ended),
                Err(RecvTimeoutError::Timeout) if interrupt::is_raised() => return Err(Fault::Stopped),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Fault::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends the process. Returns its exit status, if it had ended by itself, and the last lines of its standard error.
    pub fn end(mut self, has_closed: bool) -> (Option<ExitStatus>, Vec<String>) {
        let status = if has_closed { self.wait(PATIENCE) } else { self.child.try_wait().ok().flatten() };
        self.kill();
        // A process that it started may hold the pipe open.
        let _ = self.errors_end.recv_timeout(PATIENCE);
        let lines = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (status, lines.iter().cloned().collect())
    }

    fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + most;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                ended => return ended.ok().flatten(),
            }
        }
    }

    /// Kills the process and those that it started. Its id is not reused before it has been waited for.
    fn kill(&mut self) {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_all(mut stdin: impl Write, messages: &Receiver<Vec<u8>>) {
    for message in messages {
        if stdin.write_all(&message).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_all(mut stdout: impl Read, pieces: &SyncSender<Vec<u8>>) {
    let mut piece = vec![0; PIECE];
    while let Ok(count @ 1..) = stdout.read(&mut piece) {
        if pieces.send(piece[..count].to_vec()).is_err() {
            return;
        }
    }
}

/// Keeps the last lines; drops `end` when no more can come.
fn keep_last_lines(stderr: impl Read, kept: &Mutex<VecDeque<String>>, end: Sender<()>) {
    const LONGEST: u64 = 4096;
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match stderr.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => break,
        }
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if !line.is_empty() {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_back(line);
            if kept.len() > KEPT_LINES {
                kept.pop_front();
            }
        }
    }
    drop(end);
}
