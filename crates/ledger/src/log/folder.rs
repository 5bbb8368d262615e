//! Folder of a log.
//!
//! `start` names the first segment in use. It is replaced before older segments are removed, so
//! that removal is atomic and a missing segment differs from a removed one. `end` is the end of the
//! acknowledged frames, so that a log that was cut off between two frames differs from a whole one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rollway_base::{FileLock, FileLockError, NumberFile};

use super::error::LogError;

const LOCK: &str = "lock";
const START: &str = "start";
const START_NEW: &str = "start.new";
const END: &str = "end";

/// File name of a segment being created.
pub(super) const SEGMENT_NEW: &str = "segment.new";

pub(super) fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.log"))
}

/// Makes created, renamed and removed entries of a folder durable.
pub(super) fn sync(dir: &Path) -> Result<(), LogError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(LogError::io("sync the folder", dir))
}

pub(super) fn create(dir: &Path) -> Result<(), LogError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(LogError::io("create the folder", dir))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => Ok(()),
    }
}

/// Returns the numbers of the segments in use, without gaps; empty for a new log.
pub(super) fn list(dir: &Path) -> Result<Vec<u64>, LogError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(LogError::io("list", dir))? {
        let entry = entry.map_err(LogError::io("list", dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_suffix(".log").filter(|digits| digits.len() == 20);
        let number = number.and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
        match (number, &*name) {
            (Some(number), _) => numbers.push(number),
            (None, LOCK | START | START_NEW | END | SEGMENT_NEW) => {}
            (None, _) => {
                let found = "its name is not that of a segment".into();
                return Err(LogError::Foreign { path: entry.path(), found });
            }
        }
    }
    numbers.sort_unstable();
    let start = start(dir)?;
    let first = start.unwrap_or(1);
    // A process died between replacing `start` and removing these.
    while numbers.first().is_some_and(|number| *number < first) {
        remove(dir, numbers.remove(0))?;
    }
    if numbers.is_empty() && start.is_none() {
        return Ok(numbers);
    }
    let count = numbers.len() as u64;
    let missing =
        (first..first + count).zip(&numbers).find(|(expected, number)| expected != *number);
    let missing = missing.map(|(expected, _)| expected).or_else(|| (count == 0).then_some(first));
    match missing {
        Some(number) => Err(LogError::Missing { path: segment(dir, number) }),
        None => Ok(numbers),
    }
}

fn start(dir: &Path) -> Result<Option<u64>, LogError> {
    let path = dir.join(START);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::io("read", &path)(error)),
    };
    let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
    match number {
        Some(number) if number > 0 && text == start_text(number) => Ok(Some(number)),
        _ => Err(LogError::damaged(&path, 0, format!("it contains {text:?}"))),
    }
}

fn start_text(number: u64) -> String {
    format!("{number} {:08x}\n", crc32fast::hash(&number.to_le_bytes()))
}

/// Durably sets the first segment.
pub(super) fn set_start(dir: &Path, number: u64) -> Result<(), LogError> {
    let new = dir.join(START_NEW);
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(start_text(number).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, dir.join(START))
    };
    write().map_err(LogError::io("write", &new))?;
    sync(dir)
}

/// Returns the path of the record of the end.
pub(super) fn end_path(dir: &Path) -> PathBuf {
    dir.join(END)
}

/// Opens the record of the end of the acknowledged frames.
pub(super) fn end(dir: &Path) -> Result<NumberFile, LogError> {
    let path = end_path(dir);
    NumberFile::open(&path).map_err(LogError::io("open", &path))
}

pub(super) fn remove(dir: &Path, number: u64) -> Result<(), LogError> {
    let path = segment(dir, number);
    fs::remove_file(&path).map_err(LogError::io("remove", &path))
}

/// Locks the folder, which one process at a time can open.
pub(super) fn lock(dir: &Path) -> Result<FileLock, LogError> {
    let path = dir.join(LOCK);
    FileLock::acquire(&path).map_err(|error| match error {
        FileLockError::Io(source) => LogError::io("lock", &path)(source),
        held @ FileLockError::Held { .. } => LogError::Locked { path, holder: held.to_string() },
    })
}
