//! A number of channels of a head, as a parameter.

use std::fmt;
use std::str::FromStr;

use crate::kv::MOST_TOKENS;
use crate::spec::Params;
use spattn_base::error::UsageError;

/// How many of a head's `d` channels: a number, or a share such as `d/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channels {
    /// A number.
    Count(usize),
    /// `d` divided by this.
    Share(usize),
}

impl Channels {
    pub(crate) fn read(params: &mut Params, key: &'static str, default: Self) -> Result<Self, UsageError> {
        params.get(key, default, "a whole number from 1, or a share such as d/8")
    }

    /// Returns the number if it is given as one; for
    /// [`Method::required_head_dim`](crate::Method::required_head_dim).
    pub(crate) fn asked(self, key: &'static str) -> Option<(&'static str, usize)> {
        match self {
            Self::Count(n) => Some((key, n)),
            Self::Share(_) => None,
        }
    }

    /// Returns the number of channels for heads of width `d`; from 1 to `d`.
    pub(crate) fn of(self, d: usize) -> usize {
        match self {
            Self::Count(n) => n.min(d),
            Self::Share(parts) => (d / parts).max(1),
        }
    }
}

impl FromStr for Channels {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let positive = |text: &str| text.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n)).ok_or(());
        match (text, text.strip_prefix("d/")) {
            ("d", _) => Ok(Self::Share(1)),
            (_, Some(parts)) => positive(parts).map(Self::Share),
            (_, None) => positive(text).map(Self::Count),
        }
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Share(1) => f.write_str("d"),
            Self::Share(parts) => write!(f, "d/{parts}"),
        }
    }
}
