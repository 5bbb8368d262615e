//! Responses other than those of models.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::Value;

use rollway_model_api::{CallError, ClientApi};

pub(super) async fn health() -> Response {
    json(StatusCode::OK, r#"{"status":"ok"}"#)
}

/// `GET /openapi.json`: what clients may rely on, written by hand.
pub(super) async fn openapi() -> Response {
    json(StatusCode::OK, include_str!("openapi.json"))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn value(value: &Value) -> Response {
    json(StatusCode::OK, value.to_string())
}

/// Returns an error in the form of the OpenAI API.
pub(super) fn error(error: &CallError) -> Response {
    error_body(error, error.body().to_string().into())
}

/// Result of a handler whose errors have the form of the OpenAI API.
pub(crate) type HandlerResult = Result<Response, HandlerError>;

#[derive(Debug)]
pub(crate) struct HandlerError(CallError);

impl From<CallError> for HandlerError {
    fn from(error: CallError) -> Self {
        Self(error)
    }
}

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        error(&self.0)
    }
}

/// Returns an error in the form of a client API.
pub(super) fn client_error(api: &dyn ClientApi, error: &CallError) -> Response {
    error_body(error, api.render_error(error))
}

fn error_body(error: &CallError, body: Bytes) -> Response {
    let status = StatusCode::from_u16(error.kind.status());
    let mut response = json(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body);
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(super) fn events(api: &dyn ClientApi, body: Body) -> Response {
    let mut response = json(StatusCode::OK, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(api.stream_content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies must forward every event at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use rollway_model_api::ServerKind;
    use rollway_model_api::client_api::CLIENT_APIS;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(include_str!("openapi.json")).unwrap()
    }

    #[test]
    fn server_kinds_are_documented() {
        let documented = &document()["components"]["schemas"]["NewServer"]["properties"]["engine"];
        let kinds = ServerKind::ALL.map(ServerKind::name);
        assert_eq!(documented["enum"], serde_json::json!(kinds));
    }

    #[test]
    fn client_apis_are_documented() {
        let document = document();
        for route in CLIENT_APIS.iter().flat_map(|api| api.routes()) {
            let operation = &document["paths"][route.path()]["post"];
            assert!(operation.is_object(), "openapi.json lacks {}", route.path());
        }
    }
}
