//! Encoding of a write batch as a Parquet file.

use std::panic::AssertUnwindSafe;

use arrow_schema::ArrowError;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use rollway_experience::PayloadError;

use crate::Sample;
use crate::arrow::{ColumnError, from_batch, schema, to_batch};
use crate::buffer::BufferError;

/// Metadata key of the write-batch key.
const BATCH_KEY: &str = "rollway.lot";

/// Payload bytes converted to columns at once.
const BATCH_BYTES: usize = 64 << 20;

/// Rows decoded at once.
const ROWS: usize = 64;

/// Columns with few distinct values, for which a dictionary pays.
const REPEATED: [&str; 3] = ["kind", "truncate_status", "batch"];

#[derive(Debug, thiserror::Error)]
pub(super) enum ParquetFileError {
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    Column(#[from] ColumnError),
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

impl ParquetFileError {
    /// Adds the storage.
    pub(super) fn with_storage(self, storage: &str) -> BufferError {
        match self {
            Self::Payload(error) => error.into(),
            error => BufferError::unsupported(storage, error.to_string()),
        }
    }
}

pub(super) fn write(key: &str, samples: &[&Sample]) -> Result<Vec<u8>, ParquetFileError> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_key_value_metadata(Some(vec![KeyValue::new(BATCH_KEY.to_owned(), key.to_owned())]));
    for column in REPEATED {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(column), true);
    }
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties.build()))?;
    let (mut experiences, mut bytes) = (Vec::new(), 0);
    for (index, sample) in samples.iter().enumerate() {
        bytes += sample.payload.len();
        experiences.push(sample.decode()?);
        if bytes >= BATCH_BYTES || index + 1 == samples.len() {
            writer.write(&to_batch(&experiences)?)?;
            (experiences, bytes) = (Vec::new(), 0);
        }
    }
    Ok(writer.into_inner()?)
}

/// Reads a file from a row on. Returns the write-batch key, if present, and the samples.
pub(super) fn read(
    data: Bytes,
    row: u64,
) -> Result<(Option<String>, impl Iterator<Item = Result<Sample, String>> + Send + use<>), String> {
    let (key, batches) = catch_panics(move || open(data, row))?;
    let mut batches = Some(batches);
    let next_batch = move || {
        let reader = batches.as_mut()?;
        let batch =
            catch_panics(|| reader.next().map(|batch| Ok(from_batch(&batch?)?)).transpose());
        if batch.is_err() {
            batches = None;
        }
        batch.transpose()
    };
    let samples = std::iter::from_fn(next_batch).flat_map(|experiences| {
        let (experiences, failed) = match experiences {
            Ok(experiences) => (experiences, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        };
        let sample = |it| Sample::new(&it).map_err(|error| error.to_string());
        experiences.into_iter().map(sample).chain(failed)
    });
    Ok((key, samples))
}

fn open(
    data: Bytes,
    row: u64,
) -> Result<(Option<String>, ParquetRecordBatchReader), ParquetFileError> {
    let file = ParquetRecordBatchReaderBuilder::try_new(data)?;
    let metadata = file.metadata().file_metadata().key_value_metadata();
    let pair = metadata.into_iter().flatten().find(|pair| pair.key == BATCH_KEY);
    let key = pair.and_then(|pair| pair.value.clone());
    // An unrepresentable row is behind the last.
    let row = usize::try_from(row).unwrap_or(usize::MAX);
    Ok((key, file.with_offset(row).with_batch_size(ROWS).build()?))
}

/// Converts a panic to an error: the Parquet reader panics on some damaged files.
fn catch_panics<T>(read: impl FnOnce() -> Result<T, ParquetFileError>) -> Result<T, String> {
    match std::panic::catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("it cannot be read as Parquet".to_owned()),
    }
}
