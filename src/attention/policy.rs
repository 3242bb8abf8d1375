//! The policy every method shares: which tokens are always attended, which layers stay dense.

use std::fmt;

use crate::error::UsageError;

/// Tokens attended exactly by every method, and layers left dense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// First tokens of the context, always attended.
    pub sink: usize,
    /// Last tokens of the shared prefix, always attended. Tokens after the prefix are attended as well,
    /// so this window never becomes shorter than `local`.
    pub local: usize,
    /// Layers that attend everything.
    pub dense_layers: DenseLayers,
}

impl Default for Policy {
    /// `sink=4, local=64`, no dense layer: MagicPIG's windows (its §5) applied to every method.
    fn default() -> Self {
        Self { sink: 4, local: 64, dense_layers: DenseLayers::default() }
    }
}

/// A set of layers, given absolutely or as a share of the depth.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DenseLayers(Vec<LayerRef>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerRef {
    Span(usize, usize),
    Percent(usize),
}

impl DenseLayers {
    /// Parses `none`, or layers joined by `+` or `,`: `0`, a span `0-2`, a share of the depth `50%`.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        if text == "none" {
            return Ok(Self::default());
        }
        text.split(['+', ',']).map(LayerRef::parse).collect::<Option<Vec<_>>>().map(Self).ok_or_else(|| {
            UsageError::new(format!("dense layers `{text}` cannot be read"))
                .hint("write none, 0, 0+1, 0-2, or a share of the depth such as 0+50%")
        })
    }

    /// Whether `layer` of a model with `layers` layers is dense.
    pub fn contains(&self, layer: usize, layers: usize) -> bool {
        self.0.iter().any(|r| match *r {
            LayerRef::Span(first, last) => (first..=last).contains(&layer),
            LayerRef::Percent(share) => layer == layers * share / 100,
        })
    }

    /// The highest layer named absolutely, to check it against a model.
    pub fn highest(&self) -> Option<usize> {
        self.0.iter().filter_map(|r| if let LayerRef::Span(_, last) = r { Some(*last) } else { None }).max()
    }
}

impl LayerRef {
    fn parse(text: &str) -> Option<Self> {
        if let Some(share) = text.strip_suffix('%') {
            return share.parse().ok().filter(|s| *s < 100).map(Self::Percent);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(Self::Span(first, last))
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
    fn nonsense_is_refused_with_a_hint() {
        for text in ["", "x", "3-1", "100%", "-1"] {
            assert!(DenseLayers::parse(text).unwrap_err().hint.is_some(), "{text}");
        }
    }
}
