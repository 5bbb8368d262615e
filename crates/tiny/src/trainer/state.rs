//! Saved state of the trainer: step, position of the reader, model and optimizer. Replaced
//! atomically.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollway_tiny_model::ModelTrainer;
use serde::{Deserialize, Serialize};

use super::TinyTrainerError;
use rollway_sync::weight_folder::{failed, sync, write_atomic};

/// Version of the format.
const FORMAT: u32 = 1;

/// Written after the model's file; makes the state valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    format: u32,
    pub(super) latest_iteration: u64,
    /// Position of the reader after that step.
    pub(super) position: String,
    /// File of model and optimizer.
    file: String,
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
        let meta: Meta = serde_json::from_slice(&bytes).map_err(|error| {
            invalid(format!("not a state of a trainer: {error}; remove it to start over"))
        })?;
        if meta.format != FORMAT {
            return Err(invalid(format!("unsupported format {}, expected {FORMAT}", meta.format)));
        }
        let trainer = ModelTrainer::load(&self.folder.join(&meta.file))?;
        Ok(Some((meta, trainer)))
    }

    /// Saves the state durably.
    pub(super) fn save(
        &self,
        step: u64,
        position: &str,
        trainer: &ModelTrainer,
    ) -> Result<(), TinyTrainerError> {
        let file = format!("{}_state_{step}.safetensors", self.name);
        trainer.save(&self.folder.join(&file))?;
        sync(&self.folder)?;
        let meta = Meta { format: FORMAT, latest_iteration: step, position: position.into(), file };
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
