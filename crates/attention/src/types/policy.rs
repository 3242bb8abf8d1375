//! The policy that all methods share: which tokens are always attended, which layers are dense, and how the prefix is stored.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kv::prefix_dtype::PrefixDtype;
use crate::kv::shape::MOST_TOKENS;
use crate::types::schedule::Schedule;
use spattn_base::error::UsageError;

/// The tokens that every method attends exactly, the dense layers, and how the prefix is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// First tokens of the context, always attended.
    pub sink: usize,
    /// Last tokens of the shared prefix, always attended. Tokens after the prefix are attended as well (unless `tail` says otherwise), so
    /// this window never becomes shorter than `local`.
    pub local: usize,
    /// Layers that attend everything.
    pub dense_layers: DenseLayers,
    /// How tokens after the prefix are treated.
    pub tail: Tail,
    /// How the method's budget of tokens is distributed over sparse layers.
    pub schedule: Schedule,
    /// What methods do in layers that have a window of their own.
    pub local_layers: LocalLayers,
    /// The storage type of the prefix's keys and values. Indexes are built from them, and every layer attends them, dense ones too.
    pub kv_dtype: PrefixDtype,
}

/// What methods do in layers whose tokens see only a window of the last tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalLayers {
    /// Methods leave these layers unchanged: all of the window is attended.
    #[default]
    Dense,
    /// Methods select among the tokens of the window. Its last tokens are static as in other layers; the first tokens of the context are
    /// static until the window has moved past the first of them.
    Sparse,
}

impl LocalLayers {
    /// The names of all variants.
    pub const NAMES: [&str; 2] = ["dense", "sparse"];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for LocalLayers {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = [Self::Dense, Self::Sparse].into_iter().find(|layers| layers.name() == text);
        known.ok_or_else(|| UsageError::unknown("local-layers", text, Self::NAMES))
    }
}

/// The parameter, common to all methods, that says how the prefix is stored.
pub(crate) const KV_DTYPE: &str = "kv_dtype";

impl Policy {
    /// Whether each of `layers` layers is dense.
    pub fn dense(&self, layers: usize) -> Vec<bool> {
        (0..layers).map(|layer| self.dense_layers.contains(layer, layers)).collect()
    }
}

/// How tokens after the prefix are treated: as static tokens, or as candidates like those of the prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Tail {
    /// All are static, however many there are.
    #[default]
    Exact,
    /// Only the last tokens of the context, this many, are static; tokens that leave this window become candidates.
    Window(usize),
    /// Like `Window`, with the policy's `local` tokens.
    Indexed,
}

impl Tail {
    /// Length of the sliding window, at least 1 because it contains the current token; `None` if all tokens after the prefix are static.
    pub fn window(self, local: usize) -> Option<usize> {
        match self {
            Self::Exact => None,
            Self::Window(tokens) => Some(tokens.max(1)),
            Self::Indexed => Some(local.max(1)),
        }
    }
}

impl FromStr for Tail {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        match (text, text.strip_prefix("window:").and_then(|n| n.parse().ok())) {
            ("exact", _) => Ok(Self::Exact),
            ("indexed", _) => Ok(Self::Indexed),
            (_, Some(n)) if (1..=MOST_TOKENS).contains(&n) => Ok(Self::Window(n)),
            _ => Err(UsageError::new(format!("`{text}` is not a policy for the tail"))
                .hint(format!("use exact, window:N (N from 1 to {MOST_TOKENS}) or indexed"))),
        }
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Window(tokens) => write!(f, "window:{tokens}"),
            Self::Indexed => f.write_str("indexed"),
        }
    }
}

impl Default for Policy {
    /// `sink=4, local=64` and no dense layer: MagicPIG's windows (its §5), applied to every method.
    fn default() -> Self {
        Self {
            sink: 4,
            local: 64,
            dense_layers: DenseLayers::default(),
            tail: Tail::default(),
            schedule: Schedule::default(),
            local_layers: LocalLayers::default(),
            kv_dtype: PrefixDtype::default(),
        }
    }
}

/// A set of layers, given absolutely or as a share of the depth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DenseLayers(Vec<LayerRef>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerRef {
    Span(usize, usize),
    /// First layer, last layer and step; layers that the model does not have are ignored.
    Every(usize, usize, usize),
    Percent(usize),
}

impl DenseLayers {
    /// Parses `none`, or layers joined by `+` or `,`: a layer `0`, a span `0-2`, every 16th layer of a span `0-48/16` (as far as the model
    /// has these layers), a share of the depth `50%`.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        if text == "none" {
            return Ok(Self::default());
        }
        text.split(['+', ',']).map(LayerRef::parse).collect::<Option<Vec<_>>>().map(Self).ok_or_else(|| {
            UsageError::new(format!("dense layers `{text}` cannot be read")).hint(
                "write none, 0, 0+1, 0-2, every 16th up to 48 such as 0-48/16, or a share of the depth such as 0+50%",
            )
        })
    }

    /// Whether `layer` of a model with `layers` layers is dense.
    pub fn contains(&self, layer: usize, layers: usize) -> bool {
        self.0.iter().any(|r| match *r {
            LayerRef::Span(first, last) => (first..=last).contains(&layer),
            LayerRef::Every(first, last, step) => {
                (first..=last).contains(&layer) && (layer - first).is_multiple_of(step)
            }
            LayerRef::Percent(share) => layer == layers * share / 100,
        })
    }

    /// The highest layer that a model must have; `None` if any model fits.
    pub fn highest(&self) -> Option<usize> {
        self.0.iter().filter_map(|r| if let LayerRef::Span(_, last) = r { Some(*last) } else { None }).max()
    }
}

impl LayerRef {
    fn parse(text: &str) -> Option<Self> {
        if let Some(share) = text.strip_suffix('%') {
            return share.parse().ok().filter(|s| *s < 100).map(Self::Percent);
        }
        let (first, rest) = text.split_once('-').unwrap_or((text, text));
        let (last, step) = rest.split_once('/').map_or((rest, None), |(last, step)| (last, Some(step)));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        match step {
            _ if first > last => None,
            None => Some(Self::Span(first, last)),
            Some(step) => step.parse().ok().filter(|step| *step > 0).map(|step| Self::Every(first, last, step)),
        }
    }
}

impl fmt::Display for DenseLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, r) in self.0.iter().enumerate() {
            let plus = if i > 0 { "+" } else { "" };
            match r {
                LayerRef::Span(a, b) if a == b => write!(f, "{plus}{a}")?,
                LayerRef::Span(a, b) => write!(f, "{plus}{a}-{b}")?,
                LayerRef::Every(a, b, step) => write!(f, "{plus}{a}-{b}/{step}")?,
                LayerRef::Percent(p) => write!(f, "{plus}{p}%")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_spans_or_shares_of_the_depth() {
        let d = DenseLayers::parse("0-1+50%").unwrap();
        let dense: Vec<usize> = (0..32).filter(|l| d.contains(*l, 32)).collect();
        assert_eq!(dense, [0, 1, 16]);
        assert_eq!(d.to_string(), "0-1+50%");
        assert_eq!(DenseLayers::parse("0,1").unwrap().to_string(), "0+1");
        assert!(!DenseLayers::parse("none").unwrap().contains(0, 4));
    }

    #[test]
    fn every_so_many_layers_are_dense_as_far_as_there_are() {
        let published = DenseLayers::parse("0-48/16").unwrap();
        let dense = |layers: usize| (0..layers).filter(|l| published.contains(*l, layers)).collect::<Vec<_>>();
        assert_eq!((dense(32), dense(40)), (vec![0, 16], vec![0, 16, 32]));
        assert_eq!((dense(80), dense(10)), (vec![0, 16, 32, 48], vec![0]));
        assert_eq!((published.to_string().as_str(), published.highest()), ("0-48/16", None));
        assert_eq!(DenseLayers::parse("3-9/4+1").unwrap().to_string(), "3-9/4+1");
    }

    #[test]
    fn the_highest_layer_is_the_last_of_those_named_by_number() {
        let highest = |text: &str| DenseLayers::parse(text).unwrap().highest();
        assert_eq!(highest("0-1+50%"), Some(1));
        assert_eq!(highest("7+2-5"), Some(7));
        assert_eq!(highest("2-9+3"), Some(9));
        assert_eq!((highest("50%"), highest("none")), (None, None));
    }

    #[test]
    fn a_window_that_moves_on_holds_the_current_token_at_least() {
        assert_eq!((Tail::Window(5).window(64), Tail::Window(0).window(64)), (Some(5), Some(1)));
        assert_eq!((Tail::Indexed.window(64), Tail::Indexed.window(0)), (Some(64), Some(1)));
        assert_eq!(Tail::Exact.window(64), None);
    }

    #[test]
    fn tails_are_read_as_they_are_written() {
        for text in ["exact", "indexed", "window:1", "window:300"] {
            assert_eq!(text.parse::<Tail>().unwrap().to_string(), text);
        }
        for text in ["", "window", "window:0", "window:-1", "window:99999999999", "Exact"] {
            assert!(text.parse::<Tail>().unwrap_err().hint.is_some(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        for text in ["", "x", "3-1", "100%", "-1", "0-48/0", "0-48/", "3/2", "4-1/2"] {
            assert!(DenseLayers::parse(text).unwrap_err().hint.is_some(), "{text}");
        }
    }
}
