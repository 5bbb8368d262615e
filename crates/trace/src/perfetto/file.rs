//! The trace file: one event a line, in an array that may lack its end.
//!
//! The first line has the number of processes that have written and the origin of times; each
//! process rewrites it in place. An incomplete last line is removed.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::dropped::Losses;
use crate::span::Nanos;

/// Begin of the first event, which identifies our files.
const MARK: &str =
    "[\n{\"ph\":\"M\",\"name\":\"rollway_trace\",\"pid\":0,\"tid\":0,\"args\":{\"processes\":";

/// Bytes that are reserved for the last event.
const MAX_LAST_EVENT_BYTES: u64 = 100;

/// Width of the numbers in the first event.
const DIGITS: usize = 20;

/// End of a closed file.
const END: &[u8] = b"\n]\n";

/// Bytes that are searched for the last complete line; lines are much shorter.
const TAIL_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct TraceFile {
    out: BufWriter<std::fs::File>,
    /// Number of processes that have written, this one included.
    pub(super) process: u32,
    /// Origin of times.
    pub(super) origin: Nanos,
    written: u64,
    max_bytes: u64,
    is_broken: bool,
    losses: Arc<Losses>,
    lost: u64,
}

impl TraceFile {
    /// Opens the file for appending.
    pub(super) fn open(
        path: &Path,
        max_bytes: u64,
        now: Nanos,
        losses: Arc<Losses>,
    ) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let (process, origin, written) = match head(&mut file)? {
            Some((processes, origin)) => {
                let end = repair(&mut file)?;
                (processes + 1, origin, end)
            }
            None => {
                if file.metadata()?.len() > 0 {
                    // A file of another program is moved aside.
                    let mut moved = path.as_os_str().to_owned();
                    moved.push(".old");
                    std::fs::rename(path, moved)?;
                    file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
                }
                (1, now, 0)
            }
        };
        file.seek(SeekFrom::Start(0))?;
        let first = first_line(process, origin);
        file.write_all(first.as_bytes())?;
        let written = written.max(first.len() as u64);
        file.seek(SeekFrom::Start(written))?;
        let out = BufWriter::with_capacity(1 << 16, file);
        Ok(Self { out, process, origin, written, max_bytes, is_broken: false, losses, lost: 0 })
    }

    /// Writes an event if it fits.
    pub(super) fn write(&mut self, event: &str) {
        let bytes = event.len() as u64 + 2;
        if self.is_broken
            || self.written.saturating_add(bytes + MAX_LAST_EVENT_BYTES) > self.max_bytes
        {
            self.lost += 1;
            self.losses.events(1, "`trace.max_file_bytes` is reached");
            return;
        }
        self.written += bytes;
        let done = self.out.write_all(event.as_bytes()).and_then(|()| self.out.write_all(b",\n"));
        self.check(done);
    }

    pub(super) fn flush(&mut self) {
        let done = self.out.flush();
        self.check(done);
    }

    /// Completes the array; a later process can still append.
    pub(super) fn close(&mut self) {
        if !self.is_broken {
            let last = format!(
                "{{\"ph\":\"M\",\"name\":\"rollway_end\",\"pid\":0,\"tid\":0,\
                 \"args\":{{\"lost\":{}}}}}",
                self.lost
            );
            let done = self.out.write_all(last.as_bytes()).and_then(|()| self.out.write_all(END));
            self.check(done);
        }
        self.flush();
    }

    fn check(&mut self, done: io::Result<()>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.is_broken, true)
        {
            self.losses.events(1, &format!("the file cannot be written: {error}"));
        }
    }
}

fn first_line(processes: u32, origin: Nanos) -> String {
    format!("{MARK}{processes:>DIGITS$},\"origin\":{origin:>DIGITS$}}}}},\n")
}

/// Reads number of processes and origin. `None`: not a file of ours.
fn head(file: &mut std::fs::File) -> io::Result<Option<(u32, Nanos)>> {
    let mut line = vec![0; first_line(0, 0).len()];
    file.seek(SeekFrom::Start(0))?;
    if file.read_exact(&mut line).is_err() {
        return Ok(None);
    }
    let line = String::from_utf8_lossy(&line);
    let rest = line.strip_prefix(MARK).and_then(|rest| rest.split_once(",\"origin\":"));
    let read = rest.and_then(|(processes, rest)| {
        let origin = rest.get(..DIGITS)?.trim().parse().ok()?;
        Some((processes.trim().parse().ok()?, origin))
    });
    Ok(read)
}

/// Removes the end of the array or an incomplete line; returns the new length.
fn repair(file: &mut std::fs::File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    if let Some(whole) = tail.strip_suffix(END) {
        let end = from + whole.len() as u64;
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(b",\n")?;
        return Ok(end + 2);
    }
    let whole = tail.windows(3).rposition(|bytes| bytes == b"},\n").map_or(0, |at| at + 3);
    let end = from + whole as u64;
    file.set_len(end)?;
    Ok(end)
}
