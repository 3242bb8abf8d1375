//! Checks metadata in Thrift's compact encoding before the crate `parquet` reads it: lists of booleans, and the types of fields.
//!
//! When the crate skips a list of booleans, it does not read a byte for each. So a list of a few bytes may declare two thousand
//! million booleans, which the crate skips one by one. A correct file has a byte for each.

/// How deep structures may be nested; the crate refuses deeper ones.
const DEEPEST: usize = 64;

/// The type of a field. The crate goes by the field's number alone, whatever type the file declares, and would misread a field of
/// another type.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Truth,
    Byte,
    /// A number of 16 to 64 bits.
    Whole,
    Double,
    Bytes,
    List(&'static Kind),
    Structure(Fields),
}

/// The fields of a structure that the crate knows, each with its number.
pub(super) type Fields = &'static [(i64, Kind)];

impl Kind {
    /// Whether a field of this kind may have the type that the file declares.
    fn is_stated_by(self, stated: u8) -> bool {
        match self {
            Self::Truth => matches!(stated, 1 | 2),
            Self::Byte => stated == 3,
            Self::Whole => matches!(stated, 4..=6),
            Self::Double => stated == 7,
            Self::Bytes => stated == 8,
            Self::List(_) => stated == 9,
            Self::Structure(_) => stated == 12,
        }
    }
}

/// Why metadata is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It declares more booleans than there are bytes.
    StatesTooMuch,
    /// A field's type is not the one of its number.
    OtherKind,
}

/// Metadata that is skipped the way the crate would skip it.
pub(super) struct Skimmed<'a> {
    /// The bytes that are left.
    pub bytes: &'a [u8],
    /// How many more booleans are allowed.
    truths: usize,
    /// The first flaw found, if any.
    pub flaw: Option<Flaw>,
}

impl<'a> Skimmed<'a> {
    /// Starts at the beginning of a structure.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, truths: bytes.len(), flaw: None }
    }

    /// Skips a structure of `fields` and returns the number in its field `wanted`. `None` if it has a flaw, ends early or is invalid;
    /// the crate itself reports the latter two.
    pub fn structure(&mut self, fields: Fields, wanted: i64) -> Option<Option<i64>> {
        let (mut field, mut found) = (0i64, None);
        loop {
            let head = self.byte()?;
            let stated = head & 0x0f;
            if stated == 0 {
                return Some(found);
            }
            field = match head >> 4 {
                0 => zigzag(self.number()?),
                further => field + i64::from(further),
            };
            let known = fields.iter().find(|(number, _)| *number == field).map(|(_, kind)| *kind);
            match known {
                Some(kind) if !kind.is_stated_by(stated) => return self.refuse(Flaw::OtherKind),
                Some(Kind::Whole) if field == wanted => found = Some(zigzag(self.number()?)),
                Some(Kind::List(of)) => self.list(*of)?,
                Some(Kind::Structure(fields)) => self.structure(fields, 0).map(drop)?,
                _ => self.value(stated, DEEPEST)?,
            }
        }
    }

    /// Skips a list of values of a kind that the crate knows.
    fn list(&mut self, of: Kind) -> Option<()> {
        let (stated, count) = self.list_head()?;
        if count > 0 && !of.is_stated_by(stated) {
            return self.refuse(Flaw::OtherKind);
        }
        match of {
            Kind::Structure(fields) => (0..count).try_for_each(|_| self.structure(fields, 0).map(drop)),
            _ => self.values(&[stated], count, DEEPEST),
        }
    }

    /// The type and the number of a list's values.
    fn list_head(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.number()?,
            few => u64::from(few),
        };
        Some((head & 0x0f, count))
    }

    fn refuse<T>(&mut self, flaw: Flaw) -> Option<T> {
        self.flaw = Some(flaw);
        None
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            1 | 2 => Some(()),
            3 => self.byte().map(drop),
            4..=6 => self.number().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.number()?;
                self.skip(usize::try_from(length).ok()?)
            }
            9 | 10 => {
                let (kind, count) = self.list_head()?;
                self.values(&[kind], count, depth)
            }
            11 => match self.number()? {
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
                    self.number()?;
                }
                self.value(head & 0x0f, depth)?;
            },
            13 => self.skip(16),
            _ => None,
        }
    }

    /// Skips `count` groups of values, one value of each type in `kinds`.
    fn values(&mut self, kinds: &[u8], count: u64, depth: usize) -> Option<()> {
        if kinds.iter().all(|kind| matches!(kind, 1 | 2)) {
            let left = usize::try_from(count).ok().and_then(|count| self.truths.checked_sub(count));
            let Some(left) = left else { return self.refuse(Flaw::StatesTooMuch) };
            self.truths = left;
            return Some(());
        }
        // Each value takes at least a byte, so this ends with the bytes.
        (0..count).try_for_each(|_| kinds.iter().try_for_each(|kind| self.value(*kind, depth)))
    }

    /// A number. One of more than 64 bits is refused here, since the crate would accept it.
    fn number(&mut self) -> Option<u64> {
        let mut rest = self.bytes;
        let number = number(&mut rest);
        if number.is_none() && !rest.is_empty() {
            return self.refuse(Flaw::OtherKind);
        }
        self.bytes = rest;
        number
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

/// Removes a variable-length number (seven bits in each byte) from the front of `bytes`.
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
        // Fields 1 to 3: true, a byte, -2; then a list of 3 texts, a map from a number to a structure, and field 300: two booleans.
        let bytes = b"\x11\x13\x07\x15\x03\x19\x38\x01a\x00\x02bc\x1b\x01\x5c\x02\x11\x00\x09\xd8\x04\x21\x00rest";
        let mut skimmed = Skimmed::new(bytes);
        let fields: Fields = &[(3, Kind::Whole)];
        assert_eq!(skimmed.structure(fields, 3), Some(Some(-2)));
        assert_eq!((skimmed.bytes, skimmed.flaw), (&b"rest"[..], None));
        for end in 0..bytes.len() - 4 {
            assert_eq!(Skimmed::new(&bytes[..end]).structure(fields, 3), None, "{end} bytes");
        }
    }

    #[test]
    fn more_truth_values_than_there_are_bytes_are_too_many() {
        let state = |bytes: &[u8]| {
            let mut skimmed = Skimmed::new(bytes);
            (skimmed.structure(&[], 0), skimmed.flaw)
        };
        let too_much = (None, Some(Flaw::StatesTooMuch));
        // A list of 2^31 - 1 booleans; and in five bytes two lists of two booleans, which is accepted, and two of three, which is
        // not.
        assert_eq!(state(b"\x19\xf1\xff\xff\xff\xff\x07\x00"), too_much);
        assert_eq!(state(b"\x19\x29\x21\x22\x00"), (Some(None), None));
        assert_eq!(state(b"\x19\x29\x31\x32\x00"), too_much);
        // Maps of booleans are refused as well.
        assert_eq!(state(b"\x1b\xff\xff\xff\xff\x07\x12\x00"), too_much);
    }

    #[test]
    fn what_is_of_another_kind_than_its_number_has_is_refused() {
        const INNER: Fields = &[(1, Kind::Truth), (2, Kind::Bytes)];
        const FIELDS: Fields =
            &[(1, Kind::Whole), (2, Kind::List(&Kind::Structure(INNER))), (4, Kind::List(&Kind::Whole))];
        let skim = |bytes: &[u8]| {
            let mut skimmed = Skimmed::new(bytes);
            (skimmed.structure(FIELDS, 1).is_some(), skimmed.flaw)
        };
        // A number, two structures in a list, an unknown field, a list of numbers; then an empty list of any type.
        let sound = b"\x15\x02\x19\x2c\x11\x18\x01a\x00\x12\x00\x11\x19\x25\x02\x04\x00";
        assert_eq!(skim(sound), (true, None));
        assert_eq!(skim(b"\x29\x00\x00"), (true, None));
        let other = (false, Some(Flaw::OtherKind));
        // A text for the number, numbers for structures, a number for the inner text, texts for numbers.
        assert_eq!(skim(b"\x18\x01a\x00"), other);
        assert_eq!(skim(b"\x29\x15\x02\x00"), other);
        assert_eq!(skim(b"\x29\x1c\x25\x02\x00\x00"), other);
        assert_eq!(skim(b"\x49\x18\x01a\x00"), other);
        // A number of eighty bits.
        assert_eq!(skim(b"\x15\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"), other);
    }
}
