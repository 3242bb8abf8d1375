//! A look at Thrift's compact encoding before a reader of Parquet takes it: lists of truth values.
//!
//! The reader takes a truth value in a list for nothing at all, so a list of a few bytes may state two thousand million of them,
//! which it passes over one by one. An honest file has a byte for each.

/// How deep values may lie in each other; readers refuse what is deeper.
const DEEPEST: usize = 64;

/// Bytes that are passed over as the reader passes over them.
pub(super) struct Skimmed<'a> {
    /// What is left.
    pub bytes: &'a [u8],
    /// Truth values that may still come.
    truths: usize,
    /// Whether more came.
    pub states_too_much: bool,
}

impl<'a> Skimmed<'a> {
    /// At the beginning of a structure.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, truths: bytes.len(), states_too_much: false }
    }

    /// Passes over a structure, and gives the last number that its field `wanted` has; `None` where it ends too early or means nothing,
    /// which the reader will say.
    pub fn structure(&mut self, wanted: i64) -> Option<Option<i64>> {
        let (mut field, mut found) = (0i64, None);
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                return Some(found);
            }
            field = match head >> 4 {
                0 => zigzag(number(&mut self.bytes)?),
                further => field + i64::from(further),
            };
            match kind {
                4..=6 if field == wanted => found = Some(zigzag(number(&mut self.bytes)?)),
                _ => self.value(kind, DEEPEST)?,
            }
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            1 | 2 => Some(()),
            3 => self.byte().map(drop),
            4..=6 => number(&mut self.bytes).map(drop),
            7 => self.skip(8),
            8 => {
                let length = number(&mut self.bytes)?;
                self.skip(usize::try_from(length).ok()?)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => number(&mut self.bytes)?,
                    few => u64::from(few),
                };
                self.values(&[head & 0x0f], count, depth)
            }
            11 => match number(&mut self.bytes)? {
                0 => Some(()),
                count => {
                    let kinds = self.byte()?;
                    self.values(&[kinds >> 4, kinds & 0x0f], count, depth)
                }
            },
            12 => loop {
                let head = self.byte()?;
                if head & 0x0f == 0 {
                    return Some(());
                }
                if head >> 4 == 0 {
                    number(&mut self.bytes)?;
                }
                self.value(head & 0x0f, depth)?;
            },
            13 => self.skip(16),
            _ => None,
        }
    }

    /// So many times a value of each of these kinds.
    fn values(&mut self, kinds: &[u8], count: u64, depth: usize) -> Option<()> {
        if kinds.iter().all(|kind| matches!(kind, 1 | 2)) {
            let left = usize::try_from(count).ok().and_then(|count| self.truths.checked_sub(count));
            self.states_too_much |= left.is_none();
            self.truths = left?;
            return Some(());
        }
        // Each takes a byte at least, so this ends with them.
        (0..count).try_for_each(|_| kinds.iter().try_for_each(|kind| self.value(*kind, depth)))
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes = self.bytes.get(count..)?;
        Some(())
    }
}

/// Takes a number of seven bits a byte from the front.
pub(super) fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds_are_passed_over() {
        // Fields 1 to 3: true, a byte, -2; then 3 texts in a list, a map of a number to a structure, field 300: two truth values.
        let bytes = b"\x11\x13\x07\x15\x03\x19\x38\x01a\x00\x02bc\x1b\x01\x5c\x02\x11\x00\x09\xd8\x04\x21\x00rest";
        let mut skimmed = Skimmed::new(bytes);
        assert_eq!(skimmed.structure(3), Some(Some(-2)));
        assert_eq!((skimmed.bytes, skimmed.states_too_much), (&b"rest"[..], false));
        for end in 0..bytes.len() - 4 {
            assert_eq!(Skimmed::new(&bytes[..end]).structure(3), None, "{end} bytes");
        }
    }

    #[test]
    fn more_truth_values_than_there_are_bytes_are_too_many() {
        let state = |bytes: &[u8]| {
            let mut skimmed = Skimmed::new(bytes);
            (skimmed.structure(0), skimmed.states_too_much)
        };
        // A list of 2^31 - 1, and, in a list of lists, twice two where there are seven bytes and where there are three.
        assert_eq!(state(b"\x19\xf1\xff\xff\xff\xff\x07\x00"), (None, true));
        assert_eq!(state(b"\x19\x29\x21\x22\x00"), (Some(None), false));
        assert_eq!(state(b"\x19\x29\x31\x32\x00"), (None, true));
        // Maps of them are no better.
        assert_eq!(state(b"\x1b\xff\xff\xff\xff\x07\x12\x00"), (None, true));
    }
}
