//! Progress on standard error: a bar on a terminal, otherwise a line from time to time.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::numbers::duration;
use super::setup::can_start_thread;
use spattn_base::text;

/// The time to the first line. Each further gap is half as long again, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(300);

/// The progress of some work.
#[derive(Debug)]
pub(super) struct Meter {
    shown: Shown,
    prefix: String,
}

#[derive(Debug)]
enum Shown {
    Nothing,
    /// A bar, on a terminal.
    Bar(ProgressBar),
    /// Lines, in a log.
    Lines(Lines),
}

impl Meter {
    /// A display; `bar` is the style of the bar on a terminal.
    pub fn new(is_quiet: bool, bar: &str) -> Self {
        let shown = match (is_quiet, stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (false, true) => {
                let style = ProgressStyle::with_template(bar).unwrap_or_else(|_| ProgressStyle::default_bar());
                let drawn = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
                // Without a thread that redraws it, the bar is redrawn only at changes.
                if can_start_thread() {
                    drawn.enable_steady_tick(Duration::from_millis(500));
                }
                Shown::Bar(drawn)
            }
            (false, false) => Shown::Lines(Lines::begin(Instant::now())),
        };
        Self { shown, prefix: String::new() }
    }

    /// A display that shows nothing.
    pub fn hidden() -> Self {
        Self { shown: Shown::Nothing, prefix: String::new() }
    }

    /// Starts a new count, of the work that `prefix` names.
    pub fn begin(&mut self, prefix: String) {
        self.prefix = text::in_line(&prefix).into_owned();
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                bar.set_prefix(self.prefix.clone());
                bar.reset();
            }
            Shown::Lines(lines) => lines.begin_anew(Instant::now()),
        }
    }

    /// Reports that `done` of `of` are done. `found` of them were done before this run, and do not count for the pace.
    pub fn at(&mut self, done: u64, of: u64, found: u64, message: impl Fn() -> String) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                bar.set_length(of);
                if found > 0 && bar.position() < found {
                    bar.set_position(found);
                    bar.reset_eta();
                }
                bar.set_position(done);
                bar.set_message(text::in_line(&message()).into_owned());
            }
            Shown::Lines(lines) => {
                let pace = lines.at(Instant::now(), done, of, found);
                if let Some(pace) = pace {
                    eprintln!("{}{pace}  {}", self.prefix, message());
                }
            }
        }
    }

    /// Prints a line above the bar. In a log it is left out: failures are listed at the end.
    pub fn say(&self, line: &str) {
        if let Shown::Bar(bar) = &self.shown {
            bar.println(text::in_line(line));
        }
    }

    /// Ends the display.
    pub fn end(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        self.shown = Shown::Nothing;
    }
}

/// Lines in a log, at growing intervals.
#[derive(Debug)]
struct Lines {
    /// The start of the current count.
    begun: Instant,
    /// Updates since then with new work done, and the work done by this run.
    steps: u32,
    worked: u64,
    /// When the next line is due, and the gap before it.
    next: Instant,
    gap: Duration,
}

impl Lines {
    fn begin(now: Instant) -> Self {
        Self { begun: now, steps: 0, worked: 0, next: now + FIRST, gap: FIRST }
    }

    /// Starts a new count. The next line is due as before.
    fn begin_anew(&mut self, now: Instant) {
        (self.begun, self.steps, self.worked) = (now, 0, 0);
    }

    /// Updates the count; returns a line if one is due.
    fn at(&mut self, now: Instant, done: u64, of: u64, found: u64) -> Option<String> {
        let worked = done.saturating_sub(found);
        if worked > self.worked {
            (self.steps, self.worked) = (self.steps + 1, worked);
        }
        if now < self.next {
            return None;
        }
        self.gap = (self.gap * 3 / 2).min(LONGEST);
        self.next = now + self.gap;
        let percent = 100.0 * done as f64 / of.max(1) as f64;
        let took = now.duration_since(self.begun).as_secs_f64();
        let pace = (self.worked > 0).then(|| {
            let left = took * of.saturating_sub(done) as f64 / self.worked as f64;
            format!(", {} each, {} left", each(took / f64::from(self.steps)), duration(left))
        });
        Some(format!("{percent:.0} %{}", pace.unwrap_or_default()))
    }
}

/// The time of one step, as text.
fn each(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.2} s") } else { duration(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_takes_no_command_from_a_name() {
        let mut meter = Meter::hidden();
        meter.begin("a\u{1b}]0;b\u{7}\nc  ".to_owned());
        assert_eq!(meter.prefix, "a\\u{1b}]0;b\\u{7} c  ");
    }

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn what_was_found_done_says_nothing_of_the_pace() {
        let start = Instant::now();
        let mut lines = Lines::begin(start);
        // 600 of 1000 were there; 40 more took 40 s, so the other 360 take six minutes.
        for found in [200, 400, 600] {
            assert_eq!(lines.at(start, found, 1000, found), None);
        }
        assert_eq!(lines.at(start + seconds(9), 620, 1000, 600), None);
        let line = lines.at(start + seconds(40), 640, 1000, 600);
        assert_eq!(line.as_deref(), Some("64 %, 20 s each, 6 min left"));
        // For another model, the pace of the first is forgotten, and the time left is unknown at first.
        lines.begin_anew(start + seconds(60));
        assert_eq!(lines.at(start + seconds(90), 0, 50, 0).as_deref(), Some("0 %"));
        assert_eq!(lines.at(start + seconds(180), 20, 50, 0).as_deref(), Some("40 %, 2 min each, 3 min left"));
    }

    #[test]
    fn a_long_run_has_a_bounded_number_of_lines() {
        let start = Instant::now();
        let mut lines = Lines::begin(start);
        let said = (0..86_400).filter(|s| lines.at(start + seconds(*s), *s, 86_400, 0).is_some()).count();
        assert!((280..310).contains(&said), "{said} lines in a day");
    }
}
