//! The worker's end: one stream to the engine, with heartbeats. Reconnecting is up to the caller.

pub(crate) mod connect;
mod receiver;
mod sender;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_base::{Address, Secret};
use rollway_net::tls::TlsConnectError;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};

pub use connect::ClientSocket;
pub use receiver::{EngineReceiver, StreamEnd};
pub use sender::{EngineSender, WorkerSendError};

use crate::authentication::{self, ProofInputs, Prover};
use crate::codec::{CONNECT_PATH, DecodedFrame, ProtoCodec};
use crate::field_error::InvalidField;
use crate::message::{Hello, Welcome};
use crate::proto::{self, engine_message::Kind, worker_message};
use crate::refusal::ConnectRefusal;
use crate::status_message::status_message;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerClientOptions {
    /// Limit of connecting, and again of the handshake.
    pub timeout: Duration,
    /// Length of the send queue; senders wait while it is full.
    pub outgoing: usize,
    /// Bytes of large messages in the send queue; senders wait while it is full.
    pub outgoing_bytes: usize,
    /// Maximum size of a message from the engine, in bytes.
    pub message_bytes: usize,
    /// Interval of probes of a silent connection, and time limit of their responses.
    pub keepalive: Duration,
    /// Send heartbeats automatically.
    pub heartbeats: bool,
}

impl Default for WorkerClientOptions {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            timeout: Duration::from_secs(30),
            outgoing: 1024,
            outgoing_bytes: 128 * MIB,
            message_bytes: 256 * MIB,
            keepalive: Duration::from_secs(10),
            heartbeats: true,
        }
    }
}

/// Error of connecting to the engine.
#[derive(Debug, thiserror::Error)]
pub enum WorkerConnectError {
    #[error("cannot reach the engine at {address}: {message}")]
    Unreachable { address: Address, message: Arc<str> },
    #[error("the engine refused this worker: {0}")]
    Refused(ConnectRefusal),
    #[error("the connection to the engine was lost: {message}")]
    Lost { message: Arc<str> },
    #[error("no response from the engine within {timeout:?}")]
    TimedOut { timeout: Duration },
    /// A message of the handshake is not valid.
    #[error("the engine's answer is not valid: {0}")]
    Invalid(InvalidField),
    /// The peer did not prove that it has the secret. Nothing that it sent was used.
    #[error(
        "the process at {address} does not have the secret of this worker: give the worker the \
         secret of the job that listens there; if another program listens there, stop it"
    )]
    NotTheEngine { address: Address },
    /// The peer is not the listener that the address demands. Nothing was sent to it.
    #[error("the process at {address} is not the engine: {error}")]
    Untrusted { address: Address, error: Box<TlsConnectError> },
    #[error("cannot read random bytes")]
    Random(#[from] std::io::Error),
}

/// An established connection.
#[derive(Debug)]
pub struct ConnectedWorker {
    pub welcome: Welcome,
    pub sender: EngineSender,
    pub receiver: EngineReceiver,
}

impl WorkerConnectError {
    /// Tells whether another attempt of the same worker would fail as well.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.code.is_final(),
            Self::NotTheEngine { .. } | Self::Untrusted { .. } => true,
            _ => false,
        }
    }
}

/// Connects and completes the handshake.
pub async fn connect(
    address: &Address,
    secret: &Secret,
    hello: Hello,
    options: WorkerClientOptions,
) -> Result<ConnectedWorker, WorkerConnectError> {
    connect_watched(address, secret, hello, options).await.map(|(connected, _)| connected)
}

/// Same as [`connect()`], for callers that drive the runtime themselves: also returns the socket,
/// which keeps the connection open.
pub async fn connect_watched(
    address: &Address,
    secret: &Secret,
    hello: Hello,
    options: WorkerClientOptions,
) -> Result<(ConnectedWorker, ClientSocket), WorkerConnectError> {
    let timeout = options.timeout;
    let (channel, socket) = connect::open_channel(address, &options).await?;
    let (queue, out_stream) = sender::queue(&options);
    let offered = hello.runners;
    let nonce = authentication::nonce()?;
    let hello = proto::Hello::with_nonce(hello, nonce.clone());
    queue.push(worker_message::Kind::Hello(hello));

    let opening = async {
        let mut grpc = Grpc::new(channel).max_decoding_message_size(options.message_bytes);
        grpc.ready().await.map_err(|error| {
            connection_lost(&Status::unavailable(rollway_base::error_chain(&error)))
        })?;
        let path = http::uri::PathAndQuery::from_static(CONNECT_PATH);
        let codec = ProtoCodec::<proto::WorkerMessage, proto::EngineMessage>::new();
        let stream = grpc.streaming(Request::new(out_stream), path, codec).await;
        let mut stream = stream.map_err(|status| connection_lost(&status))?.into_inner();
        let challenge = challenge(next(&mut stream).await?)?;
        let proof = prove(address, secret, nonce, challenge)?;
        queue.push(worker_message::Kind::Proof(proto::Proof { proof }));
        let welcome = welcome(next(&mut stream).await?, offered)?;
        Ok::<_, WorkerConnectError>((welcome, stream))
    };
    let opened = tokio::time::timeout(timeout, opening).await;
    let (welcome, stream) = opened.map_err(|_| WorkerConnectError::TimedOut { timeout })??;
    let sender = EngineSender::new(queue, &welcome, &options);
    let receiver = EngineReceiver::new(stream, sender.goodbye_flag());
    if options.heartbeats {
        sender.spawn_heartbeats(welcome.heartbeat_interval, receiver.alive());
    }
    Ok((ConnectedWorker { welcome, sender, receiver }, socket))
}

fn endpoint(
    address: &Address,
    options: &WorkerClientOptions,
) -> Result<Endpoint, WorkerConnectError> {
    const WINDOW: u32 = 4 * 1024 * 1024;
    let target = match address {
        Address::Unix(_) => address.to_string(),
        Address::Tcp(host_port) | Address::Tls { host_port, .. } => format!("http://{host_port}"),
    };
    let endpoint =
        Endpoint::from_shared(target).map_err(|error| WorkerConnectError::Unreachable {
            address: address.clone(),
            message: rollway_base::error_chain(&error).into(),
        })?;
    Ok(endpoint
        .connect_timeout(options.timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_keep_alive_interval(options.keepalive)
        .keep_alive_timeout(options.keepalive)
        .keep_alive_while_idle(true))
}

/// Waits for the next message of the handshake.
async fn next(
    stream: &mut Streaming<DecodedFrame<proto::EngineMessage>>,
) -> Result<Option<Kind>, WorkerConnectError> {
    let next = stream.message().await.map_err(|status| connection_lost(&status))?;
    let Some(DecodedFrame { message, .. }) = next else {
        return Err(WorkerConnectError::Lost { message: "the stream ended".into() });
    };
    let undecodable = |error: prost::DecodeError| InvalidField::new("message", error.to_string());
    match message.map_err(|error| WorkerConnectError::Invalid(undecodable(error)))?.kind {
        Some(Kind::Refused(refused)) => Err(WorkerConnectError::Refused(refused.into())),
        kind => Ok(kind),
    }
}

fn challenge(kind: Option<Kind>) -> Result<proto::Challenge, WorkerConnectError> {
    let Some(Kind::Challenge(challenge)) = kind else {
        let problem = InvalidField::new("message", "a challenge was expected");
        return Err(WorkerConnectError::Invalid(problem));
    };
    let checked = authentication::check_nonce("challenge.nonce", &challenge.nonce);
    checked.map_err(WorkerConnectError::Invalid).map(|()| challenge)
}

/// Verifies the engine's proof and returns that of this worker.
fn prove(
    address: &Address,
    secret: &Secret,
    client_nonce: Bytes,
    challenge: proto::Challenge,
) -> Result<Bytes, WorkerConnectError> {
    let server_nonce = challenge.nonce;
    let inputs = ProofInputs { path: CONNECT_PATH, client_nonce, server_nonce };
    if !inputs.is_proof(secret, Prover::Server, &challenge.proof) {
        return Err(WorkerConnectError::NotTheEngine { address: address.clone() });
    }
    Ok(inputs.proof(secret, Prover::Client))
}

/// Checks the engine's decision.
fn welcome(kind: Option<Kind>, offered: u32) -> Result<Welcome, WorkerConnectError> {
    match kind {
        Some(Kind::Welcome(welcome)) => {
            let welcome = Welcome::try_from(welcome).map_err(WorkerConnectError::Invalid)?;
            if welcome.runners.len() > offered as usize {
                let problem = format!("{} of {offered} offered", welcome.runners.len());
                return Err(WorkerConnectError::Invalid(InvalidField::new(
                    "welcome.runners",
                    problem,
                )));
            }
            Ok(welcome)
        }
        _ => {
            Err(WorkerConnectError::Invalid(InvalidField::new("message", "a welcome was expected")))
        }
    }
}

fn connection_lost(status: &Status) -> WorkerConnectError {
    WorkerConnectError::Lost { message: status_message(status).into() }
}
