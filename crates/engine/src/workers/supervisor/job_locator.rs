//! Finds and waits for the job of a supervisor.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollway_base::{Address, Secret};
use rollway_protocol::env;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::SupervisorError;
use crate::workers::cluster::{JoinInfo, secret_in};

/// Timeout of one connection attempt.
const TRY: Duration = Duration::from_secs(5);

/// Pause between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub enum JobLocator {
    Known(JoinInfo),
    /// Path of `cluster.json` in a shared job folder.
    File(PathBuf),
}

impl JobLocator {
    /// Parses the arguments: `HOST:PORT` or `tls:HOST:PORT#FINGERPRINT`, with the secret in a file
    /// or the environment, or the path of `cluster.json`.
    pub fn from_arguments(
        connect: &str,
        secret_file: Option<&Path>,
    ) -> Result<Self, SupervisorError> {
        let secret = secret_file.map(secret_in).transpose();
        let secret = secret.map_err(|error| SupervisorError::Input(error.to_string()))?;
        match connect.parse::<Address>() {
            Ok(address @ (Address::Tcp(_) | Address::Tls { .. })) => {
                let known = std::env::var(env::SECRET).ok().filter(|it| !it.trim().is_empty());
                let known = known.filter(|_| secret.is_none()).map(|text| Secret::chosen(&text));
                let known = known.transpose();
                let known = known
                    .map_err(|error| SupervisorError::Input(format!("{}: {error}", env::SECRET)))?;
                match secret.or(known) {
                    Some(secret) => Ok(Self::Known(JoinInfo { address, secret })),
                    None => Err(SupervisorError::Input(format!(
                        "the secret of the job is missing; give it with --secret-file, or in {}",
                        env::SECRET
                    ))),
                }
            }
            _ if connect.contains('/') || Path::new(connect).extension().is_some() => {
                Ok(Self::File(connect.into()))
            }
            _ => Err(SupervisorError::Input(format!(
                "`{connect}` is neither HOST:PORT, tls:HOST:PORT#FINGERPRINT nor the \
                 `cluster.json` of a job"
            ))),
        }
    }

    /// Waits until the job is reachable.
    pub(super) async fn open(
        &self,
        connect_timeout: Duration,
        report_status: &(dyn Fn(&str) + Sync),
    ) -> Result<JoinInfo, SupervisorError> {
        let since = Instant::now();
        let mut reported = None;
        loop {
            let what = match self.try_open().await {
                Ok(join_info) => return Ok(join_info),
                Err(what) => what,
            };
            let waited = since.elapsed();
            if waited >= connect_timeout {
                return Err(SupervisorError::Unreachable { what, waited: connect_timeout });
            }
            if reported.as_ref() != Some(&what) {
                report_status(&format!("{what}; waits up to {connect_timeout:?}"));
                reported = Some(what);
            }
            sleep(RETRY_DELAY.min(connect_timeout.saturating_sub(waited))).await;
        }
    }

    async fn try_open(&self) -> Result<JoinInfo, String> {
        let join_info = match self {
            Self::Known(join_info) => join_info.clone(),
            Self::File(path) => JoinInfo::read(path).map_err(|error| error.to_string())?,
        };
        let address = &join_info.address;
        let host_port = address.host_port().unwrap_or_default();
        match timeout(TRY, TcpStream::connect(host_port)).await {
            Ok(Ok(_)) => Ok(join_info),
            Ok(Err(error)) => Err(format!("no connection to {address}: {error}")),
            Err(_) => Err(format!(
                "no response from {address} within {TRY:?}; check that the job runs and \
                 the port is open"
            )),
        }
    }
}
