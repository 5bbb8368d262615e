//! Many concurrent streams in one gateway: completeness, recordings and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::children::Child;
use super::load::Target;

/// Delay of the first token, in seconds, during which all streams are opened.
const FIRST_TOKEN: &str = "15";
const TOKENS_PER_SECOND: &str = "2";
const TOKENS: u32 = 16;

/// Files of a process besides its streams.
const OTHER_FILES: usize = 300;

pub(super) async fn measure(sessions: usize) {
    // Every stream takes two connections of the gateway. If the process may not have that many, the
    // last streams wait for a permit.
    let permits = file_limit().saturating_sub(sessions + OTHER_FILES).clamp(1, sessions);
    let wait = if sessions < 1000 { "0" } else { FIRST_TOKEN };
    let server = Child::start("simulated", &[wait, TOKENS_PER_SECOND]);
    let words = [&server.text("url"), &sessions.to_string(), &permits.to_string()];
    let mut gateway = Child::start("gateway", &words.map(String::as_str));
    let before = gateway.memory("VmRSS");
    let target = Arc::new(Target::gateway(&gateway.text("url"), Vec::new()));
    let open = Arc::new(Open::default());
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for key in gateway.texts("keys") {
        let (target, open) = (Arc::clone(&target), Arc::clone(&open));
        tasks.spawn(async move {
            let request = target.request(&key, true, TOKENS);
            let mut connection = target.connect().await?;
            open.enter();
            let events = connection.exchange(&request, true).await;
            open.leave();
            events
        });
        if tasks.len() % 100 == 0 {
            // Yields, so that connections are not opened all at once.
            tokio::task::yield_now().await;
        }
    }
    let (mut whole, mut lost) = (0, 0);
    while let Some(one) = tasks.join_next().await {
        match one.expect("a session that does not panic") {
            // The role, then one event per token.
            Ok(events) if events >= TOKENS as usize => whole += 1,
            _ => lost += 1,
        }
    }
    let took = begin.elapsed();
    let peak = gateway.memory("VmHWM");
    let recorded = gateway.ask("recorded");
    println!("\n{sessions} streams at once in one gateway, {permits} places at the server");
    println!("open at once   {}", open.most.load(Ordering::Relaxed));
    println!("whole          {whole}\nlost           {lost}");
    println!("recorded       {} turns, {} tokens", recorded["turns"], recorded["tokens"]);
    println!("memory         {} before, {} at most", mib(before), mib(peak));
    println!("per stream     {:.1} KiB", (peak - before) as f64 / sessions as f64 / 1024.0);
    println!("time           {:.1} s", took.as_secs_f64());
}

#[derive(Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Open {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maximum number of open files of a process.
fn file_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or(1024)
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
