//! `gateway.json` in a job's folder: URL and admin key of the gateway of a running job.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rollway_base::Secret;
use rollway_base::atomic_file::{self, FileError};
use serde::{Deserialize, Serialize};

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
}

/// Without the key.
impl fmt::Debug for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayAddress").field("url", &self.url).field("pid", &self.pid).finish()
    }
}

impl GatewayAddress {
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
    pub(crate) fn write(job: PathBuf, url: &str, key: &Secret) -> Result<Self, FileError> {
        let (url, key) = (url.to_owned(), key.reveal().to_owned());
        let address = GatewayAddress { url, key, pid: std::process::id() };
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
