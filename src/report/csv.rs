//! `summary.csv`, on whose columns scripts rely.

use anyhow::Result;

use crate::eval::summary::summary_row::SummaryRow;
use spattn_base::text;

/// The columns, in the order of [`SummaryRow`]'s fields.
pub const COLUMNS: [&str; 67] = [
    "model",
    "task",
    "length",
    "method",
    "params",
    "protocol",
    "n",
    "score",
    "ci_low",
    "ci_high",
    "delta_full",
    "delta_low",
    "delta_high",
    "density",
    "cost1",
    "cost2",
    "cost_total",
    "aux_bits",
    "kv_bytes_per_token",
    "output_error",
    "recall",
    "prefill_s",
    "decode_ms_per_token",
    "kv_bytes_held",
    "density_target",
    "density_sparse_layers",
    "density_min",
    "density_median",
    "density_max",
    "output_error_min",
    "output_error_median",
    "output_error_max",
    "recall_min",
    "recall_median",
    "recall_max",
    "dropped_mass",
    "dropped_mass_min",
    "dropped_mass_median",
    "dropped_mass_max",
    "measure",
    "word_perplexity",
    "bits_per_byte",
    "kl_mean",
    "kl_p99",
    "same_top",
    "acc",
    "acc_norm",
    "kv_tokens_held",
    "index_s",
    "decode_ms_low",
    "decode_ms_high",
    "timed",
    "contexts",
    "detectable",
    "shared_bytes_per_token",
    "select_bytes_per_token",
    "free_share",
    "latency",
    "select_ms_per_token",
    "attend_ms_per_token",
    "weights_ms_per_token",
    "picked_density",
    "cost1_sparse_layers",
    "cost2_sparse_layers",
    "cost2_picked",
    "cost1_published",
    "shared_bytes_resident",
];

/// The rows as CSV with a heading line. Missing values are empty.
///
/// Percentages and perplexities have 4 decimals, shares and costs 8, bytes and bits 3, times 6: enough to distinguish different
/// measurements, and the same text for the same rows.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn render(rows: &[SummaryRow]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for row in rows {
        writer.write_record(fields(row))?;
    }
    finished(writer)
}

/// Columns that hold names, never numbers.
const OF_NAMES: [&str; 11] =
    ["model", "task", "method", "params", "protocol", "metric", "name", "shape", "parameter", "spec", "schedule"];

/// The written table, with cells escaped so that no spreadsheet takes them for formulas ([`text::in_cell`]), or names for numbers
/// ([`text::in_name_cell`]).
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

fn fields(r: &SummaryRow) -> [String; 67] {
    const PERCENT: usize = 4;
    const SHARE: usize = 8;
    const SIZE: usize = 3;
    const TIME: usize = 6;
    [
        r.model.clone(),
        r.task.clone(),
        r.length.to_string(),
        r.method.clone(),
        r.params.clone(),
        r.protocol.clone(),
        r.n.to_string(),
        fixed(r.score, PERCENT),
        optional(r.ci_low, PERCENT),
        optional(r.ci_high, PERCENT),
        optional(r.delta_full, PERCENT),
        optional(r.delta_low, PERCENT),
        optional(r.delta_high, PERCENT),
        fixed(r.density, SHARE),
        fixed(r.cost1, SHARE),
        fixed(r.cost2, SHARE),
        fixed(r.cost_total, SHARE),
        fixed(r.aux_bits, SIZE),
        optional(r.kv_bytes_per_token, SIZE),
        optional(r.output_error, SHARE),
        optional(r.recall, SHARE),
        fixed(r.prefill_s, TIME),
        optional(r.decode_ms_per_token, TIME),
        optional(r.kv_bytes_held, SIZE),
        optional(r.density_target, SHARE),
        fixed(r.density_sparse_layers, SHARE),
        optional(r.density_min, SHARE),
        optional(r.density_median, SHARE),
        optional(r.density_max, SHARE),
        optional(r.output_error_min, SHARE),
        optional(r.output_error_median, SHARE),
        optional(r.output_error_max, SHARE),
        optional(r.recall_min, SHARE),
        optional(r.recall_median, SHARE),
        optional(r.recall_max, SHARE),
        optional(r.dropped_mass, SHARE),
        optional(r.dropped_mass_min, SHARE),
        optional(r.dropped_mass_median, SHARE),
        optional(r.dropped_mass_max, SHARE),
        r.measure.name().to_owned(),
        optional(r.word_perplexity, PERCENT),
        optional(r.bits_per_byte, SHARE),
        optional(r.kl_mean, SHARE),
        optional(r.kl_p99, SHARE),
        optional(r.same_top, PERCENT),
        optional(r.acc, PERCENT),
        optional(r.acc_norm, PERCENT),
        optional(r.kv_tokens_held, SIZE),
        fixed(r.index_s, TIME),
        optional(r.decode_ms_low, TIME),
        optional(r.decode_ms_high, TIME),
        r.timed.clone().unwrap_or_default(),
        r.contexts.to_string(),
        optional(r.detectable, PERCENT),
        optional(r.shared_bytes_per_token, SIZE),
        optional(r.select_bytes_per_token, SIZE),
        optional(r.free_share, SHARE),
        r.latency.map_or(String::new(), |latency| latency.name().to_owned()),
        optional(r.select_ms_per_token, TIME),
        optional(r.attend_ms_per_token, TIME),
        optional(r.weights_ms_per_token, TIME),
        optional(r.picked_density, SHARE),
        optional(r.cost1_sparse_layers, SHARE),
        optional(r.cost2_sparse_layers, SHARE),
        optional(r.cost2_picked, SHARE),
        optional(r.cost1_published, SHARE),
        optional(r.shared_bytes_resident, SIZE),
    ]
}

fn optional(x: Option<f64>, decimals: usize) -> String {
    x.map_or(String::new(), |x| fixed(x, decimals))
}

/// A number with fixed decimals, and without a sign before a zero.
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
    use crate::eval::records::record::tests::record;
    use crate::eval::summary::summarize::summarize;

    #[test]
    fn columns_are_the_fields_of_a_row() {
        let row = &summarize(&[record("ruler/vt", "topk", 0, 1.0)], &[])[0];
        let fields = serde_json::to_value(row).unwrap();
        assert_eq!(fields.as_object().unwrap().keys().collect::<Vec<_>>(), COLUMNS);
    }

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
