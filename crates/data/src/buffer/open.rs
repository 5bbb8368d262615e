//! Opens the buffer of an address.

use std::path::Path;
use std::sync::Arc;

use super::{
    Buffer, BufferAddress, BufferError, JsonlBuffer, ParquetBuffer, PostgresBuffer, Result,
    SqliteBuffer, process_queues, queue, sql,
};

/// Options of all kinds of buffers; irrelevant ones are ignored.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    pub queue: queue::QueueOptions,
    pub sql: sql::SqlOptions,
}

/// Opens a buffer, creating it if absent. Blocks.
///
/// A queue exists once per process: while it is in use, opening its name, or its folder, returns
/// the same queue and ignores the options.
pub fn open(address: &BufferAddress, options: &BufferOptions) -> Result<Arc<dyn Buffer>> {
    Ok(match address {
        BufferAddress::Sqlite(path) => {
            Arc::new(SqliteBuffer::open(text(path)?, options.sql.clone())?)
        }
        BufferAddress::Postgres(url) => Arc::new(PostgresBuffer::open(url, options.sql.clone())?),
        BufferAddress::JsonLines(path) => Arc::new(JsonlBuffer::open(path)?),
        BufferAddress::Parquet(folder) => Arc::new(ParquetBuffer::open(folder)?),
        BufferAddress::Queue(name) => Arc::new(process_queues::open(name, &options.queue)?),
    })
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
