//! `cluster`: placement of workers on machines.

use std::collections::BTreeMap;

use super::Args;
use super::seconds::ConfigSeconds;

section! {
    /// Placement of workers on machines. `cluster: ray` is short for `cluster: {backend: ray}`.
    #[schemars(extend("x-shorthand" = "backend"))]
    pub struct ClusterConfig {
        pub backend: ClusterBackend,
        /// Address of a running Ray cluster; `local` starts one on this machine. Absent: Ray finds
        /// it.
        pub address: Option<String>,
        /// Ray namespace of the job. Absent: `project/name`.
        pub namespace: Option<String>,
        /// CPUs that Ray reserves for each worker.
        #[schemars(range(min = 0.0))]
        pub cpus_per_worker: f64 = 1.0,
        /// GPUs that Ray reserves for each worker.
        #[schemars(range(min = 0.0))]
        pub gpus_per_worker: f64,
        /// Further resources that Ray reserves for each worker, by name.
        pub resources_per_worker: BTreeMap<String, f64>,
        pub placement: Placement,
        /// Ray's `runtime_env` for workers.
        pub runtime_env: Args,
        /// Address of this job for workers on other machines, as a host or `host:port`: the port of
        /// their connections, and the host of the model gateway. Absent: any free port of the
        /// address of this machine towards the cluster, of the loopback with `address: local`.
        pub listen: Option<String>,
        /// Port of the model gateway for workers on other machines. Absent: any free one.
        pub gateway_port: Option<u16>,
        /// File with the secret that authenticates workers. Absent: a new secret in `cluster.json`
        /// of the job's folder, which only its owner can read.
        pub secret_file: Option<String>,
        /// Minimum number of worker processes if their number is scaled by demand. Absent: 1 with
        /// `max_workers`; without it, enough workers for all runners, without scaling.
        #[schemars(range(min = 1))]
        pub min_workers: Option<u32>,
        /// Maximum number of worker processes if their number is scaled by demand. Absent: enough
        /// workers for all runners.
        #[schemars(range(min = 1))]
        pub max_workers: Option<u32>,
        /// Idle time after which a worker ends if their number is scaled by demand.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub idle_timeout: ConfigSeconds = ConfigSeconds::new(60),
    }
}

impl ClusterConfig {
    /// Parses the host and the port of `listen`; the port is 0 if it is left out.
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

choices! {
    /// Launcher of workers.
    pub enum ClusterBackend {
        /// Workers are processes on this machine.
        #[default]
        Local,
        /// Workers are Ray actors.
        Ray,
        /// Workers are started from outside, such as by Slurm or Kubernetes, with `rollway worker`.
        Manual,
    }

    /// Distribution of Ray workers over machines.
    pub enum Placement {
        /// Over as many machines as possible.
        #[default]
        Spread,
        /// On as few machines as possible.
        Pack,
    }
}
