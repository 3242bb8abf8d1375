//! Processor time, counted exactly once, and the time of day.
//!
//! A thread that waits for others may take up other work in the meantime, which may be measured separately. A [`Section`] therefore
//! measures the work of its thread from the section's start to its end, minus the sections that started and ended within it. So sums of
//! sections never exceed the time that processors worked. Work that is [distributed](deal) over other threads belongs to the section that
//! distributes it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{AddAssign, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rayon::prelude::*;

thread_local! {
    /// Nanoseconds of the sections that have ended on this thread, nested ones included, minus the work that other threads did for a
    /// section of this thread. May be negative.
    static ENDED: Cell<i64> = const { Cell::new(0) };
}

/// Processor time of selection, split into scoring and selecting by the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts {
    /// Time of scoring.
    pub score: Duration,
    /// Time of selecting by scores.
    pub pick: Duration,
}

impl Parts {
    /// Time of both parts together.
    pub fn sum(self) -> Duration {
        self.score + self.pick
    }
}

impl AddAssign for Parts {
    fn add_assign(&mut self, other: Self) {
        self.score += other.score;
        self.pick += other.pick;
    }
}

impl Sub for Parts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { score: self.score - earlier.score, pick: self.pick - earlier.pick }
    }
}

thread_local! {
    /// The parts that have ended on this thread since they were requested; `None` if they are not requested.
    static PARTS: Cell<Option<Parts>> = const { Cell::new(None) };
}

/// Runs `work`; returns its result, and the time of its parts on this thread. The sections of the parts are not part of outer sections.
pub fn with_parts<T>(work: impl FnOnce() -> T) -> (T, Parts) {
    let outer = PARTS.replace(Some(Parts::default()));
    let done = work();
    (done, PARTS.replace(outer).unwrap_or_default())
}

/// Runs `work` as scoring: in its own section if parts are [requested](with_parts).
pub fn scoring<T>(work: impl FnOnce() -> T) -> T {
    part(work, |parts| &mut parts.score)
}

/// Runs `work` as selecting, as [`scoring`] does. Scoring within it counts as scoring.
pub fn picking<T>(work: impl FnOnce() -> T) -> T {
    part(work, |parts| &mut parts.pick)
}

fn part<T>(work: impl FnOnce() -> T, own: fn(&mut Parts) -> &mut Duration) -> T {
    if PARTS.get().is_none() {
        return work();
    }
    let (done, time) = Section::of(work);
    if let Some(mut parts) = PARTS.get() {
        *own(&mut parts) += time;
        PARTS.set(Some(parts));
    }
    done
}

/// The work of one thread from a point in time.
#[derive(Debug)]
pub struct Section {
    begun: Duration,
    ended_before: i64,
    /// Keeps a section on the thread on which it started.
    on_thread: PhantomData<*const ()>,
}

impl Section {
    /// Starts a section on this thread.
    pub fn begin() -> Self {
        Self { begun: processor_time(), ended_before: ENDED.get(), on_thread: PhantomData }
    }

    /// Runs `work`; returns its result, and the time that this thread spent on it.
    pub fn of<T>(work: impl FnOnce() -> T) -> (T, Duration) {
        let section = Self::begin();
        let done = work();
        (done, section.end())
    }

    /// Ends the section and restarts it; returns the time that this thread spent since the last lap, without nested sections.
    pub fn lap(&mut self) -> Duration {
        let now = processor_time();
        let whole = nanoseconds(now.saturating_sub(self.begun));
        let own = whole - (ENDED.get() - self.ended_before);
        ENDED.set(self.ended_before + whole);
        (self.begun, self.ended_before) = (now, self.ended_before + whole);
        Duration::from_nanos(u64::try_from(own).unwrap_or(0))
    }

    /// Ends the section; returns the time that this thread spent, without nested sections.
    pub fn end(mut self) -> Duration {
        self.lap()
    }
}

/// Runs `work` for each of the pieces on the thread pool; returns the results in order. The time belongs to the caller's section, and its
/// [parts](with_parts) to the caller's parts.
pub fn deal<P, T>(pieces: impl IntoParallelIterator<Item = P>, work: impl Fn(P) -> T + Sync) -> Vec<T>
where
    T: Send,
    P: Send,
{
    let asked = PARTS.get().map(|_| Parts::default());
    let timed = |piece| {
        let outer = PARTS.replace(asked);
        let (done, time) = Section::of(|| work(piece));
        (done, (time, PARTS.replace(outer)))
    };
    let (done, times): (Vec<T>, Vec<(Duration, Option<Parts>)>) = pieces.into_par_iter().map(timed).unzip();
    let mut own = Duration::ZERO;
    for (time, parts) in times {
        own += time;
        if let (Some(mut sum), Some(parts)) = (PARTS.get(), parts) {
            sum += parts;
            PARTS.set(Some(sum));
        }
    }
    ENDED.set(ENDED.get() - nanoseconds(own));
    done
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the processor time of this thread.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the processor time of this process; `None` if the system does not provide it.
pub fn process_time() -> Option<Duration> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    None
}

/// Returns the time since the first call, because the system does not provide the processor time of a thread.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn processor_time() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Formats a time as `2025-01-31T12:00:00Z`. Times before 1970 or after the year 9999 (from a wrong clock) become the nearest in that
/// range.
pub fn date(time: SystemTime) -> String {
    /// The last second of the year 9999, counted from the start of 1970.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(LAST);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// Returns the seconds from the start of 1970 to a time that [`date`] wrote; `None` for any other text.
pub fn seconds_of_date(date: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(date).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_date_is_read_back_as_the_time_that_it_was_written_for() {
        let time = UNIX_EPOCH + Duration::from_secs(1_763_720_137);
        assert_eq!(date(time), "2025-11-21T10:15:37Z");
        assert_eq!(seconds_of_date(&date(time)), Some(1_763_720_137));
        assert_eq!((seconds_of_date("yesterday"), seconds_of_date("")), (None, None));
    }

    #[test]
    fn a_wrong_clock_gives_the_nearest_date_that_can_be_written() {
        let (second, year) = (Duration::from_secs(1), Duration::from_secs(365 * 24 * 3600));
        // Dates by `date -u -d @SECONDS +%FT%TZ`.
        for (time, expected) in [
            (UNIX_EPOCH, "1970-01-01T00:00:00Z"),
            (UNIX_EPOCH - second, "1970-01-01T00:00:00Z"),
            (UNIX_EPOCH - 50 * year, "1970-01-01T00:00:00Z"),
            (UNIX_EPOCH + 1_738_324_800 * second, "2025-01-31T12:00:00Z"),
            (UNIX_EPOCH + 20_000 * year, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(time), expected);
        }
    }

    /// Keeps the processor busy.
    fn work(time: Duration) {
        let start = processor_time();
        while processor_time() < start + time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn sections_within_are_no_part_of_those_around_them() {
        let ms = Duration::from_millis;
        let before = processor_time();
        let mut outer = Section::begin();
        work(ms(4));
        let inner = Section::begin();
        work(ms(8));
        let innermost = Section::begin();
        work(ms(16));
        let (innermost, inner) = (innermost.end(), inner.end());
        let first = outer.lap();
        work(ms(2));
        let second = outer.end();
        let whole = processor_time() - before;
        for (own, least) in [(first, 4), (inner, 8), (innermost, 16), (second, 2)] {
            assert!(own >= ms(least) && own < ms(least + 2), "{own:?} of {least} ms");
        }
        assert!(first + inner + innermost + second <= whole);
    }

    #[test]
    fn what_is_dealt_out_belongs_to_who_deals() {
        let ms = Duration::from_millis;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            let outer = Section::begin();
            work(ms(5));
            let inner = Section::begin();
            let pieces = deal(0..6, |piece| {
                work(ms(4));
                piece
            });
            let inner = inner.end();
            let outer = outer.end();
            assert_eq!(pieces, [0, 1, 2, 3, 4, 5]);
            assert!(inner >= ms(24) && inner < ms(28), "six times 4 ms, and not {inner:?}");
            assert!(outer >= ms(5) && outer < ms(7), "what was dealt out is none of the outer's: {outer:?}");
        });
    }

    #[test]
    fn parts_of_what_is_dealt_out_are_told_to_who_asked() {
        let ms = Duration::from_millis;
        let near = |time: Duration, least: u64| time >= ms(least) && time < ms(least + 4);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            let pick = || {
                picking(|| {
                    work(ms(3));
                    let each = |_| {
                        work(ms(4));
                        scoring(|| work(ms(2)));
                    };
                    deal(0..6, each);
                });
            };
            let ((), parts) = with_parts(pick);
            assert!(near(parts.pick, 27) && near(parts.score, 12), "{parts:?}");
            let section = Section::begin();
            pick();
            assert!(near(section.end(), 39), "nobody asks");
        });
    }

    #[test]
    fn parts_are_told_to_who_asks_and_are_no_part_of_sections_around_them() {
        let ms = Duration::from_millis;
        let select = || {
            work(ms(3));
            scoring(|| work(ms(6)));
            picking(|| {
                work(ms(12));
                scoring(|| work(ms(24)));
            });
        };
        let near = |time: Duration, least: u64| time >= ms(least) && time < ms(least + 2);
        let section = Section::begin();
        let ((), parts) = with_parts(|| {
            // Another caller's parts, measured in between.
            let ((), inner) = with_parts(|| scoring(|| work(ms(2))));
            assert!(near(inner.score, 2) && inner.pick.is_zero(), "{inner:?}");
            select();
        });
        let around = section.end();
        assert!(near(parts.score, 30) && near(parts.pick, 12) && near(around, 3), "{parts:?} in {around:?}");
        let section = Section::begin();
        select();
        assert!(near(section.end(), 45), "nobody asks");
    }

    #[cfg(any(target_os = "linux", target_os = "macos"))]
    #[test]
    fn who_sleeps_takes_no_processor() {
        let (start, section) = (Instant::now(), Section::begin());
        std::thread::sleep(Duration::from_millis(30));
        let slept = section.end();
        assert!(start.elapsed() >= Duration::from_millis(30) && slept < Duration::from_millis(10), "{slept:?}");
    }
}
