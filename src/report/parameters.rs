//! Which parameters a table, a page or a legend shows with its settings, and which it states once.
//!
//! Parameters that all settings share tell none apart. In each row, they would make lines so long that they are cut and
//! look alike. So they are stated once, in a line beside the settings. Settings never look alike, however little space
//! there is.

use std::collections::BTreeMap;

use super::format::{distinct, setting_name};
use spattn_eval::records::record::{REFERENCE, is_reference};
use spattn_eval::summary::columns::SummaryRow;

/// The parameters of a table's settings: shown in rows, or stated once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShownParams {
    /// The parameters that all settings except dense attention share, in their order.
    of_all: Vec<String>,
    /// Whether dense attention is among the settings.
    has_reference: bool,
    /// For each method, the parameters that all its settings share, in the order of the methods.
    of_method: Vec<(String, Vec<String>)>,
    /// The text that a row shows, by method and parameters.
    in_rows: BTreeMap<(String, String), String>,
    /// The settings that are too long for a row. Rows show their number, counted from 1.
    numbered: Vec<String>,
}

/// A method and its parameters.
type Setting<'r> = (&'r str, &'r str);

impl ShownParams {
    /// Divides the parameters of rows' settings.
    pub(super) fn of_rows<'r>(rows: impl IntoIterator<Item = &'r SummaryRow>) -> Self {
        Self::of(rows.into_iter().map(|row| (row.method.as_str(), row.params.as_str())), usize::MAX)
    }

    /// Divides the parameters of settings so that a row shows at most `most` characters of them. Longer parameters of a
    /// method with a single setting are stated once; others are replaced by a number, which has at least two characters.
    pub(super) fn of<'r>(settings: impl IntoIterator<Item = Setting<'r>>, most: usize) -> Self {
        let settings = distinct(settings);
        let is_reference = |(method, params): &&Setting| is_reference(method, params);
        let of_all = shared(settings.iter().filter(|setting| !is_reference(setting)).map(|(_, params)| *params));
        let has_reference = settings.iter().any(|setting| is_reference(&setting));
        let mut shown = Self { of_all, has_reference, ..Self::default() };
        for method in distinct(settings.iter().map(|(method, _)| *method)) {
            let all: Vec<&str> = settings.iter().filter(|(of, _)| *of == method).map(|(_, params)| *params).collect();
            shown.add(method, &all, most);
        }
        shown
    }

    /// Adds the settings of one method.
    fn add(&mut self, method: &str, all: &[&str], most: usize) {
        let of_method = if all.len() > 1 { shared(all.iter().copied()) } else { Vec::new() };
        let of_all: &[String] = if method == REFERENCE { &[] } else { &self.of_all };
        let of_method: Vec<String> = of_method.into_iter().filter(|pair| !of_all.contains(pair)).collect();
        let own = |params: &str| {
            let is_own = |pair: &&str| !of_all.iter().chain(&of_method).any(|said| said == pair);
            pairs(params).into_iter().filter(is_own).collect::<Vec<_>>().join(",")
        };
        let short: Vec<String> = all.iter().map(|params| own(params)).collect();
        // Without their shared pairs, settings with the same pairs in another order would look the same.
        let is_distinct = distinct(short.iter()).len() == short.len();
        let (mut said, texts) = if is_distinct { (of_method, short) } else { (Vec::new(), owned(all)) };
        let is_alone = all.len() == 1;
        for (params, text) in all.iter().zip(texts) {
            let text = match text.chars().count() > most {
                true if is_alone => {
                    said.extend(pairs(&text).into_iter().map(str::to_owned));
                    String::new()
                }
                true => {
                    self.numbered.push(spaced(&text));
                    format!("#{}", self.numbered.len())
                }
                false => text,
            };
            self.in_rows.insert((method.to_owned(), (*params).to_owned()), text);
        }
        if !said.is_empty() {
            self.of_method.push((method.to_owned(), said));
        }
    }

    /// The parameters that a row shows of a setting; all of them for an unknown setting.
    pub(super) fn in_row<'s>(&'s self, method: &str, params: &'s str) -> &'s str {
        self.in_rows.get(&(method.to_owned(), params.to_owned())).map_or(params, String::as_str)
    }

    /// The method, with the parameters that a row shows.
    pub(super) fn name(&self, method: &str, params: &str) -> String {
        setting_name(method, self.in_row(method, params))
    }

    /// The number of characters in the longest text that a row shows.
    pub(super) fn longest(&self) -> usize {
        self.in_rows.values().map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// The line for a table that states the rest; `None` if rows show everything.
    pub(super) fn line(&self) -> Option<String> {
        self.said("rows")
    }

    /// The same line for a figure.
    pub(super) fn note(&self) -> Option<String> {
        self.said("settings")
    }

    fn said(&self, what: &str) -> Option<String> {
        let mut parts = Vec::new();
        if !self.of_all.is_empty() {
            let but = if self.has_reference { format!(" but {REFERENCE}") } else { String::new() };
            parts.push(format!("all {what}{but}: {}", self.of_all.join(", ")));
        }
        let of_method = |(method, said): &(String, Vec<String>)| format!("all {what} of {method}: {}", said.join(", "));
        parts.extend(self.of_method.iter().map(of_method));
        parts.extend((1..).zip(&self.numbered).map(|(number, text)| format!("#{number}: {text}")));
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn owned(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// The parameters with a space after each comma, so that a line can break there.
fn spaced(params: &str) -> String {
    pairs(params).join(", ")
}

/// The parameters as `key=value` pairs. A value may contain commas.
fn pairs(params: &str) -> Vec<&str> {
    let mut pairs: Vec<&str> = Vec::new();
    let mut start = 0;
    let ends = params.match_indices(',').map(|(at, _)| at).chain([params.len()]);
    for end in ends {
        // A part without a key belongs to the value before it.
        let begins_one =
            params[end..].get(1..).is_none_or(|rest| rest.split(',').next().is_some_and(|p| p.contains('=')));
        if begins_one && start < end {
            pairs.push(&params[start..end]);
            start = end + 1;
        }
    }
    pairs
}

/// The parameters that several settings share, in the order of the first; empty for fewer than two settings.
fn shared<'p>(all: impl Iterator<Item = &'p str>) -> Vec<String> {
    let all: Vec<Vec<&str>> = all.map(pairs).collect();
    let Some((first, others)) = all.split_first().filter(|(_, others)| !others.is_empty()) else { return Vec::new() };
    let is_shared = |pair: &&&str| others.iter().all(|other| other.contains(pair));
    first.iter().filter(is_shared).map(|pair| (*pair).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUEST: [Setting; 2] = [("quest", "page=16,density=0.05"), ("quest", "page=16,density=0.2")];

    fn rows<'s>(shown: &'s ShownParams, settings: &[Setting<'s>]) -> Vec<&'s str> {
        settings.iter().map(|(method, params)| shown.in_row(method, params)).collect()
    }

    #[test]
    fn what_differs_is_shown_and_what_does_not_is_said_once() {
        let labels = "channels=d/4,label_bits=4";
        let settings = [&[("full", "")], &QUEST[..], &[("double_sparsity", labels)]].concat();
        let shown = ShownParams::of(settings.iter().copied(), usize::MAX);
        assert_eq!(rows(&shown, &settings), ["", "density=0.05", "density=0.2", labels]);
        assert_eq!(shown.line().as_deref(), Some("all rows of quest: page=16"));
        assert_eq!(shown.note().as_deref(), Some("all settings of quest: page=16"));
        assert_eq!(shown.name("quest", QUEST[0].1), "quest density=0.05");
        assert_eq!(shown.in_row("loki", "k=1"), "k=1", "of another table");
    }

    #[test]
    fn what_all_methods_have_is_said_of_all() {
        let settings =
            [("full", ""), ("quest", "page=16,density=0.1"), ("loki", "density=0.1"), ("topk", "density=0.1")];
        let shown = ShownParams::of(settings, usize::MAX);
        assert_eq!(rows(&shown, &settings), ["", "page=16", "", ""]);
        assert_eq!(shown.line().as_deref(), Some("all rows but full: density=0.1"));
        let one = [("full", ""), ("quest", "page=16")];
        let shown = ShownParams::of(one, usize::MAX);
        assert_eq!((rows(&shown, &one), shown.line()), (vec!["", "page=16"], None), "one setting shares with none");
    }

    #[test]
    fn what_has_no_room_is_said_below_and_never_cut() {
        let labels = "channels=d/4,label_bits=4";
        let settings = [QUEST[0], ("quest", "page=32,density=0.2,per=kv_head"), ("double_sparsity", labels)];
        let shown = ShownParams::of(settings, 12);
        assert_eq!(rows(&shown, &settings), ["#1", "#2", ""]);
        assert_eq!(shown.longest(), 2);
        let line = shown.line().unwrap();
        assert!(line.starts_with("all rows of double_sparsity: channels=d/4, label_bits=4; #1: page=16"), "{line}");
        assert!(line.ends_with("#2: page=32, density=0.2, per=kv_head"), "{line}");
    }

    #[test]
    fn values_may_have_commas_and_pairs_any_order() {
        assert_eq!(pairs("layers=0,1,2,density=0.1"), ["layers=0,1,2", "density=0.1"]);
        assert_eq!(pairs(""), [""; 0]);
        let settings = [("topk", "a=1,b=2"), ("topk", "b=2,a=1")];
        let shown = ShownParams::of(settings, usize::MAX);
        assert_eq!(distinct(rows(&shown, &settings)).len(), 2, "{shown:?}");
    }

    proptest! {
        /// Takes settings with few keys and values, so that many are shared.
        #[test]
        fn no_setting_looks_like_another(
            settings in prop::collection::vec(
                (prop::sample::select(vec!["full", "quest", "double_sparsity", "magicpig"]),
                 prop::collection::btree_map("[a-c]{1,3}", "[0-2](,[0-2])?|[a-z_]{1,24}", 0..4)),
                1..10),
            most in 0usize..40,
        ) {
            let joined = |map: &BTreeMap<String, String>| {
                map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
            };
            let settings: Vec<(String, String)> =
                settings.iter().map(|(method, map)| ((*method).to_owned(), joined(map))).collect();
            let given = || settings.iter().map(|(method, params)| (method.as_str(), params.as_str()));
            let shown = ShownParams::of(given(), most);
            let names: Vec<(&str, String)> =
                distinct(given()).into_iter().map(|(method, params)| (method, shown.name(method, params))).collect();
            prop_assert_eq!(distinct(names.iter()).len(), names.len(), "{:?}", names);
            // Nothing is lost: the row and the line together have all parameters of a setting.
            let line = shown.line().unwrap_or_default();
            for (method, params) in given() {
                for pair in pairs(params) {
                    let is_there = pairs(shown.in_row(method, params)).contains(&pair) || line.contains(pair);
                    prop_assert!(is_there, "{} of {} {} is neither in its row nor in {}", pair, method, params, line);
                }
                prop_assert!(shown.in_row(method, params).chars().count() <= most.max(3));
            }
        }
    }
}
