//! Address file `dashboard.json` in a job's folder: URL and token of a running dashboard.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rollway_base::atomic_file::{self, FileError};
use rollway_net::tls;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The name of the file in a job's folder.
pub const CARD: &str = "dashboard.json";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DashboardAddress {
    /// Without the token.
    pub url: String,
    pub token: String,
    pub pid: u32,
    /// Of the certificate. Absent: clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl std::fmt::Debug for DashboardAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DashboardAddress").field("url", &self.url).field("pid", &self.pid).finish()
    }
}

impl DashboardAddress {
    /// Returns the URL with the token.
    pub fn address(&self) -> String {
        format!("{}/?token={}", self.url, self.token)
    }

    /// Reads the address file of a job. `None`: there is none. It may be stale, since a killed
    /// process leaves it behind.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(job: &Path) -> io::Result<Option<Self>> {
        match fs::read(job.join(CARD)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a dashboard with this token responds.
    pub async fn is_served(&self) -> bool {
        let response = tokio::time::timeout(REQUEST_TIMEOUT, self.probe()).await;
        matches!(response, Ok(Ok(true)))
    }

    async fn probe(&self) -> io::Result<bool> {
        let host = self.url.split_once("://").map_or(&*self.url, |(_, host)| host);
        let stream = TcpStream::connect(host).await?;
        let Some(fingerprint) = &self.fingerprint else {
            return self.request_job(stream, host).await;
        };
        let fingerprint = fingerprint.parse().map_err(io::Error::other)?;
        let stream = tls::connect_http1(stream, host, fingerprint).await;
        self.request_job(stream.map_err(io::Error::other)?, host).await
    }

    /// Requests the job, and returns whether the response is a success.
    async fn request_job<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: S,
        host: &str,
    ) -> io::Result<bool> {
        let Self { token, .. } = self;
        let request = format!(
            "GET /api/job HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        Ok(status == *b"HTTP/1.1 200")
    }

    /// Writes the address file, readable for its owner only.
    pub(crate) fn write(&self, job: &Path) -> Result<DashboardAddressFile, FileError> {
        let path = job.join(CARD);
        let text = serde_json::to_string(self).unwrap_or_default();
        atomic_file::write_line(&path, &text, true)?;
        Ok(DashboardAddressFile { path: path.into(), address: self.clone() })
    }
}

/// A written address file. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct DashboardAddressFile {
    path: Box<Path>,
    address: DashboardAddress,
}

impl Drop for DashboardAddressFile {
    fn drop(&mut self) {
        // The file of another process stays; a stale file is harmless.
        let job = self.path.parent().unwrap_or(&self.path);
        if matches!(DashboardAddress::read(job), Ok(Some(found)) if found == self.address) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
