//! The pages of a table's columns, each checked and unpacked before its reader allocates memory for it.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Compression, Encoding};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::{ColumnDescPtr, Type};

use super::limits::{Limits, TooLarge};
use super::thrift::number;

/// The number of values that the crate `parquet` reads from a column at a time.
pub(super) const BATCH: usize = 16;
/// The most bytes that one byte in Snappy's format unpacks to: three bytes can copy 64.
const SNAPPY_RATIO: usize = 22;
/// The most values that one byte of delta encoding stands for: five bytes can hold a block of 128 or 256 equal values.
const DELTA_RATIO: u64 = 64;

fn refused(what: String) -> ParquetError {
    ParquetError::External(what.into())
}

/// The number of values in lists that the readers of a row group hold in memory.
#[derive(Default)]
struct ListValues {
    row: u64,
    /// For each column, the last row for which a page was read, and the number of values on all pages read for it.
    columns: Vec<(u64, u64)>,
}

/// A row group whose pages are checked as they are read.
pub(super) struct Group<'a> {
    file: Arc<File>,
    metadata: &'a RowGroupMetaData,
    list_values: Arc<Mutex<ListValues>>,
    most_list_values: u64,
}

impl<'a> Group<'a> {
    pub fn new(file: &Arc<File>, metadata: &'a RowGroupMetaData, limits: &Limits) -> Self {
        let list_values = ListValues { row: 0, columns: vec![(0, 0); metadata.num_columns()] };
        Self {
            file: file.clone(),
            metadata,
            list_values: Arc::new(Mutex::new(list_values)),
            most_list_values: limits.list_values,
        }
    }

    pub fn next_row(&self) {
        self.list_values.lock().unwrap_or_else(PoisonError::into_inner).row += 1;
    }
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, index: usize) -> ParquetResult<Box<dyn PageReader>> {
        let column = self.metadata.column(index);
        // The crate's reader allocates as many bytes as a page declares, so it is told that pages are not compressed.
        let packed = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let rows = usize::try_from(self.metadata.num_rows())?;
        Ok(Box::new(Pages {
            packed: SerializedPageReader::new(self.file.clone(), &packed, rows, None)?,
            is_packed: column.compression() == Compression::SNAPPY,
            column: column.column_descr_ptr(),
            index,
            list_values: self.list_values.clone(),
            most_list_values: self.most_list_values,
        }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> ParquetResult<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of a column, unpacked here. A page that would take much more memory than it has bytes is refused.
struct Pages {
    packed: SerializedPageReader<File>,
    is_packed: bool,
    column: ColumnDescPtr,
    index: usize,
    list_values: Arc<Mutex<ListValues>>,
    most_list_values: u64,
}

impl Pages {
    fn checked(&self, page: Page) -> ParquetResult<Page> {
        let page = self.unpacked(page)?;
        match &page {
            Page::DictionaryPage { buf, num_values, .. } => {
                // Memory for all values is allocated at once.
                if *num_values as usize > buf.len() {
                    return Err(refused(format!("a dictionary of {} bytes states {num_values} values", buf.len())));
                }
            }
            Page::DataPage { buf, num_values, encoding, .. } => {
                self.count_list_values(u64::from(*num_values))?;
                let (rest, levels) = (&buf[..], (self.column.max_rep_level(), self.column.max_def_level()));
                self.check_differences(*encoding, || {
                    let rest = if levels.0 > 0 { after_levels(rest)? } else { rest };
                    if levels.1 > 0 { after_levels(rest) } else { Some(rest) }
                })?;
            }
            Page::DataPageV2 { buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
                self.count_list_values(u64::from(*num_values))?;
                let start = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                self.check_differences(*encoding, || buf.get(start..))?;
            }
        }
        Ok(page)
    }

    fn unpacked(&self, mut page: Page) -> ParquetResult<Page> {
        if !self.is_packed {
            return Ok(page);
        }
        match &mut page {
            Page::DictionaryPage { buf, .. } | Page::DataPage { buf, .. } => *buf = unpack(&[], buf)?.into(),
            Page::DataPageV2 { is_compressed: false, .. } => {}
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                let (levels, values) =
                    buf.split_at_checked(levels).ok_or_else(|| refused("a page ends within its levels".into()))?;
                *buf = unpack(levels, values)?.into();
            }
        }
        Ok(page)
    }

    /// Adds the values of a page to the count of those in memory if they are in lists. A list is read as a whole, and all values
    /// of a page may be one list. Other columns are read by [`BATCH`] values at a time.
    fn count_list_values(&self, values: u64) -> ParquetResult<()> {
        if self.column.max_rep_level() == 0 {
            return Ok(());
        }
        let mut list_values = self.list_values.lock().unwrap_or_else(PoisonError::into_inner);
        let row = list_values.row;
        let column = &mut list_values.columns[self.index];
        *column = if column.0 == row { (row, column.1 + values) } else { (row, values) };
        match list_values.columns.iter().map(|(_, values)| values).sum::<u64>() <= self.most_list_values {
            true => Ok(()),
            false => {
                let what = format!("more than {} values on the pages of a row's lists", self.most_list_values);
                Err(ParquetError::External(Box::new(TooLarge(what))))
            }
        }
    }

    /// Checks a page of texts in a delta encoding: it must have as many lengths as it declares, since the crate allocates a list
    /// for them. Lists of texts in `DELTA_BYTE_ARRAY` are refused, since each text may repeat the whole previous one.
    fn check_differences<'a>(
        &self,
        encoding: Encoding,
        values: impl FnOnce() -> Option<&'a [u8]>,
    ) -> ParquetResult<()> {
        let streams = match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY if self.column.max_rep_level() == 0 => 2,
            Encoding::DELTA_BYTE_ARRAY => {
                return Err(refused("lists in the encoding DELTA_BYTE_ARRAY are not read".into()));
            }
            _ => return Ok(()),
        };
        let mut rest = values();
        for _ in 0..streams {
            rest = rest.and_then(after_differences);
        }
        match rest {
            Some(_) => Ok(()),
            None => Err(refused(format!("the lengths of a page in the encoding {encoding} are damaged"))),
        }
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.packed.get_next_page()?;
        page.map(|page| self.checked(page)).transpose()
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.packed.skip_next_page()
    }
}

/// `front`, followed by the unpacked bytes of `packed`.
pub(super) fn unpack(front: &[u8], packed: &[u8]) -> ParquetResult<Vec<u8>> {
    let length = snap::raw::decompress_len(packed).map_err(|e| refused(e.to_string()))?;
    if length > packed.len() * SNAPPY_RATIO {
        return Err(refused(format!("a page of {} bytes states {length} unpacked ones", packed.len())));
    }
    let mut all = front.to_vec();
    all.resize(front.len() + length, 0);
    if !packed.is_empty() {
        let mut decoder = snap::raw::Decoder::new();
        decoder.decompress(packed, &mut all[front.len()..]).map_err(|e| refused(e.to_string()))?;
    }
    Ok(all)
}

/// The bytes after the levels, whose length (4 bytes) precedes them; `None` if there are fewer bytes.
fn after_levels(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.get(u32::from_le_bytes(*length) as usize..)
}

/// The bytes after delta-encoded numbers; `None` if the bytes end early or declare more numbers than they can hold.
pub(super) fn after_differences(mut bytes: &[u8]) -> Option<&[u8]> {
    let most = bytes.len() as u64 * DELTA_RATIO;
    let [block, parts, count, _first] = [(); 4].map(|()| number(&mut bytes));
    let (parts, count) = (parts?, count?);
    let part = block?.checked_div(parts)?;
    if count > most || part == 0 {
        return None;
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        number(&mut bytes)?;
        let (widths, rest) = bytes.split_at_checked(usize::try_from(parts).ok()?)?;
        bytes = rest;
        for width in widths {
            if left > 0 {
                let length = part.checked_mul(u64::from(*width))? / 8;
                bytes = bytes.get(usize::try_from(length).ok()?..)?;
                left = left.saturating_sub(part);
            }
        }
    }
    Some(bytes)
}
