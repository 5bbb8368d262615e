//! What workers say, passed on in the order in which they said it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rollway_core::RunnerId;
use rollway_protocol::worker_server::{
    ConnId, DisconnectReason, PendingHandshake, WorkerServer, WorkerServerEvent,
};
use rollway_protocol::{ConnectRefusal, RefusalCode, StopCause, WorkerMessage, WorkerReport};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::WorkerPoolShared;
use super::log_relay;
use super::worker_process::WorkerProcess;
use crate::run::RunnerReport;
use crate::workers::Reporter;

/// How many messages of workers are taken in at once.
const BATCH: usize = 1024;

/// Who is expected, and who has come.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    /// By token.
    pub(super) expected: HashMap<String, ExpectedWorker>,
    connected: HashMap<ConnId, ConnectedProcess>,
}

/// A process that has been started and has not said hello.
#[derive(Debug)]
pub(super) struct ExpectedWorker {
    pub(super) host: Arc<WorkerProcess>,
    /// Gets what fires when everything that the worker said has been passed on.
    pub(super) greeted: oneshot::Sender<oneshot::Receiver<DisconnectReason>>,
}

/// A process that has said hello.
#[derive(Debug)]
pub(super) struct ConnectedProcess {
    pub(super) host: Arc<WorkerProcess>,
    /// Fires when everything that the worker said has been passed on.
    pub(super) left: oneshot::Sender<DisconnectReason>,
}

/// What one batch of messages says, by runner.
type PendingReports = HashMap<(ConnId, RunnerId), (Reporter, Vec<RunnerReport>)>;

/// Passes on what workers say, each in the order in which it said it.
pub(super) async fn listen(
    mut server: WorkerServer,
    shared: Arc<WorkerPoolShared>,
    alive: CancellationToken,
) {
    tokio::select! {
        () = alive.cancelled() => {}
        () = attend(&mut server, &shared) => {}
    }
    // Whoever came by itself is told that it can go.
    if let Some(by_hand) = shared.by_hand() {
        tokio::select! {
            () = by_hand.dismiss() => {}
            () = attend(&mut server, &shared) => {}
        }
    }
}

async fn attend(server: &mut WorkerServer, shared: &Arc<WorkerPoolShared>) {
    let mut events = Vec::with_capacity(BATCH);
    // What one runner says in a batch is passed on at once.
    let mut words = PendingReports::new();
    loop {
        server.recv_many(&mut events, BATCH).await;
        let came = server.came().unwrap_or_else(Instant::now);
        let mut left = Vec::new();
        for event in events.drain(..) {
            match event {
                WorkerServerEvent::Hello(greeting) => greet(shared, greeting),
                WorkerServerEvent::Message { conn, message } => {
                    let routes = shared.routes.lock();
                    let Some(route) = routes.connected.get(&conn) else { continue };
                    translate(shared, conn, &route.host, message, &mut words);
                }
                WorkerServerEvent::Left { conn, reason } => left.push((conn, reason)),
            }
        }
        for (_, (reporter, said)) in words.drain() {
            reporter.send_since(came, said).await;
        }
        for (conn, reason) in left {
            if let Some(route) = shared.routes.lock().connected.remove(&conn) {
                let _ = route.left.send(reason);
            }
        }
    }
}

/// Takes a worker in if it was started here, or if any may come; anybody else is refused.
fn greet(shared: &Arc<WorkerPoolShared>, greeting: PendingHandshake) {
    let mut routes = shared.routes.lock();
    let conn = greeting.conn();
    let token = &greeting.hello().token;
    if let Some(by_hand) = shared.by_hand().filter(|_| token.is_empty()) {
        let route = by_hand.greet(shared, greeting);
        routes.connected.insert(conn, route);
        return;
    }
    let Some(expected) = routes.expected.remove(token) else {
        let why = match token.as_str() {
            "" => "this job starts its workers itself: none may join by hand",
            _ => "nobody waits for a worker with this token",
        };
        return greeting.refuse(ConnectRefusal::new(RefusalCode::NotWanted, why));
    };
    let ExpectedWorker { host, greeted } = expected;
    host.welcome(shared, greeting);
    let (left, gone) = oneshot::channel();
    routes.connected.insert(conn, ConnectedProcess { host, left });
    // If the process was ended meanwhile, nobody waits for it.
    let _ = greeted.send(gone);
}

fn translate(
    shared: &WorkerPoolShared,
    conn: ConnId,
    host: &WorkerProcess,
    message: WorkerMessage,
    words: &mut PendingReports,
) {
    let mut say = |runner: RunnerId, reporter: Reporter, said: RunnerReport| {
        words.entry((conn, runner)).or_insert_with(|| (reporter, Vec::new())).1.push(said);
    };
    match message {
        WorkerMessage::Runner { runner, life, report } => {
            if let Some(said) = report_of(report)
                && let Some(reporter) = host.on_report(runner, life, &said)
            {
                say(runner, reporter, said);
            }
        }
        WorkerMessage::Heartbeat(states) => {
            for state in states {
                if let Some(reporter) =
                    host.on_report(state.runner, state.life, &RunnerReport::Heartbeat)
                {
                    let name = (state.runner, state.life);
                    shared.states.tell(name, state.attempt, state.state);
                    say(state.runner, reporter, RunnerReport::Heartbeat);
                }
            }
        }
        WorkerMessage::Log(line) => log_relay::sent(&line),
        WorkerMessage::Goodbye { reason } => tracing::debug!(%reason, "worker says goodbye"),
    }
}

/// Returns a report as the core takes it; none for the end that the engine requested.
fn report_of(report: WorkerReport) -> Option<RunnerReport> {
    Some(match report {
        WorkerReport::Ready { after } => RunnerReport::Ready { after },
        WorkerReport::AttemptBegan { attempt } => RunnerReport::AttemptBegan { attempt },
        WorkerReport::RunFinished { attempt, run, outcome } => {
            RunnerReport::RunFinished { attempt, run, outcome }
        }
        WorkerReport::AttemptEnded { attempt } => RunnerReport::AttemptEnded { attempt },
        WorkerReport::Stopped(StopCause::Requested) => return None,
        WorkerReport::Stopped(StopCause::StartFailed { message }) => {
            RunnerReport::StartFailed { message }
        }
        WorkerReport::Stopped(StopCause::Lost { message, suspect }) => {
            RunnerReport::Lost { message, suspect }
        }
    })
}
