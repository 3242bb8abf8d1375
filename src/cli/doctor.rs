//! `spattn doctor`: what this machine and this build can do, and what is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::data_sets::default_folder;
use super::output::{print_json, print_line};
use crate::version::PROGRAM;
use spattn_base::text::size;
use spattn_eval::plan::manifest::{RESULTS_VERSION, cpu_name};
use spattn_kernels::{isa_name, tiles};
use spattn_model::device::{self, GpuDevice, GpuDevices, GpuLink};
use spattn_model::hub::{CachedModel, HubOptions, cached_models, offline_by};
use spattn_model::source::ModelSource;
use spattn_tasks::published::{DataSet, Finding, State};

/// Show this machine and build, the models and data sets found, and commands that get what is missing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spattn doctor
  spattn doctor --json | jq .machine")]
pub struct DoctorArgs {
    /// Print JSON instead of text
    ///
    /// Example: spattn doctor --json
    #[arg(long)]
    json: bool,

    /// Folder of the data sets; SPATTN_DATA or spattn/data in the user's cache if not given
    ///
    /// Example: --data ~/data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Findings {
    program: Program,
    machine: Machine,
    gpu: Gpu,
    models: Models,
    data: Data,
    /// Commands that fetch what is missing, one each.
    advice: Vec<String>,
    /// How to get what no command can fetch.
    by_hand: Vec<ByHand>,
}

/// A data set that the user has to put into its folder.
#[derive(Debug, Serialize)]
struct ByHand {
    name: &'static str,
    how: &'static str,
}

#[derive(Debug, Serialize)]
struct Program {
    version: String,
    /// The results version. Records of different versions are not mixed.
    results_version: u32,
    os: &'static str,
    arch: &'static str,
    /// The devices that this build supports.
    devices: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Machine {
    cpu: Option<String>,
    /// The number of cores that this process may use.
    cores: usize,
    /// The instruction set that kernels use.
    simd: &'static str,
    /// The unit that multiplies matrices of bf16.
    bf16_products: &'static str,
    /// Whether `SPATTN_ISA` lowers the instruction set.
    simd_lowered: bool,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    seen: Vec<String>,
    usable: bool,
    /// The GPUs that `--device` accepts.
    devices: Vec<GpuDevice>,
    /// How memory is copied between each pair of GPUs; empty with fewer than two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<GpuLink>,
    /// Why there are no usable GPUs.
    reason: Option<String>,
}

impl Gpu {
    fn new() -> Self {
        let seen = gpus(Path::new("/"));
        match device::gpus() {
            Ok(GpuDevices { devices, links }) => {
                Self { seen, usable: !devices.is_empty(), devices, links, reason: None }
            }
            Err(reason) => Self { seen, usable: false, devices: Vec::new(), links: Vec::new(), reason: Some(reason) },
        }
    }

    /// A line for each usable GPU, or one line with the reason why there is none.
    fn lines(&self) -> Vec<String> {
        let line = |gpu: &GpuDevice| {
            let GpuDevice { device, name, capability, memory_bytes, free_bytes, driver, copy_bytes_per_s } = gpu;
            format!(
                "--device {device}: {name}, compute capability {capability}, {} ({} free), driver for CUDA {driver}, copy bandwidth {:.2} TB/s",
                size(*memory_bytes as u64),
                size(*free_bytes as u64),
                copy_bytes_per_s / 1e12
            )
        };
        if self.usable {
            return self.devices.iter().map(line).chain(ways_of_copies(&self.links)).collect();
        }
        let seen = if self.seen.is_empty() { "none found".to_owned() } else { self.seen.join(", ") };
        vec![self.reason.as_ref().map_or(seen.clone(), |reason| format!("{seen}; {reason}"))]
    }
}

/// How memory is copied between GPUs: a line for each way, with the pairs that use it if there are several ways.
fn ways_of_copies(links: &[GpuLink]) -> Vec<String> {
    let mut ways: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for GpuLink { between: [one, other], how } in links {
        ways.entry(how).or_default().push(format!("{one} and {other}"));
    }
    let is_one = ways.len() == 1;
    let line = |(how, pairs): (&str, Vec<String>)| match is_one {
        true => format!("copies between GPUs: {how}"),
        false => format!("copies between {}: {how}", pairs.join(", ")),
    };
    ways.into_iter().map(line).collect()
}

#[derive(Debug, Serialize)]
struct Models {
    builtin: Option<String>,
    /// The hub's cache folder, which downloads go to.
    cache: Option<PathBuf>,
    cache_bytes: u64,
    offline: bool,
    cached: Vec<CachedModel>,
}

#[derive(Debug, Serialize)]
struct Data {
    folder: Option<PathBuf>,
    bytes: u64,
    sets: Vec<Set>,
}

#[derive(Debug, Serialize)]
struct Set {
    name: &'static str,
    state: &'static str,
    about: &'static str,
    /// The size if it is known, as a number and as text.
    bytes: Option<u64>,
    size: String,
    /// Whether `spattn data fetch` gets all of it.
    downloadable: bool,
    #[serde(skip)]
    how: &'static str,
}

impl Set {
    fn is_missing(&self) -> bool {
        self.state == "absent" || self.state == "incomplete"
    }
}

/// Prints the findings. Something missing is not an error.
///
/// # Errors
/// If standard output cannot be written.
pub fn examine(args: &DoctorArgs) -> Result<()> {
    let findings = Findings::new(args);
    match args.json {
        true => print_json(&serde_json::to_string_pretty(&findings)?),
        false => print_line(findings.text().trim_end()),
    }
}

impl Findings {
    fn new(args: &DoctorArgs) -> Self {
        let (models, data) = (Models::new(), Data::new(args.data.clone()));
        let advice = advice(&models, &data, args.data.as_deref());
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            program: Program {
                version: PROGRAM.line(),
                results_version: RESULTS_VERSION,
                os: std::env::consts::OS,
                arch: std::env::consts::ARCH,
                devices: if cfg!(feature = "cuda") { vec!["cpu", "cuda"] } else { vec!["cpu"] },
            },
            machine: Machine {
                cpu: cpu_name(),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                simd: isa_name(),
                bf16_products: tiles::unit().name(),
                simd_lowered: std::env::var("SPATTN_ISA").is_ok_and(|isa| isa == isa_name()),
                memory_bytes: meminfo(&memory, "MemTotal"),
                memory_available_bytes: meminfo(&memory, "MemAvailable"),
            },
            gpu: Gpu::new(),
            models,
            by_hand: data.sets.iter().filter(|s| s.is_missing() && !s.downloadable).map(by_hand).collect(),
            data,
            advice,
        }
    }

    fn text(&self) -> String {
        let Self { program: p, machine: m, models, data, .. } = self;
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
        let place = |path: &Option<PathBuf>| path.as_ref().map_or("no folder".to_owned(), |p| p.display().to_string());
        let lowered = if m.simd_lowered { ", set by SPATTN_ISA" } else { "" };
        let offline = models.offline.then(|| format!(", offline ({})", offline_by().unwrap_or("HF_HUB_OFFLINE")));
        let offline = offline.unwrap_or_default();
        let mut lines = vec![
            ("program", format!("spattn {}, results version {}, {} {}", p.version, p.results_version, p.os, p.arch)),
            ("cpu", format!("{}, {} cores", m.cpu.as_deref().unwrap_or("unknown"), m.cores)),
            ("simd", format!("{}{lowered}, bf16 matrix products use {}", m.simd, m.bf16_products)),
            ("memory", format!("{}, {} available", known(m.memory_bytes), known(m.memory_available_bytes))),
        ];
        lines.extend(self.gpu.lines().into_iter().map(|line| ("gpu", line)));
        lines.extend([
            ("models", models.builtin.clone().unwrap_or_else(|| "the built-in model cannot be read".to_owned())),
            ("", format!("{}, {}{offline}", place(&models.cache), size(models.cache_bytes))),
        ]);
        let model = |m: &CachedModel| {
            let state = match (&m.refused, m.complete) {
                (Some(why), _) => format!(", not supported ({why})"),
                (None, false) => ", incomplete".to_owned(),
                (None, true) => String::new(),
            };
            ("", format!("  {} {}{state}", m.id, size(m.bytes)))
        };
        lines.extend(models.cached.iter().map(model));
        lines.push(("data", format!("{}, {}", place(&data.folder), size(data.bytes))));
        let width = data.sets.iter().map(|s| s.name.len()).max().unwrap_or(0);
        let set = |s: &Set| format!("  {:<width$} {:<18} {:<14} {}", s.name, s.state, s.size, s.about);
        lines.extend(data.sets.iter().map(|s| ("", set(s))));
        let mut text: String = lines.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
        if !self.advice.is_empty() {
            text += "\nTo get what is missing:\n";
            self.advice.iter().for_each(|command| text += &format!("  {command}\n"));
        }
        if !self.by_hand.is_empty() {
            text += "\nTo be put there by hand, since no command can fetch it (docs/downloads.md):\n";
            self.by_hand.iter().for_each(|ByHand { name, how }| text += &format!("  {name}: {how}\n"));
        }
        text
    }
}

impl Models {
    fn new() -> Self {
        let files = ModelSource::Builtin.resolve();
        let config = files.and_then(|files| Ok(files.config()?));
        let builtin = config
            .ok()
            .map(|c| format!("builtin: {} layers, {} heads, context of {}", c.layers, c.heads, c.context_limit()));
        let options = HubOptions::from_env().ok();
        let cached = options.as_ref().map_or_else(Vec::new, cached_models);
        Self {
            builtin,
            cache_bytes: options.as_ref().map_or(0, |o| bytes_under(&o.cache)),
            offline: options.as_ref().is_some_and(|o| o.offline),
            cache: options.map(|o| o.cache),
            cached,
        }
    }
}

impl Data {
    fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.or_else(|| default_folder().ok());
        let state = |set: &DataSet| folder.as_ref().map_or("absent", |folder| state_of(&set.check(folder)));
        let one = |set: &'static DataSet| {
            let published = set.size();
            Set {
                name: &set.name,
                state: state(set),
                about: &set.about,
                bytes: (published.unknown == 0).then_some(published.known),
                size: published.to_string(),
                downloadable: set.is_downloadable(),
                how: &set.how,
            }
        };
        let sets = DataSet::all().iter().map(one).collect();
        Self { bytes: folder.as_deref().map_or(0, bytes_under), folder, sets }
    }
}

fn state_of(findings: &[Finding]) -> &'static str {
    let any = |is: fn(&State) -> bool| findings.iter().any(|f| is(&f.state));
    match (any(|s| matches!(s, State::Right(_))), any(|s| *s == State::Missing)) {
        _ if any(|s| matches!(s, State::Wrong(_))) => "not as published",
        (false, _) => "absent",
        (true, true) => "incomplete",
        (true, false) => "present",
    }
}

fn by_hand(set: &Set) -> ByHand {
    ByHand { name: set.name, how: set.how }
}

/// Commands that fetch what is missing. `folder` is the folder of data sets if the commands have to name it.
fn advice(models: &Models, data: &Data, folder: Option<&Path>) -> Vec<String> {
    let missing = data.sets.iter().filter(|s| s.is_missing() && s.downloadable);
    let folder = folder.map_or(String::new(), |f| format!(" --data {}", f.display()));
    let mut advice = Vec::new();
    if !models.cached.iter().any(|m| m.complete) {
        advice.push(
            "hf download Qwen/Qwen2.5-0.5B-Instruct    (or any Llama, Mistral or Qwen; `--model` downloads too; without the hub: docs/models.md, scripts/fetch_model.sh smollm2-135m models)".into(),
        );
    }
    let incomplete = models.cached.iter().filter(|m| !m.complete);
    advice.extend(incomplete.map(|m| format!("hf download {}", m.id)));
    advice.extend(missing.map(|s| format!("spattn data fetch {}{folder}    ({})", s.name, s.size)));
    advice.extend(
        data.sets
            .iter()
            .filter(|s| s.state == "not as published")
            .map(|s| format!("spattn data check {}{folder}", s.name)),
    );
    advice
}

// ---- the machine ----

/// A size in `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// NVIDIA GPUs that the system lists under `root`: by name if the driver gives one, otherwise by device file.
fn gpus(root: &Path) -> Vec<String> {
    let entries = |path: &str| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(root.join(path)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let model = |path: &PathBuf| {
        let text = fs::read_to_string(path.join("information")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    };
    let named: Vec<String> = entries("proc/driver/nvidia/gpus").iter().filter_map(model).collect();
    if !named.is_empty() {
        return named;
    }
    let is_device = |name: &str| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
    let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    entries("dev").iter().filter_map(name).filter(|n| is_device(n)).map(|n| format!("/dev/{n}")).collect()
}

/// Bytes of all files below a folder; links are not followed.
fn bytes_under(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, data)| if data.is_dir() { bytes_under(&path) } else { data.len() })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24684092 kB\nMemAvailable:   23808952 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_684_092 * 1024));
        assert_eq!((meminfo(text, "Mem"), meminfo("", "MemTotal")), (None, None));
    }

    #[test]
    fn gpus_are_named_by_the_driver_or_by_their_devices() {
        let root = tempfile::tempdir().unwrap();
        assert!(gpus(root.path()).is_empty());
        fs::create_dir_all(root.path().join("dev")).unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        assert_eq!(gpus(root.path()), ["/dev/nvidia0", "/dev/nvidia1"]);
        let card = root.path().join("proc/driver/nvidia/gpus/0000:3b:00.0");
        fs::create_dir_all(&card).unwrap();
        fs::write(card.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 5\n").unwrap();
        assert_eq!(gpus(root.path()), ["NVIDIA H200"]);
    }

    #[test]
    fn pairs_of_gpus_are_named_where_they_differ() {
        let link = |one: &str, other: &str, how: &str| GpuLink { between: [one.into(), other.into()], how: how.into() };
        assert!(ways_of_copies(&[]).is_empty());
        let alike = [link("cuda", "cuda:1", "directly"), link("cuda", "cuda:2", "directly")];
        assert_eq!(ways_of_copies(&alike), ["copies between GPUs: directly"]);
        let [first, second] = alike;
        let third = link("cuda:1", "cuda:2", "through the host's memory");
        let expected = [
            "copies between cuda and cuda:1, cuda and cuda:2: directly",
            "copies between cuda:1 and cuda:2: through the host's memory",
        ];
        assert_eq!(ways_of_copies(&[first, second, third]), expected);
    }

    #[test]
    fn states_of_data_sets() {
        let of = |states: &[State]| {
            let findings: Vec<Finding> =
                states.iter().map(|s| Finding { what: String::new(), state: s.clone() }).collect();
            state_of(&findings)
        };
        let (right, wrong) = (State::Right(String::new()), State::Wrong(String::new()));
        assert_eq!(of(&[State::Missing]), "absent");
        assert_eq!(of(&[State::Missing, right.clone()]), "incomplete");
        assert_eq!(of(&[right.clone(), right.clone()]), "present");
        assert_eq!(of(&[right, wrong]), "not as published");
    }
}
