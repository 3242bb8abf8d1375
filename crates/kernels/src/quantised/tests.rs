use half::f16;

use super::*;
use crate::linear::linear_rows;

/// Random bytes, with scales of realistic size.
fn blocks(block_type: BlockType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut bytes: Vec<u8> = (0..count * block_type.bytes()).map(|_| random() as u8).collect();
    // The positions of the block's f16 numbers.
    let halves: &[usize] = match block_type {
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q6K => &[208],
    };
    for block in bytes.chunks_exact_mut(block_type.bytes()) {
        for at in halves {
            let scale = f16::from_f32((f64::from(random()) / f64::from(1u32 << 31) * 0.02 - 0.01) as f32);
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

fn half_at(block: &[u8], at: usize) -> f64 {
    f64::from(f16::from_le_bytes([block[at], block[at + 1]]))
}

/// Returns scale and offset of group `group` of a 4-bit or 5-bit block with 256
/// numbers.
fn group_scales(block: &[u8], group: usize) -> (f64, f64) {
    let packed = &block[4..16];
    let (scale, offset) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => (packed[group + 4] & 15 | packed[group - 4] >> 6 << 4, packed[group + 4] >> 4 | packed[group] >> 6 << 4),
    };
    (half_at(block, 0) * f64::from(scale), -half_at(block, 2) * f64::from(offset))
}

/// Returns number `i` of a block, exactly.
fn number(block_type: BlockType, block: &[u8], i: usize) -> f64 {
    let nibble = |codes: usize, i: usize| (block[codes + i % 16] >> (4 * (i / 16)) & 15) as i32;
    let fifth = |bits: usize| i32::from(block[bits + i / 8] >> (i % 8) & 1) << 4;
    // For the larger blocks: the group, the position within it, and the four
    // bits.
    let (group, place) = (i / 32, i % 32);
    let four = |codes: usize| i32::from(block[codes + 32 * (group / 2) + place] >> (4 * (group % 2)) & 15);
    match block_type {
        BlockType::Q4_0 => half_at(block, 0) * f64::from(nibble(2, i) - 8),
        BlockType::Q4_1 => half_at(block, 0) * f64::from(nibble(4, i)) + half_at(block, 2),
        BlockType::Q5_0 => half_at(block, 0) * f64::from((nibble(6, i) | fifth(2)) - 16),
        BlockType::Q5_1 => half_at(block, 0) * f64::from(nibble(8, i) | fifth(4)) + half_at(block, 2),
        BlockType::Q8_0 => half_at(block, 0) * f64::from(block[2 + i].cast_signed()),
        BlockType::Q4K => {
            let (scale, offset) = group_scales(block, group);
            scale * f64::from(four(16)) + offset
        }
        BlockType::Q5K => {
            let (scale, offset) = group_scales(block, group);
            scale * f64::from(four(48) | i32::from(block[16 + place] >> group & 1) << 4) + offset
        }
        BlockType::Q6K => {
            let (half, quarter) = (i / 128, i % 128 / 32);
            let lower = block[64 * half + 32 * (quarter % 2) + place] >> (4 * (quarter / 2)) & 15;
            let higher = block[128 + 32 * half + place] >> (2 * quarter) & 3;
            let scale = block[192 + i / 16].cast_signed();
            half_at(block, 208) * f64::from(scale) * f64::from(i32::from(lower | higher << 4) - 32)
        }
    }
}

fn numbers(block_type: BlockType, blocks: &[u8]) -> Vec<f64> {
    let of_block = |block| (0..block_type.numbers()).map(move |i| number(block_type, block, i));
    blocks.chunks_exact(block_type.bytes()).flat_map(of_block).collect()
}

fn noise(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn dequantised(block_type: BlockType, blocks: &[u8]) -> Vec<f32> {
    let mut wide = vec![f32::NAN; blocks.len() / block_type.bytes() * block_type.numbers()];
    block_type.dequantise(blocks, &mut wide);
    wide
}

#[test]
fn numbers_are_rounded_once() {
    for block_type in BlockType::ALL {
        let blocks = blocks(block_type, 40, 1);
        for (i, (got, exact)) in dequantised(block_type, &blocks).iter().zip(numbers(block_type, &blocks)).enumerate() {
            assert_eq!(*got, exact as f32, "{}: number {i}", block_type.name());
        }
    }
}

#[test]
fn scales_at_the_ends_of_half_precision_are_kept() {
    for block_type in BlockType::ALL {
        for scale in [f16::MAX, f16::MIN, f16::from_bits(1), f16::NEG_ZERO] {
            let mut block = vec![0xFF; block_type.bytes()];
            let at = if block_type == BlockType::Q6K { 208 } else { 0 };
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            if !matches!(block_type, BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::Q6K) {
                block[2..4].copy_from_slice(&scale.to_le_bytes());
            }
            let exact: Vec<f32> = numbers(block_type, &block).iter().map(|number| *number as f32).collect();
            assert_eq!(dequantised(block_type, &block), exact, "{}: {scale}", block_type.name());
        }
    }
}

#[test]
fn products_are_those_of_the_numbers() {
    for block_type in BlockType::ALL {
        for (rows, outputs, columns) in [(1, 1, 256), (2, 7, 512), (5, 130, 1280), (67, 9, 2560)] {
            let blocks = blocks(block_type, outputs * columns / block_type.numbers(), 2);
            let (x, exact) = (noise(rows * columns), numbers(block_type, &blocks));
            let mut out = vec![f32::NAN; rows * outputs];
            linear_quantised(
                &x,
                &[BlockRows { block_type, layout: RowLayout::Rows, blocks: &blocks }],
                columns,
                &mut out,
            );
            for (i, got) in out.iter().enumerate() {
                let (x, w) = (&x[i / outputs * columns..][..columns], &exact[i % outputs * columns..][..columns]);
                let products = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * w);
                let (sum, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
                assert!((f64::from(*got) - sum).abs() <= 1e-6 * size, "{}: {got} for {sum}", block_type.name());
            }
        }
    }
}

#[test]
fn products_have_the_bits_of_those_with_the_dequantised_matrix() {
    for block_type in BlockType::ALL {
        for (outputs, columns) in [(6, 768), (301, 1536)] {
            let blocks = blocks(block_type, outputs * columns / block_type.numbers(), 3);
            let (x, wide) = (noise(70 * columns), dequantised(block_type, &blocks));
            for rows in [1, 2, 3, 8, 70] {
                let (mut out, mut expected) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
                let x = &x[..rows * columns];
                linear_rows(x, &wide, columns, &mut expected);
                linear_quantised(
                    x,
                    &[BlockRows { block_type, layout: RowLayout::Rows, blocks: &blocks }],
                    columns,
                    &mut out,
                );
                assert_eq!(out, expected, "{}: {rows} rows", block_type.name());
            }
        }
    }
}

#[test]
fn parts_of_several_types_are_one_matrix_on_any_number_of_threads() {
    let columns = 1024;
    let types = [BlockType::Q4K, BlockType::Q6K, BlockType::Q8_0, BlockType::Q5_0];
    let outputs = [1022, 6, 517, 3];
    let all: Vec<Vec<u8>> = types
        .iter()
        .zip(outputs)
        .map(|(block_type, outputs)| blocks(*block_type, outputs * columns / block_type.numbers(), 4))
        .collect();
    let parts: Vec<BlockRows<'_>> = types
        .iter()
        .zip(&all)
        .map(|(block_type, blocks)| BlockRows { block_type: *block_type, layout: RowLayout::Rows, blocks })
        .collect();
    let wide: Vec<f32> = parts.iter().flat_map(|part| dequantised(part.block_type, part.blocks)).collect();
    for rows in [1, 4] {
        let x = noise(rows * columns);
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![f32::NAN; rows * outputs.iter().sum::<usize>()];
            pool.install(|| linear_quantised(&x, &parts, columns, &mut out));
            out
        };
        let mut expected = vec![0.0; rows * outputs.iter().sum::<usize>()];
        linear_rows(&x, &wide, columns, &mut expected);
        for threads in [1, 2, 5] {
            assert_eq!(on(threads), expected, "{rows} rows on {threads} threads");
        }
    }
}

#[test]
#[should_panic(expected = "columns are not whole blocks")]
fn rows_end_with_a_block() {
    let blocks = blocks(BlockType::Q4K, 1, 5);
    linear_quantised(
        &[0.0; 128],
        &[BlockRows { block_type: BlockType::Q4K, layout: RowLayout::Rows, blocks: &blocks }],
        128,
        &mut [0.0; 2],
    );
}

/// Returns the blocks in the layout of whole strips.
fn side_by_side(block_type: BlockType, blocks: &[u8], columns: usize) -> Vec<u8> {
    let mut strips = blocks.to_vec();
    block_type.lay_side_by_side(&mut strips, columns);
    strips
}

fn types_with_strips() -> impl Iterator<Item = (BlockType, usize)> {
    BlockType::ALL.into_iter().filter_map(|block_type| Some((block_type, block_type.strip_rows()?)))
}

#[test]
fn the_larger_blocks_can_be_side_by_side() {
    let types: Vec<BlockType> = types_with_strips().map(|(block_type, _)| block_type).collect();
    assert_eq!(types, [BlockType::Q4K, BlockType::Q5K, BlockType::Q6K]);
}

#[test]
fn rows_of_strips_have_the_bits_of_rows() {
    for (block_type, strip_rows) in types_with_strips() {
        let (rows, columns) = (3 * strip_rows, 1280);
        let blocks = blocks(block_type, rows * columns / block_type.numbers(), 6);
        let strips = side_by_side(block_type, &blocks, columns);
        assert_eq!(strips.len(), blocks.len());
        let own = BlockRows { block_type, layout: RowLayout::Strips, blocks: &strips };
        let plain = BlockRows { block_type, layout: RowLayout::Rows, blocks: &blocks };
        for row in 0..rows {
            let (mut got, mut expected) = (vec![f32::NAN; columns], vec![f32::NAN; columns]);
            own.read_row(row, &mut got);
            plain.read_row(row, &mut expected);
            assert_eq!(got, expected, "{}: row {row}", block_type.name());
            let exact =
                numbers(block_type, &blocks[row * block_type.bytes_of(columns)..][..block_type.bytes_of(columns)]);
            assert!(got.iter().zip(exact).all(|(got, exact)| *got == exact as f32), "{}: row {row}", block_type.name());
        }
    }
}

#[test]
fn products_with_strips_have_the_bits_of_those_with_rows() {
    for (block_type, strip_rows) in types_with_strips() {
        for (strips, columns) in [(1, 256), (3, 1024), (5, 1536), (2, 4352)] {
            let outputs = strips * strip_rows;
            let blocks = blocks(block_type, outputs * columns / block_type.numbers(), 7);
            let strips = side_by_side(block_type, &blocks, columns);
            let x = noise(70 * columns);
            for rows in [0, 1, 2, 3, 4, 5, 8, 9, 70] {
                let product = |layout: RowLayout, blocks: &[u8]| {
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear_quantised(
                        &x[..rows * columns],
                        &[BlockRows { block_type, layout, blocks }],
                        columns,
                        &mut out,
                    );
                    out.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                };
                let (got, expected) = (product(RowLayout::Strips, &strips), product(RowLayout::Rows, &blocks));
                assert_eq!(got, expected, "{}: {rows} rows, {outputs} by {columns}", block_type.name());
            }
        }
    }
}

#[test]
fn strips_and_rows_are_one_matrix_on_any_number_of_threads() {
    let columns = 1024;
    for (block_type, strip_rows) in types_with_strips() {
        let (first, rest) = (65 * strip_rows, 5);
        let blocks = blocks(block_type, (first + rest) * columns / block_type.numbers(), 8);
        let (for_strips, rows) = blocks.split_at(first * block_type.bytes_of(columns));
        let strips = side_by_side(block_type, for_strips, columns);
        let parts = [
            BlockRows { block_type, layout: RowLayout::Strips, blocks: &strips },
            BlockRows { block_type, layout: RowLayout::Rows, blocks: rows },
        ];
        let x = noise(8 * columns);
        let mut expected = vec![0.0; 8 * (first + rest)];
        linear_rows(&x, &dequantised(block_type, &blocks), columns, &mut expected);
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![f32::NAN; expected.len()];
            pool.install(|| linear_quantised(&x, &parts, columns, &mut out));
            assert_eq!(out, expected, "{} on {threads} threads", block_type.name());
        }
    }
}

#[test]
fn the_largest_and_smallest_scales_are_kept_in_strips() {
    for (block_type, strip_rows) in types_with_strips() {
        for scale in [f16::MAX, f16::MIN, f16::from_bits(1), f16::NEG_ZERO] {
            for byte in [0xFF, 0x80] {
                let mut block = vec![byte; block_type.bytes()];
                let halves: &[usize] = if block_type == BlockType::Q6K { &[208] } else { &[0, 2] };
                halves.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&scale.to_le_bytes()));
                let strips = side_by_side(block_type, &block.repeat(strip_rows), block_type.numbers());
                let own = BlockRows { block_type, layout: RowLayout::Strips, blocks: &strips };
                let mut got = vec![f32::NAN; block_type.numbers()];
                own.read_row(strip_rows - 1, &mut got);
                assert_eq!(got, dequantised(block_type, &block), "{}: {scale}", block_type.name());
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows are not whole strips")]
fn strips_are_whole() {
    BlockType::Q4K.lay_side_by_side(&mut blocks(BlockType::Q4K, 1, 5), 256);
}
