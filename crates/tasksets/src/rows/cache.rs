//! Least-recently-used cache of decoded batches.

use arrow_array::RecordBatch;

use crate::Result;

/// Maximum bytes; one larger batch may be cached alone.
const MAX_CACHE_BYTES: usize = 64 << 20;

/// File number and part of the file.
pub(super) type Key = (usize, usize);

/// Cached batches, most recently used last.
#[derive(Debug, Default)]
pub(super) struct Cache {
    parts: Vec<(Key, RecordBatch)>,
    bytes: usize,
}

impl Cache {
    /// Returns a cached batch, or decodes and caches it.
    pub(super) fn get_or(
        &mut self,
        key: Key,
        decode: impl FnOnce() -> Result<RecordBatch>,
    ) -> Result<RecordBatch> {
        if let Some(at) = self.parts.iter().position(|(known, _)| *known == key) {
            self.parts[at..].rotate_left(1);
            return Ok(self.parts[self.parts.len() - 1].1.clone());
        }
        let batch = decode()?;
        self.bytes += batch.get_array_memory_size();
        self.parts.push((key, batch.clone()));
        while self.bytes > MAX_CACHE_BYTES && self.parts.len() > 1 {
            self.bytes -= self.parts.remove(0).1.get_array_memory_size();
        }
        Ok(batch)
    }
}
