//! `ledger`: durable record of batches and runs.

use std::path::PathBuf;

use super::Config;

section! {
    /// Durable record of batches and runs.
    pub struct LedgerConfig {
        /// Writes batches and finished runs to disk before they are acknowledged, so that a job
        /// resumes after a crash.
        pub enable: bool = true,
        /// Folder of the ledger. Absent: `ledger` in the job's folder, or `<name>_ledger` if
        /// `explorer.name` is set, because every explorer of a job has its own.
        pub path: Option<String>,
        /// Maximum bytes of unfinished batches in the ledger; further batches are refused.
        #[schemars(range(min = 1))]
        pub max_bytes: u64 = 64 << 30,
    }
}

impl Config {
    /// Returns the folder of the ledger. `None`: the job has no ledger.
    pub fn ledger_dir(&self) -> Option<PathBuf> {
        let ledger = self.ledger.enable.then_some(&self.ledger)?;
        let path = ledger.path.as_deref().filter(|path| !path.is_empty());
        let own = match self.explorer.name.as_str() {
            "explorer" => "ledger".to_owned(),
            name => format!("{name}_ledger"),
        };
        Some(path.map_or_else(|| self.job_dir().join(own), PathBuf::from))
    }
}
