//! Where workers come from if they are not processes of this machine: where they reach the job,
//! what they show there, and who starts them.
//!
//! ```text
//! cluster.backend: local ───► child processes, over a Unix socket
//!                  ray ─────► Ray actors, which `children::ray` has placed, over TCP
//!                  manual ──► whoever comes with the secret, over TCP; the way is in a file
//! ```

mod advertised;
mod join_info;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rollway_base::Address;
use rollway_config::{ClusterBackend, Config};

pub use self::advertised::AdvertisedAddress;
pub use self::join_info::{JoinInfo, secret_in};
pub use crate::workers::worker_pool::ClusterError;
use crate::workers::worker_pool::{
    Launcher, RayLauncher, RayLauncherOptions, WorkerPool, WorkerPoolOptions,
};

/// Returns the runners of a configuration in processes that are started like this, wherever its
/// `cluster` says. None is started yet. Needs a tokio runtime.
///
/// # Errors
/// If nothing can be listened on, there is no secret, or Ray cannot be used.
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
        ClusterBackend::Local => "see that the folder for temporary files can be written to",
        ClusterBackend::Ray | ClusterBackend::Manual => {
            "see the keys `listen` and `secret_file` of `cluster`"
        }
    };
    listen(config, options, launcher).await.map_err(|error| ClusterError {
        what: format!("workers cannot be listened for: {error}"),
        hint: hint.to_owned(),
    })
}

async fn listen(
    config: &Config,
    mut options: WorkerPoolOptions,
    launcher: Option<Arc<dyn Launcher>>,
) -> io::Result<WorkerPool> {
    let Some(site) = AdvertisedAddress::of(config) else { return WorkerPool::new(options).await };
    let file = file(config);
    options.address = Some(Address::Tcp(site.listens_at(site.port)));
    options.host = Some(site.host);
    options.secret = match &config.cluster.secret_file {
        Some(file) => Some(secret_in(file.as_ref())?),
        // That of a job that ended without a word, so that its workers can join this one.
        None => JoinInfo::read(&file).ok().map(|left| left.secret),
    };
    if let Some(launcher) = launcher {
        return WorkerPool::with_launcher(options, launcher).await;
    }
    let mut children = WorkerPool::by_hand(options).await?;
    let address = children.address().to_string();
    let card =
        JoinInfo { address, secret: children.load_or_create_secret().clone() }.post(&file)?;
    tracing::info!(
        "workers are started by hand: rollway worker --connect {}, or on another machine: rollway \
         worker --connect {} --secret-file FILE",
        file.display(),
        children.address()
    );
    children.keep(card);
    Ok(children)
}

/// Returns where workers find the way to the job.
fn file(config: &Config) -> PathBuf {
    config.job_dir().join("cluster.json")
}
