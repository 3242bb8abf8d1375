//! Size search: the largest example that fits a length.
//!
//! An example consists of whole units (words of an essay, noise lines, documents, …). Its length is the number of tokens of the whole
//! prompt, by the evaluated model's tokenizer, plus the tokens to generate. RULER's generator searches the size of one example, steps
//! down by a fixed increment for all others, and may loop forever if nothing fits. Here the size of every example is searched, with
//! few calls of the tokenizer, and the search always ends.

use anyhow::Result;

use crate::seed::Draw;
use crate::{Positions, PromptCounter};
use spattn_base::error::UsageError;

/// The share of the length that an example should fill at least.
pub const LEAST_FILL: f64 = 0.95;
/// The most attempts to draw an example, if units are so large that the largest size fills less than [`LEAST_FILL`].
const ATTEMPTS: u64 = 32;
/// After this many calls of the tokenizer, every second step halves the range, so the search ends soon however token counts grow.
const TRUST_INTERPOLATION: usize = 8;

/// The request for an example, and how its length is counted.
pub struct Request<'a> {
    /// The full task name, for messages.
    pub task: &'a str,
    /// The name that seeds hash.
    pub seed_name: &'a str,
    /// The total tokens of prompt and answer.
    pub length: usize,
    /// The index of the example in its task.
    pub index: usize,
    /// The run's seed.
    pub run_seed: u64,
    /// The example's own seed.
    pub seed: u64,
    /// Tokens kept free for the answer.
    pub max_new_tokens: usize,
    /// Whether shuffles are drawn for each example or are RULER's fixed ones.
    pub positions: Positions,
    /// Counts the tokens of a prompt.
    pub counter: &'a dyn PromptCounter,
}

impl Request<'_> {
    /// The stream of random draws for one part of the example. Each attempt of [`fill`] has its own streams.
    pub fn draw(&self, attempt: u64, part: u64) -> Draw {
        Draw::new(self.seed, self.stream(attempt, part))
    }

    /// The number of the stream that [`Request::draw`] gives.
    pub fn stream(&self, attempt: u64, part: u64) -> u64 {
        attempt << 32 | part
    }

    /// The tokens of `draft` plus the tokens to generate.
    pub fn tokens(&self, draft: &Draft) -> Result<usize> {
        let user = format!("{}{}", draft.context, draft.question);
        Ok(self.counter.prompt_tokens(&user, &draft.answer_prefix)? + self.max_new_tokens)
    }

    /// Whether `tokens` fill at least [`LEAST_FILL`] of the length.
    pub fn is_filled(&self, tokens: usize) -> bool {
        tokens as f64 >= LEAST_FILL * self.length as f64
    }

    /// The error of a task whose smallest example is too long.
    pub fn cannot_fit(&self, least_tokens: usize) -> UsageError {
        UsageError::new(format!(
            "task `{}` cannot fit {} tokens: its smallest example needs {least_tokens}, {} of them for the answer",
            self.task, self.length, self.max_new_tokens
        ))
        .hint("ask for a longer length (--length), or leave the task out")
    }

    /// The error of a task that has too few units to fill the length.
    pub fn runs_out(&self, tokens: usize) -> UsageError {
        UsageError::new(format!(
            "task `{}` cannot fill {} tokens: all of its data make {tokens}",
            self.task, self.length
        ))
        .hint("ask for a shorter length (--length), or give more data (--data DIR)")
    }
}

/// An example under construction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// Text up to the question.
    pub context: String,
    /// The question.
    pub question: String,
    /// Start of the answer.
    pub answer_prefix: String,
    /// The answer key.
    pub references: Vec<String>,
    /// A note that is added to the record's `source`.
    pub note: Option<String>,
}

/// The possible numbers of units of an example.
#[derive(Debug, Clone, Copy)]
pub struct Units {
    /// The fewest that make a valid example.
    pub least: usize,
    /// The most there are.
    pub most: usize,
    /// The first counted example has this many units more than `least`, to estimate the tokens of a unit.
    pub probe: usize,
}

/// The largest example that fits, with its size.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The example.
    pub draft: Draft,
    /// The number of units that it has.
    pub units: usize,
    /// The number of its tokens, including those to generate.
    pub tokens: usize,
}

/// Finds the largest example that fits. If it leaves too much of the length empty, a few other examples are drawn.
///
/// `build(attempt, n)` must always return the same draft for the same arguments. If one unit is more than 5 % of the length (UUID
/// needles at 512 tokens), the attempt that fills most is used.
///
/// # Errors
/// A [`UsageError`] if the smallest example does not fit or if all units together do not fill the
/// length; errors of `build` and of the counter.
pub fn fill(request: &Request, units: Units, build: impl FnMut(u64, usize) -> Result<Draft>) -> Result<Draft> {
    Ok(fill_sized(request, units, build)?.1.draft)
}

/// Like [`fill`], but also returns the chosen attempt and its size.
///
/// # Errors
/// Those of [`fill`].
pub fn fill_sized(
    request: &Request,
    units: Units,
    mut build: impl FnMut(u64, usize) -> Result<Draft>,
) -> Result<(u64, Fitted)> {
    let mut best: Option<(u64, Fitted)> = None;
    for attempt in 0..ATTEMPTS {
        let fitted = largest(request, units, |n| build(attempt, n))?;
        if request.is_filled(fitted.tokens) {
            return Ok((attempt, fitted));
        }
        if fitted.units == units.most {
            return Err(request.runs_out(fitted.tokens).into());
        }
        if best.as_ref().is_none_or(|(_, b)| b.tokens < fitted.tokens) {
            best = Some((attempt, fitted));
        }
    }
    best.ok_or_else(|| request.cannot_fit(request.length).into())
}

/// Finds the largest number of units that fits, by interpolation between a size that fits and one that does not. The tokens of the
/// result are always counted, so it fits whatever the tokenizer does.
///
/// # Errors
/// A [`UsageError`] if the smallest example does not fit; errors of `build` and of the counter.
pub fn largest(request: &Request, units: Units, mut build: impl FnMut(usize) -> Result<Draft>) -> Result<Fitted> {
    let mut measure = |n: usize| -> Result<Fitted> {
        let draft = build(n)?;
        let tokens = request.tokens(&draft)?;
        Ok(Fitted { draft, units: n, tokens })
    };
    let smallest = measure(units.least)?;
    if smallest.tokens > request.length {
        return Err(request.cannot_fit(smallest.tokens).into());
    }
    let mut search = Search {
        length: request.length,
        first: (smallest.units, smallest.tokens),
        fits: (smallest.units, smallest.tokens),
        too_long: None,
        units,
        countings: 1,
    };
    let mut best = smallest;
    while let Some(next) = search.next() {
        let probed = measure(next)?;
        search.learn(probed.units, probed.tokens);
        if probed.tokens <= request.length {
            best = probed;
        }
    }
    Ok(best)
}

/// The sizes that were counted so far, as `(units, tokens)`.
struct Search {
    length: usize,
    first: (usize, usize),
    fits: (usize, usize),
    too_long: Option<(usize, usize)>,
    units: Units,
    countings: usize,
}

impl Search {
    /// The next size to count; `None` once the largest that fits is known.
    fn next(&self) -> Option<usize> {
        let end = self.too_long.map_or(self.units.most + 1, |(units, _)| units);
        let (low, high) = (self.fits.0 + 1, end.saturating_sub(1));
        if low > high {
            return None;
        }
        let guess = match self.too_long {
            Some(_) if self.countings >= TRUST_INTERPOLATION && self.countings.is_multiple_of(2) => {
                low + (high - low) / 2
            }
            Some(too_long) => line(self.fits, too_long, self.length),
            None if self.fits == self.first => self.first.0 + self.units.probe,
            None => line(self.first, self.fits, self.length),
        };
        Some(guess.clamp(low, high))
    }

    fn learn(&mut self, units: usize, tokens: usize) {
        self.countings += 1;
        if tokens <= self.length {
            self.fits = (units, tokens);
        } else {
            self.too_long = Some((units, tokens));
        }
    }
}

/// The number of units at which the line through two sizes reaches `tokens`; twice the larger size if the line does not rise.
fn line(a: (usize, usize), b: (usize, usize), tokens: usize) -> usize {
    if b.1 <= a.1 || b.0 <= a.0 {
        return 2 * a.0.max(b.0);
    }
    let per_unit = (b.1 - a.1) as f64 / (b.0 - a.0) as f64;
    a.0 + ((tokens.saturating_sub(a.1)) as f64 / per_unit) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts bytes as tokens, and how often it is called.
    struct Bytes(AtomicUsize);

    impl PromptCounter for Bytes {
        fn prompt_tokens(&self, user: &str, answer_prefix: &str) -> Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(user.len() + answer_prefix.len())
        }
    }

    fn request(length: usize, counter: &Bytes) -> Request<'_> {
        Request {
            task: "ruler/test",
            seed_name: "ruler/test",
            length,
            index: 0,
            run_seed: 0,
            seed: 1,
            max_new_tokens: 10,
            positions: Positions::Varied,
            counter,
        }
    }

    fn of_bytes(bytes: usize) -> Result<Draft> {
        Ok(Draft { context: "x".repeat(bytes), ..Draft::default() })
    }

    const UNITS: Units = Units { least: 1, most: 1_000_000, probe: 20 };

    #[test]
    fn too_short_a_length_is_an_error_that_says_so() {
        let counter = Bytes(AtomicUsize::new(0));
        let error = largest(&request(64, &counter), UNITS, |n| of_bytes(100 + n)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "task `ruler/test` cannot fit 64 tokens: its smallest example needs 111, 10 of them for the answer"
        );
        assert!(error.downcast_ref::<UsageError>().is_some_and(|e| e.hint.is_some()));
    }

    #[test]
    fn material_that_runs_out_is_an_error() {
        let counter = Bytes(AtomicUsize::new(0));
        let error = fill(&request(1000, &counter), Units { most: 30, ..UNITS }, |_, n| of_bytes(n)).unwrap_err();
        assert_eq!(error.to_string(), "task `ruler/test` cannot fill 1000 tokens: all of its data make 40");
    }

    #[test]
    fn a_coarse_unit_takes_the_fullest_attempt() {
        let counter = Bytes(AtomicUsize::new(0));
        let draft =
            fill(&request(500, &counter), UNITS, |attempt, n| of_bytes(400 * n + 10 * (attempt as usize % 4))).unwrap();
        assert_eq!(draft.context.len(), 430);
    }

    #[test]
    fn long_examples_need_few_countings() {
        for (per_unit, length) in [(5, 131_072), (90, 131_072), (21, 4_096), (7, 1_024)] {
            let counter = Bytes(AtomicUsize::new(0));
            let noisy = |n: usize| of_bytes(50 + per_unit * n + (n * 7919) % per_unit + n / 40);
            largest(&request(length, &counter), UNITS, noisy).unwrap();
            let countings = counter.0.load(Ordering::Relaxed);
            assert!(countings <= 10, "{countings} countings for {per_unit} a unit at {length}");
        }
    }

    proptest! {
        /// If lengths grow with the units in any way, the largest size is found exactly.
        #[test]
        fn the_largest_size_is_found(steps in proptest::collection::vec(0usize..60, 1..400), length in 20usize..6_000) {
            let total = |n: usize| -> usize { steps[..n].iter().sum::<usize>() };
            let counter = Bytes(AtomicUsize::new(0));
            let units = Units { least: 0, most: steps.len(), probe: 5 };
            let fitted = largest(&request(length, &counter), units, |n| of_bytes(total(n))).unwrap();
            let expected = (0..=steps.len()).filter(|&n| total(n) + 10 <= length).max().unwrap();
            prop_assert_eq!(fitted.units, expected);
            prop_assert!(counter.0.load(Ordering::Relaxed) <= 30);
        }

        /// If lengths go up and down, the search still ends, and its result fits.
        #[test]
        fn jumping_lengths_never_exceed(lengths in proptest::collection::vec(1usize..3_000, 2..200), length in 100usize..3_000) {
            let counter = Bytes(AtomicUsize::new(0));
            let units = Units { least: 0, most: lengths.len(), probe: 5 };
            let build = |n: usize| of_bytes(if n == 0 { 1 } else { lengths[n - 1] });
            let fitted = largest(&request(length, &counter), units, build).unwrap();
            prop_assert!(fitted.tokens <= length);
            prop_assert!(counter.0.load(Ordering::Relaxed) <= 40);
        }
    }
}
