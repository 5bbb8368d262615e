//! Buffers of a configuration.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollway_base::Secret;
use rollway_base::folder::create_missing_folder;
use rollway_config::{Config, ExperienceBuffer, PriorityFn, ReplayBuffer, StorageType, WhenFull};
use rollway_data::buffer::queue::{self, ReplayOptions, ReplayPriority};
use rollway_data::buffer::{
    self, Buffer, BufferAddress, BufferError, BufferKind, BufferOwner, BufferStorage, sql, table,
};
use rollway_data::pipeline::OperatorArguments;
use serde_json::Value;

use super::SinkError;

const BUFFER: &str = "buffer.trainer_input.experience_buffer";
const INPUT: &str = "data_processor.experience_pipeline.input_save_path";

/// File in the folder of a job with its id.
const JOB_ID: &str = "job_id";

/// Name of the store of unprocessed experiences.
const INPUT_NAME: &str = "explorer_output";

/// Address and options of a buffer.
#[derive(Clone, Debug)]
pub struct BufferTarget {
    address: BufferAddress,
    options: buffer::BufferOptions,
    /// Default folder, created when the buffer is opened.
    folder: Option<PathBuf>,
    /// Folder and name of the job that owns the buffer. `None`: jobs share it.
    job: Option<(PathBuf, String)>,
}

impl BufferTarget {
    /// Returns the buffer between explorer and trainer.
    pub fn of_experiences(config: &Config) -> Result<Self, SinkError> {
        let ours = &config.buffer.trainer_input.experience_buffer;
        let path = ours.path.as_deref().filter(|path| !path.is_empty());
        let storage = ours.storage_type.storage();
        let address = match path.filter(|_| storage != BufferStorage::Queue) {
            Some(path) => parse(&format!("{BUFFER}.path"), path)?,
            None => default_address(storage, config, &ours.name)?,
        };
        if address.storage() != storage {
            let message = format!("{address} contradicts the `storage_type`; change one of them");
            return Err(SinkError::config(format!("{BUFFER}.path"), message));
        }
        let options =
            buffer::BufferOptions { queue: queue(config, ours)?, sql: database(ours), owner: None };
        let folder = path.is_none().then(|| config.cache_dir());
        Ok(Self { address, options, folder, job: job(config) })
    }

    /// Returns the store of unprocessed experiences. `None`: they are not kept.
    pub fn of_input(config: &Config) -> Result<Option<Self>, SinkError> {
        let pipeline = &config.data_processor.experience_pipeline;
        if !pipeline.save_input {
            return Ok(None);
        }
        let ours = &config.buffer.trainer_input.experience_buffer;
        let path = pipeline.input_save_path.as_deref().filter(|path| !path.is_empty());
        let address = match path {
            Some(path) => parse(INPUT, path)?,
            None => default_address(BufferStorage::Database, config, INPUT_NAME)?,
        };
        if address.storage() == BufferStorage::Queue {
            let message = "a queue without a reader fills up; name a file";
            return Err(SinkError::config(INPUT, message));
        }
        let sql = sql::SqlOptions { table: INPUT_NAME.to_owned(), ..database(ours) };
        let options = buffer::BufferOptions { sql, ..buffer::BufferOptions::default() };
        let folder = path.is_none().then(|| config.cache_dir());
        Ok(Some(Self { address, options, folder, job: job(config) }))
    }

    /// Returns the table of a database.
    pub fn table(&self) -> Option<&str> {
        let is_table = self.address.storage() == BufferStorage::Database;
        is_table.then_some(self.options.sql.table.as_str())
    }

    pub fn address(&self) -> &BufferAddress {
        &self.address
    }

    /// Opens or creates the buffer. Blocks.
    pub fn open(&self) -> Result<Arc<dyn Buffer>, BufferError> {
        if let Some(folder) = &self.folder {
            std::fs::create_dir_all(folder).map_err(|error| BufferError::Unavailable {
                storage: self.address.to_string(),
                message: format!("{} cannot be created: {error}", folder.display()),
            })?;
        }
        let owner = self.job.as_ref().map(|(folder, name)| self.owner(folder, name)).transpose()?;
        buffer::open(&self.address, &buffer::BufferOptions { owner, ..self.options.clone() })
    }

    fn owner(&self, folder: &Path, name: &str) -> Result<BufferOwner, BufferError> {
        let id = job_id(folder).map_err(|error| BufferError::Unavailable {
            storage: self.address.to_string(),
            message: format!("the id of the job, {}: {error}", folder.join(JOB_ID).display()),
        })?;
        Ok(BufferOwner { id, name: format!("`{name}` in {}", folder.display()) })
    }
}

/// Returns folder and name of the job, unless the buffer is shared.
fn job(config: &Config) -> Option<(PathBuf, String)> {
    let is_shared = config.buffer.trainer_input.experience_buffer.shared;
    (!is_shared).then(|| (config.job_dir(), config.job()))
}

/// Returns the id of the job in a folder. The first process of the job creates it.
fn job_id(folder: &Path) -> io::Result<String> {
    create_missing_folder(folder)?;
    let path = folder.join(JOB_ID);
    let mut file =
        File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    // Explorer and trainer may start at once.
    file.lock()?;
    let mut id = String::new();
    file.read_to_string(&mut id)?;
    if id.trim().is_empty() {
        id = Secret::random()?.reveal().to_owned();
        file.set_len(0)?;
        file.write_all(format!("{id}\n").as_bytes())?;
        file.sync_all()?;
    }
    Ok(id.trim().to_owned())
}

fn default_address(
    storage: BufferStorage,
    config: &Config,
    name: &str,
) -> Result<BufferAddress, SinkError> {
    let folder = config.cache_dir();
    BufferAddress::default_of(storage, &folder, name).ok_or_else(|| {
        let message = format!("the path {} is not UTF-8; choose another", folder.display());
        SinkError::config("buffer.cache_dir", message)
    })
}

fn parse(key: &str, path: &str) -> Result<BufferAddress, SinkError> {
    path.parse()
        .map_err(|error: buffer::BufferAddressError| SinkError::config(key, error.to_string()))
}

fn database(ours: &ExperienceBuffer) -> sql::SqlOptions {
    // With reuse: least used first, then newest first.
    let reuse = ours.replay_buffer.enable;
    sql::SqlOptions {
        table: table(&ours.name),
        order: if reuse { sql::ReadOrder::NewestFirst } else { sql::ReadOrder::Fifo },
        reuse,
        max_retry_times: ours.max_retry_times,
        max_retry_interval: ours.max_retry_interval.into(),
        max_bytes: ours.max_disk_bytes,
        ..sql::SqlOptions::default()
    }
}

fn queue(config: &Config, ours: &ExperienceBuffer) -> Result<queue::QueueOptions, SinkError> {
    let usual = queue::QueueOptions::default();
    let replay = ours.replay_buffer.enable.then(|| replay(&ours.replay_buffer)).transpose()?;
    let in_memory = replay.is_some() || ours.on_full == WhenFull::Replace;
    let chosen = ours.path.as_deref().filter(|path| !path.is_empty());
    if ours.storage_type == StorageType::Queue
        && let Some(path) = chosen
    {
        let key = format!("{BUFFER}.path");
        if in_memory {
            let message = "this queue is in memory only: remove `path`, or disable \
                           `replay_buffer` and `on_full: replace`";
            return Err(SinkError::config(key, message));
        }
        if !is_folder(path) {
            let message = format!(
                "`{path}` is not a folder, and a queue is stored in one; remove `path`, or set \
                 another `storage_type`"
            );
            return Err(SinkError::config(key, message));
        }
    }
    let folder = chosen.map_or_else(|| config.cache_dir().join(&ours.name), PathBuf::from);
    let timeout = ours.max_write_timeout.into();
    let when_full = match ours.on_full {
        WhenFull::Wait => queue::QueueFullPolicy::Wait { timeout },
        WhenFull::Spill => queue::QueueFullPolicy::Spill { folder: folder.clone(), timeout },
        WhenFull::Replace => queue::QueueFullPolicy::Replace,
    };
    Ok(queue::QueueOptions {
        name: ours.name.clone(),
        capacity: ours.capacity as usize,
        bytes_max: usize::try_from(ours.max_bytes).unwrap_or(usize::MAX),
        path: (!in_memory).then_some(folder),
        disk_bytes_max: ours.max_disk_bytes.unwrap_or(usual.disk_bytes_max),
        // A replay buffer always replaces.
        when_full: if replay.is_some() { queue::QueueFullPolicy::Replace } else { when_full },
        replay,
        ..usual
    })
}

/// Returns whether a path can be the folder of a queue: it is no file and no database.
fn is_folder(path: &str) -> bool {
    match path.parse::<BufferAddress>() {
        Ok(address) => address.kind() == BufferKind::Parquet,
        Err(error) => matches!(error, buffer::BufferAddressError::Unknown(_)),
    }
}

fn replay(ours: &ReplayBuffer) -> Result<ReplayOptions, SinkError> {
    let wrong = |error: rollway_data::pipeline::ArgumentError| {
        let key = format!("{BUFFER}.replay_buffer.priority_fn_args.{}", error.key);
        SinkError::config(key, error.problem)
    };
    let mut args =
        OperatorArguments::new("priority_fn", &Value::Object(ours.priority_fn_args.clone()))
            .map_err(wrong)?;
    let number = "a number, 0 or greater";
    let decay = args.number("decay", number, |decay| decay >= 0.0).map_err(wrong)?.unwrap_or(2.0);
    let priority = match ours.priority_fn {
        PriorityFn::LinearDecay => ReplayPriority::LinearDecay { decay },
        PriorityFn::DecayLimitRandomization => {
            let sigma = args.number("sigma", number, |sigma| sigma >= 0.0).map_err(wrong)?;
            let whole = |limit: f64| limit.fract() == 0.0 && limit.abs() < 1e15;
            let limit = args
                .number("use_count_limit", "a whole number; 0 or less: no limit", whole)
                .map_err(wrong)?;
            ReplayPriority::DecayLimitRandomization {
                decay,
                use_count_limit: limit.unwrap_or(3.0) as i64,
                sigma: sigma.unwrap_or(0.0),
            }
        }
    };
    args.finish().map_err(wrong)?;
    let reuse_cooldown_time = ours.reuse_cooldown_time.map(Into::into);
    Ok(ReplayOptions { priority, reuse_cooldown_time, seed: 0 })
}
