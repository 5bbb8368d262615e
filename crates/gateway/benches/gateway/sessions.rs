//! Many concurrent streams: completeness, delay of chunks, processor time and memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::children::Child;
use super::load::Target;
use super::peers;

/// Tokens of each stream, and seconds between two of them.
const TOKENS: u32 = 8;
const INTERVAL: f64 = 4.0;

/// Seconds before the first token, in which all streams are opened.
const OPENING: u32 = 20;

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
    println!("\n{sessions} streams at once, {TOKENS} tokens each, one in {interval} s");
    println!(
        "{:<12}{:>9}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}",
        "",
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
    gateway(&url, sessions, timing).await;
    for peer in peers::start(&url).await {
        let sessions = match IN_PYTHON.contains(&peer.name) {
            true => sessions.min(PYTHON_SESSIONS),
            false => sessions,
        };
        let streams = Streams::of(&peer.target, Some(&peer.child), sessions, timing).await;
        streams.show(peer.name);
    }
}

#[derive(Clone, Copy)]
struct Timing {
    opening: u32,
    interval: f64,
}

async fn direct(target: &Target, sessions: usize, timing: Timing) {
    Streams::of(target, None, sessions, timing).await.show("direct");
}

async fn gateway(url: &str, sessions: usize, timing: Timing) {
    let places = sessions.to_string();
    let mut child = Child::start("gateway", &[url, &places, &places]);
    let target = Target::gateway(&child.text("url"), child.texts("keys"));
    let streams = Streams::of(&target, Some(&child), sessions, timing).await;
    streams.show("rollway");
    let recorded = child.ask("recorded");
    println!("{:<12}recorded {} turns, {} tokens", "", recorded["turns"], recorded["tokens"]);
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
    async fn of(target: &Target, child: Option<&Child>, sessions: usize, timing: Timing) -> Self {
        let cpu = || child.map_or(Duration::ZERO, Child::cpu);
        let memory = |name| child.map_or(0, |child| child.memory(name));
        let (cpu_before, memory_before) = (cpu(), memory("VmRSS"));
        let target = Arc::new(target.clone());
        let begin = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..sessions {
            let target = Arc::clone(&target);
            tasks.spawn(async move { stream(&target, number, timing).await });
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
            if let Ok(late) = one.expect("a session that does not panic") {
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
            super::shown(late.copied().unwrap_or_default())
        };
        let each = |time: Duration, count: usize| {
            format!("{:.0} µs", time.as_secs_f64() * 1e6 / count.max(1) as f64)
        };
        println!(
            "{name:<12}{:>9}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}{:>10}",
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

/// Reads a stream. Returns the delay of each token against the schedule.
async fn stream(target: &Target, number: usize, timing: Timing) -> std::io::Result<Vec<Duration>> {
    let request = target.request(target.key(number), true, TOKENS);
    let mut connection = target.connect().await?;
    let sent = Instant::now();
    let events = connection.exchange(&request, true).await?;
    if events < TOKENS as usize {
        return Err(std::io::Error::other("tokens are missing"));
    }
    // The last events: the end and the usage come with the last token.
    let tokens = connection.arrivals.iter().skip(1).take(TOKENS as usize);
    let due = |number: f64| f64::from(timing.opening) + number * timing.interval;
    let late = (0_u32..).zip(tokens).map(|(number, arrival)| {
        let due = sent + Duration::from_secs_f64(due(f64::from(number)));
        arrival.saturating_duration_since(due)
    });
    Ok(late.collect())
}
