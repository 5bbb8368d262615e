//! The trainer's end of a stream.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use rollway_base::{Address, Secret};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::{Request, Status, Streaming};

use super::proto::{self, buffer_message, trainer_message};
use super::{CONNECT_PATH, VERSION};
use crate::authentication::{self, ProofInputs, Prover};
use crate::codec::{DecodedFrame, OutgoingFrame, ProtoCodec};
use crate::refusal::{ConnectRefusal, RefusalCode};
use crate::status_message::status_message;
use crate::worker_client::{self, WorkerConnectError, connect};

/// Length of the send queue: one request and a goodbye.
const OUTGOING: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReaderConnectError {
    /// No valid response; the caller may retry.
    #[error("{0}")]
    Unreachable(String),
    #[error("refused: {0}")]
    Refused(ConnectRefusal),
    /// The peer is not the listener that the address demands. Nothing was sent to it.
    #[error("the process at this address is not the buffer: {0}")]
    Untrusted(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection was lost: {0}")]
pub struct ReaderDisconnected(pub String);

/// An established stream. Dropping it disconnects.
#[derive(Debug)]
pub struct ReaderLink {
    sender: mpsc::Sender<OutgoingFrame<proto::TrainerMessage>>,
    messages: Streaming<DecodedFrame<proto::BufferMessage>>,
}

impl ReaderLink {
    /// Connects and completes the handshake. Sets the nonce and the version of `hello`.
    pub async fn connect(
        address: &Address,
        secret: &Secret,
        hello: proto::Hello,
        timeout: Duration,
        message_bytes: usize,
    ) -> Result<(Self, proto::Welcome), ReaderConnectError> {
        let unreachable = |message: String| ReaderConnectError::Unreachable(message);
        let options = worker_client::WorkerClientOptions {
            timeout,
            ..worker_client::WorkerClientOptions::default()
        };
        let nonce = authentication::nonce().map_err(|error| unreachable(error.to_string()))?;
        let opening = async {
            let (channel, _) =
                connect::open_channel(address, &options).await.map_err(dial_error)?;
            let (sender, outgoing) = mpsc::channel(OUTGOING);
            let mut link = {
                let mut grpc = Grpc::new(channel).max_decoding_message_size(message_bytes);
                let ready = grpc.ready().await;
                ready.map_err(|error| unreachable(rollway_base::error_chain(&error)))?;
                let path = http::uri::PathAndQuery::from_static(CONNECT_PATH);
                let codec = ProtoCodec::<proto::TrainerMessage, proto::BufferMessage>::new();
                let hello = proto::Hello {
                    min_version: VERSION,
                    max_version: VERSION,
                    nonce: nonce.clone(),
                    ..hello
                };
                let hello = trainer_message::Kind::Hello(hello);
                let _ = sender.try_send(proto::TrainerMessage { kind: Some(hello) }.into());
                let messages =
                    grpc.streaming(Request::new(ReaderQueue(outgoing)), path, codec).await;
                let messages = messages.map_err(|status| unreachable(status_message(&status)))?;
                Self { sender, messages: messages.into_inner() }
            };
            let buffer_message::Kind::Challenge(challenge) = link.handshake_reply().await? else {
                return Err(unreachable("the response to the hello is not a challenge".to_owned()));
            };
            let proof = prove(address, secret, nonce, challenge)?;
            let proof = trainer_message::Kind::Proof(proto::Proof { proof });
            link.send(proof).await.map_err(|ReaderDisconnected(message)| unreachable(message))?;
            let buffer_message::Kind::Welcome(welcome) = link.handshake_reply().await? else {
                return Err(unreachable("the response to the proof is not a welcome".to_owned()));
            };
            Ok((link, welcome))
        };
        let timed_out = |_| unreachable(format!("no response within {timeout:?}"));
        tokio::time::timeout(timeout, opening).await.map_err(timed_out)?
    }

    /// Waits for the next message of the handshake.
    async fn handshake_reply(&mut self) -> Result<buffer_message::Kind, ReaderConnectError> {
        match self.recv().await {
            Ok(buffer_message::Kind::Refused(proto::Refused { code, message })) => {
                let known = RefusalCode::ALL.iter().find(|known| known.name() == code);
                let code = known.copied().unwrap_or(RefusalCode::Other);
                Err(ReaderConnectError::Refused(ConnectRefusal::new(code, message)))
            }
            Ok(kind) => Ok(kind),
            Err(ReaderDisconnected(message)) => Err(ReaderConnectError::Unreachable(message)),
        }
    }

    pub async fn send(&self, kind: trainer_message::Kind) -> Result<(), ReaderDisconnected> {
        let message = proto::TrainerMessage { kind: Some(kind) };
        let sent = self.sender.send(message.into()).await;
        sent.map_err(|_| ReaderDisconnected("the stream is closed".to_owned()))
    }

    /// Waits for the next message; skips unknown ones.
    pub async fn recv(&mut self) -> Result<buffer_message::Kind, ReaderDisconnected> {
        loop {
            let lost = |status: Status| ReaderDisconnected(status_message(&status));
            let Some(DecodedFrame { message, .. }) = self.messages.message().await.map_err(lost)?
            else {
                return Err(ReaderDisconnected("the stream ended".to_owned()));
            };
            let message = message.map_err(|error| ReaderDisconnected(error.to_string()))?;
            if let Some(kind) = message.kind {
                return Ok(kind);
            }
        }
    }

    /// Sends a goodbye and waits for the end of the stream.
    pub async fn leave(mut self) {
        let goodbye = trainer_message::Kind::Goodbye(proto::Goodbye {});
        if self.send(goodbye).await.is_ok() {
            while self.recv().await.is_ok() {}
        }
    }
}

fn dial_error(error: WorkerConnectError) -> ReaderConnectError {
    match error {
        WorkerConnectError::Unreachable { message, .. } => {
            ReaderConnectError::Unreachable(message.to_string())
        }
        WorkerConnectError::Untrusted { error, .. } => {
            ReaderConnectError::Untrusted(error.to_string())
        }
        error => ReaderConnectError::Unreachable(error.to_string()),
    }
}

/// Verifies the buffer's proof and returns that of this trainer.
fn prove(
    address: &Address,
    secret: &Secret,
    client_nonce: Bytes,
    challenge: proto::Challenge,
) -> Result<Bytes, ReaderConnectError> {
    let refused = |code, message| ReaderConnectError::Refused(ConnectRefusal::new(code, message));
    authentication::check_nonce("challenge.nonce", &challenge.nonce)
        .map_err(|error| refused(RefusalCode::InvalidMessage, error.to_string()))?;
    let server_nonce = challenge.nonce;
    let inputs = ProofInputs { path: CONNECT_PATH, client_nonce, server_nonce };
    if !inputs.is_proof(secret, Prover::Server, &challenge.proof) {
        let message = format!("the secret does not match that of the buffer at {address}");
        return Err(refused(RefusalCode::BadSecret, message));
    }
    Ok(inputs.proof(secret, Prover::Client))
}

struct ReaderQueue(mpsc::Receiver<OutgoingFrame<proto::TrainerMessage>>);

impl Stream for ReaderQueue {
    type Item = OutgoingFrame<proto::TrainerMessage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}
