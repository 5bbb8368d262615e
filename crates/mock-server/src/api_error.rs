//! Error responses.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use rollway_net::JsonBody;
use serde_json::json;

use super::server_api::MockApi;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn server_error(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Sets the field that the error is about.
    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Renders the error in the form of a server kind.
    pub(super) fn render(&self, api: &dyn MockApi) -> Response {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            _ => "InternalServerError",
        };
        let error = json!({
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status.as_u16(),
        });
        (self.status, JsonBody(api.error_body(error))).into_response()
    }
}

/// The middleware renders the error, since its form depends on the server kind.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
