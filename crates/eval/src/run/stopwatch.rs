//! The wall time of examples, by phase.

use std::time::{Duration, Instant};

/// The wall time of examples, by phase. Copies of the model that run side by side add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Prefill of prefixes, with the prompt statistics gathered in it.
    pub prefill: Duration,
    /// Solving budgets and building indexes.
    pub index: Duration,
    /// Reading the rest of prompts and generating, or reading the scored text.
    pub steps: Duration,
    /// Repeating steps to time methods alone.
    pub solo: Duration,
}

impl PhaseTimes {
    /// The sum of the phases.
    pub fn total(&self) -> Duration {
        self.prefill + self.index + self.steps + self.solo
    }
}

impl std::ops::AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        self.prefill += other.prefill;
        self.index += other.index;
        self.steps += other.steps;
        self.solo += other.solo;
    }
}

/// Measures phases that follow each other.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the last call, or since the start.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_times_add_up_by_what_they_were_spent_for() {
        let ms = Duration::from_millis;
        let mut sum = PhaseTimes { prefill: ms(1), index: ms(20), steps: ms(300), solo: ms(0) };
        sum += PhaseTimes { prefill: ms(2), index: ms(30), steps: ms(400), solo: ms(5000) };
        assert_eq!(sum, PhaseTimes { prefill: ms(3), index: ms(50), steps: ms(700), solo: ms(5000) });
        assert_eq!(sum.total(), ms(5753));
    }

    #[test]
    fn laps_are_counted_from_the_one_before() {
        let start = Instant::now();
        let mut laps = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(5));
        let (first, second) = (laps.lap(), laps.lap());
        assert!(first >= Duration::from_millis(5) && first + second <= start.elapsed());
    }
}
