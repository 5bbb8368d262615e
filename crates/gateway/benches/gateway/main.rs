//! Cost of the gateway: requests directly to a mock server, through a bare reverse proxy (the lower
//! bound), through the gateway with every response recorded, and through LiteLLM if available. Then
//! as many concurrent streams as a process can have. Last, honest clients beside hostile ones.
//!
//! `cargo xtask bench gateway`. Every server is a process of its own; the rows alternate, so that
//! other load affects all of them. `ROLLWAY_BENCH_LITELLM` is the path of `litellm` from
//! `litellm[proxy]`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

mod children;
mod hostile;
mod load;
mod roles;
mod sessions;

use std::time::Duration;

use children::Child;
use load::{Job, Outcome, Target};

/// Rounds of each row, and their duration.
const ROUNDS: u32 = 3;
const TIME: Duration = Duration::from_secs(1);

const TOKENS: u32 = 32;

/// Runs that share the requests, so that none becomes too long.
const RUNS: u32 = 4096;

fn main() {
    if let Ok(role) = std::env::var(children::ROLE) {
        roles::play(&role);
        return;
    }
    // Without `--bench` it only checks that everything runs.
    let is_bench = std::env::args().any(|word| word == "--bench");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let time = if is_bench { TIME } else { Duration::from_millis(20) };
        compare(time).await;
        sessions::measure(if is_bench { 10_000 } else { 20 }).await;
        let (in_flight, time) = if is_bench { (32, TIME * 10) } else { (2, time) };
        hostile::measure(in_flight, time).await;
    });
}

struct Row {
    name: &'static str,
    target: Target,
    outcome: Outcome,
}

async fn compare(time: Duration) {
    let server = Child::start("simulated", &["0", "0"]);
    let url = server.text("url");
    let proxy = Child::start("proxy", &[&url]);
    let gateway = Child::start("gateway", &[&url, &RUNS.to_string(), "4096"]);
    let peer = children::litellm(&url).await;

    let mut targets = vec![
        ("direct", Target::plain(&url)),
        ("bare proxy", Target::plain(&proxy.text("url"))),
        ("rollway", Target::gateway(&gateway.text("url"), gateway.texts("keys"))),
    ];
    if let Some(peer) = &peer {
        targets.push(("litellm", Target::peer(&peer.text("url"), peer.text("key"))));
    }
    let mut rows: Vec<Row> = targets
        .into_iter()
        .map(|(name, target)| Row { name, target, outcome: Outcome::default() })
        .collect();
    for row in &mut rows {
        // Warms up connections, caches and code.
        row.target.run(Job { stream: true, in_flight: 8, time: time / 4 }).await;
    }
    for (stream, in_flight) in [(false, 1), (false, 64), (true, 1), (true, 64)] {
        for row in &mut rows {
            row.outcome = Outcome::default();
        }
        for _ in 0..ROUNDS {
            for row in &mut rows {
                row.outcome.add(row.target.run(Job { stream, in_flight, time }).await);
            }
        }
        show(&mut rows, stream, in_flight);
    }
}

fn show(rows: &mut [Row], stream: bool, in_flight: usize) {
    let kind = if stream { "streams" } else { "whole answers" };
    println!("\n{kind} of {TOKENS} tokens, {in_flight} in flight");
    println!(
        "{:<12}{:>10}{:>7}{:>11}{:>11}{:>11}{:>11}{:>11}",
        "", "per s", "×", "tokens/s", "median", "p99", "added med", "added p99"
    );
    let [direct, proxy] = [0, 1].map(|row| rows[row].outcome.summary());
    for row in rows {
        let summary = row.outcome.summary();
        let added = |now: Duration, then: Duration| {
            if row.name == "direct" { "-".into() } else { shown(now.saturating_sub(then)) }
        };
        println!(
            "{:<12}{:>10.0}{:>7.2}{:>11.0}{:>11}{:>11}{:>11}{:>11}",
            row.name,
            summary.rate,
            summary.rate / proxy.rate,
            summary.rate * f64::from(TOKENS),
            shown(summary.median),
            shown(summary.p99),
            added(summary.median, direct.median),
            added(summary.p99, direct.p99),
        );
        if summary.failed > 0 {
            println!("{:<12}{} requests failed", "", summary.failed);
        }
    }
}

fn shown(time: Duration) -> String {
    if time < Duration::from_millis(10) {
        format!("{} µs", time.as_micros())
    } else {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    }
}
