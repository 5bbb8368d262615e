//! A data file that can be closed and reopened; a changed file is detected.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::{Result, TasksetError};

/// Larger files are hashed by samples.
const WHOLE: u64 = 64 << 20;

/// Number of hashed samples of a large file, and bytes of each.
const PIECES: u64 = 256;
const READ_CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct FileHandle {
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    print: Option<[u8; 32]>,
    file: Option<File>,
}

impl FileHandle {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || -> io::Result<(File, Metadata)> {
            // To open a pipe would wait for its writer.
            if !std::fs::metadata(path)?.is_file() {
                return Err(io::Error::other(
                    "it is not a regular file, whose rows can be read again",
                ));
            }
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            Ok((file, metadata))
        };
        let (file, metadata) = open().map_err(|error| TasksetError::io(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            len: metadata.len(),
            modified: metadata.modified().ok(),
            print: None,
            file: Some(file),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn close(&mut self) {
        self.file = None;
    }

    /// Returns the open file, reopened if necessary and then checked for changes.
    pub(super) fn file(&mut self) -> Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.reopen()?,
        };
        Ok(self.file.insert(file))
    }

    fn reopen(&mut self) -> Result<File> {
        let mut reopened = Self::open(&self.path)?;
        let changed = || TasksetError::changed(&self.path);
        if reopened.len != self.len {
            return Err(changed());
        }
        if reopened.modified != self.modified && self.print.is_some() {
            if reopened.print()? != self.print.unwrap_or_default() {
                return Err(changed());
            }
            self.modified = reopened.modified;
        }
        reopened.file.ok_or_else(changed)
    }

    pub(super) fn read(&mut self, start: u64, end: u64) -> Result<Vec<u8>> {
        let (path, length) = (self.path.clone(), (end - start) as usize);
        let mut file = self.file()?;
        let mut bytes = vec![0; length];
        let mut read = || -> io::Result<()> {
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut bytes)
        };
        match read() {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(TasksetError::changed(&path))
            }
            Err(error) => Err(TasksetError::io(&path, &error)),
        }
    }

    /// Reads one of consecutive parts by their start offsets; the last ends at `end`.
    pub(super) fn read_part(&mut self, starts: &[u64], index: usize, end: u64) -> Result<Vec<u8>> {
        self.read(starts[index], starts.get(index + 1).copied().unwrap_or(end))
    }

    /// Returns a hash of the content, of samples for a large file. Reopening compares it.
    pub(super) fn print(&mut self) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        hash.update(self.len.to_le_bytes());
        let whole = self.len <= WHOLE;
        let pieces = if whole { self.len.div_ceil(READ_CHUNK_BYTES) } else { PIECES };
        for piece in 0..pieces {
            let start = match whole {
                true => piece * READ_CHUNK_BYTES,
                false => (self.len - READ_CHUNK_BYTES) / (PIECES - 1) * piece,
            };
            let last = piece + 1 == pieces;
            let start = if last && !whole { self.len - READ_CHUNK_BYTES } else { start };
            hash.update(self.read(start, (start + READ_CHUNK_BYTES).min(self.len))?);
        }
        let print = hash.finalize().into();
        self.print = Some(print);
        Ok(print)
    }
}
