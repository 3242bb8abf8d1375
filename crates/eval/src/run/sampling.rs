//! Chooses the next token of an answer by its logits: the likeliest one, or a random one.

use spattn_attention::mix_seed;
use spattn_kernels::topk::argmax;

/// How tokens are drawn.
///
/// A draw depends only on the seed, the repeat, the index in the answer and the logits: not on the method, nor on what else is generated.
/// For each draw, every token gets its own random number (Gumbel noise), and the token with the greatest sum of `logit / temperature` and
/// noise is chosen. This samples from the softmax. Two methods with nearly equal logits mostly draw the same token, so that their answers
/// differ by method rather than by chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// The share of the probability that the likeliest tokens, among which one is drawn, have together; at most 1.
    pub top_p: f64,
    /// The seed of the example.
    pub seed: u64,
}

impl Sampling {
    /// Always takes the likeliest token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };

    /// Whether it always takes the likeliest token.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Chooses the token at index `place` (from 0) of an answer's repeat (from 0), by logits `[vocab_size]`. Tokens whose logit is minus
    /// infinity are never chosen.
    pub fn choose(&self, logits: &[f32], repeat: usize, place: usize) -> u32 {
        if self.is_greedy() {
            return argmax(logits) as u32;
        }
        let scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit) / self.temperature).collect();
        let seed = mix_seed(mix_seed(self.seed, repeat as u64), place as u64);
        let drawn = self.nucleus(&scaled).into_iter().map(|token| (scaled[token] + gumbel(seed, token), token));
        // Of equal sums, the first token is taken.
        let best = drawn.fold(None, |best: Option<(f64, usize)>, next| match best {
            Some(best) if best.0 >= next.0 => Some(best),
            _ => Some(next),
        });
        best.map_or(0, |(_, token)| token as u32)
    }

    /// The tokens that may be drawn: the likeliest ones, up to the one with which their probability reaches [`top_p`](Self::top_p). Of
    /// equally likely tokens, those with smaller ids come first.
    fn nucleus(&self, scaled: &[f64]) -> Vec<usize> {
        let mut tokens: Vec<usize> = (0..scaled.len()).filter(|token| scaled[*token] > f64::NEG_INFINITY).collect();
        if self.top_p >= 1.0 {
            return tokens;
        }
        tokens.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]).then(a.cmp(b)));
        let greatest = tokens.first().map_or(0.0, |token| scaled[*token]);
        let weight = |token: &usize| (scaled[*token] - greatest).exp();
        let share = self.top_p * tokens.iter().map(weight).sum::<f64>();
        let mut before = 0.0;
        let kept = tokens.iter().take_while(|token| {
            let is_kept = before < share;
            before += weight(token);
            is_kept
        });
        let kept = kept.count();
        tokens.truncate(kept);
        tokens
    }
}

/// A number from the standard Gumbel distribution, determined by seed and token.
fn gumbel(seed: u64, token: usize) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    // The middle of one of 2^53 intervals, and so neither 0 nor 1.
    let uniform = ((mix_seed(seed, token as u64) >> 11) as f64 + 0.5) / STEPS;
    -(-uniform.ln()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, f32::NEG_INFINITY, -1.0];

    fn counts(sampling: Sampling, draws: usize) -> [usize; 5] {
        let mut counts = [0; 5];
        (0..draws).for_each(|place| counts[sampling.choose(&LOGITS, 0, place) as usize] += 1);
        counts
    }

    /// Checks with a chi-squared test that tokens in `kept` are drawn as often as the softmax says, and no others.
    fn follows_softmax(sampling: Sampling, kept: &[usize]) {
        const DRAWS: usize = 40_000;
        // The statistic exceeds this once in 100,000 times with three degrees of freedom, and less often with fewer.
        const MOST: f64 = 25.9;
        let found = counts(sampling, DRAWS);
        let weight = |token: usize| (f64::from(LOGITS[token]) / sampling.temperature).exp();
        let sum: f64 = kept.iter().map(|token| weight(*token)).sum();
        let of_token = |token: &usize| {
            let expected = DRAWS as f64 * weight(*token) / sum;
            (found[*token] as f64 - expected).powi(2) / expected
        };
        let statistic: f64 = kept.iter().map(of_token).sum();
        assert!(statistic < MOST, "{found:?}: {statistic}");
        assert_eq!(kept.iter().map(|token| found[*token]).sum::<usize>(), DRAWS, "others were drawn: {found:?}");
    }

    #[test]
    fn draws_follow_the_softmax_of_scaled_logits() {
        for temperature in [0.5, 1.0, 2.0] {
            follows_softmax(Sampling { temperature, top_p: 1.0, seed: 7 }, &[0, 1, 2, 4]);
        }
    }

    #[test]
    fn only_the_likeliest_tokens_with_the_share_of_probability_are_drawn() {
        // At temperature 1 the shares are 0.0889, 0.657, 0.242 and 0.0120.
        for (top_p, kept) in
            [(0.001, &[1][..]), (0.65, &[1]), (0.66, &[1, 2]), (0.95, &[0, 1, 2]), (0.99, &[0, 1, 2, 4])]
        {
            follows_softmax(Sampling { temperature: 1.0, top_p, seed: 11 }, kept);
        }
    }

    #[test]
    fn a_draw_depends_on_seed_repeat_and_place() {
        let text = |seed, repeat| -> Vec<u32> {
            let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed };
            (0..50).map(|place| sampling.choose(&LOGITS, repeat, place)).collect()
        };
        assert_eq!(text(1, 0), text(1, 0));
        assert_ne!(text(1, 0), text(1, 1));
        assert_ne!(text(1, 0), text(2, 0));
        let first = text(1, 0);
        assert!(first.iter().any(|token| *token != first[0]), "places draw apart");
    }

    #[test]
    fn nearly_equal_logits_mostly_draw_the_same_token() {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 3 };
        let moved: Vec<f32> = LOGITS.iter().enumerate().map(|(at, logit)| logit + 0.01 * at as f32).collect();
        let equal = (0..1000).filter(|place| sampling.choose(&LOGITS, 0, *place) == sampling.choose(&moved, 0, *place));
        assert!(equal.count() > 980);
    }

    #[test]
    fn temperature_zero_takes_the_likeliest() {
        assert_eq!(counts(Sampling::GREEDY, 10), [0, 10, 0, 0, 0]);
    }
}
