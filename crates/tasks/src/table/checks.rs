//! Checks of a file's metadata before any page is read: metadata that declares more values than the file has bytes for is refused.

use std::fs::File;

use anyhow::{Result, bail, ensure};
use parquet::basic::Compression;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::ChunkReader;

use super::parquet_fields::{FILE, PAGE};
use super::thrift::{Flaw, Skimmed};

/// The most digits of a decimal number: those of 256 bits. The crate writes leading zeros one by one, so more would take long.
const MOST_DIGITS: i32 = 76;

/// Bytes at the end of a file: the length of its footer (4 bytes) and the letters `PAR1`.
const TAIL: usize = 8;

/// Checks the metadata in the footer of the file. A file without a footer passes here; the crate `parquet` refuses it.
pub(super) fn check_footer(file: &File, length: u64) -> Result<()> {
    let Some(end) = length.checked_sub(TAIL as u64) else { return Ok(()) };
    let tail = file.get_bytes(end, TAIL)?;
    let size = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let Some(start) = end.checked_sub(size.into()) else { return Ok(()) };
    let footer = file.get_bytes(start, size as usize)?;
    let mut skimmed = Skimmed::new(&footer);
    skimmed.structure(FILE, 0);
    match skimmed.flaw {
        Some(flaw) => bail!("its footer {}", described(flaw)),
        None => Ok(()),
    }
}

fn described(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::StatesTooMuch => "declares more values than it has bytes for",
        Flaw::OtherKind => "has a value whose type the Parquet format does not allow there",
    }
}

/// Checks the metadata in the header of each page.
pub(super) fn check_pages(file: &File, table: &ParquetMetaData) -> Result<()> {
    /// The field of a page header that holds the number of bytes of the page.
    const PACKED_SIZE: i64 = 3;
    for column in table.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        let (start, bytes) = column.byte_range();
        let chunk = file.get_bytes(start, usize::try_from(bytes)?)?;
        let mut left = &*chunk;
        while !left.is_empty() {
            let mut skimmed = Skimmed::new(left);
            let size = skimmed.structure(PAGE, PACKED_SIZE);
            if let Some(flaw) = skimmed.flaw {
                bail!("the header of a page of the column {} {}", column.column_path(), described(flaw));
            }
            let after = size.flatten().and_then(|size| skimmed.bytes.get(usize::try_from(size).ok()?..));
            // The crate `parquet` refuses an unreadable header when it gets there.
            let Some(after) = after else { break };
            left = after;
        }
    }
    Ok(())
}

/// Refuses columns that would take much memory or time before a page is read.
pub(super) fn check_columns(table: &ParquetMetaData, length: u64) -> Result<()> {
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
