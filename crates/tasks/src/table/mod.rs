//! Reads Parquet tables as JSON lines, in bounded memory whatever the file declares.
//!
//! A file of a few kilobytes may declare sizes that exceed any memory, and may repeat a value very often at the cost of a few
//! bytes. Three things keep the memory bounded:
//!
//! - The metadata is checked before the crate `parquet` reads it (`checks.rs`), and each page before memory is allocated for it
//!   (`pages.rs`).
//! - The texts of a row are measured before the row is built ([`sizes`]).
//! - The number of rows and bytes of a table is limited ([`Limits`]).

mod checks;
mod limits;
mod pages;
mod parquet_fields;
mod thrift;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::TreeBuilder;

use self::checks::{check_columns, check_footer, check_pages};
use self::limits::Limits;
pub(crate) use self::limits::{LONGEST_LINE, TooLarge};
use self::pages::{BATCH, Group};
use spattn_base::given;

/// The rows of a table as JSON, one a line.
///
/// # Errors
/// If the file cannot be read as a table, or with [`TooLarge`] if it exceeds a limit.
pub(crate) fn lines(path: &Path) -> Result<Vec<u8>> {
    let file = Arc::new(given::plain(path)?);
    let limits = Limits::of_file(file.metadata()?.len());
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
        // Each of the two readers of a row group reads its pages independently.
        let (ahead, group) = (Group::new(file, metadata, limits), Group::new(file, metadata, limits));
        let columns = (0..ahead.num_columns()).map(|column| ahead.get_column_reader(column));
        let columns = columns.collect::<ParquetResult<Vec<_>>>().map_err(plain)?;
        let mut texts: Vec<_> = columns.into_iter().filter_map(measured).collect();
        let tree = TreeBuilder::new().with_batch_size(BATCH);
        let mut rows = tree.as_iter(schema.clone(), &group).map_err(plain)?;
        for _ in 0..usize::try_from(metadata.num_rows()).context("the number of rows is negative")? {
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

/// The error without the name of the crate `parquet`, if the text was written here.
fn plain(error: ParquetError) -> anyhow::Error {
    match error {
        ParquetError::External(ours) => match ours.downcast::<TooLarge>() {
            Ok(large) => anyhow::Error::new(*large),
            Err(other) => anyhow::anyhow!("{other}"),
        },
        other => other.into(),
    }
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        whole => format!("{whole} MiB"),
    }
}

/// A function that returns the bytes of the texts in the column's next row, without copying them; `None` if the column has no
/// texts.
fn measured(column: ColumnReader) -> Option<Box<dyn FnMut() -> ParquetResult<u64>>> {
    match column {
        ColumnReader::ByteArrayColumnReader(column) => Some(Box::new(sizes(column, |text| text.len()))),
        ColumnReader::FixedLenByteArrayColumnReader(column) => Some(Box::new(sizes(column, |text| text.len()))),
        _ => None,
    }
}

/// A function that returns the sum of `size` over the values in the column's next row.
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
            // The reader may report the end of a row without any of its values, if they were already read.
            if rows == 0 || read > 0 {
                return Ok(values.iter().map(|value| size(value) as u64).sum());
            }
        }
    }
}

#[cfg(test)]
mod tests;
