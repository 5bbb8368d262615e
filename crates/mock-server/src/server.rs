//! Listener and connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use hyper::service::service_fn;
use rollway_base::{ServerKind, suggest};
use rollway_net::{BoundListener, ListenerKind, ListenerOptions, RequestBody, RunningListener};
use tower::ServiceExt as _;

use super::control::MockControl;
use super::generation_state::GenerationState;
use super::options::MockServerOptions;
use super::response::Disconnected;
use super::server_api::{mock_api, mocked_kinds, router};

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct MockServer {
    address: SocketAddr,
    control: MockControl,
    listening: RunningListener,
}

impl MockServer {
    /// Starts a server on the current runtime.
    pub fn start(options: MockServerOptions) -> io::Result<Self> {
        let Some(api) = mock_api(options.kind) else {
            let kind = options.kind;
            let kinds = suggest::either(mocked_kinds().map(ServerKind::name));
            let message = format!("there is no mock server of the kind {kind}; use {kinds}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        };
        let listener = BoundListener::bind_tcp(options.address)?;
        let address = listener.tcp_address().unwrap_or(options.address);
        let limits = options.listener.clone();
        let state = Arc::new(GenerationState::new(api, options));
        let router = router(Arc::clone(&state));
        let listener_options = ListenerOptions::new(ListenerKind::MockServer, limits);
        let listening = RunningListener::serve(listener, listener_options, move |_| {
            let router = router.clone();
            service_fn(move |request: hyper::Request<RequestBody>| {
                let router = router.clone();
                async move { disconnected(router.oneshot(request).await) }
            })
        });
        Ok(Self { address, control: MockControl { state }, listening })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Root URL, without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn control(&self) -> MockControl {
        self.control.clone()
    }

    /// Stops like a crash: closes all connections at once. Returns when the port is free.
    pub async fn stop(self) {
        self.listening.cut();
        self.listening.finish().await;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("injected fault: disconnect")]
struct InjectedDisconnect;

/// Returns an error for a response that is to be replaced by a closed connection.
fn disconnected(
    responded: Result<Response<Body>, Infallible>,
) -> Result<Response<Body>, InjectedDisconnect> {
    let Ok(response) = responded;
    match response.extensions().get::<Disconnected>() {
        Some(_) => Err(InjectedDisconnect),
        None => Ok(response),
    }
}
