//! What keeps columns from being experiences, or the reverse.

use arrow_schema::{ArrowError, DataType};
use rollway_experience::FieldError;

/// What does not fit, and where.
#[derive(Debug, thiserror::Error)]
pub enum ColumnError {
    /// A column is not there.
    #[error("no column `{column}`; {expected} is expected")]
    Missing { column: &'static str, expected: DataType },
    /// A column holds something else.
    #[error("column `{column}` holds {found}; {expected} is expected")]
    Type { column: &'static str, found: DataType, expected: DataType },
    /// A value is absent where there has to be one.
    #[error("column `{column}` has {found} absent values inside where none may be absent")]
    Null { column: &'static str, found: usize },
    /// A value is not one of an experience.
    #[error("row {row}: {error}")]
    Value {
        row: usize,
        /// The field and what is wrong with it.
        error: FieldError,
    },
    /// The columns of the name contradict each other.
    #[error("row {row}: column `uid` says `{found}`; the columns of its parts say `{expected}`")]
    Name {
        row: usize,
        /// What the column says.
        found: String,
        /// What its parts make.
        expected: String,
    },
    /// A batch is larger than columns can count.
    #[error("column `{column}` would have more than {} entries; convert fewer at once", i32::MAX)]
    TooLarge { column: &'static str },
    /// Arrow refused it.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}
