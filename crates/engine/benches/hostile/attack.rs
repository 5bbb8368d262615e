//! Hostile clients.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Interval between two bytes of a slow head.
const SLOW_BYTE: Duration = Duration::from_millis(200);

const LARGE_BODY: usize = 31 << 20;
const NESTED_LEVELS: usize = 100_000;

/// An attack under way. Dropping it ends it.
pub(crate) struct Attack {
    target: Arc<AttackTarget>,
    runtime: Runtime,
}

/// State that all hostile clients share.
struct AttackTarget {
    address: String,
    is_over: AtomicBool,
    /// Requests that got a response.
    answered: AtomicU64,
    large: String,
    wide: String,
    deep: String,
}

#[derive(Clone, Copy)]
enum HostileClient {
    SlowHead,
    Idle,
    Large,
    Wide,
    Deep,
}

const CLIENTS: [HostileClient; 5] = [
    HostileClient::SlowHead,
    HostileClient::Idle,
    HostileClient::Large,
    HostileClient::Wide,
    HostileClient::Deep,
];

impl Attack {
    /// Starts so many clients with the keys of runs.
    pub(crate) fn start(access: &Value, clients: usize) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let url = access["url"].as_str().expect("an address");
        let keys = access["keys"].as_array().expect("keys of runs");
        let (open, close) = ("[".repeat(NESTED_LEVELS), "]".repeat(NESTED_LEVELS));
        let text = "x".repeat(LARGE_BODY);
        let target = Arc::new(AttackTarget {
            address: url.trim_start_matches("http://").to_owned(),
            is_over: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            large: format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"),
            wide: format!("{{\"messages\":[{}0]}}", "{\"\":0},".repeat(LARGE_BODY / 7)),
            deep: format!("{{\"messages\":[],\"stop\":{open}{close}}}"),
        });
        for number in 0..clients {
            let (target, client) = (Arc::clone(&target), CLIENTS[number % CLIENTS.len()]);
            let key = keys[number % keys.len()].as_str().expect("a key").to_owned();
            runtime.spawn(async move {
                // A refused client begins again.
                while !target.is_over.load(Ordering::Relaxed) {
                    let _ = client.attack(&target, &key).await;
                    tokio::task::yield_now().await;
                }
            });
        }
        Self { target, runtime }
    }

    /// Ends the attack. Returns the number of requests that got a response.
    pub(crate) fn stop(self) -> u64 {
        self.target.is_over.store(true, Ordering::Relaxed);
        self.runtime.shutdown_background();
        self.target.answered.load(Ordering::Relaxed)
    }
}

impl HostileClient {
    async fn attack(self, target: &AttackTarget, key: &str) -> io::Result<()> {
        let mut socket = TcpStream::connect(&target.address).await?;
        let head = |length: usize| {
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let body = match self {
            Self::SlowHead => {
                for byte in head(1).bytes().cycle() {
                    socket.write_all(&[byte]).await?;
                    tokio::time::sleep(SLOW_BYTE).await;
                }
                return Ok(());
            }
            Self::Idle => return socket.read(&mut [0]).await.map(drop),
            Self::Large => &target.large,
            Self::Wide => &target.wide,
            Self::Deep => &target.deep,
        };
        socket.write_all(head(body.len()).as_bytes()).await?;
        socket.write_all(body.as_bytes()).await?;
        if socket.read(&mut [0; 512]).await? > 0 {
            target.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
