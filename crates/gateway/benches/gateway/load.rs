//! Load generator: sequential requests on each of the concurrent connections, with minimal HTTP so
//! that its cost is small and constant.

use std::io;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::TOKENS;

/// Requests of a connection before it uses the key of another run.
const REQUESTS_PER_RUN: usize = 50;

#[derive(Clone)]
pub(super) struct Target {
    address: String,
    model: &'static str,
    /// Requests tokens and log-probabilities, as the gateway does.
    asks_all: bool,
    keys: Vec<String>,
    next_key: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) stream: bool,
    pub(super) in_flight: usize,
    pub(super) time: Duration,
}

#[derive(Default)]
pub(super) struct Outcome {
    latencies: Vec<Duration>,
    time: Duration,
    failed: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Summary {
    pub(super) rate: f64,
    pub(super) median: Duration,
    pub(super) p99: Duration,
    pub(super) failed: usize,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.time += other.time;
        self.failed += other.failed;
    }

    /// Number of requests.
    pub(super) fn count(&self) -> usize {
        self.latencies.len()
    }

    pub(super) fn summary(&mut self) -> Summary {
        self.latencies.sort_unstable();
        let at = |part: f64| {
            let place = (self.latencies.len() as f64 * part) as usize;
            let last = self.latencies.len().saturating_sub(1);
            self.latencies.get(place.min(last)).copied().unwrap_or_default()
        };
        let rate = self.latencies.len() as f64 / self.time.as_secs_f64();
        Summary { rate, median: at(0.5), p99: at(0.99), failed: self.failed }
    }
}

impl Target {
    /// A server without a key, asked for everything that the gateway requests.
    pub(super) fn plain(url: &str) -> Self {
        Self { asks_all: true, ..Self::new(url, "simulated", vec!["none".to_owned()]) }
    }

    pub(super) fn gateway(url: &str, keys: Vec<String>) -> Self {
        Self::new(url, "policy", keys)
    }

    pub(super) fn peer(url: &str, model: &'static str, key: String) -> Self {
        Self::new(url, model, vec![key])
    }

    /// The same target, asked for tokens and log-probabilities.
    pub(super) fn with_tokens(&self) -> Self {
        Self { asks_all: true, ..self.clone() }
    }

    /// One of its keys.
    pub(super) fn key(&self, number: usize) -> &str {
        &self.keys[number % self.keys.len()]
    }

    fn new(url: &str, model: &'static str, keys: Vec<String>) -> Self {
        let address = url.trim_start_matches("http://").to_owned();
        Self { address, model, asks_all: false, keys, next_key: 0 }
    }

    fn take_keys(&mut self, count: usize) -> Vec<String> {
        let taken =
            (0..count).map(|number| self.keys[(self.next_key + number) % self.keys.len()].clone());
        let taken = taken.collect();
        self.next_key += count;
        taken
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the body of a request.
    pub(super) fn body(&self, stream: bool, tokens: u32) -> String {
        let content = "The sea is wide and the harbour is small. ".repeat(24);
        let mut body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": content }],
            "stream": stream,
            "max_tokens": tokens,
        });
        if self.asks_all {
            body["return_token_ids"] = json!(true);
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(0);
        }
        body.to_string()
    }

    pub(super) fn request(&self, key: &str, stream: bool, tokens: u32) -> Vec<u8> {
        let body = self.body(stream, tokens);
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len(),
        )
        .into_bytes()
    }

    pub(super) async fn run(&mut self, job: Job) -> Outcome {
        let begin = Instant::now();
        let end = begin + job.time;
        let mut tasks = tokio::task::JoinSet::new();
        // Enough keys for all requests of the duration.
        let keys_each = self.keys.len().div_ceil(job.in_flight * 16).clamp(1, 64);
        for _ in 0..job.in_flight {
            let keys = self.take_keys(keys_each);
            tasks.spawn(connection(self.clone(), keys, job.stream, end));
        }
        let mut outcome = Outcome::default();
        while let Some(one) = tasks.join_next().await {
            outcome.add(one.expect("a connection that does not panic"));
        }
        outcome.time = begin.elapsed();
        outcome
    }

    pub(super) async fn connect(&self) -> io::Result<Connection> {
        let socket = TcpStream::connect(&self.address).await?;
        socket.set_nodelay(true)?;
        let buffer = Vec::with_capacity(4 << 10);
        Ok(Connection { socket, buffer, arrivals: Vec::new() })
    }
}

async fn connection(target: Target, keys: Vec<String>, stream: bool, end: Instant) -> Outcome {
    let requests: Vec<_> = keys.iter().map(|key| target.request(key, stream, TOKENS)).collect();
    let mut outcome = Outcome::default();
    let Ok(mut connection) = target.connect().await else {
        outcome.failed += 1;
        return outcome;
    };
    for number in 0.. {
        let request = &requests[(number / REQUESTS_PER_RUN) % requests.len()];
        let begin = Instant::now();
        match connection.exchange(request, stream).await {
            Ok(_) => outcome.latencies.push(begin.elapsed()),
            Err(_) => {
                outcome.failed += 1;
                match target.connect().await {
                    Ok(another) => connection = another,
                    Err(_) => break,
                }
            }
        }
        if Instant::now() >= end {
            break;
        }
    }
    outcome
}

pub(super) struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Times of the events of the last exchange.
    pub(super) arrivals: Vec<Instant>,
}

impl Connection {
    /// Sends a request and reads the response. Returns the number of events.
    pub(super) async fn exchange(&mut self, request: &[u8], stream: bool) -> io::Result<usize> {
        self.socket.write_all(request).await?;
        self.buffer.clear();
        self.arrivals.clear();
        let head = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await?;
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        match length.and_then(|length| length.trim().parse::<usize>().ok()) {
            Some(length) => {
                while self.buffer.len() < head + length {
                    self.more().await?;
                }
            }
            None => {
                while !self.buffer[head..].ends_with(b"0\r\n\r\n") {
                    self.more().await?;
                }
            }
        }
        if !text.starts_with("http/1.1 200") {
            return Err(io::Error::other(text));
        }
        if !stream {
            return Ok(0);
        }
        let body = String::from_utf8_lossy(&self.buffer[head..]);
        if body.contains("data: [DONE]") {
            Ok(body.matches("data: {").count())
        } else {
            Err(io::Error::other("the stream was cut"))
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        let before = self.buffer.len();
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let now = Instant::now();
                let events = self.buffer[before..].windows(7).filter(|it| it == b"data: {");
                self.arrivals.extend(events.map(|_| now));
                Ok(())
            }
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
