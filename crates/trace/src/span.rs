//! Spans, as both exporters take them.

use std::sync::Arc;

use super::ids::{SpanId, TraceId};

/// Nanoseconds since 1970.
pub(super) type Nanos = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Step,
    Eval,
    Sync,
    Batch,
    Task,
    /// A run over all its attempts.
    Run,
    /// All runs of an attempt; only in the trace file.
    Slice,
    /// One run in one attempt.
    Attempt,
    Call,
}

impl SpanKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Eval => "eval",
            Self::Sync => "sync",
            Self::Batch => "batch",
            Self::Task => "task",
            Self::Run => "run",
            Self::Slice => "slice",
            Self::Attempt => "attempt",
            Self::Call => "call",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) kind: SpanKind,
    pub(super) trace: TraceId,
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    /// Related span of another trace.
    pub(super) link: Option<(TraceId, SpanId)>,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
    pub(super) status: SpanStatus,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    pub(super) events: Vec<(Nanos, &'static str)>,
}

impl Span {
    pub(super) fn new(
        kind: SpanKind,
        (trace, id, parent): (TraceId, SpanId, Option<SpanId>),
        begin: Nanos,
        attributes: Vec<(&'static str, AttributeValue)>,
    ) -> Self {
        Self {
            kind,
            trace,
            id,
            parent,
            link: None,
            begin,
            end: begin,
            status: SpanStatus::Unset,
            attributes,
            events: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.attributes.push((name, value.into()));
    }

    /// Adds an attribute if its value is known.
    pub(super) fn push_known(
        &mut self,
        name: &'static str,
        value: Option<impl Into<AttributeValue>>,
    ) {
        if let Some(value) = value {
            self.push(name, value);
        }
    }

    /// Marks a span that had not ended when the job did.
    pub(super) fn set_unfinished(&mut self) {
        self.push("rollway.outcome", "unfinished");
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum SpanStatus {
    /// Cancelled or not ended.
    Unset,
    Ok,
    Error(Arc<str>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeValue {
    Text(Arc<str>),
    Integer(i64),
    Float(f64),
}

macro_rules! attribute_from {
    ($($from:ty: $value:ident => $attribute:expr,)*) => {
        $(impl From<$from> for AttributeValue {
            fn from($value: $from) -> Self {
                $attribute
            }
        })*
    };
}

attribute_from! {
    &str: text => Self::Text(text.into()),
    String: text => Self::Text(text.into()),
    &Arc<str>: text => Self::Text(Arc::clone(text)),
    u16: number => Self::Integer(number.into()),
    u32: number => Self::Integer(number.into()),
    u64: number => Self::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
    f64: number => Self::Float(number),
}
