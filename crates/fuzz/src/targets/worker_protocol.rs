//! Worker protocol: messages of workers and of the engine, alone and in connections.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use rollway_base::Address;
use rollway_core::{AttemptId, FailureKind, Incarnation, RunFailure, RunId, RunOutput, RunnerId};
use rollway_protocol::proto::{self, engine_message, worker_message::Kind};
use rollway_protocol::worker_client::{self, WorkerClientOptions};
use rollway_protocol::worker_server::{
    WorkerConnection, WorkerServer, WorkerServerEvent, WorkerServerOptions,
};
use rollway_protocol::{Hello, RunnerHeartbeat, StopCause, WorkerMessage, WorkerReport};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::raw_peer::{NONCE, RawPeer, client_proof, secret, send_raw, soon, with_preface};
use crate::FuzzTarget;
use crate::input::{choice, messages, with_bytes, with_messages};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "worker_protocol",
    max_bytes: 4096,
    memory: 24 << 20,
    per_byte: 1024,
    parse,
    seeds,
};

const PATH: &str = "/rollway.worker.v1.Worker/Connect";

/// Choices of sessions, which are slow; all other inputs are decoded only.
const CONNECTED: u8 = 252;
const UNAUTHENTICATED: u8 = 253;
const RAW: u8 = 254;
const TO_WORKER: u8 = 255;

thread_local! {
    // Never dropped: a runtime must not be dropped with the values of a thread.
    static ENGINE: RefCell<&'static mut Engine> =
        RefCell::new(Box::leak(Box::new(Engine::start())));
}

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    let connected = |work: fn(&mut Engine, &[u8])| ENGINE.with_borrow_mut(|it| work(it, rest));
    match choice {
        CONNECTED => connected(Engine::take_messages),
        UNAUTHENTICATED => connected(Engine::take_unauthenticated),
        RAW => connected(Engine::take_raw),
        TO_WORKER => connected(Engine::send_to_worker),
        _ => decode(rest),
    }
}

/// Decodes a message as both ends do. A valid message of a worker survives a round trip.
fn decode(bytes: &[u8]) {
    let _ = proto::EngineMessage::decode(bytes);
    let Ok(proto::WorkerMessage { kind: Some(kind) }) = proto::WorkerMessage::decode(bytes) else {
        return;
    };
    if let Kind::Hello(hello) = &kind {
        let _ = Hello::try_from(hello.clone());
    }
    let Ok(message) = WorkerMessage::try_from(kind) else { return };
    let shown = format!("{message:?}");
    let again = proto::WorkerMessage::from(message).encode_to_vec();
    let again = proto::WorkerMessage::decode(&*again).expect("an encoded message is decoded");
    let again = WorkerMessage::try_from(again.kind.expect("a message has a kind"));
    assert_eq!(format!("{:?}", again.expect("a valid message stays valid")), shown);
}

/// The engine's end, on one thread, so that an input does the same each time.
struct Engine {
    runtime: Runtime,
    server: WorkerServer,
    address: Address,
    _folder: TempDir,
}

impl Engine {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let address = Address::Unix(folder.path().join("engine.sock"));
        let options = WorkerServerOptions::new(address.clone(), secret());
        let server = runtime.block_on(WorkerServer::bind(options)).expect("the socket is free");
        Self { runtime, server, address, _folder: folder }
    }

    /// Messages of a worker that is authenticated and welcome.
    fn take_messages(&mut self, input: &[u8]) {
        let address = self.address.clone();
        let peer = async {
            let hello = proto_hello();
            let mut peer = RawPeer::open(&address, PATH, encoded(Kind::Hello(hello))).await?;
            let challenge = proto::EngineMessage::decode(peer.next().await?).ok()?.kind?;
            let engine_message::Kind::Challenge(challenge) = challenge else { return None };
            let proof = client_proof(PATH, &challenge.nonce);
            peer.outgoing.send(encoded(Kind::Proof(proto::Proof { proof }))).await.ok()?;
            peer.next().await?;
            peer.finish(messages(input)).await;
            Some(())
        };
        let done = serve(&self.runtime, &mut self.server, peer);
        assert!(done.is_some(), "a correct worker was refused");
    }

    /// Messages of a peer without the secret.
    fn take_unauthenticated(&mut self, input: &[u8]) {
        let address = self.address.clone();
        let mut messages = messages(input);
        let first = Bytes::copy_from_slice(messages.next().unwrap_or_default());
        let peer = async {
            if let Some(peer) = RawPeer::open(&address, PATH, first).await {
                peer.finish(messages).await;
            }
        };
        serve(&self.runtime, &mut self.server, peer);
    }

    /// Bytes that are no HTTP/2, or begin like it.
    fn take_raw(&mut self, input: &[u8]) {
        let (is_http2, rest) = choice(input);
        let bytes = if is_http2 > 0 { with_preface(rest) } else { rest.to_vec() };
        let address = self.address.clone();
        serve(&self.runtime, &mut self.server, async { send_raw(&address, &bytes).await });
    }

    /// Messages of the engine to the worker of this repository.
    fn send_to_worker(&mut self, input: &[u8]) {
        let (server, address) = (&mut self.server, &self.address);
        self.runtime.block_on(async {
            let options = WorkerClientOptions { heartbeats: false, ..Default::default() };
            let secret = secret();
            let connecting = worker_client::connect(address, &secret, hello(), options);
            let (connection, worker) =
                Box::pin(soon("handshake", async { tokio::join!(welcome(server), connecting) }))
                    .await;
            let mut worker = worker.expect("a worker with the secret connects");
            for message in messages(input) {
                let _ = connection.send_raw(Bytes::copy_from_slice(message));
            }
            drop(connection);
            let reading = async { while worker.receiver.recv().await.is_ok() {} };
            soon("end of the engine's messages", reading).await;
            drop(worker);
            until_closed(server).await;
        });
    }
}

/// Runs a peer while the engine welcomes all workers, until all connections are closed and every
/// worker has left.
fn serve<T>(runtime: &Runtime, server: &mut WorkerServer, peer: impl Future<Output = T>) -> T {
    runtime.block_on(async {
        let (mut joined, mut left) = (0_u32, 0_u32);
        let mut connections = Vec::new();
        let result = {
            let engine = async {
                loop {
                    match server.recv().await {
                        WorkerServerEvent::Hello(handshake) => {
                            joined += 1;
                            let runners = [(RunnerId(7), Incarnation(3))];
                            connections.push(handshake.welcome(&runners, HEARTBEAT));
                        }
                        WorkerServerEvent::Message { .. } => {}
                        WorkerServerEvent::Left { .. } => left += 1,
                    }
                }
            };
            tokio::select! {
                result = soon("peer", peer) => result,
                () = engine => unreachable!("the engine serves for ever"),
            }
        };
        soon("end of a worker", async {
            while left < joined {
                left += u32::from(matches!(server.recv().await, WorkerServerEvent::Left { .. }));
            }
        })
        .await;
        drop(connections);
        until_closed(server).await;
        result
    })
}

async fn welcome(server: &mut WorkerServer) -> WorkerConnection {
    loop {
        if let WorkerServerEvent::Hello(handshake) = server.recv().await {
            return handshake.welcome(&[(RunnerId(7), Incarnation(3))], HEARTBEAT);
        }
    }
}

async fn until_closed(server: &mut WorkerServer) {
    soon("closed sockets", async {
        while server.open() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Events that nothing waits for any more.
    server.try_recv_many(&mut Vec::new(), usize::MAX);
}

const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(60);

fn hello() -> Hello {
    Hello::new("token", 1)
}

fn proto_hello() -> proto::Hello {
    proto::Hello {
        protocol_min: 2,
        protocol_max: 2,
        token: "token".to_owned(),
        runners: 1,
        nonce: Bytes::from_static(&NONCE),
        ..Default::default()
    }
}

fn encoded(kind: Kind) -> Bytes {
    proto::WorkerMessage { kind: Some(kind) }.encode_to_vec().into()
}

fn of_runner(report: WorkerReport) -> Vec<u8> {
    let message =
        WorkerMessage::Runner { runner: RunnerId(7), incarnation: Incarnation(3), report };
    proto::WorkerMessage::from(message).encode_to_vec()
}

fn worker_messages() -> Vec<Vec<u8>> {
    let attempt = AttemptId(5);
    let failure = RunFailure { kind: FailureKind::ALL[0], message: "no".into() };
    let output = RunOutput {
        payload: Some(Bytes::from_static(b"payload")),
        metrics: [(Arc::<str>::from("reward"), 0.5)].into_iter().collect(),
    };
    let heartbeat = RunnerHeartbeat {
        runner: RunnerId(7),
        incarnation: Incarnation(3),
        attempt: Some(attempt),
        labels: [("stage".to_owned(), "tools".to_owned())].into(),
    };
    let run = RunId(0);
    let others = [
        WorkerMessage::Heartbeat(vec![heartbeat]),
        WorkerMessage::Goodbye { reason: "done".into() },
    ];
    let log = proto::Log { level: 2, line: "line".to_owned(), ..Default::default() };
    let mut all: Vec<Vec<u8>> = [
        WorkerReport::Ready { after: Some(attempt) },
        WorkerReport::AttemptBegan { attempt },
        WorkerReport::RunFinished { attempt, run, outcome: Ok(output) },
        WorkerReport::RunFinished { attempt, run, outcome: Err(failure) },
        WorkerReport::AttemptEnded { attempt },
        WorkerReport::Stopped(StopCause::Lost { message: "gone".into(), suspect: true }),
    ]
    .map(of_runner)
    .into();
    all.push(encoded(Kind::Log(log)).to_vec());
    all.extend(others.map(|message| proto::WorkerMessage::from(message).encode_to_vec()));
    all
}

fn engine_messages() -> Vec<Vec<u8>> {
    use engine_message::Kind;
    use proto::start_attempt::Batch;

    let define = proto::DefineWorkflow { id: 1, name: "workflow".to_owned(), ..Default::default() };
    let start = proto::StartAttempt {
        runner: 7,
        incarnation: 3,
        attempt: 5,
        definition: 1,
        run_count: 2,
        task: Bytes::from_static(b"{}"),
        batch: Some(Batch::BatchText("3/gsm8k".to_owned())),
        ..Default::default()
    };
    [
        Kind::DefineWorkflow(define),
        Kind::StartAttempt(start),
        Kind::CancelAttempt(proto::CancelAttempt {
            runner: 7,
            incarnation: 3,
            attempt: 5,
            reason: 1,
        }),
        Kind::StartRunner(proto::StartRunner { runner: 8, incarnation: 1 }),
        Kind::StopRunner(proto::StopRunner { runner: 7, incarnation: 3 }),
        Kind::ForgetWorkflows(proto::ForgetWorkflows { ids: vec![1] }),
        Kind::Shutdown(proto::Shutdown { deadline_ms: 1000 }),
        Kind::Refused(proto::Refused::default()),
    ]
    .into_iter()
    .map(|kind| proto::EngineMessage { kind: Some(kind) }.encode_to_vec())
    .collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let (workers, engines) = (worker_messages(), engine_messages());
    let first = encoded(Kind::Hello(proto_hello())).to_vec();
    let proof = encoded(Kind::Proof(proto::Proof { proof: Bytes::from_static(&[1; 32]) })).to_vec();
    let mut seeds: Vec<Vec<u8>> =
        workers.iter().chain(&engines).map(|message| with_bytes(0, message)).collect();
    seeds.extend([
        with_messages(CONNECTED, &workers),
        with_messages(UNAUTHENTICATED, &[first, proof, workers[0].clone()]),
        with_bytes(RAW, b"\0GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        with_bytes(RAW, b"\x01\0\0\x04\x08\0\0\0\0\0\0\0\0\x01"),
        with_messages(TO_WORKER, &engines),
    ]);
    seeds
}
