//! Digests of a task's options and data, which show that data changed under the same name.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

/// Hexadecimal digits of a digest: 128 bits.
const DIGITS: usize = 32;

/// SHA-256 of everything that the `Hash` of a value feeds to a hasher, cut to 32 hexadecimal digits.
///
/// Numbers are hashed in the machine's byte order. Digests from machines with different byte orders differ, so there the examples
/// themselves have to be compared.
pub fn of(value: &(impl Hash + ?Sized)) -> String {
    let mut hasher = Feed(Sha256::new());
    value.hash(&mut hasher);
    hex(hasher.0)
}

/// The first digits of a finished SHA-256.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Passes the hashed bytes on to SHA-256.
struct Feed(Sha256);

impl Hasher for Feed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the digest is read from the SHA-256 itself.
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
