//! State of one trainer and its requests.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rollway_protocol::reader::proto;

use super::group::ReaderGroup;
use super::interruptible::POLL_INTERVAL;
use crate::Sample;
use crate::buffer::{BufferError, ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// State of a session; survives a lost connection.
pub(super) struct ReaderSession {
    pub(super) session: String,
    pub(super) reader: Box<dyn ExperienceReader>,
    /// Readers of adopted sessions whose samples are in `held`.
    inherited: Vec<Box<dyn ExperienceReader>>,
    /// Unacknowledged samples.
    pub(super) held: VecDeque<Sample>,
    /// Number of `held` samples that were sent; the others are still to send.
    given: usize,
    last: Last,
    pub(super) epoch: u64,
}

/// The last read, which may be repeated.
#[derive(Default)]
struct Last {
    number: u64,
    /// Value of `given` before it.
    before: usize,
    stale: usize,
}

impl ReaderSession {
    pub(super) fn new(session: String, reader: Box<dyn ExperienceReader>, epoch: u64) -> Self {
        let (inherited, held) = (Vec::new(), VecDeque::new());
        Self { session, reader, inherited, held, given: 0, last: Last::default(), epoch }
    }

    /// Reads in slices. The returned samples are the last of `held`.
    pub(super) fn read(
        &mut self,
        group: &ReaderGroup,
        read: &proto::Read,
        held_bytes_max: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ReadResult> {
        // A seek of another session took back the samples.
        let epoch = group.epoch();
        if self.epoch != epoch {
            self.epoch = epoch;
            self.clear();
        }
        if read.number == self.last.number {
            // The response was lost.
            self.given = self.last.before.min(self.given);
        } else {
            if !read.keep {
                self.acknowledge(group)?;
            }
            self.last = Last { number: read.number, before: self.given, stale: 0 };
        }
        let end = self.fill(group, read, held_bytes_max, is_cancelled);
        let samples: Vec<Sample> = self.held.range(self.last.before..self.given).cloned().collect();
        let end = match end {
            Ok(end) => end,
            // Available samples first; the error recurs with the next read.
            Err(_) if !samples.is_empty() => ReadEnd::TimedOut,
            Err(error) => return Err(error),
        };
        Ok(ReadResult { samples, stale: self.last.stale, end })
    }

    fn clear(&mut self) {
        self.held.clear();
        self.inherited.clear();
        (self.given, self.last) = (0, Last::default());
    }

    /// Acknowledges sent samples; the own reader follows with its next read.
    fn acknowledge(&mut self, group: &ReaderGroup) -> Result<()> {
        self.held.drain(..self.given);
        self.given = 0;
        if self.held.is_empty() {
            let _turn = group.wait_turn();
            while let Some(reader) = self.inherited.last_mut() {
                reader.read(&acknowledge_only())?;
                self.inherited.pop();
            }
            group.unmark(&self.session);
        }
        Ok(())
    }

    fn fill(
        &mut self,
        group: &ReaderGroup,
        read: &proto::Read,
        held_bytes_max: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ReadEnd> {
        let count = usize::try_from(read.count).unwrap_or(usize::MAX);
        if count == 0 {
            if self.held.is_empty() {
                let _turn = group.wait_turn();
                self.reader.read(&acknowledge_only())?;
            }
            return Ok(ReadEnd::Full);
        }
        let until = Instant::now() + Duration::from_millis(read.timeout_ms).min(UNLIMITED_WAIT);
        loop {
            let wanted = self.send_held(count, read.min_model_version);
            if wanted == 0 {
                return Ok(ReadEnd::Full);
            }
            if let Some(orphan) = group.adopt(&self.session) {
                self.held.extend(orphan.held);
                self.inherited.push(orphan.reader);
                self.inherited.extend(orphan.inherited);
                continue;
            }
            self.check_room(held_bytes_max)?;
            let end = self.read_slice(group, wanted, until, read.min_model_version)?;
            let wanted = self.send_held(count, read.min_model_version);
            let timed_out = Instant::now() >= until;
            match end {
                _ if wanted == 0 => return Ok(ReadEnd::Full),
                // A lost session may return, or leave samples to adopt.
                ReadEnd::Finished if !timed_out && !is_cancelled() => {
                    let slice = until.min(Instant::now() + POLL_INTERVAL);
                    if !group.await_orphans(slice) {
                        return Ok(ReadEnd::Finished);
                    }
                }
                ReadEnd::Finished if !group.await_orphans(Instant::now()) => {
                    return Ok(ReadEnd::Finished);
                }
                _ if timed_out || is_cancelled() => return Ok(ReadEnd::TimedOut),
                _ => {}
            }
        }
    }

    /// Sends held samples; returns the number still wanted.
    fn send_held(&mut self, count: usize, min_model_version: u64) -> usize {
        while self.given - self.last.before < count
            && let Some(sample) = self.held.get(self.given)
        {
            if sample.model_version < min_model_version {
                self.held.remove(self.given);
                self.last.stale += 1;
            } else {
                self.given += 1;
            }
        }
        count - (self.given - self.last.before)
    }

    fn check_room(&self, held_bytes_max: usize) -> Result<()> {
        let bytes: usize =
            self.held.range(..self.last.before).map(|sample| sample.payload.len()).sum();
        if bytes > held_bytes_max {
            return Err(BufferError::full(
                "the reader",
                format!(
                    "{bytes} bytes were read with keep and not acknowledged, the limit is \
                     {held_bytes_max} (held_bytes); read without keep"
                ),
            ));
        }
        Ok(())
    }

    /// Reads one slice from the buffer.
    fn read_slice(
        &mut self,
        group: &ReaderGroup,
        wanted: usize,
        until: Instant,
        min_model_version: u64,
    ) -> Result<ReadEnd> {
        let _turn = group.wait_turn();
        group.mark(&self.session, || self.reader.position());
        let timeout = until.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
        // Nothing held: everything was acknowledged.
        let keep = !self.held.is_empty();
        let taken =
            self.reader.read(&ReadRequest { count: wanted, timeout, min_model_version, keep });
        group.set_position(self.reader.position());
        let taken = taken?;
        self.last.stale += taken.stale;
        self.held.extend(taken.samples);
        if self.held.is_empty() {
            group.unmark(&self.session);
        }
        Ok(taken.end)
    }

    /// Seeks, for all readers of this name.
    pub(super) fn seek(&mut self, group: &ReaderGroup, position: &str) -> Result<()> {
        let _turn = group.wait_turn();
        self.reader.seek(position)?;
        self.epoch = group.record_seek(self.reader.position());
        self.clear();
        Ok(())
    }
}

/// Upper bound of a wait that the clock can represent.
const UNLIMITED_WAIT: Duration = Duration::from_hours(24 * 365);

/// Acknowledges and takes nothing.
pub(super) fn acknowledge_only() -> ReadRequest {
    ReadRequest { count: 0, timeout: Duration::ZERO, min_model_version: 0, keep: false }
}
