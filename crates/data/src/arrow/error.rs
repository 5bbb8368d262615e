//! Errors of the columns.

use arrow_schema::{ArrowError, DataType};
use rollway_experience::FieldError;

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
