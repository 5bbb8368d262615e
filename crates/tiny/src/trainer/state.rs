//! Saved state of the trainer: step, position of the reader, model and optimizer. Replaced
//! atomically.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollway_tiny_model::{ModelTrainer, ModelWeights};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::TinyTrainerError;
use rollway_sync::weight_folder::{self, MODEL, failed, sync, write_atomic};

/// Version of the format.
const FORMAT: u32 = 1;

const RESTORE: &str =
    "restore it from a backup, or begin a new job with `continue_from_checkpoint: false`";

/// Written after the model's file; makes the state valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    format: u32,
    pub(super) latest_iteration: u64,
    /// Position of the reader after that step.
    pub(super) position: String,
    /// Experiences that were trained, skipped or stale up to that step. `None`: an earlier release
    /// did not count them.
    #[serde(default)]
    pub(super) consumed: Option<u64>,
    /// File of model and optimizer.
    file: String,
    /// SHA-256 of the file. Files of earlier releases have none.
    #[serde(default)]
    sha256: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct TrainerStateFile {
    folder: PathBuf,
    name: String,
}

impl TrainerStateFile {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self { folder: folder.into(), name: name.into() }
    }

    fn meta(&self) -> PathBuf {
        self.folder.join(format!("{}_meta.json", self.name))
    }

    /// Loads the state. `None`: there is none.
    pub(super) fn load(&self) -> Result<Option<(Meta, ModelTrainer)>, TinyTrainerError> {
        let path = self.meta();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path)(error).into()),
        };
        let invalid = |problem: String| TinyTrainerError::File { path: path.clone(), problem };
        let meta: Meta = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(format!("the file is damaged: {error}; {RESTORE}")))?;
        if meta.format != FORMAT {
            return Err(invalid(format!("unsupported format {}, expected {FORMAT}", meta.format)));
        }
        let trainer = self.trainer(&meta)?;
        Ok(Some((meta, trainer)))
    }

    /// Loads model and optimizer. If their file was removed, the published weights of the same
    /// step are used with a new optimizer.
    fn trainer(&self, meta: &Meta) -> Result<ModelTrainer, TinyTrainerError> {
        let (path, step) = (self.folder.join(&meta.file), meta.latest_iteration);
        let published = self.published(step);
        let bytes = match (fs::read(&path), &published) {
            (Ok(bytes), _) => bytes,
            (Err(error), Some(weights)) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(
                    step, weights = %weights.display(), missing = %path.display(),
                    "the optimizer state is missing: continuing with the published weights and a \
                     new optimizer"
                );
                return Ok(ModelTrainer::new(ModelWeights::load(weights)?));
            }
            (Err(error), _) => return Err(failed(&path)(error).into()),
        };
        let loaded = match &meta.sha256 {
            Some(expected) if *expected != sha256(&bytes) => {
                Err("the bytes are not those that were written".to_owned())
            }
            _ => ModelTrainer::load(&path).map_err(|error| error.to_string()),
        };
        loaded.map_err(|problem| {
            let remedy = match published {
                Some(weights) => format!(
                    "restore it from a backup, or remove it to continue with the weights of step \
                     {step} in {} and a new optimizer",
                    weights.display()
                ),
                None => RESTORE.to_owned(),
            };
            let problem = format!("the file is damaged: {problem}; {remedy}");
            TinyTrainerError::File { path: path.clone(), problem }
        })
    }

    /// Returns the file of the published weights of a step, if there is one.
    fn published(&self, step: u64) -> Option<PathBuf> {
        let folders = [Some(self.folder.clone()), weight_folder::own_memory(&self.folder)];
        let file = |folder: PathBuf| weight_folder::weights(&folder, step).join(MODEL);
        folders.into_iter().flatten().map(file).find(|file| file.is_file())
    }

    /// Saves the state durably.
    pub(super) fn save(
        &self,
        (step, position): (u64, &str),
        consumed: Option<u64>,
        trainer: &ModelTrainer,
    ) -> Result<(), TinyTrainerError> {
        let file = format!("{}_state_{step}.safetensors", self.name);
        let path = self.folder.join(&file);
        trainer.save(&path)?;
        sync(&self.folder)?;
        let sha256 = Some(sha256(&fs::read(&path).map_err(failed(&path))?));
        let (latest_iteration, position) = (step, position.to_owned());
        let meta = Meta { format: FORMAT, latest_iteration, position, consumed, file, sha256 };
        let mut bytes = serde_json::to_vec_pretty(&meta).unwrap_or_default();
        bytes.push(b'\n');
        write_atomic(&self.meta(), &bytes)?;
        self.tidy(&meta.file)
    }

    /// Removes the files of other states.
    fn tidy(&self, kept: &str) -> Result<(), TinyTrainerError> {
        let prefix = format!("{}_state_", self.name);
        for entry in fs::read_dir(&self.folder).map_err(failed(&self.folder))? {
            let entry = entry.map_err(failed(&self.folder))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name != kept {
                fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
            }
        }
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
