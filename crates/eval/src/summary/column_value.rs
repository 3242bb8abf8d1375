//! What a column of the summary holds: kinds of values, and their units.

use crate::records::timing::Latency;
use spattn_tasks::likelihood::Measure;

/// The value of a column in one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ColumnValue<'r> {
    /// A name, or empty.
    Text(&'r str),
    /// A whole number.
    Count(usize),
    /// A measured number; `None` if there is none.
    Number(Option<f64>),
}

impl ColumnValue<'_> {
    /// The value as a number; `None` for text, and if there is no finite number.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Count(count) => Some(count as f64),
            Self::Number(number) => number.filter(|x| x.is_finite()),
        }
    }
}

/// A type that a field of a row may have.
pub trait AsColumnValue {
    /// The value that files and tables show.
    fn column_value(&self) -> ColumnValue<'_>;
}

impl AsColumnValue for String {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Text(self)
    }
}

impl AsColumnValue for Option<String> {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Text(self.as_deref().unwrap_or_default())
    }
}

impl AsColumnValue for usize {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Count(*self)
    }
}

impl AsColumnValue for f64 {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Number(Some(*self))
    }
}

impl AsColumnValue for Option<f64> {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Number(*self)
    }
}

impl AsColumnValue for Measure {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Text(self.name())
    }
}

impl AsColumnValue for Option<Latency> {
    fn column_value(&self) -> ColumnValue<'_> {
        ColumnValue::Text(self.map_or("", Latency::name))
    }
}

/// The unit of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnUnit {
    /// Names and other text.
    Text,
    /// A number of things.
    Count,
    /// Percent or percentage points; a perplexity if `measure` is `perplexity`.
    Percent,
    /// The exponential of a mean negative log-likelihood.
    Perplexity,
    /// A number without a unit: a share of 1, or a ratio.
    Ratio,
    /// A ratio to dense attention. Tables and the page show it in percent, files as it is.
    Share,
    /// Nats.
    Nats,
    /// Bits, with more decimals because values differ little.
    FineBits,
    /// Bits.
    Bits,
    /// Bytes.
    Bytes,
    /// Tokens, as a mean.
    Tokens,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

impl ColumnUnit {
    /// The decimals of a number of this unit in CSV: enough to distinguish measured values.
    pub fn decimals(self) -> usize {
        match self {
            Self::Text | Self::Count => 0,
            Self::Bits | Self::Bytes | Self::Tokens => 3,
            Self::Percent | Self::Perplexity => 4,
            Self::Seconds | Self::Milliseconds => 6,
            Self::Ratio | Self::Share | Self::Nats | Self::FineBits => 8,
        }
    }

    /// The unit's name in the list of columns.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Count => "count",
            Self::Percent => "%",
            Self::Perplexity => "perplexity",
            Self::Ratio | Self::Share => "ratio",
            Self::Nats => "nats",
            Self::FineBits | Self::Bits => "bits",
            Self::Bytes => "bytes",
            Self::Tokens => "tokens",
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
        }
    }
}
