//! The buffer's end: authenticates trainers and sends responses within a byte budget.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_core::Stream;
use parking_lot::Mutex;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use rollway_base::tls::TlsOptions;
use rollway_base::{Address, Secret};
use rollway_net::{BoundListener, ListenerKind, RunningListener};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::proto::{self, buffer_message, trainer_message};
use super::{CONNECT_PATH, VERSION};
use crate::authentication::{self, ProofInputs, Prover};
use crate::byte_budget::ByteBudget;
use crate::codec::{DecodedFrame, FrameBody, OutgoingFrame};
use crate::peer::{ConnectionSocket, RefusalCounters};
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::status_message::status_message;
use crate::stream_service::{self, StreamHandler, StreamServerOptions};
use crate::worker_server::BindError;

type Messages = stream_service::Messages<proto::TrainerMessage>;

/// Length of a trainer's send queue.
const OUTGOING: usize = 4;

/// Queued requests of one trainer, which sends one at a time.
const REQUESTS: usize = 4;

/// Minimum time between two log lines about refused trainers; all of them are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Time for a refused or leaving trainer to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderLimits {
    /// Maximum number of connections. Sixteen more are refused with a reason, others closed at
    /// once.
    pub connections: usize,
    /// Limit from the connection to the hello.
    pub hello_timeout: Duration,
    /// Maximum size of a request, in bytes.
    pub message_bytes: usize,
    /// Bytes of queued responses, for all trainers together.
    pub in_flight_bytes: usize,
    /// Interval of probes of a silent connection, and time limit of their responses.
    pub keepalive: Duration,
}

impl Default for ReaderLimits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            connections: 64,
            hello_timeout: Duration::from_secs(10),
            message_bytes: MIB,
            in_flight_bytes: 256 * MIB,
            keepalive: Duration::from_secs(10),
        }
    }
}

/// Listener for trainers. Dropping it disconnects all of them.
#[derive(Debug)]
pub struct ReaderListener {
    listening: RunningListener,
    counters: Arc<RefusalCounters>,
}

/// Authenticated trainers, until the listener is dropped.
#[derive(Debug)]
pub struct ReaderConnections(mpsc::Receiver<ReaderConnection>);

impl ReaderConnections {
    pub async fn next(&mut self) -> Option<ReaderConnection> {
        self.0.recv().await
    }
}

/// An authenticated trainer.
#[derive(Debug)]
pub struct ReaderConnection {
    pub hello: proto::Hello,
    pub requests: mpsc::Receiver<trainer_message::Kind>,
    pub replies: ReplySender,
    /// Cancelled when the trainer disconnects.
    pub disconnected: CancellationToken,
}

impl ReaderListener {
    /// Binds the address and starts listening. Needs a tokio runtime.
    pub async fn bind(
        address: &Address,
        secret: Secret,
        tls: &TlsOptions,
        limits: &ReaderLimits,
    ) -> Result<(Self, ReaderConnections), BindError> {
        let listener = BoundListener::bind(address).await?;
        let tls = listener.identity(tls)?;
        let counters = Arc::new(RefusalCounters::new());
        let (sender, arrivals) = mpsc::channel(1);
        let shared = Arc::new(ReaderServerShared {
            secret,
            counters: Arc::clone(&counters),
            arrivals: sender,
            room: Arc::new(ByteBudget::new(limits.in_flight_bytes)),
            limits: limits.clone(),
            last_log: Mutex::default(),
        });
        let service = ReaderService(shared);
        let options = StreamServerOptions {
            kind: ListenerKind::Readers,
            connections: limits.connections,
            hello_timeout: limits.hello_timeout,
            keepalive: limits.keepalive,
            tls,
        };
        let refusals = Arc::clone(&counters);
        let listening = stream_service::serve(service, listener, refusals, options);
        Ok((Self { listening, counters }, ReaderConnections(arrivals)))
    }

    /// Returns the bound address, with the port that the system chose.
    pub fn address(&self) -> &Address {
        self.listening.address()
    }

    /// Returns the nonzero numbers of refused trainers by reason.
    pub fn refused(&self) -> Vec<(RefusalCode, u64)> {
        self.counters.refused()
    }
}

#[derive(Debug)]
struct ReaderServerShared {
    secret: Secret,
    counters: Arc<RefusalCounters>,
    arrivals: mpsc::Sender<ReaderConnection>,
    room: Arc<ByteBudget>,
    limits: ReaderLimits,
    last_log: Mutex<Option<Instant>>,
}

impl ReaderServerShared {
    /// Tells whether a refusal may be logged: peers without the secret must not fill the log.
    fn may_log(&self) -> bool {
        let mut last = self.last_log.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

#[derive(Clone, Debug)]
struct ReaderService(Arc<ReaderServerShared>);

impl StreamHandler for ReaderService {
    const PATH: &'static str = CONNECT_PATH;
    type Incoming = proto::TrainerMessage;
    type Outgoing = proto::BufferMessage;
    type Replies = OutStream;

    fn max_message_bytes(&self) -> usize {
        self.0.limits.message_bytes
    }

    fn open(self, socket: Arc<ConnectionSocket>, messages: Messages) -> OutStream {
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let room = Arc::clone(&self.0.room);
        let replies = ReplySender { outgoing, room, runtime: Handle::current() };
        tokio::spawn(run(self.0, socket, messages, replies));
        OutStream(queue)
    }
}

/// Serves one stream, from its hello to its end.
async fn run(
    shared: Arc<ReaderServerShared>,
    socket: Arc<ConnectionSocket>,
    mut messages: Messages,
    replies: ReplySender,
) {
    match receive_hello(&shared, &socket, &mut messages, &replies).await {
        Err(refusal) => {
            shared.counters.count(refusal.code, &socket);
            if shared.may_log() {
                tracing::warn!(peer = %socket.peer(), %refusal, "trainer refused");
            }
            replies.refuse_async(&refusal).await;
            drop(replies);
        }
        Ok(hello) => {
            let (sender, requests) = mpsc::channel(REQUESTS);
            let disconnected = CancellationToken::new();
            let _disconnect = disconnected.clone().drop_guard();
            let arrival = ReaderConnection { hello, requests, replies, disconnected };
            if shared.arrivals.send(arrival).await.is_ok() {
                while let Ok(kind) = next(&mut messages).await {
                    if sender.send(kind).await.is_err() {
                        break;
                    }
                }
            }
        }
    }
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, socket.closed()).await;
    socket.cut();
}

/// Receives the hello, proves that this buffer has the secret, and checks the trainer's proof.
async fn receive_hello(
    shared: &ReaderServerShared,
    socket: &ConnectionSocket,
    messages: &mut Messages,
    replies: &ReplySender,
) -> Result<proto::Hello, ConnectRefusal> {
    if socket.is_surplus() {
        let message = format!("the limit of {} connections is reached", shared.limits.connections);
        return Err(ConnectRefusal::new(RefusalCode::TooManyConnections, message));
    }
    let timeout = shared.limits.hello_timeout;
    let proving = authenticate(shared, messages, replies);
    let Ok(hello) = tokio::time::timeout(timeout, proving).await else {
        let message = format!("no hello and proof within {timeout:?}");
        return Err(ConnectRefusal::new(RefusalCode::HelloTimeout, message));
    };
    let hello = hello?;
    socket.set_authenticated();
    Ok(hello)
}

async fn authenticate(
    shared: &ReaderServerShared,
    messages: &mut Messages,
    replies: &ReplySender,
) -> Result<proto::Hello, ConnectRefusal> {
    let trainer_message::Kind::Hello(hello) = next(messages).await? else {
        let message = "the first message must be a hello";
        return Err(ConnectRefusal::new(RefusalCode::HelloExpected, message));
    };
    if !(hello.min_version..=hello.max_version).contains(&VERSION) {
        let (from, to) = (hello.min_version, hello.max_version);
        let message = format!("the buffer speaks version {VERSION}, the trainer {from} to {to}");
        return Err(ConnectRefusal::new(RefusalCode::Version, message));
    }
    if hello.name.is_empty() || hello.session.is_empty() {
        let message = "a hello needs a name and a session";
        return Err(ConnectRefusal::new(RefusalCode::InvalidMessage, message));
    }
    let refusal = |code, message: &str| ConnectRefusal::new(code, message);
    authentication::check_nonce("hello.nonce", &hello.nonce)
        .map_err(|error| refusal(RefusalCode::InvalidMessage, &error.to_string()))?;
    let server_nonce = authentication::nonce()
        .map_err(|error| refusal(RefusalCode::Other, &format!("no random bytes: {error}")))?;
    let client_nonce = hello.nonce.clone();
    let inputs = ProofInputs { path: CONNECT_PATH, client_nonce, server_nonce };
    let nonce = inputs.server_nonce.clone();
    let proof = inputs.proof(&shared.secret, Prover::Server);
    let kind = buffer_message::Kind::Challenge(proto::Challenge { nonce, proof });
    // Fails only if the trainer has disconnected, which the next receive reports.
    let _ = replies.outgoing.send(proto::BufferMessage { kind: Some(kind) }.into()).await;
    let trainer_message::Kind::Proof(proto::Proof { proof }) =
        next(messages).await.map_err(|_| {
            let message = "the trainer disconnected after the challenge: its secret does not match";
            refusal(RefusalCode::BadSecret, message)
        })?
    else {
        return Err(refusal(RefusalCode::UnexpectedMessage, "a proof was expected"));
    };
    if !inputs.is_proof(&shared.secret, Prover::Client, &proof) {
        return Err(refusal(
            RefusalCode::BadSecret,
            "the secret does not match that of the buffer",
        ));
    }
    Ok(hello)
}

/// Waits for the next message; skips unknown ones.
async fn next(messages: &mut Messages) -> Result<trainer_message::Kind, ConnectRefusal> {
    loop {
        let invalid = |message: String| ConnectRefusal::new(RefusalCode::InvalidMessage, message);
        let message = messages.message().await;
        let message = message.map_err(|status| invalid(status_message(&status)))?;
        let Some(DecodedFrame { message, .. }) = message else {
            return Err(invalid("the stream ended".to_owned()));
        };
        if let Some(kind) = message.map_err(|error| invalid(error.to_string()))?.kind {
            return Ok(kind);
        }
    }
}

pub(super) struct OutStream(mpsc::Receiver<OutgoingFrame<proto::BufferMessage>>);

impl Stream for OutStream {
    type Item = Result<OutgoingFrame<proto::BufferMessage>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|message| message.map(Ok))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trainer has disconnected")]
pub struct TrainerDisconnected;

#[derive(Clone, Debug)]
pub struct SamplePart {
    pub head: proto::Sample,
    pub payload: Bytes,
}

/// Sends responses to a trainer. Its methods block while the trainer does not read.
#[derive(Debug)]
pub struct ReplySender {
    outgoing: mpsc::Sender<OutgoingFrame<proto::BufferMessage>>,
    room: Arc<ByteBudget>,
    runtime: Handle,
}

impl ReplySender {
    pub fn send(&self, kind: buffer_message::Kind) -> Result<(), TrainerDisconnected> {
        let message = proto::BufferMessage { kind: Some(kind) };
        self.outgoing.blocking_send(message.into()).map_err(|_| TrainerDisconnected)
    }

    /// Sends samples as one message; payloads are copied only into the send buffer.
    pub fn samples(&self, parts: Vec<SamplePart>) -> Result<(), TrainerDisconnected> {
        let parts = samples_message(parts);
        let bytes = parts.iter().map(Bytes::len).sum();
        self.runtime.block_on(async {
            let room = tokio::select! {
                room = self.room.take(bytes) => room,
                () = self.outgoing.closed() => return Err(TrainerDisconnected),
            };
            let message = OutgoingFrame { body: FrameBody::Parts(parts), room };
            self.outgoing.send(message).await.map_err(|_| TrainerDisconnected)
        })
    }

    pub fn refuse(&self, refusal: &ConnectRefusal) {
        self.runtime.block_on(self.refuse_async(refusal));
    }

    async fn refuse_async(&self, refusal: &ConnectRefusal) {
        let (code, message) = (refusal.code.name().to_owned(), refusal.message.to_string());
        let kind = buffer_message::Kind::Refused(proto::Refused { code, message });
        // Fails only if the trainer has disconnected.
        let _ = self.outgoing.send(proto::BufferMessage { kind: Some(kind) }.into()).await;
    }
}

/// Encodes a `BufferMessage` with `Samples` around payloads that are not copied.
fn samples_message(parts: Vec<SamplePart>) -> Vec<Bytes> {
    const KIND: u32 = 2;
    const PAYLOADS: u32 = 2;
    let payloads: usize = parts.iter().map(|part| part.payload.len()).sum();
    let (heads, bodies): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|part| (part.head, part.payload)).unzip();
    let heads = proto::Samples { samples: heads, payloads: Bytes::new() };
    let before = key_len(PAYLOADS) + encoded_len_varint(payloads as u64);
    let inner = heads.encoded_len() + before + payloads;
    let mut head = BytesMut::new();
    encode_key(KIND, WireType::LengthDelimited, &mut head);
    encode_varint(inner as u64, &mut head);
    head.put(heads.encode_to_vec().as_slice());
    encode_key(PAYLOADS, WireType::LengthDelimited, &mut head);
    encode_varint(payloads as u64, &mut head);
    std::iter::once(head.freeze()).chain(bodies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_by_hand_are_what_the_schema_says() {
        let part = |id: &str, payload: &'static [u8]| SamplePart {
            head: proto::Sample {
                id: id.to_owned(),
                model_version: 7,
                reward: Some(0.5),
                payload_bytes: payload.len() as u64,
            },
            payload: Bytes::from_static(payload),
        };
        for parts in [vec![], vec![part("a", b"one"), part("b", b""), part("c", &[1; 300])]] {
            let samples = proto::Samples {
                samples: parts.iter().map(|part| part.head.clone()).collect(),
                payloads: parts.iter().flat_map(|part| part.payload.to_vec()).collect(),
            };
            let kind = Some(buffer_message::Kind::Samples(samples));
            let bytes = samples_message(parts).concat();
            let decoded = proto::BufferMessage::decode(bytes.as_slice());
            assert_eq!(decoded, Ok(proto::BufferMessage { kind }));
        }
    }
}
