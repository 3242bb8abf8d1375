//! Where the KV cache of a prefix is kept, and the memory for its pages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use spattn_base::error::UsageError;

/// Where the KV cache of a prefix is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvTier {
    /// In memory; if a GPU computes, in GPU memory.
    #[default]
    Memory,
    /// In a file in the run's folder, with some pages cached in memory.
    Disk,
    /// In host memory, from which the GPU reads over the bus.
    Host,
}

impl KvTier {
    /// The names of all tiers.
    pub const NAMES: [&str; 3] = ["memory", "disk", "host"];

    /// The tier's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for KvTier {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = [Self::Memory, Self::Disk, Self::Host].into_iter().find(|tier| tier.name() == text);
        known.ok_or_else(|| UsageError::unknown("kv-tier", text, Self::NAMES))
    }
}

/// The memory for pages of a KV cache on disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvMemory(pub usize);

/// The suffixes of sizes, each with its number of bytes; the largest last.
const UNITS: [(char, usize); 3] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];

impl KvMemory {
    /// The default of a run.
    pub const DEFAULT: Self = Self(256 << 20);
    /// The smallest allowed size.
    const LEAST: usize = 1 << 20;
    /// The largest allowed size, more than any machine has.
    const MOST: usize = 1 << 50;
}

/// Formats the size in the largest unit of which it is a multiple: `64M`.
impl fmt::Display for KvMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().rev().find(|(_, bytes)| self.0.is_multiple_of(*bytes)) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for KvMemory {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let of_unit = |(unit, bytes): &(char, usize)| Some((text.strip_suffix(*unit)?, *bytes));
        let (digits, unit) = UNITS.iter().find_map(of_unit).unwrap_or((text, 1));
        // `parse` alone would accept a plus sign.
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<usize>().ok()).flatten();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        match bytes.filter(|bytes| (Self::LEAST..=Self::MOST).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(UsageError::new(format!("`{text}` is no amount of memory for a KV cache")).hint(
                "a whole number with K, M or G (1024 of the next smaller one), from 1M, such as --kv-memory 64M",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        for (text, bytes, written) in [
            ("64M", 64 << 20, "64M"),
            ("2G", 2 << 30, "2G"),
            ("3072K", 3 << 20, "3M"),
            ("1025K", 1025 << 10, "1025K"),
            ("1048577", 1_048_577, "1048577"),
        ] {
            let read = text.parse::<KvMemory>().unwrap();
            assert_eq!((read, read.to_string().as_str()), (KvMemory(bytes), written));
        }
        for text in
            ["", "M", "x", "-1M", "+5M", "1.5G", "1023K", "64 M", "64m", "64MB", "99999999999G", "1152921504606846976K"]
        {
            let error = text.parse::<KvMemory>().unwrap_err();
            assert!(error.what.contains(&format!("`{text}`")) && error.hint.is_some(), "{text}");
        }
    }

    #[test]
    fn tiers_have_names() {
        for tier in [KvTier::Memory, KvTier::Disk, KvTier::Host] {
            assert_eq!(tier.name().parse(), Ok(tier));
        }
        assert_eq!("disc".parse::<KvTier>().unwrap_err().hint.unwrap(), "did you mean `disk`?");
    }
}
