//! Segmented append-only log with group commit.
//!
//! A log is a folder of segments, a segment a header and frames, a frame bytes with checksums.
//! [`SegmentLog::append`] puts a frame into memory; the log's thread writes pending frames with one
//! write and one sync and then runs the callbacks of [`SegmentLog::commit`]. A [`LogPosition`]
//! counts the bytes of all frames ever appended, so a frame that could not be written keeps its
//! position in the next segment.
//!
//! `append` accepts everything and never blocks. Callers bound the memory: when
//! [`SegmentLog::is_behind`] reports that [`LogOptions::unsynced_bytes`] are pending, they refuse
//! new work or wait for a commit.

mod error;
mod folder;
mod format;
mod open;
mod scan;
mod writer;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rollway_base::FileLock;

pub use self::error::LogError;
use self::format::{END, FRAME, FrameHead, HEAD};
use self::open::Segment;
pub use self::open::TornTail;
use self::scan::LogScan;
use self::writer::{Chunk, LogWriter};

/// Shared parts up to this size are copied, which costs less than a chunk of their own.
const MAX_COPIED_BYTES: usize = 16 * 1024;

/// Called once everything appended before is durable, or with the reason why it is not.
pub type DurableCallback = Box<dyn FnOnce(Result<(), Arc<LogError>>) + Send>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Purpose of the log: `ledger`, `queue`. Opening a log of another kind fails.
    pub kind: &'static str,
    /// Owner, such as a job name; 65,535 bytes at most. Opening a log of another owner fails.
    pub identity: String,
    /// Size beyond which a new segment is started.
    pub segment_bytes: u64,
    pub frame_bytes_max: u32,
    /// Unsynced bytes at which the log is [behind](SegmentLog::is_behind).
    pub unsynced_bytes: u64,
}

impl LogOptions {
    /// Returns the default limits.
    pub fn new(kind: &'static str, identity: impl Into<String>) -> Self {
        Self {
            kind,
            identity: identity.into(),
            segment_bytes: 64 << 20,
            frame_bytes_max: 1 << 30,
            unsynced_bytes: 256 << 20,
        }
    }
}

/// Position of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Bytes of all frames ever appended before it.
    pub offset: u64,
    /// Payload bytes of the frame.
    pub length: u32,
}

impl LogPosition {
    /// Returns the offset of the next frame.
    pub const fn end(self) -> u64 {
        self.offset + FRAME + self.length as u64
    }
}

/// A piece of a frame.
#[derive(Clone, Debug)]
pub enum FramePart<'a> {
    Copy(&'a [u8]),
    /// Bytes that are shared until written, if they are many.
    Share(&'a Bytes),
}

impl FramePart<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Copy(bytes) => bytes,
            Self::Share(bytes) => bytes,
        }
    }
}

/// An open log. Dropping it writes pending frames.
#[derive(Debug)]
pub struct SegmentLog {
    shared: Arc<LogShared>,
    writer: Option<JoinHandle<()>>,
    // Released last.
    _lock: FileLock,
}

struct LogShared {
    dir: PathBuf,
    options: LogOptions,
    header: u64,
    pending: Mutex<Pending>,
    wake: Condvar,
    segments: Mutex<Vec<Segment>>,
    #[cfg(test)]
    syncs_to_fail: std::sync::atomic::AtomicU32,
}

/// Frames and callbacks that the writer has not taken yet.
#[derive(Default)]
struct Pending {
    chunks: Vec<Chunk>,
    tail: Vec<u8>,
    /// Recycled buffer for the next `tail`.
    spare: Vec<u8>,
    /// Bytes in `chunks` and `tail`.
    waiting: u64,
    /// Bytes appended to the current segment.
    in_segment: u64,
    end: u64,
    durable: u64,
    waiters: Vec<DurableCallback>,
    failing: bool,
    closing: bool,
}

impl LogShared {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::SeqCst;
            let one_less = |left: u32| left.checked_sub(1);
            if self.syncs_to_fail.fetch_update(SeqCst, SeqCst, one_less).is_ok() {
                return Err(io::Error::other("injected sync failure"));
            }
        }
        file.sync_data()
    }
}

impl fmt::Debug for LogShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogShared").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl SegmentLog {
    /// Opens the log in a folder, which is created if absent, and visits its frames in order. A
    /// tail torn by a crash is cut off and returned; any other damage, such as the loss of
    /// acknowledged frames at the end, is an error and changes nothing.
    pub fn open(
        dir: &Path,
        options: LogOptions,
        visit: &mut dyn FnMut(LogPosition, &[u8]),
    ) -> Result<(Self, Option<TornTail>), LogError> {
        assert!(
            options.identity.len() <= usize::from(u16::MAX),
            "the identity is longer than 65,535 bytes"
        );
        folder::create(dir)?;
        let lock = folder::lock(dir)?;
        let found = open::open(dir, &options, visit)?;
        let last = found.segments[found.segments.len() - 1];
        let header = open::header_bytes(&options);
        let pending = Pending {
            in_segment: found.file_offset - header,
            end: found.end,
            durable: found.end,
            ..Pending::default()
        };
        let shared = Arc::new(LogShared {
            dir: dir.to_owned(),
            header,
            options,
            pending: Mutex::new(pending),
            wake: Condvar::new(),
            segments: Mutex::new(found.segments),
            #[cfg(test)]
            syncs_to_fail: 0.into(),
        });
        let file = (found.file, found.file_offset);
        let writer = LogWriter::new(Arc::clone(&shared), last, file, found.record);
        let thread = std::thread::Builder::new().name("rollway-log".into());
        let writer = thread.spawn(|| writer.run());
        let writer = writer.map_err(LogError::io("start a thread for", dir))?;
        Ok((Self { shared, writer: Some(writer), _lock: lock }, found.torn))
    }

    pub fn frame_bytes_max(&self) -> u64 {
        self.shared.options.frame_bytes_max.into()
    }

    /// Appends a frame in memory. Never blocks; refuses only frames that are too large.
    pub fn append(&self, parts: &[FramePart<'_>]) -> Result<LogPosition, LogError> {
        let bytes: u64 = parts.iter().map(|part| part.bytes().len() as u64).sum();
        let max = self.shared.options.frame_bytes_max;
        let length = u32::try_from(bytes).ok().filter(|length| *length <= max);
        let length = length.ok_or(LogError::TooLarge { bytes, max })?;
        let mut sum = crc32fast::Hasher::new();
        for part in parts {
            sum.update(part.bytes());
        }
        let head = FrameHead { length, sum: sum.finalize() };

        let mut pending = self.shared.pending.lock();
        let pending = &mut *pending;
        let framed = FRAME + bytes;
        if pending.in_segment > 0 && pending.in_segment + framed > self.shared.options.segment_bytes
        {
            pending.rotate();
        }
        let position = LogPosition { offset: pending.end, length };
        pending.tail.extend_from_slice(&head.encode(position.offset));
        for part in parts {
            match part {
                FramePart::Share(bytes) if bytes.len() > MAX_COPIED_BYTES => {
                    pending.seal();
                    pending.chunks.push(Chunk::Shared(Bytes::clone(bytes)));
                }
                part => pending.tail.extend_from_slice(part.bytes()),
            }
        }
        pending.tail.push(END);
        pending.end = position.end();
        pending.in_segment += framed;
        pending.waiting += framed;
        // No commit waits for these; they are written so that they do not pile up.
        if pending.waiting >= writer::FLUSH_BYTES && !pending.failing {
            self.shared.wake.notify_one();
        }
        Ok(position)
    }

    /// Calls `then` from the log's thread, in the order of calls, once everything appended before
    /// is durable. After a write error `then` gets the error, the frames are kept, and the next
    /// commit retries without loss or duplicates. `then` must be quick and must not wait for this
    /// log.
    pub fn commit(&self, then: DurableCallback) {
        self.shared.pending.lock().waiters.push(then);
        self.shared.wake.notify_one();
    }

    /// Waits until everything appended before is durable.
    pub fn sync(&self) -> Result<(), Arc<LogError>> {
        let (sender, receiver) = mpsc::channel();
        self.commit(Box::new(move |result| {
            let _ = sender.send(result);
        }));
        receiver.recv().unwrap_or_else(|_| Err(Arc::new(LogError::Closed)))
    }

    /// Starts a new segment for everything appended from now on.
    pub fn rotate(&self) {
        self.shared.pending.lock().rotate();
    }

    /// Returns the bytes that are not durable yet.
    pub fn unsynced_bytes(&self) -> u64 {
        let pending = self.shared.pending.lock();
        pending.end - pending.durable
    }

    /// Returns whether the limit of unsynced bytes is reached, so that no new work should be
    /// accepted.
    pub fn is_behind(&self) -> bool {
        self.unsynced_bytes() >= self.shared.options.unsynced_bytes
    }

    /// Returns the offset of the first kept frame.
    pub fn first(&self) -> u64 {
        self.shared.segments.lock()[0].base
    }

    /// Returns the offset of the next frame to be appended.
    pub fn end(&self) -> u64 {
        self.shared.pending.lock().end
    }

    /// Reads a durable frame. Blocks.
    pub fn read(&self, position: LogPosition) -> Result<Bytes, LogError> {
        let segments = self.shared.segments.lock();
        let (first, durable) = (segments[0].base, self.shared.pending.lock().durable);
        let LogPosition { offset, length } = position;
        if offset < first || position.end() > durable {
            return Err(LogError::NotThere { offset, first, durable });
        }
        let segment = segments[segments.partition_point(|segment| segment.base <= offset) - 1];
        let path = folder::segment(&self.shared.dir, segment.number);
        // Opened under the lock, so that it is not removed in between.
        let file = File::open(&path).map_err(LogError::io("open", &path))?;
        drop(segments);
        let file_offset = self.shared.header + (offset - segment.base);
        let mut bytes = vec![0; FRAME as usize + length as usize];
        file.read_exact_at(&mut bytes, file_offset).map_err(LogError::io("read", &path))?;
        match FrameHead::decode(&bytes, offset) {
            Some(head) if head.length == length && head.matches(&bytes[HEAD as usize..]) => {
                Ok(Bytes::from(bytes).slice(HEAD as usize..(HEAD + u64::from(length)) as usize))
            }
            _ => Err(LogError::damaged(
                &path,
                file_offset,
                "the frame is not the one that was written",
            )),
        }
    }

    /// Visits the durable frames in order, from an offset on. Blocks.
    pub fn each(
        &self,
        from: u64,
        visit: &mut dyn FnMut(LogPosition, &[u8]),
    ) -> Result<(), LogError> {
        let segments = self.shared.segments.lock().clone();
        let durable = self.shared.pending.lock().durable;
        for (at, segment) in segments.iter().enumerate() {
            let until = segments.get(at + 1).map_or(durable, |next| next.base);
            if until <= from {
                continue;
            }
            let path = folder::segment(&self.shared.dir, segment.number);
            let mut scan = LogScan::new(&path, self.shared.header, segment.base)?;
            let mut chosen = |position: LogPosition, bytes: &[u8]| {
                if position.offset >= from {
                    visit(position, bytes);
                }
            };
            if scan.run(until, &mut chosen)? != scan::ScanEnd::Whole || scan.offset != until {
                let found = "durable frames are missing";
                return Err(LogError::damaged(&path, scan.file_offset(), found));
            }
        }
        Ok(())
    }

    /// Removes the segments that lie before an offset, atomically even if the process dies, and
    /// returns their number. Blocks.
    pub fn remove_before(&self, offset: u64) -> Result<usize, LogError> {
        let mut segments = self.shared.segments.lock();
        let offset = offset.min(self.shared.pending.lock().durable);
        let count = segments.windows(2).take_while(|pair| pair[1].base <= offset).count();
        if count == 0 {
            return Ok(0);
        }
        folder::set_start(&self.shared.dir, segments[count].number)?;
        for segment in segments.drain(..count) {
            folder::remove(&self.shared.dir, segment.number)?;
        }
        folder::sync(&self.shared.dir)?;
        Ok(count)
    }
}

impl Pending {
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let spare = std::mem::take(&mut self.spare);
            self.chunks.push(Chunk::Copied(std::mem::replace(&mut self.tail, spare)));
        }
    }

    fn rotate(&mut self) {
        self.seal();
        self.chunks.push(Chunk::Rotate);
        self.in_segment = 0;
    }
}

impl Drop for SegmentLog {
    fn drop(&mut self) {
        self.shared.pending.lock().closing = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.take() {
            // A panic of the thread was logged already.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    fn open(dir: &Path) -> (SegmentLog, Vec<Vec<u8>>) {
        let mut frames = Vec::new();
        let mut visit = |_, bytes: &[u8]| frames.push(bytes.to_vec());
        let (log, torn) = SegmentLog::open(dir, LogOptions::new("test", "me"), &mut visit).unwrap();
        assert_eq!(torn, None);
        (log, frames)
    }

    /// After a failed sync the frames go to another file, under the positions they had.
    #[test]
    fn unsynced_frames_are_rewritten_to_another_file() {
        for frames_before in [0, 1] {
            let dir = tempfile::tempdir().unwrap();
            let (log, _) = open(dir.path());
            for _ in 0..frames_before {
                log.append(&[FramePart::Copy(b"before")]).unwrap();
            }
            log.sync().unwrap();
            log.shared.syncs_to_fail.store(2, SeqCst);
            let first = log.append(&[FramePart::Copy(b"first")]).unwrap();
            assert!(log.sync().unwrap_err().to_string().contains("injected sync failure"));
            assert!(matches!(log.read(first), Err(LogError::NotThere { .. })));
            let second = log.append(&[FramePart::Copy(b"second")]).unwrap();
            log.sync().unwrap_err();
            log.sync().unwrap();
            assert_eq!(log.unsynced_bytes(), 0);
            assert_eq!(log.read(first).unwrap(), "first");
            assert_eq!(log.read(second).unwrap(), "second");
            // A segment that holds nothing is replaced, one that holds something is followed.
            assert_eq!(log.shared.segments.lock().len(), 1 + frames_before);
            drop(log);
            let (_, frames) = open(dir.path());
            assert_eq!(frames[frames_before..], [b"first".to_vec(), b"second".to_vec()]);
        }
    }

    /// The process may die before the file that could not be synced was cut.
    #[test]
    fn an_abandoned_tail_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = open(dir.path());
        log.append(&[FramePart::Copy(b"kept")]).unwrap();
        log.sync().unwrap();
        log.shared.syncs_to_fail.store(1, SeqCst);
        log.append(&[FramePart::Copy(b"again")]).unwrap();
        log.sync().unwrap_err();
        log.sync().unwrap();
        drop(log);
        let first = folder::segment(dir.path(), 1);
        let mut bytes = std::fs::read(&first).unwrap();
        bytes.extend(b"whatever the system has made of it");
        std::fs::write(first, bytes).unwrap();
        assert_eq!(open(dir.path()).1, [b"kept".to_vec(), b"again".to_vec()]);
    }
}
