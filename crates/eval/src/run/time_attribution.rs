//! Divides the time of joint steps among methods.
//!
//! Methods take steps in one batch, and groups of them run in parallel on several threads, so no wall time belongs to a single method. Each
//! method gets the time of its own work, by kind, and a share of the time of products with the weights, which all methods need. These parts
//! are then scaled so that they add up to the time that passed.

use std::time::{Duration, Instant};

use crate::records::timing::StepTime;
use spattn_attention::{AttentionTime, Sequence};
use spattn_base::clock::Section;

/// The clock by which steps are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Wall time: one group of sequences has all threads. Sequences that attend at the same time share the time that this takes.
    Wall,
    /// Processor time of a thread: groups step in parallel, each on its own thread, and may have to wait for one.
    Processor,
}

impl Clock {
    /// The clock for this many sequences, in groups of `together`.
    pub fn of_groups(sequences: usize, together: usize) -> Self {
        if sequences > together { Self::Processor } else { Self::Wall }
    }
}

/// A piece of work on one thread, measured by a clock.
pub(crate) struct Piece {
    clock: Clock,
    start: Instant,
    section: Section,
}

impl Piece {
    pub fn begin(clock: Clock) -> Self {
        Self { clock, start: Instant::now(), section: Section::begin() }
    }

    /// The time of the piece. By processor time, this excludes attention, which is measured separately.
    pub fn end(self) -> Duration {
        let worked = self.section.end();
        match self.clock {
            Clock::Wall => self.start.elapsed(),
            Clock::Processor => worked,
        }
    }
}

/// Measures a step of some sequences.
pub(crate) struct StepTimer {
    piece: Piece,
    /// The attention time of each sequence before the step.
    before: Vec<AttentionTime>,
}

impl StepTimer {
    /// Starts before these sequences take the step.
    pub fn begin<'f>(clock: Clock, sequences: impl Iterator<Item = &'f Sequence>) -> Self {
        Self { before: sequences.map(Sequence::attention_time).collect(), piece: Piece::begin(clock) }
    }

    /// The time of each sequence in the step, in which it read `rows` rows.
    pub fn end<'f>(self, sequences: impl Iterator<Item = &'f Sequence>, rows: &[usize]) -> Vec<StepTime> {
        let (clock, whole) = (self.piece.clock, self.piece.end());
        let attention: Vec<AttentionTime> =
            sequences.zip(&self.before).map(|(sequence, before)| sequence.attention_time() - *before).collect();
        parts(clock, whole, &attention, rows)
    }
}

/// Divides the time `whole` of a step: each sequence gets its own attention, and a share of the rest by its rows.
fn parts(clock: Clock, whole: Duration, attention: &[AttentionTime], rows: &[usize]) -> Vec<StepTime> {
    let rest = match clock {
        Clock::Wall => whole.saturating_sub(attention.iter().map(|time| time.elapsed).sum()),
        Clock::Processor => whole,
    };
    let all_rows = rows.iter().sum::<usize>().max(1) as f64;
    let of_sequence = |(time, rows): (&AttentionTime, &usize)| {
        let worked = time.worked().as_secs_f64();
        let factor = match clock {
            Clock::Wall if worked > 0.0 => time.elapsed.as_secs_f64() / worked,
            Clock::Wall => 0.0,
            Clock::Processor => 1.0,
        };
        StepTime {
            select: factor * time.select.as_secs_f64(),
            attend: factor * time.attend.as_secs_f64(),
            weights: rest.as_secs_f64() * *rows as f64 / all_rows,
            beside: factor * time.compare.as_secs_f64(),
        }
    };
    attention.iter().zip(rows).map(of_sequence).collect()
}

/// Scales the parts of all sequences so that they add up to the time that passed.
pub(crate) fn share_out<'p>(sequences: impl IntoIterator<Item = &'p mut StepTime>, passed: Duration) {
    let sequences: Vec<&mut StepTime> = sequences.into_iter().collect();
    let measured: f64 = sequences.iter().map(|parts| parts.all()).sum();
    if measured > 0.0 {
        let factor = passed.as_secs_f64() / measured;
        sequences.into_iter().for_each(|parts| *parts = parts.scaled(factor));
    }
}

/// Divides the time of products with the weights over all sequences anew, by the rows that each read. A sequence that reads rows alone,
/// which others read together, must not make its method look slower.
pub(crate) fn pool_weights(sequences: &mut [(&mut StepTime, usize)]) {
    let weights: f64 = sequences.iter().map(|(parts, _)| parts.weights).sum();
    let rows = sequences.iter().map(|(_, rows)| rows).sum::<usize>().max(1) as f64;
    sequences.iter_mut().for_each(|(parts, own)| parts.weights = weights * *own as f64 / rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn time(select: u64, attend: u64, compare: u64, elapsed: u64) -> AttentionTime {
        let (select, attend, compare, elapsed) = (MS(select), MS(attend), MS(compare), MS(elapsed));
        AttentionTime { select, attend, compare, elapsed, ..AttentionTime::default() }
    }

    fn in_ms(parts: &[StepTime]) -> Vec<[f64; 4]> {
        let ms = |s: f64| (1e6 * s).round() / 1e3;
        parts.iter().map(|p| [ms(p.select), ms(p.attend), ms(p.weights), ms(p.beside)]).collect()
    }

    #[test]
    fn alone_a_group_shares_the_time_on_the_wall() {
        // 40 ms of work by two threads, done in 20 ms.
        let attention = [time(6, 18, 0, 12), time(4, 8, 4, 8)];
        let found = parts(Clock::Wall, MS(50), &attention, &[1, 2]);
        assert_eq!(in_ms(&found), [[3.0, 9.0, 10.0, 0.0], [2.0, 4.0, 20.0, 2.0]]);
        assert!((found.iter().map(StepTime::all).sum::<f64>() - 0.05).abs() < 1e-12);
        // A step without attention and without rows.
        assert_eq!(in_ms(&parts(Clock::Wall, MS(5), &[time(0, 0, 0, 0)], &[0])), [[0.0; 4]]);
    }

    #[test]
    fn beside_others_it_is_what_processors_worked() {
        let attention = [time(6, 18, 0, 99), time(4, 8, 4, 99)];
        let found = parts(Clock::Processor, MS(30), &attention, &[1, 2]);
        assert_eq!(in_ms(&found), [[6.0, 18.0, 10.0, 0.0], [4.0, 8.0, 20.0, 4.0]]);
    }

    #[test]
    fn parts_are_scaled_to_what_passed() {
        let part = |select, attend, weights, beside| StepTime { select, attend, weights, beside };
        let mut sequences = [part(1.0, 2.0, 3.0, 0.0), part(0.0, 0.0, 3.0, 1.0)];
        share_out(&mut sequences, MS(5000));
        assert_eq!(sequences, [part(0.5, 1.0, 1.5, 0.0), part(0.0, 0.0, 1.5, 0.5)]);
        let mut none = [StepTime::default()];
        share_out(&mut none, MS(5));
        assert_eq!(none, [StepTime::default()], "who took no step has no share");
    }

    #[test]
    fn pooled_weights_go_by_rows() {
        let part = |weights| StepTime { weights, ..StepTime::default() };
        let (mut alone, mut other, mut short) = (part(6.0), part(1.0), part(1.0));
        pool_weights(&mut [(&mut alone, 3), (&mut other, 3), (&mut short, 2)]);
        assert_eq!([alone.weights, other.weights, short.weights], [3.0, 3.0, 2.0]);
    }
}
