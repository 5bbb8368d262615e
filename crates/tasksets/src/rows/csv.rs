//! CSV and TSV files with a header.
//!
//! A column is numeric or boolean only if every cell is in canonical form; otherwise it stays text.
//! An empty cell is null.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::csv::{Reader, ReaderBuilder, StringRecord};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::field_names::FieldNames;
use super::file_handle::FileHandle;
use super::{Cache, MAX_ROW_BYTES, Scanned, Shard};
use crate::{Fields, Result, TasksetError, TasksetErrorKind as Kind};

/// Type of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Type {
    /// All cells are empty so far.
    #[default]
    Unknown,
    Bool,
    Int,
    Float,
    Text,
}

impl Type {
    fn of(cell: &str) -> Self {
        let is_number = || serde_json::from_str::<serde_json::Number>(cell).is_ok();
        match cell {
            "" => Self::Unknown,
            "true" | "false" | "True" | "False" => Self::Bool,
            cell if cell.parse::<i64>().is_ok_and(|it| it.to_string() == cell) => Self::Int,
            cell if cell.contains(['.', 'e', 'E']) && is_number() => Self::Float,
            _ => Self::Text,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Unknown, known) | (known, Self::Unknown) => known,
            (Self::Int, Self::Float) | (Self::Float, Self::Int) => Self::Float,
            _ => Self::Text,
        }
    }

    fn value(self, cell: &str) -> Value {
        match self {
            _ if cell.is_empty() => Value::Null,
            Self::Text | Self::Unknown => cell.into(),
            Self::Bool => matches!(cell, "true" | "True").into(),
            Self::Int | Self::Float => serde_json::from_str(cell).unwrap_or_else(|_| cell.into()),
        }
    }
}

#[derive(Debug)]
struct Csv {
    handle: FileHandle,
    delimiter: u8,
    columns: Vec<CsvColumn>,
    starts: Vec<u64>,
}

#[derive(Debug)]
struct CsvColumn {
    name: String,
    kind: Type,
    /// Number of non-empty cells.
    filled: u64,
}

/// Scans files; columns of the same name get one type.
pub(super) fn open(files: &[PathBuf]) -> Result<Vec<Scanned>> {
    let mut types: BTreeMap<String, Type> = BTreeMap::new();
    let mut found = Vec::new();
    for path in files {
        let (mut csv, print) = scan(path)?;
        csv.handle.close();
        for column in &csv.columns {
            let known = types.entry(column.name.clone()).or_default();
            *known = known.and(column.kind);
        }
        found.push((csv, print));
    }
    let scanned = found.into_iter().map(|(mut csv, print)| {
        let mut keys = FieldNames::default();
        for column in &mut csv.columns {
            column.kind = types.get(&column.name).copied().unwrap_or_default();
            keys.add_column(&column.name, Some(column.filled));
        }
        Scanned { shard: Box::new(csv), keys, print }
    });
    Ok(scanned.collect())
}

fn scan(path: &Path) -> Result<(Csv, [u8; 32])> {
    let mut handle = FileHandle::open(path)?;
    let is_tsv = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("tsv"));
    let delimiter = if is_tsv { b'\t' } else { b',' };
    let record_start = Arc::new(AtomicU64::new(0));
    let file = handle.file()?;
    let feed = Feed { file, hash: Sha256::new(), read: 0, record_start: record_start.clone() };
    let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(feed);
    let names = header(path, &mut reader)?.into_iter();
    let mut columns: Vec<CsvColumn> =
        names.map(|name| CsvColumn { name, kind: Type::default(), filled: 0 }).collect();
    let mut starts = Vec::new();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| bad_row(path, &error))? {
        let start = record.position().map_or(0, ::csv::Position::byte);
        record_start.store(start, Ordering::Relaxed);
        starts.push(start);
        for (column, cell) in columns.iter_mut().zip(&record) {
            column.filled += u64::from(!cell.is_empty());
            if column.kind != Type::Text {
                column.kind = column.kind.and(Type::of(cell));
            }
        }
    }
    let print = reader.into_inner().hash.finalize().into();
    handle.print()?;
    Ok((Csv { handle, delimiter, columns, starts }, print))
}

/// Returns the column names; unnamed columns are named as in pandas.
fn header(path: &Path, reader: &mut Reader<Feed<'_>>) -> Result<Vec<String>> {
    let header = reader.headers().map_err(|error| bad_row(path, &error))?;
    let name = |(at, name): (usize, &str)| match name.is_empty() {
        true => format!("Unnamed: {at}"),
        false => name.to_owned(),
    };
    let names: Vec<String> = header.iter().enumerate().map(name).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            let what = format!("two columns have the name `{name}`");
            let location = format!("{}, line 1", path.display());
            let hint = "rename one of them in the first line";
            return Err(Kind::Row.at(location, what, hint));
        }
    }
    Ok(names)
}

fn bad_row(path: &Path, error: &::csv::Error) -> TasksetError {
    let at = |position: &Option<::csv::Position>| match position {
        Some(position) => format!("{}, line {}", path.display(), position.line()),
        None => path.display().to_string(),
    };
    let invalid = |position, what, hint: &str| Kind::Row.at(at(position), what, hint);
    match error.kind() {
        ::csv::ErrorKind::UnequalLengths { pos, expected_len, len } => invalid(
            pos,
            format!("{len} cells, but the header has {expected_len}"),
            "put cells with commas or line breaks into quotes",
        ),
        ::csv::ErrorKind::Utf8 { pos, err } => {
            invalid(pos, format!("not UTF-8: {err}"), "save the file again as UTF-8")
        }
        ::csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            invalid(&None, error.to_string(), "look for a quote that is not closed")
        }
        ::csv::ErrorKind::Io(error) => TasksetError::io(path, error),
        _ => invalid(&None, error.to_string(), "write the file again with a CSV library"),
    }
}

/// Reader that hashes the file and stops at a record without end.
struct Feed<'a> {
    file: &'a File,
    hash: Sha256,
    read: u64,
    record_start: Arc<AtomicU64>,
}

impl Read for Feed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = self.record_start.load(Ordering::Relaxed);
        if self.read.saturating_sub(start) > 2 * MAX_ROW_BYTES {
            let what = format!("the row after byte {start} does not end");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let count = self.file.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.read += count as u64;
        Ok(count)
    }
}

impl Csv {
    fn record(&mut self, index: u64) -> Result<StringRecord> {
        let bytes = self.handle.read_part(&self.starts, index as usize, self.handle.len())?;
        let mut reader = ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(false)
            .from_reader(bytes.as_slice());
        let mut record = StringRecord::new();
        match reader.read_record(&mut record) {
            Ok(true) if record.len() == self.columns.len() => Ok(record),
            Ok(_) | Err(_) => Err(TasksetError::changed(self.handle.path())),
        }
    }
}

impl Shard for Csv {
    fn len(&self) -> u64 {
        self.starts.len() as u64
    }

    fn row(&mut self, index: u64, _: (&mut Cache, usize)) -> Result<Fields> {
        let record = self.record(index)?;
        let cells = self.columns.iter().zip(&record);
        Ok(cells.map(|(column, cell)| (column.name.clone(), column.kind.value(cell))).collect())
    }

    fn location(&mut self, index: u64) -> String {
        format!("{}, record {}", self.handle.path().display(), index + 1)
    }

    fn close(&mut self) {
        self.handle.close();
    }
}
