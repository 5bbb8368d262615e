//! Limits, timeouts and framing of a listener, with raw sockets.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails the test")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response};
use rollway_base::Address;
use rollway_net::{
    BoundListener, CloseReason, Connection, ListenerKind, ListenerLimits, ListenerOptions,
    RequestBody, RunningListener,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far longer than any event of these tests.
const LONG: Duration = Duration::from_secs(600);

const SHORT: Duration = Duration::from_millis(50);

/// Limits without any timeout that a test would notice.
fn patient() -> ListenerLimits {
    ListenerLimits {
        header_timeout: LONG,
        body_timeout: LONG,
        idle_timeout: LONG,
        write_timeout: LONG,
        ..ListenerLimits::of(ListenerKind::MockServer)
    }
}

/// A listener that responds with the length of the body, or with `error` if it cannot be read.
async fn listen(limits: ListenerLimits) -> RunningListener {
    let options = ListenerOptions::new(ListenerKind::MockServer, limits);
    let service = |_: &Arc<Connection>| {
        service_fn(|request: Request<RequestBody>| async move {
            let text = match request.into_body().collect().await {
                Ok(body) => body.to_bytes().len().to_string(),
                Err(error) => format!("error: {error}"),
            };
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
        })
    };
    let bound = BoundListener::bind(&Address::loopback()).await.unwrap();
    RunningListener::serve(bound, options, service)
}

async fn connect(listener: &RunningListener) -> TcpStream {
    TcpStream::connect(listener.tcp_address().unwrap()).await.unwrap()
}

/// Sends bytes and reads until the other end closes.
async fn exchange(stream: &mut TcpStream, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    response
}

/// Reads one response of a connection that stays open.
async fn response(stream: &mut TcpStream) -> String {
    let mut response = Vec::new();
    let is_complete = |response: &[u8]| {
        let text = String::from_utf8_lossy(response).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        length
            .and_then(|length| length.parse().ok())
            .is_some_and(|length: usize| body.len() >= length)
    };
    while !is_complete(&response) {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(response).unwrap()
}

/// Waits until the other end closes.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn slow_heads_are_closed_and_counted() {
    let listener = listen(ListenerLimits { header_timeout: SHORT, ..patient() }).await;
    let mut silent = connect(&listener).await;
    let mut slow = connect(&listener).await;
    slow.write_all(b"GET / HT").await.unwrap();
    let mut second = connect(&listener).await;
    second.write_all(GET.as_bytes()).await.unwrap();
    assert!(response(&mut second).await.starts_with("HTTP/1.1 200"));
    second.write_all(b"GET / HTTP/1.1\r\nHost").await.unwrap();
    for stream in [&mut silent, &mut slow, &mut second] {
        closed(stream).await;
    }
    assert_eq!(listener.counters().closed(CloseReason::HeaderTimeout), 3);
    assert_eq!(listener.counters().closed(CloseReason::IdleTimeout), 0);
}

#[tokio::test]
async fn idle_connections_are_closed_and_counted() {
    let listener = listen(ListenerLimits { idle_timeout: SHORT, ..patient() }).await;
    let mut stream = connect(&listener).await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    response(&mut stream).await;
    closed(&mut stream).await;
    assert_eq!(listener.counters().closed(CloseReason::IdleTimeout), 1);
}

#[tokio::test]
async fn slow_bodies_fail_their_request() {
    let listener = listen(ListenerLimits { body_timeout: SHORT, ..patient() }).await;
    let mut stream = connect(&listener).await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\na";
    let response = exchange(&mut stream, head).await;
    assert!(response.contains("no data of the body of the request"), "{response}");
}

#[tokio::test]
async fn an_idle_connection_makes_room_for_a_new_one() {
    let limits = ListenerLimits { connections: 1, ..patient() };
    let listener = listen(limits).await;
    let mut idle = connect(&listener).await;
    idle.write_all(GET.as_bytes()).await.unwrap();
    response(&mut idle).await;
    // The idle connection is protected for a moment: others are refused with a reason.
    loop {
        let mut next = connect(&listener).await;
        let answer =
            exchange(&mut next, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(listener.counters().closed(CloseReason::ConnectionLimit) > 0);
    }
    closed(&mut idle).await;
    assert_eq!(listener.counters().closed(CloseReason::Evicted), 1);
}

#[tokio::test]
async fn busy_connections_are_not_evicted() {
    let listener = listen(ListenerLimits { connections: 1, ..patient() }).await;
    let mut busy = connect(&listener).await;
    busy.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await.unwrap();
    while listener.counters().open() == 0 {
        tokio::task::yield_now().await;
    }
    let mut next = connect(&listener).await;
    closed(&mut next).await;
    assert_eq!(listener.counters().closed(CloseReason::ConnectionLimit), 1);
    busy.write_all(b"b").await.unwrap();
    assert!(response(&mut busy).await.ends_with('2'));
}

#[tokio::test]
async fn requests_with_an_ambiguous_end_are_refused() {
    let listener = listen(patient()).await;
    let requests = [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ];
    for (request, count) in requests.iter().zip(1..) {
        let mut stream = connect(&listener).await;
        let answer =
            exchange(&mut stream, &format!("POST / HTTP/1.1\r\nHost: a\r\n{request}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{request}: {answer}");
        assert!(answer.ends_with("only once\n"), "{answer}");
        assert_eq!(listener.counters().closed(CloseReason::AmbiguousFraming), count);
    }
    // Refused by the HTTP parser.
    for request in [
        "Transfer-Encoding: gzip\r\n\r\n",
        "Content-Length: 3,3\r\n\r\nabc",
        "Content-Length: +3\r\n\r\nabc",
        "Content-Length : 3\r\n\r\nabc",
    ] {
        let mut stream = connect(&listener).await;
        let answer =
            exchange(&mut stream, &format!("POST / HTTP/1.1\r\nHost: a\r\n{request}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{request}: {answer}");
    }
}

#[tokio::test]
async fn the_second_request_of_a_connection_is_checked_too() {
    let listener = listen(patient()).await;
    let mut stream = connect(&listener).await;
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na").await.unwrap();
    assert!(response(&mut stream).await.ends_with('1'));
    let twice = "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na";
    assert!(exchange(&mut stream, twice).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_spoken() {
    let listener = listen(patient()).await;
    let mut stream = connect(&listener).await;
    // Preface and an empty SETTINGS frame; the server sends SETTINGS first, and acknowledges.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "a SETTINGS frame");
}

#[tokio::test]
async fn requests_in_flight_are_finished_at_the_end() {
    let listener = listen(patient()).await;
    let mut idle = connect(&listener).await;
    idle.write_all(GET.as_bytes()).await.unwrap();
    response(&mut idle).await;
    let mut busy = connect(&listener).await;
    let expecting =
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    busy.write_all(expecting.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    busy.read_exact(&mut interim).await.unwrap();
    listener.close();
    closed(&mut idle).await;
    busy.write_all(b"ab").await.unwrap();
    assert!(exchange(&mut busy, "").await.ends_with('2'));
    listener.finish().await;
    assert_eq!(listener.counters().open(), 0);
    assert!(TcpStream::connect(listener.tcp_address().unwrap()).await.is_err());
}
