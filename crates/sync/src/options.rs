//! Options of a synchronizer and their values from a configuration.

use std::path::PathBuf;
use std::time::Duration;

use rollway_base::Secret;
use rollway_base::tls::TlsOptions;
use rollway_config::{Config, SyncMethod};
use rollway_net::{ListenerKind, ListenerLimits};

use super::weight_folder::{self, CheckpointRetention};

/// Default heartbeat timeout of members.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(15);

/// Default time to look for an unreachable synchronizer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct SynchronizerOptions {
    pub job_dir: PathBuf,
    /// Job name, checked when joining.
    pub job: String,
    /// `synchronizer.address`.
    pub address: Option<String>,
    pub method: SyncMethod,
    pub retention: CheckpointRetention,
    /// Heartbeat timeout of members.
    pub heartbeat_timeout: Duration,
    /// Time to look for an unreachable synchronizer.
    pub lookup_timeout: Duration,
    /// Folder in which pushed weights get a folder of their own with method `memory`.
    pub memory_root: PathBuf,
    pub may_host: bool,
    /// Secret for a process without access to the job folder.
    pub secret: Option<Secret>,
    /// Limits of the connections to a host.
    pub limits: ListenerLimits,
    /// Encryption of the connections to a host.
    pub tls: TlsOptions,
}

impl SynchronizerOptions {
    /// Returns the options of a validated configuration.
    pub fn of(config: &Config) -> Self {
        let parts = [&config.project, &config.group, &config.name];
        let job: Vec<&str> =
            parts.into_iter().filter(|it| !it.is_empty()).map(String::as_str).collect();
        let address = config.synchronizer.address.clone();
        Self {
            job: job.join("/"),
            address: address.filter(|address| !address.is_empty()),
            method: config.synchronizer.sync_method,
            retention: CheckpointRetention::of(config),
            limits: config.listeners.limits(ListenerKind::Synchronizer),
            tls: config.tls_options(),
            ..Self::new(config.job_dir())
        }
    }

    /// Returns the default options for a job folder.
    pub fn new(job_dir: impl Into<PathBuf>) -> Self {
        let job_dir = job_dir.into();
        Self {
            job: String::new(),
            address: None,
            method: SyncMethod::Checkpoint,
            retention: CheckpointRetention::default(),
            heartbeat_timeout: MEMBER_TIMEOUT,
            lookup_timeout: LOOKUP_TIMEOUT,
            memory_root: weight_folder::memory_root(),
            may_host: true,
            secret: None,
            limits: ListenerLimits::of(ListenerKind::Synchronizer),
            tls: TlsOptions::off(),
            job_dir,
        }
    }
}
