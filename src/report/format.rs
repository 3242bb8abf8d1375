//! How numbers look to a reader, and the columns that the terminal's table and the page share.

use crate::eval::record::SummaryRow;
use crate::eval::summary::REFERENCE;

/// A column of measured values.
pub struct Column {
    /// Heading, with the unit where there is one.
    pub heading: &'static str,
    /// The cell of a row.
    pub cell: fn(&SummaryRow) -> String,
    /// The cell where room is short: intervals in whole points.
    pub brief: fn(&SummaryRow) -> String,
}

const fn column(heading: &'static str, cell: fn(&SummaryRow) -> String) -> Column {
    Column { heading, cell, brief: cell }
}

/// The measured columns, in reading order: what was achieved, then what it cost.
pub const MEASURED: [Column; 9] = [
    column("n", |r| r.n.to_string()),
    Column { heading: "score %", cell: |r| score(r, 1), brief: |r| score(r, 0) },
    Column { heading: "Δ full", cell: |r| delta(r, 1), brief: |r| delta(r, 0) },
    column("density", density),
    column("cost1", |r| number(r.cost1)),
    column("cost2", |r| number(r.cost2)),
    column("aux bits", |r| number(r.aux_bits)),
    column("KB/token", |r| number(r.kv_bytes_per_token / 1000.0)),
    column("ms/token", |r| number(r.decode_ms_per_token)),
];

/// Columns of `--fidelity`, shown where it was measured.
pub const FIDELITY: [Column; 3] = [
    column("output error", |r| r.output_error.map_or(String::new(), number)),
    column("recall", |r| r.recall.map_or(String::new(), number)),
    column("dropped mass", |r| r.dropped_mass.map_or(String::new(), number)),
];

/// The columns for these rows: [`MEASURED`], and [`FIDELITY`] if any row has it.
pub fn columns(rows: &[SummaryRow]) -> Vec<&'static Column> {
    let fidelity: &[Column] = if rows.iter().any(|r| r.output_error.is_some()) { &FIDELITY } else { &[] };
    MEASURED.iter().chain(fidelity).collect()
}

/// What the headings mean, in one paragraph.
pub const LEGEND: &str = "score: mean with its 95 % bootstrap interval. Δ full: mean difference to dense attention on \
    the same examples, in points, with its paired interval. density: share of tokens attended; in \
    brackets the density asked for, where the layers that are not dense missed it by more than a twentieth. cost1, cost2: FLOPs \
    of scoring and of attention, over those of full attention. aux bits: auxiliary memory per token and KV head. \
    KB/token: K, V and auxiliary data read per token after the prefix, over all layers. output error: norm of the \
    difference to exact attention's output, over that output's. recall: share of the k tokens with the largest logits \
    that were attended, k being the number attended. dropped mass: exact attention mass of what was not attended.";

/// `mean [low high]`, the ends with that many decimals.
fn score(r: &SummaryRow, decimals: usize) -> String {
    format!("{:.1} [{:.decimals$} {:.decimals$}]", r.score, r.ci_low, r.ci_high)
}

/// What was attended, and what was asked for if that is noticeably different.
fn density(r: &SummaryRow) -> String {
    const NOTICEABLE: f64 = 0.05;
    match r.density_target {
        Some(target) if (r.density_sparse_layers / target - 1.0).abs() > NOTICEABLE => {
            format!("{} ({target})", number(r.density))
        }
        _ => number(r.density),
    }
}

/// Difference to `full`; nothing for `full` itself or without it.
fn delta(r: &SummaryRow, decimals: usize) -> String {
    match (r.delta_full, r.delta_low, r.delta_high) {
        (Some(mean), Some(low), Some(high)) if r.method != REFERENCE => {
            format!("{} [{} {}]", signed(mean, 1), signed(low, decimals), signed(high, decimals))
        }
        _ => String::new(),
    }
}

/// Points with a sign, but no sign before a zero.
pub fn signed(points: f64, decimals: usize) -> String {
    let text = format!("{points:+.decimals$}");
    match text.strip_prefix(['+', '-']) {
        Some(zero) if zero.bytes().all(|b| b == b'0' || b == b'.') => zero.to_owned(),
        _ => text,
    }
}

/// About three significant digits.
pub fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        a if a >= 0.9995 => format!("{x:.2}"),
        a if a >= 0.0995 => format!("{x:.3}"),
        a if a >= 0.0005 => format!("{x:.4}"),
        a if a.is_finite() => format!("{x:.0e}"),
        _ => String::new(),
    }
}

/// A length in tokens as people say it: `4K` for 4096, `500` for 500; nothing where a file fixes it.
pub fn tokens(length: usize) -> String {
    const K: usize = 1024;
    match length {
        0 => String::new(),
        n if n % (K * K) == 0 => format!("{}M", n / (K * K)),
        n if n % K == 0 => format!("{}K", n / K),
        n => n.to_string(),
    }
}

/// The distinct values in order of first appearance.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

/// Model and protocol as a heading.
pub fn setting(r: &SummaryRow) -> String {
    format!("{}, sparse from {}", r.model, r.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_about_three_digits() {
        let shown = [0.0, 1.0, 0.03125, 0.125, 0.00004, 12.34, 4096.4, 0.99961].map(number);
        assert_eq!(shown, ["0", "1.00", "0.0312", "0.125", "4e-5", "12.3", "4096", "1.00"]);
    }

    #[test]
    fn lengths_read_as_people_say_them() {
        assert_eq!([0, 500, 4096, 131_072, 1 << 20].map(tokens), ["", "500", "4K", "128K", "1M"]);
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!([-0.04, 0.04, -0.06, 3.0].map(|x| signed(x, 1)), ["0.0", "0.0", "-0.1", "+3.0"]);
    }
}
