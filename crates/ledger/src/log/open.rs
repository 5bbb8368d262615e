//! Opening of a log: scans all frames, cuts off a torn tail, reports any other damage.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rollway_base::NumberFile;

use super::error::LogError;
use super::format::Header;
use super::scan::{LogScan, ScanEnd};
use super::{LogOptions, LogPosition, folder};

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    /// Offset in the log of its first frame.
    pub(super) base: u64,
}

/// Tail that a crash left and opening cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub path: PathBuf,
    /// New length of the file.
    pub at: u64,
    /// Number of removed bytes.
    pub bytes: u64,
}

pub(super) struct FoundSegments {
    pub(super) segments: Vec<Segment>,
    /// Last segment, open for writing.
    pub(super) file: File,
    pub(super) file_offset: u64,
    pub(super) end: u64,
    /// Record of the end of the acknowledged frames.
    pub(super) record: NumberFile,
    pub(super) torn: Option<TornTail>,
}

pub(super) fn open(
    dir: &Path,
    options: &LogOptions,
    visit: &mut dyn FnMut(LogPosition, &[u8]),
) -> Result<FoundSegments, LogError> {
    let numbers = folder::list(dir)?;
    let record = folder::end(dir)?;
    // An unreadable record says nothing.
    let acknowledged = record.get().unwrap_or(0);
    let mut segments = Vec::with_capacity(numbers.len());
    for number in numbers {
        segments.push(Segment { number, base: header(dir, options, number)? });
    }
    let Some(last) = segments.last().copied() else {
        let first = Segment { number: 1, base: 0 };
        check_end(dir, first, 0, acknowledged)?;
        let (file, file_offset) = create(dir, options, first)?;
        folder::set_start(dir, 1)?;
        let segments = vec![first];
        return Ok(FoundSegments { segments, file, file_offset, end: 0, record, torn: None });
    };
    let header = header_bytes(options);
    for pair in segments.windows(2) {
        let (path, until) = (folder::segment(dir, pair[0].number), pair[1].base);
        let mut scan = LogScan::new(&path, header, pair[0].base)?;
        // Frames behind the start of the next segment were abandoned when writing failed.
        if scan.run(until, visit)? != ScanEnd::Whole || scan.offset != until {
            let found = "frames before the next segment are missing";
            return Err(LogError::damaged(&path, scan.file_offset(), found));
        }
    }
    let path = folder::segment(dir, last.number);
    let mut scan = LogScan::new(&path, header, last.base)?;
    let whole = scan.run(u64::MAX, visit)?;
    check_end(dir, last, scan.offset, acknowledged)?;
    let file = OpenOptions::new().write(true).open(&path).map_err(LogError::io("open", &path))?;
    let mut torn = None;
    if whole == ScanEnd::Torn {
        file.set_len(scan.file_offset()).map_err(LogError::io("cut", &path))?;
        torn = Some(TornTail { path: path.clone(), at: scan.file_offset(), bytes: scan.left });
    }
    // The last process may have died before it synced these frames.
    file.sync_all().map_err(LogError::io("sync", &path))?;
    if segments.len() == 1 && last.number == 1 {
        folder::set_start(dir, 1)?;
    }
    let (file_offset, end) = (scan.file_offset(), scan.offset);
    Ok(FoundSegments { segments, file, file_offset, end, record, torn })
}

/// Refuses a log that ends before the last acknowledged frame.
fn check_end(dir: &Path, last: Segment, end: u64, acknowledged: u64) -> Result<(), LogError> {
    if end >= acknowledged {
        return Ok(());
    }
    let (path, record) = (folder::segment(dir, last.number), folder::end_path(dir));
    Err(LogError::Short { path, end, acknowledged, record })
}

/// Creates a segment, replacing one of the same number. It appears atomically with its header and
/// is durable before any frame is written.
pub(super) fn create(
    dir: &Path,
    options: &LogOptions,
    segment: Segment,
) -> Result<(File, u64), LogError> {
    let (new, path) = (dir.join(folder::SEGMENT_NEW), folder::segment(dir, segment.number));
    let header = expected_header(options, segment.number, segment.base).encode();
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(&header)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(file)
    };
    let file = write().map_err(LogError::io("begin", &path))?;
    folder::sync(dir)?;
    Ok((file, header.len() as u64))
}

pub(super) fn header_bytes(options: &LogOptions) -> u64 {
    expected_header(options, 0, 0).encode().len() as u64
}

const fn expected_header(options: &LogOptions, number: u64, base: u64) -> Header<'_> {
    Header { kind: options.kind, identity: options.identity.as_str(), number, base }
}

fn header(dir: &Path, options: &LogOptions, number: u64) -> Result<u64, LogError> {
    // Upper bound of a header, so that one of another owner is read completely.
    const MAX_FRAME_HEAD_BYTES: u64 = 256 * 1024;
    let path = folder::segment(dir, number);
    let mut bytes = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(MAX_FRAME_HEAD_BYTES).read_to_end(&mut bytes));
    read.map_err(LogError::io("read", &path))?;
    expected_header(options, number, 0).check(&path, &bytes)
}
