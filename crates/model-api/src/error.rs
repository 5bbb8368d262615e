//! Errors of model calls.

use bytes::Bytes;
use serde_json::{Value, json};

/// Failure of a model call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    pub kind: ErrorKind,
    /// Human-readable error message.
    pub message: String,
    /// Field of the request that caused it.
    pub param: Option<String>,
    /// Seconds after which a retry makes sense.
    pub retry_after: Option<u32>,
}

/// Kind of an error, with its status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    UnsupportedMediaType,
    /// The run is closed or cancelled, or its recording has failed.
    Conflict,
    TooLarge,
    TooMany,
    /// The server failed or was unreachable.
    Upstream,
    /// No server is usable.
    Unavailable,
    UpstreamTimeout,
}

impl ErrorKind {
    /// Returns the status code and the `type` in the error body.
    const fn code(self) -> (u16, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request_error"),
            Self::Unauthorized => (401, "authentication_error"),
            Self::Forbidden => (403, "permission_error"),
            Self::NotFound => (404, "not_found_error"),
            Self::MethodNotAllowed => (405, "invalid_request_error"),
            Self::UnsupportedMediaType => (415, "invalid_request_error"),
            Self::Conflict => (409, "conflict_error"),
            Self::TooLarge => (413, "request_too_large"),
            Self::TooMany => (429, "rate_limit_error"),
            Self::Upstream => (502, "upstream_error"),
            Self::Unavailable => (503, "model_unavailable"),
            Self::UpstreamTimeout => (504, "upstream_timeout"),
        }
    }

    pub const fn status(self) -> u16 {
        self.code().0
    }

    /// Returns the `code` in the error body, where OpenAI has one.
    const fn openai_code(self) -> Option<&'static str> {
        match self {
            Self::Unauthorized => Some("invalid_api_key"),
            Self::TooMany => Some("rate_limit_exceeded"),
            _ => None,
        }
    }
}

impl CallError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None }
    }

    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Returns the body of the response, in the form of the OpenAI API.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind.code().1,
            "param": self.param,
            "code": self.kind.openai_code(),
        }})
    }
}

/// Returns the error of a server in the form of the OpenAI API. `None`: it cannot be parsed.
pub fn openai_error(body: &Bytes) -> Option<Bytes> {
    let error: Value = serde_json::from_slice(body).ok()?;
    if error.get("error").is_some_and(Value::is_object) {
        return Some(body.clone());
    }
    // SGLang omits the enclosing object.
    error.get("message")?.as_str()?;
    Some(json!({ "error": error }).to_string().into())
}
