//! Checks of the checkpoint's tensors: all are read, all are finite, and all equal a reference's.

use std::collections::BTreeMap;
use std::ops::Range;

use super::check::{Check, first_few};
use super::rows::{RowSums, RowsFault};

/// The name of the check that all weights are finite.
pub(super) const FINITE: &str = "weights finite";

/// A tensor of the checkpoint that is verified.
#[derive(Debug, Clone)]
pub struct OurTensor {
    /// Its name in a Hugging Face checkpoint.
    pub name: String,
    /// The sums of its rows; `None` if the decoder does not compute with it.
    pub rows: Option<RowSums>,
}

/// Checks that all tensors of the checkpoint are read.
pub(super) fn all_are_read(ours: &[OurTensor]) -> Check {
    let unread = ours.iter().filter(|tensor| tensor.rows.is_none());
    let unread: Vec<String> = unread.map(|tensor| format!("`{}`", tensor.name)).collect();
    let read = ours.len() - unread.len();
    match unread.is_empty() {
        true => Check::pass("tensors read", format!("all {read}")).measured(0.0, 0.0),
        false => Check::fail(
            "tensors read",
            format!("{read} are read, {} are not: {}", unread.len(), first_few(&unread)),
            "config.json describes another model than the weights (a bias or a norm that it does not ask for), or the family has \
             parts that are not supported",
        )
        .measured(unread.len() as f64, 0.0),
    }
}

/// Checks that all weights are finite.
pub(super) fn all_are_finite(ours: &[OurTensor]) -> Check {
    let broken = |tensor: &OurTensor| {
        let row = tensor.rows.as_ref()?.not_finite().next()?;
        Some(format!("`{}` in row {row}", tensor.name))
    };
    let broken: Vec<String> = ours.iter().filter_map(broken).collect();
    match broken.is_empty() {
        true => Check::pass(FINITE, "no NaN, no infinity").measured(0.0, 0.0),
        false => Check::fail(
            FINITE,
            format!("NaN or infinite: {}", first_few(&broken)),
            "the file is damaged, or was converted with a type of too small a range: download or convert it again",
        )
        .measured(broken.len() as f64, 0.0),
    }
}

/// Checks that the tensors equal the reference's, row by row. `theirs` holds row sums by name.
pub(super) fn are_those_of(ours: &[OurTensor], theirs: &BTreeMap<String, Vec<f64>>, head_dim: usize) -> Check {
    const NAME: &str = "tensors";
    let mut faults = Vec::new();
    let (mut compared, mut only_ours) = (0, Vec::new());
    for tensor in ours {
        match (&tensor.rows, theirs.get(&tensor.name)) {
            (Some(rows), Some(sums)) => {
                compared += 1;
                faults.extend(rows.compared(sums).map(|fault| told(tensor, rows, &fault, theirs, head_dim)));
            }
            (None, Some(_)) => faults.push(format!("`{}` is not read, and transformers reads it", tensor.name)),
            (Some(_), None) => only_ours.push(format!("`{}`", tensor.name)),
            (None, None) => {}
        }
    }
    let known = |name: &&String| !ours.iter().any(|tensor| tensor.name == **name);
    let only_theirs: Vec<String> = theirs.keys().filter(known).map(|name| format!("`{name}`")).collect();
    if !faults.is_empty() {
        let found = format!("{} of {compared} differ: {}", faults.len(), first_few(&faults));
        let advice = "the weights are not those that the reference was made of, or were converted or are named wrongly";
        return Check::fail(NAME, found, advice).measured(faults.len() as f64, 0.0);
    }
    if compared == 0 {
        return Check::fail(
            NAME,
            "no tensor has the name of one of the reference's",
            "make the reference of this model",
        );
    }
    let mut found = format!("all {compared} equal, row by row");
    for (whose, names) in [("only read here", only_ours), ("only in the reference", only_theirs)] {
        if !names.is_empty() {
            found += &format!("; {whose}, by name: {}", first_few(&names));
        }
    }
    Check::pass(NAME, found).measured(0.0, 0.0)
}

/// Describes a fault of a tensor.
fn told(
    tensor: &OurTensor,
    rows: &RowSums,
    fault: &RowsFault,
    theirs: &BTreeMap<String, Vec<f64>>,
    head_dim: usize,
) -> String {
    let name = &tensor.name;
    if let Some((other, _)) = theirs.iter().find(|(other, sums)| *other != name && rows.are_equal(sums)) {
        return format!("`{name}` holds the numbers of the reference's `{other}`");
    }
    let heads = heads_of(name).then_some(head_dim);
    match fault {
        RowsFault::Count { ours, theirs } => format!("`{name}` has {ours} rows, the reference's {theirs}"),
        RowsFault::Reordered(ranges) => format!("`{name}` has its rows in another order: {}", places(ranges, heads)),
        RowsFault::Different(ranges) => format!("`{name}` differs in {}", places(ranges, heads)),
    }
}

/// Whether this tensor's rows are those of one head after the other.
fn heads_of(name: &str) -> bool {
    ["q_proj", "k_proj", "v_proj"].iter().any(|part| name.contains(part))
}

/// Describes rows, with the heads that they belong to.
fn places(ranges: &[Range<usize>], head_dim: Option<usize>) -> String {
    let words: Vec<String> = ranges.iter().map(|r| format!("{}..{}", r.start, r.end)).collect();
    let rows = format!("rows {}", first_few(&words));
    let Some(head_dim) = head_dim else { return rows };
    let mut heads: Vec<usize> = ranges.iter().flat_map(|r| r.start / head_dim..=(r.end - 1) / head_dim).collect();
    heads.dedup();
    let words: Vec<String> = heads.iter().map(usize::to_string).collect();
    let noun = if heads.len() == 1 { "head" } else { "heads" };
    format!("{rows} ({noun} {})", first_few(&words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix of 8 rows of 3 numbers.
    fn matrix(seed: usize) -> Vec<f32> {
        (0..24).map(|i| ((i * 7 + seed * 13) % 31) as f32).collect()
    }

    fn tensor(name: &str, values: &[f32]) -> OurTensor {
        OurTensor { name: name.to_owned(), rows: Some(RowSums::new(values, &[values.len() / 3, 3])) }
    }

    fn reference() -> BTreeMap<String, Vec<f64>> {
        let rows = |seed| RowSums::new(&matrix(seed), &[8, 3]).sums;
        [("a.q_proj.weight", 1), ("a.norm.weight", 2), ("b.norm.weight", 3)]
            .map(|(n, s)| (n.to_owned(), rows(s)))
            .into()
    }

    fn ours() -> Vec<OurTensor> {
        vec![
            tensor("a.q_proj.weight", &matrix(1)),
            tensor("a.norm.weight", &matrix(2)),
            tensor("b.norm.weight", &matrix(3)),
        ]
    }

    #[test]
    fn equal_tensors_pass() {
        let check = are_those_of(&ours(), &reference(), 2);
        assert_eq!((check.is_failure(), check.found.as_str()), (false, "all 3 equal, row by row"));
    }

    #[test]
    fn a_permuted_head_is_named() {
        let mut values = matrix(1);
        let (first, rest) = values.split_at_mut(6);
        first.swap_with_slice(&mut rest[6..12]);
        let ours = [&[tensor("a.q_proj.weight", &values)], &ours()[1..]].concat();
        let check = are_those_of(&ours, &reference(), 2);
        assert_eq!(
            check.found,
            "1 of 3 differ: `a.q_proj.weight` has its rows in another order: rows 0..2, 4..6 (heads 0, 2)"
        );
        assert!(check.is_failure());
    }

    #[test]
    fn swapped_norms_are_named_both() {
        let ours = [&ours()[..1], &[tensor("a.norm.weight", &matrix(3)), tensor("b.norm.weight", &matrix(2))]].concat();
        let found = are_those_of(&ours, &reference(), 2).found;
        assert!(found.contains("`a.norm.weight` holds the numbers of the reference's `b.norm.weight`"), "{found}");
        assert!(found.contains("`b.norm.weight` holds the numbers of the reference's `a.norm.weight`"), "{found}");
    }

    #[test]
    fn what_is_not_read_is_named() {
        let mut ours = ours();
        ours[2].rows = None;
        assert_eq!(all_are_read(&ours).found, "2 are read, 1 are not: `b.norm.weight`");
        let check = are_those_of(&ours, &reference(), 2);
        assert_eq!(check.found, "1 of 2 differ: `b.norm.weight` is not read, and transformers reads it");
        assert!(are_those_of(&ours[..0], &reference(), 2).is_failure(), "no name in common");
    }

    #[test]
    fn fewer_rows_and_broken_numbers_are_named() {
        let cut = [&[tensor("a.q_proj.weight", &matrix(1)[..18])], &ours()[1..]].concat();
        let found = are_those_of(&cut, &reference(), 2).found;
        assert!(found.ends_with("`a.q_proj.weight` has 6 rows, the reference's 8"), "{found}");
        let mut values = matrix(2);
        values[5] = f32::NAN;
        let check = all_are_finite(&[tensor("a.norm.weight", &values)]);
        assert_eq!((check.is_failure(), check.found.as_str()), (true, "NaN or infinite: `a.norm.weight` in row 1"));
        assert!(!all_are_finite(&ours()).is_failure());
    }
}
