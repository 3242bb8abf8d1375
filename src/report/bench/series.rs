//! Groups the rows of a scene into the lines of a figure, and chooses the look of each line.

use crate::report::format::{distinct, setting_name};
use crate::report::plots::axis::tick_label;
use crate::report::plots::chart::ChartPoint;
use crate::report::plots::looks::looks as looks_of;
use crate::report::plots::pen::SeriesLook;
use spattn_attention::split_params;
use spattn_eval::records::record::REFERENCE;
use spattn_lab::bench::BenchRow;

/// A method or peer with its parameters, except for the requested density.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<'a> {
    /// The name without parameters.
    pub method: &'a str,
    /// The parameters, without the one that is left out.
    pub rest: String,
    /// Whether it is another program (a peer).
    pub is_peer: bool,
}

impl<'a> Series<'a> {
    /// The series of a row. Settings that differ only in the requested density are one series.
    pub fn of(row: &'a BenchRow) -> Self {
        Self::without(row, DENSITY)
    }

    /// The series of a row, whatever parameter sets the budget: if a method's rows request no density and differ in a single parameter,
    /// they form one series too.
    pub fn of_any_budget(row: &'a BenchRow, rows: &[&BenchRow]) -> Self {
        let alike: Vec<&BenchRow> =
            rows.iter().copied().filter(|other| (&other.method, other.peer) == (&row.method, row.peer)).collect();
        let keys = distinct(alike.iter().flat_map(|row| parameters(row)).map(|(key, _)| key));
        let differs = |key: &&str| alike.windows(2).any(|pair| parameter(pair[0], key) != parameter(pair[1], key));
        let differing: Vec<&str> = keys.iter().copied().filter(differs).collect();
        match differing[..] {
            [key] if !keys.contains(&DENSITY) => Self::without(row, key),
            _ => Self::of(row),
        }
    }

    fn without(row: &'a BenchRow, left_out: &str) -> Self {
        let is_kept = |part: &&str| key_and_value(part).0 != left_out;
        let rest = split_params(&row.params).into_iter().filter(is_kept).collect::<Vec<_>>().join(",");
        Self { method: &row.method, rest, is_peer: row.peer }
    }

    /// Whether it is dense attention, which all others are compared with.
    pub fn is_reference(&self) -> bool {
        self.method == REFERENCE && !self.is_peer
    }

    fn name(&self, all: &[Series]) -> String {
        let is_alone = all.iter().filter(|other| other.method == self.method).count() == 1;
        let name = if is_alone { self.method.to_owned() } else { setting_name(self.method, &self.rest) };
        if self.is_peer { format!("{name} (peer)") } else { name }
    }
}

const DENSITY: &str = "density";

fn key_and_value(part: &str) -> (&str, &str) {
    part.split_once('=').unwrap_or((part, ""))
}

fn parameters(row: &BenchRow) -> impl Iterator<Item = (&str, &str)> {
    split_params(&row.params).into_iter().map(key_and_value)
}

fn parameter<'r>(row: &'r BenchRow, key: &str) -> Option<&'r str> {
    parameters(row).find(|(known, _)| *known == key).map(|(_, value)| value)
}

/// The density that a row's parameters request, as text.
pub fn asked_density(row: &BenchRow) -> Option<&str> {
    parameter(row, DENSITY)
}

/// The series of rows with their names and looks. Later series are drawn above earlier ones, so references come first and peers last.
pub fn series<'a>(
    rows: &[&'a BenchRow],
    of: impl Fn(&'a BenchRow) -> Series<'a>,
) -> Vec<(Series<'a>, String, SeriesLook)> {
    let all = distinct(rows.iter().map(|row| of(row)));
    let (peers, own): (Vec<Series>, Vec<Series>) = all.iter().cloned().partition(|series| series.is_peer);
    let methods: Vec<&str> = own.iter().map(|series| series.method).collect();
    let peers = peers.into_iter().zip((0..).map(SeriesLook::Peer));
    let mut looks: Vec<(Series, SeriesLook)> = own.into_iter().zip(looks_of(&methods)).chain(peers).collect();
    looks.sort_by_key(|(_, look)| match look {
        SeriesLook::Dense | SeriesLook::Roof => 0,
        SeriesLook::Oracle(..) | SeriesLook::Floor(..) => 1,
        SeriesLook::Method(..) | SeriesLook::Other => 2,
        SeriesLook::Peer(_) => 3,
    });
    looks.into_iter().map(|(series, look)| (series.clone(), series.name(&all), look)).collect()
}

/// The names and looks of series, for a chart.
pub fn named(series: &[(Series, String, SeriesLook)]) -> Vec<(String, SeriesLook)> {
    series.iter().map(|(_, name, look)| (name.clone(), *look)).collect()
}

/// A row's time as a point, in microseconds with its interval.
pub fn timed(row: &BenchRow, x: f64) -> ChartPoint {
    ChartPoint { x, y: row.time_us, ends: row.time_low_us.zip(row.time_high_us) }
}

/// The times of rows, and the ends of their intervals.
pub fn times<'a>(rows: &'a [&BenchRow]) -> impl Iterator<Item = f64> + Clone + 'a {
    rows.iter().flat_map(|row| [Some(row.time_us), row.time_low_us, row.time_high_us].into_iter().flatten())
}

/// The label of a tick on an axis in microseconds.
pub fn time_tick(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", tick_label(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", tick_label(us / 1e3)),
        us => format!("{} µs", tick_label(us)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{full, peer, row, sparse};
    use super::*;

    #[test]
    fn densities_are_one_series_and_peers_look_like_peers() {
        let other = row("quest", "page=32,density=0.1");
        let rows = [
            peer(4096),
            sparse("quest", 0.05, 4096),
            sparse("quest", 0.1, 4096),
            other,
            row("topk", "k=8"),
            full(4096),
        ];
        let all = series(&rows.iter().collect::<Vec<_>>(), Series::of);
        let names: Vec<(&str, SeriesLook)> = all.iter().map(|(_, name, look)| (name.as_str(), *look)).collect();
        assert_eq!(
            names,
            [
                ("full", SeriesLook::Dense),
                ("topk", SeriesLook::Oracle(0, 0)),
                ("quest", SeriesLook::Method(17, 0)),
                ("quest page=32", SeriesLook::Method(17, 1)),
                ("torch_sdpa_bf16 (peer)", SeriesLook::Peer(0)),
            ]
        );
        assert_eq!(
            rows.iter().map(asked_density).collect::<Vec<_>>(),
            [None, Some("0.05"), Some("0.1"), Some("0.1"), None, None]
        );
    }

    #[test]
    fn budgets_are_one_series_however_they_are_written() {
        let rest = |rows: &[BenchRow]| {
            let rows: Vec<&BenchRow> = rows.iter().collect();
            rows.iter().map(|row| Series::of_any_budget(row, &rows).rest).collect::<Vec<_>>()
        };
        assert_eq!(
            rest(&[row("topk", "k=8,sink=4"), row("topk", "k=16,sink=4"), full(4096)]),
            ["sink=4", "sink=4", ""]
        );
        let two_differ = [row("quest", "page=16,k=8"), row("quest", "page=32,k=16")];
        assert_eq!(rest(&two_differ), ["page=16,k=8", "page=32,k=16"], "which of them is the budget?");
        let asked = [row("quest", "density=0.1,page=16"), row("quest", "density=0.1,page=32")];
        assert_eq!(rest(&asked), ["page=16", "page=32"], "densities are asked for");
    }

    #[test]
    fn a_peer_of_that_name_is_not_the_reference() {
        let named_full = BenchRow { peer: true, ..full(4096) };
        assert!(Series::of(&full(4096)).is_reference() && !Series::of(&named_full).is_reference());
    }

    #[test]
    fn ticks_have_units() {
        assert_eq!([0.5, 20.0, 5e3, 2e6].map(time_tick), ["0.5 µs", "20 µs", "5 ms", "2 s"]);
    }
}
