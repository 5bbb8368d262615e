//! Peer of the worker protocol or the reader protocol that sends arbitrary bytes as messages.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_core::Stream;
use hmac::{Hmac, KeyInit, Mac};
use http::uri::PathAndQuery;
use rollway_base::{Address, Secret};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// Limit of every wait: what takes longer hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) const NONCE: [u8; 32] = [7; 32];

/// Begin of an HTTP/2 connection of a client: the preface and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(super) fn secret() -> Secret {
    Secret::new("open sesame").expect("a secret")
}

/// Waits for an event that must happen.
pub(super) async fn soon<T>(event: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(HANG_TIMEOUT, future).await;
    waited.unwrap_or_else(|_| panic!("hangs: {event}"))
}

/// Computes the proof of a client as the documentation of the protocol describes it.
pub(super) fn client_proof(path: &str, server_nonce: &[u8]) -> Bytes {
    let secret = secret();
    let mut code =
        Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).expect("a key of any length");
    for part in [path.as_bytes(), b"\0client\0", &NONCE, server_nonce] {
        code.update(part);
    }
    Bytes::copy_from_slice(&code.finalize().into_bytes())
}

/// Sends bytes to the socket of a server, with or without the start of HTTP/2, and reads until the
/// server closes the connection.
pub(super) async fn send_raw(address: &Address, bytes: &[u8]) {
    let Address::Unix(path) = address else { unreachable!("servers listen on Unix sockets") };
    let mut socket = UnixStream::connect(path).await.expect("the server listens");
    // The server may close before everything is written.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut response = Vec::new();
    let _ = socket.read_to_end(&mut response).await;
}

/// Returns bytes behind the start of an HTTP/2 connection.
pub(super) fn with_preface(bytes: &[u8]) -> Vec<u8> {
    [PREFACE, bytes].concat()
}

/// An open stream.
pub(super) struct RawPeer {
    pub(super) outgoing: mpsc::Sender<Bytes>,
    pub(super) incoming: Streaming<Bytes>,
    _channel: Channel,
}

impl RawPeer {
    /// Opens the stream of a protocol, whose first message opens it on the server's side.
    pub(super) async fn open(address: &Address, path: &'static str, first: Bytes) -> Option<Self> {
        let endpoint = Endpoint::from_shared(address.to_string()).expect("an address");
        let channel = endpoint.connect().await.expect("the server listens");
        let (outgoing, messages) = mpsc::channel(16);
        let _ = outgoing.try_send(first);
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.expect("a new connection is ready");
        let path = PathAndQuery::from_static(path);
        let opened = grpc.streaming(Request::new(Outgoing(messages)), path, RawCodec).await;
        Some(Self { outgoing, incoming: opened.ok()?.into_inner(), _channel: channel })
    }

    /// Returns the next message. `None`: the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.incoming.message().await.ok().flatten()
    }

    /// Sends messages while it reads, then closes its side and reads to the end.
    pub(super) async fn finish(mut self, messages: impl Iterator<Item = &[u8]>) {
        let outgoing = self.outgoing;
        let sending = async {
            for message in messages {
                if outgoing.send(Bytes::copy_from_slice(message)).await.is_err() {
                    break;
                }
            }
            drop(outgoing);
        };
        let reading = async { while let Ok(Some(_)) = self.incoming.message().await {} };
        tokio::pin!(sending, reading);
        tokio::select! {
            // The server has ended the stream and reads no more.
            () = &mut reading => {}
            () = &mut sending => reading.await,
        }
    }
}

struct Outgoing(mpsc::Receiver<Bytes>);

impl Stream for Outgoing {
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
