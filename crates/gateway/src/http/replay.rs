//! Responses that are complete before they are sent: full ones, and saved ones for clients that
//! repeat a call.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{ClientApi, ModelCall};

use super::response_body::FullBody;
use super::responses;
use super::run_sessions::DeliveryReceipt;

/// Returns a saved response again, in the form that the call requests.
pub(super) fn saved(
    api: &dyn ClientApi,
    call: &ModelCall,
    saved: SavedResponse,
    receipt: DeliveryReceipt,
) -> Response {
    let id = saved.id().and_then(|id| HeaderValue::from_str(&id).ok());
    let mut response = complete(api, call, saved.into_parts(call), Some(receipt));
    if let Some(id) = id {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

/// Returns a complete response, given its body or the data of its events in the internal form.
pub(super) fn complete(
    api: &dyn ClientApi,
    call: &ModelCall,
    parts: Vec<Bytes>,
    receipt: Option<DeliveryReceipt>,
) -> Response {
    if !call.stream {
        let body = parts.into_iter().next().unwrap_or_default();
        let body = FullBody::new(api.render_body(call, body), receipt);
        return responses::json(StatusCode::OK, Body::new(body));
    }
    let capacity = parts.iter().map(|part| part.len() + 8).sum::<usize>() + 16;
    let mut body = BytesMut::with_capacity(capacity);
    let mut renderer = api.stream_renderer(call);
    for part in &parts {
        renderer.event(part, &mut body);
    }
    renderer.finish(&mut body);
    responses::events(Body::new(FullBody::new(body.freeze(), receipt)))
}
