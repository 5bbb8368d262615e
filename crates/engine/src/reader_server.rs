//! A queue that belongs to this process, offered to trainers elsewhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollway_base::Secret;
use rollway_base::atomic_file::{self, FileError};
use rollway_config::{Config, StorageType};
use rollway_data::buffer::Buffer;
use rollway_data::reader::{self, ReaderServer};

use crate::sink::PipelineSink;

/// Why a buffer cannot be offered to trainers elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum JobReaderServerError {
    /// Nobody can be let in.
    #[error("the buffer cannot be offered: {0}")]
    Reader(String),
    /// A file that tells trainers where it is cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A queue that trainers elsewhere read. It ends when it is dropped.
#[derive(Debug)]
pub struct JobReaderServer {
    served: ReaderServer,
    secret_file: PathBuf,
}

impl JobReaderServer {
    /// Offers the queue of a job, and leaves in the job's folder where it is and what to show; none
    /// for buffers that anybody can open.
    pub async fn of(
        config: &Config,
        sink: &PipelineSink,
    ) -> Result<Option<Self>, JobReaderServerError> {
        let ours = &config.buffer.trainer_input.experience_buffer;
        let Some(buffer) = sink.buffer().filter(|_| ours.storage_type == StorageType::Queue) else {
            return Ok(None);
        };
        let job = config.job_dir();
        let secret_file = job.join(format!("{}_reader_secret.txt", ours.name));
        let secret = atomic_file::load_or_create_secret(&secret_file)?;
        let served = tokio::task::spawn_blocking(move || serve(buffer, secret)).await;
        let served = served.map_err(|error| JobReaderServerError::Reader(error.to_string()))??;
        atomic_file::write_line(
            &job.join(format!("{}_reader_url.txt", ours.name)),
            &served.url(),
            false,
        )?;
        Ok(Some(Self { served, secret_file }))
    }

    /// Where it is.
    pub fn url(&self) -> String {
        self.served.url()
    }

    /// The file with what trainers show.
    pub fn secret_file(&self) -> &Path {
        &self.secret_file
    }

    /// Ends it, and waits for its threads.
    pub async fn withdraw(self) {
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

fn serve(buffer: Arc<dyn Buffer>, secret: Secret) -> Result<ReaderServer, JobReaderServerError> {
    let options = reader::ReaderServerOptions {
        secret: Some(secret),
        ..reader::ReaderServerOptions::default()
    };
    reader::serve(buffer, options).map_err(|error| JobReaderServerError::Reader(error.to_string()))
}
