//! How much memory there can be at most: what asks for more is refused before anything is allocated. And how much was taken.

use std::fs;

/// The least of what the machine has, its swap included, and what this process is limited to, in bytes; `None` where
/// the system does not say.
pub fn most_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let of_group = groups.into_iter().filter_map(|path| read(path).trim().parse().ok());
    of_machine(&read("/proc/meminfo")).into_iter().chain(of_process(&read("/proc/self/limits"))).chain(of_group).min()
}

/// The most memory that this process has taken so far, in bytes; `None` where the system does not say.
pub fn peak_bytes() -> Option<u64> {
    of_status(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The peak of the resident set, of the text of `/proc/self/status`.
fn of_status(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.split_whitespace().next()?.parse::<u64>().ok()?)
}

/// Memory and swap, of the text of `/proc/meminfo`.
fn of_machine(meminfo: &str) -> Option<u64> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(1024 * (kilobytes("MemTotal")? + kilobytes("SwapTotal").unwrap_or(0)))
}

/// The soft limit of the address space, of the text of `/proc/self/limits`.
fn of_process(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(of_machine("MemTotal:  1000 kB\nMemFree: 5 kB\nSwapTotal:   24 kB\n"), Some(1024 * 1024));
        assert_eq!((of_machine(""), of_process("")), (None, None));
        let limits =
            |soft: &str| format!("Limit  Soft Limit  Hard Limit\nMax address space  {soft}  unlimited  bytes\n");
        assert_eq!((of_process(&limits("4096")), of_process(&limits("unlimited"))), (Some(4096), None));
        assert_eq!((of_status("VmPeak: 9 kB\nVmHWM:\t  7 kB\n"), of_status("")), (Some(7 << 10), None));
        #[cfg(target_os = "linux")]
        assert!(peak_bytes().unwrap() > 1 << 20);
        #[cfg(target_os = "linux")]
        assert!(most_bytes().unwrap() > 1 << 20);
    }
}
