//! The addresses of the dashboard.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rollway_telemetry::prometheus::{ExpositionFormat, PrometheusExporter};
use rollway_telemetry::view::{ActionResult, JobView, RunKey, RunQuery};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::assets::{ASSETS, ENTER, INDEX};
use super::auth::{AuthError, DashboardAuth};
use super::event_stream::{self, EventHub};
use super::json_response::{self, refusal, tag};

/// The longest body that is taken: acts are short.
const MAX_BODY: usize = 4096;

/// The most runs of one page.
const MAX_PAGE: usize = 500;

/// How many questions are worked out at once; others wait.
const CONCURRENT_QUERIES: usize = 4;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";

/// What every call needs.
pub(super) struct DashboardState {
    scene: Arc<dyn JobView>,
    metrics: Option<Arc<PrometheusExporter>>,
    guard: DashboardAuth,
    hub: Arc<EventHub>,
    looks: Semaphore,
}

impl DashboardState {
    pub(super) fn new(
        scene: Arc<dyn JobView>,
        metrics: Option<Arc<PrometheusExporter>>,
        guard: DashboardAuth,
        hub: Arc<EventHub>,
    ) -> Arc<Self> {
        Arc::new(Self { scene, metrics, guard, hub, looks: Semaphore::new(CONCURRENT_QUERIES) })
    }

    /// Looks at the scene on a thread that may take its time.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn JobView) -> T + Send + 'static,
    ) -> Result<T, Response> {
        let broken =
            || refusal(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be worked out");
        let _turn = self.looks.acquire().await.map_err(|_| broken())?;
        let scene = Arc::clone(&self.scene);
        tokio::task::spawn_blocking(move || look(&*scene)).await.map_err(|_| broken())
    }
}

type Shares = State<Arc<DashboardState>>;
type Reply = Result<Response, Response>;

pub(super) fn router(shared: Arc<DashboardState>) -> Router {
    let api = Router::new()
        .route("/job", get(job))
        .route("/overview", get(overview))
        .route("/timeline", get(timeline))
        .route("/batches", get(batches))
        .route("/batches/{batch}/abort", post(abort))
        .route("/runners", get(runners))
        .route("/runs", get(runs))
        .route("/runs/{batch}/{task}/{run}", get(run))
        .route("/runs/{batch}/{task}/{run}/cancel", post(cancel))
        .route("/bias", get(bias))
        .route("/alarms", get(alarms))
        .route("/events", get(follow))
        .fallback(async || refusal(StatusCode::NOT_FOUND, "there is no such question"))
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

/// Turns names away that are not ours, and has every answer say what a browser may do with it.
async fn host_check(State(shared): Shares, request: Request, next: Next) -> Response {
    let mut answer = match shared.guard.host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(stranger) => turned_away(stranger),
    };
    let headers = answer.headers_mut();
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
    answer
}

/// Lets nobody ask or act without the token, and no other site act at all.
async fn token_check(State(shared): Shares, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let mut allowed = shared.guard.token(headers);
    if request.method() != Method::GET && request.method() != Method::HEAD {
        allowed = allowed.and_then(|()| shared.guard.act(headers));
    }
    match allowed {
        Ok(()) => next.run(request).await,
        Err(stranger) => turned_away(stranger),
    }
}

fn turned_away(stranger: AuthError) -> Response {
    let (status, words) = match stranger {
        AuthError::Host => (
            StatusCode::MISDIRECTED_REQUEST,
            "this dashboard is for this machine: call it by 127.0.0.1 or localhost",
        ),
        AuthError::Token => (
            StatusCode::UNAUTHORIZED,
            "the token of this dashboard is missing or is another one: it is printed with the \
             address, and is in dashboard.json in the job's folder",
        ),
        AuthError::Site => (
            StatusCode::FORBIDDEN,
            "acts need the header X-Rollway, and come from the dashboard's own pages",
        ),
    };
    refusal(status, words)
}

#[derive(Deserialize)]
struct Opening {
    token: Option<String>,
}

/// The page, at whatever address: the script knows which part of it is meant. Whoever comes with
/// the token in the address gets it as a cookie.
async fn page(State(shared): Shares, uri: Uri, headers: HeaderMap) -> Response {
    let opening = Query::<Opening>::try_from_uri(&uri).ok();
    let given = opening.and_then(|Query(opening)| opening.token);
    if given.as_deref().is_some_and(|token| shared.guard.opens(token)) {
        return ([(header::SET_COOKIE, shared.guard.cookie())], Html(INDEX)).into_response();
    }
    match shared.guard.token(&headers) {
        Ok(()) => Html(INDEX).into_response(),
        Err(_) => (StatusCode::UNAUTHORIZED, Html(ENTER)).into_response(),
    }
}

/// The files of the pages are no secret.
async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return refusal(StatusCode::NOT_FOUND, "there is no such file");
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
    if !shared.guard.is_private() {
        shared.guard.token(&headers).map_err(turned_away)?;
    }
    let missing = || refusal(StatusCode::NOT_FOUND, "no metrics are kept");
    let meters = shared.metrics.as_ref().ok_or_else(missing)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = ExpositionFormat::accepted(accept);
    let text = meters.render(form).await;
    Ok(([(header::CONTENT_TYPE, form.content_type())], text).into_response())
}

async fn job(State(shared): Shares, headers: HeaderMap) -> Reply {
    let job = shared.look(|scene| scene.job()).await?;
    Ok(json_response::json(&headers, event_stream::of_job(&job), &job))
}

async fn overview(State(shared): Shares, headers: HeaderMap) -> Reply {
    let overview = shared.look(|scene| scene.overview()).await?;
    Ok(json_response::json(&headers, event_stream::of_overview(&overview), &overview))
}

async fn timeline(State(shared): Shares, headers: HeaderMap) -> Reply {
    let timeline = shared.look(|scene| scene.timeline()).await?;
    Ok(json_response::json(&headers, event_stream::of_timeline(&timeline), &timeline))
}

async fn batches(State(shared): Shares, headers: HeaderMap) -> Reply {
    let batches = shared.look(|scene| scene.batches()).await?;
    Ok(json_response::json(&headers, tag(&batches), &batches))
}

async fn runners(State(shared): Shares, headers: HeaderMap) -> Reply {
    let runners = shared.scene.runners().await;
    Ok(json_response::json(&headers, tag(&runners), &runners))
}

/// A query in the address; what cannot be read is said in words.
struct ViewQuery<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for ViewQuery<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(query)| Self(query))
            .map_err(|error| refusal(StatusCode::BAD_REQUEST, &error.body_text()))
    }
}

async fn runs(
    State(shared): Shares,
    headers: HeaderMap,
    ViewQuery(mut query): ViewQuery<RunQuery>,
) -> Reply {
    query.limit = query.limit.min(MAX_PAGE);
    let page = shared.look(move |scene| scene.runs(&query)).await?;
    Ok(json_response::json(&headers, tag(&page), &page))
}

type Which = Path<(String, u32, u32)>;

async fn run(State(shared): Shares, headers: HeaderMap, Path(which): Which) -> Reply {
    let (batch, task, run) = which;
    let key = RunKey { batch, task, run };
    let detail = shared.look(move |scene| scene.run(&key)).await?;
    let unknown = || refusal(StatusCode::NOT_FOUND, "this run is not known, or is not kept");
    let detail = detail.ok_or_else(unknown)?;
    Ok(json_response::json(&headers, tag(&detail), &detail))
}

async fn bias(State(shared): Shares, headers: HeaderMap) -> Reply {
    let bias = shared.look(|scene| scene.bias()).await?;
    Ok(json_response::json(&headers, tag(&bias), &bias))
}

async fn alarms(State(shared): Shares, headers: HeaderMap) -> Reply {
    let alarms = shared.look(|scene| scene.alarms()).await?;
    Ok(json_response::json(&headers, tag(&alarms), &alarms))
}

async fn follow(
    State(shared): Shares,
    ViewQuery(query): ViewQuery<event_stream::EventQuery>,
) -> Response {
    shared.hub.follow(&query).unwrap_or_else(|| {
        let words = "too many pages follow this job already: close some of them";
        refusal(StatusCode::SERVICE_UNAVAILABLE, words)
    })
}

async fn cancel(State(shared): Shares, Path((batch, task, run)): Which) -> Response {
    done(&shared.scene.cancel_run(&RunKey { batch, task, run }).await)
}

#[derive(Deserialize)]
struct AbortRequest {
    #[serde(default)]
    keep_partial: bool,
}

async fn abort(
    State(shared): Shares,
    Path(batch): Path<String>,
    Json(how): Json<AbortRequest>,
) -> Response {
    done(&shared.scene.abort_batch(&batch, how.keep_partial).await)
}

fn done(done: &ActionResult) -> Response {
    if done.done {
        return Json(done).into_response();
    }
    refusal(StatusCode::CONFLICT, &done.message)
}
