//! Model calls that are under way.

use std::collections::HashMap;
use std::sync::Arc;

use rollway_engine::events::{CallEvent, CallEventKind};

use super::ids::{SpanNamer, TraceId};
use super::outcome::unfinished;
use super::span::{AttributeValue, Nanos, Span, SpanStatus};

/// From which status on a call has failed.
const FAILED: u16 = 400;

#[derive(Debug)]
struct OpenCallSpan {
    trace: TraceId,
    call: CallEvent,
    model: Arc<str>,
    began: Nanos,
    sent: Vec<(Nanos, Arc<str>)>,
}

/// Model calls that are under way.
#[derive(Debug)]
pub(super) struct CallSpans {
    names: SpanNamer,
    open: HashMap<u64, OpenCallSpan>,
}

impl CallSpans {
    pub(super) fn new(names: SpanNamer) -> Self {
        Self { names, open: HashMap::new() }
    }

    /// Notes a moment of a call; returns its span when it is over. `trace`: that of its attempt,
    /// which may be over already.
    pub(super) fn note(
        &mut self,
        at: Nanos,
        call: &CallEvent,
        trace: Option<TraceId>,
    ) -> Option<Span> {
        match &call.moment {
            CallEventKind::Began { model } => {
                let (call, model) = (call.clone(), Arc::clone(model));
                let open = OpenCallSpan { trace: trace?, call, model, began: at, sent: Vec::new() };
                self.open.insert(open.call.call, open);
                None
            }
            CallEventKind::Sent { server } => {
                let open = self.open.get_mut(&call.call)?;
                open.sent.push((at, Arc::clone(server)));
                None
            }
            CallEventKind::Ended { status, prompt_tokens, answer_tokens, version } => {
                let open = self.open.remove(&call.call)?;
                let mut more = vec![("http.response.status_code", u32::from(*status).into())];
                let known = [
                    ("gen_ai.usage.input_tokens", prompt_tokens),
                    ("gen_ai.usage.output_tokens", answer_tokens),
                    ("rollway.model.version", version),
                ];
                more.extend(
                    known
                        .into_iter()
                        .filter_map(|(name, value)| Some((name, AttributeValue::from((*value)?)))),
                );
                let status = match *status {
                    FAILED.. => {
                        more.push(("error.type", status.to_string().into()));
                        SpanStatus::Badly(format!("the call was answered with {status}").into())
                    }
                    _ => SpanStatus::Well,
                };
                Some(self.span(at, open, status, more))
            }
        }
    }

    /// Returns what is under way.
    pub(super) fn close(&mut self, at: Nanos) -> Vec<Span> {
        let open = std::mem::take(&mut self.open);
        open.into_values()
            .map(|open| self.span(at, open, SpanStatus::Open, vec![unfinished()]))
            .collect()
    }

    fn span(
        &self,
        at: Nanos,
        open: OpenCallSpan,
        status: SpanStatus,
        more: Vec<(&'static str, AttributeValue)>,
    ) -> Span {
        let OpenCallSpan { trace, call, model, began, sent } = open;
        let mut attributes = vec![
            ("gen_ai.request.model", AttributeValue::from(&model)),
            ("rollway.run", call.run.0.into()),
            ("rollway.attempt", call.attempt.0.into()),
            ("rollway.call", call.call.into()),
        ];
        if let Some((_, server)) = sent.last() {
            attributes.push(("server.address", server.into()));
        }
        attributes.extend(more);
        Span {
            trace,
            id: self.names.call(call.attempt, call.run, call.call),
            parent: Some(self.names.attempt(call.attempt, call.run)),
            link: None,
            name: "call",
            is_request: true,
            begin: began,
            end: at.max(began),
            status,
            attributes,
            moments: sent.into_iter().map(|(at, _)| (at, "sent")).collect(),
        }
    }
}
