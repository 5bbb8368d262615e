//! Readers of one name at one server: held samples and their redistribution.
//!
//! Every session has its own buffer reader, because acknowledgement is per reader. Sessions read in
//! turns, so that the order of samples is known; the position of each session follows from it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rollway_protocol::reader::proto::Hello;
use tokio_util::sync::CancellationToken;

use super::session::{self, ReaderSession};
use crate::buffer::{Buffer, BufferError, Result};

/// Maximum wait of a session for its earlier connection, which notices at the next slice.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct ReaderGroup {
    state: Mutex<GroupState>,
    changed: Condvar,
}

#[derive(Default)]
struct GroupState {
    /// A session has set the position since the server started.
    sought: bool,
    /// Number of seeks; samples given out before a seek are void.
    epoch: u64,
    sessions: HashMap<String, GroupSlot>,
    /// Unacknowledged reads in order: session and buffer position before the read.
    marks: BTreeMap<u64, (String, String)>,
    next_mark: u64,
    /// Current position of the buffer.
    position: Option<String>,
    /// Current turn and next ticket.
    turn: u64,
    tickets: u64,
}

enum GroupSlot {
    Live(CancellationToken),
    /// The connection is lost. After the instant its samples go to other sessions.
    Lost(Box<ReaderSession>, Instant),
}

/// A turn to read; other sessions of the name wait.
pub(super) struct GroupTurn<'a> {
    group: &'a ReaderGroup,
}

impl Drop for GroupTurn<'_> {
    fn drop(&mut self) {
        self.group.state.lock().turn += 1;
        self.group.changed.notify_all();
    }
}

impl ReaderGroup {
    /// Waits for a turn, which lasts at most one slice.
    pub(super) fn wait_turn(&self) -> GroupTurn<'_> {
        let mut state = self.state.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        while state.turn != ticket {
            self.changed.wait(&mut state);
        }
        GroupTurn { group: self }
    }

    /// Attaches a trainer: with the samples of its earlier connection, or at its position from
    /// before this server started.
    pub(super) fn attach(
        &self,
        buffer: &dyn Buffer,
        hello: &Hello,
        resume: Option<&str>,
        disconnected: &CancellationToken,
    ) -> Result<ReaderSession> {
        let until = Instant::now() + TAKEOVER_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            match state.sessions.remove(&hello.session) {
                Some(GroupSlot::Lost(core, _)) => {
                    state
                        .sessions
                        .insert(hello.session.clone(), GroupSlot::Live(disconnected.clone()));
                    return Ok(*core);
                }
                Some(GroupSlot::Live(other)) => {
                    // The other connection is lost and has not noticed.
                    other.cancel();
                    state.sessions.insert(hello.session.clone(), GroupSlot::Live(other));
                    if Instant::now() >= until {
                        let message = "an earlier read of this session does not end";
                        return Err(BufferError::unavailable("the buffer", message));
                    }
                    self.changed.wait_until(&mut state, until);
                }
                None => break,
            }
        }
        state.sessions.insert(hello.session.clone(), GroupSlot::Live(disconnected.clone()));
        drop(state);
        let opened = self.open(buffer, hello, resume);
        if opened.is_err() {
            self.state.lock().sessions.remove(&hello.session);
        }
        opened
    }

    fn open(
        &self,
        buffer: &dyn Buffer,
        hello: &Hello,
        resume: Option<&str>,
    ) -> Result<ReaderSession> {
        let _turn = self.wait_turn();
        let mut reader = buffer.reader(&hello.name)?;
        // One position is enough, see `position`; a later session must not take back samples read
        // since.
        if let Some(position) = resume
            && !self.state.lock().sought
        {
            reader.seek(position)?;
            self.record_seek(reader.position());
        }
        let mut state = self.state.lock();
        state.position.get_or_insert_with(|| reader.position());
        Ok(ReaderSession::new(hello.session.clone(), reader, state.epoch))
    }

    /// Detaches a trainer. Its samples wait for it, or for others if it left for good.
    pub(super) fn detach(&self, mut core: ReaderSession, grace: Duration) {
        if core.held.is_empty() {
            let _turn = self.wait_turn();
            // On failure the samples come again: no loss.
            let _ = core.reader.read(&session::acknowledge_only());
        }
        let mut state = self.state.lock();
        let session = core.session.clone();
        if core.held.is_empty() || core.epoch != state.epoch {
            state.marks.retain(|_, (owner, _)| *owner != session);
            state.sessions.remove(&session);
            drop(state);
            // Returns its samples to the buffer before the others are woken.
            drop(core);
        } else {
            let slot = GroupSlot::Lost(Box::new(core), Instant::now() + grace);
            state.sessions.insert(session, slot);
        }
        self.changed.notify_all();
    }

    /// Returns the samples of a session that did not return in time.
    pub(super) fn adopt(&self, session: &str) -> Option<ReaderSession> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_expired = |(name, slot): (&String, &GroupSlot)| match slot {
            GroupSlot::Lost(_, until) if *until <= now => Some(name.clone()),
            _ => None,
        };
        let name = state.sessions.iter().find_map(is_expired)?;
        let Some(GroupSlot::Lost(core, _)) = state.sessions.remove(&name) else { return None };
        for (owner, _) in state.marks.values_mut().filter(|(owner, _)| *owner == name) {
            session.clone_into(owner);
        }
        Some(*core)
    }

    /// Waits until samples of a lost session may be adopted. Returns false if there are none.
    pub(super) fn await_orphans(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        let soonest = state.sessions.values().filter_map(|slot| match slot {
            GroupSlot::Lost(_, until) => Some(*until),
            GroupSlot::Live(_) => None,
        });
        match soonest.min() {
            Some(soonest) => {
                self.changed.wait_until(&mut state, soonest.min(until));
                true
            }
            None => false,
        }
    }

    /// Records that a session is about to read.
    pub(super) fn mark(&self, session: &str, position: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        if state.marks.values().all(|(owner, _)| owner != session) {
            let position = state.position.clone().unwrap_or_else(position);
            let number = state.next_mark;
            state.next_mark += 1;
            state.marks.insert(number, (session.to_owned(), position));
        }
    }

    /// Records that a session has acknowledged everything.
    pub(super) fn unmark(&self, session: &str) {
        self.state.lock().marks.retain(|_, (owner, _)| owner != session);
    }

    /// Records the buffer position after a read.
    pub(super) fn set_position(&self, position: String) {
        self.state.lock().position = Some(position);
    }

    /// Returns the position from which a session can restart without loss for others: everything
    /// before is acknowledged or held by itself.
    pub(super) fn position(&self, session: &str) -> String {
        let state = self.state.lock();
        let others = state.marks.values().find(|(owner, _)| owner != session);
        others
            .map(|(_, position)| position)
            .or(state.position.as_ref())
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Records a seek, which voids all held samples.
    pub(super) fn record_seek(&self, position: String) -> u64 {
        let mut state = self.state.lock();
        state.sought = true;
        state.epoch += 1;
        state.marks.clear();
        state.position = Some(position);
        state.sessions.retain(|_, slot| matches!(slot, GroupSlot::Live(_)));
        state.epoch
    }
}
