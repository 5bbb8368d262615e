//! Manual workers: they connect with the secret, take waiting runners, and leave at any time.
//!
//! ```text
//! StartRunner ──► slot in a worker that has room ──────────────► Ready …
//!        └──────► Waits, with a reason ──► hello of a worker ──► slot ──┘
//! ```
//!
//! Their ends have no suspect: the engine cannot tell a crash from a kill.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rollway_core::{Incarnation, RunnerId};
use rollway_protocol::worker_server::{DisconnectReason, PendingHandshake};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::WorkerPoolShared;
use super::launcher::ProcessExit;
use super::reports::ConnectedProcess;
use super::worker_process::WorkerProcess;
use crate::run::RunnerReport;
use crate::runner_status::LaunchState;
use crate::workers::Reporter;

/// Time for workers to disconnect when the job ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Waiting runners and connected workers.
#[derive(Debug, Default)]
pub(super) struct ManualWorkers {
    state: Mutex<ManualWorkersState>,
    tracker: TaskTracker,
}

#[derive(Debug, Default)]
struct ManualWorkersState {
    waiting: BTreeMap<RunnerId, Reporter>,
    processes: Vec<Arc<WorkerProcess>>,
    next_process: u64,
}

impl ManualWorkers {
    /// Adds a runner to a worker, or lets it wait for one.
    pub(super) fn add(&self, shared: &WorkerPoolShared, reporter: Reporter) {
        let mut state = self.state.lock();
        let found = state.processes.iter().find(|process| process.add(shared, &reporter));
        if let Some(process) = found {
            shared.assign(&reporter, process);
            return;
        }
        let reason = format!("waits for a worker: rollway worker --connect {}", shared.address);
        shared
            .report(&reporter, RunnerReport::StartBlocked { reason: Some(reason.as_str().into()) });
        let launch_state = LaunchState { location: None, waits: Some(reason) };
        shared.states.locate(reporter.runner(), reporter.incarnation(), &launch_state);
        state.waiting.insert(reporter.runner(), reporter);
    }

    /// Ends an incarnation, waiting or hosted.
    pub(super) fn leave(
        &self,
        shared: &WorkerPoolShared,
        runner: RunnerId,
        incarnation: Incarnation,
    ) {
        // Locked first, so that no worker takes the runner meanwhile.
        let mut state = self.state.lock();
        if state.waiting.get(&runner).is_some_and(|reporter| reporter.incarnation() == incarnation)
        {
            state.waiting.remove(&runner);
            shared.states.remove_location(runner, incarnation);
        }
        if let Some(process) = shared.unassign(runner, incarnation) {
            process.remove_runner(runner, incarnation);
        }
    }

    /// Accepts a worker with as many waiting runners as it hosts; it keeps free slots for later
    /// ones.
    pub(super) fn accept(
        &self,
        shared: &Arc<WorkerPoolShared>,
        handshake: PendingHandshake,
    ) -> ConnectedProcess {
        let mut state = self.state.lock();
        let number = state.next_process;
        state.next_process += 1;
        let process = Arc::new(WorkerProcess::manual(number, handshake.hello().runners));
        let mut hosted = 0;
        while let Some(first) = state.waiting.first_entry() {
            if !process.add(shared, first.get()) {
                break;
            }
            let reporter = first.remove();
            shared.assign(&reporter, &process);
            // From now on its start timeout counts.
            shared.report(&reporter, RunnerReport::StartBlocked { reason: None });
            hosted += 1;
        }
        process.welcome(shared, handshake);
        tracing::info!(
            worker = %process.location(), runners = hosted, waiting = state.waiting.len(),
            "worker connected"
        );
        state.processes.push(Arc::clone(&process));
        let (left, disconnected) = oneshot::channel();
        let (running, shared) = (Arc::clone(&process), Arc::clone(shared));
        self.tracker.spawn(async move {
            let ended =
                async { described(&disconnected.await.unwrap_or(DisconnectReason::Dropped)) };
            Arc::clone(&running).supervise(&shared, ended).await;
            if let Some(manual) = shared.manual() {
                manual.state.lock().processes.retain(|process| !Arc::ptr_eq(process, &running));
            }
        });
        ConnectedProcess { process, left }
    }

    /// Asks all workers to leave; the future ends when they have left or timed out.
    pub(super) fn shut_down(&self) -> BoxFuture<'static, ()> {
        for process in &self.state.lock().processes {
            process.shut_down(SHUTDOWN_TIMEOUT);
        }
        let tracker = self.tracker.clone();
        // Later workers are not waited for.
        tracker.close();
        Box::pin(async move {
            let _ = timeout(SHUTDOWN_TIMEOUT, tracker.wait()).await;
        })
    }
}

fn described(reason: &DisconnectReason) -> ProcessExit {
    ProcessExit::unattributed(match reason {
        DisconnectReason::Goodbye => "its worker disconnected".to_owned(),
        DisconnectReason::Lost { message } => {
            format!("the connection to its worker was lost: {message}")
        }
        DisconnectReason::Refused(refusal) => format!("its worker was refused: {refusal}"),
        DisconnectReason::Dropped => "its worker was disconnected".to_owned(),
    })
}
