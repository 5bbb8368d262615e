//! `dashboard.json` in a job's folder: where the dashboard of a running job is, and its token.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rollway_base::atomic_file::{self, FileError};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The name of the file in a job's folder.
pub const CARD: &str = "dashboard.json";

/// How long an answer is waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a dashboard is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DashboardAddress {
    /// Its address, without the token.
    pub url: String,
    /// What opens it.
    pub token: String,
    /// The process that serves it.
    pub pid: u32,
}

impl std::fmt::Debug for DashboardAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Card").field("url", &self.url).field("pid", &self.pid).finish()
    }
}

impl DashboardAddress {
    /// The address with the token, for a browser.
    pub fn address(&self) -> String {
        format!("{}/?token={}", self.url, self.token)
    }

    /// Reads the card of a job; none if it has none. What is written there may be out of date: a
    /// process that was killed leaves it behind.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(job: &Path) -> io::Result<Option<Self>> {
        match fs::read(job.join(CARD)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whether somebody is there who knows the token.
    pub async fn is_served(&self) -> bool {
        let asked = tokio::time::timeout(REQUEST_TIMEOUT, self.ask()).await;
        matches!(asked, Ok(Ok(true)))
    }

    async fn ask(&self) -> io::Result<bool> {
        let place = self.url.strip_prefix("http://").unwrap_or(&self.url);
        let mut stream = TcpStream::connect(place).await?;
        let Self { token, .. } = self;
        let request = format!(
            "GET /api/job HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        Ok(status == *b"HTTP/1.1 200")
    }

    /// Leaves the card in a job's folder, for its owner alone.
    pub(crate) fn leave(&self, job: &Path) -> Result<DashboardAddressFile, FileError> {
        let path = job.join(CARD);
        let text = serde_json::to_string(self).unwrap_or_default();
        atomic_file::write_line(&path, &text, true)?;
        Ok(DashboardAddressFile { path: path.into(), card: self.clone() })
    }
}

/// A card that lies in a job's folder; dropping this takes it away again.
#[derive(Debug)]
pub(crate) struct DashboardAddressFile {
    path: Box<Path>,
    card: DashboardAddress,
}

impl Drop for DashboardAddressFile {
    fn drop(&mut self) {
        // Somebody else's is left alone; what cannot be removed is out of date and harmless.
        let job = self.path.parent().unwrap_or(&self.path);
        if matches!(DashboardAddress::read(job), Ok(Some(card)) if card == self.card) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
