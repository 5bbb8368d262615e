//! HTTP server: authentication, routes and fallbacks.
//!
//! Path of a call: `rollway-net` accepts the connection, `authenticate` checks the key,
//! `request_body` reads the body within its limits, `calls` begins the recording, `upstream` sends
//! the request and retries at other servers, `relay` streams the response, `response_body` detects
//! whether the client received all of it.

mod admin;
mod agents;
mod auxiliary;
mod byte_budget;
mod calls;
mod calls_in_flight;
mod exact_history;
mod experiences;
mod metrics;
mod observed_call;
mod previous_response;
mod prompt_list;
mod record_response;
mod recorded_bytes;
mod refusal;
mod relay;
mod request_body;
mod response_body;
mod responses;
mod run_budget;
mod run_seed;
mod run_sessions;
mod server_metrics;
mod server_reply;
mod site;
mod state;
mod token_texts;
mod turn_store;
mod upstream;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use rollway_model_api::client_api::{self, CLIENT_APIS};
use rollway_model_api::{CallError, ErrorKind};

pub use self::calls_in_flight::CallInFlight;
use self::request_body::LeasedBody;
pub(crate) use self::request_body::body as read_body;
pub(crate) use self::responses::{HandlerResult, json as json_response};
pub(crate) use self::state::GatewayState;
pub(crate) use self::token_texts::token_texts;
pub use self::turn_store::{StoreFuture, TurnStore};
use crate::keys::{self, Caller};

const EMBEDDINGS: &str = "/v1/embeddings";

/// The only path without authentication.
const HEALTH: &str = "/health";

pub(crate) fn router(app: &Arc<GatewayState>) -> Router {
    let mut routes = Router::new();
    let client_routes = CLIENT_APIS.iter().flat_map(|api| api.routes());
    let patterns: BTreeSet<String> = client_routes.map(|route| route.axum_pattern()).collect();
    // The same with a key in the path, see `keys::split_path`.
    for prefix in ["", &format!("{}/{{key}}", keys::KEY_PREFIX)] {
        for pattern in &patterns {
            routes = routes.route(&format!("{prefix}{pattern}"), post(calls::client_request));
        }
        routes = routes
            .route(&format!("{prefix}/v1/models"), get(admin::list_names))
            .route(&format!("{prefix}{EMBEDDINGS}"), post(auxiliary::embeddings));
    }
    let routes = routes
        .route("/v1/models/{*id}", get(admin::one_name))
        .route("/rollway/v1/run/experiences", get(experiences::experiences))
        .route("/rollway/v1/run/usage", get(run_budget::usage))
        .route("/rollway/v1/models", get(admin::list).post(admin::add))
        .route("/rollway/v1/models/update", post(admin::update))
        .route("/rollway/v1/models/{id}", delete(admin::remove))
        .route("/rollway/v1/models/{id}/restart", post(admin::restart))
        .route("/metrics", get(metrics::show))
        .route("/openapi.json", get(responses::openapi))
        .route(HEALTH, get(responses::health))
        .with_state(Arc::clone(app));
    let further = app.history.as_ref().map(|history| history.routes()).unwrap_or_default();
    let further = further.layer(middleware::from_fn_with_state(Arc::clone(app), admit_further));
    routes
        .merge(further)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(app), authenticate))
}

/// Paths of agents in serve mode, beside `/v1/`.
const AGENT_PATHS: [&str; 2] = ["/feedback", "/commit"];

/// Authenticates all requests but `/health`; run keys are valid below `/v1` and `/rollway/v1/run`
/// only, agent keys below `/v1` and for feedback. The response to an invalid key does not depend on
/// the path.
async fn authenticate(
    State(app): State<Arc<GatewayState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (_, path) = keys::split_path(request.uri().path());
    let endpoint = metrics::endpoint(path);
    let is_health = request.uri().path() == HEALTH;
    let is_framed = site::check_framing(request.headers());
    let is_ambiguous = is_framed.is_err();
    let caller = is_framed.and_then(|()| match is_health {
        true => Ok(None),
        false => authorize(&app, &request).map(Some),
    });
    let mut response = match caller {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(error) => match client_api::at_path(keys::split_path(request.uri().path()).1) {
            Some(route) => responses::client_error(route.api, &error),
            None => responses::error(&error),
        },
    };
    if is_ambiguous {
        // What follows may be the rest of this request.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    app.metrics.count_request(endpoint, response.status());
    response
}

/// Takes the requests of serve mode within the limits of calls: their number, and the memory of
/// their bodies.
async fn admit_further(
    State(app): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let admitted = async {
        let permits = calls::acquire_permits(&app, None)?;
        Ok((permits, request_body::json(&app, caller, request).await?))
    };
    match admitted.await {
        Ok((_permits, LeasedBody { json, lease: _lease })) => {
            next.run(Request::from_parts(parts, json.into())).await
        }
        Err(error) => responses::error(&error),
    }
}

fn authorize(app: &GatewayState, request: &Request) -> Result<Caller, CallError> {
    let (path_key, path) = keys::split_path(request.uri().path());
    let mut presented = path_key.into_iter().chain(keys::header_keys(request.headers()));
    let caller = presented.find_map(|key| app.keys.authenticate(key));
    let is_open = app.history.as_ref().is_some_and(|history| !history.needs_key());
    let caller = match caller {
        Some(caller) => caller,
        None if is_open => {
            site::check(&app.options.listen, request.headers())?;
            Caller::Agent
        }
        None => {
            let message = "no valid key: send a run key, the agent key or the admin key as \
                           `Authorization: Bearer KEY` or `x-api-key: KEY`, or in the path as \
                           `/r/KEY/v1/...`";
            return Err(CallError::new(ErrorKind::Unauthorized, message));
        }
    };
    permit(app, caller, path)?;
    if request.method() == Method::POST {
        site::check_content_type(request)?;
    }
    Ok(caller)
}

/// Checks that the key of a caller opens a path.
fn permit(app: &GatewayState, caller: Caller, path: &str) -> Result<(), CallError> {
    let is_call = path.starts_with("/v1/") || client_api::at_path(path).is_some();
    let (is_allowed, message) = match caller {
        Caller::Admin => return Ok(()),
        Caller::Agent => {
            let message = "an agent is permitted `/v1`, `/feedback` and `/commit` only: send the \
                           admin key";
            (is_call || AGENT_PATHS.contains(&path), message)
        }
        Caller::Run(name) => {
            app.runs.check(name)?;
            let message = "a run key is valid for `/v1` and `/rollway/v1/run` only: send the \
                           admin key";
            (is_call || path.starts_with("/rollway/v1/run/"), message)
        }
    };
    if is_allowed { Ok(()) } else { Err(CallError::new(ErrorKind::Forbidden, message)) }
}

async fn not_found(request: Request) -> Response {
    let message = format!("unknown endpoint: {}", shortened(request.uri().path()));
    responses::error(&CallError::new(ErrorKind::NotFound, message))
}

async fn method_not_allowed(request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let message = format!("{} not allowed for {}", shortened(method), shortened(path));
    responses::error(&CallError::new(ErrorKind::MethodNotAllowed, message))
}

/// Limits a text of the client to 100 characters.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
