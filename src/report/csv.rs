//! `summary.csv`. Scripts rely on its columns.

use anyhow::Result;

use spattn_base::text;
use spattn_eval::summary::column_value::ColumnValue;
use spattn_eval::summary::columns::{COLUMNS, SummaryRow};

/// The rows as CSV with a heading line; absent values are empty.
///
/// Numbers have the decimals of their column's unit, so equal rows give equal text.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn render(rows: &[SummaryRow]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(COLUMNS.iter().map(|column| column.name))?;
    for row in rows {
        writer.write_record(COLUMNS.iter().map(|column| cell((column.value)(row), column.unit.decimals())))?;
    }
    finished(writer)
}

/// Columns that hold names, never numbers.
const OF_NAMES: [&str; 11] =
    ["model", "task", "method", "params", "protocol", "metric", "name", "shape", "parameter", "spec", "schedule"];

/// The written table, with cells escaped so that a spreadsheet takes none for a formula ([`text::in_cell`]), and no name for a
/// number ([`text::in_name_cell`]).
///
/// # Errors
/// None in practice; the writer's signature has one.
pub(super) fn finished(writer: csv::Writer<Vec<u8>>) -> Result<String> {
    let written = String::from_utf8(writer.into_inner().map_err(|e| e.into_error())?)?;
    let mut safe = csv::WriterBuilder::new().flexible(true).from_writer(Vec::with_capacity(written.len()));
    let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(written.as_bytes());
    let (mut row, mut holds_names) = (csv::StringRecord::new(), None);
    while rows.read_record(&mut row)? {
        let of_names: &Vec<bool> =
            holds_names.get_or_insert_with(|| row.iter().map(|heading| OF_NAMES.contains(&heading)).collect());
        let cells = row.iter().enumerate().map(|(at, cell)| match of_names.get(at) {
            Some(true) => text::in_name_cell(cell).into_owned(),
            _ => text::in_cell(cell).into_owned(),
        });
        safe.write_record(cells)?;
    }
    Ok(String::from_utf8(safe.into_inner().map_err(|e| e.into_error())?)?)
}

fn cell(value: ColumnValue, decimals: usize) -> String {
    match value {
        ColumnValue::Text(text) => text.to_owned(),
        ColumnValue::Count(count) => count.to_string(),
        ColumnValue::Number(number) => number.map_or(String::new(), |x| fixed(x, decimals)),
    }
}

/// A number with fixed decimals. Zero has no sign.
fn fixed(x: f64, decimals: usize) -> String {
    let text = format!("{x:.decimals$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|b| b == b'0' || b == b'.') => zero.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;
    use spattn_eval::summary::summarize::summarize;

    #[test]
    fn rows_read_back_and_absent_values_are_empty() {
        let mut made = record("ruler/vt", "topk", 0, 1.0);
        made.params = "k=8,page=\"16\"".into();
        let rows = summarize(&[made], &[]);
        let text = render(&rows).unwrap();
        let read: Vec<SummaryRow> =
            csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].delta_full, &read[0].params), (None, &rows[0].params));
        let ms = |rows: &[SummaryRow]| rows[0].decode_ms_per_token.unwrap();
        assert!((ms(&read) - ms(&rows)).abs() < 1e-6);
    }

    #[test]
    fn no_rows_leave_the_headings() {
        assert_eq!(render(&[]).unwrap().lines().count(), 1);
        assert_eq!(fixed(-0.000_001, 4), "0.0000");
    }
}
