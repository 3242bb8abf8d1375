//! Sums of a tensor's rows, which compare two copies of a tensor without having both.
//!
//! A row's sum weighs each number by its column, so a row with permuted columns has another sum. `scripts/verify_hf.py` computes the same.

use std::ops::Range;

use rayon::prelude::*;

/// The largest difference of two sums that passes, relative to the sum of absolute terms; only dequantised numbers are rounded.
const TOLERANCE: f64 = 1e-6;

/// The sums of a tensor's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSums {
    /// The sum of each row's numbers, each times the weight of its column.
    pub sums: Vec<f64>,
    /// The same sums with absolute terms: the scale of rounding.
    pub sizes: Vec<f64>,
}

/// How a tensor differs from another copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowsFault {
    /// The numbers of rows differ.
    Count { ours: usize, theirs: usize },
    /// These rows differ, but the other copy has all rows at other places.
    Reordered(Vec<Range<usize>>),
    /// These rows differ.
    Different(Vec<Range<usize>>),
}

/// Returns a number from -1 to 1 for each column: SplitMix64 of its index.
fn column_weights(columns: usize) -> Vec<f64> {
    let weight = |column: usize| {
        let mut z = (column as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 * 2.0_f64.powi(-52) - 1.0
    };
    (0..columns).map(weight).collect()
}

impl RowSums {
    /// Sums the rows of a tensor, row-major. If the tensor has one axis, each number is a row.
    pub fn new(values: &[f32], shape: &[usize]) -> Self {
        let columns = if shape.len() > 1 { shape[shape.len() - 1].max(1) } else { 1 };
        let weights = column_weights(columns);
        let sums = |row: &[f32]| {
            let terms = row.iter().zip(&weights).map(|(x, weight)| f64::from(*x) * weight);
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        };
        let (sums, sizes) = values.par_chunks(columns).map(sums).unzip();
        Self { sums, sizes }
    }

    /// Returns the rows with a NaN or an infinite number.
    pub(super) fn not_finite(&self) -> impl Iterator<Item = usize> + '_ {
        self.sizes.iter().enumerate().filter(|(_, size)| !size.is_finite()).map(|(row, _)| row)
    }

    /// Whether row `i` has this sum.
    fn is_equal(&self, i: usize, theirs: f64) -> bool {
        (self.sums[i] - theirs).abs() <= TOLERANCE * self.sizes[i]
    }

    /// Whether all rows equal those of another copy.
    pub(super) fn are_equal(&self, theirs: &[f64]) -> bool {
        self.sums.len() == theirs.len() && theirs.iter().enumerate().all(|(i, sum)| self.is_equal(i, *sum))
    }

    /// Returns how the rows differ from those of another copy; `None` if they do not.
    pub(super) fn compared(&self, theirs: &[f64]) -> Option<RowsFault> {
        if self.sums.len() != theirs.len() {
            return Some(RowsFault::Count { ours: self.sums.len(), theirs: theirs.len() });
        }
        let different = (0..theirs.len()).filter(|i| !self.is_equal(*i, theirs[*i]));
        let ranges = ranges(different);
        match ranges.is_empty() {
            true => None,
            false if self.sorted().are_equal(&sorted(theirs)) => Some(RowsFault::Reordered(ranges)),
            false => Some(RowsFault::Different(ranges)),
        }
    }

    fn sorted(&self) -> Self {
        let mut both: Vec<(f64, f64)> = self.sums.iter().copied().zip(self.sizes.iter().copied()).collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (sums, sizes) = both.into_iter().unzip();
        Self { sums, sizes }
    }
}

fn sorted(sums: &[f64]) -> Vec<f64> {
    let mut sums = sums.to_vec();
    sums.sort_by(f64::total_cmp);
    sums
}

/// Merges rising numbers into ranges.
fn ranges(rows: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for row in rows {
        match ranges.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => ranges.push(row..row + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_weights_of_the_script() {
        // The first outputs of SplitMix64 for seed 0, as published.
        let published = [0xE220_A839_7B1D_CDAF_u64, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        let expected = published.map(|z| (z >> 11) as f64 / (1_u64 << 52) as f64 - 1.0);
        assert_eq!(column_weights(3), expected);
    }

    #[test]
    fn rows_that_moved_are_told_from_rows_that_changed() {
        let values: Vec<f32> = (0..12).map(|i| (i * i) as f32).collect();
        let sums = |values: &[f32]| RowSums::new(values, &[6, 2]);
        let theirs = sums(&values).sums;
        assert_eq!(sums(&values).compared(&theirs), None);
        let mut moved = values.clone();
        moved.swap(4, 8);
        moved.swap(5, 9);
        assert_eq!(sums(&moved).compared(&theirs), Some(RowsFault::Reordered(vec![2..3, 4..5])));
        let mut changed = values.clone();
        changed[6] += 0.01;
        assert_eq!(sums(&changed).compared(&theirs), Some(RowsFault::Different(std::iter::once(3..4).collect())));
        let mut columns = values.clone();
        columns.swap(10, 11);
        assert_eq!(sums(&columns).compared(&theirs), Some(RowsFault::Different(std::iter::once(5..6).collect())));
        let fewer = RowSums::new(&values[..10], &[5, 2]);
        assert_eq!(fewer.compared(&theirs), Some(RowsFault::Count { ours: 5, theirs: 6 }));
    }

    #[test]
    fn broken_rows_are_found() {
        let sums = RowSums::new(&[1.0, f32::NAN, 2.0, 3.0, f32::INFINITY, 0.0], &[3, 2]);
        assert_eq!(sums.not_finite().collect::<Vec<_>>(), [0, 2]);
    }
}
