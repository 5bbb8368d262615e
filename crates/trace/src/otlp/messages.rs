//! OTLP messages, as far as they are written.

use prost::{Message, Oneof};

use crate::span;

/// Span kinds.
const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;

/// Status codes.
const OK: i32 = 1;
const ERROR: i32 = 2;

/// Bit 0: sampled. Bit 8: it is known whether the parent is remote (it is not).
const FLAGS: u32 = 0x101;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Export {
    #[prost(message, repeated, tag = "1")]
    pub(super) resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(fixed64, tag = "1")]
    time: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Content", tags = "1, 3, 4")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Content {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

/// Response of a collector.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Exported {
    #[prost(message, optional, tag = "1")]
    pub(super) partly: Option<Partly>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Partly {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

impl KeyValue {
    pub(super) fn text(key: &str, text: &str) -> Self {
        Self::new(key, Content::Text(text.to_owned()))
    }

    fn new(key: &str, content: Content) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { content: Some(content) }) }
    }
}

impl From<&(&'static str, span::AttributeValue)> for KeyValue {
    fn from((key, value): &(&'static str, span::AttributeValue)) -> Self {
        let content = match value {
            span::AttributeValue::Text(text) => Content::Text(text.as_ref().to_owned()),
            span::AttributeValue::Integer(number) => Content::Integer(*number),
            span::AttributeValue::Float(number) => Content::Float(*number),
        };
        Self::new(key, content)
    }
}

impl From<&span::Span> for Span {
    fn from(span: &span::Span) -> Self {
        let status = match &span.status {
            span::SpanStatus::Unset => None,
            span::SpanStatus::Ok => Some(Status { message: String::new(), code: OK }),
            span::SpanStatus::Error(message) => {
                Some(Status { message: message.as_ref().to_owned(), code: ERROR })
            }
        };
        let link = |(trace, span): &(super::TraceId, super::SpanId)| Link {
            trace_id: trace.0.to_vec(),
            span_id: span.0.to_vec(),
        };
        let event =
            |(time, name): &(u64, &'static str)| Event { time: *time, name: (*name).to_owned() };
        Self {
            trace_id: span.trace.0.to_vec(),
            span_id: span.id.0.to_vec(),
            parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
            name: span.kind.name().to_owned(),
            kind: if span.kind == span::SpanKind::Call { CLIENT } else { INTERNAL },
            start: span.begin,
            end: span.end,
            attributes: span.attributes.iter().map(KeyValue::from).collect(),
            events: span.events.iter().map(event).collect(),
            links: span.link.iter().map(link).collect(),
            status,
            flags: FLAGS,
        }
    }
}
