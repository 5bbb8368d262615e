//! Limit of the memory that compressed parts of a file may take.

use super::column_error::{ColumnFault, ColumnResult};

/// Maximum bytes of a page of a Parquet file, or of a batch of an Arrow file, after decompression.
const MAX_UNPACKED_BYTES: u64 = 1 << 30;

/// Refuses a part of a file that would take too much memory after decompression.
pub(super) fn check(what: &str, bytes: u64) -> ColumnResult<()> {
    if bytes <= MAX_UNPACKED_BYTES {
        return Ok(());
    }
    let (found, limit) = (bytes.div_ceil(1 << 20), MAX_UNPACKED_BYTES >> 20);
    Err(ColumnFault::Other(format!(
        "{what} has {found} MiB after decompression, above the limit of {limit} MiB"
    )))
}
