//! `spattn status`: the status of a sweep, from its folder.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::launch::counted;
use super::numbers::duration;
use super::output::{clear_screen, print, print_json};
use crate::launch::status::{ShardStatus, State, Status, Watched};

/// The most shards that are listed.
const MOST_SHARDS: usize = 40;
/// The most failed parts, and the most lines of scores, that are listed.
const MOST_LINES: usize = 60;
/// The time between two prints with `--watch`.
const EVERY: Duration = Duration::from_secs(5);

/// Show the progress of a sweep: shards, records, current scores and an estimate of the time left.
///
/// Reads the folder only, on any machine that has access to it; with squeue and sacct it also shows what is queued and what was
/// killed. `spattn report DIR` makes tables of the records so far.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn status /shared/big
  spattn status /shared/big --watch
  spattn status /shared/big --json | jq '.shards[] | select(.state == \"failed\")'")]
pub struct StatusArgs {
    /// The folder of a sweep
    ///
    /// Example: spattn status /shared/big
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Print it again every five seconds, until all is done
    ///
    /// Example: spattn status /shared/big --watch
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,

    /// Print it as JSON
    ///
    /// Example: spattn status /shared/big --json
    #[arg(long)]
    json: bool,
}

/// Prints the status of a sweep.
///
/// # Errors
/// If the folder holds no sweep, or cannot be read.
pub fn show_status(args: &StatusArgs) -> Result<()> {
    let mut watched = Watched::open(&args.dir)?;
    if args.json {
        return print_json(&serde_json::to_string_pretty(&watched.look()?)?);
    }
    loop {
        let status = watched.look()?;
        let text = as_text(&args.dir.display().to_string(), &status);
        if args.watch {
            clear_screen()?;
        }
        print(&text)?;
        if !args.watch || status.is_over() {
            return Ok(());
        }
        std::thread::sleep(EVERY);
    }
}

fn as_text(dir: &str, status: &Status) -> String {
    let mut text = String::new();
    let states = State::ALL.into_iter().map(|state| (state, status.count(state))).filter(|(_, count)| *count > 0);
    let states: Vec<String> = states.map(|(state, count)| counted(state, count)).collect();
    let _ = writeln!(text, "{dir}: {} shards: {}", status.shards.len(), states.join(", "));
    let _ = match status.expected {
        Some(expected) => {
            let percent = 100.0 * status.records as f64 / expected.max(1) as f64;
            writeln!(text, "{} of {expected} records ({percent:.1} %)", status.records)
        }
        None => writeln!(text, "{} records", status.records),
    };
    let running = status.count(State::Running);
    if let Some(seconds) = status.seconds_left.filter(|_| !status.is_over()) {
        let how = if running > 0 { format!("with {running} running") } else { "once one is running".to_owned() };
        let _ = writeln!(text, "about {} left {how}, at the pace so far", duration(seconds));
    }
    let is_planned = status.shards.iter().any(|shard| shard.work.is_some());
    if !status.knows_queue && is_planned && !status.is_over() {
        text += "(squeue does not work here: shards in the queue are shown as waiting, stopped or failed)\n";
    }
    table(&mut text, status);
    balance(&mut text, status);
    let failed = status.shards.iter().flat_map(|shard| shard.failed.iter().map(move |f| (Some(&shard.shard), f)));
    let left_out = status.left_out.iter().map(|failed| (None, failed));
    // Parts that all shards leave out are listed only once.
    let mut told = Vec::new();
    for (shard, failed) in left_out.chain(failed) {
        if !told.contains(&failed) {
            let of = shard.map_or(String::new(), |shard| format!("shard {shard}, "));
            listed(&mut text, told.len(), "\n", &format!("failed: {of}{}: {}", failed.what, failed.why));
            told.push(failed);
        }
    }
    for (at, (place, scores)) in status.scores.iter().enumerate() {
        listed(&mut text, at, "\nscores so far\n", &format!("  {place}  {scores}"));
    }
    text
}

/// Adds a line, up to the maximum; `head` goes before the first line.
fn listed(text: &mut String, at: usize, head: &str, line: &str) {
    match at {
        0 => *text += head,
        MOST_LINES => *text += "  ...\n",
        _ => {}
    }
    if at < MOST_LINES {
        *text += line;
        *text += "\n";
    }
}

/// The table of shards that are not completed.
fn table(text: &mut String, status: &Status) {
    let open: Vec<&ShardStatus> = status.shards.iter().filter(|shard| shard.state != State::Done).collect();
    if open.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{:<8} {:<10} {:>19} {:>8}  {:<12} node", "shard", "", "records", "attempts", "job");
    for shard in open.iter().take(MOST_SHARDS) {
        let records = shard.expected.map_or(shard.records.to_string(), |of| format!("{} of {of}", shard.records));
        let of = |value: &Option<String>| value.clone().unwrap_or_default();
        let line = format!(
            "{:<8} {:<10} {records:>19} {:>8}  {:<12} {}  {}",
            shard.shard,
            shard.state.name(),
            shard.attempts,
            of(&shard.job),
            of(&shard.node),
            of(&shard.said)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if open.len() > MOST_SHARDS {
        let _ = writeln!(text, "and {} more", open.len() - MOST_SHARDS);
    }
}

/// How evenly completed shards were balanced, by estimate and by measurement; then these shards, the longest first.
fn balance(text: &mut String, status: &Status) {
    let Some(balance) = &status.balance else { return };
    let measured = [("time", balance.seconds), ("processor time", balance.processor)];
    let measured = measured.into_iter().filter_map(|(of, ratio)| Some(format!("{:.2} by {of}", ratio?)));
    let told: Vec<String> =
        std::iter::once(format!("{:.2} by estimated work", balance.estimated)).chain(measured).collect();
    let _ = writeln!(text, "\nthe longest of {} completed shards over their mean: {}", balance.shards, told.join(", "));
    let mut done: Vec<&ShardStatus> = status.shards.iter().filter(|shard| shard.state == State::Done).collect();
    let work = |shard: &ShardStatus| shard.work.unwrap_or(0) as f64;
    let mean = done.iter().map(|shard| work(shard)).sum::<f64>() / done.len() as f64;
    done.sort_by(|a, b| {
        b.processor_s.unwrap_or(0.0).total_cmp(&a.processor_s.unwrap_or(0.0)).then(b.seconds.cmp(&a.seconds))
    });
    let _ = writeln!(text, "{:<8} {:>14} {:>12} {:>14}", "shard", "estimated", "time", "processor");
    for shard in done.iter().take(MOST_SHARDS) {
        let estimated = format!("{:.2} of mean", work(shard) / mean);
        let processor = shard.processor_s.map_or(String::new(), |seconds| format!("{seconds:.1} s"));
        let line = format!("{:<8} {estimated:>14} {:>12} {processor:>14}", shard.shard, format!("{} s", shard.seconds));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if done.len() > MOST_SHARDS {
        let _ = writeln!(text, "and {} more", done.len() - MOST_SHARDS);
    }
}
