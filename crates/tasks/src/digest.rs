//! Digests of what a task's examples are made of, so that data that changed under the same name are noticed.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

/// Hexadecimal digits of a digest: 128 bits.
const DIGITS: usize = 32;

/// SHA-256 of everything that a value feeds to its `Hash`, cut to 32 hexadecimal digits.
///
/// Numbers are fed in the machine's byte order, so digests are compared between machines of one architecture; elsewhere
/// they differ, and whoever compares them looks at the examples themselves.
pub fn of(value: &(impl Hash + ?Sized)) -> String {
    let mut hasher = Feed(Sha256::new());
    value.hash(&mut hasher);
    hex(hasher.0)
}

/// The first digits of a finished SHA-256.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Feeds what is hashed to SHA-256.
struct Feed(Sha256);

impl Hasher for Feed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of no use here: the digest is read from the SHA-256 itself.
    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_contents_and_their_bounds_apart() {
        let all = [of(&("ab", "c")), of(&("a", "bc")), of(&("ab", "c", 1u8)), of(&vec!["ab", "c"]), of("ab")];
        for (at, digest) in all.iter().enumerate() {
            assert!(digest.len() == DIGITS && !all[..at].contains(digest), "{digest}");
        }
        assert_eq!(of(&("ab", "c")), all[0]);
    }
}
