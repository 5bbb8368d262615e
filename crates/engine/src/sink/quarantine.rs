//! Folder for batches that cannot be delivered because of their content.
//!
//! `<job>/quarantine/<batch>-<hash of the key>/` has one file `NNNNNN.payload` for each run and
//! `reason.txt`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollway_core::BatchId;
use sha2::{Digest as _, Sha256};

const FOLDER: &str = "quarantine";
const REASON: &str = "reason.txt";

/// Maximum number of characters of a batch id in the name of a folder.
const MAX_NAME_CHARS: usize = 40;

#[derive(Debug)]
pub(super) struct Quarantine {
    folder: PathBuf,
}

impl Quarantine {
    pub(super) fn new(job_dir: &Path) -> Self {
        Self { folder: job_dir.join(FOLDER) }
    }

    /// Stores a batch durably; returns its folder. Idempotent for a key.
    pub(super) fn store(
        &self,
        batch: &BatchId,
        key: &str,
        payloads: &[Bytes],
        reason: &str,
    ) -> io::Result<PathBuf> {
        let place = self.folder.join(name(batch, key));
        if place.exists() {
            return Ok(place);
        }
        let draft = place.with_extension("part");
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        fs::create_dir_all(&draft)?;
        for (number, payload) in payloads.iter().enumerate() {
            write(&draft.join(format!("{number:06}.payload")), payload)?;
        }
        let reason = format!("batch {batch}, delivery key {key}\n{reason}\n");
        write(&draft.join(REASON), reason.as_bytes())?;
        File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &place)?;
        File::open(&self.folder)?.sync_all()?;
        Ok(place)
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns a unique name: the batch for people, the hash of the key.
fn name(batch: &BatchId, key: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let batch: String = batch.to_string().chars().map(safe).take(MAX_NAME_CHARS).collect();
    let digest = Sha256::digest(key.as_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{batch}-{hash}")
}
