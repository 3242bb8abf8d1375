//! `spattn data fetch|list|check`: published data sets in a folder.

use std::ops::Add;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::interrupt;
use super::output::print_line;
use spattn_base::error::{RunFailure, UsageError};
use spattn_model::download::{DownloadError, Job};
use spattn_model::http::{HttpError, Refusal};
use spattn_model::hub::{offline_by, public_downloader};
use spattn_tasks::published::{DataFile, DataSet, DataSize, Finding, State};

/// The default folder of data sets: `SPATTN_DATA`, or `spattn/data` in the user's cache.
pub(super) fn default_folder() -> Result<PathBuf, UsageError> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    var("SPATTN_DATA")
        .or_else(|| Some(cache()?.join("spattn/data")))
        .ok_or_else(|| UsageError::new("no home folder, so no folder for data").hint("give one with --data DIR"))
}

/// Which sets, and where.
#[derive(Debug, Args)]
struct Selection {
    /// Data sets; all if none is named
    ///
    /// Example: longbench squad
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Folder of the data sets; SPATTN_DATA or spattn/data in the user's cache if not given
    ///
    /// Example: --data ~/data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Selection {
    fn sets(&self) -> Result<Vec<&'static DataSet>, UsageError> {
        match self.names.is_empty() {
            true => Ok(DataSet::all().iter().collect()),
            false => self.names.iter().map(|name| DataSet::find(name)).collect(),
        }
    }

    fn folder(&self) -> Result<PathBuf, UsageError> {
        self.data.clone().map_or_else(default_folder, Ok)
    }
}

/// Download published data sets into a folder, and check their bytes.
///
/// Files that are complete are not downloaded again. Without network (or with HF_HUB_OFFLINE=1) it names the files to put there by
/// hand.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn data fetch longbench
  spattn data fetch longbench squad --data ~/data
  spattn data fetch longbench --from file:///mnt/mirror       (a copy of a data folder; also http:// and https://)")]
pub struct FetchArgs {
    /// Data sets to download (`spattn data list` shows them, with sizes)
    ///
    /// Example: longbench squad
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Folder of the data sets; SPATTN_DATA or spattn/data in the user's cache if not given
    ///
    /// Example: --data ~/data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Take the files from a copy of a data folder instead of where they are published
    ///
    /// Example: --from file:///mnt/mirror, --from https://intranet/data
    #[arg(long, value_name = "URL")]
    from: Option<String>,
}

/// List the published data sets in a folder.
#[derive(Debug, Args)]
#[command(after_help = "Example: spattn data list --data ~/data")]
pub struct DataListArgs {
    #[command(flatten)]
    selection: Selection,
}

/// Check data sets in a folder: bytes, fields and numbers of rows against the published ones.
///
/// Exit status 1 if something differs from what was published, or if a named data set is missing.
#[derive(Debug, Args)]
#[command(after_help = "Example: spattn data check longbench --data ~/data")]
pub struct CheckArgs {
    #[command(flatten)]
    selection: Selection,
}

/// Downloads what is missing, and prints a line for each file.
///
/// # Errors
/// Unknown names, as [`UsageError`]; the first file that cannot be downloaded, with advice.
pub fn fetch(args: &FetchArgs) -> Result<()> {
    let folder = args.data.clone().map_or_else(default_folder, Ok)?;
    if args.names.is_empty() {
        return Err(nothing_named().into());
    }
    if folder.exists() && !folder.is_dir() {
        let what = format!("--data: {} is a file, not a folder", folder.display());
        return Err(UsageError::new(what).hint("name a folder; it is created if it does not exist").into());
    }
    let sets: Vec<&DataSet> = args.names.iter().map(|name| DataSet::find(name)).collect::<Result<_, _>>()?;
    interrupt::end_with(|| "what was downloaded is kept; go on with the same command".to_owned());
    // The loop below reports files that cannot be downloaded.
    let can_be = |file: &&DataFile| args.from.is_some() || file.url.is_some() && offline_by().is_none();
    let files = sets.iter().flat_map(|set| &set.files).filter(can_be);
    let missing: Vec<&DataFile> = files.filter(|file| !folder.join(&file.path).exists()).collect();
    if !missing.is_empty() {
        let files = if missing.len() == 1 { "1 file".to_owned() } else { format!("{} files", missing.len()) };
        eprintln!("to get: {files}, {}, into {}", total(missing.iter().map(|file| file.size())), folder.display());
    }
    for set in sets {
        for file in &set.files {
            let done = fetch_file(set, file, &folder, args.from.as_deref())?;
            print_line(&format!("{done:<8} {}", folder.join(&file.path).display()))?;
        }
    }
    print_line(&format!("\nUse with: spattn eval --data {} --task ...", folder.display()))
}

fn total(sizes: impl Iterator<Item = DataSize>) -> DataSize {
    sizes.fold(DataSize::default(), Add::add)
}

/// The error if no data set is named. It says how to list them, and how large all of them are.
fn nothing_named() -> UsageError {
    let can_be = || DataSet::all().iter().filter(|set| set.is_downloadable());
    let names: Vec<&str> = can_be().map(|set| set.name.as_str()).collect();
    let (all, names) = (total(can_be().map(DataSet::size)), names.join(" "));
    UsageError::new("no data set was named").hint(format!(
        "spattn data list shows what there is, with sizes; all that can be downloaded is {all}: spattn data fetch {names}"
    ))
}

/// Downloads a file unless it is there already, and returns what was done.
fn fetch_file(set: &DataSet, file: &DataFile, folder: &Path, from: Option<&str>) -> Result<&'static str> {
    let target = folder.join(&file.path);
    if target.is_file() {
        return match file.expected().difference(&target).with_context(|| format!("cannot read {}", target.display()))? {
            None => Ok("present"),
            Some(difference) => {
                Err(UsageError::new(format!("{} is not the published file: {difference}", target.display()))
                    .hint("move it away to download the published one")
                    .into())
            }
        };
    }
    let by_hand = format!(
        "put the file at {} ({}), then: spattn data check {} --data {}",
        target.display(),
        set.how,
        set.name,
        folder.display()
    );
    let mirrored = from.map(|base| format!("{}/{}", base.trim_end_matches('/'), file.path));
    let Some(url) = mirrored.or_else(|| file.url.clone()) else {
        return Err(UsageError::new(format!("{} cannot be downloaded automatically", file.path)).hint(by_hand).into());
    };
    let elsewhere = format!("on a machine with network, download it there; {by_hand}");
    if let Some(variable) = offline_by().filter(|_| !url.starts_with("file://")) {
        let what = format!("{} cannot be downloaded from {url}: {variable} is set", file.path);
        return Err(UsageError::new(what).hint(elsewhere).into());
    }
    let mut unfinished = target.clone().into_os_string();
    unfinished.push(".part");
    let lock = folder.join(".locks").join(format!("{}.lock", file.path.replace('/', "--")));
    let job = Job {
        name: &file.path,
        url: &url,
        target: &target,
        unfinished: Path::new(&unfinished),
        earlier: None,
        lock: &lock,
        expected: file.expected(),
    };
    let got = public_downloader()?.get(&job);
    got.map(|()| "fetched").map_err(|error| not_fetched(&job, error, &elsewhere))
}

fn not_fetched(job: &Job<'_>, error: DownloadError, elsewhere: &str) -> anyhow::Error {
    let what = format!("{} cannot be downloaded from {}: {error}", job.name, job.url);
    let hint = error.hint(job.again());
    match error {
        DownloadError::Usage(_) | DownloadError::Unreadable { .. } => UsageError::new(what).hint(hint).into(),
        DownloadError::Http(HttpError::Refused(Refusal { status: 401 | 403 | 404 | 410, .. })) => {
            UsageError::new(what).hint(format!("{hint}; or {elsewhere}")).into()
        }
        DownloadError::Http(HttpError::Unresolved { .. } | HttpError::Unconnected { .. }) => {
            RunFailure { what, hint: format!("{hint}; or {elsewhere}") }.into()
        }
        _ => RunFailure { what, hint }.into(),
    }
}

/// Prints a line for each data set.
///
/// # Errors
/// Unknown names, as [`UsageError`]; if standard output cannot be written.
pub fn list(args: &DataListArgs) -> Result<()> {
    let folder = args.selection.folder()?;
    print_line(&format!("data folder: {}\n", folder.display()))?;
    for set in args.selection.sets()? {
        let findings = set.check(&folder);
        let count = |is: fn(&State) -> bool| findings.iter().filter(|f| is(&f.state)).count();
        let (right, wrong) = (count(|s| matches!(s, State::Right(_))), count(|s| matches!(s, State::Wrong(_))));
        let state = match (right, wrong) {
            (0, 0) => "absent".to_owned(),
            (_, 0) if right == findings.len() => "present".to_owned(),
            (_, 0) => format!("{right} of {} files", findings.len()),
            _ => format!("{wrong} not as published"),
        };
        let how = if set.is_downloadable() { "" } else { ", by hand" };
        print_line(&format!(
            "{:<13} {state:<18} {:<27} {} [{}]",
            set.name,
            format!("{}{how}", set.size()),
            set.about,
            set.licence
        ))?;
    }
    print_line(
        "\nTo download one: spattn data fetch NAME. To see what is wrong with it: spattn data check NAME. \
         For those by hand, `spattn doctor` says how.",
    )
}

/// Prints a line for each file and each part of a set.
///
/// # Errors
/// If something differs from what was published, or a named set is missing; unknown names, as [`UsageError`].
pub fn check(args: &CheckArgs) -> Result<()> {
    let folder = args.selection.folder()?;
    if !folder.is_dir() {
        let what = format!("there is no data folder {}", folder.display());
        return Err(UsageError::new(what).hint("name one with --data, or make it with: spattn data fetch NAME").into());
    }
    let named = !args.selection.names.is_empty();
    let (mut wrong, mut missing) = (0, 0);
    for set in args.selection.sets()? {
        for Finding { what, state } in set.check(&folder) {
            let (word, detail) = match &state {
                State::Right(detail) => ("ok", detail.as_str()),
                State::Missing => ("missing", ""),
                State::Wrong(detail) => ("WRONG", detail.as_str()),
            };
            wrong += usize::from(word == "WRONG");
            missing += usize::from(word == "missing");
            print_line(format!("{:<13} {word:<8} {what:<46} {detail}", set.name).trim_end())?;
        }
    }
    match (wrong, missing) {
        (0, 0) => Ok(()),
        (0, _) if !named => Ok(()),
        _ => bail!("{}: {wrong} files are not as published, {missing} are missing", folder.display()),
    }
}
