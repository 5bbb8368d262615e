//! Opens whatever an address names.

use std::path::Path;
use std::sync::Arc;

use super::{
    Buffer, BufferAddress, BufferError, JsonlBuffer, ParquetBuffer, PostgresBuffer, Result,
    SqliteBuffer, process_queues, queue, sql,
};

/// How a buffer is to be, whichever it is. What does not concern it is not looked at.
#[derive(Clone, Debug, Default)]
pub struct BufferOptions {
    pub queue: queue::QueueOptions,
    /// Of a database.
    pub sql: sql::SqlOptions,
}

/// Opens a buffer; makes it if there is none. Blocks.
///
/// A queue is one for the whole process: while somebody has it, or a writer or a reader of it,
/// others who name it, or the folder that it is kept in, get the same, and their options are not
/// looked at.
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

/// Returns the name of the table of a buffer: its own, without a `_buffer` at the end, and with `_`
/// for what databases do not take in a name. So `experience_buffer` is in `experience`, which is
/// also what is read where nobody says another name.
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
    path.to_str().ok_or_else(|| BufferError::Unsupported {
        storage: path.display().to_string(),
        message: "the path is not UTF-8; choose another".to_owned(),
    })
}
