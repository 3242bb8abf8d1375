//! The sums of a collector as tensors of a checkpoint. Tensors hold `f32`, so each `f64` is written as four 16-bit parts of its bits,
//! which restore it exactly.

use super::artefact::{Artefact, ArtefactError, NamedTensor, Precision};

/// The 16-bit parts of a number, the highest first.
const PARTS: usize = 4;

/// Makes a tensor of sums, `[sum][part]`.
pub(crate) fn tensor(name: String, sums: impl IntoIterator<Item = f64>) -> NamedTensor {
    let part = |bits: u64, part: usize| ((bits >> (48 - 16 * part)) & 0xffff) as f32;
    let values: Vec<f32> = sums.into_iter().flat_map(|sum| (0..PARTS).map(move |at| part(sum.to_bits(), at))).collect();
    NamedTensor { name, shape: vec![values.len() / PARTS, PARTS], values, precision: Precision::F32 }
}

/// Reads the sums of a checkpoint into those of a collector, in the order in which they were written.
///
/// # Errors
/// Those of [`Artefact::read`], and if a value is not a 16-bit part.
pub(crate) fn restore<'s>(
    checkpoint: &Artefact,
    name: &str,
    sums: impl IntoIterator<Item = &'s mut f64>,
) -> Result<(), ArtefactError> {
    let sums: Vec<&mut f64> = sums.into_iter().collect();
    let values = checkpoint.read(name, &[sums.len(), PARTS])?;
    let is_part = |value: &f32| value.fract() == 0.0 && (0.0..=f32::from(u16::MAX)).contains(value);
    if !values.iter().all(is_part) {
        return Err(checkpoint.malformed(&format!("{name} holds no sums")));
    }
    for (sum, parts) in sums.into_iter().zip(values.chunks_exact(PARTS)) {
        *sum = f64::from_bits(parts.iter().fold(0, |bits, part| bits << 16 | *part as u64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::artefact::{self, ArtefactInfo, FORMAT, ModelShape};
    use std::collections::BTreeMap;

    #[test]
    fn sums_come_back_to_the_bit() {
        let sums = [0.0, -0.0, 1.0 / 3.0, -1e-300, 6.02e23, f64::MIN_POSITIVE / 8.0, f64::MAX];
        let model = ModelShape { weights_sha256: "w".into(), layers: 1, heads: 1, kv_heads: 1, head_dim: 1 };
        let info = ArtefactInfo {
            format: FORMAT,
            kind: "x.checkpoint".to_owned(),
            model,
            data: String::new(),
            seed: 0,
            blocks: 1,
            tokens: 1,
            settings: BTreeMap::new(),
        };
        let bytes = artefact::write(&info, &[tensor("sums".to_owned(), sums)]);
        let checkpoint = Artefact::parse("file", bytes).unwrap();
        let mut found = [7.0; 7];
        restore(&checkpoint, "sums", &mut found).unwrap();
        assert_eq!(found.map(f64::to_bits), sums.map(f64::to_bits));
        assert!(restore(&checkpoint, "sums", &mut [7.0; 6]).is_err(), "another number of sums");
        let wrong = NamedTensor { values: vec![0.5; 4], shape: vec![1, 4], ..tensor("sums".to_owned(), [1.0]) };
        let wrong = Artefact::parse("file", artefact::write(&info, &[wrong])).unwrap();
        assert!(restore(&wrong, "sums", &mut [7.0]).is_err());
    }
}
