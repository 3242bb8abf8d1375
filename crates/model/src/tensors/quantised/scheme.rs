//! How the weights of a checkpoint are quantised, according to its config.

use serde::Serialize;

use super::awq::Awq;
use super::fp8::Fp8;
use super::gptq::Gptq;
use super::packed_ints::PackedInts;
use super::parts::Packing;

/// How the weights of a checkpoint are quantised. Its serialised form has what determines a model's answers.
///
/// The tensors' parts, not this type, show which of them are quantised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quantisation {
    /// The format, with its parameters for unpacking.
    #[serde(flatten)]
    pub format: QuantisedFormat,
    /// Whether the config asks for quantised activations too, which this program does not do.
    #[serde(skip)]
    pub quantises_activations: bool,
}

/// A format of quantised weights, with its parameters for unpacking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum QuantisedFormat {
    /// FP8 numbers with scales.
    Fp8(Fp8),
    /// AWQ.
    Awq(Awq),
    /// GPTQ.
    Gptq(Gptq),
    /// Experts in blocks of 4-bit numbers, with a power of two as the scale of each block. The format has no parameters, and one
    /// tensor has all experts of a layer, so experts are [divided](crate::tensors::PartForm::Mxfp4) instead of being unpacked here.
    Mxfp4,
    /// Integers packed by compressed-tensors.
    PackedInts(PackedInts),
}

impl QuantisedFormat {
    /// Its name for users.
    pub fn name(&self) -> String {
        match self {
            Self::Fp8(_) => "FP8".to_owned(),
            Self::Awq(_) => "AWQ, 4 bits".to_owned(),
            Self::Gptq(gptq) => format!("GPTQ, {} bits", usize::from(gptq.bits)),
            Self::Mxfp4 => "MXFP4".to_owned(),
            Self::PackedInts(ints) => format!("compressed-tensors, {} bits", usize::from(ints.bits)),
        }
    }

    /// The unpacking of its tensors, if that is done here.
    pub(super) fn packing(&self) -> Option<&dyn Packing> {
        match self {
            Self::Fp8(fp8) => Some(fp8),
            Self::Awq(awq) => Some(awq),
            Self::Gptq(gptq) => Some(gptq),
            Self::Mxfp4 => None,
            Self::PackedInts(ints) => Some(ints),
        }
    }
}

impl Quantisation {
    /// Whether the tensors, whose hash is part of a run's identity, determine everything: there is no format, or one without
    /// parameters.
    pub(crate) fn is_told_by_tensors(stated: &Option<Self>) -> bool {
        stated.as_ref().is_none_or(|quantisation| quantisation.format == QuantisedFormat::Mxfp4)
    }
}
