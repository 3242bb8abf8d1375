//! Measures the step time of a method that runs alone on the machine: the latency that a deployment would see.
//!
//! After an example, its methods repeat some of their steps, each on a new fork of the existing prefix and indexes, one token at a time,
//! with all threads. They take turns, so that changes of the machine affect all of them alike. The first turn fills caches and does not
//! count. A turn's time is the mean of its steps, since a method may select once for several steps. Predictions, scores and costs are not
//! affected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::decoding_policy::Feed;
use crate::records::fidelity::four_digits;
use crate::records::timing::Solo;
use spattn_attention::{Configured, IndexCache, Sequence};
use spattn_model::decoder::Decoder;
use spattn_model::engine::{EngineError, READ_AT_ONCE, Stream};

/// The most steps that are timed in a turn.
pub const STEPS: usize = 16;
/// The number of turns that count.
pub const REPEATS: usize = 5;

/// Splits a feed into the tokens that are read first and those whose steps are timed: the first tokens of the answer, preceded by as many
/// others as are needed to have enough.
fn split(feed: &Feed) -> (&[u32], &[u32]) {
    let tokens = feed.tokens();
    let first = feed.prompt_tokens().min(tokens.len().saturating_sub(STEPS));
    let (before, timed) = tokens.split_at(first);
    (before, &timed[..timed.len().min(STEPS)])
}

/// Times the steps of each method alone, on a new sequence that is fed the same tokens again; `None` for a method that took no step. `runs`
/// are the methods with their solved parameters. Returns `None` if `stop` was raised.
///
/// # Errors
/// [`EngineError`].
pub(crate) fn time(
    decoder: &Decoder,
    indexes: &mut IndexCache,
    runs: &[(&Configured, &Feed)],
    prompt_tokens: usize,
    stop: &AtomicBool,
) -> Result<Option<Vec<Option<Solo>>>, EngineError> {
    let times = in_turns(runs.len(), REPEATS, |i| match stop.load(Ordering::Relaxed) {
        true => Ok(None),
        false => {
            let (method, feed) = runs[i];
            let mut sequence = indexes.fork(method, false)?;
            // Inside the thread pool, so that no thread has to be woken up for every product.
            rayon::scope(|_| step_ms(decoder, &mut sequence, feed, prompt_tokens))
        }
    })?;
    let solo = |((_, feed), ms): (&(&Configured, &Feed), Vec<Option<f64>>)| {
        let ms: Box<[f64]> = ms.into_iter().flatten().map(four_digits).collect();
        (!ms.is_empty()).then(|| Solo { steps: split(feed).1.len(), ms })
    };
    Ok((!stop.load(Ordering::Relaxed)).then(|| runs.iter().zip(times).map(solo).collect()))
}

/// The results of `take` for each of `count` indices, in turns: one turn that does not count, then `repeats` turns that do.
fn in_turns<T, E>(count: usize, repeats: usize, mut take: impl FnMut(usize) -> Result<T, E>) -> Result<Vec<Vec<T>>, E> {
    let mut taken: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for turn in 0..=repeats {
        for (i, taken) in taken.iter_mut().enumerate() {
            let took = take(i)?;
            if turn > 0 {
                taken.push(took);
            }
        }
    }
    Ok(taken)
}

/// The mean time of one-token steps in milliseconds; `None` if there are no steps.
fn step_ms(
    decoder: &Decoder,
    sequence: &mut Sequence,
    feed: &Feed,
    prompt_tokens: usize,
) -> Result<Option<f64>, EngineError> {
    let (before, timed) = split(feed);
    let mut step = |tokens: &[u32]| -> Result<Duration, EngineError> {
        let start = Instant::now();
        decoder.step(&mut [Stream { fork: &mut *sequence, tokens }], prompt_tokens)?;
        Ok(start.elapsed())
    };
    before.chunks(READ_AT_ONCE).try_for_each(|tokens| step(tokens).map(drop))?;
    let times = timed.chunks(1).map(&mut step).collect::<Result<Vec<_>, _>>()?;
    Ok(mean_ms(&times))
}

/// The mean of some times in milliseconds; `None` if there are none. Their median would leave out the selection of a method that selects
/// once for several steps.
fn mean_ms(times: &[Duration]) -> Option<f64> {
    let all: Duration = times.iter().sum();
    (!times.is_empty()).then(|| 1000.0 * all.as_secs_f64() / times.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_take_turns_and_the_first_turn_does_not_count() {
        let (mut order, mut clock) = (Vec::new(), 0);
        let taken = in_turns(3, 2, |i| {
            order.push(i);
            clock += 1;
            Ok::<_, ()>(clock)
        });
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(taken, Ok(vec![vec![4, 7], vec![5, 8], vec![6, 9]]));
        assert_eq!(in_turns(2, 5, |i| if i == 1 { Err("no") } else { Ok(i) }), Err("no"));
    }

    #[test]
    fn a_step_that_selects_for_several_counts() {
        let steps: Vec<Duration> = (0..STEPS).map(|i| Duration::from_millis(if i % 8 == 0 { 9 } else { 1 })).collect();
        assert_eq!(mean_ms(&steps), Some(2.0), "not 1.0, the median");
        assert_eq!(mean_ms(&[]), None);
    }

    #[test]
    fn what_is_timed_is_generated_if_enough_of_it_is() {
        let split = |tokens: usize, of_prompt: usize| {
            let tokens: Vec<u32> = (0..tokens as u32).collect();
            let feed = Feed::new(&tokens[..of_prompt], &tokens[of_prompt..]);
            let (before, timed) = super::split(&feed);
            (before.len(), timed.first().copied(), timed.len())
        };
        assert_eq!(split(100, 40), (40, Some(40), STEPS), "of a long answer the first tokens");
        assert_eq!(
            split(44, 40),
            (44 - STEPS, Some(44 - STEPS as u32), STEPS),
            "of a short one its last, and more before"
        );
        assert_eq!(split(7, 5), (0, Some(0), 7));
        assert_eq!(split(0, 0), (0, None, 0));
    }
}
