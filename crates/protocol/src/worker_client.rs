//! The worker's end: one stream to the engine, with heartbeats. Reconnecting is up to the caller.

mod connect;
mod receiver;
mod sender;

use std::sync::Arc;
use std::time::Duration;

use rollway_base::Address;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

pub use connect::ClientSocket;
pub use receiver::{EngineReceiver, StreamEnd};
pub use sender::{EngineSender, WorkerSendError};

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
    #[error("the engine did not answer within {timeout:?}")]
    TimedOut { timeout: Duration },
    /// The first message of the peer is not a valid welcome.
    #[error("the engine's answer is not valid: {0}")]
    Invalid(InvalidField),
}

/// An established connection.
#[derive(Debug)]
pub struct ConnectedWorker {
    pub welcome: Welcome,
    pub sender: EngineSender,
    pub receiver: EngineReceiver,
}

/// Connects and completes the handshake.
pub async fn connect(
    address: &Address,
    hello: Hello,
    options: WorkerClientOptions,
) -> Result<ConnectedWorker, WorkerConnectError> {
    connect_watched(address, hello, options).await.map(|(connected, _)| connected)
}

/// Same as [`connect()`], for callers that drive the runtime themselves: also returns the socket,
/// which keeps the connection open.
pub async fn connect_watched(
    address: &Address,
    hello: Hello,
    options: WorkerClientOptions,
) -> Result<(ConnectedWorker, ClientSocket), WorkerConnectError> {
    let timeout = options.timeout;
    let (channel, socket) = connect::dial(address, &options).await?;
    let (queue, out_stream) = sender::queue(&options);
    let offered = hello.runners;
    let kind = Some(worker_message::Kind::Hello(hello.into()));
    queue.push_hello(proto::WorkerMessage { kind });

    let opening = async {
        let mut grpc = Grpc::new(channel).max_decoding_message_size(options.message_bytes);
        grpc.ready()
            .await
            .map_err(|error| lost(&Status::unavailable(rollway_base::error_chain(&error))))?;
        let path = http::uri::PathAndQuery::from_static(CONNECT_PATH);
        let codec = ProtoCodec::<proto::WorkerMessage, proto::EngineMessage>::new();
        let stream = grpc.streaming(Request::new(out_stream), path, codec).await;
        let mut stream = stream.map_err(|status| lost(&status))?.into_inner();
        let first = stream.message().await.map_err(|status| lost(&status))?;
        Ok((first, stream))
    };
    let opened = tokio::time::timeout(timeout, opening).await;
    let (first, stream) = opened.map_err(|_| WorkerConnectError::TimedOut { timeout })??;
    let welcome = welcome(first, offered)?;
    let sender = EngineSender::new(queue, &welcome, &options);
    let receiver = EngineReceiver::new(stream, sender.goodbye_flag());
    if options.heartbeats {
        sender.beat(welcome.heartbeat_interval, receiver.alive());
    }
    Ok((ConnectedWorker { welcome, sender, receiver }, socket))
}

pub(crate) fn endpoint(
    address: &Address,
    options: &WorkerClientOptions,
) -> Result<Endpoint, WorkerConnectError> {
    const WINDOW: u32 = 4 * 1024 * 1024;
    let target = match address {
        Address::Unix(_) => address.to_string(),
        Address::Tcp(host_port) => format!("http://{host_port}"),
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

/// Checks the engine's first message.
fn welcome(
    first: Option<DecodedFrame<proto::EngineMessage>>,
    offered: u32,
) -> Result<Welcome, WorkerConnectError> {
    let Some(DecodedFrame { message, .. }) = first else {
        return Err(WorkerConnectError::Lost { message: "the stream ended".into() });
    };
    let undecodable = |error: prost::DecodeError| InvalidField::new("message", error.to_string());
    let message = message.map_err(|error| WorkerConnectError::Invalid(undecodable(error)))?;
    match message.kind {
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
        Some(Kind::Refused(refused)) => Err(WorkerConnectError::Refused(refused.into())),
        _ => {
            Err(WorkerConnectError::Invalid(InvalidField::new("message", "a welcome was expected")))
        }
    }
}

fn lost(status: &Status) -> WorkerConnectError {
    WorkerConnectError::Lost { message: status_message(status).into() }
}
