//! Rows that are compared with each other.

use crate::report::format::distinct;
use crate::report::plots::{end_of, suffix};
use spattn_lab::bench::{Bench, BenchRow};

/// The rows of one operation, shape, device and batch, in the order of the bench; never empty.
pub struct Scene<'a> {
    /// Its rows.
    pub rows: Vec<&'a BenchRow>,
}

/// The scenes of a benchmark, in the order of their first rows.
pub fn scenes(bench: &Bench) -> Vec<Scene<'_>> {
    let of = |place| Scene { rows: bench.rows.iter().filter(|row| self::place(row) == place).collect() };
    distinct(bench.rows.iter().map(place)).into_iter().map(of).collect()
}

/// What identifies a scene: operation, shape, device and batch.
fn place(row: &BenchRow) -> (&str, &str, &str, usize) {
    (&row.op, &row.shape, &row.device, row.batch)
}

impl Scene<'_> {
    /// What all rows have in common, for a title.
    pub fn title(&self) -> String {
        let (op, shape, device, batch) = place(self.rows[0]);
        let parts = [op.to_owned(), end_of(shape), format!("batch {batch}"), device.to_owned()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// The rows' storage types, threads and layers, as text.
    pub fn conditions(&self) -> String {
        let counted = |of: fn(&BenchRow) -> usize, one: &str| {
            let counts = distinct(self.rows.iter().map(|row| of(row)));
            let plural = if counts == [1] { "" } else { "s" };
            format!("{} {one}{plural}", counts.iter().map(usize::to_string).collect::<Vec<_>>().join("/"))
        };
        let types = distinct(self.rows.iter().map(|row| row.dtype.as_str())).join("/");
        [types, counted(|row| row.threads, "thread"), counted(|row| row.layers, "layer")].join(", ")
    }

    /// The contexts, ascending.
    pub fn contexts(&self) -> Vec<usize> {
        let mut contexts = distinct(self.rows.iter().map(|row| row.context));
        contexts.sort_unstable();
        contexts
    }

    /// The rows at a context, in the order of the benchmark.
    pub fn at(&self, context: usize) -> Vec<&BenchRow> {
        self.rows.iter().copied().filter(|row| row.context == context).collect()
    }

    /// The file name `kind.svg`, with what distinguishes this scene from the others after
    /// `kind`.
    pub fn file_name(&self, kind: &str, all: &[Scene]) -> String {
        let here = place(self.rows[0]);
        let others: Vec<_> = all.iter().map(|scene| place(scene.rows[0])).collect();
        let suffix = suffix(&[
            (others.iter().any(|other| other.0 != here.0), here.0),
            (others.iter().any(|other| other.1 != here.1), here.1),
            (others.iter().any(|other| other.2 != here.2), here.2),
            (others.iter().any(|other| other.3 != here.3), &format!("batch{}", here.3)),
        ]);
        format!("{kind}{suffix}.svg")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench, full};
    use super::*;

    #[test]
    fn scenes_are_kept_apart_and_named() {
        let rows = vec![full(4096), BenchRow { batch: 8, threads: 4, ..full(4096) }, full(1024)];
        let bench = bench(rows);
        let scenes = scenes(&bench);
        assert_eq!(scenes.iter().map(|scene| scene.rows.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(scenes[0].title(), "attention, llama3-8b, batch 1, cpu");
        assert_eq!((scenes[0].contexts(), scenes[0].at(1024).len()), (vec![1024, 4096], 1));
        assert_eq!(scenes[1].conditions(), "f32, 4 threads, 1 layer");
        assert_eq!(scenes[1].file_name("roofline", &scenes), "roofline_batch8.svg");
    }
}
