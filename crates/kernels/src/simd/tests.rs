use super::*;

dispatch! {
    /// Returns the sums of sixteen vectors, computed one by one, four at a time, and all at once.
    fn sums[](numbers: &[f32; 256]) -> [[f32; 16]; 3] = sums_kernel
}

#[inline(always)]
unsafe fn sums_kernel<S: Simd>(numbers: &[f32; 256]) -> [[f32; 16]; 3] {
    // SAFETY: sixteen vectors of at most sixteen lanes; the CPU supports `S` (caller).
    unsafe {
        let mut vectors = [[S::splat(0.0); 4]; 4];
        let (mut single, mut four, mut all) = ([0.0; 16], [0.0; 16], [0.0; 16]);
        for i in 0..16 {
            vectors[i / 4][i % 4] = S::load(numbers.as_ptr().add(i * S::LANES));
            single[i] = S::sum(vectors[i / 4][i % 4]);
        }
        for (i, vectors) in vectors.into_iter().enumerate() {
            four[4 * i..4 * i + 4].copy_from_slice(&S::sum_each(vectors));
        }
        for (i, sums) in S::sum_all(vectors).into_iter().enumerate() {
            all[4 * i..4 * i + 4].copy_from_slice(&sums);
        }
        [single, four, all]
    }
}

dispatch! {
    /// Replaces numbers `x` by `2^x`.
    fn powers[](numbers: &mut [f32; 160]) = powers_kernel
}

#[inline(always)]
unsafe fn powers_kernel<S: Simd>(numbers: &mut [f32; 160]) {
    for i in (0..numbers.len()).step_by(S::LANES) {
        // SAFETY: 160 is a multiple of every lane count; the CPU supports `S` (caller).
        unsafe { S::store(numbers.as_mut_ptr().add(i), S::exp2_rough(S::load(numbers.as_ptr().add(i)))) };
    }
}

#[test]
fn rough_powers_of_two_are_right_to_three_parts_in_a_million_and_nothing_below() {
    let exponents: Vec<f32> =
        (0..16_000).map(|i| i as f32 * -0.01).chain([0.5, 1.0, 126.9]).chain([f32::NEG_INFINITY; 157]).collect();
    for exponents in exponents.chunks_exact(160) {
        let mut numbers: [f32; 160] = exponents.try_into().unwrap();
        powers(&mut numbers);
        for (x, got) in exponents.iter().zip(numbers) {
            let exact = if *x < -126.0 { 0.0 } else { f64::from(*x).exp2() };
            assert!((f64::from(got) - exact).abs() <= 3e-6 * exact, "2^{x}: {got:e} for {exact:e}");
        }
    }
}

dispatch! {
    /// Returns what `keep` writes for each vector and mask; each list has room for one more vector.
    fn kept[](numbers: &[f32], masks: &[u32]) -> (Vec<f32>, Vec<u32>) = kept_kernel
}

#[inline(always)]
unsafe fn kept_kernel<S: Simd>(numbers: &[f32], masks: &[u32]) -> (Vec<f32>, Vec<u32>) {
    let room = masks.len() * S::LANES + S::LANES;
    let (mut values, mut places, mut count) = (vec![f32::NAN; room], vec![u32::MAX; room], 0);
    for (i, mask) in masks.iter().enumerate() {
        let mask = mask & ((1u64 << S::LANES) - 1) as u32;
        // SAFETY: a whole vector is readable, and both lists have room for one more; the CPU supports `S` (caller).
        unsafe {
            let v = S::load(numbers.as_ptr().add(i * S::LANES));
            S::keep(mask, v, (i * S::LANES) as u32, values.as_mut_ptr().add(count), places.as_mut_ptr().add(count));
        }
        count += mask.count_ones() as usize;
    }
    (values[..count].to_vec(), places[..count].to_vec())
}

dispatch! {
    /// Returns the codes of each byte, from the lowest bits up, with two and with four codes per byte.
    fn unpacked[](bytes: &[u8; 16]) -> [Vec<f32>; 2] = unpacked_kernel
}

#[inline(always)]
unsafe fn unpacked_kernel<S: Simd>(bytes: &[u8; 16]) -> [Vec<f32>; 2] {
    let (mut two, mut four) = (vec![f32::NAN; 2 * S::LANES], vec![f32::NAN; 4 * S::LANES]);
    // SAFETY: there are at most sixteen lanes, and as many vectors as are stored; the CPU supports `S` (caller).
    unsafe {
        let [a, b] = S::load_codes::<2>(bytes.as_ptr());
        for (i, v) in S::interleave(a, b).into_iter().enumerate() {
            S::store(two.as_mut_ptr().add(i * S::LANES), v);
        }
        for (i, v) in S::load_codes::<4>(bytes.as_ptr()).into_iter().enumerate() {
            S::store(four.as_mut_ptr().add(i * S::LANES), v);
        }
    }
    [two, four]
}

#[test]
fn codes_of_bytes_are_their_bits() {
    let bytes = std::array::from_fn(|i| (i * 151 + 7) as u8);
    let [two, four] = unpacked(&bytes);
    let code = |byte: u8, first: usize, bits: usize| f32::from(byte >> first & ((1 << bits) - 1));
    let expected: Vec<f32> = bytes[..lanes()].iter().flat_map(|byte| [code(*byte, 0, 4), code(*byte, 4, 4)]).collect();
    assert_eq!(two, expected);
    let each = |i: usize| bytes[..lanes()].iter().map(move |byte| code(*byte, 2 * i, 2));
    assert_eq!(four, (0..4).flat_map(each).collect::<Vec<_>>());
}

dispatch! {
    fn lanes[]() -> usize = lanes_kernel
}

#[inline(always)]
unsafe fn lanes_kernel<S: Simd>() -> usize {
    S::LANES
}

#[test]
fn sums_of_many_vectors_are_the_bits_of_each() {
    // Magnitudes so different that every order of addition gives other bits.
    let numbers = std::array::from_fn(|i| (i as f32 * 1.7).sin() * 10f32.powi(i as i32 % 9));
    let [single, four, all] = sums(&numbers).map(|sums| sums.map(f32::to_bits));
    assert_eq!((four, all), (single, single));
}

#[test]
fn lanes_of_a_mask_are_kept_with_their_places() {
    let masks = [0, 0xffff, 0b1, 0x8000_8080, 0b1010_0110, 0];
    let numbers: Vec<f32> = (0..16 * masks.len()).map(|i| i as f32 + 0.5).collect();
    let (values, places) = kept(&numbers, &masks);
    // Each number is its own place, and each mask selects lanes of its own vector.
    let lanes = lanes();
    let expected: Vec<u32> = (0..masks.len() * lanes)
        .filter(|place| masks[place / lanes] >> (place % lanes) & 1 == 1)
        .map(|place| place as u32)
        .collect();
    assert_eq!(places, expected);
    assert_eq!(values, expected.iter().map(|place| *place as f32 + 0.5).collect::<Vec<_>>());
}
