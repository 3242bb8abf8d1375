//! Rules by which the values of a column in several rows become one value of a mean over tasks.
//!
//! A rule is implemented only for the types of fields that it fits, so that a column with a wrong rule does not compile.

use spattn_stats::mean;

/// A rule: makes one value from the rows of one setting on several tasks.
pub trait OverTasks<R, T> {
    /// The rule's name in the list of columns.
    fn name(&self) -> &'static str;

    /// The value over `rows`; `field` gets the column's value of a row.
    fn value(&self, rows: &[&R], field: fn(&R) -> &T) -> T;
}

/// The mean over tasks with equal weights; empty if a task has no value, because a mean of some tasks would stand beside
/// means of all.
pub struct Mean;

impl<R> OverTasks<R, f64> for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn value(&self, rows: &[&R], field: fn(&R) -> &f64) -> f64 {
        mean(&rows.iter().map(|row| *field(row)).collect::<Vec<_>>())
    }
}

impl<R> OverTasks<R, Option<f64>> for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn value(&self, rows: &[&R], field: fn(&R) -> &Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = rows.iter().map(|row| *field(row)).collect();
        values.map(|values| mean(&values))
    }
}

/// The sum over tasks.
pub struct Sum;

impl<R> OverTasks<R, usize> for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn value(&self, rows: &[&R], field: fn(&R) -> &usize) -> usize {
        rows.iter().map(|row| *field(row)).sum()
    }
}

/// The value that all tasks have in common; empty if they differ.
pub struct Common;

impl<R, T: Clone + PartialEq + Default> OverTasks<R, T> for Common {
    fn name(&self) -> &'static str {
        "if equal"
    }

    fn value(&self, rows: &[&R], field: fn(&R) -> &T) -> T {
        let Some((first, others)) = rows.split_first() else { return T::default() };
        let first = field(first);
        if others.iter().all(|row| field(row) == first) { first.clone() } else { T::default() }
    }
}

/// No value: the column has no meaning over several tasks.
pub struct Never;

impl<R, T: Default> OverTasks<R, T> for Never {
    fn name(&self) -> &'static str {
        ""
    }

    fn value(&self, _rows: &[&R], _field: fn(&R) -> &T) -> T {
        T::default()
    }
}

/// A value computed from several columns of the rows together, such as a mean with its interval.
pub struct Joint<R: 'static>(pub fn(&[&R]) -> Option<f64>);

impl<R> OverTasks<R, f64> for Joint<R> {
    fn name(&self) -> &'static str {
        "joint"
    }

    fn value(&self, rows: &[&R], _field: fn(&R) -> &f64) -> f64 {
        (self.0)(rows).unwrap_or_default()
    }
}

impl<R> OverTasks<R, Option<f64>> for Joint<R> {
    fn name(&self) -> &'static str {
        "joint"
    }

    fn value(&self, rows: &[&R], _field: fn(&R) -> &Option<f64>) -> Option<f64> {
        (self.0)(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T, U: OverTasks<T, T>>(rule: U, values: &[T]) -> T {
        rule.value(&values.iter().collect::<Vec<_>>(), |value| value)
    }

    #[test]
    fn a_mean_of_what_some_tasks_lack_is_empty() {
        assert_eq!(of(Mean, &[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(of(Mean, &[Some(1.0), Some(2.0)]), Some(1.5));
        assert_eq!(of(Mean, &[Some(1.0), None]), None);
        assert_eq!(of(Sum, &[1usize, 2]), 3);
    }

    #[test]
    fn what_tasks_differ_in_is_empty() {
        assert_eq!(of(Common, &["a".to_owned(), "a".to_owned()]), "a");
        assert_eq!(of(Common, &["a".to_owned(), "b".to_owned()]), "");
        assert_eq!(of(Common, &[Some(1.0), None]), None);
        assert_eq!(of(Never, &[Some(1.0), Some(1.0)]), None);
    }
}
