//! Opens the buffer of an address.

use std::path::Path;
use std::sync::Arc;

use super::{
    Buffer, BufferAddress, BufferError, BufferOwner, JsonlBuffer, ParquetBuffer, PostgresBuffer,
    Result, SqliteBuffer, files, process_queues, queue, sql,
};

/// Options of all kinds of buffers; irrelevant ones are ignored.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    pub queue: queue::QueueOptions,
    pub sql: sql::SqlOptions,
    /// Owner of a database table or of files. `None`: ownership is not checked.
    pub owner: Option<BufferOwner>,
}

/// Opens a buffer, creating it if absent. Blocks.
///
/// A queue exists once per process: while it is in use, opening its name, or its folder, returns
/// the same queue and ignores the options.
pub fn open(address: &BufferAddress, options: &BufferOptions) -> Result<Arc<dyn Buffer>> {
    Ok(match address {
        BufferAddress::Sqlite(path) => {
            let buffer = SqliteBuffer::open(text(path)?, options.sql.clone())?;
            claim(options, |owner| sql::claim(&buffer, owner))?;
            Arc::new(buffer)
        }
        BufferAddress::Postgres(url) => {
            let buffer = PostgresBuffer::open(url, options.sql.clone())?;
            claim(options, |owner| sql::claim(&buffer, owner))?;
            Arc::new(buffer)
        }
        BufferAddress::JsonLines(path) => {
            let buffer = JsonlBuffer::open(path)?;
            claim(options, |owner| files::claim(&buffer, owner))?;
            Arc::new(buffer)
        }
        BufferAddress::Parquet(folder) => {
            let buffer = ParquetBuffer::open(folder)?;
            claim(options, |owner| files::claim(&buffer, owner))?;
            Arc::new(buffer)
        }
        BufferAddress::Queue(name) => Arc::new(process_queues::open(name, &options.queue)?),
    })
}

fn claim(options: &BufferOptions, claim: impl FnOnce(&BufferOwner) -> Result<()>) -> Result<()> {
    options.owner.as_ref().map_or(Ok(()), claim)
}

/// Returns the table of a buffer: its name without the suffix `_buffer`, other characters replaced
/// by `_`. So `experience_buffer` is stored in `experience`, the default table.
pub fn table(name: &str) -> String {
    let name = name.strip_suffix("_buffer").filter(|name| !name.is_empty()).unwrap_or(name);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let table: String = name.chars().map(plain).collect();
    if table.starts_with(|first: char| first.is_ascii_digit()) {
        format!("_{table}")
    } else {
        table
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        BufferError::unsupported(
            path.display().to_string(),
            "the path is not UTF-8; choose another",
        )
    })
}
