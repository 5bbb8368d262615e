//! Options of a synchronizer and their values from a configuration.

use std::path::PathBuf;
use std::time::Duration;

use rollway_base::Secret;
use rollway_config::{Config, SyncMethod};

use super::weight_folder;

/// How long a member who says nothing is believed to be there.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a synchronizer that does not answer is looked for, by calls that do not say.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// How a synchronizer is hosted or found.
#[derive(Clone, Debug)]
pub struct SynchronizerOptions {
    /// The job's folder.
    pub job_dir: PathBuf,
    /// The job's name, so that nobody joins another's.
    pub job: String,
    /// `synchronizer.address`.
    pub address: Option<String>,
    /// The way that weights take.
    pub method: SyncMethod,
    /// How long a member who says nothing is believed to be there.
    pub lease: Duration,
    /// How long a synchronizer that does not answer is looked for.
    pub patience: Duration,
    /// Where pushed weights are kept with method `memory`.
    pub memory: PathBuf,
    /// Whether this process may host it.
    pub may_host: bool,
    /// Its secret, for a process that cannot read it in the job's folder.
    pub secret: Option<Secret>,
}

impl SynchronizerOptions {
    /// Returns what a checked configuration says.
    pub fn of(config: &Config) -> Self {
        let parts = [&config.project, &config.group, &config.name];
        let job: Vec<&str> =
            parts.into_iter().filter(|it| !it.is_empty()).map(String::as_str).collect();
        let address = config.synchronizer.address.clone();
        Self {
            job: job.join("/"),
            address: address.filter(|address| !address.is_empty()),
            method: config.synchronizer.sync_method,
            ..Self::new(config.job_dir())
        }
    }

    /// Returns the usual options for the folder of a job.
    pub fn new(job_dir: impl Into<PathBuf>) -> Self {
        let job_dir = job_dir.into();
        Self {
            job: String::new(),
            address: None,
            method: SyncMethod::Checkpoint,
            lease: MEMBER_TIMEOUT,
            patience: LOOKUP_TIMEOUT,
            memory: weight_folder::memory(&job_dir),
            may_host: true,
            secret: None,
            job_dir,
        }
    }
}
