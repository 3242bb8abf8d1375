//! Expected size and hash of a file, and the comparison of a file with them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

const SHA256_LENGTH: usize = 64;
const SHA1_LENGTH: usize = 40;

/// A hash that identifies a file's content, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest<'a> {
    /// SHA-256 of the content, which the hub states for large files.
    Sha256(&'a str),
    /// SHA-1 of the content as git stores it, which the hub states for small files.
    GitBlob(&'a str),
}

impl<'a> Digest<'a> {
    /// Reads the hub's version of a file, which is also the file's name in the cache.
    pub fn of_name(name: &'a str) -> Option<Self> {
        let is_hex = name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match name.len() {
            SHA256_LENGTH if is_hex => Some(Self::Sha256(name)),
            SHA1_LENGTH if is_hex => Some(Self::GitBlob(name)),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "git blob SHA-1",
        }
    }

    fn stated(self) -> &'a str {
        match self {
            Self::Sha256(hex) | Self::GitBlob(hex) => hex,
        }
    }

    fn of_file(self, path: &Path, bytes: u64) -> io::Result<String> {
        let file = File::open(path)?;
        match self {
            Self::Sha256(_) => hash(file, Sha256::new()),
            Self::GitBlob(_) => hash(file, Sha1::new_with_prefix(format!("blob {bytes}\0"))),
        }
    }
}

fn hash(mut file: File, mut hasher: impl sha2::Digest) -> io::Result<String> {
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(read) => hasher.update(&block[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of `bytes` in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a file in hexadecimal.
///
/// # Errors
/// If it cannot be read.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    hash(File::open(path)?, Sha256::new())
}

/// What is known of a file before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected<'a> {
    /// Its size.
    pub bytes: Option<u64>,
    /// A hash of it.
    pub digest: Option<Digest<'a>>,
}

impl Expected<'_> {
    /// Describes how a file differs from what is expected; `None` if it does not.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn difference(&self, path: &Path) -> io::Result<Option<String>> {
        let bytes = path.metadata()?.len();
        if let Some(difference) = self.difference_in_size(bytes) {
            return Ok(Some(difference));
        }
        let Some(digest) = self.digest else { return Ok(None) };
        let (found, stated) = (digest.of_file(path, bytes)?, digest.stated());
        let difference = || format!("its {} is {found}, that of the published file {stated}", digest.name());
        Ok((found != stated).then(difference))
    }

    /// Describes how a size differs from the expected one; `None` if it does not.
    pub fn difference_in_size(&self, bytes: u64) -> Option<String> {
        let expected = self.bytes.filter(|expected| *expected != bytes)?;
        Some(format!("it has {bytes} bytes, the published file {expected}"))
    }
}

/// A file of the hub's cache. The files in a model's folder there are links to such files, which are named by
/// their hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Its path.
    pub path: PathBuf,
    /// Its name.
    pub name: String,
}

impl Blob {
    /// The target of a link; `None` if the path is not a link, or its target is not named by a hash.
    pub fn behind(link: &Path) -> Option<Self> {
        let to = std::fs::read_link(link).ok()?;
        let name = to.file_name()?.to_str()?.to_owned();
        Digest::of_name(&name)?;
        Some(Self { path: link.parent()?.join(to), name })
    }

    /// Whether its name is a SHA-256.
    pub fn is_sha256(&self) -> bool {
        matches!(Digest::of_name(&self.name), Some(Digest::Sha256(_)))
    }

    /// Describes how its content differs from the hash in its name; `None` if it does not.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn difference(&self) -> io::Result<Option<String>> {
        Expected { bytes: None, digest: Digest::of_name(&self.name) }.difference(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // As `git hash-object` and `sha256sum` print them.
    const GIT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA256: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    const CONTENT: &[u8] = b"hello\n";

    #[test]
    fn files_are_compared_by_size_and_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, CONTENT).unwrap();
        let difference = |bytes, digest| Expected { bytes, digest: Digest::of_name(digest) }.difference(&path).unwrap();
        assert_eq!((difference(Some(6), GIT), difference(Some(6), SHA256), difference(None, "")), (None, None, None));
        assert_eq!(difference(Some(7), SHA256).unwrap(), "it has 6 bytes, the published file 7");
        std::fs::write(&path, b"hellO\n").unwrap();
        let [git, sha256] = [GIT, SHA256].map(|stated| difference(Some(6), stated).unwrap());
        assert!(git.starts_with("its git blob SHA-1 is ") && git.ends_with(GIT), "{git}");
        assert!(sha256.starts_with("its SHA-256 is ") && sha256.ends_with(SHA256), "{sha256}");
    }

    #[test]
    fn only_hashes_are_taken_for_hashes() {
        assert_eq!(Digest::of_name(GIT), Some(Digest::GitBlob(GIT)));
        assert_eq!(Digest::of_name(SHA256), Some(Digest::Sha256(SHA256)));
        // An MD5, an upper-case hash (git and the hub write none), a part of a hash, a file name.
        for other in ["d41d8cd98f00b204e9800998ecf8427e", &GIT.to_uppercase(), &SHA256[1..], "config.json", ""] {
            assert_eq!(Digest::of_name(other), None, "{other}");
        }
        assert_eq!(sha256_hex(CONTENT), SHA256);
    }
}
