//! `--json`: rows as an array of objects. Rows of the summary have the keys of `summary.csv`.

use anyhow::Result;
use serde::Serialize;

/// The rows as indented JSON with a final newline. Missing values are `null`.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn render<T: Serialize>(rows: &[T]) -> Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::summary::columns::SummaryRow;

    #[test]
    fn no_rows_are_an_empty_array() {
        assert_eq!(render::<SummaryRow>(&[]).unwrap(), "[]\n");
    }
}
