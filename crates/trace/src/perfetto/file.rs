//! The file itself: an event a line, in an array that may lack its end.
//!
//! The first line says how many processes have written, and from when times count; whoever goes on
//! changes it in place. A line that a killed process left torn is cut off.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::dropped::Losses;
use crate::span::Nanos;

/// What the first event is called, by which our files are known.
const MARK: &str =
    "[\n{\"ph\":\"M\",\"name\":\"rollway_trace\",\"pid\":0,\"tid\":0,\"args\":{\"processes\":";

/// How many bytes the last event may have, for which there is always room.
const LAST: u64 = 100;

/// How many digits a number in the first event has room for.
const DIGITS: usize = 20;

/// What stands behind the last event of a file that was closed.
const END: &[u8] = b"\n]\n";

/// Where to look for the last whole line; lines are much shorter.
const TAIL: u64 = 1 << 20;

/// A file that is written to.
#[derive(Debug)]
pub(super) struct TraceFile {
    out: BufWriter<std::fs::File>,
    /// How many processes have written, this one included.
    pub(super) process: u32,
    /// From when times count.
    pub(super) origin: Nanos,
    written: u64,
    most: u64,
    is_broken: bool,
    losses: Arc<Losses>,
    lost: u64,
}

impl TraceFile {
    /// Opens the file, or goes on in it.
    pub(super) fn open(
        path: &Path,
        most: u64,
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
                let end = mend(&mut file)?;
                (processes + 1, origin, end)
            }
            None => {
                if file.metadata()?.len() > 0 {
                    // Somebody else's: put aside, not lost.
                    let mut aside = path.as_os_str().to_owned();
                    aside.push(".old");
                    std::fs::rename(path, aside)?;
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
        Ok(Self { out, process, origin, written, most, is_broken: false, losses, lost: 0 })
    }

    /// Writes an event, if there is room for it.
    pub(super) fn write(&mut self, event: &str) {
        let bytes = event.len() as u64 + 2;
        if self.is_broken || self.written.saturating_add(bytes + LAST) > self.most {
            self.lost += 1;
            self.losses.events(1, "it is as large as `trace.max_file_bytes` allows");
            return;
        }
        self.written += bytes;
        let done = self.out.write_all(event.as_bytes()).and_then(|()| self.out.write_all(b",\n"));
        self.check(done);
    }

    /// Makes everything that was written readable by others.
    pub(super) fn flush(&mut self) {
        let done = self.out.flush();
        self.check(done);
    }

    /// Ends the file, in such a way that others can go on.
    pub(super) fn close(&mut self) {
        if !self.is_broken {
            let last = format!(
                "{{\"ph\":\"M\",\"name\":\"rollway_end\",\"pid\":0,\"tid\":0,\
                 \"args\":{{\"lost\":{}}}}}",
                self.lost
            );
            let done = self.out.write_all(last.as_bytes());
            let done = done.and_then(|()| self.out.write_all(END));
            self.check(done);
        }
        self.flush();
    }

    fn check(&mut self, done: io::Result<()>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.is_broken, true)
        {
            self.losses.events(1, &format!("it cannot be written: {error}"));
        }
    }
}

fn first_line(processes: u32, origin: Nanos) -> String {
    format!("{MARK}{processes:>DIGITS$},\"origin\":{origin:>DIGITS$}}}}},\n")
}

/// Returns how many processes have written, and from when times count, if it is a file of ours.
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

/// Cuts off the end of the array, or a torn line; returns where to go on.
fn mend(file: &mut std::fs::File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
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
