//! Source of a trainer's experiences.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use rollway_base::Secret;
use rollway_config::Config;
use rollway_data::buffer::{Buffer, ExperienceReader};
use rollway_data::reader::{self, ReaderTarget, SECRET};
use rollway_engine::BufferTarget;
use rollway_sync::Synchronizer;

use super::TrainerError;
use crate::explorer::Explorer;

/// Source of a trainer's experiences.
pub enum TrainerInput {
    /// A buffer of this process, its address for other processes, and for a queue the secret.
    Local(Arc<dyn Buffer>, String, Option<Secret>),
    /// Address of a buffer that is opened on demand.
    Remote(String, Option<Secret>),
}

impl fmt::Debug for TrainerInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(_, address, _) => f.debug_tuple("Local").field(address).finish(),
            Self::Remote(address, _) => f.debug_tuple("Remote").field(address).finish(),
        }
    }
}

impl TrainerInput {
    /// Returns the buffer of an explorer.
    pub fn of(explorer: &Explorer) -> Result<Self, TrainerError> {
        let failed = |error: &dyn fmt::Display| TrainerError::Input(error.to_string());
        let config = explorer.config();
        let Some(buffer) = explorer.buffer() else {
            return Err(TrainerError::Input("the explorer has no buffer".to_owned()));
        };
        let (address, secret) = match explorer.reader() {
            Some((url, file)) => {
                let secret = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
                let secret = Secret::new(secret.trim()).map_err(|error| failed(&error))?;
                (url, Some(secret))
            }
            None => (address(config)?, None),
        };
        Ok(Self::Local(buffer, address, secret))
    }

    /// Returns the buffer of mode `train`.
    pub fn alone(config: &Config) -> Result<Self, TrainerError> {
        let buffer = &config.buffer.trainer_input.experience_buffer;
        match buffer.path.as_deref().map(str::parse::<ReaderTarget>) {
            Some(Ok(target @ ReaderTarget::Remote(_))) => {
                let secret = std::env::var(SECRET).unwrap_or_default();
                let secret = Secret::new(secret.trim()).map_err(|_| {
                    TrainerError::Input(format!(
                        "{target} needs a secret\nhint: set the environment variable \
                         {SECRET} to the \
                         content of the job's `…_reader_secret.txt`"
                    ))
                })?;
                Ok(Self::Remote(target.to_string(), Some(secret)))
            }
            _ => Ok(Self::Remote(address(config)?, None)),
        }
    }

    /// Opens a reader under the trainer's name.
    pub(super) async fn reader(
        self,
        config: &Config,
    ) -> Result<Box<dyn ExperienceReader>, TrainerError> {
        let (config, name) = (config.clone(), config.trainer.name.clone());
        let open = move || match self {
            Self::Local(buffer, ..) => buffer.reader(&name),
            Self::Remote(address, Some(secret)) => {
                let target: ReaderTarget = address.parse().map_err(unknown)?;
                reader::open(&target, &name, Some(secret))
            }
            Self::Remote(_, None) => {
                BufferTarget::of_experiences(&config).map_err(unknown)?.open()?.reader(&name)
            }
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| TrainerError::Input(error.to_string()))?;
        opened.map_err(|error| TrainerError::Input(error.to_string()))
    }

    /// Returns the environment variables of a trainer program.
    pub(super) fn environment(
        &self,
        config: &Config,
        synchronizer: &Synchronizer,
    ) -> Vec<(&'static str, OsString)> {
        let (Self::Local(_, address, secret) | Self::Remote(address, secret)) = self;
        let (method, style) =
            (config.synchronizer.sync_method.name(), config.synchronizer.sync_style.name());
        let mut variables: Vec<(&'static str, OsString)> = vec![
            ("ROLLWAY_JOB_DIR", config.job_dir().into()),
            ("ROLLWAY_TRAINER_NAME", config.trainer.name.clone().into()),
            ("ROLLWAY_BUFFER", address.into()),
            ("ROLLWAY_SYNCHRONIZER", synchronizer.file().into()),
            ("ROLLWAY_SYNC_METHOD", method.into()),
            ("ROLLWAY_SYNC_STYLE", style.into()),
            ("ROLLWAY_SYNC_INTERVAL", config.synchronizer.sync_interval.to_string().into()),
            ("ROLLWAY_TRAIN_BATCH_SIZE", config.buffer.train_batch_size.to_string().into()),
            ("ROLLWAY_SAVE_INTERVAL", config.trainer.save_interval.to_string().into()),
        ];
        if let Some(steps) = config.trainer.total_steps {
            variables.push(("ROLLWAY_TOTAL_STEPS", steps.to_string().into()));
        }
        if let Some(secret) = secret {
            variables.push((SECRET, secret.reveal().into()));
        }
        variables
    }
}

/// Returns the address of the configured buffer for other processes.
fn address(config: &Config) -> Result<String, TrainerError> {
    let target = BufferTarget::of_experiences(config);
    let target = target.map_err(|error| TrainerError::Input(error.to_string()))?;
    let address = target.address().for_other_processes();
    Ok(target.table().map_or_else(|| address.clone(), |table| reader::with_table(&address, table)))
}

fn unknown(error: impl fmt::Display) -> rollway_data::buffer::BufferError {
    rollway_data::buffer::BufferError::Unsupported {
        storage: "the buffer".to_owned(),
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_for_other_processes_names_the_table() {
        let address_of = |path: &str| {
            let own =
                serde_json::json!({ "storage_type": "sql", "name": "mine_buffer", "path": path });
            let keys =
                serde_json::json!({ "buffer": { "trainer_input": { "experience_buffer": own } } });
            address(&Config::from_value(&keys).unwrap()).unwrap()
        };
        for path in ["sqlite:////data/a.db", "postgresql://me:secret@host/db?application_name=a"] {
            let text = address_of(path);
            let ReaderTarget::Local(_, table) = text.parse().unwrap() else { panic!("{text}") };
            assert_eq!(table.as_deref(), Some("mine"), "{text}");
        }
    }
}
