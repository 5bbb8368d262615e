//! HTTP routes of the dashboard.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use rollway_net::JsonBody;
use rollway_telemetry::prometheus::{ExpositionFormat, PrometheusExporter};
use rollway_telemetry::view::{ActionResult, JobView, QUERIES, RunKey, RunQuery, TaskQuery};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::assets::{INDEX, LOGIN, assets};
use super::auth::{AuthError, DashboardAuth};
use super::event_stream::{self, EventHub};
use super::json_response::{self, error_response, tag};

/// Maximum length of a request body.
const MAX_BODY: usize = 4096;

/// Maximum number of runs of one page.
const MAX_PAGE: usize = 500;

/// Maximum number of concurrent queries; others wait.
const CONCURRENT_QUERIES: usize = 4;

/// Maximum number of metrics of one query.
const MAX_SERIES: usize = 100;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";

pub(super) struct DashboardState {
    view: Arc<dyn JobView>,
    metrics: Option<Arc<PrometheusExporter>>,
    auth: DashboardAuth,
    hub: Arc<EventHub>,
    queries: Semaphore,
}

impl DashboardState {
    pub(super) fn new(
        view: Arc<dyn JobView>,
        metrics: Option<Arc<PrometheusExporter>>,
        auth: DashboardAuth,
        hub: Arc<EventHub>,
    ) -> Arc<Self> {
        let queries = Semaphore::new(CONCURRENT_QUERIES);
        Arc::new(Self { view, metrics, auth, hub, queries })
    }

    /// Runs a query on a blocking thread.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn JobView) -> T + Send + 'static,
    ) -> Result<T, Response> {
        let failed = || error_response(StatusCode::INTERNAL_SERVER_ERROR, "the query failed");
        let _permit = self.queries.acquire().await.map_err(|_| failed())?;
        let view = Arc::clone(&self.view);
        tokio::task::spawn_blocking(move || query(&*view)).await.map_err(|_| failed())
    }
}

type Shares = State<Arc<DashboardState>>;
type Reply = Result<Response, Response>;

pub(super) fn router(shared: Arc<DashboardState>) -> Router {
    let mut api = Router::new();
    for (name, query) in QUERIES {
        let respond = move |State(shared): Shares, headers: HeaderMap| async move {
            let response = shared.query(query).await?;
            Ok::<_, Response>(json_response::json(&headers, &response))
        };
        api = api.route(&format!("/{name}"), get(respond));
    }
    let api = api
        .route("/batches/{batch}/abort", post(abort))
        .route("/runners", get(runners))
        .route("/runs", get(runs))
        .route("/runs/{batch}/{task}/{run}", get(run))
        .route("/series", get(series))
        .route("/tasks/{batch}", get(tasks))
        .route("/tasks/{batch}/{task}", get(task))
        .route("/runs/{batch}/{task}/{run}/cancel", post(cancel))
        .route("/events", get(follow))
        .fallback(async |uri: Uri| {
            error_response(StatusCode::NOT_FOUND, &format!("unknown endpoint: /api{}", uri.path()))
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), token_check))
        .layer(DefaultBodyLimit::max(MAX_BODY));
    Router::new()
        .nest("/api", api)
        .route("/assets/{name}", get(asset))
        .route("/metrics", get(metrics))
        .fallback(page)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), host_check))
        .with_state(shared)
}

/// Rejects foreign host names, and adds the security headers to every response.
async fn host_check(State(shared): Shares, request: Request, next: Next) -> Response {
    let mut response = match shared.auth.host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => unauthorized(error),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Checks the token of all requests, and the origin of actions.
async fn token_check(State(shared): Shares, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let mut allowed = shared.auth.token(headers);
    if request.method() != Method::GET && request.method() != Method::HEAD {
        allowed = allowed.and_then(|()| shared.auth.action(headers));
    }
    match allowed {
        Ok(()) => next.run(request).await,
        Err(error) => unauthorized(error),
    }
}

fn unauthorized(error: AuthError) -> Response {
    let (status, message) = match error {
        AuthError::Host => (
            StatusCode::MISDIRECTED_REQUEST,
            "this dashboard serves only this machine: use 127.0.0.1 or localhost",
        ),
        AuthError::Token => (
            StatusCode::UNAUTHORIZED,
            "missing or wrong token: it is printed with the address, and is in dashboard.json in \
             the job's folder",
        ),
        AuthError::Site => {
            (StatusCode::FORBIDDEN, "actions need the header X-Rollway and the dashboard's origin")
        }
    };
    error_response(status, message)
}

#[derive(Deserialize)]
struct PageQuery {
    token: Option<String>,
}

/// Serves the page for all other paths. A token in the address becomes a cookie.
async fn page(State(shared): Shares, uri: Uri, headers: HeaderMap) -> Response {
    let query = Query::<PageQuery>::try_from_uri(&uri).ok();
    let token = query.and_then(|Query(query)| query.token);
    if token.as_deref().is_some_and(|token| shared.auth.is_token(token)) {
        return ([(header::SET_COOKIE, shared.auth.cookie())], Html(INDEX)).into_response();
    }
    match shared.auth.token(&headers) {
        Ok(()) => Html(INDEX).into_response(),
        Err(_) => (StatusCode::UNAUTHORIZED, Html(LOGIN)).into_response(),
    }
}

/// Serves an asset; these need no token.
async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = assets().find(|asset| asset.name == name) else {
        return error_response(StatusCode::NOT_FOUND, &format!("unknown asset: {name}"));
    };
    let tag = format!("\"{:016x}\"", tag(&asset.text));
    let always = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    if known == Some(&*tag) {
        return (StatusCode::NOT_MODIFIED, always).into_response();
    }
    (always, [(header::CONTENT_TYPE, asset.kind)], asset.text).into_response()
}

async fn metrics(State(shared): Shares, headers: HeaderMap) -> Reply {
    shared.auth.token(&headers).map_err(unauthorized)?;
    let missing = || error_response(StatusCode::NOT_FOUND, "metrics are disabled");
    let exporter = shared.metrics.as_ref().ok_or_else(missing)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = ExpositionFormat::accepted(accept);
    let text = exporter.render(form).await;
    Ok(([(header::CONTENT_TYPE, form.content_type())], text).into_response())
}

async fn runners(State(shared): Shares, headers: HeaderMap) -> Reply {
    let runners = shared.view.runners().await;
    Ok(json_response::json(&headers, &runners))
}

/// Query parameters; invalid ones are an error in JSON.
struct ViewQuery<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for ViewQuery<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(query)| Self(query))
            .map_err(|error| error_response(StatusCode::BAD_REQUEST, &error.body_text()))
    }
}

async fn runs(
    State(shared): Shares,
    headers: HeaderMap,
    ViewQuery(mut query): ViewQuery<RunQuery>,
) -> Reply {
    query.limit = query.limit.min(MAX_PAGE);
    let page = shared.query(move |view| view.runs(&query)).await?;
    Ok(json_response::json(&headers, &page))
}

type RunPath = Path<(String, u32, u32)>;

async fn run(
    State(shared): Shares,
    headers: HeaderMap,
    Path((batch, task, run)): RunPath,
) -> Reply {
    let key = RunKey { batch, task, run };
    let detail = shared.query(move |view| view.run(&key)).await?;
    let unknown = || error_response(StatusCode::NOT_FOUND, "unknown or dropped run");
    let detail = detail.ok_or_else(unknown)?;
    Ok(json_response::json(&headers, &detail))
}

#[derive(Deserialize)]
struct SeriesQuery {
    /// One name in each line.
    names: String,
}

async fn series(
    State(shared): Shares,
    headers: HeaderMap,
    ViewQuery(query): ViewQuery<SeriesQuery>,
) -> Reply {
    let names: Vec<String> = query.names.lines().take(MAX_SERIES).map(str::to_owned).collect();
    let series = shared.query(move |view| view.series(&names)).await?;
    Ok(json_response::json(&headers, &series))
}

async fn tasks(
    State(shared): Shares,
    headers: HeaderMap,
    Path(batch): Path<String>,
    ViewQuery(query): ViewQuery<TaskQuery>,
) -> Reply {
    let query = TaskQuery { batch, ..query };
    let page = shared.query(move |view| view.tasks(&query)).await?;
    let unknown = || error_response(StatusCode::NOT_FOUND, "unknown or dropped batch");
    Ok(json_response::json(&headers, &page.ok_or_else(unknown)?))
}

async fn task(
    State(shared): Shares,
    headers: HeaderMap,
    Path((batch, task)): Path<(String, u32)>,
) -> Reply {
    let detail = shared.query(move |view| view.task(&batch, task)).await?;
    let unknown = || error_response(StatusCode::NOT_FOUND, "unknown or dropped task");
    Ok(json_response::json(&headers, &detail.ok_or_else(unknown)?))
}

async fn follow(
    State(shared): Shares,
    ViewQuery(query): ViewQuery<event_stream::EventQuery>,
) -> Response {
    shared.hub.follow(&query).unwrap_or_else(|| {
        let message = "too many open pages of this job: close some of them";
        error_response(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

async fn cancel(State(shared): Shares, Path((batch, task, run)): RunPath) -> Response {
    action_response(&shared.view.cancel_run(&RunKey { batch, task, run }).await)
}

#[derive(Deserialize)]
struct AbortRequest {
    #[serde(default)]
    keep_partial: bool,
}

async fn abort(
    State(shared): Shares,
    Path(batch): Path<String>,
    JsonBody(request): JsonBody<AbortRequest>,
) -> Response {
    action_response(&shared.view.abort_batch(&batch, request.keep_partial).await)
}

fn action_response(result: &ActionResult) -> Response {
    if result.done {
        return JsonBody(result).into_response();
    }
    error_response(StatusCode::CONFLICT, &result.message)
}
