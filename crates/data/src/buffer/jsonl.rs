//! Buffer of JSON lines, readable by any tool.
//!
//! A line is the output of `Experience::to_json` with the payload in base64 under `payload`, so
//! that it can be read back exactly.

mod line;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::files::{
    self, Change, FileBuffer, FileStore, IndexEntry, IoContext, SampleIter, sync_folder,
};
use super::{BufferError, Result};
use crate::Sample;

/// Maximum bytes whose checksum is compared at opening. Older batches are checked when they are
/// read.
const VERIFIED_BYTES: u64 = 1 << 30;

/// A file of JSON lines with an index folder `….index` beside it.
///
/// A write batch is appended and synced before it is indexed. Data of a crashed writer behind the
/// last batch is cut off at the next opening or write and appended to `cut` in the index folder. A
/// file without an index is read once at opening and becomes one batch. Keys and sample ids are
/// known across restarts without using memory. One process at a time can read under a name.
pub type JsonlBuffer = FileBuffer<JsonLines>;

impl JsonlBuffer {
    /// Opens or creates a file `….jsonl` or `….json`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !matches!(extension, Some("json" | "jsonl")) {
            return Err(BufferError::unsupported(
                path.display().to_string(),
                "a file of JSON lines has to end with .jsonl or .json",
            ));
        }
        files::open(JsonLines { path })
    }
}

#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
}

impl JsonLines {
    fn damaged(&self, message: String) -> BufferError {
        BufferError::damaged(self.name(), message)
    }

    /// Cuts off data behind the last batch.
    fn truncate(&self, file: &mut File, end: u64) -> Result<()> {
        let length = file.metadata().at(&self.name())?.len();
        if length < end {
            return Err(self.damaged(format!(
                "it has {length} bytes where {end} were written; restore it, or remove {} to \
                 continue with the data that is there",
                self.index().display()
            )));
        }
        if length > end {
            tracing::warn!(
                file = %self.path.display(), bytes = length - end,
                "unacknowledged data truncated"
            );
            self.set_aside(file, end).at(&self.name())?;
        }
        Ok(())
    }

    fn set_aside(&self, file: &mut File, end: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(end))?;
        let mut removed =
            File::options().create(true).append(true).open(self.index().join("cut"))?;
        io::copy(file, &mut removed)?;
        removed.sync_all()?;
        file.set_len(end)?;
        file.sync_all()
    }

    /// Compares the checksums of the newest batches.
    fn verify(&self, file: &mut File, entries: &[IndexEntry]) -> Result<()> {
        let mut verified = 0;
        for entry in entries {
            verified += entry.bytes;
            if verified > VERIFIED_BYTES {
                break;
            }
            file.seek(SeekFrom::Start(entry.begin)).at(&self.name())?;
            if checksum(file.take(entry.bytes)).at(&self.name())? != entry.checksum {
                let (index, end) = (self.index(), entry.begin + entry.bytes);
                return Err(self.damaged(format!(
                    "bytes {} to {end} (batch {}) are not those that were written; restore \
                     the file, or move it and {} away to continue without its content",
                    entry.begin,
                    entry.number,
                    index.display()
                )));
            }
        }
        Ok(())
    }

    /// Indexes the lines of a file without an index.
    fn adopt(&self, file: File, index: &Change<'_>) -> Result<()> {
        let mut lines = BufReader::new(file);
        let (mut bytes, mut samples, mut line) = (0, 0, Vec::new());
        let mut checksum = crc32fast::Hasher::new();
        while lines.read_until(b'\n', &mut line).at(&self.name())? > 0 {
            samples += 1;
            if !line.ends_with(b"\n") {
                return Err(self.damaged(format!("line {samples} is truncated")));
            }
            let id = line::id(&line)
                .map_err(|problem| self.damaged(format!("line {samples}: {problem}")))?;
            index.add_id(&id)?;
            bytes += line.len() as u64;
            checksum.update(&line);
            line.clear();
        }
        if samples > 0 {
            let (file_name, checksum) = (String::new(), checksum.finalize());
            index.add(
                "",
                &IndexEntry { number: 1, file_name, begin: 0, bytes, checksum, samples },
            )?;
            index.writer("", true)?;
        }
        Ok(())
    }

    fn put(&self, file: &mut File, lines: &[u8], begin: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(begin))?;
        let written = file.write_all(lines).and_then(|()| file.sync_data());
        if written.is_err() {
            // The next write would cut it off; this frees the space now.
            let _ = file.set_len(begin);
        }
        written
    }
}

impl FileStore for JsonLines {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn index(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".index");
        name.into()
    }

    fn settle(&self, index: &Change<'_>, fresh: bool) -> Result<()> {
        let new = !self.path.exists();
        let mut file = open(&self.path).at(&self.name())?;
        if new {
            sync_folder(self.path.parent().unwrap_or_else(|| Path::new(""))).at(&self.name())?;
        }
        if fresh {
            return self.adopt(file, index);
        }
        self.truncate(&mut file, index.end()?)?;
        self.verify(&mut file, &index.newest_first()?)
    }

    fn append(&self, number: u64, _: &str, samples: &[&Sample], begin: u64) -> Result<IndexEntry> {
        let mut lines = Vec::new();
        for sample in samples {
            line::write(sample, &mut lines)?;
        }
        let mut file = open(&self.path).at(&self.name())?;
        self.truncate(&mut file, begin)?;
        self.put(&mut file, &lines, begin).at(&self.name())?;
        Ok(IndexEntry {
            number,
            file_name: String::new(),
            begin,
            bytes: lines.len() as u64,
            checksum: crc32fast::hash(&lines),
            samples: samples.len() as u64,
        })
    }

    fn entered(&self, _: &IndexEntry) {}

    fn rows(&self, entry: &IndexEntry, row: u64) -> Result<SampleIter> {
        let mut file = File::open(&self.path).at(&self.name())?;
        file.seek(SeekFrom::Start(entry.begin)).at(&self.name())?;
        let mut lines = BufReader::new(file.take(entry.bytes));
        for _ in 0..row {
            lines.skip_until(b'\n').at(&self.name())?;
        }
        let (storage, number, mut row) = (self.name(), entry.number, row);
        let next = move || {
            let mut line = Vec::new();
            match lines.read_until(b'\n', &mut line).at(&storage) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            let sample = line::read(&line).map_err(|problem| {
                problem.with_location(&storage, &format!("batch {number}, row {row}"))
            });
            row += 1;
            Some(sample)
        };
        Ok(Box::new(std::iter::from_fn(next)))
    }
}

/// Returns the CRC-32 of data.
fn checksum(mut data: impl Read) -> io::Result<u32> {
    let (mut checksum, mut chunk) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
    loop {
        match data.read(&mut chunk)? {
            0 => return Ok(checksum.finalize()),
            read => checksum.update(&chunk[..read]),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).open(path)
}
