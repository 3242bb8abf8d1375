//! Costs that a reader must not overlook: an index larger than the keys and values, and a search that costs more than
//! dense attention. Each has a mark after the method's name, and a sentence below the table.

use super::format::{distinct, number};
use super::parameters::ShownParams;
use spattn_eval::summary::columns::SummaryRow;

/// A cost that is larger than that of dense attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excess {
    /// Of memory: the index is larger than the keys and values.
    Index,
    /// Of time: finding tokens takes more FLOPs than attending all of them.
    Search,
}

impl Excess {
    const ALL: [Self; 2] = [Self::Index, Self::Search];

    /// The mark in a row.
    fn mark(self) -> &'static str {
        match self {
            Self::Index => "†",
            Self::Search => "‡",
        }
    }

    /// How many times the cost of dense attention a row has, if it has more.
    fn times(self, row: &SummaryRow) -> Option<f64> {
        let share = match self {
            Self::Index => row.index_share?,
            Self::Search => row.cost1?,
        };
        (share > 1.0).then_some(share)
    }

    /// What the mark means.
    fn says(self) -> &'static str {
        match self {
            Self::Index => "the index is larger than the keys and values",
            Self::Search => "finding tokens takes more FLOPs than dense attention",
        }
    }

    /// The sentence about a row.
    fn sentence(self, times: f64) -> String {
        match self {
            Self::Index => format!("The index takes {} times the memory of the keys and values.", number(times)),
            Self::Search => format!("Finding tokens takes {} times the FLOPs of dense attention.", number(times)),
        }
    }
}

/// The marks of a row; empty if it has none.
pub(super) fn marks(row: &SummaryRow) -> String {
    Excess::ALL.iter().filter(|excess| excess.times(row).is_some()).map(|excess| excess.mark()).collect()
}

/// The sentences about a row, each with its mark.
pub(super) fn sentences(row: &SummaryRow) -> Vec<(&'static str, String)> {
    let said = |excess: &Excess| Some((excess.mark(), excess.sentence(excess.times(row)?)));
    Excess::ALL.iter().filter_map(said).collect()
}

/// The lines below a table of these rows: what each mark means, and the methods that have it, the worst first.
pub(super) fn lines(rows: &[SummaryRow], names: &ShownParams) -> Vec<String> {
    Excess::ALL.iter().filter_map(|excess| line(*excess, rows, names)).collect()
}

fn line(excess: Excess, rows: &[SummaryRow], names: &ShownParams) -> Option<String> {
    const NAMED: usize = 4;
    let settings = distinct(rows.iter().map(|row| (row.method.as_str(), row.params.as_str())));
    let most = |(method, params): &(&str, &str)| {
        let of = rows.iter().filter(|row| (row.method.as_str(), row.params.as_str()) == (*method, *params));
        of.filter_map(|row| excess.times(row)).max_by(f64::total_cmp)
    };
    let mut found: Vec<((&str, &str), f64)> = settings.iter().filter_map(|of| Some((*of, most(of)?))).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named = found.iter().take(NAMED);
    let named = named.map(|((method, params), times)| format!("{} ({} ×)", names.name(method, params), number(*times)));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if found.len() > NAMED { format!(" and {} more", found.len() - NAMED) } else { String::new() };
    (!found.is_empty()).then(|| format!("{} {}: {named}{more}", excess.mark(), excess.says()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(method: &str, params: &str, index: Option<f64>, search: f64) -> SummaryRow {
        let [method, params] = [method, params].map(str::to_owned);
        SummaryRow { method, params, index_share: index, cost1: Some(search), ..SummaryRow::default() }
    }

    #[test]
    fn what_costs_more_than_dense_attention_is_marked_and_said() {
        let rows = [
            row("full", "", None, 0.0),
            row("quest", "page=16", Some(0.06), 1.0),
            row("magicpig", "density=0.05", Some(1.608), 0.21),
            row("magicpig", "density=0.2", Some(3.75), 1.26),
            row("magicpig", "density=0.05", Some(1.2), 0.21),
        ];
        assert_eq!(rows.each_ref().map(marks), ["", "", "†", "†‡", "†"]);
        let names = ShownParams::of_rows(&rows);
        assert_eq!(
            lines(&rows, &names),
            [
                "† the index is larger than the keys and values: magicpig density=0.2 (3.75 ×), magicpig density=0.05 (1.61 ×)",
                "‡ finding tokens takes more FLOPs than dense attention: magicpig density=0.2 (1.26 ×)",
            ]
        );
        assert_eq!(
            sentences(&rows[3]),
            [
                ("†", "The index takes 3.75 times the memory of the keys and values.".to_owned()),
                ("‡", "Finding tokens takes 1.26 times the FLOPs of dense attention.".to_owned()),
            ]
        );
        assert!(lines(&rows[..2], &names).is_empty() && sentences(&rows[0]).is_empty());
    }

    #[test]
    fn of_many_the_worst_are_named() {
        let rows: Vec<SummaryRow> =
            (0..7).map(|k| row("magicpig", &format!("K={k}"), Some(1.5 + f64::from(k)), 0.1)).collect();
        let said = lines(&rows, &ShownParams::of_rows(&rows)).concat();
        assert!(said.contains("values: magicpig K=6 (7.50 ×), ") && said.ends_with(" and 3 more"), "{said}");
    }
}
