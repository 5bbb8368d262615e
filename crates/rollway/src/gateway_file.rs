//! `gateway.json` in a job's folder: URL and admin key of the gateway of a running job.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rollway_base::atomic_file::{self, FileError};
use rollway_base::{FingerprintError, Secret};
use rollway_gateway::gateway::Gateway;
use serde::{Deserialize, Serialize};

use crate::Client;

/// Name of the file.
const FILE: &str = "gateway.json";

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayAddress {
    /// Without `/v1`.
    pub url: String,
    /// Admin key.
    pub key: String,
    pub pid: u32,
    /// Of the certificate. Absent: clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Without the key.
impl fmt::Debug for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayAddress").field("url", &self.url).field("pid", &self.pid).finish()
    }
}

impl GatewayAddress {
    /// Returns a client of the gateway.
    ///
    /// # Errors
    /// A message, if the fingerprint is not valid.
    pub fn client(&self) -> Result<Client, String> {
        let fingerprint = self.fingerprint.as_deref().map(str::parse).transpose();
        Client::of(&self.url, fingerprint.map_err(|error: FingerprintError| error.to_string())?)
    }

    /// Reads the file of a job. `None`: there is none. It may be stale, since a killed process
    /// leaves it behind.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(job: &Path) -> io::Result<Option<Self>> {
        match fs::read(job.join(FILE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A written file. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct GatewayAddressFile {
    job: PathBuf,
    address: GatewayAddress,
}

impl GatewayAddressFile {
    /// Writes the file, readable for its owner only.
    pub(crate) fn write(job: PathBuf, gateway: &Gateway, key: &Secret) -> Result<Self, FileError> {
        let address = GatewayAddress {
            url: gateway.url().to_owned(),
            key: key.reveal().to_owned(),
            pid: std::process::id(),
            fingerprint: gateway.identity().map(|identity| identity.fingerprint().to_string()),
        };
        let text = serde_json::to_string(&address).unwrap_or_default();
        atomic_file::write_line(&job.join(FILE), &text, true)?;
        Ok(Self { job, address })
    }
}

impl Drop for GatewayAddressFile {
    fn drop(&mut self) {
        // The file of another process stays; a stale file is harmless.
        if matches!(GatewayAddress::read(&self.job), Ok(Some(found)) if found == self.address) {
            let _ = fs::remove_file(self.job.join(FILE));
        }
    }
}
