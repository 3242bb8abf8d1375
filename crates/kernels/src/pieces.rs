//! Splits long contexts into pieces and distributes them over threads, so that all cores work on one step even if there are more
//! cores than KV heads.
//!
//! Pieces do not depend on the number of threads, so neither do results.

use spattn_base::clock;

/// Number of tokens in a piece. A context of at most one piece stays on one thread.
pub const PIECE: usize = 8192;

/// Fills `out: [row][columns]`, [`PIECE`] columns at a time. `work` gets the piece's first column, and the piece's part of every row.
///
/// # Panics
/// If the length of `out` is not a multiple of `columns`.
pub fn deal_columns(out: &mut [f32], columns: usize, work: impl Fn(usize, &mut [&mut [f32]]) + Sync) {
    if columns == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(columns), "{} outputs are no multiple of {columns} columns", out.len());
    if columns <= PIECE {
        return work(0, &mut out.chunks_exact_mut(columns).collect::<Vec<_>>());
    }
    let mut pieces: Vec<Vec<&mut [f32]>> = (0..columns.div_ceil(PIECE)).map(|_| Vec::new()).collect();
    for row in out.chunks_exact_mut(columns) {
        pieces.iter_mut().zip(row.chunks_mut(PIECE)).for_each(|(piece, part)| piece.push(part));
    }
    let firsts = (0..).step_by(PIECE);
    clock::deal(firsts.zip(pieces).collect::<Vec<_>>(), |(first, mut rows)| work(first, &mut rows));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_filled_once_and_in_its_place() {
        for (rows, columns) in [(1, 1), (3, 10), (2, PIECE), (1, PIECE + 1), (3, 2 * PIECE + 77), (0, 5), (2, 0)] {
            let mut out = vec![0.0; rows * columns];
            deal_columns(&mut out, columns, |first, parts| {
                for (row, part) in parts.iter_mut().enumerate() {
                    assert!(part.len() <= PIECE, "no more than a piece");
                    (first..).zip(part.iter_mut()).for_each(|(column, x)| *x += (1 + row * 100_000 + column) as f32);
                }
            });
            let place = |i: usize| (1 + i / columns * 100_000 + i % columns) as f32;
            assert!(out.iter().enumerate().all(|(i, x)| *x == place(i)), "{rows} of {columns}");
        }
    }
}
