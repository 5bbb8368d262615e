//! Honest runs beside hostile clients: ten times as many connections that send slow heads, nothing
//! at all, large bodies, bodies of many small values, and deeply nested ones.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::children::Child;
use super::load::{Job, Outcome, Target};

/// Hostile connections for each honest one.
const FACTOR: usize = 10;

/// Interval between two bytes of a slow head, and between two looks at the gateway.
const SLOW_BYTE: Duration = Duration::from_millis(200);
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

const LARGE_BODY: usize = 31 << 20;
const NESTED_LEVELS: usize = 100_000;

/// State that all hostile clients share.
struct Attack {
    address: String,
    is_over: AtomicBool,
    /// Requests that got a response.
    answered: AtomicU64,
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

pub(super) async fn measure(in_flight: usize, time: Duration) {
    let server = Child::start("simulated", &["0", "0"]);
    let (honest, hostile) = (512, in_flight * FACTOR);
    let words = [&server.text("url"), &(honest + hostile).to_string(), "4096"];
    let gateway = Child::start("gateway", &words);
    let mut keys = gateway.texts("keys");
    let hostile_keys = keys.split_off(honest);
    let mut target = Target::gateway(&gateway.text("url"), keys);
    let job = Job { stream: true, in_flight, time };
    let (mut alone, calm) = with_probe(&target, target.clone().run(job)).await;
    let address = gateway.text("url").trim_start_matches("http://").to_owned();
    let attack =
        Arc::new(Attack { address, is_over: AtomicBool::new(false), answered: AtomicU64::new(0) });
    let mut clients = JoinSet::new();
    for (number, key) in hostile_keys.into_iter().enumerate() {
        let (attack, client) = (Arc::clone(&attack), CLIENTS[number % CLIENTS.len()]);
        clients.spawn(async move {
            // A refused client begins again.
            while !attack.is_over.load(Ordering::Relaxed) {
                let _ = client.attack(&attack, &key).await;
                tokio::task::yield_now().await;
            }
        });
    }
    let probed = target.clone();
    let (mut beside, lag) = with_probe(&probed, target.run(job)).await;
    attack.is_over.store(true, Ordering::Relaxed);
    clients.shutdown().await;
    let memory = gateway.memory("VmHWM") >> 20;
    let answered = attack.answered.load(Ordering::Relaxed);
    println!("\n{in_flight} honest streams, {hostile} hostile connections");
    println!(
        "{:12} {:>9} {:>9} {:>9} {:>7} {:>12}",
        "", "calls/s", "median", "p99", "failed", "health p99"
    );
    for (name, outcome, mut probes) in [("alone", &mut alone, calm), ("attacked", &mut beside, lag)]
    {
        let (calls, probes) = (outcome.summary(), probes.summary());
        println!(
            "{name:12} {:>9.0} {:>7.1?} {:>7.1?} {:>7} {:>10.1?}",
            calls.rate, calls.median, calls.p99, calls.failed, probes.p99
        );
    }
    println!("peak memory of the gateway {memory} MiB; {answered} hostile requests were answered");
}

/// Measures how fast the gateway answers `/health` meanwhile.
async fn with_probe<T>(target: &Target, work: impl Future<Output = T>) -> (T, Outcome) {
    let mut probes = Outcome::default();
    let probing = async {
        let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
        let Ok(mut connection) = target.connect().await else { return };
        loop {
            let began = Instant::now();
            if connection.exchange(request, false).await.is_err() {
                return;
            }
            probes.note(began.elapsed());
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    };
    let result = tokio::select! {
        result = work => result,
        () = async { probing.await; std::future::pending().await } => unreachable!(),
    };
    (result, probes)
}

impl HostileClient {
    async fn attack(self, attack: &Attack, key: &str) -> io::Result<()> {
        let mut socket = TcpStream::connect(&attack.address).await?;
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
            Self::Large => {
                let text = "x".repeat(LARGE_BODY);
                format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}")
            }
            Self::Wide => format!("{{\"messages\":[{}0]}}", "{\"\":0},".repeat(LARGE_BODY / 7)),
            Self::Deep => {
                let (open, close) = ("[".repeat(NESTED_LEVELS), "]".repeat(NESTED_LEVELS));
                format!("{{\"messages\":[],\"stop\":{open}{close}}}")
            }
        };
        socket.write_all(head(body.len()).as_bytes()).await?;
        socket.write_all(body.as_bytes()).await?;
        if socket.read(&mut [0; 512]).await? > 0 {
            attack.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
