//! The memory of a process, read from `/proc`.

use std::fs;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessMemory {
    /// Most resident memory so far.
    pub(super) peak_bytes: usize,
    /// Resident memory.
    pub(super) resident_bytes: usize,
    /// Of it, what is not a part of a file, such as a library.
    pub(super) anonymous_bytes: usize,
}

/// Returns the memory of this process. Nothing on a system without `/proc`.
pub(super) fn own() -> Option<ProcessMemory> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Returns the memory of another process; nothing if it has ended.
pub(super) fn of_process(process: u32) -> Option<ProcessMemory> {
    parse(&fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

fn parse(status: &str) -> Option<ProcessMemory> {
    let bytes_of = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
    };
    let (peak_bytes, resident_bytes) = (bytes_of("VmHWM")?, bytes_of("VmRSS")?);
    Some(ProcessMemory { peak_bytes, resident_bytes, anonymous_bytes: bytes_of("RssAnon")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let status = "Name:\tx\nVmHWM:\t    30 kB\nVmRSS:\t    20 kB\nRssAnon:\t    10 kB\nRssFile:\t    10 kB\n";
        let expected = ProcessMemory { peak_bytes: 30 << 10, resident_bytes: 20 << 10, anonymous_bytes: 10 << 10 };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Name:\tkthread\n"), None, "a process of the kernel, or one that has ended");
        let own = own().expect("Linux");
        assert!(own.peak_bytes >= own.anonymous_bytes && own.anonymous_bytes > 0, "{own:?}");
    }
}
