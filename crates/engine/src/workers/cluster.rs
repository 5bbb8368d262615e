//! Worker pools of the cluster backends: `local` child processes over a Unix socket, `ray` actors
//! and `manual` workers over TCP.

mod advertised;
mod join_info;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rollway_base::Address;
use rollway_base::listener::ListenerKind;
use rollway_config::secrets::secret_variables;
use rollway_config::{ClusterBackend, Config};

pub use self::advertised::AdvertisedAddress;
pub use self::join_info::{JoinInfo, secret_in};
pub use crate::workers::worker_pool::ClusterError;
use crate::workers::worker_pool::{
    Launcher, RayLauncher, RayLauncherOptions, WorkerPool, WorkerPoolOptions,
};

/// Returns the worker pool of a configuration; starts no worker. Needs a tokio runtime.
///
/// # Errors
/// If the address cannot be bound, the secret cannot be read, or Ray is not available.
pub async fn worker_pool(
    config: &Config,
    options: WorkerPoolOptions,
) -> Result<WorkerPool, ClusterError> {
    let backend = config.cluster.backend;
    let launcher: Option<Arc<dyn Launcher>> = match backend {
        ClusterBackend::Ray => {
            Some(Arc::new(RayLauncher::open(RayLauncherOptions::new(config, &options)).await?))
        }
        ClusterBackend::Local | ClusterBackend::Manual => None,
    };
    let hint = match backend {
        ClusterBackend::Local => {
            "make the folder for temporary files writable, or set TMPDIR to one that is"
        }
        ClusterBackend::Ray | ClusterBackend::Manual => {
            "check `cluster.listen` and `cluster.secret_file`"
        }
    };
    listen(config, options, launcher).await.map_err(|error| ClusterError {
        what: format!("cannot listen for workers: {error}"),
        hint: hint.to_owned(),
    })
}

/// Maximum bytes of the run ids, the metrics and the framing around a payload.
const REPORT_BYTES: u64 = 16 << 20;

/// Maximum length of a gRPC message.
const MAX_GRPC_BYTES: u64 = u32::MAX as u64;

async fn listen(
    config: &Config,
    mut options: WorkerPoolOptions,
    launcher: Option<Arc<dyn Launcher>>,
) -> io::Result<WorkerPool> {
    let message_bytes = config.explorer.limits.payload_bytes_per_run.saturating_add(REPORT_BYTES);
    options.removed_env.extend(secret_variables(config));
    options.message_bytes = usize::try_from(message_bytes.min(MAX_GRPC_BYTES)).ok();
    options.limits = config.listeners.limits(ListenerKind::Workers);
    let Some(site) = AdvertisedAddress::of(config) else { return WorkerPool::new(options).await };
    let file = file(config);
    options.address = Some(Address::Tcp(site.listens_at(site.port)));
    options.tls = config.tls_options();
    options.tls.hosts.push(site.host.clone());
    options.host = Some(site.host);
    options.secret = match &config.cluster.secret_file {
        Some(file) => Some(secret_in(file.as_ref())?),
        // The secret of a crashed job is reused, so that its workers can reconnect.
        None => JoinInfo::read(&file).ok().map(|left| left.secret),
    };
    if let Some(launcher) = launcher {
        return WorkerPool::with_launcher(options, launcher).await;
    }
    let mut pool = WorkerPool::manual(options).await?;
    let address = pool.address().clone();
    let address_file = JoinInfo { address, secret: pool.secret().clone() }.post(&file)?;
    tracing::info!(
        "workers are started by hand: rollway worker --connect {}, or on another machine: rollway \
         worker --connect {} --secret-file FILE",
        file.display(),
        pool.address()
    );
    pool.keep(address_file);
    Ok(pool)
}

/// Returns the path of the join information for manual workers.
fn file(config: &Config) -> PathBuf {
    config.job_dir().join("cluster.json")
}
