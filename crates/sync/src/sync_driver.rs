//! Drives the synchronizer core with a clock and answers its waits.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rollway_core::Time;
use rollway_core::sync::ExplorerPresence::{Lost, Present};
use rollway_core::sync::{
    self as core_sync, HeartbeatReply, JoinRefusal, Joined, LeaveReason, MemberId, MemberRole,
    SyncCore, WaitId, WaitOutcome,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::messages::{
    MemberStatus, PublishedWeights, ServerFleet, SyncStatus, TrainMetrics, TrainMetricsPage,
    TrainerProgress, WaitStatus, WeightRequest, WeightWaitResult,
};

/// Maximum number of kept reports of train metrics; older ones are dropped.
const MAX_REPORTS: usize = 256;

#[derive(Debug)]
pub(super) struct SyncDriver {
    origin: Instant,
    state: Mutex<SyncDriverState>,
    /// Counts changes.
    changed: watch::Sender<u64>,
    /// Cancelled when this process stops hosting.
    over: CancellationToken,
}

#[derive(Debug)]
struct SyncDriverState {
    core: SyncCore,
    newest: Option<PublishedWeights>,
    waiters: BTreeMap<WaitId, SyncWaiter>,
    /// Last version sent to each explorer, which may be loading it.
    loading: BTreeMap<String, u64>,
    /// Servers of each explorer.
    fleets: BTreeMap<String, ServerFleet>,
    /// Last reports of train metrics, and the number of all.
    reports: VecDeque<TrainMetrics>,
    reported: u64,
}

#[derive(Debug)]
struct SyncWaiter {
    explorer: String,
    answer: oneshot::Sender<WeightWaitResult>,
}

impl SyncDriver {
    /// Starts a driver and its timer.
    pub(super) fn start(
        heartbeat_timeout: Duration,
        first: u64,
        over: CancellationToken,
    ) -> Arc<Self> {
        let core = SyncCore::new(heartbeat_timeout, first);
        let state = Mutex::new(SyncDriverState {
            core,
            newest: None,
            waiters: BTreeMap::new(),
            loading: BTreeMap::new(),
            fleets: BTreeMap::new(),
            reports: VecDeque::new(),
            reported: 0,
        });
        let (changed, _) = watch::channel(0);
        let driver = Arc::new(Self { origin: Instant::now(), state, changed, over });
        tokio::spawn(Arc::clone(&driver).apply_deadlines());
        driver
    }

    /// Applies deadlines.
    async fn apply_deadlines(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let next = self.state().core.next_deadline();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.over.cancelled() => return,
                _ = changed.changed() => {}
                () = due => self.change(|core, now| core.tick(now)),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, SyncDriverState> {
        self.state.lock()
    }

    fn instant(&self, at: Time) -> Instant {
        // A deadline that cannot be represented is checked again in a day.
        let far = self.origin + self.origin.elapsed() + Duration::from_secs(86_400);
        self.origin.checked_add(at.since(Time::ZERO)).map_or(far, |at| at.min(far))
    }

    /// Changes the core and answers ended waits.
    fn change<T>(&self, act: impl FnOnce(&mut SyncCore, Time) -> T) -> T {
        self.change_state(|state, now| act(&mut state.core, now))
    }

    fn change_state<T>(&self, act: impl FnOnce(&mut SyncDriverState, Time) -> T) -> T {
        let mut state = self.state();
        let done = act(&mut state, Time::ZERO.after(self.origin.elapsed()));
        state.answer();
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        done
    }

    pub(super) fn join(&self, role: MemberRole, name: &str) -> Result<Joined, JoinRefusal> {
        self.change(|core, now| core.join(now, role, name))
    }

    /// Restores members that left under an earlier host.
    pub(super) fn remember(&self, explorers: &[MemberStatus], trainer: Option<&MemberStatus>) {
        let explorers = explorers.iter().map(|member| (MemberRole::Explorer, member));
        for (role, member) in explorers.chain(trainer.map(|member| (MemberRole::Trainer, member))) {
            let reason = member.error.clone().map_or(LeaveReason::Done, LeaveReason::Failed);
            if let Ok(joined) = self.join(role, &member.name) {
                self.leave(joined.member.0, &reason);
            }
        }
    }

    pub(super) fn heartbeat(&self, member: u64) -> HeartbeatReply {
        self.change(|core, now| core.heartbeat(now, MemberId(member)))
    }

    pub(super) fn leave(&self, member: u64, reason: &LeaveReason) {
        self.change(|core, now| core.leave(now, MemberId(member), reason));
    }

    /// Sets the trainer's progress. `false`: not the trainer.
    pub(super) fn trainer(&self, member: u64, state: TrainerProgress) -> bool {
        let state = match state {
            TrainerProgress::Training => core_sync::TrainerPresence::Training,
            TrainerProgress::Idle { seen } => {
                core_sync::TrainerPresence::Idle { seen: WaitId(seen) }
            }
            TrainerProgress::Done => core_sync::TrainerPresence::Done,
            TrainerProgress::Failed(reason) => core_sync::TrainerPresence::Failed(reason),
        };
        self.change(|core, now| core.set_trainer_state(now, MemberId(member), state))
    }

    /// Adds the metrics of a train step.
    pub(super) fn add_metrics(&self, report: TrainMetrics) {
        self.change_state(|state, _| {
            if state.reports.len() == MAX_REPORTS {
                state.reports.pop_front();
            }
            state.reports.push_back(report);
            state.reported += 1;
        });
    }

    /// Waits for reports after the first `since`, or for the timeout. `None`: the host ends.
    pub(super) async fn metrics(&self, since: u64, timeout: Duration) -> Option<TrainMetricsPage> {
        let new_reports = || {
            let state = self.state();
            let total = state.reported;
            // The reports of an earlier host have other numbers.
            let since = if since > total { 0 } else { since };
            let new = usize::try_from(total - since).unwrap_or(usize::MAX);
            let skipped = state.reports.len().saturating_sub(new);
            let reports: Vec<_> = state.reports.iter().skip(skipped).cloned().collect();
            let is_any = !reports.is_empty();
            (TrainMetricsPage { total, reports }, is_any)
        };
        self.wait_until(new_reports, timeout).await
    }

    /// Reports an explorer's submitted experiences; returns those of the others.
    pub(super) fn submitted(&self, explorer: &str, experiences: u64) -> u64 {
        self.state().core.submitted(explorer, experiences)
    }

    /// Reports the servers of an explorer that has joined.
    pub(super) fn set_fleet(&self, explorer: &str, fleet: ServerFleet) {
        let mut state = self.state();
        if state.core.explorer(explorer).is_some() {
            state.fleets.insert(explorer.to_owned(), fleet);
        }
    }

    /// Publishes weights. `false`: the version is known.
    pub(super) fn published(&self, published: PublishedWeights) -> Result<bool, JoinRefusal> {
        self.change_state(|SyncDriverState { core, newest, .. }, _| {
            // The same version may have another location.
            let is_new = newest.as_ref().is_none_or(|newest| newest.version != published.version);
            if is_new {
                core.published(published.version)?;
            }
            *newest = Some(published);
            Ok(is_new)
        })
    }

    pub(super) fn newest(&self) -> Option<PublishedWeights> {
        self.state().newest.clone()
    }

    /// Waits for weights. `None`: the host ends.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: WeightRequest,
        waited: Duration,
    ) -> Option<WeightWaitResult> {
        let WeightRequest { explorer, current, at_least, publish_now, timeout } = request;
        let request =
            core_sync::WeightWait { explorer, current, at_least, publish_now, timeout, waited };
        let (answer, answered) = oneshot::channel();
        let wait = self.change_state(|state, now| {
            let explorer = request.explorer.clone();
            if state.loading.get(&explorer).is_some_and(|version| *version <= request.current) {
                state.loading.remove(&explorer);
            }
            let wait = state.core.wait(now, request);
            state.waiters.insert(wait, SyncWaiter { explorer, answer });
            wait
        });
        let _withdraw = AbandonedWait(self, wait);
        tokio::select! {
            () = self.over.cancelled() => None,
            waited = answered => waited.ok(),
        }
    }

    /// Waits until the open waits differ from `since`, or for the timeout. `None`: the host ends.
    pub(super) async fn wait_status(
        &self,
        since: Option<WaitStatus>,
        timeout: Duration,
    ) -> Option<WaitStatus> {
        let check = || {
            let waits = WaitStatus::from(self.state().core.wait_summary());
            (waits, since.is_none_or(|since| since != waits))
        };
        self.wait_until(check, timeout).await
    }

    /// Waits until all explorers have left, or for the timeout. `None`: the host ends.
    pub(super) async fn explorers_left(&self, timeout: Duration) -> Option<bool> {
        let check = || {
            let has_left = self.state().core.explorers_left();
            (has_left, has_left)
        };
        self.wait_until(check, timeout).await
    }

    async fn wait_until<T>(&self, check: impl Fn() -> (T, bool), timeout: Duration) -> Option<T> {
        let mut changed = self.changed.subscribe();
        let time_is_up = tokio::time::sleep(timeout);
        tokio::pin!(time_is_up);
        loop {
            changed.mark_unchanged();
            let (seen, is_enough) = check();
            if is_enough {
                return Some(seen);
            }
            tokio::select! {
                () = self.over.cancelled() => return None,
                _ = changed.changed() => {}
                () = &mut time_is_up => return Some(check().0),
            }
        }
    }

    pub(super) fn view(&self) -> SyncStatus {
        let loading = self.loading();
        let state = self.state();
        let mut status = SyncStatus::new(state.core.view(), state.newest.clone());
        for explorer in &mut status.explorers {
            explorer.servers = state.fleets.get(&explorer.name).cloned();
        }
        SyncStatus { loading, ..status }
    }

    /// Returns the versions that explorers may be loading.
    pub(super) fn loading(&self) -> Vec<u64> {
        let SyncDriverState { core, loading, .. } = &mut *self.state();
        let is_alive = |name: &String| {
            core.explorer(name).is_some_and(|state| matches!(state, Present | Lost))
        };
        loading.retain(|name, _| is_alive(name));
        loading.values().copied().collect()
    }

    /// Tells whether the trainer is done and all explorers have left.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state();
        let trainer = state.core.view().trainer;
        let is_done = trainer.is_some_and(|it| it.state == core_sync::TrainerPresence::Done);
        is_done && state.core.explorers_left()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

impl SyncDriverState {
    /// Answers ended waits.
    fn answer(&mut self) {
        for (wait, outcome) in self.core.outcomes() {
            let Some(SyncWaiter { explorer, answer }) = self.waiters.remove(&wait) else {
                continue;
            };
            let newest = self.newest.clone();
            let waited = match outcome {
                WaitOutcome::New(_) => {
                    newest.map_or(WeightWaitResult::NothingNew, WeightWaitResult::New)
                }
                WaitOutcome::NothingNew => WeightWaitResult::NothingNew,
                WaitOutcome::TrainerDone(newer) => {
                    WeightWaitResult::TrainerDone(newest.filter(|_| newer.is_some()))
                }
                WaitOutcome::TrainerFailed(reason) => WeightWaitResult::TrainerFailed(reason),
                WaitOutcome::TimedOut(reason) => WeightWaitResult::TimedOut(reason),
            };
            if let WeightWaitResult::New(sent) | WeightWaitResult::TrainerDone(Some(sent)) = &waited
                && self.core.explorer(&explorer).is_some()
            {
                self.loading.insert(explorer, sent.version);
            }
            // Fails only if the wait was dropped.
            let _ = answer.send(waited);
        }
    }
}

/// Withdraws a wait when dropped.
struct AbandonedWait<'a>(&'a SyncDriver, WaitId);

impl Drop for AbandonedWait<'_> {
    fn drop(&mut self) {
        self.0.change_state(|state, _| {
            state.waiters.remove(&self.1);
            state.core.abandon(self.1);
        });
    }
}
