//! Handshake, messages and disconnects over Unix sockets and TCP.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bytes::Bytes;
use rollway_base::{Address, Secret};
use rollway_core::metrics::Metrics;
use rollway_core::{AttemptCancelReason, AttemptId, Incarnation, RunId, RunOutput, RunnerId};
use rollway_protocol::worker_client::{self, ConnectedWorker, StreamEnd, WorkerConnectError};
use rollway_protocol::worker_server::{
    BindError, ConnectionSendError, DisconnectReason, Peer, WorkerConnection, WorkerServer,
    WorkerServerLimits, WorkerServerOptions,
};
use rollway_protocol::{
    ConnectRefusal, EngineMessage, Hello, LogLine, LogSource, RefusalCode, VersionRange,
    WorkerLogLevel, WorkerMessage, WorkerReport, proto,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::common::{self, *};

async fn joined(server: &mut WorkerServer) -> (WorkerConnection, ConnectedWorker) {
    let joined = join(server, Some(HEARTBEAT)).await;
    assert!(matches!(message(server).await, WorkerMessage::Heartbeat(states) if states.is_empty()));
    joined
}

/// Sends every message once in both directions.
pub(crate) async fn every_message_arrives(mut server: WorkerServer) {
    let (connection, ConnectedWorker { welcome, sender, mut receiver }) = joined(&mut server).await;
    assert_eq!(welcome.protocol, 2);
    assert_eq!(welcome.runners, [(RunnerId(0), Incarnation(1))]);
    assert_eq!(welcome.heartbeat_interval, HEARTBEAT);

    let (runner, incarnation, attempt) = (RunnerId(0), Incarnation(1), AttemptId(7));
    let start = common::attempt(7, &definition(1));
    let commands = [
        EngineMessage::StartAttempt(start),
        EngineMessage::CancelAttempt {
            runner,
            incarnation,
            attempt,
            reason: AttemptCancelReason::Timeout,
        },
        EngineMessage::StopRunner { runner, incarnation },
        EngineMessage::StartRunner { runner, incarnation: Incarnation(2) },
        EngineMessage::Shutdown { deadline: Duration::from_secs(3) },
    ];
    for command in &commands {
        connection.send(command.clone()).unwrap();
    }
    for command in &commands {
        assert_eq!(&soon("command", receiver.recv()).await.unwrap(), command);
    }

    let metrics: Metrics = [("reward", 0.5), ("nan", f64::INFINITY)].into_iter().collect();
    let outcome = Ok(RunOutput { payload: Some("experiences".into()), metrics });
    let reports = [
        WorkerReport::Ready { after: None },
        WorkerReport::AttemptBegan { attempt },
        WorkerReport::RunFinished { attempt, run: RunId(2), outcome },
        WorkerReport::AttemptEnded { attempt },
    ];
    for report in &reports {
        sender.report(runner, incarnation, report.clone()).await.unwrap();
    }
    let source = LogSource { run: Some(3), attempt: Some(1 << 40), ..LogSource::default() };
    let level = WorkerLogLevel::Warning;
    let line = LogLine { runner: Some(runner), level, line: "hm".into(), source };
    sender.send(WorkerMessage::Log(line.clone())).await.unwrap();
    sender.goodbye("done").await.unwrap();
    for report in reports {
        let expected = WorkerMessage::Runner { runner, incarnation, report };
        assert_eq!(message(&mut server).await, expected);
    }
    assert_eq!(message(&mut server).await, WorkerMessage::Log(line));
    assert_eq!(message(&mut server).await, WorkerMessage::Goodbye { reason: "done".into() });
    assert_eq!(left(&mut server).await, DisconnectReason::Goodbye);
    assert_eq!(soon("end", receiver.recv()).await, Err(StreamEnd::Closed));
    assert_eq!(server.refused(), []);
}

#[tokio::test]
async fn every_message_arrives_over_tcp() {
    every_message_arrives(loopback(WorkerServerLimits::default()).await).await;
}

#[tokio::test]
async fn every_message_arrives_over_a_unix_socket() {
    let (_dir, address) = unix();
    every_message_arrives(listen(address, WorkerServerLimits::default()).await).await;
}

#[tokio::test]
async fn a_worker_with_another_secret_disconnects_and_is_counted() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let other = Secret::new("open wheat").unwrap();
    let connecting = connect_with(&server, other, hello(1), Default::default());
    let error = connecting.await.unwrap().unwrap_err();
    assert!(matches!(error, WorkerConnectError::NotTheEngine { .. }), "{error}");
    assert!(error.is_final());
    // The engine receives no event of it: the next event is the next worker.
    joined(&mut server).await;
    until_open(&server, 1).await;
    assert_eq!(server.refused(), [(RefusalCode::BadSecret, 1)]);
}

#[tokio::test]
async fn a_process_that_took_the_address_of_the_engine_receives_no_secret() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let worker = tokio::spawn(async move {
        worker_client::connect(&address, &secret(), hello(1), Default::default()).await
    });
    let is_in = |bytes: &[u8], text: &str| {
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let receive = async {
        let mut received = Vec::new();
        loop {
            // Another connection may only test whether the address can be reached.
            let (mut stream, _) = listener.accept().await.unwrap();
            // The settings of an HTTP/2 server.
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
            while stream.read_buf(&mut received).await.unwrap_or(0) > 0 {
                if is_in(&received, "token") {
                    return received;
                }
            }
        }
    };
    let received = soon("hello", receive).await;
    assert!(!is_in(&received, secret().reveal()), "the secret was sent without a proof");
    worker.abort();
}

#[tokio::test]
async fn a_wrong_proof_of_a_worker_is_refused() {
    use proto::worker_message::Kind;
    let server = loopback(WorkerServerLimits::default()).await;
    let nonce = raw_hello().nonce;
    let of_the_engine = |challenge: &proto::Challenge| challenge.proof.clone();
    let of_other_nonces = |_: &proto::Challenge| proof("client", &raw_hello().nonce, &[0; 32]);
    let proofs: [&dyn Fn(&proto::Challenge) -> Bytes; 3] =
        [&of_the_engine, &of_other_nonces, &|_| Bytes::new()];
    for proof_of in proofs {
        let mut peer = RawPeer::connect(server.address()).await;
        let challenge = peer.send_hello(raw_hello()).await;
        assert_eq!(challenge.proof, proof("server", &nonce, &challenge.nonce));
        peer.send(Kind::Proof(proto::Proof { proof: proof_of(&challenge) })).await;
        assert_eq!(peer.refused().await.0.code(), proto::RefusalCode::BadSecret);
    }
}

#[tokio::test]
async fn versions_are_negotiated() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let newer = Hello { versions: VersionRange { min: 2, max: 7 }, ..hello(1) };
    let connecting = connect(&server, newer, Default::default());
    let handshake = handshake(&mut server).await;
    assert_eq!(handshake.hello().versions.max, 7);
    let _connection = welcome(handshake);
    assert_eq!(soon("welcome", connecting).await.unwrap().unwrap().welcome.protocol, 2);

    let unsupported = Hello { versions: VersionRange { min: 8, max: 9 }, ..hello(1) };
    let error = connect(&server, unsupported, Default::default()).await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the engine refused this worker: version: \
         the engine speaks version 2, the worker 8 to 9"
    );
}

#[tokio::test]
async fn the_engine_may_refuse_or_ignore_a_worker() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    for ignore in [false, true] {
        let connecting = connect(&server, hello(1), Default::default());
        let handshake = handshake(&mut server).await;
        let refusal = if ignore {
            drop(handshake);
            ConnectRefusal::new(RefusalCode::NotWanted, "the engine does not need this worker")
        } else {
            let refusal = ConnectRefusal::new(RefusalCode::ShuttingDown, "too late");
            handshake.refuse(refusal.clone());
            refusal
        };
        assert_eq!(left(&mut server).await, DisconnectReason::Refused(refusal.clone()));
        let error = soon("refusal", connecting).await.unwrap().unwrap_err();
        assert!(matches!(error, WorkerConnectError::Refused(found) if found == refusal));
    }
}

#[tokio::test]
async fn messages_sent_before_the_connection_is_dropped_arrive() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (connection, mut connected) = joined(&mut server).await;
    let shutdown = EngineMessage::Shutdown { deadline: Duration::ZERO };
    connection.send(shutdown.clone()).unwrap();
    drop(connection);
    assert_eq!(left(&mut server).await, DisconnectReason::Dropped);
    assert_eq!(soon("command", connected.receiver.recv()).await.unwrap(), shutdown);
    let ended = soon("end", connected.receiver.recv()).await.unwrap_err();
    assert_eq!(ended, StreamEnd::Lost { message: "the engine closed the stream".into() });
}

#[tokio::test]
async fn a_dropped_engine_is_a_lost_connection() {
    for unix_socket in [false, true] {
        let (_dir, address) = if unix_socket {
            let (dir, address) = unix();
            (Some(dir), address)
        } else {
            (None, Address::loopback())
        };
        let mut server = listen(address, WorkerServerLimits::default()).await;
        let (_connection, mut connected) = joined(&mut server).await;
        drop(server);
        let ended = soon("end", connected.receiver.recv()).await.unwrap_err();
        assert!(matches!(ended, StreamEnd::Lost { .. }), "{ended}");
    }
}

#[tokio::test]
async fn a_dropped_worker_is_lost_for_the_engine() {
    let mut server = loopback(WorkerServerLimits::default()).await;
    let (_connection, connected) = joined(&mut server).await;
    drop(connected);
    let reason = left(&mut server).await;
    assert!(matches!(reason, DisconnectReason::Lost { .. }), "{reason:?}");
}

#[tokio::test]
async fn a_definition_is_sent_once_and_the_oldest_is_evicted() {
    use proto::engine_message::Kind;
    let mut server = loopback(WorkerServerLimits { definitions: 2, ..Default::default() }).await;
    let mut peer = RawPeer::connect(server.address()).await;
    peer.authenticate().await;
    let connection = welcome(handshake(&mut server).await);
    assert!(matches!(peer.recv().await, Some(Kind::Welcome(_))));
    let definitions = [definition(1), definition(2), definition(3)];
    let uses = [0, 0, 1, 0, 2, 1, 0];
    for (attempt, definition) in uses.into_iter().enumerate() {
        let start = common::attempt(attempt as u64, &definitions[definition]);
        connection.send(EngineMessage::StartAttempt(start)).unwrap();
    }
    let mut seen = Vec::new();
    while seen.iter().filter(|line: &&String| line.starts_with("start")).count() < uses.len() {
        seen.push(match peer.recv().await.unwrap() {
            Kind::DefineWorkflow(define) => format!("define {}", define.id),
            Kind::StartAttempt(start) => format!("start {}", start.definition),
            Kind::ForgetWorkflows(forget) => format!("forget {:?}", forget.ids),
            other => panic!("{other:?}"),
        });
    }
    let expected = "define 1, start 1, start 1, define 2, start 2, start 1, \
                    forget [1], define 3, start 3, start 2, forget [2], define 1, start 1";
    assert_eq!(seen.join(", "), expected);
}

#[tokio::test]
async fn an_oversized_message_is_rejected_and_the_connection_stays_open() {
    let limits = WorkerServerLimits { message_bytes: 100_000, ..Default::default() };
    let mut server = loopback(limits).await;
    let (connection, mut connected) = joined(&mut server).await;
    let mut start = attempt(1, &definition(1));
    start.task = vec![0; 100_000].into();
    let error = connection.send(EngineMessage::StartAttempt(start)).unwrap_err();
    assert!(matches!(error, ConnectionSendError::TooLarge { limit: 100_000, .. }));
    let outcome =
        Ok(RunOutput { payload: Some(vec![0; 100_000].into()), metrics: Metrics::default() });
    let finished = WorkerReport::RunFinished { attempt: AttemptId(1), run: RunId(0), outcome };
    let error = connected.sender.report(RunnerId(0), Incarnation(1), finished).await.unwrap_err();
    assert!(matches!(error, worker_client::WorkerSendError::TooLarge { limit: 100_000, .. }));

    connection.send(EngineMessage::StartAttempt(attempt(2, &definition(1)))).unwrap();
    assert!(matches!(
        soon("command", connected.receiver.recv()).await,
        Ok(EngineMessage::StartAttempt(start)) if start.attempt == AttemptId(2)
    ));
    connected
        .sender
        .report(RunnerId(0), Incarnation(1), WorkerReport::Ready { after: None })
        .await
        .unwrap();
    assert!(matches!(message(&mut server).await, WorkerMessage::Runner { .. }));
}

#[tokio::test]
async fn a_unix_socket_is_private_and_removed_on_drop() {
    let (dir, address) = unix();
    let Address::Unix(path) = &address else { unreachable!() };
    let mut server = listen(address.clone(), WorkerServerLimits::default()).await;
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);

    let again = WorkerServer::bind(WorkerServerOptions::new(address.clone(), secret())).await;
    assert!(matches!(again, Err(BindError::InUse { .. })));

    let (_connection, _connected) = joined(&mut server).await;
    drop(server);
    // The listener is closed in the background.
    soon("removal", async {
        while path.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    // A stale socket is replaced; a regular file is not.
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let mut server = listen(address.clone(), WorkerServerLimits::default()).await;
    let (connection, _connected) = joined(&mut server).await;
    assert_eq!(connection.peer(), Peer::Unix { pid: Some(std::process::id() as i32) });
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let blocked =
        WorkerServer::bind(WorkerServerOptions::new(Address::Unix(file.clone()), secret())).await;
    assert!(matches!(blocked, Err(BindError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
}

#[tokio::test]
async fn a_missing_socket_is_reported_without_the_secret() {
    let (_dir, address) = unix();
    let error = worker_client::connect(&address, &secret(), hello(1), Default::default())
        .await
        .unwrap_err();
    assert!(matches!(&error, WorkerConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("No such file"), "{error}");
    assert!(!format!("{error:?}").contains(secret().reveal()));
}
