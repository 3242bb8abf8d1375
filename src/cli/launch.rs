//! `spattn sweep --launch`: plans a matrix in shards, writes the plan and a batch script, and submits it to a scheduler.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::exit::Done;
use super::matrix::{OnFailure, ShardPlan, this_machine};
use super::numbers::{self, duration};
use super::output::{print, print_json};
use super::run_args::RunArgs;
use super::run_flags::RunFlags;
use crate::launch::plan::{PLAN, Submission, SweepPlan, ranges};
use crate::launch::script::{SITE, Script, Template};
use crate::launch::status::{State, Watched};
use crate::launch::{LOGS, MATRIX, SCRIPT, SHARDS, slurm};
use spattn_base::error::UsageError;
use spattn_base::text::size;
use spattn_eval::config::run_config::RunConfig;
use spattn_eval::folder::attempts::now;
use spattn_eval::folder::owned_files;
use spattn_eval::run::estimate::RunEstimate;

/// The default number of shards.
const JOBS: usize = 8;

/// How a sweep is given to a scheduler.
#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// Run it on a cluster, in shards: write a plan and a batch script into --out, submit it, and return
    ///
    /// With --dry-run the script is written and printed, but not submitted. With --resume only shards are submitted that are neither
    /// done nor in the queue. `spattn status` shows their progress, `spattn report` merges their results.
    ///
    /// Example: spattn sweep big.toml --launch slurm --jobs 32 --out /shared/big
    #[arg(long, value_name = "SCHEDULER", value_enum)]
    launch: Option<Scheduler>,

    /// Number of shards, of about equal work; 8 if not given
    ///
    /// Example: --launch slurm --jobs 100
    #[arg(long, value_name = "N", value_parser = numbers::shards, requires = "launch", allow_negative_numbers = true)]
    jobs: Option<usize>,

    /// Options of sbatch by their long names; may be repeated
    ///
    /// Example: --sbatch 'partition=gpu,gres=gpu:1,time=4:00:00'
    #[arg(long = "sbatch", value_name = "KEY=VALUE,...", requires = "launch", allow_hyphen_values = true)]
    options: Vec<String>,

    /// TOML file with the site's settings for batch scripts; configs/slurm.toml if it exists
    ///
    /// Example: --sbatch-template our-cluster.toml
    #[arg(long, value_name = "FILE", requires = "launch")]
    sbatch_template: Option<PathBuf>,

    /// With --resume, also submit shards that ended with failed parts
    ///
    /// Example: --launch slurm --out /shared/big --resume --retry-failed
    #[arg(long, requires = "launch", requires = "resume")]
    retry_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scheduler {
    /// Slurm, by sbatch
    Slurm,
}

impl LaunchArgs {
    /// Whether a scheduler is to run the sweep.
    pub fn is_asked(&self) -> bool {
        self.launch.is_some()
    }

    /// The script's settings: the site's template, overridden by the options.
    fn template(&self) -> Result<Template, UsageError> {
        let file = match &self.sbatch_template {
            Some(file) => Some(file.as_path()),
            None => Some(Path::new(SITE)).filter(|file| file.is_file()),
        };
        let template = file.map(Template::load).transpose()?.unwrap_or_default();
        self.options.iter().try_fold(template, |template, options| template.with_options(options))
    }
}

/// A sweep's folder and plan.
struct Sweep {
    dir: PathBuf,
    plan: SweepPlan,
    /// Whether the plan existed before.
    is_known: bool,
}

/// Plans a matrix, writes its files and submits it.
///
/// # Errors
/// Mistakes in arguments as [`UsageError`]; a folder that cannot be written; sbatch's message if it refuses.
pub(super) fn launch_sweep(args: LaunchArgs, run: RunArgs, config: &str, is_dry: bool) -> Result<Done> {
    let RunFlags { threads, out, resume, overwrite, shard, json, .. } = run.flags.clone();
    if shard.is_some() || overwrite.is_some() {
        let flag = if overwrite.is_some() { "--overwrite" } else { "--shard" };
        return Err(UsageError::new(format!("{flag} does not go with --launch"))
            .hint("each task runs one shard in a new folder; --jobs sets their number")
            .into());
    }
    let Some(out) = out else {
        return Err(UsageError::new("--launch needs a folder that all machines see")
            .hint("give it with --out DIR")
            .into());
    };
    let (template, is_resumed) = (args.template()?, resume.is_some());
    let dir = std::path::absolute(&out).with_context(|| format!("cannot find {}", out.display()))?;
    let settings = run.over(Some(config))?;
    let matrix = toml::to_string(&settings).context("the matrix cannot be written down")?;
    let known = known_plan(&dir, is_resumed)?;
    owned_files::check(&dir, &owned_files::SWEEP)?;
    let jobs = args.jobs.or(known.as_ref().map(|plan| plan.shards.len())).unwrap_or(JOBS);
    let configs = RunConfig::resolve(settings)?;
    let machine = this_machine(&configs[0]);
    let shares = run.into_request("sweep", configs, OnFailure::GoOn)?.shares(jobs, is_dry)?;
    let takes = shares.longest.map(|longest| takes(&longest, &machine));
    let sweep = Sweep::planned(dir, known, shares)?;
    let arguments: Vec<String> = threads.iter().flat_map(|n| ["--threads".to_owned(), n.to_string()]).collect();
    let script = sweep.script(&arguments, &template)?;
    sweep.write(&matrix, &script)?;
    let missing = match sweep.is_known {
        true => Watched::open(&sweep.dir)?.look()?.missing(args.retry_failed),
        false => (1..=sweep.plan.shards.len()).collect(),
    };
    let options = if sweep.is_known { template.options() } else { Vec::new() };
    let job = sweep.submit(&missing, &options, is_dry)?;
    match json.is_some() {
        true => print_json(&sweep.as_json(&missing, job.as_deref()))?,
        false => print(&sweep.as_text(&missing, job.as_deref(), takes.as_deref())?)?,
    }
    Ok(Done::Completed)
}

/// Says how much time and memory the longest shard takes, so that the user can choose the limits of jobs.
fn takes(longest: &RunEstimate, machine: &str) -> String {
    let (time, memory) = (duration(longest.seconds()), size(longest.bytes as u64));
    format!(
        "a shard takes up to about {time} and {memory} of memory: leave room above that in --sbatch 'time=...,mem=...'\n{machine}"
    )
}

/// The plan of a sweep that is resumed; `None` if the folder has no plan, or only an unused one.
fn known_plan(dir: &Path, is_resumed: bool) -> Result<Option<SweepPlan>> {
    if dir.exists() && !dir.is_dir() {
        return Err(UsageError::new(format!("{} is a file, not a folder", dir.display()))
            .hint("choose another --out folder")
            .into());
    }
    match SweepPlan::is_in(dir) {
        false => Ok(None),
        true => {
            let plan = SweepPlan::load(dir)?;
            // A plan that was never submitted and has no shards may be replaced.
            let is_used =
                !plan.submissions.is_empty() || fs::read_dir(dir.join(SHARDS)).is_ok_and(|mut d| d.next().is_some());
            match (is_resumed, is_used) {
                (true, _) => Ok(Some(plan)),
                (false, false) => Ok(None),
                (false, true) => Err(UsageError::new(format!("{} already holds a sweep", dir.display()))
                    .hint("--resume submits what is missing of it, --out chooses another folder")
                    .into()),
            }
        }
    }
}

impl Sweep {
    fn planned(dir: PathBuf, known: Option<SweepPlan>, shares: ShardPlan) -> Result<Self, UsageError> {
        let ShardPlan { cells, shards, failed, .. } = shares;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let plan = SweepPlan { version, created: now(), cells, failed, shards, submissions: Vec::new() };
        match known {
            None => Ok(Self { dir, plan, is_known: false }),
            Some(known) if known.is_same_work(&plan) => Ok(Self { dir, plan: known, is_known: true }),
            Some(known) => Err(UsageError::new(format!(
                "{} was planned with other settings or shards: {} records in {} shards then, {} in {} now",
                dir.display(),
                known.records(),
                known.shards.len(),
                plan.records(),
                plan.shards.len()
            ))
            .hint("give the same config, flags and --jobs, or another --out folder; `spattn report` merges folders")),
        }
    }

    fn script(&self, arguments: &[String], template: &Template) -> Result<String> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let work = std::env::current_dir().context("cannot find the current folder")?;
        let text = |path: &Path| match path.to_str() {
            Some(text) if !text.contains(['"', '\\']) && !text.contains(char::is_control) => Ok(text.to_owned()),
            _ => Err(UsageError::new(format!("{} cannot be written into a batch script", path.display()))
                .hint("choose a folder without quotes, backslashes and ends of lines in its name")),
        };
        let (program, work, dir) = (text(&program)?, text(&work)?, text(&self.dir)?);
        let shards = self.plan.shards.len();
        Ok(Script { program: &program, work: &work, dir: &dir, shards, arguments, template }.text())
    }

    /// Writes the files that do not exist yet. A script that the user edited stays.
    fn write(&self, matrix: &str, script: &str) -> Result<()> {
        for folder in [LOGS, SHARDS] {
            let folder = self.dir.join(folder);
            fs::create_dir_all(&folder).map_err(|e| {
                UsageError::new(format!("cannot write to the folder {}: {e}", folder.display()))
                    .hint("choose another --out folder")
            })?;
        }
        if self.is_known && [MATRIX, SCRIPT].iter().all(|name| self.dir.join(name).is_file()) {
            return Ok(());
        }
        let about = "# The matrix as it was planned, flags and config together; the tasks read it.\n";
        owned_files::write_all(&self.dir, &[(MATRIX, format!("{about}{matrix}")), (SCRIPT, script.to_owned())])?;
        self.plan.save(&self.dir)
    }

    /// Submits the missing shards, if any, and returns the job's number.
    fn submit(&self, missing: &BTreeSet<usize>, options: &[String], is_dry: bool) -> Result<Option<String>> {
        if is_dry || missing.is_empty() {
            return Ok(None);
        }
        let job = slurm::submit(&self.dir.join(SCRIPT), missing, options)?;
        let mut plan = self.plan.clone();
        plan.submissions.push(Submission { job: job.clone(), shards: ranges(missing), at: now() });
        plan.save(&self.dir)?;
        Ok(Some(job))
    }

    fn as_json(&self, missing: &BTreeSet<usize>, job: Option<&str>) -> String {
        json!({
            "dir": self.dir,
            "script": self.dir.join(SCRIPT),
            "records": self.plan.records(),
            "cells": self.plan.cells,
            "shards": self.plan.shards,
            "longest_over_mean": self.plan.imbalance(),
            "left_out": self.plan.failed,
            "to_submit": missing,
            "job": job,
        })
        .to_string()
    }

    fn as_text(&self, missing: &BTreeSet<usize>, job: Option<&str>, takes: Option<&str>) -> Result<String> {
        let Self { dir, plan, .. } = self;
        let script = dir.join(SCRIPT);
        let mut text = String::new();
        if takes.is_some() {
            text += &fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))?;
            text += "\n";
        }
        let contexts: usize = plan.shards.iter().map(|shard| shard.contexts).fold(0, usize::saturating_add);
        let _ = writeln!(
            text,
            "{} records on {contexts} contexts in {} shards; the longest shard takes about {:.2} times the mean",
            plan.records(),
            plan.shards.len(),
            plan.imbalance()
        );
        text.extend(takes.map(|takes| format!("{takes}\n")));
        for name in [PLAN, MATRIX, SCRIPT] {
            let _ = writeln!(text, "  {}", dir.join(name).display());
        }
        let shown = dir.display();
        let count = match missing.len() {
            1 => "1 shard".to_owned(),
            n => format!("{n} shards"),
        };
        let _ = match job {
            Some(job) => writeln!(text, "submitted {count} ({}) as job {job}", ranges(missing)),
            None if missing.is_empty() => writeln!(text, "nothing to submit: all missing shards are in the queue"),
            None => writeln!(
                text,
                "not submitted; to submit {count}: sbatch --array={} {}",
                ranges(missing),
                script.display()
            ),
        };
        let _ = writeln!(text, "spattn status {shown} shows its progress, spattn report {shown} merges its results");
        Ok(text)
    }
}

/// The number of shards in a state, as text.
pub(super) fn counted(state: State, count: usize) -> String {
    format!("{count} {}", state.name())
}
