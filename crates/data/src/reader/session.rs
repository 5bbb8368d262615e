//! What one trainer holds, and how its requests are answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rollway_protocol::reader::proto;

use super::group::ReaderGroup;
use super::interruptible::POLL_INTERVAL;
use crate::Sample;
use crate::buffer::{BufferError, ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};

/// What belongs to a session, and stays when its connection is lost.
pub(super) struct ReaderSession {
    pub(super) session: String,
    reader: Box<dyn ExperienceReader>,
    /// Readers of others that left, whose samples are among the held.
    inherited: Vec<Box<dyn ExperienceReader>>,
    /// What is not acknowledged.
    held: VecDeque<Sample>,
    /// How many of the held were answers; the others are still to be given.
    given: usize,
    last: Last,
    pub(super) epoch: u64,
}

/// The last read: it may be asked for again.
#[derive(Default)]
struct Last {
    number: u64,
    /// How many of the held were given before it.
    before: usize,
    stale: usize,
}

impl ReaderSession {
    pub(super) fn new(session: String, reader: Box<dyn ExperienceReader>, epoch: u64) -> Self {
        let (inherited, held) = (Vec::new(), VecDeque::new());
        Self { session, reader, inherited, held, given: 0, last: Last::default(), epoch }
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// Tells the buffer, which hears of it late, that everything is acknowledged.
    pub(super) fn settle(&mut self) {
        // If it cannot, it comes again to somebody: no loss.
        let _ = self.reader.read(&nothing());
    }

    /// Reads. The samples are the last of those held; the buffer is asked in slices.
    pub(super) fn read(
        &mut self,
        group: &ReaderGroup,
        read: &proto::Read,
        held_bytes_max: usize,
        gone: &dyn Fn() -> bool,
    ) -> Result<ReadResult> {
        self.notice_seek(group);
        if read.number == self.last.number {
            // The answer was lost on the way.
            self.given = self.last.before.min(self.given);
        } else {
            if !read.keep {
                self.acknowledge(group)?;
            }
            self.last = Last { number: read.number, before: self.given, stale: 0 };
        }
        let end = self.fill(group, read, held_bytes_max, gone);
        let samples: Vec<Sample> = self.held.range(self.last.before..self.given).cloned().collect();
        let end = match end {
            Ok(end) => end,
            // What there is comes first; the error comes again with the next read.
            Err(_) if !samples.is_empty() => ReadEnd::TimedOut,
            Err(error) => return Err(error),
        };
        Ok(ReadResult { samples, stale: self.last.stale, end })
    }

    /// Forgets what was taken back by somebody's seek.
    fn notice_seek(&mut self, group: &ReaderGroup) {
        let epoch = group.epoch();
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.held.clear();
        self.inherited.clear();
        (self.given, self.last) = (0, Last::default());
    }

    /// Acknowledges what was given. The own reader hears of it with its next read.
    fn acknowledge(&mut self, group: &ReaderGroup) -> Result<()> {
        self.held.drain(..self.given);
        self.given = 0;
        if self.held.is_empty() {
            let _turn = group.turn();
            while let Some(reader) = self.inherited.last_mut() {
                reader.read(&nothing())?;
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
        gone: &dyn Fn() -> bool,
    ) -> Result<ReadEnd> {
        let count = usize::try_from(read.count).unwrap_or(usize::MAX);
        if count == 0 {
            if self.held.is_empty() {
                let _turn = group.turn();
                self.reader.read(&nothing())?;
            }
            return Ok(ReadEnd::Full);
        }
        let until = Instant::now() + Duration::from_millis(read.timeout_ms).min(UNLIMITED_WAIT);
        loop {
            let wanted = self.give(count, read.min_model_version);
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
            let wanted = self.give(count, read.min_model_version);
            let late = Instant::now() >= until;
            match end {
                _ if wanted == 0 => return Ok(ReadEnd::Full),
                // Somebody may come back, or leave for good what it held.
                ReadEnd::Finished if !late && !gone() => {
                    let slice = until.min(Instant::now() + POLL_INTERVAL);
                    if !group.await_orphans(slice) {
                        return Ok(ReadEnd::Finished);
                    }
                }
                ReadEnd::Finished if !group.await_orphans(Instant::now()) => {
                    return Ok(ReadEnd::Finished);
                }
                _ if late || gone() => return Ok(ReadEnd::TimedOut),
                _ => {}
            }
        }
    }

    /// Gives what is held already; returns how many are still wanted.
    fn give(&mut self, count: usize, min_model_version: u64) -> usize {
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
        let before = self.held.range(..self.last.before);
        let bytes: usize = before.map(|sample| sample.payload.len()).sum();
        if bytes > held_bytes_max {
            return Err(BufferError::Full {
                storage: "the reader".to_owned(),
                message: format!(
                    "{bytes} bytes were read with keep and not acknowledged, the limit is \
                     {held_bytes_max} (held_bytes); read without keep"
                ),
            });
        }
        Ok(())
    }

    /// Asks the buffer, for a slice of the time.
    fn read_slice(
        &mut self,
        group: &ReaderGroup,
        wanted: usize,
        until: Instant,
        min_model_version: u64,
    ) -> Result<ReadEnd> {
        let _turn = group.turn();
        group.mark(&self.session, || self.reader.position());
        let timeout = until.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
        // If nothing is held, everything was acknowledged.
        let keep = !self.held.is_empty();
        let taken =
            self.reader.read(&ReadRequest { count: wanted, timeout, min_model_version, keep });
        group.stand(self.reader.position());
        let taken = taken?;
        self.last.stale += taken.stale;
        self.held.extend(taken.samples);
        if self.held.is_empty() {
            group.unmark(&self.session);
        }
        Ok(taken.end)
    }

    /// Goes to a position, for everybody of this name.
    pub(super) fn seek(&mut self, group: &ReaderGroup, position: &str) -> Result<()> {
        let _turn = group.turn();
        self.reader.seek(position)?;
        self.epoch = group.sought(self.reader.position());
        self.forget();
        Ok(())
    }
}

/// Longer than anybody waits, and not too long for a clock.
const UNLIMITED_WAIT: Duration = Duration::from_hours(24 * 365);

/// Acknowledges, and takes nothing.
fn nothing() -> ReadRequest {
    ReadRequest { count: 0, timeout: Duration::ZERO, min_model_version: 0, keep: false }
}
