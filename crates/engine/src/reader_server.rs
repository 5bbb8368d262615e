//! Serves the queue of this process to trainers in other processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollway_base::Secret;
use rollway_base::atomic_file::{self, FileError};
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_config::{Config, StorageType};
use rollway_data::buffer::Buffer;
use rollway_data::reader::{self, ReaderLimits, ReaderServer};

use crate::sink::PipelineSink;

#[derive(Debug, thiserror::Error)]
pub enum JobReaderServerError {
    #[error("the buffer cannot be served: {0}")]
    Reader(String),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Server of a job's queue. Dropping it stops the server.
#[derive(Debug)]
pub struct JobReaderServer {
    served: ReaderServer,
    secret_file: PathBuf,
}

impl JobReaderServer {
    /// Serves the queue of a job and writes its URL and secret to the job folder. `None`: trainers
    /// open the buffer directly.
    pub async fn of(
        config: &Config,
        sink: &PipelineSink,
    ) -> Result<Option<Self>, JobReaderServerError> {
        let own = &config.buffer.trainer_input.experience_buffer;
        let Some(buffer) = sink.buffer().filter(|_| own.storage_type == StorageType::Queue) else {
            return Ok(None);
        };
        let job = config.job_dir();
        let secret_file = job.join(format!("{}_reader_secret.txt", own.name));
        let secret = atomic_file::load_or_create_secret(&secret_file)?;
        let limits = config.listeners.limits(ListenerKind::Readers);
        let served = tokio::task::spawn_blocking(move || serve(buffer, secret, &limits)).await;
        let served = served.map_err(|error| JobReaderServerError::Reader(error.to_string()))??;
        atomic_file::write_line(
            &job.join(format!("{}_reader_url.txt", own.name)),
            &served.url(),
            false,
        )?;
        Ok(Some(Self { served, secret_file }))
    }

    pub fn url(&self) -> String {
        self.served.url()
    }

    pub fn secret_file(&self) -> &Path {
        &self.secret_file
    }

    /// Stops the server and waits for its threads.
    pub async fn withdraw(self) {
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

fn serve(
    buffer: Arc<dyn Buffer>,
    secret: Secret,
    limits: &ListenerLimits,
) -> Result<ReaderServer, JobReaderServerError> {
    let defaults = reader::ReaderServerOptions::default();
    let options = reader::ReaderServerOptions {
        secret: Some(secret),
        limits: ReaderLimits {
            connections: limits.connections,
            hello_timeout: limits.header_timeout,
            ..defaults.limits.clone()
        },
        ..defaults
    };
    reader::serve(buffer, options).map_err(|error| JobReaderServerError::Reader(error.to_string()))
}
