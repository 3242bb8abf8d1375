//! How the weights of a checkpoint are quantised, as its config states it.

use serde::Serialize;

use super::awq::Awq;
use super::fp8::Fp8;
use super::gptq::Gptq;
use super::mxfp4::Mxfp4;
use super::packed_ints::PackedInts;
use super::parts::Packing;

/// How the weights of a checkpoint are quantised. Serialised, it is what of it determines a model's answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantisation {
    /// The format, with what it needs to be unpacked.
    #[serde(flatten)]
    pub format: PackedFormat,
    /// Modules that are not quantised: names, or ends of names. Patterns are not kept.
    #[serde(skip)]
    pub ignored: Vec<String>,
    /// Whether activations are to be quantised as well, which is not done here.
    #[serde(skip)]
    pub quantises_activations: bool,
}

/// A format of quantised weights, with what it needs to be unpacked.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum PackedFormat {
    /// FP8 numbers with scales.
    Fp8(Fp8),
    /// AWQ.
    Awq(Awq),
    /// GPTQ.
    Gptq(Gptq),
    /// Experts in MXFP4.
    Mxfp4,
    /// Integers packed by compressed-tensors.
    PackedInts(PackedInts),
}

impl PackedFormat {
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

    pub(super) fn packing(&self) -> &dyn Packing {
        match self {
            Self::Fp8(fp8) => fp8,
            Self::Awq(awq) => awq,
            Self::Gptq(gptq) => gptq,
            Self::Mxfp4 => &Mxfp4,
            Self::PackedInts(ints) => ints,
        }
    }
}

impl Quantisation {
    /// Whether a module is listed as not quantised: by its name, as a part of a listed module, or by the end of its name.
    pub(super) fn ignores(&self, module: &str) -> bool {
        let lists = |listed: &String| {
            let within = |rest: &str| rest.is_empty() || rest.starts_with('.');
            module.strip_prefix(listed.as_str()).is_some_and(within)
                || module.strip_suffix(listed.as_str()).is_some_and(|before| before.ends_with('.'))
        };
        self.ignored.iter().any(lists)
    }
}
