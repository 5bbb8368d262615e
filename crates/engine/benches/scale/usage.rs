//! Resource usage of processes.

use std::fs;

#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// CPU seconds of all threads.
    pub(crate) cpu: f64,
    /// Resident bytes.
    pub(crate) resident: f64,
}

impl Usage {
    /// Reads the usage of a process. `None`: of this one.
    pub(crate) fn of(process: Option<u32>) -> Self {
        const TICKS_PER_SECOND: f64 = 100.0;
        let name = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
        let read = |file: &str| fs::read_to_string(format!("/proc/{name}/{file}"));
        let stat = read("stat").unwrap_or_default();
        // The process name is in parentheses and may contain spaces.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let fields = fields.skip(11).take(2);
        let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
        let status = read("status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Self { cpu: ticks / TICKS_PER_SECOND, resident: kib.unwrap_or_default() * 1024.0 }
    }
}

/// Returns the load average and the number of cores.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let last = load.split_whitespace().next().unwrap_or("unknown");
    format!("{last} on {cores} cores")
}
