//! Files from the network, or from a folder that stands in for it, checked as they arrive.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::weights::hex;
use crate::error::UsageError;

/// How long a server may take to be found and to answer; the file itself may take any time.
const PATIENCE: Duration = Duration::from_secs(15);
const LOCAL: &str = "file://";

/// What is known of a file before it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected<'a> {
    /// Its size.
    pub bytes: Option<u64>,
    /// Its SHA-256 in hexadecimal.
    pub sha256: Option<&'a str>,
}

impl Expected<'_> {
    /// Says in what a file differs from what is expected; `None` if in nothing.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn difference(&self, path: &Path) -> std::io::Result<Option<String>> {
        let bytes = path.metadata()?.len();
        if self.bytes.is_some_and(|expected| expected != bytes) {
            return Ok(self.compare(bytes, ""));
        }
        if self.sha256.is_none() {
            return Ok(None);
        }
        let (mut reader, mut digest) = (BufReader::new(File::open(path)?), Sha256::new());
        copy(&mut reader, |part| {
            digest.update(part);
            Ok(())
        })?;
        Ok(self.compare(bytes, &hex(&digest.finalize())))
    }

    fn compare(&self, bytes: u64, sha256: &str) -> Option<String> {
        match (self.bytes, self.sha256) {
            (Some(expected), _) if expected != bytes => {
                Some(format!("it has {bytes} bytes, the published file {expected}"))
            }
            (_, Some(expected)) if expected != sha256 => {
                Some(format!("its SHA-256 is {sha256}, that of the published file {expected}"))
            }
            _ => None,
        }
    }
}

/// Gets `url` (`https://`, `http://`, `file://`) into `target`, which is only there when it is whole and as expected.
/// `progress` hears how many bytes have arrived.
///
/// # Errors
/// Why the file cannot be had: no network, another file than expected, no space.
pub fn download(url: &str, target: &Path, expected: Expected<'_>, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let mut source = open(url)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = target.with_file_name(format!("{name}.{}.part", std::process::id()));
    let done = receive(&mut source, &unfinished, expected, progress).and_then(|()| {
        std::fs::rename(&unfinished, target).with_context(|| format!("cannot write {}", target.display()))
    });
    if done.is_err() {
        // It may never have been made.
        let _ = std::fs::remove_file(&unfinished);
    }
    done
}

fn receive(
    source: &mut dyn Read,
    unfinished: &Path,
    expected: Expected<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let cannot = || format!("cannot write {}", unfinished.display());
    if let Some(folder) = unfinished.parent() {
        std::fs::create_dir_all(folder).with_context(cannot)?;
    }
    let mut file = File::create(unfinished).with_context(cannot)?;
    let (mut digest, mut bytes) = (Sha256::new(), 0);
    copy(source, |part| {
        digest.update(part);
        file.write_all(part)?;
        bytes += part.len() as u64;
        progress(bytes);
        Ok(())
    })?;
    file.sync_all().with_context(cannot)?;
    match expected.compare(bytes, &hex(&digest.finalize())) {
        Some(difference) => anyhow::bail!("what arrived is not the published file: {difference}"),
        None => Ok(()),
    }
}

fn open(url: &str) -> Result<Box<dyn Read>> {
    if let Some(path) = url.strip_prefix(LOCAL) {
        return Ok(Box::new(File::open(path).with_context(|| format!("cannot read {path}"))?));
    }
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Err(UsageError::new(format!("`{url}` is no address"))
            .hint("give one with https://, http:// or file://")
            .into());
    }
    let agent = ureq::Agent::config_builder()
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .user_agent(concat!("spattn/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent();
    Ok(Box::new(agent.get(url).call()?.into_body().into_reader()))
}

/// Reads to the end, part by part.
fn copy(source: &mut dyn Read, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => each(&buffer[..read])?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::weights::sha256_hex;
    use std::io::BufRead;
    use std::net::TcpListener;

    const CONTENT: &[u8] = b"some rows\n";

    /// Answers one request with `answer`.
    fn server(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/file", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let _ = lines.take_while(|l| !l.is_empty()).count();
            let _ = stream.write_all(&answer);
        });
        address
    }

    fn answer(status: &str, length: usize) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        [head.as_bytes(), CONTENT].concat()
    }

    fn get(url: &str, expected: Expected<'_>) -> (Result<()>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let result = download(url, &dir.path().join("folder/file.jsonl"), expected, &mut |_| {});
        let files = std::fs::read_dir(dir.path().join("folder")).into_iter().flatten();
        (result, files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect())
    }

    #[test]
    fn a_file_arrives_whole_or_not_at_all() {
        let sha256 = sha256_hex(CONTENT);
        let right = Expected { bytes: Some(10), sha256: Some(&sha256) };
        let (result, files) = get(&server(answer("200 OK", 10)), right);
        assert!(result.is_ok() && files == ["file.jsonl"], "{result:?} {files:?}");
        for (url, expected, why) in [
            (server(answer("200 OK", 10)), Expected { bytes: Some(11), ..right }, "10 bytes"),
            (server(answer("200 OK", 10)), Expected { bytes: None, sha256: Some("00") }, "SHA-256"),
            (server(answer("200 OK", 20)), Expected::default(), ""),
            (server(answer("404 Not Found", 10)), right, "404"),
            ("file:///nowhere/at/all".to_owned(), right, "/nowhere/at/all"),
            ("gopher://x".to_owned(), right, "no address"),
        ] {
            let (result, files) = get(&url, expected);
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(why) && files.is_empty(), "{error} {files:?}");
        }
    }

    #[test]
    fn a_folder_stands_in_for_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&from, CONTENT).unwrap();
        let mut arrived = 0;
        download(&format!("file://{}", from.display()), &to, Expected::default(), &mut |bytes| arrived = bytes)
            .unwrap();
        assert_eq!((std::fs::read(&to).unwrap().as_slice(), arrived), (CONTENT, 10));
        assert_eq!(Expected { bytes: Some(10), sha256: None }.difference(&to).unwrap(), None);
        assert!(Expected { bytes: None, sha256: Some("ab") }.difference(&to).unwrap().unwrap().contains("SHA-256"));
    }
}
