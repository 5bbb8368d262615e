//! How a request becomes a response: whole, or as a stream of events.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use serde_json::Value;

use super::ask::Ask;
use super::engine::Engine;
use super::faults::Fault;
use super::form::Form;
use super::generation::{Event, Generation, Step};
use super::refusal::Refusal;

/// On a response: the connection is lost instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost;

/// Answers a request.
pub(super) async fn answer(
    engine: &Arc<Engine>,
    ask: Result<Ask, Refusal>,
    form: impl FnOnce(&Ask) -> Box<dyn Form>,
) -> Response {
    engine.count(|counts| counts.requests += 1);
    let ask = match ask {
        Ok(ask) => ask,
        Err(refusal) => return refusal.response(engine.kind()),
    };
    let fault = engine.lock().faults.next();
    match fault {
        Some(Fault::Status(status)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            engine.count(|counts| counts.failed += 1);
            return Refusal::new(status, "refused, as it was told to").response(engine.kind());
        }
        Some(Fault::Cut) => {
            engine.count(|counts| counts.failed += 1);
            return lost();
        }
        _ => {}
    }
    let form = form(&ask);
    let is_stream = ask.stream;
    let generation = Generation::begin(engine, ask, fault).await;
    if is_stream { events(generation, form) } else { whole(generation, form).await }
}

fn lost() -> Response {
    let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
    response.extensions_mut().insert(Lost);
    response
}

/// Answers at once, when all is said.
async fn whole(mut generation: Generation, mut form: Box<dyn Form>) -> Response {
    let mut choices: Vec<Vec<Step>> = vec![Vec::new(); generation.ask.choices()];
    loop {
        match generation.next().await {
            Event::Steps(steps) => {
                for step in steps {
                    choices[step.choice].push(step);
                }
            }
            Event::Cut => return lost(),
            Event::End => return Json(form.whole(&generation, &choices)).into_response(),
        }
    }
}

/// Where a stream of events is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Middle,
    End,
}

/// Answers as it is said.
fn events(generation: Generation, form: Box<dyn Form>) -> Response {
    let state = (generation, form, Stage::Begin);
    let body = stream::unfold(state, |(mut generation, mut form, stage)| async move {
        let (events, next) = match stage {
            Stage::End => return None,
            Stage::Begin => (Ok(write(&form.begin(&generation), false)), Stage::Middle),
            Stage::Middle => middle(&mut generation, form.as_mut()).await,
        };
        Some((events, (generation, form, next)))
    });
    let mut response = Body::from_stream(body).into_response();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn middle(generation: &mut Generation, form: &mut dyn Form) -> (io::Result<Bytes>, Stage) {
    match generation.next().await {
        Event::Steps(steps) => (Ok(write(&form.steps(generation, &steps), false)), Stage::Middle),
        Event::End => (Ok(write(&form.end(generation), true)), Stage::End),
        Event::Cut => {
            // What was said before is on its way first.
            tokio::task::yield_now().await;
            (Err(io::Error::other("cut, as it was told to")), Stage::End)
        }
    }
}

fn write(events: &[Value], is_last: bool) -> Bytes {
    let mut bytes = Vec::with_capacity(256 * events.len() + 16);
    for event in events {
        bytes.extend_from_slice(b"data: ");
        // Writing a value into memory cannot fail.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.extend_from_slice(b"\n\n");
    }
    if is_last {
        bytes.extend_from_slice(b"data: [DONE]\n\n");
    }
    bytes.into()
}
