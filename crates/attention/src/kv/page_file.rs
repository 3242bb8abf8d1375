//! The keys and values of all layers in a file, page by page.
//!
//! A page is [`PAGE`] consecutive tokens of one KV head of one layer: their keys, then their values, in the storage type and
//! little-endian. [`EXTENT`] pages of a KV head are adjacent, so that reading all of it takes few calls. Extents of all KV heads and
//! layers follow each other, so that a file grows with its prefix and nothing has to be moved.
//!
//! Pages are read and written at positions and not mapped into memory. If somebody truncates a mapped file, a signal ends the process,
//! and mapped pages take memory that this program's limits do not bound. Reading at a position returns an error instead, into memory that
//! this program owns, and needs no unsafe code.
//!
//! A page that is read is compared with a digest of what was written; otherwise, a damaged page would become a wrong result.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;

use half::{bf16, f16};

use crate::kv::layer::LayerKv;
use crate::kv::shape::KvShape;
use crate::kv::source::KvPlace;
use crate::kv::store::{KvStore, RowsMut};
use spattn_kernels::Rows;

/// Number of tokens in a page.
pub(super) const PAGE: usize = 16;
/// Number of adjacent pages of a KV head in the file.
const EXTENT: usize = 64;

/// A store of bytes that are read and written at positions; a partial read or write is an error.
pub(super) trait Storage: Send + Sync + fmt::Debug {
    /// Reads bytes from position `place`.
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()>;

    /// Writes bytes at position `place`.
    fn write_at(&self, bytes: &[u8], place: u64) -> io::Result<()>;
}

#[cfg(unix)]
impl Storage for File {
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, place)
    }

    fn write_at(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, place)
    }
}

#[cfg(windows)]
impl Storage for File {
    fn read_at(&self, mut bytes: &mut [u8], mut place: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, bytes, place)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => (bytes, place) = (&mut bytes[read..], place + read as u64),
            }
        }
        Ok(())
    }

    fn write_at(&self, mut bytes: &[u8], mut place: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, bytes, place)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => (bytes, place) = (&bytes[written..], place + written as u64),
            }
        }
        Ok(())
    }
}

/// Pages of all layers and KV heads.
#[derive(Debug)]
pub(super) struct PageFile {
    storage: Box<dyn Storage>,
    shape: KvShape,
    layers: usize,
    /// Digests of the written pages, by page number.
    digests: Vec<u64>,
}

impl PageFile {
    /// An empty file.
    pub(super) fn new(storage: Box<dyn Storage>, shape: KvShape, layers: usize) -> Self {
        Self { storage, shape, layers, digests: Vec::new() }
    }

    /// The shape that the layers share.
    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Number of bytes of a page.
    pub(super) fn page_bytes(shape: KvShape) -> usize {
        PAGE * shape.row_bytes()
    }

    /// Bytes of the file for `tokens` tokens, and of the digests of its pages.
    pub(super) fn bytes(shape: KvShape, layers: usize, tokens: usize) -> [usize; 2] {
        let pages = |tokens: usize| tokens.div_ceil(PAGE).saturating_mul(layers.saturating_mul(shape.kv_heads));
        let with_digests = pages(tokens.next_multiple_of(PAGE * EXTENT));
        [pages(tokens).saturating_mul(Self::page_bytes(shape)), with_digests.saturating_mul(size_of::<u64>())]
    }

    /// The position of a page in the file, in pages.
    fn number(&self, at: KvPlace, page: usize) -> usize {
        let extent = (page / EXTENT * self.layers + at.layer) * self.shape.kv_heads + at.kv_head;
        extent * EXTENT + page % EXTENT
    }

    /// Reads a page into a store with two heads: the first has the keys of its tokens, the second their values.
    pub(super) fn read_page(&self, at: KvPlace, page: usize) -> Result<KvStore, String> {
        let mut read = KvStore::zeros(KvShape { kv_heads: 2, ..self.shape }, PAGE);
        self.read_pages(at, page..page + 1, &mut Vec::new(), |_, bytes| {
            let (keys, values) = bytes.split_at(bytes.len() / 2);
            decode(keys, read.rows_mut(0, 0..PAGE));
            decode(values, read.rows_mut(1, 0..PAGE));
        })?;
        Ok(read)
    }

    /// Reads the first `tokens` tokens of a layer into `kv`, which has room for them.
    pub(super) fn read_layer(&self, layer: usize, tokens: usize, kv: &mut LayerKv) -> Result<(), String> {
        kv.keys.lengthen(tokens);
        kv.values.lengthen(tokens);
        let mut bytes = Vec::new();
        for kv_head in 0..self.shape.kv_heads {
            self.read_pages(KvPlace { layer, kv_head }, 0..tokens.div_ceil(PAGE), &mut bytes, |page, bytes| {
                let of_page = page * PAGE..((page + 1) * PAGE).min(tokens);
                let (keys, values) = bytes.split_at(bytes.len() / 2);
                decode(keys, kv.keys.rows_mut(kv_head, of_page.clone()));
                decode(values, kv.values.rows_mut(kv_head, of_page));
            })?;
        }
        Ok(())
    }

    /// Calls `visit` with the bytes of consecutive pages of a KV head, in order.
    fn read_pages(
        &self,
        at: KvPlace,
        pages: Range<usize>,
        bytes: &mut Vec<u8>,
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<(), String> {
        let page_bytes = Self::page_bytes(self.shape);
        for (first, count) in side_by_side(pages) {
            let number = self.number(at, first);
            bytes.resize(count * page_bytes, 0);
            let read = self.storage.read_at(bytes, (number * page_bytes) as u64);
            read.map_err(|e| format!("{}: {}", named(at, first, count), in_words(&e)))?;
            for (page, bytes) in (0..count).zip(bytes.chunks_exact(page_bytes)) {
                if self.digests.get(number + page) != Some(&digest(bytes, number + page)) {
                    return Err(format!("{}: it is not what was written there", named(at, first + page, 1)));
                }
                visit(first + page, bytes);
            }
        }
        Ok(())
    }

    /// Writes the pages of a layer, starting with the page of token `from`; `kv` has all tokens of the layer so far. Returns the number
    /// of bytes written.
    pub(super) fn write_layer(&mut self, layer: usize, from: usize, kv: &LayerKv) -> Result<u64, String> {
        let (tokens, page_bytes, d) = (kv.tokens(), Self::page_bytes(self.shape), self.shape.d);
        let (mut bytes, mut written) = (Vec::new(), 0);
        for kv_head in 0..self.shape.kv_heads {
            let at = KvPlace { layer, kv_head };
            let [keys, values] = [&kv.keys, &kv.values].map(|store| store.head(kv_head));
            for (first, count) in side_by_side(from / PAGE..tokens.div_ceil(PAGE)) {
                let number = self.number(at, first);
                let end = (number / EXTENT + 1) * EXTENT;
                self.digests.resize(self.digests.len().max(end), 0);
                bytes.clear();
                for page in 0..count {
                    let of_page = (first + page) * PAGE..((first + page + 1) * PAGE).min(tokens);
                    let start = bytes.len();
                    encode(keys.slice(of_page.clone(), d), &mut bytes);
                    bytes.resize(start + page_bytes / 2, 0);
                    encode(values.slice(of_page, d), &mut bytes);
                    bytes.resize(start + page_bytes, 0);
                    self.digests[number + page] = digest(&bytes[start..], number + page);
                }
                let stored = self.storage.write_at(&bytes, (number * page_bytes) as u64);
                stored.map_err(|e| format!("{}: {}", named(at, first, count), in_words(&e)))?;
                written += bytes.len() as u64;
            }
        }
        Ok(written)
    }
}

/// Splits `pages` by extent; returns the first page and the number of pages of each part.
fn side_by_side(pages: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let extents = pages.start / EXTENT..pages.end.div_ceil(EXTENT);
    extents.filter_map(move |extent| {
        let own = pages.start.max(extent * EXTENT)..pages.end.min((extent + 1) * EXTENT);
        (!own.is_empty()).then(|| (own.start, own.len()))
    })
}

fn named(at: KvPlace, first: usize, count: usize) -> String {
    match count {
        1 => format!("page {first} of KV head {}", at.kv_head),
        _ => format!("pages {first} to {} of KV head {}", first + count - 1, at.kv_head),
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "the file is shorter than what was written to it".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns a digest of a page's bytes and its number. A change within eight bytes always changes the digest, because each step is
/// invertible.
fn digest(bytes: &[u8], number: usize) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    // Four independent sums, which the CPU can compute in parallel.
    let mut lanes = [1, 2, 3, 4].map(|lane: u64| (number as u64).wrapping_mul(ODD) ^ lane);
    let (words, rest) = bytes.as_chunks::<8>();
    debug_assert!(rest.is_empty(), "a page has a multiple of 8 bytes");
    for words in words.chunks(4) {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
        }
    }
    lanes.into_iter().fold(0, |sum: u64, lane| (sum ^ lane).wrapping_mul(ODD).rotate_left(31))
}

fn encode(rows: Rows<'_>, bytes: &mut Vec<u8>) {
    match rows {
        Rows::F32(rows) => bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes())),
        Rows::F16(rows) => bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes())),
        Rows::Bf16(rows) => bytes.extend(rows.iter().flat_map(|x| x.to_le_bytes())),
    }
}

/// Decodes as many numbers as fit in `rows`.
fn decode(bytes: &[u8], rows: RowsMut<'_>) {
    match rows {
        RowsMut::F32(rows) => rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b)),
        RowsMut::F16(rows) => rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = f16::from_le_bytes(*b)),
        RowsMut::Bf16(rows) => rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = bf16::from_le_bytes(*b)),
    }
}
