//! The parameters by which a method spec chooses and configures a picker.

use std::sync::Arc;

use crate::scored::select::picker::{Finer, Picker};
use crate::scored::select::refuse::refuse;
use crate::scored::select::rescored::Rescored;
use crate::scored::select::sample::Sample;
use crate::scored::select::share::TopShare;
use crate::scored::select::top::Top;
use crate::spec::{ParamInfo, Params};
use crate::types::budget::Budget;
use spattn_base::error::UsageError;

/// The meaning of scores, as far as pickers depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScoresAre {
    /// Estimates or bounds of `q·k`.
    Logits,
    /// Values of which only the order matters: larger is better.
    AnOrder,
}

/// The parameter that chooses among several ways of selecting.
pub(crate) const PICK: ParamInfo = ParamInfo {
    key: "pick",
    default: "topk",
    about: "topk | topp | sample: the best so many, the fewest with a share p of the mass that the scores estimate, or the \
            best with a sample of the rest",
};

/// Like [`PICK`], for scores that only order candidates.
pub(crate) const PICK_BY_ORDER: ParamInfo = ParamInfo {
    key: "pick",
    default: "topk",
    about: "topk | sample: the best so many, or these with a sample of the rest",
};

/// Allowed error, with `pick=sample`.
pub(crate) const EPSILON: ParamInfo = ParamInfo {
    key: "epsilon",
    default: "-",
    about: "with pick=sample: error of the softmax denominator that is allowed, as a share of it (0.1)",
};

/// Probability of a larger error, with `pick=sample`.
pub(crate) const DELTA: ParamInfo =
    ParamInfo { key: "delta", default: "-", about: "with pick=sample: probability of a larger error (0.1)" };

/// Size of the base sample, with `pick=sample`.
pub(crate) const BASE: ParamInfo = ParamInfo {
    key: "base",
    default: "-",
    about: "with pick=sample: base sample, by which the size of the other is set, as a share of the rest (0.05)",
};

/// Share of the mass, with `pick=topp`.
pub(crate) const SHARE: ParamInfo = ParamInfo {
    key: "p",
    default: "-",
    about: "with pick=topp: share of the candidates' mass, above 0 to 1 (0.95); with rescore: of what was scored again",
};

/// The second score of methods that offer one.
pub(crate) const RESCORE: ParamInfo = ParamInfo {
    key: "rescore",
    default: "none",
    about: "none | exact | int4: score again what is picked, by its keys or by keys in 4 bits, and pick of it by p or k2",
};

/// Number of tokens picked by the second score, with `rescore`.
pub(crate) const SECOND: ParamInfo =
    ParamInfo { key: "k2", default: "-", about: "with rescore, instead of p: tokens picked by the second score" };

/// The ways of selecting that a method offers.
pub(crate) struct Choice {
    /// The default budget.
    pub default: Budget,
    /// Whether a budget of 0 tokens is allowed.
    pub from_zero: bool,
    /// The meaning of the method's scores.
    pub scores: ScoresAre,
}

impl Choice {
    /// A choice for scores that estimate logits; a budget in tokens is at least 1.
    pub fn by_logits(default: Budget) -> Self {
        Self { default, from_zero: false, scores: ScoresAre::Logits }
    }

    /// A choice for scores that only order candidates.
    pub fn by_order(default: Budget) -> Self {
        Self { scores: ScoresAre::AnOrder, ..Self::by_logits(default) }
    }

    /// Reads `pick` and its parameters: a budget of tokens, `p`, or a budget and the bounds of a sample.
    ///
    /// # Errors
    /// If a value is out of range, or a parameter does not apply to this way of selecting.
    pub fn read(self, params: &mut Params) -> Result<Arc<dyn Picker>, UsageError> {
        let ways: &[&str] = match self.scores {
            ScoresAre::Logits => &["topk", "topp", "sample"],
            ScoresAre::AnOrder => &["topk", "sample"],
        };
        let pick = params.choice(PICK.key, ways)?;
        let finer = match params.choice(RESCORE.key, &["none", "exact", "int4"])? {
            "exact" => Some(Finer::Keys),
            "int4" => Some(Finer::Codes),
            _ => None,
        };
        if let Some(finer) = finer {
            return self.read_rescored(params, pick, finer);
        }
        refuse(params, &[SECOND.key], "is a number of tokens to pick by a second score, and there is none")?;
        if pick == "sample" {
            refuse(params, &[SHARE.key], "is a share of attention to cover, and `pick=sample` covers none")?;
            return Ok(Arc::new(Sample::read(params, |params| self.budget(params))?));
        }
        refuse(params, &[EPSILON.key, DELTA.key, BASE.key], "is a bound of a sample, and none is drawn")?;
        if pick == "topp" {
            return Ok(Arc::new(TopShare::read(params)?));
        }
        refuse(params, &[SHARE.key], "is a share of attention to cover, and `pick=topk` covers none")?;
        Ok(Arc::new(Top { budget: self.budget(params)? }))
    }

    fn read_rescored(self, params: &mut Params, pick: &str, finer: Finer) -> Result<Arc<dyn Picker>, UsageError> {
        if pick != "topk" {
            return Err(UsageError::new(format!(
                "`rescore` takes the best of a first score, and `pick={pick}` others"
            ))
            .hint("leave out pick; p or k2 say how the second score picks"));
        }
        refuse(params, &[EPSILON.key, DELTA.key, BASE.key], "is a bound of a sample, and none is drawn")?;
        let budget = self.budget(params)?;
        Ok(Arc::new(Rescored::read(params, budget, finer)?))
    }

    fn budget(&self, params: &mut Params) -> Result<Budget, UsageError> {
        match self.from_zero {
            true => params.budget_from_zero(self.default),
            false => params.budget(self.default),
        }
    }
}
