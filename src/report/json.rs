//! `--json`: the summary as an array of objects with `summary.csv`'s keys.

use crate::eval::record::SummaryRow;
use anyhow::Result;

/// The rows as indented JSON with a final newline; absent values are `null`.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn render(rows: &[SummaryRow]) -> Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rows_are_an_empty_array() {
        assert_eq!(render(&[]).unwrap(), "[]\n");
    }
}
