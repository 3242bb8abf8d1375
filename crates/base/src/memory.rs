//! The memory limit of this process, to reject what needs more before anything is allocated, and its peak memory.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::error::UsageError;

/// What sets the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The memory of the machine, including swap.
    Machine,
    /// The limit on the process's address space (`ulimit -v`).
    AddressSpace,
    /// The limit on the process's data (`ulimit -d`).
    Data,
    /// A control group that the process is in, as containers and batch systems set them.
    Group,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "this machine has",
            Self::AddressSpace => "the limit on address space (`ulimit -v`) leaves",
            Self::Data => "the limit on data (`ulimit -d`) leaves",
            Self::Group => "the control group of this process allows",
        })
    }
}

/// The largest amount of memory that this process can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Number of bytes.
    pub bytes: u64,
    /// What sets it.
    pub bound: Bound,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bound, gigabytes(self.bytes))
    }
}

/// Returns the smallest of the machine's memory, this process's limits and its control groups' limits. Memory that the process had already
/// taken at the first call is subtracted from its own limits. `None` if the system does not provide limits. Must first be called before
/// weights are read.
pub fn limit() -> Option<Limit> {
    static LIMIT: LazyLock<Option<Limit>> = LazyLock::new(|| least(Path::new("/")));
    *LIMIT
}

/// Address space to leave free for helper threads: each takes up to 200 MB of it when it first allocates, most of which stays unused. The
/// smallest runs take a third of a gigabyte.
const ROOM_FOR_HELPERS: u64 = 1 << 30;

/// Whether the address space has room for a thread that the work does not need, such as the one that draws progress. The work itself may
/// need that space under a low `ulimit -v`.
pub fn has_room_for_helpers() -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    leaves_room(&read("limits"), &read("status"))
}

fn leaves_room(limits: &str, status: &str) -> bool {
    let taken = of_status(status, "VmSize:").unwrap_or(0);
    of_process(limits, "Max address space").is_none_or(|limit| limit.saturating_sub(taken) >= ROOM_FOR_HELPERS)
}

/// Checks that `needed` bytes are available. `what` starts the error's sentence and ends with a verb: "the weights take".
///
/// # Errors
/// If they are not; the error says how much is needed and how much is free.
pub fn check(needed: u64, what: impl fmt::Display, hint: &str) -> Result<(), UsageError> {
    within(limit(), needed, what, hint)
}

fn within(limit: Option<Limit>, needed: u64, what: impl fmt::Display, hint: &str) -> Result<(), UsageError> {
    match limit.filter(|limit| needed > limit.bytes) {
        None => Ok(()),
        Some(limit) => Err(UsageError::new(format!("{what} {} of memory, and {limit}", gigabytes(needed))).hint(hint)),
    }
}

/// Formats bytes for people, with enough digits to compare needed and available memory.
fn gigabytes(bytes: u64) -> String {
    match bytes as f64 / 1e9 {
        gb if gb < 1.0 => format!("{:.0} MB", 1e3 * gb),
        gb if gb < 1e4 => format!("{gb:.1} GB"),
        gb => format!("{gb:.0} GB"),
    }
}

/// Returns a product of sizes; it saturates, because sizes in a config may be absurd.
pub fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// Returns a sum of sizes; it saturates.
pub fn sum<const N: usize>(parts: [usize; N]) -> usize {
    parts.into_iter().fold(0, usize::saturating_add)
}

/// Returns the peak memory of this process so far, in bytes; `None` if the system does not provide it.
pub fn peak_bytes() -> Option<u64> {
    of_status(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

// ---- what the system reports ----

/// Returns the smallest limit, from the files below `root`.
fn least(root: &Path) -> Option<Limit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (limits, status) = (read("proc/self/limits"), read("proc/self/status"));
    // Memory that is already taken is not available.
    let left = |limit: &str, taken: &str| Some(of_process(&limits, limit)?.saturating_sub(of_status(&status, taken)?));
    let of_groups = groups(root, &read("proc/self/cgroup"), &read("proc/self/mountinfo"));
    [
        (of_machine(&read("proc/meminfo")), Bound::Machine),
        (left("Max address space", "VmSize:"), Bound::AddressSpace),
        (left("Max data size", "VmData:"), Bound::Data),
        (of_groups, Bound::Group),
    ]
    .into_iter()
    .filter_map(|(bytes, bound)| Some(Limit { bytes: bytes?, bound }))
    .min_by_key(|limit| limit.bytes)
}

/// Returns the value of a name in `/proc/self/status`, converted from kilobytes to bytes.
fn of_status(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the sum of memory and swap, from `/proc/meminfo`.
fn of_machine(meminfo: &str) -> Option<u64> {
    Some(of_status(meminfo, "MemTotal:")?.saturating_add(of_status(meminfo, "SwapTotal:").unwrap_or(0)))
}

/// Returns a soft limit from `/proc/self/limits`; `None` if it is unlimited.
fn of_process(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Returns the smallest limit of the process's control groups and their ancestors, from `/proc/self/cgroup` and `/proc/self/mountinfo`:
/// version 2, and version 1 if it controls memory.
fn groups(root: &Path, cgroup: &str, mountinfo: &str) -> Option<u64> {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let has_memory = controllers.split(',').any(|name| name == "memory");
        let mount = mounts.iter().find(|m| if m.is_unified { controllers.is_empty() } else { has_memory })?;
        mount.least(root, Path::new(group))
    };
    cgroup.lines().filter_map(of_line).min()
}

/// A mount of the control group file system.
struct Mount {
    /// The group at the top of the mount.
    top: PathBuf,
    folder: PathBuf,
    /// Whether it is version 2.
    is_unified: bool,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo`; `None` for other file systems, and for version 1 without the memory controller.
    fn parse(line: &str) -> Option<Self> {
        let (of_mount, of_system) = line.split_once(" - ")?;
        let [top, folder] = [3, 4].map(|at| of_mount.split(' ').nth(at).map(|path| path.replace("\\040", " ")));
        let (kind, options) = (of_system.split(' ').next()?, of_system.split(' ').next_back()?);
        let is_unified = kind == "cgroup2";
        let is_memory = kind == "cgroup" && options.split(',').any(|option| option == "memory");
        (is_unified || is_memory).then_some(Self { top: top?.into(), folder: folder?.into(), is_unified })
    }

    /// Returns the smallest limit of a group and its visible ancestors.
    fn least(&self, root: &Path, group: &Path) -> Option<u64> {
        let file = if self.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        let top = root.join(self.folder.strip_prefix("/").unwrap_or(&self.folder));
        // In a container, the group's name may differ from that outside.
        let below = group.strip_prefix(&self.top).or_else(|_| group.strip_prefix("/")).unwrap_or(Path::new(""));
        let limit = |below: &Path| fs::read_to_string(top.join(below).join(file)).ok()?.trim().parse().ok();
        below.ancestors().filter_map(limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(of_machine("MemTotal:  1000 kB\nMemFree: 5 kB\nSwapTotal:   24 kB\n"), Some(1024 * 1024));
        assert_eq!((of_machine(""), of_process("", "Max address space")), (None, None));
        let limits =
            |soft: &str| format!("Limit  Soft Limit  Hard Limit\nMax address space  {soft}  unlimited  bytes\n");
        let read = |soft| of_process(&limits(soft), "Max address space");
        assert_eq!((read("4096"), read("unlimited")), (Some(4096), None));
        assert_eq!(of_status("VmPeak: 9 kB\nVmHWM:\t  7 kB\n", "VmHWM:"), Some(7 << 10));
        #[cfg(target_os = "linux")]
        assert!(peak_bytes().unwrap() > 1 << 20 && limit().unwrap().bytes > 1 << 20);
    }

    #[test]
    fn helpers_need_a_gigabyte_of_address_space_that_is_left() {
        let limits = |soft: u64| format!("Max address space  {soft}  unlimited  bytes\n");
        let leaves = |soft: u64, taken: &str| leaves_room(&limits(soft), taken);
        assert!(
            leaves_room("Max address space  unlimited  unlimited  bytes\n", "VmSize: 9 kB\n") && leaves_room("", "")
        );
        assert!(leaves(ROOM_FOR_HELPERS, "") && !leaves(ROOM_FOR_HELPERS - 1, ""));
        assert!(
            !leaves(ROOM_FOR_HELPERS + 1023, "VmSize: 1 kB\n") && leaves(ROOM_FOR_HELPERS + 1024, "VmSize: 1 kB\n")
        );
    }

    /// Creates a root folder with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_of_all_limits_counts() {
        const MEMORY: (&str, &str) = ("proc/meminfo", "MemTotal: 4000 kB\nSwapTotal: 0 kB\n");
        const STATUS: (&str, &str) = ("proc/self/status", "VmSize: 700 kB\nVmData: 300 kB\n");
        const SECOND: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        const FIRST: &str = "31 23 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n\
                             32 23 0:28 / /sys/fs/cgroup/cpu rw shared:6 - cgroup cgroup rw,cpu\n";
        let container = "33 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let limits = |space: &str, data: &str| {
            format!("Max data size  {data}  unlimited bytes\nMax address space  {space}  unlimited bytes\n")
        };
        let none = limits("unlimited", "unlimited");
        let (space, data) = (limits("2048000", "unlimited"), limits("unlimited", "1024000"));
        let of = |bytes: u64, bound| Some(Limit { bytes, bound });
        let kb = |n: u64| n << 10;
        // Files in addition to those of memory, status and limits, and the expected limit.
        let v2 = |own: &'static str, above: &'static str| {
            vec![
                ("proc/self/cgroup", "0::/slurm/job_7/step\n"),
                ("proc/self/mountinfo", SECOND),
                ("sys/fs/cgroup/slurm/job_7/step/memory.max", own),
                ("sys/fs/cgroup/slurm/memory.max", above),
            ]
        };
        let v1 = vec![
            ("proc/self/cgroup", "9:cpu:/tight\n4:memory:/slurm/job_7\n0::/\n"),
            ("proc/self/mountinfo", FIRST),
            ("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9000\n"),
            ("sys/fs/cgroup/cpu/tight/memory.limit_in_bytes", "5\n"),
        ];
        let within_container = vec![
            ("proc/self/cgroup", "0::/docker/abc/inner\n"),
            ("proc/self/mountinfo", container),
            ("sys/fs/cgroup/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.max", "8000\n"),
        ];
        for (limits, files, expected) in [
            (&none, vec![], of(kb(4000), Bound::Machine)),
            (&space, vec![], of(2_048_000 - kb(700), Bound::AddressSpace)),
            (&data, vec![], of(1_024_000 - kb(300), Bound::Data)),
            (&none, v2("7000\n", "max\n"), of(7000, Bound::Group)),
            (&none, v2("max\n", "6000\n"), of(6000, Bound::Group)),
            (&none, v2("max\n", "max\n"), of(kb(4000), Bound::Machine)),
            (&space, v2("7000000\n", "max\n"), of(2_048_000 - kb(700), Bound::AddressSpace)),
            (&none, v1, of(9000, Bound::Group)),
            (&none, within_container, of(8000, Bound::Group)),
        ] {
            let all = [vec![MEMORY, STATUS, ("proc/self/limits", limits.as_str())], files].concat();
            assert_eq!(least(machine(&all).path()), expected, "{all:?}");
        }
        assert_eq!(least(machine(&[]).path()), None);
        let spent = limits("1024", "unlimited");
        let all = [MEMORY, STATUS, ("proc/self/limits", spent.as_str())];
        assert_eq!(least(machine(&all).path()), of(0, Bound::AddressSpace), "what is spent leaves nothing");
    }

    #[test]
    fn what_takes_too_much_is_told_with_what_there_is() {
        let limit = |bytes, bound| Some(Limit { bytes, bound });
        let said = |limit, needed| within(limit, needed, "it takes", "take less").map_err(|e| e.what);
        assert_eq!(said(None, u64::MAX), Ok(()));
        assert_eq!(said(limit(300_000_000, Bound::AddressSpace), 300_000_000), Ok(()));
        let error = said(limit(250_000_000, Bound::AddressSpace), 300_000_000).unwrap_err();
        assert_eq!(error, "it takes 300 MB of memory, and the limit on address space (`ulimit -v`) leaves 250 MB");
        let error = said(limit(25_300_000_000, Bound::Machine), u64::MAX).unwrap_err();
        assert_eq!(error, "it takes 18446744074 GB of memory, and this machine has 25.3 GB");
    }

    #[test]
    fn sizes_beyond_all_numbers_are_the_greatest() {
        assert_eq!((product([usize::MAX, 2, 3]), sum([usize::MAX, 1])), (usize::MAX, usize::MAX));
        assert_eq!((product([2, 3, 4]), sum([2, 3, 4])), (24, 9));
    }
}
