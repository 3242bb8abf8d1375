use super::*;

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Computes row by row in f64, from numbers rounded as `half` rounds
/// them.
fn exact(x: &[f32], w: &[f32], columns: usize) -> Vec<f64> {
    let narrow = |x: &f32| f64::from(bf16::from_f32(*x).to_f32());
    let rows = |x: &[f32]| x.chunks(columns).map(|row| row.iter().map(narrow).collect()).collect::<Vec<Vec<f64>>>();
    let (x, w) = (rows(x), rows(w));
    x.iter().flat_map(|x| w.iter().map(|w| x.iter().zip(w).map(|(a, b)| a * b).sum())).collect()
}

#[test]
fn numbers_are_rounded_to_the_nearest_to_even() {
    let special = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let ties = (0..70_000u32).map(|i| f32::from_bits(0x3f7f_0000 + i * 0x137));
    for x in special.into_iter().chain(ties) {
        assert_eq!(rounded(x), bf16::from_f32(x).to_bits(), "{x:e}");
    }
    assert!(bf16::from_bits(rounded(f32::NAN)).is_nan());
    assert!(bf16::from_bits(rounded(f32::from_bits(0x7fff_ffff))).is_nan());
}

#[test]
fn every_unit_multiplies_every_shape() {
    for (rows, columns, outputs) in
        [(1, 32, 32), (1, 1, 1), (3, 33, 40), (16, 512, 64), (17, 545, 31), (32, 64, 32), (50, 1100, 70), (65, 96, 200)]
    {
        let (x, w) = (noise(rows * columns, 1), noise(outputs * columns, 2));
        let (expected, bound) = (exact(&x, &w, columns), 1e-6 * columns as f64);
        let (left, right) = (LeftTiles::new(&x, columns), RightTiles::of_rows(&w, columns));
        for &unit in units() {
            let mut out = vec![f32::NAN; rows * outputs];
            multiply_by(unit, &left, &right, &mut out);
            for (i, (got, exact)) in out.iter().zip(&expected).enumerate() {
                let error = (f64::from(*got) - exact).abs();
                assert!(error < bound, "{unit:?} {rows}x{columns}x{outputs}: {got} for {exact} at {i}");
            }
        }
    }
}

#[test]
fn a_row_is_the_same_bits_whatever_rows_and_threads_there_are() {
    let (rows, columns, outputs) = (53, 1096, 4100);
    let (x, w) = (noise(rows * columns, 3), noise(outputs * columns, 4));
    let right = RightTiles::of_rows(&w, columns);
    for &unit in units() {
        let product = |x: &[f32], threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![f32::NAN; x.len() / columns * outputs];
            pool.install(|| multiply_by(unit, &LeftTiles::new(x, columns), &right, &mut out));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let all = product(&x, 1);
        assert_eq!(all, product(&x, 3), "{unit:?}");
        for row in [0, 15, 16, 40, 52] {
            let alone = product(&x[row * columns..][..columns], 2);
            assert_eq!(alone, all[row * outputs..][..outputs], "{unit:?} row {row}");
        }
    }
}

#[test]
fn parts_are_those_of_the_whole_and_may_be_added() {
    let (rows, columns, outputs) = (40, 320, 96);
    let (x, w) = (noise(rows * 128, 5), noise(outputs * columns, 6));
    let tiles = [RightTiles::of_rows(&w, columns), {
        let transposed: Vec<f32> = (0..columns * outputs).map(|i| w[i % outputs * columns + i / outputs]).collect();
        RightTiles::of_columns(&transposed, outputs, 64)
    }];
    let mut left = LeftTiles::zeros(48, 128);
    left.put(&x, 128, rows);
    let part: Vec<f32> = w.chunks(columns).skip(32).flat_map(|row| row[96..224].to_vec()).collect();
    let expected = exact(&x, &part, 128);
    for &unit in units() {
        for right in &tiles {
            let (mut out, stride) = (vec![0.5f32; rows * 70], 70);
            for adds in [false, true] {
                let part = Part { x: &left, rows, w: right, outputs: 32..96, first: 96, depth: 128, adds };
                Multiplier::of(unit).multiply(&part, &mut out, stride);
                let times = if adds { 2.0 } else { 1.0 };
                for (row, expected) in out.chunks(stride).zip(expected.chunks(64)) {
                    assert!(
                        row.iter().zip(expected).all(|(o, e)| (f64::from(*o) - times * e).abs() < 1e-3),
                        "{unit:?}"
                    );
                    assert_eq!(row[64..], [0.5; 6], "what is not of the part is left alone");
                }
            }
        }
    }
}

#[test]
fn a_right_factor_is_read_as_it_was_stored() {
    let (outputs, columns) = (37, 45);
    let w: Vec<bf16> = noise(outputs * columns, 7).into_iter().map(bf16::from_f32).collect();
    let tiles = RightTiles::of_rows(&w, columns);
    let mut row = vec![f32::NAN; columns];
    for (output, expected) in w.chunks(columns).enumerate() {
        tiles.read_row(output, &mut row);
        assert!(row.iter().zip(expected).all(|(a, b)| *a == b.to_f32()));
    }
}
