//! One KV head of a prefix as readers see it: lent rows are borrowed, others are read when they are asked for.
//!
//! Methods read keys or values by [`KvRows`](crate::kv::KvRows), which adds the tokens behind the prefix.

use std::borrow::Cow;
use std::ops::Range;

use crate::kv::layer::LayerKv;
use crate::kv::row_bytes::RowBytes;
use crate::kv::shape::{KvDtype, KvShape};
use crate::kv::source::{Fetched, KvPlace, KvSource, VisitRows};
use crate::kv::tier::KvError;
use spattn_kernels::Rows;

/// One KV head of a prefix: the only way to its keys and values for decoding, index building and solving.
#[derive(Debug, Clone, Copy)]
pub struct KvHead<'a> {
    rows: Place<'a>,
    d: usize,
    dtype: KvDtype,
}

#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    /// Keys and values of all tokens, in host memory.
    Lent([Rows<'a>; 2]),
    /// They are read when they are asked for.
    Apart(&'a dyn KvSource, KvPlace),
}

impl<'a> KvHead<'a> {
    /// A head whose keys and values `[token][d]` are in host memory.
    pub(crate) fn lent(keys: Rows<'a>, values: Rows<'a>, d: usize, dtype: KvDtype) -> Self {
        Self { rows: Place::Lent([keys, values]), d, dtype }
    }

    /// A head of a source.
    ///
    /// # Errors
    /// If the source lends its layers, and cannot read this one.
    pub(crate) fn of(source: &'a dyn KvSource, at: KvPlace) -> Result<Self, KvError> {
        let shape = source.shape();
        let rows = source.lend_head(at)?.map_or(Place::Apart(source, at), Place::Lent);
        Ok(Self { rows, d: shape.d, dtype: shape.dtype })
    }

    /// Channels of a head.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Storage type.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// What a token's key and value take where they are stored.
    pub fn row_bytes(&self) -> RowBytes {
        match self.rows {
            Place::Lent(_) => RowBytes::plain(KvShape { kv_heads: 1, d: self.d, dtype: self.dtype }),
            Place::Apart(source, _) => source.row_bytes(),
        }
    }

    /// Keys and values of all tokens, where they are lent.
    pub fn in_memory(&self) -> Option<[Rows<'a>; 2]> {
        match self.rows {
            Place::Lent(rows) => Some(rows),
            Place::Apart(..) => None,
        }
    }

    /// Shows `visit` keys and values of `tokens`, in order: in one piece where they are lent, else in pieces of any length.
    /// Returns what that took; nothing where they are lent.
    ///
    /// # Errors
    /// If some of them cannot be read. `visit` may have seen earlier ones.
    pub fn scan(&self, tokens: Range<usize>, visit: &mut VisitRows<'_>) -> Result<Fetched, KvError> {
        match self.rows {
            Place::Lent([keys, values]) => {
                visit(keys.slice(tokens.clone(), self.d), values.slice(tokens, self.d));
                Ok(Fetched::default())
            }
            Place::Apart(source, at) => source.scan(at, tokens, visit),
        }
    }

    /// Keys and values of consecutive tokens; borrowed where they are lent.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn slice(&self, tokens: Range<usize>) -> Result<HeadRows<'a>, KvError> {
        match self.rows {
            Place::Lent(rows) => Ok(HeadRows::Lent(rows.map(|rows| rows.slice(tokens.clone(), self.d)))),
            Place::Apart(source, at) => {
                let mut kv = LayerKv::new(self.dtype, 1, self.d, tokens.len());
                let mut keep = |keys: Rows<'_>, values: Rows<'_>| {
                    kv.keys.extend(keys);
                    kv.values.extend(values);
                };
                let fetched = source.scan(at, tokens, &mut keep)?;
                Ok(HeadRows::Read(Box::new(kv), fetched))
            }
        }
    }

    /// Keys and values of some tokens, and their numbers among them: where rows are lent, all of them and the tokens as
    /// they are; otherwise only what was asked for, in its order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn gather<'t>(&self, tokens: &'t [u32]) -> Result<(HeadRows<'a>, Cow<'t, [u32]>), KvError> {
        match self.rows {
            Place::Lent(rows) => Ok((HeadRows::Lent(rows), Cow::Borrowed(tokens))),
            Place::Apart(source, at) => {
                let mut kv = LayerKv::new(self.dtype, 1, self.d, tokens.len());
                let fetched = source.gather(at, tokens, &mut kv)?;
                Ok((HeadRows::Read(Box::new(kv), fetched), (0..tokens.len() as u32).collect()))
            }
        }
    }
}

/// Keys and values `[token][d]` of some tokens of a KV head.
#[derive(Debug)]
pub enum HeadRows<'a> {
    /// Borrowed from where they are.
    Lent([Rows<'a>; 2]),
    /// Read from elsewhere, and what that took.
    Read(Box<LayerKv>, Fetched),
}

impl HeadRows<'_> {
    /// The keys.
    pub fn keys(&self) -> Rows<'_> {
        match self {
            HeadRows::Lent([keys, _]) => *keys,
            HeadRows::Read(kv, _) => kv.keys.head(0),
        }
    }

    /// The values.
    pub fn values(&self) -> Rows<'_> {
        match self {
            HeadRows::Lent([_, values]) => *values,
            HeadRows::Read(kv, _) => kv.values.head(0),
        }
    }

    /// Bytes of the buffer that holds them; none where they are lent.
    pub fn buffered(&self) -> usize {
        match self {
            HeadRows::Lent(_) => 0,
            HeadRows::Read(kv, _) => kv.bytes(),
        }
    }

    /// What it took to read them; `None` where they are lent.
    pub fn fetched(&self) -> Option<&Fetched> {
        match self {
            HeadRows::Lent(_) => None,
            HeadRows::Read(_, fetched) => Some(fetched),
        }
    }
}
