//! Response bodies that detect whether the connection took all of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{ClientApi, ModelCall};
use tokio::sync::mpsc;

use super::byte_budget::ByteLease;
use super::responses;
use super::run_sessions::DeliveryReceipt;

#[derive(Debug)]
pub(super) enum StreamChunk {
    Some(Bytes),
    /// The last chunk, with the receipt to sign when it was taken.
    Last(Bytes, Option<DeliveryReceipt>),
}

/// Body of a response that is complete before it is sent.
#[derive(Debug)]
pub(super) struct FullBody {
    rest: Option<Bytes>,
    receipt: Option<DeliveryReceipt>,
    /// Memory of the response, returned when the connection has taken it.
    _lease: Option<ByteLease>,
}

impl FullBody {
    pub(super) fn new(
        body: Bytes,
        receipt: Option<DeliveryReceipt>,
        lease: Option<ByteLease>,
    ) -> Self {
        Self { rest: Some(body), receipt, _lease: lease }
    }
}

impl HttpBody for FullBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let rest = self.rest.take();
        // It is not polled again once it has returned all announced bytes.
        if let Some(receipt) = self.receipt.take() {
            receipt.sign();
        }
        Poll::Ready(rest.map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.as_ref().map_or(0, |body| body.len() as u64))
    }
}

/// Body of a stream.
#[derive(Debug)]
pub(super) struct StreamBody {
    chunks: mpsc::Receiver<StreamChunk>,
    receipt: Option<DeliveryReceipt>,
    has_ended: bool,
}

impl StreamBody {
    /// Returns both ends. The sender is closed when the client disconnects.
    pub(super) fn new() -> (mpsc::Sender<StreamChunk>, Self) {
        // Backpressure: a slow client delays the server instead of filling memory.
        let (sender, chunks) = mpsc::channel(16);
        (sender, Self { chunks, receipt: None, has_ended: false })
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let chunk = std::task::ready!(self.chunks.poll_recv(context));
        Poll::Ready(match chunk {
            Some(StreamChunk::Some(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(StreamChunk::Last(bytes, receipt)) => {
                self.receipt = receipt;
                self.has_ended = true;
                Some(Ok(Frame::data(bytes)))
            }
            // The client must not mistake a partial response for a complete one.
            None if !self.has_ended => Some(Err(io::ErrorKind::BrokenPipe.into())),
            None => {
                if let Some(receipt) = self.receipt.take() {
                    receipt.sign();
                }
                None
            }
        })
    }
}

/// Returns a saved response again, in the form that the call requests.
pub(super) fn saved_response(
    api: &dyn ClientApi,
    call: &ModelCall,
    saved: SavedResponse,
    receipt: DeliveryReceipt,
) -> Response {
    let id = saved.id().and_then(|id| HeaderValue::from_str(&id).ok());
    let mut response = complete_response(api, call, saved.into_parts(call), Some(receipt), None);
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

/// Returns a complete response, given its body or the data of its events in the internal form.
pub(super) fn complete_response(
    api: &dyn ClientApi,
    call: &ModelCall,
    parts: Vec<Bytes>,
    receipt: Option<DeliveryReceipt>,
    lease: Option<ByteLease>,
) -> Response {
    if !call.stream {
        let body = parts.into_iter().next().unwrap_or_default();
        let body = FullBody::new(api.render_body(call, body), receipt, lease);
        return responses::json(StatusCode::OK, Body::new(body));
    }
    let capacity = parts.iter().map(|part| part.len() + 8).sum::<usize>() + 16;
    let mut body = BytesMut::with_capacity(capacity);
    let mut renderer = api.stream_renderer(call);
    for part in &parts {
        renderer.event(part, &mut body);
    }
    renderer.finish(&mut body);
    responses::events(api, Body::new(FullBody::new(body.freeze(), receipt, lease)))
}
