//! Address and secret of a job for manual workers, in a file.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rollway_base::address_file::AddressFile;
use rollway_base::{Address, AddressError, Secret};
use serde::Deserialize;
use serde_json::json;

/// Content of `cluster.json` in the job folder.
#[derive(Clone, Debug)]
pub struct JoinInfo {
    pub address: Address,
    pub secret: Secret,
}

#[derive(Deserialize)]
struct Content {
    address: String,
    secret: String,
}

impl JoinInfo {
    pub fn read(path: &Path) -> io::Result<Self> {
        let text = read(path)?;
        let no = |error: String| io::Error::other(format!("{}: {error}", path.display()));
        let content: Content =
            serde_json::from_str(&text).map_err(|error| no(format!("no join info: {error}")))?;
        let secret = Secret::new(content.secret).map_err(|error| no(error.to_string()))?;
        let address = content.address.parse();
        let address = address.map_err(|error: AddressError| no(error.to_string()))?;
        Ok(Self { address, secret })
    }

    /// Writes the file, readable by its owner only. Dropping the returned value removes it.
    pub(super) fn post(&self, path: &Path) -> io::Result<AddressFile> {
        let text = json!({ "address": self.address.to_string(), "secret": self.secret.reveal() });
        AddressFile::create(path.to_owned(), text.to_string())
    }
}

/// Reads a secret from a file: plain text, or that of a [`JoinInfo`].
pub fn secret_in(path: &Path) -> io::Result<Secret> {
    let text = read(path)?;
    if text.trim_start().starts_with('{') {
        return Ok(JoinInfo::read(path)?.secret);
    }
    let no =
        |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let secret = Secret::chosen(&text).map_err(|error| no(&error))?;
    if let Some(weakness) = secret.weakness() {
        tracing::warn!(file = %path.display(), "{weakness}");
    }
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(
            file = %path.display(), mode = format!("{:o}", mode & 0o777),
            "other users can read the secret: chmod 600 the file"
        );
    }
    Ok(secret)
}

fn read(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
