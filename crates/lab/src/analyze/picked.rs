//! What a method attends, as token weights of one softmax: static tokens, selected tokens, and a vector that stands for the rest.

use super::head::Head;
use spattn_attention::{AttendedTokens, SelectedTokens, Selection, Weighting};

/// Estimated attention weights. They sum to 1, except if the method gives weights directly.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Tokens with their weights, the static ones first.
    pub weights: Vec<(usize, f64)>,
    /// A vector that stands for the tokens not selected, with its weight.
    pub rest: Option<(f64, Vec<f32>)>,
}

impl Estimate {
    /// The attention output under these weights.
    pub fn output(&self, head: &Head) -> Vec<f64> {
        let mut out = head.weighted(self.weights.iter().copied());
        if let Some((weight, value)) = &self.rest {
            out.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        out
    }

    /// The effective sample size `(Σw)²/Σw²`: equally many tokens of equal weight would carry as much information.
    pub fn effective(&self) -> f64 {
        let sum: f64 = self.weights.iter().map(|(_, w)| w).sum();
        let squares: f64 = self.weights.iter().map(|(_, w)| w * w).sum();
        if squares > 0.0 { sum * sum / squares } else { 0.0 }
    }

    /// The largest weight as a share of their sum.
    pub fn largest(&self) -> f64 {
        let sum: f64 = self.weights.iter().map(|(_, w)| w).sum();
        self.weights.iter().map(|(_, w)| w / sum).fold(0.0, f64::max)
    }
}

/// Returns the tokens that one query head of a group selected; `None` if there is no selection.
pub fn picks_of(picked: &AttendedTokens, in_group: usize) -> Option<&SelectedTokens> {
    match &picked.selection {
        None => None,
        Some(Selection::Shared(picks)) => Some(picks),
        Some(Selection::PerHead(heads)) => heads.get(in_group),
    }
}

/// Returns the estimated weights of one query head of a group. `logits` holds one logit for each token in context.
pub fn estimate(logits: &[f64], picked: &AttendedTokens, in_group: usize) -> Estimate {
    let exact = picked.exact;
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp = |token: usize| (logits[token] - top).exp();
    // Direct weights are not normalised: `log_mass` is the mass that all of them stand for, whatever their sum.
    let mut given_mass = None;
    let mut weights: Vec<(usize, f64)> =
        (0..exact.sink).chain(exact.recent..logits.len()).map(|token| (token, exp(token))).collect();
    let mut rest = None;
    if let Some(picks) = picks_of(picked, in_group) {
        let tokens = || picks.tokens.iter().map(|token| *token as usize);
        match &picks.weighting {
            Weighting::Softmax => weights.extend(tokens().map(|token| (token, exp(token)))),
            Weighting::LogBias(bias) => {
                weights.extend(tokens().zip(bias).map(|(token, bias)| (token, exp(token) * f64::from(-bias).exp())));
            }
            Weighting::Direct { weights: given, log_mass } => {
                let mass = (f64::from(*log_mass) - top).exp();
                given_mass = Some(mass + weights.iter().map(|(_, w)| w).sum::<f64>());
                weights.extend(tokens().zip(given).map(|(token, weight)| (token, mass * f64::from(*weight))));
            }
            Weighting::Remainder { shares, value } => {
                weights.extend(tokens().map(|token| (token, exp(token))));
                let mass: f64 = tokens().map(exp).sum();
                let share = f64::from(shares[in_group.min(shares.len() - 1)]);
                rest = Some((mass * share / (1.0 - share), value.clone()));
            }
        }
    }
    let summed = || weights.iter().map(|(_, w)| w).sum::<f64>() + rest.as_ref().map_or(0.0, |(w, _)| *w);
    let sum: f64 = given_mass.unwrap_or_else(summed);
    weights.iter_mut().for_each(|(_, w)| *w /= sum);
    Estimate { weights, rest: rest.map(|(w, value)| (w / sum, value)) }
}
