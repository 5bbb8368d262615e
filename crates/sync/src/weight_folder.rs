//! Folder of weights: `global_step_<n>` with safetensors, published atomically, and the last
//! version in `latest_state_dict_iteration.txt`.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rollway_base::folder::is_private_folder;
use rollway_base::{atomic_file, random_bytes};
use rollway_config::Config;
use serde::{Deserialize, Serialize};

use super::address_file::{self, SyncAddressFile};

/// File with the last published version.
pub const LATEST: &str = "latest_state_dict_iteration.txt";
/// File with the weights of a version.
pub const MODEL: &str = "model.safetensors";
/// Marks weights that are kept permanently.
pub const FULL: &str = ".full_checkpoint";

/// Marks weights that were written by a publish call, so that they can be deleted. Folders that a
/// trainer wrote by itself may hold more than weights, and are never deleted.
const PUBLISHED: &str = ".published";

/// Minimum number of weights that are kept: servers may still load the last but one.
const MIN_KEPT: usize = 2;

const PREFIX: &str = "global_step_";
const UNFINISHED: &str = ".tmp";

/// Rule for deleting published weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRetention {
    /// `trainer.max_checkpoints_to_keep`. 0: all.
    pub max_kept: u32,
    /// `trainer.save_interval`: versions between permanent weights. 0: none are permanent.
    pub save_interval: u32,
}

impl CheckpointRetention {
    pub fn of(config: &Config) -> Self {
        let trainer = &config.trainer;
        Self { max_kept: trainer.max_checkpoints_to_keep, save_interval: trainer.save_interval }
    }

    /// Tells whether the weights of a version are permanent.
    pub const fn is_permanent(self, version: u64) -> bool {
        self.save_interval > 0 && version.is_multiple_of(self.save_interval as u64)
    }

    /// Returns the maximum number of weights that are not permanent.
    pub fn max_temporary(self) -> usize {
        if self.max_kept == 0 { usize::MAX } else { MIN_KEPT.max(self.max_kept as usize) }
    }
}

impl Default for CheckpointRetention {
    fn default() -> Self {
        Self::of(&Config::default())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct WeightFolderError {
    pub path: PathBuf,
    pub source: io::Error,
}

type Result<T> = std::result::Result<T, WeightFolderError>;

/// Returns a conversion of errors of a file.
pub fn failed(path: &Path) -> impl Fn(io::Error) -> WeightFolderError {
    move |source| WeightFolderError { path: path.to_owned(), source }
}

pub fn directory(folder: &Path, version: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{version}"))
}

/// Returns the folder of a version that servers load: trainers keep weights beside their own state,
/// or alone.
pub fn weights(folder: &Path, version: u64) -> PathBuf {
    let step = directory(folder, version);
    let inner = ["actor/huggingface", "actor"].map(|name| step.join(name));
    inner.into_iter().find(|path| path.is_dir()).unwrap_or(step)
}

/// Parses the name of a version's directory.
pub fn version(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Returns the last published version. `None`: there is none.
pub fn latest(folder: &Path) -> Result<Option<u64>> {
    let path = folder.join(LATEST);
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            let problem = format!("it contains {text:?}, which is not the number of a step");
            failed(&path)(io::Error::new(io::ErrorKind::InvalidData, problem))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path)(error)),
    }
}

/// Unpublished weights.
#[derive(Debug)]
pub struct WeightDraft {
    folder: PathBuf,
    version: u64,
    beside: PathBuf,
}

impl WeightDraft {
    /// Begins with an empty directory.
    pub fn begin(folder: &Path, version: u64) -> Result<Self> {
        let draft = Self::resume(folder, version);
        remove(&draft.beside)?;
        fs::create_dir_all(&draft.beside).map_err(failed(&draft.beside))?;
        Ok(draft)
    }

    /// Continues an existing draft.
    pub fn resume(folder: &Path, version: u64) -> Self {
        let mut beside = directory(folder, version).into_os_string();
        beside.push(UNFINISHED);
        Self { folder: folder.into(), version, beside: beside.into() }
    }

    /// Returns the directory to write to.
    pub fn path(&self) -> &Path {
        &self.beside
    }

    /// Marks the weights as written by a publish call, then [finishes](Self::finish) them.
    pub fn finish_published(self, is_full: bool) -> Result<PathBuf> {
        write_atomic(&self.beside.join(PUBLISHED), b"")?;
        self.finish(is_full)
    }

    /// Moves the draft to the directory of its version, durably. [`announce`] publishes it.
    pub fn finish(self, is_full: bool) -> Result<PathBuf> {
        if is_full {
            write_atomic(&self.beside.join(FULL), b"")?;
        }
        for entry in fs::read_dir(&self.beside).map_err(failed(&self.beside))? {
            let path = entry.map_err(failed(&self.beside))?.path();
            sync(&path)?;
        }
        sync(&self.beside)?;
        let target = directory(&self.folder, self.version);
        remove(&target)?;
        fs::rename(&self.beside, &target).map_err(failed(&target))?;
        sync(&self.folder)?;
        Ok(target)
    }
}

/// Publishes a version as the newest.
pub fn announce(folder: &Path, version: u64) -> Result<()> {
    write_atomic(&folder.join(LATEST), format!("{version}\n").as_bytes())
}

/// Writes weights atomically; returns their directory.
pub fn write(folder: &Path, version: u64, bytes: &[u8], is_full: bool) -> Result<PathBuf> {
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let target = directory(folder, version);
    // A process that died here has left the same content.
    let is_stored = fs::read(target.join(MODEL)).is_ok_and(|stored| stored == bytes)
        && (target.join(FULL).exists() || !is_full);
    if is_stored {
        return Ok(target);
    }
    let draft = WeightDraft::begin(folder, version)?;
    let path = draft.path().join(MODEL);
    fs::write(&path, bytes).map_err(failed(&path))?;
    draft.finish(is_full)
}

/// Removes weights that were written by publish calls, as [`remove_temporary`] does.
pub fn remove_published(folder: &Path, max_temporary: usize, in_use: &[u64]) -> Result<()> {
    remove_marked(folder, max_temporary, in_use, |path| path.join(PUBLISHED).exists())
}

/// Removes temporary weights but for the last few and those in use, and old drafts.
pub fn remove_temporary(folder: &Path, max_temporary: usize, in_use: &[u64]) -> Result<()> {
    remove_marked(folder, max_temporary, in_use, |_| true)
}

/// Removes those temporary weights that `is_ours` allows.
fn remove_marked(
    folder: &Path,
    max_temporary: usize,
    in_use: &[u64],
    is_ours: impl Fn(&Path) -> bool,
) -> Result<()> {
    let mut temporary = Vec::new();
    let mut unfinished = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        match name.strip_suffix(UNFINISHED) {
            Some(name) => unfinished.extend(version(name).map(|version| (version, entry.path()))),
            None => {
                let path = entry.path();
                let is_passing = |_: &u64| !path.join(FULL).exists() && is_ours(&path);
                temporary.extend(version(name).filter(is_passing));
            }
        }
    }
    temporary.sort_unstable();
    let over = temporary.len().saturating_sub(max_temporary);
    for version in temporary[..over].iter().filter(|version| !in_use.contains(version)) {
        remove(&directory(folder, *version))?;
    }
    // Newer drafts may be in progress.
    let last = temporary.last().copied().unwrap_or(0);
    for (_, path) in unfinished.iter().filter(|(version, _)| *version < last) {
        remove(path)?;
    }
    Ok(())
}

/// Returns the folder in which pushed weights get a folder of their own: in memory where possible.
pub(super) fn memory_root() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Returns the folder of pushed weights of a job, which `synchronizer.json` names, if it is safe to
/// load from: another user may have created it anew.
pub fn own_memory(job_dir: &Path) -> Option<PathBuf> {
    let found = SyncAddressFile::read(&address_file::file(job_dir)).ok().flatten();
    found?.memory.filter(|folder| is_private_folder(folder))
}

/// Creates a folder for pushed weights that only its owner can access. Its name is random: other
/// users can create files in the root, and must not be able to take it first.
pub(super) fn create_memory(root: &Path) -> Result<PathBuf> {
    let create = || {
        let name: String = random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = root.join(format!("rollway-{name}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(folder)
    };
    create().map_err(failed(root))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(folder)(error)),
        _ => Ok(()),
    }
}

/// Makes a file, or the entries of a folder, durable.
pub fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(failed(path))
}

/// Replaces a file atomically and durably.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    atomic_file::write_atomic(path, bytes, 0o644).map_err(failed(path))
}
