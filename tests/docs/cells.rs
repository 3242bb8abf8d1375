//! The digest of measured cells, computed as a reader of an item's `table.csv` would.

use std::collections::HashMap;
use std::path::Path;

use spattn::model::checksum::sha256_hex;

/// The SHA-256 of a run's cells in a table: a line for each cell, with the fields that say what was measured. Empty if the run has none.
pub fn digest(table: &Path, variant: &str, model: &str) -> String {
    let mut read = csv::Reader::from_path(table).unwrap();
    let mut written = csv::Writer::from_writer(Vec::new());
    for cell in read.deserialize::<HashMap<String, String>>().map(|cell| cell.unwrap()) {
        if cell["variant"] == variant && cell["model"] == model {
            written.write_record(["row", "column", "measured", "ci_low", "ci_high"].map(|field| &cell[field])).unwrap();
        }
    }
    let text = written.into_inner().unwrap();
    if text.is_empty() { String::new() } else { sha256_hex(&text) }
}
