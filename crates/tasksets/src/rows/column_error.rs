//! Helpers for columnar files.

use std::panic::AssertUnwindSafe;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema};
use parquet::errors::ParquetError;

use super::cell;
use super::field_names::FieldNames;
use crate::{Fields, Result, TasksetErrorKind};

/// Error of a columnar library.
#[derive(Debug, thiserror::Error)]
pub(super) enum ColumnFault {
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Other(String),
}

pub(super) type ColumnResult<T> = std::result::Result<T, ColumnFault>;

/// Reads from a file that may be damaged; the libraries panic on some damage.
pub(super) fn catch_panics<T>(path: &Path, act: impl FnOnce() -> ColumnResult<T>) -> Result<T> {
    let what = match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(fault)) => fault.to_string(),
        Err(_) => "the file is damaged".to_owned(),
    };
    let what = format!("cannot be read: {what}");
    let hint = "write it again, or use the original; it may be damaged or copied in part";
    Err(TasksetErrorKind::Row.at(path.display(), what, hint))
}

/// Returns the columns with their non-null counts where `present` knows them. Refuses duplicate
/// names and unsupported types.
pub(super) fn keys(
    path: &Path,
    schema: &Schema,
    present: impl Fn(usize) -> Option<u64>,
) -> Result<FieldNames> {
    let mut keys = FieldNames::default();
    for (at, field) in schema.fields().iter().enumerate() {
        if keys.has(field.name()) {
            let what = format!("two columns have the name `{}`", field.name());
            let hint = "rename one of them";
            return Err(TasksetErrorKind::Row.at(path.display(), what, hint));
        }
        if let Some(kind) = cell::unsupported(field.data_type()) {
            let what =
                format!("column `{}` is of type {kind}, which is not supported", field.name());
            let hint = "write the column as text, numbers, lists or structs";
            return Err(TasksetErrorKind::Unsupported.at(path.display(), what, hint));
        }
        keys.add_column(field.name(), present(at));
    }
    Ok(keys)
}

pub(super) fn row(path: &Path, batch: &RecordBatch, at: usize) -> Result<Fields> {
    catch_panics(path, || {
        if at >= batch.num_rows() {
            return Err(ColumnFault::Other("the file has fewer rows than before".to_owned()));
        }
        let schema = batch.schema_ref();
        let cells = schema.fields().iter().zip(batch.columns());
        Ok(cells.map(|(field, column)| (field.name().clone(), cell::value(column, at))).collect())
    })
}
