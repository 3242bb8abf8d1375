//! Estimates how much longer work takes from the work that is done: the one estimator behind all bars and lines of progress.
//!
//! The estimator of `indicatif`, the library that draws the bars, is not used. It smooths over the time between redraws: for a count that
//! rises once a minute, it estimates hours, then years. This one uses what was done and how long that took, and gives no estimate before
//! there is a basis for it. It draws nothing ([`meter`](crate::meter)) and reads no clock: the caller passes the time.

use std::time::{Duration, Instant};

/// An amount of work. Commands that count one thing leave `items` at zero.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Count {
    /// The part that grows with the size of an item: multiplications, tokens, bytes.
    pub amount: f64,
    /// The part that takes about the same time for each item, whatever its size: steps of answers, for example.
    pub items: f64,
}

impl Count {
    /// An amount without items.
    pub fn of(amount: f64) -> Self {
        Self { amount, items: 0.0 }
    }

    fn less(self, other: Self) -> Self {
        let rest = |all: f64, done: f64| (all - done).max(0.0);
        Self { amount: rest(self.amount, other.amount), items: rest(self.items, other.items) }
    }
}

/// How far the work has come.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Position {
    /// The work done, including that of an earlier run.
    pub done: Count,
    /// The work done by an earlier run, which says nothing about the pace of this one.
    pub found: Count,
    /// All of the work.
    pub all: Count,
}

impl Position {
    /// The share done, from 0 to 1.
    pub fn share(&self) -> f64 {
        let of = |done: f64, all: f64| if all > 0.0 { (done / all).clamp(0.0, 1.0) } else { 0.0 };
        if self.all.amount > 0.0 { of(self.done.amount, self.all.amount) } else { of(self.done.items, self.all.items) }
    }
}

/// A longer gap between two beats was a pause: the machine slept, or the program was stopped.
const LONGEST_GAP: Duration = Duration::from_secs(10);
/// An estimate needs this share of the work, or [`ENOUGH_STEPS`] with [`ENOUGH_TIME`] or [`SMALL_SHARE`].
const ENOUGH_SHARE: f64 = 0.1;
const SMALL_SHARE: f64 = 0.02;
const ENOUGH_STEPS: u32 = 2;
const ENOUGH_TIME: f64 = 30.0;
/// The least number of last steps from which the pace is computed.
const LEAST_STEPS: usize = 3;
/// Largest number of marks kept; beyond it, every second one is dropped.
const MOST_MARKS: usize = 256;
/// Steps within this time share one mark.
const LEAST_TIME: f64 = 0.05;

/// The work done at a time of this count.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Seconds since the count started, without pauses.
    time: f64,
    /// The part of these seconds that depended on the amount, not on the number of items.
    of_amount: f64,
    worked: Count,
}

/// The pace of some work.
#[derive(Debug, Clone)]
pub struct Pace {
    begun: Instant,
    beat: Option<Instant>,
    paused: Duration,
    position: Option<Position>,
    /// The marks from the origin on, in order of time.
    marks: Vec<Mark>,
    steps: u32,
}

impl Pace {
    /// Starts the estimate of work that begins now.
    pub fn begin(now: Instant) -> Self {
        Self { begun: now, beat: None, paused: Duration::ZERO, position: None, marks: vec![Mark::default()], steps: 0 }
    }

    /// Reports that the program runs. If this is called regularly, pauses are detected and do not count.
    pub fn beat(&mut self, now: Instant) {
        let gap = self.beat.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if gap > LONGEST_GAP {
            self.paused += gap;
        }
        self.beat = Some(now);
    }

    /// Takes the position. Of the time since the last step, the share `of_amount` depended on the amount of work, the rest on the items.
    pub fn at(&mut self, now: Instant, position: Position, of_amount: f64) {
        if self.beat.is_some() {
            self.beat(now);
        }
        self.position = Some(position);
        let (worked, last) = (position.done.less(position.found), self.last());
        if worked.amount <= last.worked.amount && worked.items <= last.worked.items {
            return;
        }
        self.steps += 1;
        let time = self.elapsed(now).max(last.time);
        let of_amount = last.of_amount + (time - last.time) * of_amount.clamp(0.0, 1.0);
        let is_soon = self.marks.len() > 2 && time - self.marks[self.marks.len() - 2].time < LEAST_TIME;
        if is_soon {
            self.marks.pop();
        }
        self.marks.push(Mark { time, of_amount, worked });
        if self.marks.len() > MOST_MARKS {
            let newest = self.marks.len() - 1;
            let mut at = 0;
            self.marks.retain(|_| {
                at += 1;
                at % 2 == 1 || at > newest
            });
        }
    }

    /// How far the work has come; `None` before the first step.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Number of seconds since the work started, without pauses.
    pub fn elapsed(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.begun).saturating_sub(self.paused).as_secs_f64()
    }

    /// Mean number of seconds of a step, over all steps; `None` before the first.
    pub fn seconds_of_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.last().time / f64::from(self.steps))
    }

    /// Estimated number of seconds left; `None` if there is no basis yet.
    pub fn left(&self, now: Instant) -> Option<f64> {
        let position = self.position.filter(|_| self.has_basis(now))?;
        let rest = position.all.less(position.done);
        let (first, last) = (self.window(), self.last());
        let (seconds, of_amount) = (last.time - first.time, last.of_amount - first.of_amount);
        let worked = last.worked.less(first.worked);
        let part = |seconds: f64, rest: f64, worked: f64| if worked > 0.0 { seconds * rest / worked } else { 0.0 };
        let ahead = match (worked.amount > 0.0, worked.items > 0.0) {
            (true, true) => {
                part(of_amount, rest.amount, worked.amount) + part(seconds - of_amount, rest.items, worked.items)
            }
            (true, false) => part(seconds, rest.amount, worked.amount),
            (false, _) => part(seconds, rest.items, worked.items),
        };
        // The estimate counts down during a step, but not below what is left after that step.
        let steps = self.marks.len() - self.first_of_window() - 1;
        let step = seconds / steps.max(1) as f64;
        let since = (self.elapsed(now) - last.time).max(0.0);
        Some((ahead - since).max(ahead - step).max(0.0))
    }

    fn has_basis(&self, now: Instant) -> bool {
        let Some(position) = self.position.filter(|_| self.steps > 0) else { return false };
        let worked = position.done.less(position.found);
        let own = Position { done: worked, found: Count::default(), all: position.all.less(position.found) };
        let share = own.share();
        share >= ENOUGH_SHARE
            || self.steps >= ENOUGH_STEPS && (share >= SMALL_SHARE || self.elapsed(now) >= ENOUGH_TIME)
    }

    fn last(&self) -> Mark {
        self.marks.last().copied().unwrap_or_default()
    }

    fn window(&self) -> Mark {
        self.marks[self.first_of_window()]
    }

    /// Index of the mark from which the pace is computed: before the later half of the work, because work may start slowly, and before at
    /// least a few steps, because a single one may be unusual.
    fn first_of_window(&self) -> usize {
        let last = self.last().worked;
        let is_before = |mark: &Mark| {
            if last.amount > 0.0 {
                mark.worked.amount <= last.amount / 2.0
            } else {
                mark.worked.items <= last.items / 2.0
            }
        };
        let half = self.marks.partition_point(is_before).saturating_sub(1);
        half.min(self.marks.len().saturating_sub(LEAST_STEPS + 1))
    }
}

/// Formats the time left in plain words: `about 9 min left`.
pub fn in_words(seconds: f64) -> String {
    let to = |step: f64, value: f64| (value / step).round().max(1.0) * step;
    let (minutes, hours) = (seconds / 60.0, seconds / 3600.0);
    match seconds {
        s if s < 10.0 => "a few seconds left".to_owned(),
        s if s < 55.0 => format!("about {:.0} s left", to(10.0, s)),
        _ if minutes < 19.5 => format!("about {:.0} min left", to(1.0, minutes)),
        _ if minutes < 57.5 => format!("about {:.0} min left", to(5.0, minutes)),
        _ if hours < 9.75 => format!("about {} h left", to(0.5, hours)),
        _ if hours < 47.5 => format!("about {:.0} h left", to(1.0, hours)),
        _ => format!("about {:.0} days left", to(1.0, hours / 24.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of simulated work: its seconds, its work, and the share of its time that depends on the amount.
    #[derive(Clone, Copy)]
    struct Step {
        seconds: f64,
        amount: f64,
        items: f64,
        of_amount: f64,
    }

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Simulates work with a beat every half second. Returns, after each step, the share of work done, the estimate of `left`, and the
    /// seconds that are really left. The program is stopped for `pause.1` seconds after step `pause.0`.
    fn simulate(steps: &[Step], pause: Option<(usize, f64)>) -> Vec<(f64, Option<f64>, f64)> {
        let mut now = Instant::now();
        let mut pace = Pace::begin(now);
        let sum = |steps: &[Step]| Count {
            amount: steps.iter().map(|s| s.amount).sum(),
            items: steps.iter().map(|s| s.items).sum(),
        };
        let all = sum(steps);
        let mut said = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let end = now + secs(step.seconds);
            while now + secs(0.5) < end {
                now += secs(0.5);
                pace.beat(now);
            }
            now = end;
            let position = Position { done: sum(&steps[..=at]), found: Count::default(), all };
            pace.at(now, position, step.of_amount);
            if let Some((_, seconds)) = pause.filter(|(number, _)| *number == at) {
                now += secs(seconds);
                pace.beat(now);
            }
            let rest: f64 = steps[at + 1..].iter().map(|s| s.seconds).sum();
            said.push((position.share(), pace.left(now), rest));
        }
        said
    }

    /// Returns the ratio of estimate and truth at the first moment with at least this share of the work done.
    fn ratio(said: &[(f64, Option<f64>, f64)], share: f64) -> f64 {
        let (_, left, rest) = said.iter().find(|(done, ..)| *done >= share).unwrap();
        left.unwrap_or_else(|| panic!("nothing is said at {share}")) / rest
    }

    /// Checks that the estimates at 10 % and 50 % are within bounds, and that from 10 % on none is over ten times what remains (while at
    /// least a second remains).
    fn check(name: &str, said: &[(f64, Option<f64>, f64)], at_tenth: f64, at_half: f64) {
        for (share, bound) in [(0.1, at_tenth), (0.5, at_half)] {
            let ratio = ratio(said, share);
            assert!(ratio <= bound && ratio >= 1.0 / bound, "{name}: {ratio:.2} at {share}");
        }
        for (share, left, rest) in said.iter().filter(|(share, _, rest)| *share >= 0.1 && *rest >= 1.0) {
            assert!(left.unwrap() <= 10.0 * rest, "{name}: {left:?} instead of {rest} at {share}");
        }
    }

    /// Examples of four lengths, one task after the other. The time to read grows faster than the length; an answer's steps always take the
    /// same time.
    fn examples(reading: f64, answer: f64) -> Vec<Step> {
        let one = |length: f64| {
            let amount = length + 0.1 * length * length;
            let (read, steps) = (reading * amount, answer);
            Step { seconds: read + steps, amount, items: 1.0, of_amount: read / (read + steps) }
        };
        let of_task = |_| [1.0, 2.0, 4.0, 8.0].into_iter().flat_map(move |length| (0..10).map(move |_| one(length)));
        (0..3).flat_map(of_task).collect()
    }

    #[test]
    fn the_estimate_is_near_what_remains_whatever_takes_the_time() {
        check("reading", &simulate(&examples(1.0, 0.01), None), 1.3, 1.2);
        check("steps", &simulate(&examples(0.001, 5.0), None), 1.3, 1.2);
        check("both", &simulate(&examples(0.5, 2.0), None), 1.3, 1.2);
        // A few steps that take minutes each, as in a calibration.
        let block = Step { seconds: 80.0, amount: 4096.0, items: 0.0, of_amount: 1.0 };
        check("blocks", &simulate(&[block; 8], None), 1.01, 1.01);
    }

    #[test]
    fn a_slow_start_is_forgotten() {
        let even = Step { seconds: 2.0, amount: 1.0, items: 0.0, of_amount: 1.0 };
        let mut slow = vec![even; 100];
        slow[0].seconds = 60.0;
        check("a slow first step", &simulate(&slow, None), 1.2, 1.01);
        for (at, step) in slow.iter_mut().enumerate() {
            step.seconds = if at < 10 { 20.0 - 1.8 * at as f64 } else { 2.0 };
        }
        check("caches that fill", &simulate(&slow, None), 5.0, 1.01);
        let mut few = vec![even; 10];
        few[0].seconds = 12.0;
        check("the first of ten", &simulate(&few, None), 6.1, 1.7);
    }

    #[test]
    fn a_pause_does_not_count() {
        let even = Step { seconds: 3.0, amount: 1.0, items: 1.0, of_amount: 0.5 };
        for number in [4, 40] {
            check("a night in the bag", &simulate(&[even; 100], Some((number, 30_000.0))), 1.1, 1.1);
        }
    }

    #[test]
    fn what_was_found_says_nothing_of_the_pace() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        let at = |done: f64| Position { done: Count::of(done), found: Count::of(600.0), all: Count::of(1000.0) };
        for found in [200.0, 600.0] {
            pace.at(start, Position { done: Count::of(found), ..at(found) }, 1.0);
        }
        assert_eq!((pace.left(start), pace.seconds_of_step()), (None, None));
        // 40 more take 40 s, so the other 360 take six minutes.
        pace.at(start + secs(20.0), at(620.0), 1.0);
        pace.at(start + secs(40.0), at(640.0), 1.0);
        assert!((pace.left(start + secs(40.0)).unwrap() - 360.0).abs() < 1e-6);
        assert!((pace.seconds_of_step().unwrap() - 20.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_is_said_without_a_basis_and_time_counts_down_within_a_step() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        let at = |done: f64| Position { done: Count::of(done), found: Count::default(), all: Count::of(100.0) };
        assert_eq!(pace.left(start + secs(100.0)), None, "nothing is done");
        pace.at(start + secs(10.0), at(1.0), 1.0);
        assert_eq!(pace.left(start + secs(10.0)), None, "one step of a hundred is none");
        pace.at(start + secs(20.0), at(2.0), 1.0);
        let left = |seconds: f64| pace.left(start + secs(seconds)).unwrap().round();
        assert_eq!((left(20.0), left(24.0), left(30.0)), (980.0, 976.0, 970.0));
        // A step that takes longer than others does not make later ones shorter.
        assert_eq!(left(500.0), 970.0);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_marks() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        for number in 1..=100_000 {
            let done = f64::from(number);
            let position = Position { done: Count::of(done), found: Count::default(), all: Count::of(200_000.0) };
            pace.at(start + secs(done), position, 1.0);
        }
        assert!(pace.marks.len() <= MOST_MARKS + 1);
        assert!((pace.left(start + secs(100_000.0)).unwrap() / 100_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn times_are_coarse_and_plain() {
        for (seconds, words) in [
            (0.0, "a few seconds left"),
            (9.0, "a few seconds left"),
            (12.0, "about 10 s left"),
            (48.0, "about 50 s left"),
            (58.0, "about 1 min left"),
            (100.0, "about 2 min left"),
            (540.0, "about 9 min left"),
            (1300.0, "about 20 min left"),
            (3000.0, "about 50 min left"),
            (3500.0, "about 1 h left"),
            (5500.0, "about 1.5 h left"),
            (36_000.0, "about 10 h left"),
            (180_000.0, "about 2 days left"),
        ] {
            assert_eq!(in_words(seconds), words, "{seconds}");
        }
    }
}
