//! What a method attends as weights of tokens: exact parts, picks and what stands for the rest, in one softmax.

use super::head::Head;
use spattn_attention::{AttendedTokens, SelectedTokens, Selection, Weighting};

/// Weights that stand for exact attention's: they sum to 1, but for given weights that do not.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Tokens with their weights, static ones first.
    pub weights: Vec<(usize, f64)>,
    /// A vector that stands for what was not picked, with its weight.
    pub rest: Option<(f64, Vec<f32>)>,
}

impl Estimate {
    /// The output that it leads to.
    pub fn output(&self, head: &Head) -> Vec<f64> {
        let mut out = head.weighted(self.weights.iter().copied());
        if let Some((weight, value)) = &self.rest {
            out.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        out
    }

    /// `(Σw)²/Σw²`: how many equally weighted tokens would say as much.
    pub fn effective(&self) -> f64 {
        let sum: f64 = self.weights.iter().map(|(_, w)| w).sum();
        let squares: f64 = self.weights.iter().map(|(_, w)| w * w).sum();
        if squares > 0.0 { sum * sum / squares } else { 0.0 }
    }

    /// The greatest share that a token has of all.
    pub fn largest(&self) -> f64 {
        let sum: f64 = self.weights.iter().map(|(_, w)| w).sum();
        self.weights.iter().map(|(_, w)| w / sum).fold(0.0, f64::max)
    }
}

/// What one query head of a group picked; nothing where nothing was.
pub fn picks_of(picked: &AttendedTokens, in_group: usize) -> Option<&SelectedTokens> {
    match &picked.selection {
        None => None,
        Some(Selection::Shared(picks)) => Some(picks),
        Some(Selection::PerHead(heads)) => heads.get(in_group),
    }
}

/// The weights of one query head of a group, whose logits are those of all tokens in context.
pub fn estimate(logits: &[f64], picked: &AttendedTokens, in_group: usize) -> Estimate {
    let exact = picked.exact;
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp = |token: usize| (logits[token] - top).exp();
    // What given weights stand for counts whole, whatever they sum to.
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
