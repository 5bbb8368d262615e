//! TLS and HTTP/2 of the gateway.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::header::HeaderMap;
use rollway_base::Fingerprint;
use rollway_base::tls::{TlsMode, TlsOptions};
use rollway_gateway::gateway::GatewayOptions;
use rollway_gateway::models::pinned_client;
use rollway_mock_server::MockServerOptions;
use tokio::net::TcpStream;

use super::help::{World, options, says, streams};

const TIMEOUT: Duration = Duration::from_secs(10);

async fn world() -> World {
    let tls = TlsOptions { mode: TlsMode::Required, ..TlsOptions::off() };
    World::with(GatewayOptions { tls, ..options() }, vec![MockServerOptions::default()]).await
}

#[tokio::test]
async fn calls_over_tls_are_served_and_other_certificates_refused() {
    let mut world = world().await;
    assert!(world.gateway.url().starts_with("https://"));
    let fingerprint = world.gateway.identity().unwrap().fingerprint();
    world.client = pinned_client(fingerprint, HeaderMap::new(), TIMEOUT).unwrap();
    let run = world.open(1);
    assert_eq!(run.call(&says("hello")).await.0, 200);
    assert_eq!(world.experiences(&run).len(), 1);

    let other = Fingerprint([1; 32]);
    let client = pinned_client(other, HeaderMap::new(), TIMEOUT).unwrap();
    let error = client.get(world.url("/health")).send().await.unwrap_err();
    let error = rollway_base::error_chain(&error);
    for part in [other.to_string(), fingerprint.to_string()] {
        assert!(error.contains(&part), "{error}");
    }
    // Clear text gets a reason.
    let clear = super::help::client();
    let url = world.url("/health").replace("https://", "http://");
    let response = clear.get(url).send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("speaks TLS"));
}

#[tokio::test]
async fn clients_may_trust_the_certificate_as_a_root() {
    let mut world = world().await;
    let pem = world.gateway.identity().unwrap().certificate().to_owned();
    let root = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([root]).build();
    world.client = client.unwrap();
    assert_eq!(world.open(1).call(&says("hello")).await.0, 200);
}

#[tokio::test]
async fn events_of_streams_over_http2_are_sent_at_once() {
    let world = World::new().await;
    let run = world.open(1);
    world.control().hold(2);
    let address = world.gateway.url().strip_prefix("http://").unwrap();
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(world.url("/v1/chat/completions"))
        .header("authorization", format!("Bearer {}", run.key))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(streams("hello").to_string())))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    // The server goes on only after this event was received.
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"data: "), "{first:?}");
    world.control().release();
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "{rest:?}");
    assert_eq!(world.experiences(&run).len(), 1);
}
