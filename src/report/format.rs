//! How numbers are shown to a reader, and the columns of tables on the terminal, in Markdown and in LaTeX.

use spattn_attention::split_params;
use spattn_eval::records::timing::Latency;
use spattn_eval::summary::column_value::ColumnUnit;
use spattn_eval::summary::columns::{IN_TABLES, LEFT_OUT_FIRST, SummaryColumn, SummaryRow, find};
use spattn_eval::summary::self_checks::FEW_TELL;
use spattn_tasks::likelihood::Measure;

/// A text with a capital first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A column of a table: a column of the summary, under a heading that fits the rows of the table.
#[derive(Clone, Copy)]
pub struct TableColumn {
    /// Heading, with the unit where there is one.
    pub heading: &'static str,
    of: &'static SummaryColumn,
}

/// How precisely a cell shows an interval.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// With the decimals of the mean, and for times too.
    Full,
    /// In whole points, and not for times: for narrow tables.
    Brief,
}

impl Ends {
    fn decimals(self) -> usize {
        match self {
            Self::Full => 1,
            Self::Brief => 0,
        }
    }
}

impl TableColumn {
    fn of(column: &'static SummaryColumn, rows: &[SummaryRow]) -> Self {
        let heading = match column.name {
            "score" => score_heading(rows),
            "decode_ms_per_token" => LATENCY,
            _ => column.heading.unwrap_or(column.name),
        };
        Self { heading, of: column }
    }

    /// The column's name in files.
    pub fn name(&self) -> &'static str {
        self.of.name
    }

    /// The cell of a row, with a full interval.
    pub fn cell(&self, row: &SummaryRow) -> String {
        self.text(row, Ends::Full)
    }

    /// The cell of a row in a narrow table.
    pub fn brief(&self, row: &SummaryRow) -> String {
        self.text(row, Ends::Brief)
    }

    fn text(&self, row: &SummaryRow, ends: Ends) -> String {
        match self.of.name {
            "n" => examples(row),
            "score" => score(row, ends),
            "delta_full" => delta(row, ends),
            "density" => density(row),
            "decode_ms_per_token" => latency_ms(row, ends),
            _ => (self.of.value)(row).number().map_or(String::new(), |x| in_unit(x, self.of.unit)),
        }
    }
}

/// A number in the unit of its column's heading.
fn in_unit(x: f64, unit: ColumnUnit) -> String {
    match unit {
        ColumnUnit::Bytes => number(x / 1000.0),
        ColumnUnit::Percent => format!("{x:.1}"),
        ColumnUnit::Share => number(100.0 * x),
        ColumnUnit::FineBits => format!("{x:.4}"),
        _ => number(x),
    }
}

/// The heading of scores that fits the rows.
fn score_heading(rows: &[SummaryRow]) -> &'static str {
    let scores = rows.iter().filter(|r| r.measure.is_score()).count();
    match scores {
        0 if !rows.is_empty() => "perplexity",
        n if n == rows.len() => "score %",
        _ => "score",
    }
}

/// The kind of step times, if all rows have the same kind.
pub fn latency_of<'r>(rows: impl IntoIterator<Item = &'r SummaryRow>) -> Option<Latency> {
    let mut kinds = rows.into_iter().map(|r| r.latency);
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}

/// The heading of the times of steps that ran a method alone. Tables show no other step times.
const LATENCY: &str = "latency ms";

/// A line below a table with latencies that says how they were measured; `None` without any.
pub fn about_latency(rows: &[SummaryRow]) -> Option<&'static str> {
    let is_timed = rows.iter().any(SummaryRow::is_timed_alone);
    is_timed.then_some(
        "latency ms: mean time of a one-token step of the method alone, on all threads, in the median of five turns",
    )
}

/// The columns of a table of these rows: those of [`IN_TABLES`] that suit them.
pub fn columns(rows: &[SummaryRow]) -> Vec<TableColumn> {
    let shown = IN_TABLES.iter().filter(|column| column.shown.holds(rows));
    shown.filter_map(|shown| find(shown.name)).map(|column| TableColumn::of(column, rows)).collect()
}

/// As many of the columns as fit, and the headings of those left out, the least needed first.
pub fn fitting(
    mut columns: Vec<TableColumn>,
    fits: impl Fn(&[TableColumn]) -> bool,
) -> (Vec<TableColumn>, Vec<&'static str>) {
    let mut left_out = Vec::new();
    for &name in LEFT_OUT_FIRST {
        if fits(&columns) {
            break;
        }
        if let Some(at) = columns.iter().position(|column| column.name() == name) {
            left_out.push(columns.remove(at).heading);
        }
    }
    (columns, left_out)
}

/// A cell without its interval.
pub fn without_interval(cell: &str) -> String {
    match (cell.find(" ["), cell.find(']')) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &cell[..from], &cell[to + 1..]),
        _ => cell.to_owned(),
    }
}

/// The columns of a table of means over tasks.
pub fn mean_columns(rows: &[SummaryRow]) -> Vec<TableColumn> {
    let shown = IN_TABLES.iter().filter(|column| column.of_means && column.shown.holds(rows));
    shown.filter_map(|shown| find(shown.name)).map(|column| TableColumn::of(column, rows)).collect()
}

/// Which direction of a score is better, if that is not obvious, to show after the task's name.
pub fn direction(row: &SummaryRow) -> &'static str {
    match row.measure {
        Measure::Score => "",
        Measure::Perplexity => " (perplexity: less is better)",
    }
}

/// What the columns of a table mean: each heading with its explanation.
pub fn legend(columns: &[TableColumn]) -> Vec<(&'static str, &'static str)> {
    columns.iter().map(|column| (column.heading, column.of.about())).collect()
}

/// The number of examples, with the number of contexts in brackets if it differs.
fn examples(r: &SummaryRow) -> String {
    // Files of older versions state no contexts.
    if 0 < r.contexts && r.contexts < r.n { format!("{} ({})", r.n, r.contexts) } else { r.n.to_string() }
}

/// `mean [low high]`, or the mean alone if there is no interval.
fn score(r: &SummaryRow, shown: Ends) -> String {
    let decimals = shown.decimals();
    let mean = if r.measure == Measure::Perplexity { four(r.score) } else { format!("{:.1}", r.score) };
    let end = |x: f64| if r.measure == Measure::Perplexity { four(x) } else { format!("{x:.decimals$}") };
    with_ends(mean, r.ci_low.zip(r.ci_high), end)
}

fn with_ends(mean: String, ends: Option<(f64, f64)>, shown: impl Fn(f64) -> String) -> String {
    match ends {
        Some((low, high)) => format!("{mean} [{} {}]", shown(low), shown(high)),
        None => mean,
    }
}

/// The attended density, and the requested one in brackets if it differs noticeably.
fn density(r: &SummaryRow) -> String {
    const NOTICEABLE: f64 = 0.05;
    match r.density_target {
        Some(target) if (r.density_sparse_layers / target - 1.0).abs() > NOTICEABLE => {
            format!("{} ({target})", number(r.density))
        }
        _ => number(r.density),
    }
}

/// Milliseconds of a step that ran the method alone, with a star if most rows around were timed under other conditions. Empty for shares
/// of common steps, which are no latencies.
fn latency_ms(r: &SummaryRow, ends: Ends) -> String {
    if !r.is_timed_alone() {
        return String::new();
    }
    let ends = r.decode_ms_low.zip(r.decode_ms_high).filter(|_| ends == Ends::Full);
    let star = if r.is_timed_apart { "*" } else { "" };
    r.decode_ms_per_token.map_or(String::new(), |ms| with_ends(number(ms), ends, number) + star)
}

/// The difference to `full`; empty for `full` itself, and if there is no `full`.
fn delta(r: &SummaryRow, shown: Ends) -> String {
    let Some(mean) = r.delta_full.filter(|_| !r.is_reference()) else { return String::new() };
    let ends = r.delta_low.zip(r.delta_high);
    match r.measure {
        Measure::Perplexity => with_ends(signed_number(mean), ends, signed_number),
        Measure::Score => with_ends(signed(mean, 1), ends, |x| signed(x, shown.decimals())),
    }
}

/// A number with a sign and about three significant digits. Zero has no sign.
fn signed_number(x: f64) -> String {
    match x {
        x if x > 0.0 => format!("+{}", number(x)),
        x => number(x),
    }
}

/// A line that says which differences to `full` can be detected, from the contexts and the detectable difference in points of each
/// compared row; `None` if there are no rows, or so few examples that a self-check warns about it.
pub fn detectable(compared: impl Iterator<Item = (usize, Option<f64>)>) -> Option<String> {
    let known: Vec<(usize, f64)> = compared.filter_map(|(n, points)| Some((n, points?))).collect();
    let least = known.iter().map(|(_, points)| *points).min_by(f64::total_cmp)?;
    let most = known.iter().map(|(_, points)| *points).max_by(f64::total_cmp)?;
    if least > 100.0 * FEW_TELL {
        return None;
    }
    let (few, many) = (known.iter().map(|(n, _)| *n).min()?, known.iter().map(|(n, _)| *n).max()?);
    let range = |low: String, high: String| if low == high { low } else { format!("{low} to {high}") };
    let n = range(few.to_string(), many.to_string());
    let points = range(format!("{least:.0}"), format!("{most:.0}"));
    Some(format!(
        "with {n} independent examples, a true loss of {points} points would be missed in one of five such runs"
    ))
}

/// Points with a sign. Zero has no sign.
pub fn signed(points: f64, decimals: usize) -> String {
    let text = format!("{points:+.decimals$}");
    match text.strip_prefix(['+', '-']) {
        Some(zero) if zero.bytes().all(|b| b == b'0' || b == b'.') => zero.to_owned(),
        _ => text,
    }
}

/// From this size on, numbers are written with a power of ten. The word perplexity of a text whose words have hundreds of bytes may have
/// hundreds of digits.
const NO_LONGER_READABLE: f64 = 1e9;

/// A number with about four significant digits, for perplexities.
fn four(x: f64) -> String {
    match x {
        x if x >= NO_LONGER_READABLE => format!("{x:.3e}"),
        x if x >= 999.95 => format!("{x:.0}"),
        x if x >= 99.995 => format!("{x:.1}"),
        x if x >= 9.9995 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

/// A number with about three significant digits.
pub fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        a if a >= NO_LONGER_READABLE => format!("{x:.2e}"),
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        a if a >= 0.9995 => format!("{x:.2}"),
        a if a >= 0.0995 => format!("{x:.3}"),
        a if a >= 0.0005 => format!("{x:.4}"),
        a if a.is_finite() => format!("{x:.0e}"),
        _ => String::new(),
    }
}

/// A length in tokens: `4K` for 4096, `500` for 500; empty if a file determines it.
pub fn tokens(length: usize) -> String {
    const K: usize = 1024;
    match length {
        0 => String::new(),
        n if n % (K * K) == 0 => format!("{}M", n / (K * K)),
        n if n % K == 0 => format!("{}K", n / K),
        n => n.to_string(),
    }
}

/// The name of a method with its parameters.
pub fn setting_name(method: &str, params: &str) -> String {
    if params.is_empty() { method.to_owned() } else { format!("{method} {params}") }
}

/// The named parameters of a row, without the keys for which `leave_out` holds.
pub fn params_without(row: &SummaryRow, leave_out: impl Fn(&str) -> bool) -> String {
    let is_kept = |param: &&str| param.split_once('=').is_none_or(|(key, _)| !leave_out(key));
    split_params(&row.params).into_iter().filter(is_kept).collect::<Vec<_>>().join(",")
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

/// The model and protocol of a row, as a heading.
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
        assert_eq!([1.24e7, 1.7405e303].map(number), ["12400000", "1.74e303"]);
        assert_eq!([13138.2, 1.7405e303].map(four), ["13138", "1.740e303"]);
    }

    #[test]
    fn what_is_least_needed_is_left_out_first_and_what_it_is_about_never() {
        let rows = vec![
            spattn_eval::summary::summarize::summarize(
                &[spattn_eval::records::testing::record("vt", "topk", 0, 1.0)],
                &[],
            )[0]
            .clone(),
        ];
        let at_most = |n: usize| fitting(columns(&rows), |c: &[TableColumn]| c.len() <= n);
        let all = columns(&rows).len();
        assert_eq!(at_most(all).1.len(), 0);
        assert_eq!(at_most(all - 2).1, ["FLOPs %", "index %"]);
        let (kept, _) = at_most(0);
        assert_eq!(kept.iter().map(|c| c.heading).collect::<Vec<_>>(), ["score %", "Δ full", "density"]);
    }

    #[test]
    fn shares_are_in_percent_and_only_latencies_are_called_so() {
        use spattn_eval::records::timing::Latency;
        let mut row = SummaryRow { cost_total: Some(0.549), bytes_share: Some(0.056), ..SummaryRow::default() };
        row.decode_ms_per_token = Some(1.25);
        let cells = |row: &SummaryRow| -> Vec<(&'static str, String)> {
            columns(std::slice::from_ref(row)).iter().map(|c| (c.heading, c.cell(row))).collect()
        };
        let has = |row: &SummaryRow, heading, cell: &str| cells(row).contains(&(heading, cell.to_owned()));
        assert!(has(&row, "FLOPs %", "54.9") && has(&row, "read %", "5.60"), "{:?}", cells(&row));
        for shared in [None, Some(Latency::Shared)] {
            row.latency = shared;
            assert!(cells(&row).iter().all(|(heading, _)| !heading.contains("ms")), "{:?}", cells(&row));
        }
        let alone = SummaryRow { latency: Some(Latency::Solo), ..row.clone() };
        assert!(has(&alone, "latency ms", "1.25"));
        let both = [row.clone(), alone];
        let latency = *columns(&both).iter().find(|c| c.heading == LATENCY).unwrap();
        assert_eq!(
            both.each_ref().map(|row| latency.cell(row)),
            ["", "1.25"],
            "a share is no latency beside one either"
        );
    }

    #[test]
    fn every_column_of_a_table_is_explained() {
        let row =
            SummaryRow { kv_tokens_held: Some(1.0), bits_per_byte: Some(1.0), acc: Some(1.0), ..SummaryRow::default() };
        for (heading, about) in legend(&columns(&[row])) {
            assert!(about.len() > 15 && about.ends_with('.'), "{heading}: {about}");
        }
    }

    #[test]
    fn a_cell_is_shown_without_its_interval() {
        assert_eq!(["97.5 [84 100]", "8.33 [8.1 8.5]*", "4.0", ""].map(without_interval), ["97.5", "8.33*", "4.0", ""]);
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
