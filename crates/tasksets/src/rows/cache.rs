//! Decoded parts of files, as many as fit into a fixed room.

use std::collections::VecDeque;

use arrow_array::RecordBatch;

/// Bytes that are kept at most; a single part may be larger, and is then alone.
const MAX_CACHE_BYTES: usize = 64 << 20;

/// Which part of which file.
pub(super) type Key = (usize, usize);

/// The parts that were used last, the most recent one at the end.
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
