//! The search among the candidates of one method: which to run next, and when the answer is certain.
//!
//! Candidates are numbered from the smallest budget. The search looks for the *boundary*: the smallest candidate within the limit
//! whose next smaller neighbour is beyond it. It narrows the gap between a candidate that seems beyond and one that seems within. Only
//! inside such a gap does it assume that losses fall as budgets grow.

use serde::Serialize;

use spattn_stats::evidence::{Evidence, Side};

/// The verdict on a candidate's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetVerdict {
    /// The loss is certainly within the limit.
    Within,
    /// The loss is certainly beyond the limit.
    Beyond,
    /// Neither is certain.
    Open,
}

/// The answer of a search. Candidates are given by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// `at` is within the limit and `below`, the next smaller candidate, is beyond it.
    Smallest {
        /// The answer.
        at: usize,
        /// The candidate below.
        below: usize,
    },
    /// The smallest candidate is within the limit.
    Lowest {
        /// The answer.
        at: usize,
    },
    /// The largest candidate is beyond the limit, and none is within it.
    Nowhere {
        /// The largest candidate.
        top: usize,
    },
    /// The samples do not decide the answer.
    Open {
        /// The smallest candidate that seems within the limit.
        at: Option<usize>,
        /// The next smaller candidate, which seems beyond it.
        below: Option<usize>,
        /// The smallest candidate that is certainly within.
        certain: Option<usize>,
        /// About how many samples would decide, if further ones are like those so far; `None` if a loss is too close to the limit.
        needed: Option<usize>,
    },
}

impl Answer {
    /// Returns the candidate to use: the answer, else the smallest that is certainly within, else the smallest that seems within.
    pub fn chosen(&self) -> Option<usize> {
        match *self {
            Self::Smallest { at, .. } | Self::Lowest { at } => Some(at),
            Self::Nowhere { .. } => None,
            Self::Open { at, certain, .. } => certain.or(at),
        }
    }

    /// Returns the same answer with each candidate number mapped by `of`.
    pub fn map(self, of: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Smallest { at, below } => Self::Smallest { at: of(at), below: of(below) },
            Self::Lowest { at } => Self::Lowest { at: of(at) },
            Self::Nowhere { top } => Self::Nowhere { top: of(top) },
            Self::Open { at, below, certain, needed } => {
                Self::Open { at: at.map(&of), below: below.map(&of), certain: certain.map(&of), needed }
            }
        }
    }
}

/// The measured losses of a candidate, and their verdict.
#[derive(Debug, Clone)]
pub struct MeasuredCandidate {
    /// The losses.
    pub evidence: Evidence,
    /// Lower and upper bounds of the mean loss.
    pub bounds: (f64, f64),
    /// The verdict.
    pub verdict: BudgetVerdict,
    /// The number of samples that the candidate was run on.
    pub samples: usize,
}

impl MeasuredCandidate {
    fn is_open(&self) -> bool {
        self.verdict == BudgetVerdict::Open
    }
}

/// The state of the search.
#[derive(Debug)]
pub struct Search {
    limit: f64,
    error: f64,
    found: Vec<Option<MeasuredCandidate>>,
}

/// The boundary by the mean losses so far: the largest candidate that seems beyond, and the smallest above it that seems within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Boundary {
    below: Option<usize>,
    at: Option<usize>,
}

/// Returns the allowed probability, over all looks, that the verdict on one of `candidates` candidates is wrong.
pub fn error(confidence: f64, candidates: usize) -> f64 {
    (1.0 - confidence) / candidates.max(1) as f64
}

impl Search {
    /// Starts a search among `candidates` candidates, at least two.
    pub fn new(candidates: usize, limit: f64, confidence: f64) -> Self {
        Self { limit, error: error(confidence, candidates), found: vec![None; candidates] }
    }

    /// Returns the allowed probability that the verdict on one candidate is wrong.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// Returns the measured candidates, by number.
    pub fn found(&self) -> impl Iterator<Item = (usize, &MeasuredCandidate)> {
        self.found.iter().enumerate().filter_map(|(at, found)| Some((at, found.as_ref()?)))
    }

    /// Adds the losses of a candidate over its first `samples` samples. [`Evidence`] allows any number of looks, so a verdict is
    /// final.
    pub fn take(&mut self, at: usize, samples: usize, losses: Option<Evidence>) {
        let Some(evidence) = losses else {
            // No example was run under both methods: do not ask for the candidate again at this look.
            if let Some(found) = &mut self.found[at] {
                found.samples = samples;
            }
            return;
        };
        let verdict = match evidence.side(self.limit, self.error) {
            Some(Side::Below) => BudgetVerdict::Within,
            Some(Side::Above) => BudgetVerdict::Beyond,
            None => BudgetVerdict::Open,
        };
        let bounds = evidence.bounds(self.error);
        self.found[at] = Some(MeasuredCandidate { evidence, bounds, verdict, samples });
    }

    /// Removes candidates, which lowers the numbers of larger ones. The allowed error of each verdict stays as it was.
    pub fn leave_out(&mut self, candidates: std::ops::Range<usize>) {
        self.found.drain(candidates);
    }

    /// Returns the candidates to run on `samples` samples before the number of samples grows; empty if all that matter were run.
    pub fn wanted(&self, samples: usize) -> Vec<usize> {
        let top = self.found.len() - 1;
        if self.found[0].is_none() || self.found[top].is_none() {
            return [vec![0], between(0, top), vec![top]].concat();
        }
        let boundary = self.boundary();
        let (low, high) = (boundary.below.unwrap_or(0), boundary.at.unwrap_or(top));
        if high > low + 1 {
            return between(low, high);
        }
        let is_due = |at: &usize| self.found[*at].as_ref().is_none_or(|f| f.is_open() && f.samples < samples);
        if ![low, high].iter().any(is_due) {
            return Vec::new();
        }
        // Open neighbours are run too: the boundary may turn out to be there, and methods that run together share the prefill.
        let near = low.saturating_sub(1)..=(high + 1).min(top);
        near.filter(is_due).collect()
    }

    /// Whether the answer is decided.
    pub fn is_certain(&self) -> bool {
        !matches!(self.answer(), Answer::Open { .. })
    }

    /// Returns the answer from the losses so far.
    pub fn answer(&self) -> Answer {
        let verdict = |at: Option<usize>| at.and_then(|at| Some(self.found[at].as_ref()?.verdict));
        let Boundary { below, at } = self.boundary();
        match (below, at, verdict(below), verdict(at)) {
            (Some(below), Some(at), Some(BudgetVerdict::Beyond), Some(BudgetVerdict::Within)) if at == below + 1 => {
                Answer::Smallest { at, below }
            }
            (None, Some(at), _, Some(BudgetVerdict::Within)) if at == 0 => Answer::Lowest { at },
            (Some(top), None, Some(BudgetVerdict::Beyond), _) if top + 1 == self.found.len() => Answer::Nowhere { top },
            _ => Answer::Open { at, below, certain: self.smallest_certain(), needed: self.needed(below, at) },
        }
    }

    fn smallest_certain(&self) -> Option<usize> {
        self.found().find(|(_, found)| found.verdict == BudgetVerdict::Within).map(|(at, _)| at)
    }

    /// Returns the rounds that would decide all open candidates of the boundary.
    fn needed(&self, below: Option<usize>, at: Option<usize>) -> Option<usize> {
        let open = [below, at].into_iter().flatten().filter_map(|at| self.found[at].as_ref()).filter(|f| f.is_open());
        let needed: Option<Vec<usize>> = open.map(|f| f.evidence.rounds_needed(self.limit, self.error)).collect();
        needed?.into_iter().max()
    }

    fn seems_within(&self, found: &MeasuredCandidate) -> bool {
        match found.verdict {
            BudgetVerdict::Within => true,
            BudgetVerdict::Beyond => false,
            BudgetVerdict::Open => found.evidence.mean() <= self.limit,
        }
    }

    fn boundary(&self) -> Boundary {
        let at = self.found().find(|(_, found)| self.seems_within(found)).map(|(at, _)| at);
        let below = self.found().map(|(other, _)| other).take_while(|other| at.is_none_or(|at| *other < at)).last();
        Boundary { below, at }
    }
}

/// Returns up to three candidates that divide a gap evenly.
fn between(low: usize, high: usize) -> Vec<usize> {
    let mut inner: Vec<usize> = (1..4).map(|quarter| low + (high - low) * quarter / 4).collect();
    inner.retain(|at| *at > low && *at < high);
    inner.dedup();
    inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Candidates with true losses, and the random numbers drawn so far: each example has a luck that all candidates share.
    struct World {
        losses: Vec<f64>,
        gain: f64,
        random: ChaCha8Rng,
        lucks: Vec<[f64; 2]>,
    }

    impl World {
        fn new(losses: &[f64], gain: f64, seed: u64) -> Self {
            Self { losses: losses.to_vec(), gain, random: ChaCha8Rng::seed_from_u64(seed), lucks: Vec::new() }
        }

        fn evidence(&mut self, at: usize, samples: usize) -> Evidence {
            while self.lucks.len() < samples {
                self.lucks.push([self.random.random(), self.random.random()]);
            }
            let (loss, gain) = (self.losses[at] + self.gain, self.gain);
            // Half of the losses are on examples that other candidates lose as well.
            let of = |[shared, own]: &[f64; 2]| {
                let own = (own * 997.0 * (at + 1) as f64).fract();
                let luck = if *shared < 0.5 { *shared * 2.0 } else { own };
                f64::from(u8::from(luck < loss)) - f64::from(u8::from(luck > 1.0 - gain))
            };
            Evidence::new(&[self.lucks[..samples].iter().map(of).collect()]).unwrap()
        }
    }

    /// Searches as [`Tuning`](crate::tune::Tuning) does, and counts the measured samples.
    fn searched(world: &mut World, limit: f64, confidence: f64, most: usize) -> (Search, usize) {
        let mut search = Search::new(world.losses.len(), limit, confidence);
        let (mut samples, mut measured) = (8, 0);
        loop {
            let wanted = search.wanted(samples);
            if !wanted.is_empty() {
                for at in wanted {
                    measured += samples;
                    let evidence = world.evidence(at, samples);
                    search.take(at, samples, Some(evidence));
                }
            } else if search.is_certain() || samples >= most {
                return (search, measured);
            } else {
                samples = (2 * samples).min(most);
            }
        }
    }

    #[test]
    fn the_smallest_budget_within_the_limit_is_found() {
        let losses = [0.9, 0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0];
        let (search, measured) = searched(&mut World::new(&losses, 0.0, 1), 0.05, 0.95, 512);
        assert_eq!(search.answer(), Answer::Smallest { at: 7, below: 6 });
        assert!(measured < 6 * 512, "most candidates are not looked at for long: {measured}");
    }

    #[test]
    fn the_ends_of_the_range_are_said_to_be_that() {
        let of = |losses: &[f64]| searched(&mut World::new(losses, 0.0, 2), 0.05, 0.95, 1024).0.answer();
        assert_eq!(of(&[0.0; 6]), Answer::Lowest { at: 0 });
        assert_eq!(of(&[0.6; 6]), Answer::Nowhere { top: 5 });
        assert_eq!(of(&[0.6, 0.0]), Answer::Smallest { at: 1, below: 0 });
    }

    #[test]
    fn what_few_samples_cannot_tell_is_not_told() {
        let (search, _) = searched(&mut World::new(&[0.5, 0.2, 0.0, 0.0], 0.0, 3), 0.01, 0.95, 64);
        let Answer::Open { at: Some(2), below: Some(1), certain: None, needed: Some(needed) } = search.answer() else {
            panic!("{:?}", search.answer())
        };
        // With 0 losses in n, half of the stake, at the boldest bet, has to grow to 80 times the whole stake.
        let by_hand = (160f64.ln() / (1.0 + 0.9 * 0.01 / 0.99f64).ln()).ceil();
        assert!((needed as f64 - by_hand).abs() < 0.1 * by_hand, "{needed} {by_hand}");
        // A loss exactly at the limit is never decided.
        let mut search = Search::new(2, 0.25, 0.95);
        let quarter = Evidence::new(&[vec![1.0, 0.0, 0.0, 0.0]]);
        search.take(0, 4, Evidence::new(&[vec![1.0; 60]]));
        search.take(1, 4, quarter);
        assert_eq!(search.answer(), Answer::Open { at: Some(1), below: Some(0), certain: None, needed: None });
    }

    #[test]
    fn a_greater_budget_that_loses_is_no_reason_to_pass_over_a_smaller_one() {
        let losses = [0.7, 0.0, 0.6, 0.6, 0.0];
        let (search, _) = searched(&mut World::new(&losses, 0.0, 4), 0.1, 0.95, 512);
        assert_eq!(search.answer(), Answer::Smallest { at: 1, below: 0 });
        let third = search.found[2].as_ref().unwrap();
        assert!(third.evidence.mean() > 0.3, "it was looked at, and lost");
    }

    #[test]
    fn wide_ladders_are_closed_in_on() {
        let losses: Vec<f64> = (0..64).map(|i| if i < 41 { 0.8 } else { 0.0 }).collect();
        let (search, _) = searched(&mut World::new(&losses, 0.0, 5), 0.1, 0.95, 512);
        assert_eq!(search.answer(), Answer::Smallest { at: 41, below: 40 });
        let looked_at = search.found().count();
        assert!(looked_at <= 16, "{looked_at} of 64");
    }

    /// Checks that the simulation detects a wrong rule: intervals made for one look at one candidate accept too often in it.
    #[test]
    fn intervals_for_a_single_look_would_be_wrong_too_often() {
        const RUNS: u64 = 200;
        let accepts = |seed: u64| {
            let mut world = World::new(&[0.105; 8], 0.0, seed);
            [8, 16, 32, 64, 128, 256].iter().any(|n| {
                (0..8).any(|at| {
                    let loss = world.evidence(at, *n).mean();
                    loss + 1.282 * (loss * (1.0 - loss) / *n as f64).sqrt() <= 0.1
                })
            })
        };
        let accepted = (0..RUNS).filter(|seed| accepts(*seed)).count();
        assert!(accepted > RUNS as usize / 2, "{accepted} of {RUNS}, where 20 are allowed");
    }

    /// Checks that over many searches no more verdicts are wrong than stated, although each search looks up to eight times at up to
    /// eight candidates, which share their luck, and goes on where it looks good.
    #[test]
    fn wrong_answers_are_as_rare_as_stated() {
        const RUNS: u64 = 400;
        const CONFIDENCE: f64 = 0.9;
        // Losses just above or below the limit are the hardest.
        let cases: [(&[f64], f64, f64); 4] = [
            (&[0.105, 0.105, 0.105, 0.105, 0.105, 0.105, 0.105, 0.105], 0.0, 0.1),
            (&[0.3, 0.2, 0.12, 0.11, 0.09, 0.05, 0.0, 0.0], 0.1, 0.1),
            (&[0.055, 0.052, 0.051, 0.0505, 0.02, 0.0], 0.02, 0.05),
            (&[0.2, 0.045, 0.049, 0.0499], 0.0, 0.05),
        ];
        for (losses, gain, limit) in cases {
            let (mut accepted, mut wrong, mut told) = (0, 0, 0);
            for seed in 0..RUNS {
                let (search, _) = searched(&mut World::new(losses, gain, seed), limit, CONFIDENCE, 1024);
                let is_wrong = |(at, found): (usize, &MeasuredCandidate)| match found.verdict {
                    BudgetVerdict::Within => losses[at] > limit,
                    BudgetVerdict::Beyond => losses[at] <= limit,
                    BudgetVerdict::Open => false,
                };
                wrong += u32::from(search.found().any(is_wrong));
                accepted += u32::from(search.smallest_certain().is_some_and(|at| losses[at] > limit));
                told += u32::from(search.is_certain());
            }
            let most = (RUNS as f64 * (1.0 - CONFIDENCE)) as u32;
            assert!(accepted <= most && wrong <= most, "{losses:?}: {accepted} and {wrong} of {RUNS}, {told} told");
        }
    }
}
