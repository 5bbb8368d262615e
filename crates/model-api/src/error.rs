//! Errors of model calls.

use bytes::Bytes;
use serde_json::{Value, json};

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    pub kind: ErrorKind,
    /// What happened and what to do, for people.
    pub message: String,
    /// The field of the request that is to blame.
    pub param: Option<String>,
    /// After how many seconds another try makes sense.
    pub retry_after: Option<u32>,
}

/// The kinds of errors, each with its status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong: 400.
    InvalidRequest,
    /// There is no valid key: 401.
    Unauthorized,
    /// The key is valid, but not for this: 403.
    Forbidden,
    /// There is no such thing: 404.
    NotFound,
    /// Another method is meant: 405.
    MethodNotAllowed,
    /// The run is over, was cancelled, or its recording has failed: 409.
    Conflict,
    /// The body is too large: 413.
    TooLarge,
    /// Too much is under way: 429.
    TooMany,
    /// The server failed, or could not be reached: 502.
    Upstream,
    /// No server can be used at the moment: 503.
    Unavailable,
    /// The server took too long: 504.
    UpstreamTimeout,
}

impl ErrorKind {
    /// The status code.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::TooMany => 429,
            Self::Upstream => 502,
            Self::Unavailable => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// The `type` of the error in the answer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::MethodNotAllowed => "invalid_request_error",
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Conflict => "conflict_error",
            Self::TooLarge => "request_too_large",
            Self::TooMany => "rate_limit_error",
            Self::Upstream => "upstream_error",
            Self::Unavailable => "model_unavailable",
            Self::UpstreamTimeout => "upstream_timeout",
        }
    }
}

impl CallError {
    /// Returns an error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None }
    }

    /// Says which field of the request is to blame.
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says after how many seconds another try makes sense.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Returns the body of the response, in the form of the OpenAI API.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind.name(),
            "param": self.param,
            "code": self.kind.status(),
        }})
    }
}

/// Returns the error of a server in the form of the OpenAI API; none if it cannot be parsed.
pub fn openai_error(body: &Bytes) -> Option<Bytes> {
    let error: Value = serde_json::from_slice(body).ok()?;
    if error.get("error").is_some_and(Value::is_object) {
        return Some(body.clone());
    }
    // SGLang omits the enclosing object.
    error.get("message")?.as_str()?;
    Some(json!({ "error": error }).to_string().into())
}
