//! Opening a log: every frame is looked at, a torn tail is cut off, anything else that is wrong is
//! an error.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::error::LogError;
use super::format::Header;
use super::scan::{LogScan, ScanEnd};
use super::{LogOptions, LogPosition, folder};

/// One file of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    /// The offset in the log of its first frame.
    pub(super) base: u64,
}

/// What a crash left behind and opening cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The file that was cut.
    pub path: PathBuf,
    /// The length to which it was cut.
    pub at: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

pub(super) struct FoundSegments {
    pub(super) segments: Vec<Segment>,
    /// The last segment, open for writing.
    pub(super) file: File,
    /// Its length.
    pub(super) place: u64,
    /// Where the log ends.
    pub(super) end: u64,
    pub(super) torn: Option<TornTail>,
}

pub(super) fn open(
    dir: &Path,
    options: &LogOptions,
    visit: &mut dyn FnMut(LogPosition, &[u8]),
) -> Result<FoundSegments, LogError> {
    let numbers = folder::list(dir)?;
    let mut segments = Vec::with_capacity(numbers.len());
    for number in numbers {
        segments.push(Segment { number, base: header(dir, options, number)? });
    }
    let Some(last) = segments.last().copied() else {
        let first = Segment { number: 1, base: 0 };
        let (file, place) = create(dir, options, first)?;
        folder::set_start(dir, 1)?;
        return Ok(FoundSegments { segments: vec![first], file, place, end: 0, torn: None });
    };
    let header = header_bytes(options);
    for pair in segments.windows(2) {
        let (path, until) = (folder::segment(dir, pair[0].number), pair[1].base);
        let mut scan = LogScan::new(&path, header, pair[0].base)?;
        // What stands behind the beginning of the next segment was given up when writing failed.
        if scan.run(until, visit)? != ScanEnd::Whole || scan.offset() != until {
            let found = "the frames up to the next segment are not there";
            return Err(LogError::damaged(&path, scan.place(), found));
        }
    }
    let path = folder::segment(dir, last.number);
    let mut scan = LogScan::new(&path, header, last.base)?;
    let whole = scan.run(u64::MAX, visit)?;
    let file = OpenOptions::new().write(true).open(&path).map_err(LogError::io("open", &path))?;
    let mut torn = None;
    if whole == ScanEnd::Torn {
        file.set_len(scan.place()).map_err(LogError::io("cut", &path))?;
        torn = Some(TornTail { path: path.clone(), at: scan.place(), bytes: scan.left() });
    }
    // What was read may only be in memory, if the last process died before it had synced.
    file.sync_all().map_err(LogError::io("sync", &path))?;
    if segments.len() == 1 && last.number == 1 {
        folder::set_start(dir, 1)?;
    }
    Ok(FoundSegments { file, place: scan.place(), end: scan.offset(), segments, torn })
}

/// Begins a segment, in the place of one of the same number if there is one. It appears with its
/// header or not at all, and is durable before any frame is written to it.
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

/// Returns how long the headers of this log are.
pub(super) fn header_bytes(options: &LogOptions) -> u64 {
    expected_header(options, 0, 0).encode().len() as u64
}

const fn expected_header(options: &LogOptions, number: u64, base: u64) -> Header<'_> {
    Header { kind: options.kind, identity: options.identity.as_str(), number, base }
}

fn header(dir: &Path, options: &LogOptions, number: u64) -> Result<u64, LogError> {
    // As long as a header can be, so that another owner's is read to its end.
    const MAX_FRAME_HEAD_BYTES: u64 = 256 * 1024;
    let path = folder::segment(dir, number);
    let mut bytes = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(MAX_FRAME_HEAD_BYTES).read_to_end(&mut bytes));
    read.map_err(LogError::io("read", &path))?;
    expected_header(options, number, 0).check(&path, &bytes)
}
