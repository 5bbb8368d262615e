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
use rollway_model_api::{CallError, ClientApi, ModelCall};
use tokio::sync::mpsc;

use super::byte_budget::ByteLease;
use super::responses;
use super::run_sessions::DeliveryReceipt;
use super::upstream::UpstreamRequest;

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
}

impl FullBody {
    pub(super) fn new(
        body: Bytes,
        receipt: Option<DeliveryReceipt>,
        lease: Option<ByteLease>,
    ) -> Self {
        let body = match lease {
            Some(lease) => holding(body, lease),
            None => body,
        };
        Self { rest: Some(body), receipt }
    }
}

/// Bytes of a response, and what is released when the connection has sent them.
struct HoldingBytes<T> {
    bytes: Bytes,
    _held: T,
}

impl<T> AsRef<[u8]> for HoldingBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns bytes that hold a lease or permits until the connection has sent them. A connection
/// takes the bytes of a body at once, and a slow client keeps them in memory.
pub(super) fn holding(bytes: Bytes, held: impl Send + 'static) -> Bytes {
    Bytes::from_owner(HoldingBytes { bytes, _held: held })
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
pub(super) async fn saved_response(
    request: &UpstreamRequest,
    saved: SavedResponse,
    receipt: DeliveryReceipt,
) -> Result<Response, CallError> {
    let (api, call) = (request.api, &request.call);
    let mut lease = request.app.responses.lease(request.run);
    request.lease_response(&mut lease, saved.sent_bytes()).await?;
    let id = saved.id().and_then(|id| HeaderValue::from_str(&id).ok());
    let parts = saved.into_parts(call);
    let mut response = complete_response(api, call, parts, Some(receipt), Some(lease));
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::byte_budget::MemoryBudget;
    use super::*;
    use crate::options::ByteLimits;

    #[tokio::test]
    async fn memory_is_returned_when_the_connection_has_sent_the_response() {
        let budget = MemoryBudget::new(ByteLimits { total: 1000, per_run: 1000 });
        let mut lease = budget.lease(None);
        lease.grow(100, Instant::now()).await.expect("there are 1000 bytes");
        let mut body = FullBody::new(Bytes::from_static(b"text"), None, Some(lease));
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        drop(body);
        assert_eq!(budget.used(), 100, "the connection has the bytes, and has not sent them");
        let sent = frame.expect("a frame").expect("no error").into_data().expect("data");
        assert_eq!(sent, "text");
        drop(sent);
        assert_eq!(budget.used(), 0);
    }
}
