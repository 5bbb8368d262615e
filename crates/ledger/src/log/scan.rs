//! Sequential scan of a segment; distinguishes torn tails from damage.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::LogPosition;
use super::error::LogError;
use super::format::{FRAME, FrameHead, HEAD};

#[derive(Debug)]
pub(super) struct LogScan<'a> {
    path: &'a Path,
    file: BufReader<File>,
    pub(super) offset: u64,
    /// Difference between file position and log offset.
    shift: i128,
    /// Bytes of the file from `offset` on.
    pub(super) left: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanEnd {
    Whole,
    /// A crash interrupted the last write.
    Torn,
}

impl<'a> LogScan<'a> {
    /// Starts behind a header of `header` bytes.
    pub(super) fn new(path: &'a Path, header: u64, base: u64) -> Result<Self, LogError> {
        let open = || {
            let mut file = File::open(path)?;
            let left = file.metadata()?.len().saturating_sub(header);
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(header))?;
            Ok((file, left))
        };
        let (file, left) = open().map_err(LogError::io("read", path))?;
        let file = BufReader::with_capacity(256 * 1024, file);
        let shift = i128::from(header) - i128::from(base);
        Ok(Self { path, file, offset: base, shift, left })
    }

    pub(super) const fn file_offset(&self) -> u64 {
        (self.offset as i128 + self.shift) as u64
    }

    /// Visits the frames up to an offset.
    pub(super) fn run(
        &mut self,
        until: u64,
        visit: &mut dyn FnMut(LogPosition, &[u8]),
    ) -> Result<ScanEnd, LogError> {
        let mut bytes = Vec::new();
        while self.offset < until && self.left > 0 {
            let mut head = [0; HEAD as usize];
            if self.left < HEAD {
                return Ok(ScanEnd::Torn);
            }
            self.fill(&mut head)?;
            let Some(head) = FrameHead::decode(&head, self.offset) else {
                return self.classify(&head, "the head of a frame is wrong");
            };
            let position = LogPosition { offset: self.offset, length: head.length };
            if self.left < FRAME + u64::from(head.length) {
                return Ok(ScanEnd::Torn);
            }
            bytes.resize(head.length as usize + 1, 0);
            self.fill(&mut bytes)?;
            if !head.matches(&bytes) {
                let head = head.encode(self.offset);
                return self
                    .classify(&[&head, &*bytes].concat(), "the checksum of a frame is wrong");
            }
            visit(position, &bytes[..head.length as usize]);
            self.offset = position.end();
            self.left -= FRAME + u64::from(head.length);
        }
        Ok(ScanEnd::Whole)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), LogError> {
        self.file.read_exact(bytes).map_err(LogError::io("read", self.path))
    }

    /// Classifies an invalid frame of which `read` has been read. A crash leaves a prefix of the
    /// write, possibly followed by zeros that the file system allocated. Anything else, and
    /// anything followed by valid frames, is damage.
    fn classify(&mut self, read: &[u8], wrong: &str) -> Result<ScanEnd, LogError> {
        let mut rest = read.to_vec();
        self.file.read_to_end(&mut rest).map_err(LogError::io("read", self.path))?;
        let later = (1..rest.len()).find(|at| good(&rest[*at..], self.offset + *at as u64));
        let found = match later {
            Some(at) => {
                format!("{wrong}, and valid ones follow from byte {}", {
                    self.file_offset() + at as u64
                })
            }
            None if rest.last() != Some(&0) => wrong.into(),
            None => return Ok(ScanEnd::Torn),
        };
        Err(LogError::damaged(self.path, self.file_offset(), found))
    }
}

fn good(bytes: &[u8], offset: u64) -> bool {
    let Some(head) = FrameHead::decode(bytes, offset) else { return false };
    let body = bytes[HEAD as usize..].get(..=head.length as usize);
    body.is_some_and(|body| head.matches(body))
}
