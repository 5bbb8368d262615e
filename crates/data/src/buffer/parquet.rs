//! Buffer of Parquet files with the columns of [`crate::arrow`].

mod file;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::files::{
    self, Change, FileBuffer, FileStore, IndexEntry, IoContext, SampleIter, safe_name, sync_folder,
};
use super::{BufferError, Result};
use crate::Sample;

/// A folder of Parquet files, one per write batch, with the index in `.rollway`.
///
/// A file is written under a hidden name, synced, indexed and then renamed to
/// `NUMBER-KEY-HASH.parquet`, in the order of writing; so all visible files are complete and
/// acknowledged. Samples with known ids are omitted. Without an index the files are read once at
/// opening, in name order, and become closed batches. One process at a time can read under a name.
pub type ParquetBuffer = FileBuffer<ParquetFolder>;

impl ParquetBuffer {
    /// Opens or creates a folder.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        if folder.is_file() {
            return Err(BufferError::unsupported(
                folder.display().to_string(),
                "it is a file; give the folder in which it is",
            ));
        }
        files::open(ParquetFolder { path: folder })
    }
}

#[derive(Debug)]
pub struct ParquetFolder {
    path: PathBuf,
}

impl ParquetFolder {
    fn damaged(&self, file: &str, message: &str) -> BufferError {
        BufferError::damaged(self.path.join(file).display().to_string(), message)
    }

    fn visible_path(&self, file_name: &str) -> PathBuf {
        self.path.join(file_name)
    }

    /// Returns the path of a file before it is visible.
    fn temporary_path(&self, file_name: &str) -> PathBuf {
        self.path.join(format!(".{file_name}{HIDDEN}"))
    }

    /// Returns the names of visible files in order, and of hidden ones.
    fn list(&self) -> Result<(Vec<String>, Vec<String>)> {
        let (mut shown, mut hidden) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.path).at(&self.name())? {
            let name = entry.at(&self.name())?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') && name.ends_with(HIDDEN) {
                hidden.push(name);
            } else if !name.starts_with('.') && name.ends_with(".parquet") {
                shown.push(name);
            }
        }
        shown.sort();
        Ok((shown, hidden))
    }

    /// Indexes the files of a folder without an index.
    fn adopt(&self, shown: &[String], index: &Change<'_>) -> Result<()> {
        for (number, name) in (1..).zip(shown) {
            let data = Bytes::from(fs::read(self.path.join(name)).at(&self.name())?);
            let (bytes, checksum) = (data.len() as u64, crc32fast::hash(&data));
            let (key, rows) =
                file::read(data, 0).map_err(|problem| self.damaged(name, &problem))?;
            let mut samples = 0;
            for sample in rows {
                let sample = sample.map_err(|problem| self.damaged(name, &problem))?;
                if !index.add_id(&sample.id)? {
                    let message = format!("`{}` is there twice", sample.id);
                    return Err(self.damaged(name, &message));
                }
                samples += 1;
            }
            let file_name = name.clone();
            let entry = IndexEntry { number, file_name, begin: 0, bytes, checksum, samples };
            index.add(&key.unwrap_or_else(|| format!("file {name}")), &entry)?;
        }
        if !shown.is_empty() {
            index.writer("", true)?;
        }
        Ok(())
    }

    /// Makes an indexed file visible that a crashed writer left hidden. A writer that is alive
    /// makes its file visible itself, at any time.
    fn make_visible(&self, file_name: &str) -> Result<()> {
        let visible = self.visible_path(file_name);
        match fs::rename(self.temporary_path(file_name), &visible) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match visible.exists() {
                    true => Ok(()),
                    false => Err(self
                        .damaged(file_name, "it is missing although it was written; restore it")),
                }
            }
            renamed => renamed.at(&self.name()),
        }
    }

    fn put(&self, file_name: &str, data: &[u8]) -> io::Result<()> {
        let path = self.temporary_path(file_name);
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(data)?;
            file.sync_all()
        });
        if written.is_err() {
            // The next opening would remove it; this frees the space now.
            let _ = fs::remove_file(&path);
        }
        written.and_then(|()| sync_folder(&self.path))
    }

    /// Reads a file, visible or still hidden.
    fn get(&self, file_name: &str) -> io::Result<Vec<u8>> {
        let (shown, hidden) = (self.visible_path(file_name), self.temporary_path(file_name));
        let absent = |path: &Path, or: &dyn Fn() -> io::Result<Vec<u8>>| match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => or(),
            read => read,
        };
        // It may become visible between the two attempts.
        absent(&shown, &|| absent(&hidden, &|| fs::read(&shown)))
    }
}

/// Suffix of hidden files.
const HIDDEN: &str = ".part";

impl FileStore for ParquetFolder {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn index(&self) -> PathBuf {
        self.path.join(".rollway")
    }

    fn settle(&self, index: &Change<'_>, fresh: bool) -> Result<()> {
        let (shown, hidden) = self.list()?;
        if fresh {
            self.adopt(&shown, index)?;
        }
        let file_names = index.file_names()?;
        let known: HashSet<&str> = file_names.iter().map(String::as_str).collect();
        let there: HashSet<&str> = shown.iter().map(String::as_str).collect();
        if let Some(foreign) = shown.iter().find(|name| !known.contains(name.as_str())) {
            let message = "it was not written through this buffer; move it away, or remove \
                           .rollway to index all files of the folder";
            return Err(self.damaged(foreign, message));
        }
        for file_name in file_names.iter().filter(|name| !there.contains(name.as_str())) {
            self.make_visible(file_name)?;
        }
        for name in hidden {
            match fs::remove_file(self.path.join(&name)) {
                Ok(()) => tracing::warn!(file = name, "unacknowledged file removed"),
                // Just renamed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at(&self.name()),
            }
        }
        Ok(())
    }

    fn append(&self, number: u64, key: &str, samples: &[&Sample], _: u64) -> Result<IndexEntry> {
        let file_name = format!("{number:010}-{}.parquet", safe_name(key));
        let data = file::write(key, samples).map_err(|error| error.with_storage(&self.name()))?;
        self.put(&file_name, &data).at(&self.name())?;
        Ok(IndexEntry {
            number,
            file_name,
            begin: 0,
            bytes: data.len() as u64,
            checksum: crc32fast::hash(&data),
            samples: samples.len() as u64,
        })
    }

    fn entered(&self, entry: &IndexEntry) {
        let (hidden, shown) =
            (self.temporary_path(&entry.file_name), self.visible_path(&entry.file_name));
        if let Err(error) = fs::rename(hidden, &shown)
            && !shown.exists()
        {
            tracing::warn!(file = entry.file_name, %error, "file not renamed; it becomes visible \
                                                            when the folder is opened again");
        }
    }

    fn rows(&self, entry: &IndexEntry, row: u64) -> Result<SampleIter> {
        let location = self.visible_path(&entry.file_name).display().to_string();
        let data = Bytes::from(self.get(&entry.file_name).at(&location)?);
        if data.len() as u64 != entry.bytes || crc32fast::hash(&data) != entry.checksum {
            return Err(self.damaged(&entry.file_name, "its bytes are not those that were written"));
        }
        let damaged = move |message| BufferError::damaged(location.clone(), message);
        let (_, rows) = file::read(data, row).map_err(&damaged)?;
        Ok(Box::new(rows.map(move |sample| sample.map_err(&damaged))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process opens the folder while a writer makes its file visible: between the list of
    /// files and the renaming.
    #[test]
    fn a_file_that_its_writer_has_just_made_visible_is_not_missing() {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let store = ParquetFolder { path: folder.path().to_owned() };
        store.put("1.parquet", b"data").expect("there is room");
        let (shown, hidden) = store.list().expect("the folder is there");
        assert_eq!((shown.len(), hidden.len()), (0, 1));
        fs::rename(store.temporary_path("1.parquet"), store.visible_path("1.parquet"))
            .expect("it is hidden");
        store.make_visible("1.parquet").expect("it is visible");
        assert_eq!(store.get("1.parquet").expect("it is there"), b"data");
        fs::remove_file(store.visible_path("1.parquet")).expect("it is visible");
        let error = store.make_visible("1.parquet").expect_err("it is gone");
        assert!(error.to_string().contains("is missing although it was written"), "{error}");
    }
}
