//! CPU and memory of the machine, read from `/proc`. On a system without `/proc`, nothing is reported.

use std::{
    fs,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

/// Returns a short description of the machine for reports of measurements: the number of cores that this process may
/// use, and their type.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = processor(&info).unwrap_or(std::env::consts::ARCH);
    format!("{cores} {} of {name}", if cores == 1 { "core" } else { "cores" })
}

/// Returns the extensions of the processor's instruction set; nothing if the system does not say.
pub fn instructions() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // As x86 and Arm name them.
    let names = ["flags", "Features"];
    let line = info.lines().find(|line| line.split(':').next().is_some_and(|name| names.contains(&name.trim())));
    line.unwrap_or_default().to_owned()
}

/// Returns the memory that this process may use, in bytes: the machine's, or the limit of its control group if lower.
pub fn memory_bytes() -> Option<u64> {
    let machine = Machine::memory()?.total;
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(
        group_limits(&group)
            .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
            .fold(machine, u64::min),
    )
}

/// Returns the files that may contain a memory limit of the process's control group and its ancestors: those of version
/// 2, and that of version 1 as containers see it. Without a limit, a file contains a word or a very large number.
fn group_limits(cgroup: &str) -> impl Iterator<Item = PathBuf> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let groups: Vec<PathBuf> =
        Path::new(own).ancestors().map(|group| Path::new("/sys/fs/cgroup").join(group).join("memory.max")).collect();
    groups.into_iter().chain([PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes")])
}

/// Returns the maximum number of open files, including connections, of this process.
pub fn open_files_limit() -> Option<u64> {
    open_files(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// Returns the soft limit in `/proc/self/limits`.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processor(cpuinfo: &str) -> Option<&str> {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'))?;
    Some(name.trim()).filter(|name| !name.is_empty())
}

/// Reads the machine's load. Keeps the last reading, because utilization is a difference of two.
#[derive(Debug)]
pub struct Machine {
    last: Mutex<CpuTimes>,
}

/// Ticks since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CpuTimes {
    busy: u64,
    total: u64,
    /// Fraction of busy ticks in the last interval, 0 to 1.
    utilization: f64,
}

/// Memory of the machine in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory that it has.
    pub total: u64,
    /// Memory that is not available to programs: the total less what the kernel reports as available.
    pub used: u64,
}

impl Machine {
    /// Takes the first reading, from which utilization counts.
    pub fn start() -> Self {
        let first = fs::read_to_string("/proc/stat").ok().and_then(|text| cpu_times(&text));
        Self { last: Mutex::new(first.unwrap_or_default()) }
    }

    /// Returns the fraction of all CPUs in use since the last call, 0 to 1.
    pub fn cpu_utilization(&self) -> Option<f64> {
        let now = cpu_times(&fs::read_to_string("/proc/stat").ok()?)?;
        let mut last = self.last.lock();
        *last = last.then(now);
        Some(last.utilization)
    }

    /// Returns the memory now.
    pub fn memory() -> Option<MachineMemory> {
        memory(&fs::read_to_string("/proc/meminfo").ok()?)
    }
}

impl CpuTimes {
    /// Returns the next reading. Within one tick the utilization stays the same.
    fn then(self, now: Self) -> Self {
        let total = now.total.saturating_sub(self.total);
        if total == 0 {
            return self;
        }
        let busy = now.busy.saturating_sub(self.busy).min(total);
        Self { utilization: busy as f64 / total as f64, ..now }
    }
}

/// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
/// Guest time is included in user time.
fn cpu_times(text: &str) -> Option<CpuTimes> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = fields.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some(CpuTimes { busy: total - idle, total, utilization: 0.0 })
}

fn memory(text: &str) -> Option<MachineMemory> {
    let bytes_of = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let total = bytes_of("MemTotal")?;
    let available = bytes_of("MemAvailable")?;
    Some(MachineMemory { total, used: total.saturating_sub(available) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_busy_share_between_two_readings() {
        let first = cpu_times("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 1").expect("a whole line");
        assert_eq!((first.busy, first.total), (150, 1000), "guest time is not counted twice");
        let second = cpu_times("cpu  130 0 50 860 60 0 0 0 7 0").expect("a whole line");
        let after = first.then(second);
        assert!((after.utilization - 0.3).abs() < 1e-9, "30 of 100 ticks were busy, not {}", after.utilization);
        assert_eq!(after.then(second).utilization, after.utilization, "no tick passed");
    }

    #[test]
    fn memory_in_use_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n";
        assert_eq!(memory(text), Some(MachineMemory { total: 1_024_000, used: 614_400 }));
    }

    #[test]
    fn the_processor_is_named_where_the_system_says_it() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other"), Some("AMD EPYC"));
        assert_eq!(processor("processor\t: 0\nBogoMIPS\t: 2\n"), None);
        assert!(machine().contains(" of "), "there is always something to say");
    }

    #[test]
    fn the_limits_of_all_groups_around_the_process_count() {
        let files: Vec<_> = group_limits("1:cpu:/other\n0::/pods/server\n").collect();
        let expected = ["pods/server/memory.max", "pods/memory.max", "memory.max", "memory/memory.limit_in_bytes"];
        assert_eq!(files, expected.map(|file| Path::new("/sys/fs/cgroup").join(file)));
        assert!(memory_bytes() <= Machine::memory().map(|memory| memory.total), "never more than the machine has");
    }

    #[test]
    fn the_soft_limit_of_open_files_counts() {
        let limits = "Limit    Soft Limit  Hard Limit  Units\nMax open files            1024     524288     files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(open_files("Max open files   unlimited  unlimited files"), None);
    }

    #[test]
    fn text_of_another_shape_reports_nothing() {
        assert_eq!(cpu_times("intr 1 2 3"), None);
        assert_eq!(cpu_times("cpu  1 2"), None);
        assert_eq!(memory("MemTotal: 5 pages\nMemAvailable: 1 kB\n"), None);
    }
}
