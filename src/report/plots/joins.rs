//! Which neighbours in a drawing of a paper's table a line may join: only steps of one quantity.

use std::collections::BTreeMap;

use spattn_lab::papers::item::Line;

/// What ends to the left of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Break {
    /// Nothing: lines continue.
    None,
    /// All lines.
    Line,
    /// All lines and the row of places, because another model begins.
    Row,
}

/// What ends before each place. A place has its row or column, and its model if places have several.
pub(super) fn breaks(places: &[(&Line, Option<&str>)], names: &[String]) -> Vec<Break> {
    let mut all = vec![Break::None; places.len()];
    for at in 1..places.len() {
        let ((before, model), (here, own)) = (places[at - 1], places[at]);
        let is_apart = is_average(&names[at - 1]) || is_average(&names[at]) || !is_step(before, here);
        all[at] = match (model == own, is_apart) {
            (false, _) => Break::Row,
            (true, true) => Break::Line,
            (true, false) => Break::None,
        };
    }
    all
}

/// Whether a row or column is a mean of other ones.
fn is_average(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["avg", "average", "mean"].iter().any(|word| name.trim_end_matches('.') == *word)
}

/// Whether two rows or columns differ in nothing but one number: a length, a parameter of a method, a key of an analysis, or the
/// context or number of sequences of a time.
fn is_step(before: &Line, here: &Line) -> bool {
    let (before, here) = (quantities(before), quantities(here));
    if before.len() != here.len() {
        return false;
    }
    let differing: Vec<(&String, &String)> =
        before.iter().filter(|(key, value)| here.get(*key) != Some(value)).collect();
    let [(key, value)] = differing.as_slice() else { return false };
    [Some(*value), here.get(*key)].into_iter().all(|value| value.is_some_and(|value| is_number(value)))
}

/// A number, a range of numbers, or a share such as `d/4`.
fn is_number(text: &str) -> bool {
    let parts = text.split("..").flat_map(|end| end.split('/'));
    parts.filter(|part| *part != "d").all(|part| part.trim_end_matches('%').parse::<f64>().is_ok())
}

/// The quantities that a row or column selects, by key.
fn quantities(line: &Line) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value: Option<String>| all.extend(value.map(|value| (key.to_owned(), value)));
    put("length", line.length.map(|length| length.to_string()));
    put("tasks", line.tasks.as_ref().map(|tasks| tasks.join(" ")));
    put("protocol", line.sparse_from.clone());
    put("model", line.model.clone());
    put("value", line.value.map(|value| format!("{value:?}")));
    if let Some(time) = &line.time {
        put("op", time.op.clone());
        put("context", time.context.map(|context| context.to_string()));
        put("batch", time.batch.map(|batch| batch.to_string()));
        put("timed", time.method.clone());
        put("against", time.against.clone());
        put("time", time.column.clone());
    }
    if let Some(found) = &line.found {
        put("table", found.table.clone());
        put("column", found.column.clone());
        put("over", found.over.map(|over| format!("{over:?}")));
        found.keys.iter().for_each(|(key, value)| put(key, Some(value.clone())));
    }
    let specs = [line.method.as_deref(), line.time.as_ref().and_then(|time| time.params.as_deref())];
    for spec in specs.into_iter().flatten() {
        let (method, params) = spec.split_once(':').unwrap_or(if spec.contains('=') { ("", spec) } else { (spec, "") });
        put("method", Some(method.to_owned()).filter(|method| !method.is_empty()));
        for part in params.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            put(key, Some(value.to_owned()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        toml::from_str(&format!("name = 'x'\n{text}")).unwrap()
    }

    #[test]
    fn steps_of_one_number_are_joined() {
        let is = |before: &str, here: &str| is_step(&line(before), &line(here));
        assert!(is("length = 1024", "length = 2048"));
        assert!(is("method = 'topk:k=8'", "method = 'topk:k=16'"));
        assert!(is("method = 'double_sparsity:channels=d/4'", "method = 'double_sparsity:channels=d/8'"));
        assert!(is("found = { keys = { layer = '1..3' } }", "found = { keys = { layer = '4..9' } }"));
        assert!(is("time = { context = 1, batch = 4 }", "time = { context = 2, batch = 4 }"));
        assert!(!is("tasks = ['ruler/vt']", "tasks = ['ruler/cwe']"), "tasks are no steps");
        assert!(!is("method = 'magicpig:K=8,L=75'", "method = 'magicpig:K=10,L=150'"));
        assert!(!is("method = 'quest'", "method = 'topk:k=8'"));
        assert!(!is("time = { context = 1, batch = 4 }", "time = { context = 2, batch = 8 }"));
        assert!(!is("", ""), "names alone are no steps");
        assert!(!is("value = 'density'", "value = 'cost1'"));
    }
}
