//! Minimal HTTP client: one request per connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// Sends a request; the response arrives on the returned connection.
pub(crate) fn send(url: &str, method: &str, path: &str, key: &str, body: &Value) -> TcpStream {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // HTTP/1.0: the response ends with the connection.
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

/// Reads status and body.
pub(crate) fn receive(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Sends a request and waits for the response on a blocking thread.
pub(crate) async fn request(
    url: &str,
    method: &'static str,
    path: &str,
    key: &str,
    body: &Value,
) -> (u16, String) {
    let (url, path, key, body) = (url.to_owned(), path.to_owned(), key.to_owned(), body.clone());
    let response = move || receive(send(&url, method, &path, &key, &body));
    tokio::task::spawn_blocking(response).await.unwrap()
}

pub(crate) async fn post(url: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = request(url, "POST", path, "none", body).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}
