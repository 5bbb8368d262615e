//! Experiences as Arrow record batches and IPC streams for Python.
//!
//! `docs/experience-columns.md` describes the columns. The conversion is lossless: absent values
//! stay absent and floats keep their bits. Errors name the column.

mod read;
mod schema;
mod write;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType};
use bytes::Bytes;
use rollway_experience::{Experience, FieldError};

pub use self::read::from_batch;
pub use self::schema::schema;
pub use self::write::to_batch;

// Elements of experiences are little endian, those of Arrow are the machine's.
#[cfg(target_endian = "big")]
compile_error!("columns are written for machines that are little endian");

/// Encodes an Arrow IPC stream of one batch, which `pyarrow.ipc.open_stream` reads.
pub fn to_ipc(experiences: &[Experience]) -> Result<Bytes, ColumnError> {
    let batch = to_batch(experiences)?;
    let write = |batch: &RecordBatch| -> Result<Vec<u8>, ArrowError> {
        let room = Vec::with_capacity(batch.get_array_memory_size() + 16 * 1024);
        let mut writer = StreamWriter::try_new(room, &schema())?;
        writer.write(batch)?;
        writer.into_inner()
    };
    Ok(write(&batch)?.into())
}

#[derive(Debug, thiserror::Error)]
pub enum ColumnError {
    #[error("no column `{column}`; {expected} is expected")]
    Missing { column: &'static str, expected: DataType },
    #[error("column `{column}` holds {found}; {expected} is expected")]
    Type { column: &'static str, found: DataType, expected: DataType },
    #[error("column `{column}` has {found} absent values inside where none may be absent")]
    Null { column: &'static str, found: usize },
    #[error("row {row}: {error}")]
    Value { row: usize, error: FieldError },
    /// The id columns contradict each other.
    #[error("row {row}: column `uid` says `{found}`; the columns of its parts say `{expected}`")]
    Name { row: usize, found: String, expected: String },
    #[error("column `{column}` would have more than {} entries; convert fewer at once", i32::MAX)]
    TooLarge { column: &'static str },
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}
