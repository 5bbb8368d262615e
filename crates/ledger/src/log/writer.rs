//! Writer thread: writes groups of frames with one sync each, then runs the callbacks.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use rollway_base::NumberFile;

use super::error::LogError;
use super::open::{self, Segment};
use super::{DurableCallback, LogShared, folder};

/// Pending bytes at which the thread writes without a commit.
pub(super) const FLUSH_BYTES: u64 = 1024 * 1024;

/// Maximum capacity of a recycled buffer.
const MAX_REUSED_BYTES: usize = 4 * 1024 * 1024;

/// Unit of pending output.
#[derive(Debug)]
pub(super) enum Chunk {
    /// Whole frames, or the beginning of one.
    Copied(Vec<u8>),
    /// Part of a frame that is shared.
    Shared(Bytes),
    /// Start of a new segment.
    Rotate,
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Rotate => &[],
        }
    }
}

pub(super) struct LogWriter {
    shared: Arc<LogShared>,
    segment: Segment,
    file: File,
    /// Length of the durable part of the file.
    file_offset: u64,
    /// End of the durable part of the log.
    durable: u64,
    /// File with `durable`.
    record: NumberFile,
    /// A failure to record the end was logged.
    is_unrecorded: bool,
    backlog: VecDeque<Chunk>,
    /// The file must not be written any more.
    stale: bool,
}

impl LogWriter {
    pub(super) fn new(
        shared: Arc<LogShared>,
        segment: Segment,
        (mut file, file_offset): (File, u64),
        record: NumberFile,
    ) -> Self {
        let durable = shared.pending.lock().durable;
        let stale = file.seek(SeekFrom::Start(file_offset)).is_err();
        let (backlog, is_unrecorded) = (VecDeque::new(), false);
        let mut writer = Self {
            shared,
            segment,
            file,
            file_offset,
            durable,
            record,
            is_unrecorded,
            backlog,
            stale,
        };
        writer.record_end();
        writer
    }

    /// Writes until the log is closed.
    pub(super) fn run(mut self) {
        loop {
            let (waiters, closing) = self.take();
            let written = self.write().map_err(Arc::new);
            if let Err(error) = &written {
                tracing::error!(%error, "cannot write the log; its frames are kept in memory");
            }
            self.shared.pending.lock().failing = written.is_err();
            for then in waiters {
                // A panicking callback must not keep the others waiting.
                if catch_unwind(AssertUnwindSafe(|| then(written.clone()))).is_err() {
                    tracing::error!("a commit callback panicked");
                }
            }
            if closing {
                break;
            }
        }
    }

    /// Waits for pending output or a waiter.
    fn take(&mut self) -> (Vec<DurableCallback>, bool) {
        let mut pending = self.shared.pending.lock();
        // After a failed write only a waiter triggers a retry.
        while !pending.closing
            && pending.waiters.is_empty()
            && (pending.failing || pending.waiting < FLUSH_BYTES)
        {
            self.shared.wake.wait(&mut pending);
        }
        self.backlog.extend(pending.chunks.drain(..));
        if !pending.tail.is_empty() {
            let spare = std::mem::take(&mut pending.spare);
            self.backlog.push_back(Chunk::Copied(std::mem::replace(&mut pending.tail, spare)));
        }
        pending.waiting = 0;
        (std::mem::take(&mut pending.waiters), pending.closing)
    }

    fn write(&mut self) -> Result<(), LogError> {
        while let Some(first) = self.backlog.front() {
            if matches!(first, Chunk::Rotate) {
                if self.durable > self.segment.base {
                    self.begin()?;
                }
                self.backlog.pop_front();
                continue;
            }
            if self.stale {
                self.begin()?;
            }
            let rotates = self.backlog.iter().position(|chunk| matches!(chunk, Chunk::Rotate));
            let count = rotates.unwrap_or(self.backlog.len());
            let bytes = self.write_group(count)?;
            self.file_offset += bytes;
            self.durable += bytes;
            self.record_end();
            let spare = self.backlog.drain(..count).filter_map(|chunk| match chunk {
                Chunk::Copied(bytes) if bytes.capacity() <= MAX_REUSED_BYTES => Some(bytes),
                Chunk::Copied(_) | Chunk::Shared(_) | Chunk::Rotate => None,
            });
            let spare = spare.max_by_key(Vec::capacity);
            let mut pending = self.shared.pending.lock();
            pending.durable = self.durable;
            if let Some(mut spare) = spare.filter(|spare| spare.capacity() > 0) {
                spare.clear();
                pending.spare = spare;
            }
        }
        Ok(())
    }

    /// Records the end of the durable frames, one small write without a sync.
    fn record_end(&mut self) {
        if let Err(error) = self.record.set(self.durable)
            && !std::mem::replace(&mut self.is_unrecorded, true)
        {
            let folder = self.shared.dir.display();
            tracing::warn!(
                %error, %folder, "end of the log not recorded; a loss of its end may stay unnoticed"
            );
        }
    }

    fn write_group(&mut self, count: usize) -> Result<u64, LogError> {
        let chunks: Vec<&[u8]> = self.backlog.iter().take(count).map(Chunk::bytes).collect();
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let path = || folder::segment(&self.shared.dir, self.segment.number);
        if let Err(error) = write_all(&mut self.file, &chunks) {
            // Nothing was synced: cutting restores the file.
            let cut = self.file.set_len(self.file_offset);
            let cut = cut.and_then(|()| self.file.seek(SeekFrom::Start(self.file_offset)));
            self.stale = cut.is_err();
            return Err(LogError::io("write", &path())(error));
        }
        if let Err(error) = self.shared.sync_data(&self.file) {
            // The system may drop what it could not write and report success for the next sync, so
            // the file is not trusted behind the durable part. The frames go to another file.
            let _ = self.file.set_len(self.file_offset);
            self.stale = true;
            return Err(LogError::io("sync", &path())(error));
        }
        Ok(bytes)
    }

    fn begin(&mut self) -> Result<(), LogError> {
        let (dir, options) = (&self.shared.dir, &self.shared.options);
        // An empty segment is replaced, so that repeated failures leave no files.
        let empty = self.durable == self.segment.base;
        let number = self.segment.number + u64::from(!empty);
        let segment = Segment { number, base: self.durable };
        (self.file, self.file_offset) = open::create(dir, options, segment)?;
        self.stale = false;
        self.segment = segment;
        let mut segments = self.shared.segments.lock();
        segments.retain(|other| other.number < number);
        segments.push(segment);
        Ok(())
    }
}

fn write_all(file: &mut File, chunks: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = chunks.iter().map(|chunk| IoSlice::new(chunk)).collect();
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut slices, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
