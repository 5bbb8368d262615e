//! `ledger`: what survives the death of a job.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// What survives the death of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// Whether batches and finished runs are kept on disk before they are acknowledged, so that a
    /// job that dies goes on where it was.
    pub enable: bool,
    /// Folder of the ledger. Absent: `ledger` in the job's folder; of an explorer with a name of
    /// its own `<name>_ledger`, since several explorers of a job have one each.
    pub path: Option<String>,
    /// Bytes of unfinished batches that the ledger holds before another is refused.
    #[schemars(range(min = 1))]
    pub max_bytes: u64,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self { enable: true, path: None, max_bytes: 64 << 30 }
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
