//! Many concurrent streams: completeness, delay of chunks, processor time and memory. A proxy needs
//! two connections for a stream over HTTP/1.1, and for 10,000 of them more open files than many
//! systems allow. Over HTTP/2 the streams share the connections of the client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_base::listener::ListenerKind;
use rollway_base::open_files;

use super::children::Child;
use super::http2::Http2Connections;
use super::load::Target;
use super::peers;

/// Tokens of each stream, and seconds between two of them.
const TOKENS: u32 = 8;
const INTERVAL: f64 = 4.0;

/// Seconds before the first token, in which all streams are opened.
const OPENING: u32 = 20;

/// Maximum seconds by which a stream may end after its schedule; later ones count as lost.
const LATE_SECONDS: f64 = 120.0;

/// Streams of proxies in Python: with more they do not end in minutes.
const PYTHON_SESSIONS: usize = 500;

const IN_PYTHON: [&str; 2] = ["litellm", "openenv"];

/// Measures every target alone, at the same server.
pub(super) async fn measure(sessions: usize) {
    let is_check = sessions < 1000;
    let (opening, interval) = if is_check { (0, 0.01) } else { (OPENING, INTERVAL) };
    let rate = (1.0 / interval).to_string();
    let server = Child::start("simulated", &[&opening.to_string(), &rate]);
    let url = server.text("url");
    println!("\nstreams at once of {TOKENS} tokens, one in {interval} s");
    println!(
        "{:<18}{:>9}{:>9}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}",
        "",
        "streams",
        "complete",
        "lost",
        "late p50",
        "late p99",
        "late max",
        "CPU open",
        "CPU chunk",
        "memory"
    );
    let timing = Timing { opening, interval };
    direct(&Target::plain(&url), sessions, timing).await;
    gateway(&url, sessions, timing, true).await;
    let sessions = sessions.min(http1_sessions());
    gateway(&url, sessions, timing, false).await;
    for peer in peers::start(&url).await {
        let child = Some(&peer.child);
        let sessions = match IN_PYTHON.contains(&peer.name) {
            true => sessions.min(PYTHON_SESSIONS),
            false => sessions,
        };
        Streams::of(&peer.target, child, sessions, timing, false).await.show(peer.name);
        if peer.name == "vllm-router" {
            let target = peer.target.with_tokens();
            let streams = Streams::of(&target, child, sessions, timing, false).await;
            streams.show(&format!("{}, ids", peer.name));
        }
    }
}

/// Returns the number of streams for which a process may open two connections each, in hundreds.
fn http1_sessions() -> usize {
    let limit = open_files::limit().unwrap_or(u64::MAX);
    let share = open_files::main_connection_share(ListenerKind::Gateway, limit);
    usize::try_from(share).unwrap_or(usize::MAX) / 100 * 100
}

#[derive(Clone, Copy)]
struct Timing {
    opening: u32,
    interval: f64,
}

async fn direct(target: &Target, sessions: usize, timing: Timing) {
    Streams::of(target, None, sessions, timing, false).await.show("direct");
}

async fn gateway(url: &str, sessions: usize, timing: Timing, is_http2: bool) {
    let places = sessions.to_string();
    let mut child = Child::start("gateway", &[url, &places, &places]);
    let target = Target::gateway(&child.text("url"), child.texts("keys"));
    let streams = Streams::of(&target, Some(&child), sessions, timing, is_http2).await;
    streams.show(if is_http2 { "rollway, HTTP/2" } else { "rollway" });
    let recorded = child.ask("recorded");
    println!("{:<18}recorded {} turns, {} tokens", "", recorded["turns"], recorded["tokens"]);
}

/// Outcome of concurrent streams.
#[derive(Default)]
struct Streams {
    sessions: usize,
    complete: usize,
    /// Delays of chunks against the schedule of the server.
    late: Vec<Duration>,
    /// Processor time before the first token, and from then on.
    cpu: [Duration; 2],
    memory: u64,
}

impl Streams {
    async fn of(
        target: &Target,
        child: Option<&Child>,
        sessions: usize,
        timing: Timing,
        is_http2: bool,
    ) -> Self {
        let cpu = || child.map_or(Duration::ZERO, Child::cpu);
        let memory = |name| child.map_or(0, |child| child.memory(name));
        let (cpu_before, memory_before) = (cpu(), memory("VmRSS"));
        let target = Arc::new(target.clone());
        let shared = match is_http2 {
            true => Some(Arc::new(Http2Connections::open(&target, sessions).await)),
            false => None,
        };
        let timeout =
            f64::from(timing.opening) + f64::from(TOKENS) * timing.interval + LATE_SECONDS;
        let timeout = Duration::from_secs_f64(timeout);
        let begin = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..sessions {
            let (target, shared) = (Arc::clone(&target), shared.clone());
            let stream = async move { stream(&target, shared.as_deref(), number, timing).await };
            tasks.spawn(tokio::time::timeout(timeout, stream));
            if number % 50 == 0 {
                // Connections are not opened all at once.
                tokio::time::sleep(Duration::from_millis(u64::from(timing.opening))).await;
            }
        }
        let first = Duration::from_secs(u64::from(timing.opening)).saturating_sub(begin.elapsed());
        tokio::time::sleep(first).await;
        let cpu_open = cpu();
        let mut streams = Self { sessions, ..Self::default() };
        while let Some(one) = tasks.join_next().await {
            if let Ok(Ok(late)) = one.expect("a session that does not panic") {
                streams.complete += 1;
                streams.late.extend(late);
            }
        }
        streams.cpu = [cpu_open - cpu_before, cpu() - cpu_open];
        streams.memory = memory("VmHWM").saturating_sub(memory_before);
        streams
    }

    fn show(mut self, name: &str) {
        self.late.sort_unstable();
        let late = |part: f64| {
            let place = (self.late.len() as f64 * part) as usize;
            let late = self.late.get(place.min(self.late.len().saturating_sub(1)));
            late.copied().map_or_else(|| "-".to_owned(), super::shown)
        };
        let each = |time: Duration, count: usize| {
            format!("{:.0} µs", time.as_secs_f64() * 1e6 / count.max(1) as f64)
        };
        println!(
            "{name:<18}{:>9}{:>9}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}",
            self.sessions,
            self.complete,
            self.sessions - self.complete,
            late(0.5),
            late(0.99),
            late(1.0),
            each(self.cpu[0], self.sessions),
            each(self.cpu[1], self.complete * TOKENS as usize),
            format!("{:.0} KiB", self.memory as f64 / self.sessions as f64 / 1024.0),
        );
    }
}

/// Reads a stream to its end. Returns the delay of each token against the schedule; none of a proxy
/// that sends all tokens in one event.
async fn stream(
    target: &Target,
    shared: Option<&Http2Connections>,
    number: usize,
    timing: Timing,
) -> std::io::Result<Vec<Duration>> {
    let (sent, arrivals) = match shared {
        Some(shared) => (Instant::now(), shared.exchange(target, number, TOKENS).await?),
        None => {
            let request = target.request(target.key(number), true, TOKENS);
            let mut connection = target.connect().await?;
            let sent = Instant::now();
            connection.exchange(&request, true).await?;
            (sent, connection.arrivals)
        }
    };
    if arrivals.len() < TOKENS as usize {
        return Ok(Vec::new());
    }
    // The last events: the end and the usage come with the last token.
    let tokens = arrivals.iter().skip(1).take(TOKENS as usize);
    let due = |number: f64| f64::from(timing.opening) + number * timing.interval;
    let late = (0_u32..).zip(tokens).map(|(number, arrival)| {
        let due = sent + Duration::from_secs_f64(due(f64::from(number)));
        arrival.saturating_duration_since(due)
    });
    Ok(late.collect())
}
