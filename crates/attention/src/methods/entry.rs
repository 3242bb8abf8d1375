//! [`MethodEntry`]: what the registry and the command line know of a method.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::backend::reasons::HostReason;
use crate::kv::{KvDtype, KvShape};
use crate::method::{AnyMethod, TailRule};
use crate::prefill::mask::PrefillPattern;
use crate::prefill::rows::device_rows_form;
use crate::scored::granularity::Granularity;
use crate::spec::{MethodSpec, ParamInfo, Params};
use crate::types::role::Role;
use spattn_base::error::UsageError;

/// What the command line knows of a method.
pub struct MethodEntry {
    /// Bare name in specs.
    pub name: &'static str,
    /// Its role in comparisons; conclusions and figures treat methods by role.
    pub role: Role,
    /// One line for `spattn list methods`.
    pub about: &'static str,
    /// Where the method is published, in a few words.
    pub reference: &'static str,
    /// The method's own parameters, with defaults and meaning.
    pub params: &'static [ParamInfo],
    /// The published presets (`preset=paper`, `preset=repo`).
    pub presets: &'static [Preset],
    /// Reads the method's own parameters.
    pub build: fn(&mut Params) -> Result<Arc<dyn AnyMethod>, UsageError>,
}

impl MethodEntry {
    /// The presets: the published ones, then `matched`, which every method has.
    pub fn all_presets(&self) -> impl Iterator<Item = &Preset> {
        self.presets.iter().chain([&MATCHED])
    }

    /// Returns the method with default parameters; `None` if a parameter, such as a command, has no default.
    fn default_form(&self) -> Option<Arc<dyn AnyMethod>> {
        (self.build)(&mut Params::new(&MethodSpec::bare(self.name))).ok()
    }

    /// The phases in which the method is sparse with default parameters.
    pub fn phase(&self) -> &'static str {
        match self.default_form() {
            Some(method) if method.decodes_densely() => "prefill",
            Some(method) if method.prefill_pattern().is_some() => "prefill and decode",
            _ => "decode",
        }
    }

    /// How it treats tokens after the prefix that leave the window (`--tail`).
    pub fn tail(&self) -> String {
        match self.default_form().map_or(TailRule::OF_PREFIX, |method| method.tail_rule()) {
            TailRule::Indexed(how) => format!("indexed: {how}"),
            TailRule::Exact(why) => format!("exact: {why}"),
            TailRule::Own(rule) => format!("its own: {rule}"),
        }
    }

    /// Where its default form selects if the prefix is on a GPU.
    pub fn selection_place(&self) -> SelectionPlace {
        let Some(method) = self.default_form() else { return SelectionPlace::Host(vec![HostReason::NoForm]) };
        match method.device_form() {
            _ if method.is_static_only() || method.decodes_densely() => SelectionPlace::Nowhere,
            Ok(_) => SelectionPlace::Device,
            Err(_) if method.selects_once() => SelectionPlace::HostOnce,
            Err(_) if method.is_data_independent() => SelectionPlace::HostWithoutQueries,
            Err(reasons) => SelectionPlace::Host(reasons),
        }
    }

    /// How the method, with default parameters, reads a prompt on a GPU with `--sparse-from prefill`.
    pub fn reading_place(&self) -> &'static str {
        let Some(method) = self.default_form() else { return "densely" };
        match method.prefill_pattern() {
            None | Some(PrefillPattern::Dense) => "densely",
            Some(PrefillPattern::Blocks(mask)) if mask.is_data_independent() || mask.device_form().is_some() => {
                "by a mask, on the device"
            }
            Some(PrefillPattern::Whole(_)) => "by a mask that the host plans, on the device",
            Some(PrefillPattern::Rows(_)) if device_rows_form(method.as_ref(), USUAL_SHAPE).is_some() => {
                "by a selection for each row, on the device"
            }
            Some(_) => "by a mask, on the host",
        }
    }

    /// Whether the method selects for each query head or for a GQA group.
    pub fn granularity(&self) -> &'static str {
        let has = |key: &str| self.params.iter().any(|p| p.key == key);
        match (has(Granularity::INFO.key), has(Granularity::REDUCE.key)) {
            (true, true) => "each query head, or a GQA group (per, reduce)",
            (true, false) => "each query head, or a GQA group (per)",
            _ if self.params.is_empty() => "none: all is attended",
            _ => "fixed by the method",
        }
    }
}

/// The head shape of most models.
const USUAL_SHAPE: KvShape = KvShape { kv_heads: 8, d: 128, dtype: KvDtype::Bf16 };

/// Where a method selects tokens if the prefix is on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectionPlace {
    /// Nowhere: it attends static tokens only, or decodes densely.
    Nowhere,
    /// On the GPU.
    Device,
    /// On the host, once for a sequence.
    HostOnce,
    /// On the host, but neither queries nor keys are downloaded for it.
    HostWithoutQueries,
    /// On the host, for these reasons.
    Host(Vec<HostReason>),
}

impl SelectionPlace {
    /// The place alone, as records and lists in JSON name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nowhere => "nowhere: it picks nothing",
            Self::Device => "device",
            Self::HostOnce => "host, once when the prompt has been read",
            Self::HostWithoutQueries => "host, without a look at queries or keys",
            Self::Host(_) => "host",
        }
    }
}

impl fmt::Display for SelectionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let Self::Host(reasons) = self else { return Ok(()) };
        let reasons: Vec<String> = reasons.iter().map(HostReason::to_string).collect();
        if reasons.is_empty() { Ok(()) } else { write!(f, ": {}", reasons.join("; ")) }
    }
}

/// Named parameter values with the place they come from.
pub struct Preset {
    /// `paper` or `repo`.
    pub name: &'static str,
    /// Values of the method's own parameters and of policy keys.
    pub values: &'static [(&'static str, &'static str)],
    /// Where the values are published.
    pub source: &'static str,
}

/// The preset that every method has: values not given in the spec are those of the run.
const MATCHED: Preset = Preset {
    name: "matched",
    values: &[],
    source: "the default: own parameters as listed; sink, local and dense layers as for all methods of the run",
};

/// Valid values of a method's seed, for error texts.
pub(super) const SEED: &str = "a whole number from 0 to 18446744073709551615";

/// Returns the number of distinct tokens.
pub(super) fn distinct(tokens: impl IntoIterator<Item = u32>) -> usize {
    tokens.into_iter().collect::<HashSet<_>>().len()
}
