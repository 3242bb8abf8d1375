//! Two stages: many candidates by the method's scores, then a few of these by finer scores (Twilight, arXiv:2502.02770).
//!
//! The first stage selects the top-k; these are whole pages if scores are of pages. The second stage scores each of their
//! tokens again, by its exact key or by its key in 4 bits. It selects the fewest tokens that hold a share `p` of the mass
//! that these scores estimate, or the best `k2`. The share is of the first stage's mass, as in Twilight, because static
//! tokens are attended anyway. Twilight quantises a key by the range of its own channels; here, keys in 4 bits are those
//! of [`QuantisedRows`](crate::kv::quantised::QuantisedRows), with a range for each channel over 128 tokens.
//!
//! With `density=`, the second stage selects by that density at each step, from four times as many tokens. Budgets are
//! then equal for all heads, and `p` is not used.

use std::sync::Arc;

use crate::backend::reasons::HostReason;
use crate::backend::scorer::DevicePicker;
use crate::cost::Cost;
use crate::kv::{KvError, MOST_TOKENS};
use crate::scored::select::picker::{Finer, Picker, ScoredRow};
use crate::scored::select::share::TopShare;
use crate::scored::select::top::Top;
use crate::spec::Params;
use crate::types::budget::Budget;
use crate::types::selection::SelectedTokens;
use spattn_base::error::UsageError;

/// A top-k whose tokens are scored and selected a second time.
pub(crate) struct Rescored {
    first: Top,
    finer: Finer,
    then: Arc<dyn Picker>,
}

impl Rescored {
    /// Takes the first stage's budget, and reads the second stage's, `p` or `k2`.
    pub(crate) fn read(params: &mut Params, budget: Budget, finer: Finer) -> Result<Self, UsageError> {
        if let Budget::Density(density) = budget {
            crate::scored::select::refuse::refuse(
                params,
                &["p", "k2"],
                "sets how many are picked, and so does density",
            )?;
            let first = Top { budget: Budget::Density((4.0 * density).min(1.0)) };
            return Ok(Self { first, finer, then: Arc::new(Top { budget }) });
        }
        let then: Arc<dyn Picker> = if params.is_given("k2") {
            crate::scored::select::refuse::refuse(params, &["p"], "is a share to cover, and k2 a number of tokens")?;
            let k2 = params.get_within("k2", 64, 1..=MOST_TOKENS)?;
            Arc::new(Top { budget: Budget::Tokens(k2) })
        } else {
            crate::scored::select::refuse::refuse(params, &["k2"], "is not given")?;
            Arc::new(TopShare::read(params)?)
        };
        Ok(Self { first: Top { budget }, finer, then })
    }
}

/// Returns the `tokens` that are not `picked`; both lists are ascending.
pub(crate) fn others(tokens: &[u32], picked: &[u32]) -> Vec<u32> {
    tokens.iter().filter(|token| picked.binary_search(token).is_err()).copied().collect()
}

impl Picker for Rescored {
    fn device(&self) -> Result<&dyn DevicePicker, HostReason> {
        Err(HostReason::Selection("by a second score"))
    }

    fn pick(&self, row: &ScoredRow<'_>, cost: &mut Cost) -> Result<SelectedTokens, KvError> {
        let left = self.first.pick(row, cost)?.tokens;
        let scores = (row.rescore)(self.finer, &left, cost)?;
        let again = ScoredRow { scores: &scores, page: 1, least: 0, candidates: 0..left.len(), ..row.clone() };
        let places = self.then.pick(&again, cost)?.tokens;
        let picked: Vec<u32> = places.iter().map(|place| left[*place as usize]).collect();
        if self.finer == Finer::Keys {
            (row.pass_over)(&others(&left, &picked), cost);
        }
        Ok(SelectedTokens::softmax(picked))
    }

    fn finer(&self) -> Option<Finer> {
        Some(self.finer)
    }
}
