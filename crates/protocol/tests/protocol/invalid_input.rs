//! Peers that violate the protocol: each is refused with a reason, the other worker stays
//! connected.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use rollway_core::{Incarnation, RunnerId};
use rollway_protocol::proto::{self, RefusalCode as Code, engine_message, worker_message::Kind};
use rollway_protocol::worker_server::{
    ConnectionSendError, DisconnectReason, WorkerConnection, WorkerServer, WorkerServerLimits,
};
use rollway_protocol::{EngineMessage, RefusalCode, WorkerMessage, WorkerReport, worker_client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::*;

/// A server with a correct worker, which has to stay connected.
struct Harness {
    server: WorkerServer,
    _connection: WorkerConnection,
    worker: worker_client::ConnectedWorker,
}

impl Harness {
    async fn new(limits: WorkerServerLimits) -> Self {
        let mut server = loopback(limits).await;
        let (_connection, worker) = join(&mut server, None).await;
        Self { server, _connection, worker }
    }

    async fn peer(&self) -> RawPeer {
        RawPeer::connect(self.server.address()).await
    }

    /// Connects a peer that hosts runner 7 in incarnation 3.
    async fn welcomed(&mut self) -> (RawPeer, WorkerConnection) {
        let mut peer = self.peer().await;
        peer.authenticate().await;
        let handshake = handshake(&mut self.server).await;
        let connection = handshake.welcome(&[(RunnerId(7), Incarnation(3))], HEARTBEAT);
        assert!(matches!(peer.recv().await, Some(engine_message::Kind::Welcome(_))));
        (peer, connection)
    }

    async fn check_worker(&mut self) {
        let report = WorkerReport::Ready { after: None };
        let expected = WorkerMessage::Runner {
            runner: RunnerId(0),
            incarnation: Incarnation(1),
            report: report.clone(),
        };
        self.worker.sender.report(RunnerId(0), Incarnation(1), report).await.unwrap();
        assert_eq!(message(&mut self.server).await, expected);
    }
}

fn ready(runner: u32, incarnation: u32) -> Kind {
    Kind::Ready(proto::Ready { runner, incarnation, after_attempt: None })
}

fn failed(kind: i32) -> Kind {
    let failed = proto::Failed { kind, message: String::new() };
    let outcome = Some(proto::run_finished::Outcome::Failed(failed));
    Kind::RunFinished(proto::RunFinished { runner: 7, incarnation: 3, attempt: 0, run: 0, outcome })
}

fn bytes(kind: Kind) -> Bytes {
    proto::WorkerMessage { kind: Some(kind) }.encode_to_vec().into()
}

#[tokio::test]
async fn an_invalid_first_message_is_refused() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let hello_with = |change: fn(&mut proto::Hello)| {
        let mut hello = raw_hello();
        change(&mut hello);
        bytes(Kind::Hello(hello))
    };
    let cases = [
        (bytes(ready(0, 1)), Code::HelloExpected),
        (Bytes::new(), Code::HelloExpected),
        (Bytes::from_static(&[0xff; 9]), Code::InvalidMessage),
        (hello_with(|hello| hello.nonce.clear()), Code::InvalidMessage),
        (hello_with(|hello| hello.nonce = vec![7; 33].into()), Code::InvalidMessage),
        (hello_with(|hello| hello.runners = 0), Code::InvalidMessage),
        (hello_with(|hello| hello.protocol_min = 0), Code::InvalidMessage),
        (hello_with(|hello| hello.protocol_min = 3), Code::InvalidMessage),
    ];
    for (first, expected) in cases {
        let mut peer = harness.peer().await;
        peer.send_bytes(first).await;
        let (refused, status) = peer.refused().await;
        assert_eq!(refused.code(), expected, "{}", refused.message);
        assert!(!refused.message.is_empty());
        assert!(status.message().ends_with(&refused.message), "{status}");
        harness.check_worker().await;
    }
    let counted: u64 = harness.server.refused().iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 8);
}

#[tokio::test]
async fn a_peer_without_the_secret_cannot_send_more_than_a_handshake() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    // Decoded, these two bytes per runner would take many times as much memory.
    let runners = vec![proto::RunnerHeartbeat::default(); 1 << 20];
    let heartbeat = bytes(Kind::Heartbeat(proto::Heartbeat { runners }));
    let mut hello = raw_hello();
    hello.host = "h".repeat(1 << 20);
    for first in [heartbeat, bytes(Kind::Hello(hello))] {
        let mut peer = harness.peer().await;
        peer.send_bytes(first).await;
        let (refused, _) = peer.refused().await;
        assert_eq!(refused.code(), Code::MessageTooLarge, "{}", refused.message);
        assert_eq!(refused.message, "a message has more than 16384 bytes");
    }
    // An authenticated worker may send large messages.
    let (peer, _connection) = harness.welcomed().await;
    let log = proto::Log { line: "l".repeat(1 << 20), level: 2, ..Default::default() };
    peer.send(Kind::Log(log)).await;
    assert!(matches!(message(&mut harness.server).await, WorkerMessage::Log(_)));
    harness.check_worker().await;
}

#[tokio::test]
async fn an_invalid_message_disconnects_with_a_reason() {
    let mut harness =
        Harness::new(WorkerServerLimits { message_bytes: 10_000, ..Default::default() }).await;
    let no_outcome = Kind::RunFinished(proto::RunFinished { outcome: None, ..Default::default() });
    let state = proto::RunnerHeartbeat { runner: 1, incarnation: 1, ..Default::default() };
    let heartbeat = Kind::Heartbeat(proto::Heartbeat { runners: vec![state] });
    // Field 8 (log), inside of it field 3 (line) with a byte that is no text.
    let not_utf8 = Bytes::from_static(&[0x42, 0x05, 0x10, 0x02, 0x1a, 0x01, 0xff]);
    let cases = [
        (bytes(Kind::Hello(raw_hello())), Code::UnexpectedMessage, "hello"),
        (bytes(Kind::Proof(proto::Proof::default())), Code::UnexpectedMessage, "proof"),
        (bytes(ready(6, 3)), Code::UnknownRunner, "w6"),
        (bytes(ready(7, 4)), Code::UnknownRunner, "l4"),
        (bytes(heartbeat), Code::UnknownRunner, "w1"),
        (bytes(failed(0)), Code::InvalidMessage, "run_finished.failed.kind"),
        (bytes(failed(99)), Code::InvalidMessage, "99"),
        (bytes(no_outcome), Code::InvalidMessage, "run_finished.outcome"),
        (bytes(Kind::Log(proto::Log::default())), Code::InvalidMessage, "log.level"),
        (not_utf8, Code::InvalidMessage, "decoded"),
        (Bytes::from(vec![0; 10_001]), Code::MessageTooLarge, "10000"),
    ];
    for (invalid, expected, word) in cases {
        let (mut peer, _connection) = harness.welcomed().await;
        peer.send_bytes(invalid).await;
        let (refused, _) = peer.refused().await;
        assert_eq!(refused.code(), expected, "{}", refused.message);
        assert!(refused.message.contains(word), "{} lacks {word}", refused.message);
        let DisconnectReason::Refused(refusal) = left(&mut harness.server).await else { panic!() };
        assert_eq!(proto::RefusalCode::from(refusal.code), expected);
        harness.check_worker().await;
    }
}

#[tokio::test]
async fn earlier_incarnations_and_unknown_messages_are_accepted() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let (peer, _connection) = harness.welcomed().await;
    // A message of a kind that does not exist, and one with a field that does not.
    peer.send_bytes(&[0xf2, 0x7c, 0x00][..]).await;
    let mut newer = proto::Ready { runner: 7, incarnation: 2, after_attempt: None }.encode_to_vec();
    newer.extend([0xf8, 0x7c, 0x05]);
    let mut wrapped = vec![0x12, u8::try_from(newer.len()).unwrap()];
    wrapped.extend(newer);
    peer.send_bytes(wrapped).await;
    let report = WorkerReport::Ready { after: None };
    let expected =
        WorkerMessage::Runner { runner: RunnerId(7), incarnation: Incarnation(2), report };
    assert_eq!(message(&mut harness.server).await, expected);
    assert_eq!(harness.server.unknown_messages(), 1);
}

#[tokio::test]
async fn a_removed_field_in_a_hello_is_ignored() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let mut peer = harness.peer().await;
    let mut body = raw_hello().encode_to_vec();
    // `takes_ahead`, a bool under the number 10.
    body.extend([0x50, 0x01]);
    let mut message = vec![0x0a, u8::try_from(body.len()).unwrap()];
    message.extend(body);
    peer.send_bytes(message).await;
    assert!(matches!(peer.recv().await, Some(engine_message::Kind::Challenge(_))));
    harness.check_worker().await;
}

#[tokio::test]
async fn messages_before_welcome_or_after_goodbye_are_refused() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let mut early = harness.peer().await;
    early.authenticate().await;
    let handshake = handshake(&mut harness.server).await;
    early.send(ready(7, 3)).await;
    assert_eq!(early.refused().await.0.code(), Code::UnexpectedMessage);
    let reason = left(&mut harness.server).await;
    assert!(
        matches!(&reason, DisconnectReason::Refused(r) if r.code == RefusalCode::UnexpectedMessage),
        "{reason:?}"
    );
    // The engine has not received the end yet and welcomes it.
    drop(handshake.welcome(&[(RunnerId(7), Incarnation(3))], HEARTBEAT));
    harness.check_worker().await;

    let (mut late, _connection) = harness.welcomed().await;
    late.send(Kind::Goodbye(proto::Goodbye::default())).await;
    late.send(ready(7, 3)).await;
    assert_eq!(late.refused().await.0.code(), Code::AfterGoodbye);
    assert!(matches!(message(&mut harness.server).await, WorkerMessage::Goodbye { .. }));
    let reason = left(&mut harness.server).await;
    assert!(matches!(reason, DisconnectReason::Refused(r) if r.code == RefusalCode::AfterGoodbye));
    harness.check_worker().await;
}

#[tokio::test]
async fn a_connection_has_one_stream() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let (peer, _connection) = harness.welcomed().await;
    let second = soon("second stream", peer.open_another()).await.unwrap_err();
    assert_eq!(second.code(), tonic::Code::FailedPrecondition);
    peer.send(ready(7, 3)).await;
    assert!(matches!(message(&mut harness.server).await, WorkerMessage::Runner { .. }));
}

#[tokio::test]
async fn peers_without_http2_are_disconnected() {
    let mut harness = Harness::new(WorkerServerLimits::default()).await;
    let address = harness.server.address().to_string();
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let cases = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        [preface, &[0xff; 64]].concat(),
        [preface, &[0x00, 0x00, 0x04, 0x09, 0x04, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]].concat(),
        preface.to_vec(),
        Vec::new(),
    ];
    for invalid in cases {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        // It may be disconnected before everything is written.
        let _ = socket.write_all(&invalid).await;
        let _ = socket.shutdown().await;
        let mut response = Vec::new();
        let _ = soon("end", socket.read_to_end(&mut response)).await;
        harness.check_worker().await;
    }
    until_open(&harness.server, 1).await;
    assert_eq!(harness.server.refused(), [(RefusalCode::NoStream, 6)]);
}

#[tokio::test]
async fn silent_peers_are_refused_after_the_timeout() {
    let limits =
        WorkerServerLimits { hello_timeout: Duration::from_millis(50), ..Default::default() };
    let mut harness = Harness::new(limits).await;
    let mut silent = harness.peer().await;
    assert_eq!(silent.refused().await.0.code(), Code::HelloTimeout);
    let mut idle = TcpStream::connect(harness.server.address().to_string()).await.unwrap();
    let mut response = Vec::new();
    let _ = soon("end", idle.read_to_end(&mut response)).await;
    harness.check_worker().await;
    let refused = harness.server.refused();
    assert_eq!(refused, [(RefusalCode::HelloTimeout, 1), (RefusalCode::NoStream, 1)]);
}

#[tokio::test]
async fn surplus_connections_are_refused() {
    let mut harness =
        Harness::new(WorkerServerLimits { connections: 2, ..Default::default() }).await;
    let (peer, _connection) = harness.welcomed().await;
    let mut surplus = harness.peer().await;
    assert_eq!(surplus.refused().await.0.code(), Code::TooManyConnections);
    drop(surplus);
    drop(peer);
    left(&mut harness.server).await;
    until_open(&harness.server, 1).await;
    let _second = harness.welcomed().await;
    harness.check_worker().await;
}

#[tokio::test]
async fn peers_without_the_secret_make_room_for_those_with_it() {
    let limits = WorkerServerLimits { connections: 8, ..Default::default() };
    let mut harness = Harness::new(limits).await;
    // All places are taken by peers with an open stream and no proof.
    let mut squatters = Vec::new();
    for _ in 0..7 {
        let peer = harness.peer().await;
        peer.send(Kind::Hello(raw_hello())).await;
        squatters.push(peer);
    }
    let mut admitted = Vec::new();
    for _ in 0..7 {
        admitted.push(harness.welcomed().await);
    }
    harness.check_worker().await;
    for mut squatter in squatters {
        soon("the end of a stream", async {
            while let Ok(Some(_)) = squatter.incoming.message().await {}
        })
        .await;
    }
    // Those with the secret are never closed for others.
    let mut surplus = harness.peer().await;
    assert_eq!(surplus.refused().await.0.code(), Code::TooManyConnections);
    harness.check_worker().await;
    let rows = rollway_net::counter_rows();
    let workers = rows.iter().find(|row| row.listener == "workers").unwrap();
    assert!(workers.refused.iter().any(|(reason, count)| {
        *reason == RefusalCode::TooManyConnections.name() && *count > 0
    }));
}

#[tokio::test]
async fn a_worker_that_does_not_read_is_disconnected() {
    let limits =
        WorkerServerLimits { outgoing: 64, outgoing_bytes: 20_000_000, ..Default::default() };
    let mut harness = Harness::new(limits).await;
    for (unit, task) in [("messages", 1_000), ("bytes", 1_000_000)] {
        let (peer, connection) = harness.welcomed().await;
        let definition = definition(1);
        let mut sent = 0_u64;
        let error = loop {
            let mut start = attempt(sent, &definition);
            start.task = vec![0; task].into();
            match connection.send(EngineMessage::StartAttempt(start)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error, ConnectionSendError::Gone, "{unit}");
        assert!(sent >= 10, "{unit}: {sent}");
        let reason = left(&mut harness.server).await;
        let DisconnectReason::Refused(refusal) = reason else { panic!("{reason:?}") };
        assert_eq!(refusal.code, RefusalCode::SlowReader);
        assert!(refusal.message.contains(unit), "{refusal}");
        harness.check_worker().await;
        // Its socket is closed although it never read another byte.
        until_open(&harness.server, 1).await;
        drop(peer);
    }
}
