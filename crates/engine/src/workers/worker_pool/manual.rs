//! Workers that somebody else starts: they come with the secret, take the seats that are open, and
//! leave when they like.
//!
//! ```text
//! StartRunner ──► a seat in a worker that has room ──────────────────► Ready …
//!        └──────► Waits, visibly ──► a worker says hello ──► a seat ──┘
//! ```
//!
//! Nobody is suspected of the end of such a worker: from here it cannot be told whether a task
//! ended the process, or somebody pulled the plug.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

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

/// How long workers have to say goodbye when the job ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Who waits for a worker, and which workers are there.
#[derive(Debug, Default)]
pub(super) struct ManualWorkers {
    state: Mutex<ManualWorkersState>,
    /// The workers that are there.
    tracker: TaskTracker,
}

#[derive(Debug, Default)]
struct ManualWorkersState {
    open: BTreeMap<RunnerId, Reporter>,
    hosts: Vec<Arc<WorkerProcess>>,
    next_host: u64,
}

impl ManualWorkers {
    /// Finds a seat for a runner, or has it wait for one.
    pub(super) fn seat(&self, shared: &WorkerPoolShared, reporter: Reporter) {
        let mut state = self.state.lock();
        let found = state.hosts.iter().find(|host| host.seat(shared, &reporter));
        if let Some(host) = found {
            shared.take_seat(&reporter, host);
            return;
        }
        let why = format!("waits for a worker: rollway worker --connect {}", shared.address);
        shared.aside(&reporter, RunnerReport::Waits { why: Some(why.as_str().into()) });
        let known = LaunchState { place: None, waits: Some(why) };
        shared.states.locate(reporter.runner(), reporter.incarnation(), &known);
        state.open.insert(reporter.runner(), reporter);
    }

    /// Ends a life of a runner, wherever it is.
    pub(super) fn leave(&self, shared: &WorkerPoolShared, runner: RunnerId, life: Incarnation) {
        // Locked first, so that nobody gives it a seat meanwhile.
        let mut state = self.state.lock();
        if state.open.get(&runner).is_some_and(|reporter| reporter.incarnation() == life) {
            state.open.remove(&runner);
            shared.states.forget(runner, life);
        }
        if let Some(host) = shared.leave_seat(runner, life) {
            host.leave(runner, life);
        }
    }

    /// Takes a worker in, with as many of the runners that wait as it has seats for. One for which
    /// there is none stays for those that come later.
    pub(super) fn greet(
        &self,
        shared: &Arc<WorkerPoolShared>,
        greeting: PendingHandshake,
    ) -> ConnectedProcess {
        let mut state = self.state.lock();
        let number = state.next_host;
        state.next_host += 1;
        let host = Arc::new(WorkerProcess::by_hand(number, greeting.hello().runners));
        let mut seated = 0;
        while let Some(first) = state.open.first_entry() {
            if !host.seat(shared, first.get()) {
                break;
            }
            let reporter = first.remove();
            shared.take_seat(&reporter, &host);
            // From now on its time counts.
            shared.aside(&reporter, RunnerReport::Waits { why: None });
            seated += 1;
        }
        host.welcome(shared, greeting);
        tracing::info!(
            worker = %host.place(), runners = seated, waiting = state.open.len(),
            "a worker has come"
        );
        state.hosts.push(Arc::clone(&host));
        let (left, gone) = oneshot::channel();
        let (lived, shared) = (Arc::clone(&host), Arc::clone(shared));
        self.tracker.spawn(async move {
            let ended = async { gone.await.map_or_else(|_| lost(), |why| described(&why)) };
            Arc::clone(&lived).live(&shared, ended).await;
            if let Some(by_hand) = shared.by_hand() {
                by_hand.state.lock().hosts.retain(|host| !Arc::ptr_eq(host, &lived));
            }
        });
        ConnectedProcess { host, left }
    }

    /// Tells all workers that they are not needed any more. What is returned ends when they are
    /// gone, or have had the time.
    pub(super) fn dismiss(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        for host in &self.state.lock().hosts {
            host.dismiss(SHUTDOWN_TIMEOUT);
        }
        let tracker = self.tracker.clone();
        // Others may come; they are not waited for.
        tracker.close();
        Box::pin(async move {
            let _ = timeout(SHUTDOWN_TIMEOUT, tracker.wait()).await;
        })
    }
}

fn lost() -> ProcessExit {
    ProcessExit::unattributed("its worker is gone")
}

fn described(why: &DisconnectReason) -> ProcessExit {
    ProcessExit::unattributed(match why {
        DisconnectReason::Goodbye => "its worker left".to_owned(),
        DisconnectReason::Lost { message } => {
            format!("the connection to its worker was lost: {message}")
        }
        DisconnectReason::Refused(refusal) => format!("its worker was refused: {refusal}"),
        DisconnectReason::Dropped => "its worker was sent away".to_owned(),
    })
}
