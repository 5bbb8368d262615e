//! Requests that are refused, in the words of each kind of server.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use rollway_base::ServerKind;

/// Why a request is refused.
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

    /// The request is wrong.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Says which field is to blame.
    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The error, without what is around it.
    fn error(&self) -> Value {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            _ => "InternalServerError",
        };
        json!({
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status.as_u16(),
        })
    }

    /// The body of the answer: SGLang puts the error itself there, others put it into `error`.
    pub(super) fn body(&self, kind: ServerKind) -> Value {
        let mut error = self.error();
        match kind {
            ServerKind::Sglang => {
                error["object"] = "error".into();
                error
            }
            ServerKind::Vllm => json!({ "error": error }),
            ServerKind::Openai | ServerKind::LlamaCpp => {
                error["type"] = "invalid_request_error".into();
                error["code"] = Value::Null;
                json!({ "error": error })
            }
        }
    }

    pub(super) fn response(&self, kind: ServerKind) -> Response {
        (self.status, Json(self.body(kind))).into_response()
    }
}
