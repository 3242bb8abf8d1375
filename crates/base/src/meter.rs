//! Progress on standard error: a bar on a terminal, otherwise a line from time to time. Both say what is done and how much longer it takes
//! ([`pace`](crate::pace)); the library that draws the bar only draws.

use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::memory::has_room_for_helpers;
use crate::pace::{Count, Pace, Position, in_words};
use crate::text;

/// The time to the first line. Each further interval is half as long again, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(300);
/// The time between two looks at the clock.
const TICK: Duration = Duration::from_millis(500);
/// The length of the bar in the library's units.
const WHOLE: u64 = 1000;

/// The progress display of some work. It ends when it is dropped.
#[derive(Debug)]
pub struct Meter {
    display: Option<Arc<Display>>,
    ticker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Display {
    state: Mutex<State>,
    /// Notified when the display ends.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    pace: Pace,
    shown: Shown,
    /// The work that this count is for, if there are several.
    prefix: String,
    /// What the program is doing before the first step.
    doing: String,
    /// The current place in the work, after a step.
    message: String,
    has_ended: bool,
}

#[derive(Debug)]
enum Shown {
    /// A bar, on a terminal.
    Bar(ProgressBar),
    /// Lines, in a log.
    Lines(Lines),
}

/// The most recent display, so that other code can clear it.
static CURRENT: Mutex<Weak<Display>> = Mutex::new(Weak::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere cannot leave a display in a state that matters.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears the bar, if one is drawn, so that a last line stands alone.
pub fn clear() {
    let current = locked(&CURRENT).upgrade();
    if let Some(display) = current
        && let Ok(mut state) = display.state.try_lock()
    {
        state.end();
    }
}

impl Meter {
    /// Creates a display, which shows nothing if `is_quiet`. `doing` says what happens before the first step, as in `reading the first
    /// prompt`.
    pub fn new(is_quiet: bool, doing: &str) -> Self {
        if is_quiet {
            return Self::hidden();
        }
        let now = Instant::now();
        let shown = match stderr().is_terminal() {
            true => {
                let style = ProgressStyle::with_template("{prefix}{bar:30} {msg}");
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                let bar = ProgressBar::with_draw_target(Some(WHOLE), ProgressDrawTarget::stderr()).with_style(style);
                Shown::Bar(bar)
            }
            false => Shown::Lines(Lines::begin(now)),
        };
        let state = State {
            pace: Pace::begin(now),
            shown,
            prefix: String::new(),
            doing: text::in_line(doing).into_owned(),
            message: String::new(),
            has_ended: false,
        };
        let display = Arc::new(Display { state: Mutex::new(state), ended: Condvar::new() });
        *locked(&CURRENT) = Arc::downgrade(&display);
        let seen = display.clone();
        // Without the thread, the display changes only when the work does, and pauses count as work.
        let thread = || thread::Builder::new().name("progress".to_owned()).spawn(move || seen.tick()).ok();
        let ticker = if has_room_for_helpers() { thread() } else { None };
        Self { display: Some(display), ticker }
    }

    /// Creates a display that shows nothing.
    pub fn hidden() -> Self {
        Self { display: None, ticker: None }
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.display.as_ref().map(|display| locked(&display.state))
    }

    /// Starts a new count, of the work that `prefix` names; `doing` is as in [`new`](Self::new).
    pub fn begin(&mut self, prefix: &str, doing: &str) {
        let Some(mut state) = self.state() else { return };
        let now = Instant::now();
        state.prefix = text::in_line(prefix).into_owned();
        state.doing = text::in_line(doing).into_owned();
        state.message.clear();
        state.pace = Pace::begin(now);
        if let Shown::Bar(bar) = &state.shown {
            bar.set_prefix(state.prefix.clone());
        }
        state.draw(now);
    }

    /// Sets what happens now, before the first step of a count.
    pub fn doing(&mut self, doing: &str) {
        let Some(mut state) = self.state() else { return };
        state.doing = text::in_line(doing).into_owned();
        state.draw(Instant::now());
    }

    /// Reports that `done` of `all` are done, of which `found` were done before this run.
    pub fn at(&mut self, done: u64, all: u64, found: u64, message: impl FnOnce() -> String) {
        let count = |amount: u64| Count::of(amount as f64);
        self.at_position(Position { done: count(done), found: count(found), all: count(all) }, 1.0, message);
    }

    /// Reports the position. Of the time since the last report, the share `of_amount` depended on the amount of work, the rest on the
    /// number of items.
    pub fn at_position(&mut self, position: Position, of_amount: f64, message: impl FnOnce() -> String) {
        let Some(mut state) = self.state() else { return };
        let now = Instant::now();
        state.pace.at(now, position, of_amount);
        state.message = text::in_line(&message()).into_owned();
        state.draw(now);
    }

    /// Prints a line above the bar; prints nothing in a log.
    pub fn say(&self, line: &str) {
        let Some(state) = self.state() else { return };
        if let Shown::Bar(bar) = &state.shown {
            bar.println(text::in_line(line));
        }
    }

    /// Prints a line: above the bar, or in the log.
    pub fn tell(&self, line: &str) {
        match self.state().as_deref() {
            Some(State { shown: Shown::Bar(bar), .. }) => bar.suspend(|| eprintln!("{line}")),
            _ => eprintln!("{line}"),
        }
    }

    /// Calls `print` while no bar is drawn.
    pub fn aside<R>(&self, print: impl FnOnce() -> R) -> R {
        match self.state().as_deref() {
            Some(State { shown: Shown::Bar(bar), .. }) => bar.suspend(print),
            _ => print(),
        }
    }

    /// Returns the time left in words, after a comma; empty if there is no basis for an estimate.
    pub fn left(&self) -> String {
        let left = self.state().and_then(|state| state.pace.left(Instant::now()));
        left.map_or(String::new(), |left| format!(", {}", in_words(left)))
    }

    /// Ends the display.
    pub fn end(&mut self) {
        if let Some(display) = self.display.take() {
            locked(&display.state).end();
            display.ended.notify_all();
        }
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Display {
    /// Redraws until the display ends.
    fn tick(&self) {
        let mut state = locked(&self.state);
        while !state.has_ended {
            let now = Instant::now();
            state.pace.beat(now);
            state.draw(now);
            state = self.ended.wait_timeout(state, TICK).map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
    }
}

impl State {
    fn draw(&mut self, now: Instant) {
        if self.has_ended {
            return;
        }
        match &mut self.shown {
            Shown::Bar(bar) => {
                let share = self.pace.position().map_or(0.0, Position::share);
                bar.set_position((share * WHOLE as f64) as u64);
                bar.set_message(in_bar(&self.pace, now, &self.doing, &self.message));
                bar.tick();
            }
            Shown::Lines(lines) => {
                if lines.is_due(now) {
                    eprintln!("{}{}", self.prefix, in_log(&self.pace, now, &self.doing, &self.message));
                }
            }
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Returns the text beside a bar.
fn in_bar(pace: &Pace, now: Instant, doing: &str, message: &str) -> String {
    let Some(position) = pace.position() else { return format!("{doing} ...") };
    let left = pace.left(now).map_or(String::new(), |left| format!(", {}", in_words(left)));
    format!("{}{left}  {message}", percent(position))
}

/// Returns the text of a line in a log.
fn in_log(pace: &Pace, now: Instant, doing: &str, message: &str) -> String {
    let Some(position) = pace.position() else {
        return format!("{doing}, for {} so far", rough(pace.elapsed(now)));
    };
    let each = pace.seconds_of_step().map_or(String::new(), |each| format!(", {} each", rough(each)));
    let left = pace.left(now).map_or(String::new(), |left| format!(", {}", in_words(left)));
    format!("{}{each}{left}  {message}", percent(position))
}

fn percent(position: &Position) -> String {
    // Round down: unfinished work is never shown as complete.
    format!("{:.0} %", (100.0 * position.share()).floor())
}

/// Formats an elapsed time.
fn rough(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Lines in a log, at growing intervals.
#[derive(Debug)]
struct Lines {
    /// The time of the next line, and the interval before it.
    next: Instant,
    gap: Duration,
}

impl Lines {
    fn begin(now: Instant) -> Self {
        Self { next: now + FIRST, gap: FIRST }
    }

    /// Whether a line is due; if so, schedules the next one.
    fn is_due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.gap = (self.gap * 3 / 2).min(LONGEST);
        self.next = now + self.gap;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn position(done: f64, found: f64, all: f64) -> Position {
        Position { done: Count::of(done), found: Count::of(found), all: Count::of(all) }
    }

    #[test]
    fn a_bar_takes_no_command_from_a_name() {
        let mut meter = Meter::new(false, "a\u{1b}]0;b\u{7}");
        meter.begin("a\u{1b}]0;b\u{7}\nc  ", "d\u{1b}[2J");
        let state = meter.state().unwrap();
        assert_eq!((&*state.prefix, &*state.doing), ("a\\u{1b}]0;b\\u{7} c  ", "d\\u{1b}[2J"));
    }

    #[test]
    fn a_bar_says_what_is_done_and_then_how_much_longer_it_takes() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        assert_eq!(in_bar(&pace, start, "reading the first prompt", ""), "reading the first prompt ...");
        pace.at(start + seconds(60), position(1.0, 0.0, 50.0), 1.0);
        assert_eq!(in_bar(&pace, start + seconds(60), "", "1/50 examples"), "2 %  1/50 examples");
        pace.at(start + seconds(120), position(2.0, 0.0, 50.0), 1.0);
        let said = in_bar(&pace, start + seconds(120), "", "2/50 examples");
        assert_eq!(said, "4 %, about 50 min left  2/50 examples");
    }

    #[test]
    fn a_line_in_a_log_says_the_same_and_how_long_a_step_takes() {
        let start = Instant::now();
        let mut pace = Pace::begin(start);
        let said = in_log(&pace, start + seconds(100), "reading the first prompt", "");
        assert_eq!(said, "reading the first prompt, for 2 min so far");
        // 600 of 1000 were done before; 40 more took 40 s, so the other 360 take six minutes.
        pace.at(start, position(600.0, 600.0, 1000.0), 1.0);
        pace.at(start + seconds(20), position(620.0, 600.0, 1000.0), 1.0);
        pace.at(start + seconds(40), position(640.0, 600.0, 1000.0), 1.0);
        let said = in_log(&pace, start + seconds(40), "", "here");
        assert_eq!(said, "64 %, 20 s each, about 6 min left  here");
    }

    #[test]
    fn a_long_run_has_a_bounded_number_of_lines() {
        let start = Instant::now();
        let mut lines = Lines::begin(start);
        let said = (0..86_400).filter(|s| lines.is_due(start + seconds(*s))).count();
        assert!((280..310).contains(&said), "{said} lines in a day");
    }

    #[test]
    fn a_display_that_was_taken_away_draws_no_more() {
        let mut meter = Meter::new(false, "reading");
        meter.at(1, 10, 0, || "one".to_owned());
        clear();
        assert!(meter.state().unwrap().has_ended);
        meter.at(2, 10, 0, || "two".to_owned());
        meter.end();
        assert!(Meter::hidden().left().is_empty());
    }
}
