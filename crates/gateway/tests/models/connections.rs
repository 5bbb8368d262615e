//! Connections of version requests: kept, and replaced when the server has closed them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_gateway::models::{Models, RouteNeeds, RoutingOptions, ServerState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::stand_in::{options, spec};

/// Requests that each test makes.
const REQUESTS: usize = 10;

/// Answers the first requests of a connection, and closes it when it has received another one.
async fn serve(mut stream: TcpStream, answered: usize) -> std::io::Result<()> {
    let mut head = Vec::new();
    for _ in 0..answered {
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let line = String::from_utf8_lossy(&head).into_owned();
        let (status, body) = match line.split(' ').nth(1).unwrap_or_default() {
            _ if line.starts_with("OPTIONS") => ("405 Method Not Allowed", ""),
            "/health" => ("200 OK", ""),
            "/v1/models" => ("200 OK", r#"{"data": [{"id": "trained"}]}"#),
            "/weight_info" => ("200 OK", r#"{"weight_version": "3"}"#),
            "/is_paused" => ("200 OK", r#"{"is_paused": false}"#),
            _ => ("404 Not Found", ""),
        };
        let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(reply.as_bytes()).await?;
        head.clear();
    }
    stream.read_u8().await.map(drop)
}

/// Confirms versions at a server that answers so many requests of each connection. Returns the
/// number of connections.
async fn confirm(answered: usize) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let accepted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(stream, answered));
        }
    });
    // The first health check is the only other request for the version.
    let health_interval = Duration::from_secs(3600);
    let options = RoutingOptions { health_interval, load_interval: None, ..options() };
    let models = Models::new(options);
    models.add(spec(address, "trained", ServerKind::Vllm)).unwrap();
    let permit = models.pick(RouteNeeds::default()).await.unwrap();
    assert_eq!(models.view()[0].servers[0].state, ServerState::Running);
    assert_eq!(permit.version(), Some(3));
    let before = connections.load(Ordering::Relaxed);
    for _ in 0..REQUESTS {
        assert!(permit.confirm_version().await);
    }
    connections.load(Ordering::Relaxed) - before
}

#[tokio::test]
async fn versions_are_read_on_a_kept_connection() {
    assert!(confirm(usize::MAX).await <= 1);
}

#[tokio::test]
async fn a_version_request_on_a_closed_connection_is_repeated() {
    assert!(confirm(1).await >= REQUESTS);
}
