//! Files of a history.
//!
//! ```text
//! <job>/history/events              job events, one frame of JSON each
//! <job>/history/runs-000001         records of runs, many in a frame
//! <job>/history/trajectories-000001 experiences, one after the other
//! ```
//!
//! A frame is length, checksum and bytes. Nothing is synced: the last writes may be missing after a
//! crash of the machine. Reading stops at an incomplete frame.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::record::{Entry, Trajectory};
use super::row::RecordPosition;
use super::write_queue::{FRAME_HEAD, HistoryWrite, MAGIC, ObsoleteFile};

const EVENTS: &str = "events";
const RUNS: &str = "runs";
const TRAJECTORIES: &str = "trajectories";

/// Maximum bytes of the file of events.
const MAX_EVENTS_BYTES: u64 = 64 << 20;

/// Write buffer for short trajectories.
const BUFFER_BYTES: usize = 1 << 18;

/// Maximum length of a valid frame.
const MAX_FRAME_BYTES: u32 = 1 << 30;

#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    events: File,
    events_bytes: u64,
    runs: Option<(u32, File)>,
    trajectories: Option<(u32, File)>,
    _lock: File,
}

/// Counts of records that could not be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unwritten {
    pub(super) events: u64,
    pub(super) records: u64,
    pub(super) trajectories: u64,
}

impl Files {
    /// Opens a folder and locks it for this process.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let lock = File::create(dir.join("lock"))?;
        lock.try_lock().map_err(|error| {
            io::Error::other(format!("another process writes to {}: {error}", dir.display()))
        })?;
        let path = dir.join(EVENTS);
        if other_format(&path)? {
            let message = format!(
                "{} is not a history of this version of Rollway: move {} away to start a new one",
                path.display(),
                dir.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut good = MAGIC.len() as u64;
        read(&path, &mut |_, frame| good += (FRAME_HEAD + frame.len()) as u64)?;
        let mut events = OpenOptions::new().create(true).append(true).open(&path)?;
        if events.metadata()?.len() < good {
            events.set_len(0)?;
            events.write_all(MAGIC)?;
        }
        // Removes an incomplete frame.
        events.set_len(good)?;
        let (runs, trajectories) = (None, None);
        let dir = dir.to_owned();
        Ok(Self { dir, events, events_bytes: good, runs, trajectories, _lock: lock })
    }

    /// Writes records; returns the counts of failed writes.
    pub(super) fn write(&mut self, batch: HistoryWrite) -> Unwritten {
        let mut unwritten = Unwritten::default();
        let is_same =
            |one: &(Trajectory, _), other: &(Trajectory, _)| one.0.segment == other.0.segment;
        for part in batch.trajectories.chunk_by(is_same) {
            let Trajectory { segment, offset, .. } = part[0].0;
            let file = open_at(&self.dir, TRAJECTORIES, (segment, offset), &mut self.trajectories);
            let written = file.and_then(|file| {
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
                part.iter().try_for_each(|(_, payload)| out.write_all(payload))?;
                out.flush()
            });
            if logged(written).is_none() {
                self.trajectories = None;
                unwritten.trajectories += part.len() as u64;
            }
        }
        if !batch.entries.is_empty() {
            unwritten.events += self.write_events(&batch.entries);
        }
        if !batch.runs.is_empty() {
            let RecordPosition { segment, offset } = batch.frame;
            let file = open_at(&self.dir, RUNS, (segment, offset.into()), &mut self.runs);
            let framed = framed(&batch.runs);
            if logged(file.and_then(|file| file.write_all(&framed))).is_none() {
                self.runs = None;
                unwritten.records += 1;
            }
        }
        for file in batch.remove {
            let (name, number) = match file {
                ObsoleteFile::Runs(number) => (RUNS, number),
                ObsoleteFile::Trajectories(number) => (TRAJECTORIES, number),
            };
            // It may never have been created.
            let _ = fs::remove_file(path(&self.dir, name, number));
        }
        unwritten
    }

    fn write_events(&mut self, entries: &[Entry]) -> u64 {
        let mut bytes = Vec::new();
        for entry in entries {
            if let Ok(text) = serde_json::to_vec(entry) {
                bytes.extend_from_slice(&framed(&text));
            }
        }
        let room = MAX_EVENTS_BYTES.saturating_sub(self.events_bytes);
        if bytes.len() as u64 > room {
            return entries.len() as u64;
        }
        if logged(self.events.write_all(&bytes)).is_none() {
            // Reading stops at an incomplete frame: it is removed.
            logged(self.events.set_len(self.events_bytes));
            return entries.len() as u64;
        }
        self.events_bytes += bytes.len() as u64;
        0
    }
}

fn logged<T>(result: io::Result<T>) -> Option<T> {
    result.map_err(|error| tracing::debug!(%error, "cannot write the history")).ok()
}

/// Opens a numbered file and seeks to the assigned position, which is not the end of the file after
/// a failed write.
fn open_at<'a>(
    dir: &Path,
    name: &str,
    (number, offset): (u32, u64),
    open: &'a mut Option<(u32, File)>,
) -> io::Result<&'a mut File> {
    if open.as_ref().is_none_or(|(known, _)| *known != number) {
        let path = path(dir, name, number);
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        if file.metadata()?.len() == 0 {
            file.write_all(MAGIC)?;
        }
        *open = Some((number, file));
    }
    match open {
        Some((_, file)) => {
            file.seek(SeekFrom::Start(offset))?;
            Ok(file)
        }
        None => Err(io::Error::other("no file is open")),
    }
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(FRAME_HEAD + bytes.len());
    framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    framed.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    framed.extend_from_slice(bytes);
    framed
}

fn path(dir: &Path, name: &str, number: u32) -> PathBuf {
    dir.join(format!("{name}-{number:06}"))
}

/// Visits the complete frames of a file with their positions. A missing file has none.
fn read(path: &Path, visit: &mut dyn FnMut(u64, &[u8])) -> io::Result<()> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if bytes.starts_with(MAGIC) {
        frames(&bytes, MAGIC.len(), visit);
    }
    Ok(())
}

/// Visits the complete frames from a position on, with the positions of their content.
fn frames(bytes: &[u8], position: usize, visit: &mut dyn FnMut(u64, &[u8])) {
    let mut rest = bytes.get(position..).unwrap_or_default();
    while let Some((head, after)) = rest.split_at_checked(FRAME_HEAD) {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, sum) = (word(0), word(4));
        if length > MAX_FRAME_BYTES {
            break;
        }
        let Some((frame, after)) = after.split_at_checked(length as usize) else { break };
        if crc32fast::hash(frame) != sum {
            break;
        }
        visit((bytes.len() - rest.len() + FRAME_HEAD) as u64, frame);
        rest = after;
    }
}

pub(super) fn events(dir: &Path, visit: &mut dyn FnMut(Entry)) -> io::Result<()> {
    read(&dir.join(EVENTS), &mut |_, frame| {
        // Skips entries of other releases.
        if let Ok(entry) = serde_json::from_slice(frame) {
            visit(entry);
        }
    })
}

/// Visits the frames of all files of runs: number, position, bytes.
pub(super) fn runs(dir: &Path, visit: &mut dyn FnMut(u32, u64, &[u8])) -> io::Result<()> {
    for (number, path) in numbered(dir, RUNS)? {
        read(&path, &mut |position, frame| visit(number, position, frame))?;
    }
    Ok(())
}

/// Visits the frames of files of runs from a file and a position of a frame on.
pub(super) fn runs_from(
    dir: &Path,
    (from, position): (u32, u64),
    visit: &mut dyn FnMut(u32, u64, &[u8]),
) -> io::Result<()> {
    for (number, path) in numbered(dir, RUNS)?.split_off(&from) {
        let position =
            if number == from { position.max(MAGIC.len() as u64) } else { MAGIC.len() as u64 };
        // It may have been removed.
        let Ok(mut file) = File::open(path) else { continue };
        file.seek(SeekFrom::Start(position))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        frames(&bytes, 0, &mut |at, frame| visit(number, position + at, frame));
    }
    Ok(())
}

/// Returns the numbers of all files of runs.
pub(super) fn segments(dir: &Path) -> io::Result<Vec<u32>> {
    Ok(numbered(dir, RUNS)?.into_keys().collect())
}

/// Returns numbers and sizes of the files of trajectories.
pub(super) fn trajectories(dir: &Path) -> io::Result<Vec<(u32, u64)>> {
    let files = numbered(dir, TRAJECTORIES)?.into_iter();
    let sizes = files.map(|(number, path)| {
        let bytes = fs::metadata(path)?.len();
        Ok((number, bytes.saturating_sub(MAGIC.len() as u64)))
    });
    sizes.collect()
}

fn numbered(dir: &Path, name: &str) -> io::Result<BTreeMap<u32, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|file| file.to_str())
            .and_then(|file| file.strip_prefix(name)?.strip_prefix('-')?.parse().ok());
        files.extend(number.map(|number| (number, path)));
    }
    Ok(files)
}

pub(super) fn record(dir: &Path, segment: u32, offset: u32) -> io::Result<Vec<u8>> {
    let file = File::open(path(dir, RUNS, segment))?;
    let mut head = [0; super::record::HEAD];
    file.read_exact_at(&mut head, offset.into())?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other("invalid record"));
    }
    let mut bytes = vec![0; head.len() + length as usize];
    file.read_exact_at(&mut bytes, offset.into())?;
    Ok(bytes)
}

pub(super) fn trajectory(dir: &Path, position: Trajectory) -> io::Result<Vec<u8>> {
    TrajectoryFiles::new(dir).read(position)
}

/// Files of trajectories, of which the last one stays open.
#[derive(Debug)]
pub(super) struct TrajectoryFiles<'a> {
    dir: &'a Path,
    open: Option<(u32, File)>,
}

impl<'a> TrajectoryFiles<'a> {
    pub(super) const fn new(dir: &'a Path) -> Self {
        Self { dir, open: None }
    }

    pub(super) fn read(&mut self, position: Trajectory) -> io::Result<Vec<u8>> {
        if self.open.as_ref().is_none_or(|(number, _)| *number != position.segment) {
            let file = File::open(path(self.dir, TRAJECTORIES, position.segment))?;
            self.open = Some((position.segment, file));
        }
        let Some((_, file)) = &self.open else { return Err(io::Error::other("no file is open")) };
        let mut read = vec![0; position.bytes as usize];
        file.read_exact_at(&mut read, position.offset)?;
        Ok(read)
    }
}

/// Returns whether a file has another format. A begin that a crash truncated has not.
fn other_format(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAGIC.len() as u64).read_to_end(&mut start)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(!MAGIC.starts_with(&start))
}

/// Returns whether a folder has a history.
pub(super) fn exists(dir: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let read = File::open(dir.join(EVENTS)).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *MAGIC
}
