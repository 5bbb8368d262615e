//! `cluster`: on which machines workers run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Args;
use super::seconds::ConfigSeconds;

/// On which machines workers run. `cluster: ray` is short for `cluster: {backend: ray}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-shorthand" = "backend"))]
pub struct ClusterConfig {
    /// Who places workers.
    pub backend: ClusterBackend,
    /// Address of a running Ray cluster. Absent: the one that Ray finds by itself.
    pub address: Option<String>,
    /// Ray namespace of the job. Absent: `project/name`.
    pub namespace: Option<String>,
    /// CPUs that Ray reserves for each worker.
    #[schemars(range(min = 0.0))]
    pub cpus_per_worker: f64,
    /// GPUs that Ray reserves for each worker.
    #[schemars(range(min = 0.0))]
    pub gpus_per_worker: f64,
    /// Further resources that Ray reserves for each worker, by name.
    pub resources_per_worker: BTreeMap<String, f64>,
    /// How Ray spreads workers over machines.
    pub placement: Placement,
    /// Ray's `runtime_env` for workers.
    pub runtime_env: Args,
    /// Where workers on other machines reach this job, as a host or `host:port`: the port of their
    /// connections, and the host of the model gateway. Absent: the address that this machine has
    /// towards the cluster, and any free port.
    pub listen: Option<String>,
    /// Port of the model gateway for workers on other machines. Absent: any free one.
    pub gateway_port: Option<u16>,
    /// File with the secret that workers show. Absent: a new one in `cluster.json` of the job's
    /// folder, which only its owner can read.
    pub secret_file: Option<String>,
    /// How many worker processes there are at least, if their number follows the work. Absent: one
    /// if there is a `max_workers`, else as many as there are runners for, all the time.
    #[schemars(range(min = 1))]
    pub min_workers: Option<u32>,
    /// How many worker processes there are at most, if their number follows the work. Absent: as
    /// many as there are runners for.
    #[schemars(range(min = 1))]
    pub max_workers: Option<u32>,
    /// For how long a worker must not have been needed before it goes, if their number follows the
    /// work.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub idle_timeout: ConfigSeconds,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            backend: ClusterBackend::default(),
            address: None,
            namespace: None,
            cpus_per_worker: 1.0,
            gpus_per_worker: 0.0,
            resources_per_worker: BTreeMap::new(),
            placement: Placement::default(),
            runtime_env: Args::new(),
            listen: None,
            gateway_port: None,
            secret_file: None,
            min_workers: None,
            max_workers: None,
            idle_timeout: ConfigSeconds::new(60),
        }
    }
}

impl ClusterConfig {
    /// Returns the host and the port of a text like that of `listen`; 0 for a port that is left
    /// out, and nothing for a text that is none.
    pub fn host_and_port(text: &str) -> Option<(String, u16)> {
        let plain = |host: &str| !host.is_empty() && !host.contains(['/', ' ', '[', ']']);
        if text.parse::<std::net::IpAddr>().is_ok() {
            return Some((text.to_owned(), 0));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, 0),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match bare {
            Some(bare) => bare.parse::<std::net::Ipv6Addr>().ok().map(|_| (bare.to_owned(), port)),
            None => (plain(host) && !host.contains(':')).then(|| (host.to_owned(), port)),
        }
    }
}

/// Who places workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClusterBackend {
    /// Workers are processes on this machine.
    #[default]
    Local,
    /// Workers are Ray actors.
    Ray,
    /// Workers are started by somebody else, such as Slurm or Kubernetes, with `rollway worker`.
    Manual,
}

/// How Ray spreads workers over machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Over as many machines as there are.
    #[default]
    Spread,
    /// On as few machines as will do.
    Pack,
}
