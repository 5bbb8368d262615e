//! Round trips of one stream: a 1 kB task to the worker and a 1 kB payload back, over a Unix
//! socket, with Rust at both ends.
//!
//! `cargo bench -p rollway-protocol`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rollway_base::{Address, Secret};
use rollway_core::metrics::Metrics;
use rollway_core::{
    AttemptId, BatchId, BatchType, Incarnation, RunId, RunOutput, RunRange, RunnerId, TaskId,
};
use rollway_protocol::worker_client::{self, ConnectedWorker};
use rollway_protocol::worker_server::{
    WorkerConnection, WorkerServer, WorkerServerEvent, WorkerServerOptions,
};
use rollway_protocol::{
    DefinitionId, EngineMessage, Hello, StartAttempt, WorkerMessage, WorkerReport,
    WorkflowDefinition,
};

const TIME: Duration = Duration::from_secs(2);
const RUNNERS: u32 = 1024;

fn main() {
    // `cargo test --benches` only checks that it runs.
    let time = if std::env::args().any(|a| a == "--bench") { TIME } else { Duration::ZERO };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let address = Address::Unix(dir.path().join("bench.sock"));
    let secret = Secret::random().expect("random bytes");
    let engine = runtime().expect("a runtime");
    let options = WorkerServerOptions::new(address.clone(), secret.clone());
    let mut server = engine.block_on(WorkerServer::bind(options)).expect("a free socket");
    // The worker is a process of its own in production.
    let worker = std::thread::spawn(move || {
        runtime().expect("a runtime").block_on(echo(&address, &secret));
    });
    engine.block_on(async {
        let connection = loop {
            if let WorkerServerEvent::Hello(handshake) = server.recv().await {
                let runners: Vec<_> = (0..RUNNERS).map(|n| (RunnerId(n), Incarnation(1))).collect();
                break handshake.welcome(&runners, Duration::from_secs(5));
            }
        };
        for (in_flight, bytes) in [(1, 1024), (64, 1024), (1024, 1024), (64, 65_536)] {
            measure(&mut server, &connection, in_flight, bytes, time).await;
        }
    });
    drop(server);
    worker.join().expect("the worker ends");
}

/// Responds to every command immediately.
async fn echo(address: &Address, secret: &Secret) {
    let hello = Hello::new("", RUNNERS);
    let options = worker_client::WorkerClientOptions::default();
    let connected =
        worker_client::connect(address, secret, hello, options).await.expect("a connection");
    let ConnectedWorker { sender, mut receiver, .. } = connected;
    let mut commands = Vec::new();
    while receiver.recv_many(&mut commands, 256).await.is_ok() {
        for command in commands.drain(..) {
            if let EngineMessage::StartAttempt(start) = command {
                let metrics: Metrics = [("reward", 1.0)].into_iter().collect();
                let outcome = Ok(RunOutput { payload: Some(start.task), metrics });
                let report =
                    WorkerReport::RunFinished { attempt: start.attempt, run: RunId(0), outcome };
                if sender.report(start.runner, start.incarnation, report).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its result")]
async fn measure(
    server: &mut WorkerServer,
    connection: &WorkerConnection,
    in_flight: u32,
    bytes: usize,
    time: Duration,
) {
    let task = Bytes::from(vec![7; bytes]);
    let definition = Arc::new(WorkflowDefinition {
        id: DefinitionId(1),
        name: "echo".into(),
        encoding: "name".into(),
        task_encoding: "json".into(),
        body: Bytes::new(),
    });
    let command = |runner: u32, attempt: u64| {
        EngineMessage::StartAttempt(StartAttempt {
            runner: RunnerId(runner),
            incarnation: Incarnation(1),
            attempt: AttemptId(attempt),
            batch: BatchId::Number(1),
            kind: BatchType::Train,
            task_id: TaskId(0),
            runs: RunRange { first: 0, count: 1 },
            task: task.clone(),
            definition: Arc::clone(&definition),
            timeout: Duration::from_secs(60),
            suspected_losses: 0,
            model_keys: Vec::new(),
        })
    };
    let mut sent_at = vec![Instant::now(); in_flight as usize];
    let mut latencies = Vec::new();
    let mut events = Vec::new();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for (runner, at) in sent_at.iter_mut().enumerate() {
        *at = Instant::now();
        connection.send(command(runner as u32, 0)).expect("the worker reads");
    }
    let mut attempt = 0;
    let mut flying = in_flight;
    while flying > 0 {
        server.recv_many(&mut events, 1024).await;
        let now = Instant::now();
        for event in events.drain(..) {
            let WorkerServerEvent::Message {
                message:
                    WorkerMessage::Runner { runner, report: WorkerReport::RunFinished { .. }, .. },
                ..
            } = event
            else {
                continue;
            };
            let at = &mut sent_at[runner.0 as usize];
            latencies.push(now - *at);
            if now - begin < time {
                attempt += 1;
                *at = now;
                connection.send(command(runner.0, attempt)).expect("the worker reads");
            } else {
                flying -= 1;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let per_second = latencies.len() as f64 / seconds;
    let (half, most) = (latencies[latencies.len() / 2], latencies[latencies.len() * 99 / 100]);
    let cpu = (cpu_seconds() - cpu) * 1e6 / latencies.len() as f64;
    println!(
        "{in_flight:5} in flight, {bytes:6} bytes: {per_second:9.0} round trips/s, \
         p50 {half:9.1?}, p99 {most:9.1?}, {cpu:6.1} µs of CPU each"
    );
}

/// Returns the CPU time of both ends, which depends less on other load than wall time.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // User and system time are the 12th and 13th field behind the process name.
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}
