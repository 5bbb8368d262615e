//! Least-recently-used cache of decoded batches.

use std::collections::VecDeque;

use arrow_array::RecordBatch;

/// Maximum bytes; one larger batch may be cached alone.
const MAX_CACHE_BYTES: usize = 64 << 20;

/// File number and part of the file.
pub(super) type Key = (usize, usize);

/// Cached batches, most recently used last.
#[derive(Debug, Default)]
pub(super) struct Cache {
    parts: VecDeque<(Key, RecordBatch)>,
    bytes: usize,
}

impl Cache {
    pub(super) fn get(&mut self, key: Key) -> Option<RecordBatch> {
        let at = self.parts.iter().position(|(known, _)| *known == key)?;
        let part = self.parts.remove(at)?;
        let batch = part.1.clone();
        self.parts.push_back(part);
        Some(batch)
    }

    pub(super) fn put(&mut self, key: Key, batch: RecordBatch) {
        self.bytes += batch.get_array_memory_size();
        self.parts.push_back((key, batch));
        while self.bytes > MAX_CACHE_BYTES && self.parts.len() > 1 {
            if let Some((_, batch)) = self.parts.pop_front() {
                self.bytes -= batch.get_array_memory_size();
            }
        }
    }
}
