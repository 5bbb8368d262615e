//! Errors of the HTTP API in vLLM's format.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rollway_net::JsonBody;
use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TinyApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
}

impl TinyApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Adds the name of the invalid field.
    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param.get_or_insert_with(|| param.into());
        self
    }
}

impl IntoResponse for TinyApiError {
    fn into_response(self) -> Response {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let error = json!({
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status.as_u16(),
        });
        (self.status, JsonBody(json!({ "error": error }))).into_response()
    }
}
