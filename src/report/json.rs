//! JSON output (`--json`): rows as an array of objects. Rows of the summary have the keys of `summary.csv`.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::{Report, kv_type};
use spattn_eval::summary::columns::SummaryRow;

/// The rows as indented JSON with a final newline. Missing values are `null`.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn render<T: Serialize>(rows: &[T]) -> Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

/// The rows of a report's summary. Each has `kv_dtype` after its columns: the type of the keys and values that its shares are relative to;
/// `null` if no manifest states it.
///
/// # Errors
/// As [`render`].
pub fn summary(report: &Report) -> Result<String> {
    let with_type = |row: &SummaryRow| -> Result<Value> {
        let mut value = serde_json::to_value(row)?;
        value["kv_dtype"] = kv_type::of_model(report, &row.model).into();
        Ok(value)
    };
    render(&report.rows.iter().map(with_type).collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rows_are_an_empty_array() {
        assert_eq!(render::<SummaryRow>(&[]).unwrap(), "[]\n");
    }
}
