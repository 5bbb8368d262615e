//! A span: something that was done, from when to when, inside of what.

use std::sync::Arc;

use super::ids::{SpanId, TraceId};

/// Nanoseconds since 1970.
pub(super) type Nanos = u64;

/// Something that was done.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) trace: TraceId,
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    /// What it belongs to in another trace.
    pub(super) link: Option<(TraceId, SpanId)>,
    pub(super) name: &'static str,
    /// Whether it is a request to another program.
    pub(super) is_request: bool,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
    pub(super) status: SpanStatus,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    /// Moments in between.
    pub(super) moments: Vec<(Nanos, &'static str)>,
}

/// How it went.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SpanStatus {
    /// Nobody can say: given up, or not ended yet.
    Open,
    Well,
    /// Badly, and what happened.
    Badly(Arc<str>),
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeValue {
    Text(Arc<str>),
    Whole(i64),
    Number(f64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&Arc<str>> for AttributeValue {
    fn from(text: &Arc<str>) -> Self {
        Self::Text(Arc::clone(text))
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Whole(i64::from(number))
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}
