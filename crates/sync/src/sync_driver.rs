//! The synchronizer itself, in the process that hosts it: the board with a clock, and with
//! somebody who waits for what it says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rollway_core::Time;
use rollway_core::sync::ExplorerPresence::{Lost, Present};
use rollway_core::sync::{
    self as board, HeartbeatReply, JoinRefusal, Joined, LeaveReason, MemberId, MemberRole,
    SyncCore, WaitId, WaitOutcome,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::messages::{
    MemberStatus, PublishedWeights, SyncStatus, TrainerProgress, WaitStatus, WeightRequest,
    WeightWaitResult,
};

/// The board with a clock. Everybody in this process shares it.
#[derive(Debug)]
pub(super) struct SyncDriver {
    origin: Instant,
    state: Mutex<SyncDriverState>,
    /// Says that something is different from what it was.
    changed: watch::Sender<u64>,
    /// The host goes, and everybody looks for another.
    over: CancellationToken,
}

#[derive(Debug)]
struct SyncDriverState {
    board: SyncCore,
    newest: Option<PublishedWeights>,
    answers: BTreeMap<WaitId, SyncWaiter>,
    /// The version that an explorer was told of last and may be loading.
    loading: BTreeMap<String, u64>,
}

/// Somebody who waits.
#[derive(Debug)]
struct SyncWaiter {
    explorer: String,
    answer: oneshot::Sender<WeightWaitResult>,
}

impl SyncDriver {
    /// Returns a hub, and keeps its time until it is over.
    pub(super) fn start(lease: Duration, first: u64, over: CancellationToken) -> Arc<Self> {
        let board = SyncCore::new(lease, first);
        let state = Mutex::new(SyncDriverState {
            board,
            newest: None,
            answers: BTreeMap::new(),
            loading: BTreeMap::new(),
        });
        let (changed, _) = watch::channel(0);
        let hub = Arc::new(Self { origin: Instant::now(), state, changed, over });
        tokio::spawn(Arc::clone(&hub).keep_time());
        hub
    }

    /// Lets the board see deadlines as they come.
    async fn keep_time(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let next = self.state().board.next_deadline();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.over.cancelled() => return,
                _ = changed.changed() => {}
                () = due => self.change(|board, now| board.tick(now)),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, SyncDriverState> {
        self.state.lock()
    }

    fn now(&self) -> Time {
        Time::ZERO.after(self.origin.elapsed())
    }

    fn instant(&self, at: Time) -> Instant {
        // A deadline that is not reached before the end of time is looked at in a day.
        let far = self.origin + self.origin.elapsed() + Duration::from_secs(86_400);
        self.origin.checked_add(at.since(Time::ZERO)).map_or(far, |at| at.min(far))
    }

    /// Changes the board, and answers those whose wait is over.
    fn change<T>(&self, act: impl FnOnce(&mut SyncCore, Time) -> T) -> T {
        let mut state = self.state();
        let done = act(&mut state.board, self.now());
        state.answer();
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        done
    }

    pub(super) fn enter(&self, role: MemberRole, name: &str) -> Result<Joined, JoinRefusal> {
        self.change(|board, now| board.join(now, role, name))
    }

    /// Remembers who had left when another process hosted the synchronizer.
    pub(super) fn remember(&self, explorers: &[MemberStatus], trainer: Option<&MemberStatus>) {
        let explorers = explorers.iter().map(|member| (MemberRole::Explorer, member));
        for (role, member) in explorers.chain(trainer.map(|member| (MemberRole::Trainer, member))) {
            let how = member.error.clone().map_or(LeaveReason::Done, LeaveReason::Failed);
            if let Ok(entered) = self.enter(role, &member.name) {
                self.leave(entered.seat.0, &how);
            }
        }
    }

    pub(super) fn beat(&self, seat: u64) -> HeartbeatReply {
        self.change(|board, now| board.heartbeat(now, MemberId(seat)))
    }

    pub(super) fn leave(&self, seat: u64, how: &LeaveReason) {
        self.change(|board, now| board.leave(now, MemberId(seat), how));
    }

    /// Hears from the trainer what it is at; false if it is not the trainer.
    pub(super) fn trainer(&self, seat: u64, state: TrainerProgress) -> bool {
        let state = match state {
            TrainerProgress::Training => board::TrainerPresence::Training,
            TrainerProgress::Idle { seen } => board::TrainerPresence::Idle { seen: WaitId(seen) },
            TrainerProgress::Done => board::TrainerPresence::Done,
            TrainerProgress::Failed(why) => board::TrainerPresence::Failed(why),
        };
        self.change(|board, now| board.set_trainer_state(now, MemberId(seat), state))
    }

    /// Hears how many experiences an explorer has submitted, and says how many the others have.
    pub(super) fn submitted(&self, explorer: &str, experiences: u64) -> u64 {
        self.state().board.submitted(explorer, experiences)
    }

    /// Tells everybody of weights; false if they are known.
    pub(super) fn published(&self, published: PublishedWeights) -> Result<bool, JoinRefusal> {
        let mut state = self.state();
        let SyncDriverState { board, newest, .. } = &mut *state;
        if newest.as_ref().is_some_and(|newest| newest.version == published.version) {
            // The same again, perhaps elsewhere.
            *newest = Some(published);
            return Ok(false);
        }
        board.published(published.version)?;
        *newest = Some(published);
        state.answer();
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        Ok(true)
    }

    pub(super) fn newest(&self) -> Option<PublishedWeights> {
        self.state().newest.clone()
    }

    /// Waits as an explorer; none if the host goes.
    pub(super) async fn wait(
        self: &Arc<Self>,
        want: WeightRequest,
        waited: Duration,
    ) -> Option<WeightWaitResult> {
        let WeightRequest { explorer, have, at_least, demand, timeout } = want;
        let want = board::WeightWait { explorer, have, at_least, demand, timeout, waited };
        let (answer, answered) = oneshot::channel();
        let ask = {
            let mut state = self.state();
            let explorer = want.explorer.clone();
            if state.loading.get(&explorer).is_some_and(|version| *version <= want.have) {
                state.loading.remove(&explorer);
            }
            let ask = state.board.wait(self.now(), want);
            state.answers.insert(ask, SyncWaiter { explorer, answer });
            state.answer();
            ask
        };
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        // Whoever stops waiting leaves nothing behind.
        let _given_up = AbandonedWait(self, ask);
        tokio::select! {
            () = self.over.cancelled() => None,
            waited = answered => waited.ok(),
        }
    }

    /// Waits until those who wait are others than `since`, or time is up; none if the host goes.
    pub(super) async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> Option<WaitStatus> {
        let look = || {
            let asked = WaitStatus::from(self.state().board.wait_summary());
            (asked, since.is_none_or(|since| since != asked))
        };
        self.until(look, timeout).await
    }

    /// Waits until all explorers that ever came have left, or time is up; none if the host goes.
    pub(super) async fn explorers_left(&self, timeout: Duration) -> Option<bool> {
        let look = || {
            let has_left = self.state().board.explorers_left();
            (has_left, has_left)
        };
        self.until(look, timeout).await
    }

    async fn until<T>(&self, look: impl Fn() -> (T, bool), timeout: Duration) -> Option<T> {
        let mut changed = self.changed.subscribe();
        let time_is_up = tokio::time::sleep(timeout);
        tokio::pin!(time_is_up);
        loop {
            changed.mark_unchanged();
            let (seen, is_enough) = look();
            if is_enough {
                return Some(seen);
            }
            tokio::select! {
                () = self.over.cancelled() => return None,
                _ = changed.changed() => {}
                () = &mut time_is_up => return Some(look().0),
            }
        }
    }

    pub(super) fn view(&self) -> SyncStatus {
        let loading = self.loading();
        let state = self.state();
        SyncStatus { loading, ..SyncStatus::new(state.board.view(), state.newest.clone()) }
    }

    /// Returns the versions that explorers may be loading.
    pub(super) fn loading(&self) -> Vec<u64> {
        let SyncDriverState { board, loading, .. } = &mut *self.state();
        let is_there = |name: &String| {
            board.explorer(name).is_some_and(|state| matches!(state, Present | Lost))
        };
        loading.retain(|name, _| is_there(name));
        loading.values().copied().collect()
    }

    /// Says whether the trainer is done and all explorers have left.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        let trainer = state.board.view().trainer;
        let is_done = trainer.is_some_and(|it| it.state == board::TrainerPresence::Done);
        is_done && state.board.explorers_left()
    }

    /// Says whether the host goes, so that nobody relies on what is said here.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

impl SyncDriverState {
    /// Tells those whose wait is over what came of it.
    fn answer(&mut self) {
        for (ask, outcome) in self.board.outcomes() {
            let Some(SyncWaiter { explorer, answer }) = self.answers.remove(&ask) else { continue };
            let newest = self.newest.clone();
            let waited = match outcome {
                WaitOutcome::New(_) => {
                    newest.map_or(WeightWaitResult::NothingNew, WeightWaitResult::New)
                }
                WaitOutcome::NothingNew => WeightWaitResult::NothingNew,
                WaitOutcome::TrainerDone(newer) => {
                    WeightWaitResult::TrainerDone(newest.filter(|_| newer.is_some()))
                }
                WaitOutcome::TrainerFailed(why) => WeightWaitResult::TrainerFailed(why),
                WaitOutcome::TimedOut(why) => WeightWaitResult::TimedOut(why),
            };
            if let WeightWaitResult::New(told) | WeightWaitResult::TrainerDone(Some(told)) = &waited
                && self.board.explorer(&explorer).is_some()
            {
                self.loading.insert(explorer, told.version);
            }
            // Who has given up does not listen.
            let _ = answer.send(waited);
        }
    }
}

/// Withdraws a wait when it is dropped.
struct AbandonedWait<'a>(&'a SyncDriver, WaitId);

impl Drop for AbandonedWait<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.answers.remove(&self.1);
        state.board.abandon(self.1);
        drop(state);
        self.0.changed.send_modify(|count| *count = count.wrapping_add(1));
    }
}
