//! Scores of a text's tokens by distributions over the vocabulary: how likely each token is, and how far the distribution that predicts it
//! is from that of `full`. Engines compute the distributions.

use std::any::Any;

use rayon::prelude::*;

use spattn_kernels::distribution::{divergence, log_sum_exp};
use spattn_kernels::topk::argmax;

/// The score of a token by a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenScore {
    /// Negative log-likelihood, in nats.
    pub nll: f64,
    /// The comparison with the distribution of `full`, if there is one.
    pub compared: Option<Compared>,
}

/// The comparison of a distribution with that of `full`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// `KL(full ‖ method)`, in nats; at least 0.
    pub kl: f64,
    /// Whether both have the same most likely token.
    pub same_top: bool,
}

/// Rows after the last layer, each of which predicts a token that is scored.
#[derive(Debug, Clone, Copy)]
pub struct PredictingRows<'a> {
    /// `[token][hidden]`.
    pub rows: &'a [f32],
    /// The position of each of these tokens, from 0.
    pub positions: &'a [usize],
    /// The token that each row predicts, below the size of the vocabulary.
    pub targets: &'a [u32],
}

/// Rows to score, and `full`'s distributions for the same rows if they are to be compared.
pub type ScoredPart<'a> = (PredictingRows<'a>, Option<&'a Distributions>);

/// The results of an engine for some rows: in host memory, or in a form that it keeps on its device.
enum Kept<T> {
    Host(T),
    Device(Box<dyn Any + Send + Sync>),
}

/// The logits of rows, kept where the engine computed them.
pub struct RowLogits(Kept<Vec<f32>>);

impl RowLogits {
    /// Logits `[row][vocab]` in host memory.
    pub fn on_host(logits: Vec<f32>) -> Self {
        Self(Kept::Host(logits))
    }

    /// Logits that an engine keeps on its device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on_device(kept: impl Any + Send + Sync) -> Self {
        Self(Kept::Device(Box::new(kept)))
    }

    /// The value that an engine keeps on its device, if it has this type.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn into_device<T: Any>(self) -> Option<T> {
        match self.0 {
            Kept::Device(kept) => kept.downcast().ok().map(|kept| *kept),
            Kept::Host(_) => None,
        }
    }

    /// The logits in host memory; if they are on a device, `self` is returned as the error.
    pub(crate) fn into_host(self) -> Result<Vec<f32>, Self> {
        match self.0 {
            Kept::Host(logits) => Ok(logits),
            Kept::Device(_) => Err(self),
        }
    }
}

/// The distributions of several rows, kept where the engine made them.
pub struct Distributions(Kept<Vec<Distribution>>);

/// The distribution of a row, in host memory.
struct Distribution {
    logits: Vec<f32>,
    log_z: f64,
    top: usize,
}

impl Distribution {
    fn new(logits: &[f32]) -> Self {
        Self { logits: logits.to_vec(), log_z: log_sum_exp(logits), top: argmax(logits) }
    }

    /// The score of a token, with the distribution compared with itself.
    fn score(&self, target: u32) -> TokenScore {
        let compared = Some(Compared { kl: 0.0, same_top: true });
        TokenScore { nll: self.log_z - f64::from(self.logits[target as usize]), compared }
    }

    /// Compares another distribution with this one. Rounding errors below 0 count as 0.
    fn compare(&self, logits: &[f32], log_z: f64) -> Compared {
        let kl = divergence(&self.logits, self.log_z, logits, log_z).max(0.0);
        Compared { kl, same_top: argmax(logits) == self.top }
    }
}

impl Distributions {
    /// The distributions of logits `[row][vocab]` in host memory, with the score of each row's target, where each distribution is compared
    /// with itself.
    pub fn of_logits(logits: &[f32], targets: &[u32]) -> (Self, Vec<TokenScore>) {
        let rows = logits.par_chunks_exact(vocab(logits, targets));
        let kept: Vec<Distribution> = rows.map(Distribution::new).collect();
        let scores = kept.iter().zip(targets).map(|(own, target)| own.score(*target)).collect();
        (Self(Kept::Host(kept)), scores)
    }

    /// Distributions that an engine keeps on its device.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on_device(kept: impl Any + Send + Sync) -> Self {
        Self(Kept::Device(Box::new(kept)))
    }

    /// The value that an engine keeps on its device, if it has this type.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn device<T: Any>(&self) -> Option<&T> {
        match &self.0 {
            Kept::Device(kept) => kept.downcast_ref(),
            Kept::Host(_) => None,
        }
    }

    /// The distributions in host memory.
    ///
    /// # Panics
    /// If they are on a device.
    fn host(&self) -> &[Distribution] {
        match &self.0 {
            Kept::Host(rows) => rows,
            Kept::Device(_) => panic!("distributions on a device are compared with rows on that device"),
        }
    }
}

/// The scores of the rows' targets by logits `[row][vocab]` in host memory, compared with `full`'s distributions of the same rows if these
/// are given.
///
/// # Panics
/// If `full` is on a device or has fewer rows.
pub fn scores_of_logits(logits: &[f32], targets: &[u32], full: Option<&Distributions>) -> Vec<TokenScore> {
    if targets.is_empty() {
        return Vec::new();
    }
    let full = full.map(Distributions::host);
    let rows = logits.par_chunks_exact(vocab(logits, targets)).zip(targets).enumerate();
    let score = |(row, (logits, target)): (usize, (&[f32], &u32))| {
        let log_z = log_sum_exp(logits);
        let compared = full.map(|full| full[row].compare(logits, log_z));
        TokenScore { nll: log_z - f64::from(logits[*target as usize]), compared }
    };
    rows.map(score).collect()
}

/// The number of logits of a row, at least 1.
fn vocab(logits: &[f32], targets: &[u32]) -> usize {
    (logits.len() / targets.len().max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities_and_a_divergence() {
        let (full, ours): ([f64; 3], [f64; 3]) = ([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]);
        // Logits are log-probabilities plus a constant; here it is too large for `exp`.
        let logits = |p: [f64; 3], shift: f64| p.map(|p| (p.ln() + shift) as f32);
        let (dense, sparse) = (logits(full, 1000.0), logits(ours, -5.0));
        let divergence: f64 = full.iter().zip(ours).map(|(p, q)| p * (p / q).ln()).sum();

        let alone = scores_of_logits(&[sparse, dense].concat(), &[1, 2], None);
        assert!((alone[0].nll + 0.3f64.ln()).abs() < 1e-5 && (alone[1].nll + 0.2f64.ln()).abs() < 1e-3);
        assert!(alone.iter().all(|score| score.compared.is_none()), "nothing was compared");

        let (none, scores) = Distributions::of_logits(&[], &[]);
        assert!(scores.is_empty() && scores_of_logits(&[], &[], Some(&none)).is_empty());
        let on_device = Distributions::on_device(());
        assert!(scores_of_logits(&[], &[], Some(&on_device)).is_empty(), "there is nothing to compare");

        let (of_full, own) = Distributions::of_logits(&[dense, dense].concat(), &[2, 0]);
        let itself = Some(Compared { kl: 0.0, same_top: true });
        assert!(own.iter().all(|score| score.compared == itself));
        assert_eq!(own[0].nll, alone[1].nll);
        let compared = scores_of_logits(&[sparse, dense].concat(), &[2, 0], Some(&of_full));
        assert!((compared[0].nll + 0.6f64.ln()).abs() < 1e-5);
        let Compared { kl, same_top } = compared[0].compared.unwrap();
        assert!((kl - divergence).abs() < 1e-3 && !same_top, "{kl}");
        assert_eq!(compared[1], own[1], "the same rows are compared");
    }
}
