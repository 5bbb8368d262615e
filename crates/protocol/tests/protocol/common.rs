//! Shared setup: servers, workers, and peers that send arbitrary bytes.

#![allow(unreachable_pub, reason = "a test has no outside")]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_core::Stream;
use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use rollway_base::{Address, Secret};
use rollway_core::{AttemptId, BatchId, BatchType, Incarnation, RunRange, RunnerId, TaskId};
use rollway_protocol::proto;
use rollway_protocol::worker_client::{
    self, ConnectedWorker, WorkerClientOptions, WorkerConnectError,
};
use rollway_protocol::worker_server::{
    DisconnectReason, PendingHandshake, WorkerConnection, WorkerServer, WorkerServerEvent,
    WorkerServerLimits, WorkerServerOptions,
};
use rollway_protocol::{DefinitionId, Hello, StartAttempt, WorkerMessage, WorkflowDefinition};
use sha2::Sha256;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Status, Streaming};

/// Limit of every wait.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for an event that must happen.
pub async fn soon<T>(event: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(TEST_TIMEOUT, future).await;
    waited.unwrap_or_else(|_| panic!("waited too long: {event}"))
}

pub fn secret() -> Secret {
    Secret::new("open sesame").unwrap()
}

pub fn hello(runners: u32) -> Hello {
    Hello::new("token", runners)
}

/// A directory for a socket, and the address of the socket.
pub fn unix() -> (tempfile::TempDir, Address) {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix(dir.path().join("engine.sock"));
    (dir, address)
}

pub async fn listen(address: Address, limits: WorkerServerLimits) -> WorkerServer {
    let options = WorkerServerOptions { limits, ..WorkerServerOptions::new(address, secret()) };
    WorkerServer::bind(options).await.unwrap()
}

pub async fn loopback(limits: WorkerServerLimits) -> WorkerServer {
    listen(Address::loopback(), limits).await
}

pub async fn handshake(server: &mut WorkerServer) -> PendingHandshake {
    match soon("hello", server.recv()).await {
        WorkerServerEvent::Hello(handshake) => handshake,
        other => panic!("expected a hello, got {other:?}"),
    }
}

pub async fn message(server: &mut WorkerServer) -> WorkerMessage {
    match soon("message", server.recv()).await {
        WorkerServerEvent::Message { message, .. } => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

pub async fn left(server: &mut WorkerServer) -> DisconnectReason {
    match soon("left", server.recv()).await {
        WorkerServerEvent::Left { reason, .. } => reason,
        other => panic!("expected an end, got {other:?}"),
    }
}

pub fn definition(id: u64) -> Arc<WorkflowDefinition> {
    Arc::new(WorkflowDefinition {
        id: DefinitionId(id),
        name: format!("workflow {id}").into(),
        encoding: "name".into(),
        task_encoding: "json".into(),
        body: Bytes::new(),
    })
}

pub fn attempt(id: u64, definition: &Arc<WorkflowDefinition>) -> StartAttempt {
    StartAttempt {
        runner: RunnerId(0),
        incarnation: Incarnation(1),
        attempt: AttemptId(id),
        batch: BatchId::from("3/gsm8k"),
        kind: BatchType::Eval,
        task_id: TaskId(5),
        runs: RunRange { first: 2, count: 3 },
        task: Bytes::from_static(b"{}"),
        definition: Arc::clone(definition),
        timeout: Duration::from_secs(60),
        suspected_losses: 1,
        model_keys: ["a", "b", "c"].map(|key| Secret::new(key).expect("a key")).into(),
    }
}

pub const HEARTBEAT: Duration = Duration::from_secs(60);

pub fn welcome(handshake: PendingHandshake) -> WorkerConnection {
    handshake.welcome(&[(RunnerId(0), Incarnation(1))], HEARTBEAT)
}

/// Connects in the background.
pub fn connect(
    server: &WorkerServer,
    hello: Hello,
    options: WorkerClientOptions,
) -> JoinHandle<Result<ConnectedWorker, WorkerConnectError>> {
    connect_with(server, secret(), hello, options)
}

/// Connects in the background with any secret.
pub fn connect_with(
    server: &WorkerServer,
    secret: Secret,
    hello: Hello,
    options: WorkerClientOptions,
) -> JoinHandle<Result<ConnectedWorker, WorkerConnectError>> {
    let address = server.address().clone();
    tokio::spawn(async move { worker_client::connect(&address, &secret, hello, options).await })
}

/// Encoded hello of a worker, with a nonce.
pub fn raw_hello() -> proto::Hello {
    proto::Hello {
        protocol_min: 2,
        protocol_max: 2,
        token: "token".to_owned(),
        runners: 1,
        nonce: Bytes::from_static(&[7; 32]),
        ..Default::default()
    }
}

/// Computes a proof as the documentation of the protocol describes it.
pub fn proof(prover: &str, client_nonce: &[u8], server_nonce: &[u8]) -> Bytes {
    let mut code = Hmac::<Sha256>::new_from_slice(secret().reveal().as_bytes()).unwrap();
    code.update(b"/rollway.worker.v1.Worker/Connect\0");
    code.update(prover.as_bytes());
    code.update(&[0]);
    code.update(client_nonce);
    code.update(server_nonce);
    Bytes::copy_from_slice(&code.finalize().into_bytes())
}

/// Connects a worker as runner 0. `None`: it sends no heartbeats.
pub async fn join(
    server: &mut WorkerServer,
    heartbeat: Option<Duration>,
) -> (WorkerConnection, ConnectedWorker) {
    let options = WorkerClientOptions { heartbeats: heartbeat.is_some(), ..Default::default() };
    let connecting = connect(server, hello(1), options);
    let runners = [(RunnerId(0), Incarnation(1))];
    let connection = handshake(server).await.welcome(&runners, heartbeat.unwrap_or(HEARTBEAT));
    (connection, soon("welcome", connecting).await.unwrap().unwrap())
}

/// Waits until at most so many sockets are open.
pub async fn until_open(server: &WorkerServer, count: usize) {
    soon("closed sockets", async {
        while server.open() > count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A peer that sends arbitrary bytes as messages.
pub struct RawPeer {
    pub outgoing: Option<mpsc::Sender<Bytes>>,
    pub incoming: Streaming<Bytes>,
    channel: tonic::transport::Channel,
}

impl RawPeer {
    pub async fn connect(address: &Address) -> Self {
        let target = match address {
            Address::Unix(_) => address.to_string(),
            Address::Tcp(host_port) | Address::Tls { host_port, .. } => {
                format!("http://{host_port}")
            }
        };
        let endpoint = tonic::transport::Endpoint::from_shared(target).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let (outgoing, incoming) = Self::open(channel.clone()).await.unwrap();
        Self { outgoing: Some(outgoing), incoming, channel }
    }

    pub async fn open(
        channel: tonic::transport::Channel,
    ) -> Result<(mpsc::Sender<Bytes>, Streaming<Bytes>), Status> {
        let (outgoing, messages) = mpsc::channel(16);
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/rollway.worker.v1.Worker/Connect");
        let request = tonic::Request::new(Queue(messages));
        let incoming = grpc.streaming(request, path, RawCodec).await?.into_inner();
        Ok((outgoing, incoming))
    }

    /// Opens another stream on the same connection.
    pub async fn open_another(&self) -> Result<(mpsc::Sender<Bytes>, Streaming<Bytes>), Status> {
        Self::open(self.channel.clone()).await
    }

    pub async fn send_bytes(&self, bytes: impl Into<Bytes>) {
        self.outgoing.as_ref().unwrap().send(bytes.into()).await.unwrap();
    }

    pub async fn send(&self, kind: proto::worker_message::Kind) {
        self.send_bytes(proto::WorkerMessage { kind: Some(kind) }.encode_to_vec()).await;
    }

    /// Sends a hello and receives the challenge.
    pub async fn send_hello(&mut self, hello: proto::Hello) -> proto::Challenge {
        self.send(proto::worker_message::Kind::Hello(hello)).await;
        let Some(proto::engine_message::Kind::Challenge(challenge)) = self.recv().await else {
            panic!("expected a challenge");
        };
        challenge
    }

    /// Sends a hello and the proof of the worker.
    pub async fn authenticate(&mut self) {
        let hello = raw_hello();
        let client_nonce = hello.nonce.clone();
        let challenge = self.send_hello(hello).await;
        assert_eq!(challenge.proof, proof("server", &client_nonce, &challenge.nonce));
        let proof = proof("client", &client_nonce, &challenge.nonce);
        self.send(proto::worker_message::Kind::Proof(proto::Proof { proof })).await;
    }

    /// Receives a message. `None`: one that the schema does not know.
    pub async fn recv(&mut self) -> Option<proto::engine_message::Kind> {
        let bytes = soon("message", self.incoming.message()).await.unwrap().unwrap();
        proto::EngineMessage::decode(bytes).unwrap().kind
    }

    /// Receives the refusal that ends the stream, and the gRPC status of the stream.
    pub async fn refused(&mut self) -> (proto::Refused, Status) {
        let Some(proto::engine_message::Kind::Refused(refused)) = self.recv().await else {
            panic!("expected a refusal");
        };
        let end = soon("end", self.incoming.message()).await.unwrap_err();
        (refused, end)
    }
}

struct Queue(mpsc::Receiver<Bytes>);

impl Stream for Queue {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(cx)
    }
}

#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
