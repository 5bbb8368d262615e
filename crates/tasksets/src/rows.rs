//! The rows of a taskset, read by index from one or many files.

mod arrow;
mod cache;
mod cell;
mod column_error;
mod csv;
mod discover;
mod field_names;
mod file_handle;
mod json;
mod page_sizes;
mod parquet;
mod unpacked;

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

use self::cache::Cache;
use self::discover::FileKind;
pub(super) use self::field_names::FieldNames;
use self::unpacked::UnpackedLimit;
use super::{Fields, MAX_ROWS, Result, TasksetError, TasksetErrorKind as Kind};
use rollway_config::Taskset;

/// Maximum bytes of a row.
const MAX_ROW_BYTES: u64 = 64 << 20;

/// Maximum number of open files of a taskset.
const MAX_OPEN: usize = 16;

/// One data file.
trait Shard: Send {
    fn len(&self) -> u64;

    /// Returns a row. Decoded batches are cached under the file number.
    fn row(&mut self, index: u64, cache: (&mut Cache, usize)) -> Result<Fields>;

    /// Announces the rows, ascending, that are read next.
    fn plan(&mut self, _rows: &[u64]) {}

    /// Returns the location of a row for messages.
    fn location(&mut self, index: u64) -> String;

    /// Closes the file; the next access reopens it.
    fn close(&mut self);
}

/// A scanned file.
struct Scanned {
    shard: Box<dyn Shard>,
    keys: FieldNames,
    print: [u8; 32],
}

pub(super) struct Rows {
    shards: Vec<Box<dyn Shard>>,
    /// Cumulative row counts of the files.
    ends: Vec<u64>,
    keys: FieldNames,
    fingerprint: String,
    cache: Cache,
    /// Open files, most recently used last.
    open: VecDeque<usize>,
}

impl Rows {
    pub(super) fn open(taskset: &Taskset) -> Result<Self> {
        let path = taskset.path.as_deref().unwrap_or_default();
        let (kind, files) = discover::files(path, &taskset.split, taskset.subset_name.as_deref())?;
        let limit = UnpackedLimit(taskset.max_unpacked_bytes);
        let mut hash = Sha256::new();
        let mut rows = Self {
            shards: Vec::new(),
            ends: Vec::new(),
            keys: FieldNames::default(),
            fingerprint: String::new(),
            cache: Cache::default(),
            open: VecDeque::new(),
        };
        let scanned = match kind {
            FileKind::Csv => csv::open(&files)?,
            FileKind::Json => one_by_one(&files, json::open)?,
            FileKind::Parquet => one_by_one(&files, |path| parquet::open(path, limit))?,
            FileKind::Arrow => one_by_one(&files, |path| arrow::open(path, limit))?,
        };
        for mut scanned in scanned {
            hash.update(scanned.print);
            scanned.shard.close();
            rows.ends.push(rows.len() + scanned.shard.len());
            rows.shards.push(scanned.shard);
            rows.keys.merge(scanned.keys);
        }
        rows.fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        match rows.len() {
            0 => {
                let hint = "a job needs at least one task; check the path";
                Err(Kind::Empty.at(path, "it has no rows", hint))
            }
            count if count > MAX_ROWS => {
                let what = format!("{count} rows are more than a taskset can have: {MAX_ROWS}");
                let hint = "split it into several tasksets";
                Err(Kind::Unsupported.at(path, what, hint))
            }
            _ => Ok(rows),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn keys(&self) -> &FieldNames {
        &self.keys
    }

    /// Returns a hash of the content, independent of paths.
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns a row; the index must be valid.
    pub(super) fn get(&mut self, index: u64) -> Result<Fields> {
        let (shard, row) = locate(&self.ends, index);
        self.touch(shard);
        self.shards[shard].row(row, (&mut self.cache, shard))
    }

    /// Announces the rows, ascending, that are read next.
    pub(super) fn plan(&mut self, indices: &[u64]) {
        let found: Vec<(usize, u64)> =
            indices.iter().map(|index| locate(&self.ends, *index)).collect();
        for rows in found.chunk_by(|one, other| one.0 == other.0) {
            let indices: Vec<u64> = rows.iter().map(|(_, row)| *row).collect();
            self.shards[rows[0].0].plan(&indices);
        }
    }

    /// Returns the location of a row for messages.
    pub(super) fn location(&mut self, index: u64) -> String {
        let (shard, row) = locate(&self.ends, index);
        self.touch(shard);
        self.shards[shard].location(row)
    }

    /// Marks a file as used and closes the least recently used one.
    fn touch(&mut self, shard: usize) {
        if self.open.back() == Some(&shard) {
            return;
        }
        self.open.retain(|open| *open != shard);
        self.open.push_back(shard);
        if self.open.len() > MAX_OPEN
            && let Some(oldest) = self.open.pop_front()
        {
            self.shards[oldest].close();
        }
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = f.debug_struct("Rows");
        rows.field("len", &self.len()).field("fingerprint", &self.fingerprint);
        rows.finish_non_exhaustive()
    }
}

/// Scans files and leaves none open.
fn one_by_one(
    files: &[std::path::PathBuf],
    open: impl Fn(&Path) -> Result<Scanned>,
) -> Result<Vec<Scanned>> {
    let one = |path: &std::path::PathBuf| {
        let mut scanned = open(path)?;
        scanned.shard.close();
        Ok(scanned)
    };
    files.iter().map(one).collect()
}

/// Returns the part with an index, by the cumulative lengths of the parts, and the index in it.
fn locate(ends: &[u64], index: u64) -> (usize, u64) {
    let part = ends.partition_point(|end| *end <= index);
    (part, index - if part == 0 { 0 } else { ends[part - 1] })
}

fn too_long(location: String) -> TasksetError {
    let what = format!("a row of more than {} MiB", MAX_ROW_BYTES >> 20);
    let hint = "keep large things in files and name them in the row";
    Kind::Row.at(location, what, hint)
}
