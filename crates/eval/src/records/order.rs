//! The order in which tasks, methods and names with numbers are listed.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::record::{Record, is_reference};

/// The order of RULER's tasks, as its paper lists them; other tasks follow in natural order.
const TASK_ORDER: [&str; 13] = [
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
];

/// The user's order of methods, by method name and parameters.
pub struct MethodOrder<'o>(HashMap<(&'o str, &'o str), usize>);

impl<'o> MethodOrder<'o> {
    /// Makes the order from pairs of method name and parameters. The first of equal pairs counts.
    pub fn of(order: &'o [(String, String)]) -> Self {
        let pairs = order.iter().enumerate().rev();
        Self(pairs.map(|(at, (method, params))| ((method.as_str(), params.as_str()), at)).collect())
    }

    /// The sort key of a method: `full` first, then methods in the user's order, then the rest.
    pub fn rank(&self, method: &str, params: &str) -> (bool, usize) {
        (!is_reference(method, params), self.0.get(&(method, params)).copied().unwrap_or(usize::MAX))
    }
}

/// Compares records in the order of the summary's rows: by model, protocol, task and length, then `full`, then methods in the user's order,
/// then the rest in natural order.
pub(crate) fn compare(a: &Record, b: &Record, given: &MethodOrder) -> Ordering {
    let method = |r: &Record| given.rank(&r.method, &r.params);
    natural(&a.model, &b.model)
        .then_with(|| natural(&a.protocol, &b.protocol))
        .then_with(|| compare_tasks(&a.task, &b.task))
        .then_with(|| a.length.cmp(&b.length))
        .then_with(|| method(a).cmp(&method(b)))
        .then_with(|| natural(&a.method, &b.method))
        .then_with(|| natural(&a.params, &b.params))
}

/// Compares task names: by family; within a family, RULER's tasks come first in their own order, then the others in natural order.
pub fn compare_tasks(a: &str, b: &str) -> Ordering {
    let split = |task: &str| task.rsplit_once('/').map_or((String::new(), task.to_owned()), owned);
    let rank = |name: &str| TASK_ORDER.iter().position(|task| *task == name).unwrap_or(TASK_ORDER.len());
    let ((family_a, a), (family_b, b)) = (split(a), split(b));
    natural(&family_a, &family_b).then_with(|| rank(&a).cmp(&rank(&b))).then_with(|| natural(&a, &b))
}

fn owned((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Compares texts, with numbers in them by value: `k=8` before `k=16`, `p=0.5` before `p=0.95`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        match (piece(&mut left), piece(&mut right)) {
            (None, None) => return a.cmp(b),
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(l), Some(r)) => match compare_pieces(l, r) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
    }
}

fn compare_pieces(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    }
}

/// Splits off the leading number (digits with at most one decimal point between them), or the text before the next number.
fn piece<'a>(text: &mut &'a str) -> Option<&'a str> {
    let bytes = text.as_bytes();
    let is_number = bytes.first()?.is_ascii_digit();
    let mut end = bytes.iter().position(|b| b.is_ascii_digit() != is_number).unwrap_or(bytes.len());
    let is_point = is_number && bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
    if is_point {
        end += 1 + bytes[end + 1..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len() - end - 1);
    }
    let (front, rest) = text.split_at(end);
    *text = rest;
    Some(front)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_text_sort_by_value() {
        let mut params = ["k=16", "p=0.95", "k=8", "p=0.5", "k=8,page=16", "", "K=10,L=150", "K=10,L=75"];
        params.sort_by(|a, b| natural(a, b));
        assert_eq!(params, ["", "K=10,L=75", "K=10,L=150", "k=8", "k=8,page=16", "k=16", "p=0.5", "p=0.95"]);
    }

    #[test]
    fn tasks_sort_as_their_benchmark_lists_them() {
        let mut tasks = ["ruler/cwe", "ruler/qa_1", "longbench/qasper", "ruler/vt", "ruler/niah_multikey_2", "mcq/b"];
        tasks.sort_by(|a, b| compare_tasks(a, b));
        assert_eq!(
            tasks,
            ["longbench/qasper", "mcq/b", "ruler/niah_multikey_2", "ruler/vt", "ruler/cwe", "ruler/qa_1"]
        );
    }

    #[test]
    fn a_point_is_part_of_a_number_only_between_digits() {
        let pieces = |mut text: &'static str| -> Vec<&str> { std::iter::from_fn(|| piece(&mut text)).collect() };
        assert_eq!(pieces("p=12.50x"), ["p=", "12.50", "x"]);
        assert_eq!(pieces("1.2.3"), ["1.2", ".", "3"]);
        assert_eq!(pieces("v2.x 7."), ["v", "2", ".x ", "7", "."]);
        assert_eq!(pieces("0.125"), ["0.125"]);
        assert_eq!(pieces(""), [""; 0]);
    }

    #[test]
    fn rows_are_listed_by_model_protocol_task_length_and_method() {
        use crate::records::testing::record;
        type Change = fn(&mut Record);
        let base = || Record { params: "k=8".into(), ..record("ruler/vt", "quest", 0, 1.0) };
        let order = [("topk".to_owned(), "k=8".to_owned())];
        let order = MethodOrder::of(&order);
        // Each change moves the record back in the order, whatever the later fields are.
        let later: [Change; 6] = [
            |r| (r.model, r.protocol) = ("c".into(), "a".into()),
            |r| (r.protocol, r.task) = ("z".into(), "a/a".into()),
            |r| (r.task, r.length) = ("ruler/cwe".into(), 1),
            |r| (r.length, r.method, r.params) = (5000, "full".into(), "".into()),
            |r| (r.method, r.params) = ("snapkv".into(), "k=1".into()),
            |r| r.params = "k=16".into(),
        ];
        for change in later {
            let mut after = base();
            change(&mut after);
            assert_eq!(compare(&base(), &after, &order), Ordering::Less, "{after:?}");
            assert_eq!(compare(&after, &base(), &order), Ordering::Greater);
        }
        let of = |method: &str| Record { method: method.into(), ..base() };
        let full = Record { params: "".into(), ..of("full") };
        assert_eq!(compare(&full, &of("topk"), &order), Ordering::Less);
        assert_eq!(compare(&of("topk"), &of("quest"), &order), Ordering::Less, "as it was given");
        let other = Record { params: "k=9".into(), ..of("topk") };
        assert_eq!(compare(&other, &of("quest"), &order), Ordering::Greater, "of other params");
        assert_eq!(compare(&base(), &base(), &order), Ordering::Equal);
    }
}
