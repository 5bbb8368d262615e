//! Receives messages of workers and passes them to the driver in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rollway_core::{RunnerId, Suspicion};
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

/// Maximum number of messages processed at once.
const BATCH: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    /// By token.
    pub(super) expected: HashMap<String, ExpectedWorker>,
    connected: HashMap<ConnId, ConnectedProcess>,
}

/// A process before its handshake.
#[derive(Debug)]
pub(super) struct ExpectedWorker {
    pub(super) process: Arc<WorkerProcess>,
    /// Sends the receiver of [`ConnectedProcess::left`].
    pub(super) connected: oneshot::Sender<oneshot::Receiver<DisconnectReason>>,
}

/// A process after its handshake.
#[derive(Debug)]
pub(super) struct ConnectedProcess {
    pub(super) process: Arc<WorkerProcess>,
    /// Fires after all reports of the worker were passed on.
    pub(super) left: oneshot::Sender<DisconnectReason>,
}

/// Reports of one batch of messages, by runner.
type PendingReports = HashMap<(ConnId, RunnerId), (Reporter, Vec<RunnerReport>)>;

/// Passes on the reports of workers until the pool is dropped.
pub(super) async fn listen(
    mut server: WorkerServer,
    shared: Arc<WorkerPoolShared>,
    alive: CancellationToken,
) {
    tokio::select! {
        () = alive.cancelled() => {}
        () = receive(&mut server, &shared) => {}
    }
    // Manual workers are asked to leave.
    if let Some(manual) = shared.manual() {
        tokio::select! {
            () = manual.shut_down() => {}
            () = receive(&mut server, &shared) => {}
        }
    }
}

async fn receive(server: &mut WorkerServer, shared: &Arc<WorkerPoolShared>) {
    let mut events = Vec::with_capacity(BATCH);
    // Reports of one runner are sent together.
    let mut pending = PendingReports::new();
    loop {
        server.recv_many(&mut events, BATCH).await;
        let received_at = server.received_at().unwrap_or_else(Instant::now);
        let mut left = Vec::new();
        for event in events.drain(..) {
            match event {
                WorkerServerEvent::Hello(handshake) => accept(shared, handshake),
                WorkerServerEvent::Message { conn, message } => {
                    let connections = shared.connections.lock();
                    let Some(connected) = connections.connected.get(&conn) else { continue };
                    translate(shared, conn, &connected.process, message, &mut pending);
                }
                WorkerServerEvent::Left { conn, reason } => left.push((conn, reason)),
            }
        }
        for (_, (reporter, reports)) in pending.drain() {
            reporter.send_since(received_at, reports).await;
        }
        for (conn, reason) in left {
            if let Some(connected) = shared.connections.lock().connected.remove(&conn) {
                let _ = connected.left.send(reason);
            }
        }
    }
}

/// Accepts an expected or a manual worker; refuses others.
fn accept(shared: &Arc<WorkerPoolShared>, handshake: PendingHandshake) {
    let mut connections = shared.connections.lock();
    let conn = handshake.conn();
    let token = &handshake.hello().token;
    if let Some(manual) = shared.manual().filter(|_| token.is_empty()) {
        let connected = manual.accept(shared, handshake);
        connections.connected.insert(conn, connected);
        return;
    }
    let Some(expected) = connections.expected.remove(token) else {
        let reason = match token.as_str() {
            "" => {
                "this job starts its own workers: set `cluster.backend: manual` to connect \
                 others"
            }
            _ => "no worker with this token is expected",
        };
        return handshake.refuse(ConnectRefusal::new(RefusalCode::NotWanted, reason));
    };
    let ExpectedWorker { process, connected } = expected;
    process.welcome(shared, handshake);
    let (left, disconnected) = oneshot::channel();
    connections.connected.insert(conn, ConnectedProcess { process, left });
    // Fails only if the process was ended meanwhile.
    let _ = connected.send(disconnected);
}

fn translate(
    shared: &WorkerPoolShared,
    conn: ConnId,
    process: &WorkerProcess,
    message: WorkerMessage,
    pending: &mut PendingReports,
) {
    let mut push = |runner: RunnerId, reporter: Reporter, report: RunnerReport| {
        pending.entry((conn, runner)).or_insert_with(|| (reporter, Vec::new())).1.push(report);
    };
    match message {
        WorkerMessage::Runner { runner, incarnation, report } => {
            if let Some(report) = report_of(report)
                && let Some(reporter) = process.on_report(runner, incarnation, &report)
            {
                push(runner, reporter, report);
            }
        }
        WorkerMessage::Heartbeat(states) => {
            for state in states {
                if let Some(reporter) =
                    process.on_report(state.runner, state.incarnation, &RunnerReport::Heartbeat)
                {
                    let name = (state.runner, state.incarnation);
                    shared.states.set_labels(name, state.attempt, state.labels);
                    push(state.runner, reporter, RunnerReport::Heartbeat);
                }
            }
        }
        WorkerMessage::Log(line) => log_relay::sent(&line),
        WorkerMessage::Goodbye { reason } => tracing::debug!(%reason, "worker disconnecting"),
    }
}

/// Converts a report for the core. `None`: the end was requested by the engine.
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
            let suspicion = if suspect { Suspicion::Sole } else { Suspicion::None };
            RunnerReport::Lost { message, suspicion }
        }
    })
}
