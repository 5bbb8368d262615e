//! What a worker needs to join: an address and a secret, in a file.

use std::io;
use std::path::Path;

use rollway_base::Secret;
use rollway_base::address_file::AddressFile;
use serde::Deserialize;
use serde_json::json;

/// The way to a job, as `cluster.json` of its folder has it.
#[derive(Clone, Debug)]
pub struct JoinInfo {
    /// Where it listens, as `host:port`.
    pub address: String,
    /// What it wants to see.
    pub secret: Secret,
}

#[derive(Deserialize)]
struct Content {
    address: String,
    secret: String,
}

impl JoinInfo {
    /// Reads the file.
    ///
    /// # Errors
    /// If there is none, or it is another.
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = read(path)?;
        let no = |error: String| io::Error::other(format!("{}: {error}", path.display()));
        let content: Content =
            serde_json::from_str(&text).map_err(|error| no(format!("no invitation: {error}")))?;
        let secret = Secret::new(content.secret).map_err(|error| no(error.to_string()))?;
        Ok(Self { address: content.address, secret })
    }

    /// Writes it, for its owner only, until what is returned is gone.
    pub(super) fn post(&self, path: &Path) -> io::Result<AddressFile> {
        let text = json!({ "address": self.address, "secret": self.secret.reveal() });
        AddressFile::create(path.to_owned(), text.to_string())
    }
}

/// Returns the secret in a file: the text of it, or the secret of an [`JoinInfo`].
///
/// # Errors
/// If it cannot be read, or is empty.
pub fn secret_in(path: &Path) -> io::Result<Secret> {
    let text = read(path)?;
    if text.trim_start().starts_with('{') {
        return Ok(JoinInfo::read(path)?.secret);
    }
    Secret::new(text.trim())
        .map_err(|_| io::Error::other(format!("{}: there is no secret in it", path.display())))
}

fn read(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
