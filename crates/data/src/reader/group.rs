//! The readers of one name, through one server: who holds what, and who gets what was left behind.
//!
//! Every session has a reader of the buffer of its own, because what is acknowledged is
//! acknowledged reader by reader. They take turns, so that it is known in which order samples were
//! given out; from that follows what each of them may keep as its position.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rollway_protocol::reader::proto::Hello;
use tokio_util::sync::CancellationToken;

use super::session::ReaderSession;
use crate::buffer::{Buffer, BufferError, Result};

/// How long a session waits for the connection that it takes the place of. That one notices at the
/// next slice, if its buffer answers.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// The sessions of one name.
#[derive(Default)]
pub(super) struct ReaderGroup {
    state: Mutex<GroupState>,
    bell: Condvar,
}

#[derive(Default)]
struct GroupState {
    /// Whether anybody has said, since the server began, where this name stands.
    sought: bool,
    /// Counts the seeks: what was given out before one is void after it.
    epoch: u64,
    sessions: HashMap<String, GroupSlot>,
    /// For reads that are not acknowledged, in order: whose, and where the buffer stood before.
    marks: BTreeMap<u64, (String, String)>,
    next_mark: u64,
    /// Where the buffer stands.
    position: Option<String>,
    /// Whose turn it is, and the next number to draw.
    turn: u64,
    tickets: u64,
}

enum GroupSlot {
    /// Somebody is connected.
    Live(CancellationToken),
    /// The connection is lost. It may come back until then; later others get what it held.
    Lost(Box<ReaderSession>, Instant),
}

/// A turn at the buffer; nobody else of this name reads meanwhile.
pub(super) struct GroupTurn<'a> {
    group: &'a ReaderGroup,
}

impl Drop for GroupTurn<'_> {
    fn drop(&mut self) {
        self.group.lock().turn += 1;
        self.group.bell.notify_all();
    }
}

impl ReaderGroup {
    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock()
    }

    fn wait(&self, state: &mut MutexGuard<'_, GroupState>, until: Instant) {
        self.bell.wait_until(state, until);
    }

    /// Waits for a turn. Turns are as short as a slice.
    pub(super) fn turn(&self) -> GroupTurn<'_> {
        let mut state = self.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        while state.turn != ticket {
            self.bell.wait(&mut state);
        }
        GroupTurn { group: self }
    }

    /// Takes a trainer in: with what it held, if it was here before, or where it stood, if it comes
    /// from before this server began.
    pub(super) fn attach(
        &self,
        buffer: &dyn Buffer,
        hello: &Hello,
        resume: Option<&str>,
        gone: &CancellationToken,
    ) -> Result<ReaderSession> {
        let until = Instant::now() + TAKEOVER_TIMEOUT;
        let mut state = self.lock();
        loop {
            match state.sessions.remove(&hello.session) {
                Some(GroupSlot::Lost(core, _)) => {
                    state.sessions.insert(hello.session.clone(), GroupSlot::Live(gone.clone()));
                    return Ok(*core);
                }
                Some(GroupSlot::Live(other)) if Instant::now() < until => {
                    // Its connection is lost, and it has not noticed.
                    other.cancel();
                    state.sessions.insert(hello.session.clone(), GroupSlot::Live(other));
                    self.wait(&mut state, until);
                }
                Some(GroupSlot::Live(other)) => {
                    state.sessions.insert(hello.session.clone(), GroupSlot::Live(other));
                    return Err(BufferError::Unavailable {
                        storage: "the buffer".to_owned(),
                        message: "an earlier read of this session does not end".to_owned(),
                    });
                }
                None => break,
            }
        }
        state.sessions.insert(hello.session.clone(), GroupSlot::Live(gone.clone()));
        drop(state);
        let opened = self.open(buffer, hello, resume);
        if opened.is_err() {
            self.lock().sessions.remove(&hello.session);
        }
        opened
    }

    fn open(
        &self,
        buffer: &dyn Buffer,
        hello: &Hello,
        resume: Option<&str>,
    ) -> Result<ReaderSession> {
        let _turn = self.turn();
        let mut reader = buffer.reader(&hello.name)?;
        // Where one of them stands is enough, see `position`: nothing is lost, and who comes later
        // must not take back what was read since.
        if let Some(position) = resume
            && !self.lock().sought
        {
            reader.seek(position)?;
            self.sought(reader.position());
        }
        let mut state = self.lock();
        state.position.get_or_insert_with(|| reader.position());
        Ok(ReaderSession::new(hello.session.clone(), reader, state.epoch))
    }

    /// Lets a trainer go. What it held waits for it, or for others if it left for good.
    pub(super) fn detach(&self, mut core: ReaderSession, grace: Duration) {
        if core.holds_nothing() {
            let _turn = self.turn();
            core.settle();
        }
        let mut state = self.lock();
        let session = core.session.clone();
        if core.holds_nothing() || core.epoch != state.epoch {
            state.marks.retain(|_, (whose, _)| *whose != session);
            state.sessions.remove(&session);
            drop(state);
            drop(core);
        } else {
            let slot = GroupSlot::Lost(Box::new(core), Instant::now() + grace);
            state.sessions.insert(session, slot);
            drop(state);
        }
        self.bell.notify_all();
    }

    /// Returns what somebody left behind who did not come back in time.
    pub(super) fn adopt(&self, session: &str) -> Option<ReaderSession> {
        let mut state = self.lock();
        let now = Instant::now();
        let late = |(name, slot): (&String, &GroupSlot)| match slot {
            GroupSlot::Lost(_, until) if *until <= now => Some(name.clone()),
            _ => None,
        };
        let name = state.sessions.iter().find_map(late)?;
        let Some(GroupSlot::Lost(core, _)) = state.sessions.remove(&name) else { return None };
        for (whose, _) in state.marks.values_mut().filter(|(whose, _)| *whose == name) {
            session.clone_into(whose);
        }
        Some(*core)
    }

    /// Waits until something that was left behind may be adopted; returns false if there is
    /// nothing to wait for.
    pub(super) fn await_orphans(&self, until: Instant) -> bool {
        let mut state = self.lock();
        let soonest = state.sessions.values().filter_map(|slot| match slot {
            GroupSlot::Lost(_, until) => Some(*until),
            GroupSlot::Live(_) => None,
        });
        match soonest.min() {
            Some(soonest) => {
                self.wait(&mut state, soonest.min(until));
                true
            }
            None => false,
        }
    }

    /// Notes that a session is about to read; what it gets is not acknowledged.
    pub(super) fn mark(&self, session: &str, position: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.marks.values().all(|(whose, _)| whose != session) {
            let position = state.position.clone().unwrap_or_else(position);
            let number = state.next_mark;
            state.next_mark += 1;
            state.marks.insert(number, (session.to_owned(), position));
        }
    }

    /// Notes that a session has acknowledged everything.
    pub(super) fn unmark(&self, session: &str) {
        self.lock().marks.retain(|_, (whose, _)| whose != session);
    }

    /// Notes where the buffer stands after a read.
    pub(super) fn stand(&self, position: String) {
        self.lock().position = Some(position);
    }

    /// Returns from where on a session reads again, if it has to, without a loss for anybody:
    /// everything before is acknowledged or in its own hands.
    pub(super) fn position(&self, session: &str) -> String {
        let state = self.lock();
        let others = state.marks.values().find(|(whose, _)| whose != session);
        others
            .map(|(_, position)| position)
            .or(state.position.as_ref())
            .cloned()
            .unwrap_or_default()
    }

    /// Returns how often somebody has sought.
    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Notes a seek: what anybody held is void, and comes again if it lies behind the position.
    pub(super) fn sought(&self, position: String) -> u64 {
        let mut state = self.lock();
        state.sought = true;
        state.epoch += 1;
        state.marks.clear();
        state.position = Some(position);
        state.sessions.retain(|_, slot| matches!(slot, GroupSlot::Live(_)));
        state.epoch
    }
}
