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
use rollway_config::{Backend, Config};

pub use self::advertised::Site;
pub use self::join_info::{Invitation, secret_in};
pub use crate::workers::worker_pool::ClusterError;
use crate::workers::worker_pool::{ChildOptions, Children, Launcher, Ray, RayOptions};

/// Returns the runners of a configuration in processes that are started like this, wherever its
/// `cluster` says. None is started yet. Needs a tokio runtime.
///
/// # Errors
/// If nothing can be listened on, there is no secret, or Ray cannot be used.
pub async fn children(config: &Config, options: ChildOptions) -> Result<Children, ClusterError> {
    let backend = config.cluster.backend;
    let launcher: Option<Arc<dyn Launcher>> = match backend {
        Backend::Ray => Some(Arc::new(Ray::open(RayOptions::new(config, &options)).await?)),
        Backend::Local | Backend::Manual => None,
    };
    let hint = match backend {
        Backend::Local => "see that the folder for temporary files can be written to",
        Backend::Ray | Backend::Manual => "see the keys `listen` and `secret_file` of `cluster`",
    };
    listen(config, options, launcher).await.map_err(|error| ClusterError {
        what: format!("workers cannot be listened for: {error}"),
        hint: hint.to_owned(),
    })
}

async fn listen(
    config: &Config,
    mut options: ChildOptions,
    launcher: Option<Arc<dyn Launcher>>,
) -> io::Result<Children> {
    let Some(site) = Site::of(config) else { return Children::new(options).await };
    let file = file(config);
    options.address = Some(Address::Tcp(site.listens_at(site.port)));
    options.host = Some(site.host);
    options.secret = match &config.cluster.secret_file {
        Some(file) => Some(secret_in(file.as_ref())?),
        // That of a job that ended without a word, so that its workers can join this one.
        None => Invitation::read(&file).ok().map(|left| left.secret),
    };
    if let Some(launcher) = launcher {
        return Children::with_launcher(options, launcher).await;
    }
    let mut children = Children::by_hand(options).await?;
    let address = children.address().to_string();
    let card = Invitation { address, secret: children.secret().clone() }.post(&file)?;
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
