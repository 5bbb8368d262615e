//! `dashboard.json` in a job's folder: where the dashboard of a running job is, and its token.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};

/// The name of the file in a job's folder.
pub const CARD: &str = "dashboard.json";

/// Where a dashboard is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its address, without the token.
    pub url: String,
    /// What opens it.
    pub token: String,
    /// The process that serves it.
    pub pid: u32,
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Card").field("url", &self.url).field("pid", &self.pid).finish()
    }
}

impl Card {
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

    /// Leaves the card in a job's folder, for its owner alone.
    pub(crate) fn leave(&self, job: &Path) -> Result<Left, FileError> {
        let path = job.join(CARD);
        let text = serde_json::to_string(self).unwrap_or_default();
        files::write(&path, &text, true)?;
        Ok(Left { path: path.into(), card: self.clone() })
    }
}

/// A card that lies in a job's folder; dropping this takes it away again.
#[derive(Debug)]
pub(crate) struct Left {
    path: Box<Path>,
    card: Card,
}

impl Drop for Left {
    fn drop(&mut self) {
        // Somebody else's is left alone; what cannot be removed is out of date and harmless.
        let job = self.path.parent().unwrap_or(&self.path);
        if matches!(Card::read(job), Ok(Some(card)) if card == self.card) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
