//! Tables in Parquet as JSON lines, in no more memory than an honest file needs.
//!
//! A file of a few kilobytes may state sizes that no memory holds, and may repeat a value without end at the cost of a
//! few bytes. So every page is looked at before its reader makes room for it ([`Pages`]), a row's texts are counted
//! before the row is put together ([`sizes`]), and what a table may give in all is bounded ([`Limits`]).

use spattn_base::given;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use parquet::basic::{Compression, Encoding};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::{RowIter, TreeBuilder};
use parquet::schema::types::{ColumnDescPtr, Type};

use super::parquet_fields::{FILE, PAGE};
use super::thrift::{Flaw, Skimmed, number};

/// Bytes of a line at most: an archive of a few kilobytes may hold one that no memory does.
pub(super) const LONGEST_LINE: u64 = 64 << 20;
/// Rows that a column is read ahead by.
const BATCH: usize = 16;
/// Bytes that one byte in Snappy's format can stand for: three bytes copy 64.
const SNAPPY_RATIO: usize = 22;
/// Values that one byte of bit-packed differences can stand for: five bytes hold a block of 128 or 256 equal ones.
const DELTA_RATIO: u64 = 64;
/// Digits of a decimal number at most, those of 256 bits: leading zeros are written one by one.
const MOST_DIGITS: i32 = 76;

/// The table gives more than it may.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TooLarge(String);

/// What a table may give.
struct Limits {
    /// Bytes of a row's texts, and of its line.
    row: u64,
    /// Values in lists that are held at once: each takes more memory than it has bytes in a file.
    held: u64,
    /// Rows of the table.
    rows: u64,
    /// Bytes of all lines.
    bytes: u64,
}

impl Limits {
    /// Of a file of so many bytes. Equal rows and equal texts take next to no bytes, so small files may give much more
    /// than they have; in large ones, a row that differs from the one before takes a bit at least.
    fn of(bytes: u64) -> Self {
        Self {
            row: LONGEST_LINE,
            held: 4 << 20,
            rows: (1 << 16) + bytes.saturating_mul(8),
            bytes: (256 << 20).max(bytes.saturating_mul(32)),
        }
    }
}

/// The rows of a table as JSON, one a line.
///
/// # Errors
/// If it is no table that can be read, or a [`TooLarge`] one.
pub(super) fn lines(path: &Path) -> Result<Vec<u8>> {
    let file = Arc::new(given::plain(path)?);
    let limits = Limits::of(file.metadata()?.len());
    lines_within(&file, &limits)
}

fn lines_within(file: &Arc<File>, limits: &Limits) -> Result<Vec<u8>> {
    let length = file.metadata()?.len();
    check_footer(file, length)?;
    let table = ParquetMetaDataReader::new().parse_and_finish(&**file)?;
    check_columns(&table, length)?;
    check_pages(file, &table)?;
    let schema = table.file_metadata().schema_descr_ptr();
    let (mut lines, mut number) = (Vec::new(), 0);
    for metadata in table.row_groups() {
        // Each of the two readers of a group goes through its pages on its own.
        let (ahead, group) = (Group::new(file, metadata, limits), Group::new(file, metadata, limits));
        let columns = (0..ahead.num_columns()).map(|column| ahead.get_column_reader(column));
        let columns = columns.collect::<ParquetResult<Vec<_>>>().map_err(plain)?;
        let mut texts: Vec<_> = columns.into_iter().filter_map(measured).collect();
        let tree = TreeBuilder::new().with_batch_size(BATCH);
        let mut rows = tree.as_iter(schema.clone(), &group).map_err(plain)?;
        for _ in 0..usize::try_from(metadata.num_rows()).context("a negative number of rows")? {
            number += 1;
            ensure!(number <= limits.rows, TooLarge(format!("more than {} rows", limits.rows)));
            ahead.next_row();
            group.next_row();
            let long = |what| TooLarge(format!("row {number}: {what} longer than {}", mebibytes(limits.row)));
            let mut bytes = 0;
            for next in &mut texts {
                bytes += next().map_err(plain)?;
                ensure!(bytes <= limits.row, long("its texts are"));
            }
            let Some(row) = rows.next() else { break };
            let before = lines.len();
            serde_json::to_writer(&mut lines, &row.map_err(plain)?.to_json_value())?;
            lines.push(b'\n');
            ensure!((lines.len() - before) as u64 <= limits.row, long("as JSON, it is"));
            let all = || TooLarge(format!("its rows are longer than {} as JSON", mebibytes(limits.bytes)));
            ensure!(lines.len() as u64 <= limits.bytes, all());
        }
    }
    Ok(lines)
}

/// Bytes at the end of a file: the length of what is told of it, and four letters.
const TAIL: usize = 8;

/// What is told of the file at its end is told in as many bytes; what is no end at all, the reader refuses.
fn check_footer(file: &File, length: u64) -> Result<()> {
    let Some(end) = length.checked_sub(TAIL as u64) else { return Ok(()) };
    let tail = file.get_bytes(end, TAIL)?;
    let size = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let Some(start) = end.checked_sub(size.into()) else { return Ok(()) };
    let footer = file.get_bytes(start, size as usize)?;
    let mut skimmed = Skimmed::new(&footer);
    skimmed.structure(FILE, 0);
    match skimmed.flaw {
        Some(flaw) => bail!("its end {}", said_of(flaw)),
        None => Ok(()),
    }
}

fn said_of(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::StatesTooMuch => "states more values than it has bytes",
        Flaw::OtherKind => "has a value of another kind than Parquet's format has there",
    }
}

/// What is told of each page likewise.
fn check_pages(file: &File, table: &ParquetMetaData) -> Result<()> {
    /// The field of a page's header that has the bytes that follow it.
    const PACKED_SIZE: i64 = 3;
    for column in table.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let (start, bytes) = column.byte_range();
        let chunk = file.get_bytes(start, usize::try_from(bytes)?)?;
        let mut left = &*chunk;
        while !left.is_empty() {
            let mut skimmed = Skimmed::new(left);
            let size = skimmed.structure(PAGE, PACKED_SIZE);
            if let Some(flaw) = skimmed.flaw {
                bail!("a page of the column {}: {}", said_of(flaw), column.column_path());
            }
            let after = size.flatten().and_then(|size| skimmed.bytes.get(usize::try_from(size).ok()?..));
            // What means nothing, the reader refuses where it comes to it.
            let Some(after) = after else { break };
            left = after;
        }
    }
    Ok(())
}

/// What would make readers ask for memory or time before any page is read.
fn check_columns(table: &ParquetMetaData, length: u64) -> Result<()> {
    let schema = table.file_metadata().schema_descr();
    ensure!(schema.num_columns() > 0, "it has no columns");
    for column in schema.columns() {
        let digits = column.type_precision();
        ensure!(digits <= MOST_DIGITS, "the column {} states numbers of {digits} digits", column.path());
    }
    for column in table.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let (start, bytes) = column.byte_range();
        let end = start.saturating_add(bytes);
        ensure!(end <= length, "the column {} ends at byte {end} of {length}", column.column_path());
        let packing = column.compression();
        let is_read = matches!(packing, Compression::UNCOMPRESSED | Compression::SNAPPY);
        ensure!(is_read, "the column {} is compressed by {packing}", column.column_path());
    }
    Ok(())
}

/// An error without the name of the crate in front of what was said here.
fn plain(error: ParquetError) -> anyhow::Error {
    match error {
        ParquetError::External(ours) => match ours.downcast::<TooLarge>() {
            Ok(large) => anyhow::Error::new(*large),
            Err(other) => anyhow::anyhow!("{other}"),
        },
        other => other.into(),
    }
}

fn refused(what: String) -> ParquetError {
    ParquetError::External(what.into())
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        whole => format!("{whole} MiB"),
    }
}

/// Gives the bytes of a column's next row, if it is one of texts; they are not copied for it.
fn measured(column: ColumnReader) -> Option<Box<dyn FnMut() -> ParquetResult<u64>>> {
    match column {
        ColumnReader::ByteArrayColumnReader(column) => Some(Box::new(sizes(column, |text| text.len()))),
        ColumnReader::FixedLenByteArrayColumnReader(column) => Some(Box::new(sizes(column, |text| text.len()))),
        _ => None,
    }
}

fn sizes<T: DataType>(
    mut column: ColumnReaderImpl<T>,
    size: impl Fn(&T::T) -> usize,
) -> impl FnMut() -> ParquetResult<u64> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    move || {
        values.clear();
        definitions.clear();
        repetitions.clear();
        loop {
            let levels = (Some(&mut definitions), Some(&mut repetitions));
            let (rows, _, read) = column.read_records(1, levels.0, levels.1, &mut values)?;
            // The end of a row may come without any of its values, which then were there before.
            if rows == 0 || read > 0 {
                return Ok(values.iter().map(|value| size(value) as u64).sum());
            }
        }
    }
}

/// Values in lists that the readers of a row group hold.
#[derive(Default)]
struct Held {
    row: u64,
    /// Of each column, the row that a page was last read for, and the values of the pages that were read for it. The
    /// last of them stays.
    columns: Vec<(u64, u64)>,
}

/// A row group whose pages are looked at.
struct Group<'a> {
    file: Arc<File>,
    metadata: &'a RowGroupMetaData,
    held: Arc<Mutex<Held>>,
    most_held: u64,
}

impl<'a> Group<'a> {
    fn new(file: &Arc<File>, metadata: &'a RowGroupMetaData, limits: &Limits) -> Self {
        let held = Held { row: 0, columns: vec![(0, 0); metadata.num_columns()] };
        Self { file: file.clone(), metadata, held: Arc::new(Mutex::new(held)), most_held: limits.held }
    }

    fn next_row(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).row += 1;
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
        // The crate's reader makes room for as many bytes as a page states; so it is told that nothing is packed.
        let packed = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let rows = usize::try_from(self.metadata.num_rows())?;
        Ok(Box::new(Pages {
            packed: SerializedPageReader::new(self.file.clone(), &packed, rows, None)?,
            is_packed: column.compression() == Compression::SNAPPY,
            column: column.column_descr_ptr(),
            index,
            held: self.held.clone(),
            most_held: self.most_held,
        }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> ParquetResult<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of a column, unpacked, and refused where reading them would take more memory than they have bytes for.
struct Pages {
    packed: SerializedPageReader<File>,
    is_packed: bool,
    column: ColumnDescPtr,
    index: usize,
    held: Arc<Mutex<Held>>,
    most_held: u64,
}

impl Pages {
    fn checked(&self, page: Page) -> ParquetResult<Page> {
        let page = self.unpacked(page)?;
        match &page {
            Page::DictionaryPage { buf, num_values, .. } => {
                // Room for all of them is made at once.
                if *num_values as usize > buf.len() {
                    return Err(refused(format!("a dictionary of {} bytes states {num_values} values", buf.len())));
                }
            }
            Page::DataPage { buf, num_values, encoding, .. } => {
                self.hold(u64::from(*num_values))?;
                let (rest, levels) = (&buf[..], (self.column.max_rep_level(), self.column.max_def_level()));
                self.check_differences(*encoding, || {
                    let rest = if levels.0 > 0 { after_levels(rest)? } else { rest };
                    if levels.1 > 0 { after_levels(rest) } else { Some(rest) }
                })?;
            }
            Page::DataPageV2 { buf, num_values, encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
                self.hold(u64::from(*num_values))?;
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

    /// Counts a page's values among those held, if they are in lists: a list is read whole, however long it is, and
    /// all of a page may be one. Other columns are read by [`BATCH`] values.
    fn hold(&self, values: u64) -> ParquetResult<()> {
        if self.column.max_rep_level() == 0 {
            return Ok(());
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let row = held.row;
        let column = &mut held.columns[self.index];
        *column = if column.0 == row { (row, column.1 + values) } else { (row, values) };
        match held.columns.iter().map(|(_, values)| values).sum::<u64>() <= self.most_held {
            true => Ok(()),
            false => {
                let what = format!("more than {} values on the pages of a row's lists", self.most_held);
                Err(ParquetError::External(Box::new(TooLarge(what))))
            }
        }
    }

    /// Makes sure that no encoding by differences, of whose lengths a reader makes a list, states more of them than
    /// there is room for. Texts by what they have in common with the one before are copied out, so lists of them are
    /// not read.
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

/// `front`, and behind it what is packed.
fn unpack(front: &[u8], packed: &[u8]) -> ParquetResult<Vec<u8>> {
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

/// What follows levels that have their length in front.
fn after_levels(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.get(u32::from_le_bytes(*length) as usize..)
}

/// What follows numbers that are encoded by differences; `None` if they end early, or are more than so many bytes hold.
fn after_differences(mut bytes: &[u8]) -> Option<&[u8]> {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
    use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
    use parquet::schema::parser::parse_message_type;

    const TEXTS: &str = "message t { required binary x (UTF8); }";
    const LISTS: &str = "message t { repeated binary x (UTF8); }";
    const NUMBERS: &str = "message t { repeated int32 x; }";

    fn properties() -> WriterPropertiesBuilder {
        WriterProperties::builder().set_compression(Compression::SNAPPY)
    }

    /// A table of one column.
    fn table(
        schema: &str,
        with: WriterPropertiesBuilder,
        write: impl FnOnce(&mut SerializedColumnWriter),
    ) -> Arc<File> {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer = SerializedFileWriter::new(file.try_clone().unwrap(), schema, Arc::new(with.build())).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        write(&mut column);
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        file
    }

    fn texts(schema: &str, with: WriterPropertiesBuilder, texts: &[&str], repetitions: Option<&[i16]>) -> Arc<File> {
        let texts: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
        let definitions = repetitions.map(|levels| vec![1; levels.len()]);
        table(schema, with, |column| {
            let written = column.typed::<ByteArrayType>().write_batch(&texts, definitions.as_deref(), repetitions);
            assert_eq!(written.unwrap(), texts.len());
        })
    }

    fn limits(file: &Arc<File>) -> Limits {
        Limits::of(file.metadata().unwrap().len())
    }

    /// That it is too large, and what it says.
    #[track_caller]
    fn too_large(file: &Arc<File>, limits: &Limits) -> String {
        lines_within(file, limits).unwrap_err().downcast::<TooLarge>().unwrap().to_string()
    }

    #[test]
    fn every_encoding_that_is_read_gives_the_same_rows() {
        let some: Vec<String> = (0..3000).map(|i| format!("text {} of {i}", i % 7)).collect();
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        let expected: String = some.iter().map(|text| format!("{{\"x\":\"{text}\"}}\n")).collect();
        let encodings = [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for packing in [Compression::SNAPPY, Compression::UNCOMPRESSED] {
                for encoding in encodings {
                    let with = || properties().set_writer_version(version).set_compression(packing);
                    let with = with().set_dictionary_enabled(false).set_encoding(encoding);
                    for schema in [TEXTS, "message t { optional binary x (UTF8); }"] {
                        let levels = vec![1; some.len()];
                        let file = match schema == TEXTS {
                            true => texts(schema, with.clone(), &some, None),
                            false => table(schema, with.clone(), |column| {
                                let texts: Vec<ByteArray> = some.iter().map(|text| ByteArray::from(*text)).collect();
                                column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
                            }),
                        };
                        let lines = lines_within(&file, &limits(&file)).unwrap();
                        assert!(lines == expected.as_bytes(), "{version:?} {packing} {encoding} {schema}");
                    }
                }
            }
        }
    }

    #[test]
    fn lists_of_several_pages_are_read() {
        // Rows of one to five texts, on pages of a few.
        let starts: Vec<i16> = (0..4000).map(|i| i16::from(![0, 1, 5, 8, 9].contains(&(i % 12)))).collect();
        let some = vec!["abc"; starts.len()];
        let with = properties().set_data_page_row_count_limit(7).set_write_batch_size(5);
        let file = texts(LISTS, with, &some, Some(&starts));
        let lines = lines_within(&file, &limits(&file)).unwrap();
        let lengths =
            String::from_utf8(lines).unwrap().lines().map(|line| line.matches("abc").count()).collect::<Vec<_>>();
        assert_eq!(lengths[..6], [1, 4, 3, 1, 3, 1]);
        assert_eq!(lengths.iter().sum::<usize>(), some.len());
    }

    #[test]
    fn a_text_repeated_in_a_list_is_counted_before_it_is_copied() {
        let text = "x".repeat(1 << 13);
        let mut starts = vec![1; 9000];
        starts[0] = 0;
        let file = texts(LISTS, properties(), &vec![text.as_str(); starts.len()], Some(&starts));
        assert!(file.metadata().unwrap().len() < 3000);
        assert_eq!(too_large(&file, &limits(&file)), "row 1: its texts are longer than 64 MiB");
        let file = texts(TEXTS, properties(), &["\u{1}\u{1}"], None);
        let of = |row| Limits { row, ..limits(&file) };
        assert_eq!(too_large(&file, &of(1)), "row 1: its texts are longer than 1 bytes");
        assert_eq!(too_large(&file, &of(20)), "row 1: as JSON, it is longer than 20 bytes");
        assert!(lines_within(&file, &of(21)).is_ok());
    }

    #[test]
    fn values_repeated_in_a_list_are_counted_before_they_are_read() {
        let most = limits(&Arc::new(tempfile::tempfile().unwrap())).held as usize;
        let of = |length: usize| {
            let mut levels = vec![1; length];
            levels[0] = 0;
            table(NUMBERS, properties(), |column| {
                let numbers = vec![7; length];
                column.typed::<Int32Type>().write_batch(&numbers, Some(&vec![1; length]), Some(&levels)).unwrap();
            })
        };
        let file = of(most + 1);
        assert!(file.metadata().unwrap().len() < 3000);
        let error = too_large(&file, &limits(&file));
        assert_eq!(error, format!("more than {most} values on the pages of a row's lists"));
        let (file, low) = (of(100), |held| Limits { held, ..limits(&of(1)) });
        assert!(lines_within(&file, &low(100)).is_ok() && lines_within(&file, &low(99)).is_err());
    }

    #[test]
    fn repeated_rows_end_somewhere() {
        let file = texts(TEXTS, properties(), &["a long text, at times"; 1000], None);
        let of = |rows, bytes| Limits { rows, bytes, ..limits(&file) };
        let length = lines_within(&file, &of(1000, u64::MAX)).unwrap().len() as u64;
        assert_eq!(too_large(&file, &of(999, u64::MAX)), "more than 999 rows");
        assert!(lines_within(&file, &of(1000, length)).is_ok());
        let error = too_large(&file, &of(1000, length - 1));
        assert_eq!(error, format!("its rows are longer than {} bytes as JSON", length - 1));
    }

    #[test]
    fn pages_that_state_more_than_they_hold_are_refused() {
        // As Snappy writes lengths: 2^31 - 1.
        let error = unpack(b"ab", b"\xff\xff\xff\xff\x07abc").unwrap_err();
        assert!(error.to_string().contains("a page of 8 bytes states 2147483647 unpacked ones"), "{error}");
        let packed = snap::raw::Encoder::new().compress_vec(&[b'a'; 1 << 20]).unwrap();
        assert_eq!(unpack(b"ab", &packed).unwrap().len(), 2 + (1 << 20));
        assert_eq!(unpack(b"ab", b"").unwrap(), b"ab");

        // Blocks of 128 in 4 parts, a number of values, the first; then a least difference and the widths of a block.
        assert_eq!(after_differences(b"\x80\x01\x04\x02\x00\x00\x00\x00\x00\x00rest"), Some(&b"rest"[..]));
        assert_eq!(after_differences(b"\x80\x01\x04\x01\x00rest"), Some(&b"rest"[..]));
        assert_eq!(after_differences(b"\x80\x01\x04\xff\xff\xff\xff\x07\x00\x00\x00\x00\x00\x00rest"), None);
        assert_eq!(after_differences(b"\x80\x01\x00\x02\x00\x00\x00\x00\x00\x00rest"), None);
        assert_eq!(after_differences(b"\x80\x01\x04\x02\x00\x00\x01\x00\x00\x00abc"), None);
    }

    #[test]
    fn values_that_are_stated_but_not_there_are_refused() {
        // Of a field that nobody knows.
        const LIST: &[u8] = b"\xa9\xf1\xff\xff\xff\xff\x07";
        let written = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Arc::new(file)
        };
        let error_of = |footer: &[u8]| {
            let file = written(&[b"PAR1", footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat());
            lines_within(&file, &limits(&file)).unwrap_err().to_string()
        };
        // A reader would pass over eighty thousand million values.
        let error = error_of(&[&LIST.repeat(40)[..], b"\x00"].concat());
        assert_eq!(error, "its end states more values than it has bytes");
        // It would take the number for the length of a column's name, and find another file behind it.
        let error = error_of(b"\x29\x1c\x45\x02\x00\x00");
        assert_eq!(error, "its end has a value of another kind than Parquet's format has there");

        // The same in the header of a page: in place of the end of an honest one.
        let honest = texts(TEXTS, properties(), &["a long text, and no other"], None);
        let mut bytes = honest.get_bytes(0, honest.metadata().unwrap().len() as usize).unwrap().to_vec();
        let mut skimmed = Skimmed::new(&bytes[4..]);
        skimmed.structure(PAGE, 0).unwrap();
        let end = bytes.len() - skimmed.bytes.len();
        bytes[end - 1..][..LIST.len()].copy_from_slice(LIST);
        let file = written(&bytes);
        let error = lines_within(&file, &limits(&file)).unwrap_err().to_string();
        assert_eq!(error, "a page of the column states more values than it has bytes: \"x\"");
    }

    #[test]
    fn columns_that_state_too_much_are_refused() {
        let file =
            table("message t { required binary x (DECIMAL(2000000000, 1999999999)); }", properties(), |column| {
                column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("1")], None, None).unwrap();
            });
        let error = lines_within(&file, &limits(&file)).unwrap_err().to_string();
        assert!(error.contains("the column \"x\" states numbers of 2000000000 digits"), "{error}");
    }
}
