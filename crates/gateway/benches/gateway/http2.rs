//! Streams over HTTP/2, many on each connection.

use std::io;
use std::time::Instant;

use axum::http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::load::Target;

/// Streams of a connection.
const STREAMS: usize = 100;

/// Connections that share the streams of a load.
pub(super) struct Http2Connections {
    senders: Vec<SendRequest<Full<Bytes>>>,
}

impl Http2Connections {
    pub(super) async fn open(target: &Target, streams: usize) -> Self {
        let mut senders = Vec::new();
        for _ in 0..streams.div_ceil(STREAMS) {
            let socket = TcpStream::connect(target.address()).await.expect("a listener");
            socket.set_nodelay(true).expect("a socket");
            let connected = handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
            let (sender, connection) = connected.expect("a server that speaks HTTP/2");
            tokio::spawn(connection);
            senders.push(sender);
        }
        Self { senders }
    }

    /// Sends the request of a stream and reads the response. Returns the times of the events.
    pub(super) async fn exchange(
        &self,
        target: &Target,
        number: usize,
        tokens: u32,
    ) -> io::Result<Vec<Instant>> {
        let mut sender = self.senders[number % self.senders.len()].clone();
        let request = Request::post(format!("http://{}/v1/chat/completions", target.address()))
            .header("authorization", format!("Bearer {}", target.key(number)))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(target.body(true, tokens))))
            .map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        if response.status() != 200 {
            return Err(io::Error::other(response.status().to_string()));
        }
        let mut body = response.into_body();
        let (mut arrivals, mut is_done) = (Vec::new(), false);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(io::Error::other)?;
            let Some(data) = frame.data_ref() else { continue };
            let now = Instant::now();
            arrivals.extend(data.windows(7).filter(|it| it == b"data: {").map(|_| now));
            is_done |= data.windows(12).any(|it| it == b"data: [DONE]");
        }
        if is_done { Ok(arrivals) } else { Err(io::Error::other("the stream was cut")) }
    }
}
