//! Responses: full ones and streams of events.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use rollway_net::JsonBody;
use serde_json::Value;

use super::api_error::ApiError;
use super::faults::MockFault;
use super::generation::{Event, Generation, Step};
use super::generation_state::GenerationState;
use super::request::MockRequest;
use super::scoring;
use super::server_api::Format;

/// Response extension: the connection is closed instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disconnected;

pub(super) async fn respond(
    state: &Arc<GenerationState>,
    request: Result<MockRequest, ApiError>,
    format: impl FnOnce(&MockRequest) -> Box<dyn Format>,
) -> Response {
    state.count(|counts| counts.requests += 1);
    let request = match request {
        Ok(request) => request,
        Err(error) => return error.into_response(),
    };
    let fault = state.lock().faults.next();
    match fault {
        Some(MockFault::Status(status)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            state.count(|counts| counts.failed += 1);
            return ApiError::new(status, "injected fault").into_response();
        }
        Some(MockFault::Cut) => {
            state.count(|counts| counts.failed += 1);
            return disconnected();
        }
        _ => {}
    }
    if request.only_scores() {
        let version = state.gate.borrow().version;
        return JsonBody(scoring::response(&state.options, &request, version)).into_response();
    }
    let format = format(&request);
    let is_stream = request.stream;
    let generation = Generation::begin(state, request, fault).await;
    if is_stream { stream_events(generation, format) } else { full(generation, format).await }
}

pub(super) fn disconnected() -> Response {
    let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
    response.extensions_mut().insert(Disconnected);
    response
}

async fn full(mut generation: Generation, mut format: Box<dyn Format>) -> Response {
    let mut choices: Vec<Vec<Step>> = vec![Vec::new(); generation.request.choices()];
    loop {
        match generation.next().await {
            Event::Steps(steps) => {
                for step in steps {
                    choices[step.choice].push(step);
                }
            }
            Event::Cut => return disconnected(),
            Event::End => return JsonBody(format.full(&generation, &choices)).into_response(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    Begin,
    Middle,
    End,
}

fn stream_events(generation: Generation, format: Box<dyn Format>) -> Response {
    let state = (generation, format, StreamPhase::Begin);
    let body = stream::unfold(state, |(mut generation, mut format, stage)| async move {
        let (events, next) = match stage {
            StreamPhase::End => return None,
            StreamPhase::Begin => {
                (Ok(write(&format.begin(&generation), false)), StreamPhase::Middle)
            }
            StreamPhase::Middle => next_events(&mut generation, format.as_mut()).await,
        };
        Some((events, (generation, format, next)))
    });
    let mut response = Body::from_stream(body).into_response();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn next_events(
    generation: &mut Generation,
    format: &mut dyn Format,
) -> (io::Result<Bytes>, StreamPhase) {
    match generation.next().await {
        Event::Steps(steps) => {
            (Ok(write(&format.steps(generation, &steps), false)), StreamPhase::Middle)
        }
        Event::End => (Ok(write(&format.end(generation), true)), StreamPhase::End),
        Event::Cut => {
            // Earlier events are written first.
            tokio::task::yield_now().await;
            (Err(io::Error::other("injected fault")), StreamPhase::End)
        }
    }
}

fn write(events: &[Value], is_last: bool) -> Bytes {
    let mut bytes = Vec::with_capacity(256 * events.len() + 16);
    for event in events {
        bytes.extend_from_slice(b"data: ");
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.extend_from_slice(b"\n\n");
    }
    if is_last {
        bytes.extend_from_slice(b"data: [DONE]\n\n");
    }
    bytes.into()
}
