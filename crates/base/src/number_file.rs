//! File with one number, kept beside data that tells its own length.
//!
//! Data that was cut off cleanly looks whole. A number that was recorded after each acknowledgement
//! tells it from complete data.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Bytes of the content: a number of 20 digits, twice, so that a changed byte is noticed.
const BYTES: usize = 42;

#[derive(Debug)]
pub struct NumberFile(File);

impl NumberFile {
    /// Opens the file, which is created if absent.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        Ok(Self(options.open(path)?))
    }

    /// Returns the number; `None` if the file is empty or damaged.
    pub fn get(&self) -> Option<u64> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        let number = text.split(' ').next()?.parse().ok()?;
        (text == content(number)).then_some(number)
    }

    /// Records a number. It is not synced: it survives the process, and after a loss of power the
    /// file may hold an earlier number.
    pub fn set(&self, number: u64) -> io::Result<()> {
        self.0.write_all_at(content(number).as_bytes(), 0)
    }
}

fn content(number: u64) -> String {
    format!("{number:020} {number:020}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_kept_and_a_damaged_file_has_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("end");
        let file = NumberFile::open(&path).expect("a file");
        assert_eq!(file.get(), None);
        file.set(u64::MAX).expect("there is room");
        file.set(7).expect("there is room");
        let again = NumberFile::open(&path).expect("a file");
        assert_eq!(again.get(), Some(7));
        let text = std::fs::read_to_string(&path).expect("a text");
        std::fs::write(&path, text.replacen('7', "8", 1)).expect("there is room");
        assert_eq!(again.get(), None);
    }
}
