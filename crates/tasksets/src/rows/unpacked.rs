//! Limit of the memory that compressed parts of a file may take.

use super::column_error::{ColumnFault, ColumnResult};

/// Maximum bytes of a page of a Parquet file, or of a batch of an Arrow file, after decompression:
/// `max_unpacked_bytes` of the taskset.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnpackedLimit(pub(super) u64);

impl UnpackedLimit {
    /// Refuses a part of a file that would take too much memory after decompression.
    pub(super) fn check(self, what: &str, bytes: u64) -> ColumnResult<()> {
        let Self(limit) = self;
        if bytes <= limit {
            return Ok(());
        }
        Err(ColumnFault::Other(format!(
            "{what} has {bytes} bytes after decompression, above the limit of {limit} \
             (`max_unpacked_bytes` of the taskset)"
        )))
    }
}
