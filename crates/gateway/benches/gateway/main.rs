//! Cost of the gateway beside other proxies: requests directly to a mock server, through a bare
//! reverse proxy (the lower bound), through the gateway with every response recorded, and through
//! the installed peers. Then 10,000 concurrent streams, or as many as the open files allow.
//!
//! `cargo xtask bench gateway`. Every server is a process of its own; the rows alternate, so that
//! other load affects all of them. Compare processor time within a run.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

mod children;
mod http2;
mod load;
mod peers;
mod roles;
mod sessions;

use std::time::Duration;

use children::Child;
use load::{Job, Outcome, Target};
use rollway_base::open_files;

/// Rounds of each row, and their duration.
const ROUNDS: u32 = 3;
const TIME: Duration = Duration::from_secs(1);

const TOKENS: u32 = 32;

/// Tokens per second of each paced stream: every token is a chunk of its own.
const PACE: &str = "20";

/// Runs that share the requests, so that none becomes too long.
const RUNS: u32 = 4096;

fn main() {
    if let Ok(role) = std::env::var(children::ROLE) {
        roles::play(&role);
        return;
    }
    // Of this process and of those that it starts.
    open_files::raise_limit().expect("a limit of open files");
    // Without `--bench` it only checks that everything runs.
    let is_bench = std::env::args().any(|word| word == "--bench");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let time = if is_bench { TIME } else { Duration::from_millis(20) };
        let full_speed = [(false, 1), (false, 64), (true, 1), (true, 64)];
        compare("0", &full_speed.map(|(stream, in_flight)| Job { stream, in_flight, time })).await;
        // Long enough for several whole streams.
        compare(PACE, &[Job { stream: true, in_flight: 100, time: time * 4 }]).await;
        if std::env::var_os("ROLLWAY_BENCH_SESSIONS").is_none_or(|wanted| wanted != "0") {
            sessions::measure(if is_bench { 10_000 } else { 20 }).await;
        }
    });
}

struct Row<'a> {
    name: String,
    target: Target,
    /// The proxy. `None`: without one.
    child: Option<&'a Child>,
    outcome: Outcome,
    cpu: Duration,
}

/// Measures all targets in turn, at a server with a rate of tokens.
async fn compare(rate: &str, jobs: &[Job]) {
    let server = Child::start("simulated", &["0", rate]);
    let url = server.text("url");
    let proxy = Child::start("proxy", &[&url]);
    let gateway = Child::start("gateway", &[&url, &RUNS.to_string(), "4096"]);
    let peers = peers::start(&url).await;

    let gateway_target = Target::gateway(&gateway.text("url"), gateway.texts("keys"));
    let mut targets = vec![
        ("direct".to_owned(), Target::plain(&url), None),
        ("bare proxy".to_owned(), Target::plain(&proxy.text("url")), Some(&proxy)),
        ("rollway".to_owned(), gateway_target, Some(&gateway)),
    ];
    for peer in &peers {
        targets.push((peer.name.to_owned(), peer.target.clone(), Some(&peer.child)));
        if peer.name == "vllm-router" {
            let target = peer.target.with_tokens();
            targets.push((format!("{}, ids", peer.name), target, Some(&peer.child)));
        }
    }
    let row = |(name, target, child)| Row {
        name,
        target,
        child,
        outcome: Outcome::default(),
        cpu: Duration::ZERO,
    };
    let mut rows: Vec<Row<'_>> = targets.into_iter().map(row).collect();
    for row in &mut rows {
        // Warms up connections, caches and code.
        let time = jobs.first().map_or(TIME, |job| job.time) / 4;
        row.target.run(Job { stream: true, in_flight: 8, time }).await;
    }
    for &job in jobs {
        for row in &mut rows {
            (row.outcome, row.cpu) = (Outcome::default(), Duration::ZERO);
        }
        for _ in 0..ROUNDS {
            for row in &mut rows {
                let before = row.child.map(Child::cpu);
                row.outcome.add(row.target.run(job).await);
                let after = row.child.map(Child::cpu);
                row.cpu += after.unwrap_or_default() - before.unwrap_or_default();
            }
        }
        show(&mut rows, rate, job);
    }
}

fn show(rows: &mut [Row<'_>], rate: &str, job: Job) {
    let kind = if job.stream { "streams" } else { "whole answers" };
    let pace = if rate == "0" { String::new() } else { format!(" at {rate} tokens/s") };
    println!("\n{kind} of {TOKENS} tokens{pace}, {} in flight", job.in_flight);
    println!(
        "{:<18}{:>9}{:>7}{:>11}{:>11}{:>11}{:>11}{:>12}{:>12}",
        "", "per s", "×", "median", "p99", "added med", "added p99", "CPU/request", "CPU/token"
    );
    let [direct, proxy] = [0, 1].map(|row| rows[row].outcome.summary());
    for row in rows {
        let summary = row.outcome.summary();
        let added = |now: Duration, then: Duration| {
            if row.name == "direct" { "-".into() } else { shown(now.saturating_sub(then)) }
        };
        let requests = row.outcome.count().max(1) as f64;
        let cpu = |parts: f64| match row.child {
            Some(_) => format!("{:.1} µs", row.cpu.as_secs_f64() * 1e6 / requests / parts),
            None => "-".into(),
        };
        println!(
            "{:<18}{:>9.0}{:>7.2}{:>11}{:>11}{:>11}{:>11}{:>12}{:>12}",
            row.name,
            summary.rate,
            summary.rate / proxy.rate,
            shown(summary.median),
            shown(summary.p99),
            added(summary.median, direct.median),
            added(summary.p99, direct.p99),
            cpu(1.0),
            cpu(f64::from(TOKENS)),
        );
        if summary.failed > 0 {
            println!("{:<18}{} requests failed", "", summary.failed);
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
