//! Cost of observers: no-op tasks without and with them, in turn, so that all see the same machine.
//! Ratios compare neighbouring rounds; their spread is printed.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_base::Secret;
use rollway_base::tls::TlsOptions;
use rollway_config::Config as JobConfig;
use rollway_core::CoreConfig;
use rollway_dashboard::Dashboard;
use rollway_engine::events::{RunEvent, RunObserver, RunObservers};
use rollway_engine::job_event::JobObservers;
use rollway_engine::{
    CollectOptions, LocalRunners, RunContext, RunOutcome, RunOutput, Scheduler, Task,
    WorkflowRegistry,
};
use rollway_net::{ListenerKind, ListenerLimits};
use rollway_telemetry::alarms::AlarmObserver;
use rollway_telemetry::history::{self, RunHistory};
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::{DropCounters, view};
use rollway_trace::Tracer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const TASKS: usize = 100_000;

/// Number of rounds, and of those that only warm up.
const ROUNDS: usize = 13;
const WARM: usize = 2;

const RUNNERS: u32 = 8;

async fn nothing(_: RunContext) -> RunOutcome {
    Ok(RunOutput::default())
}

/// Observer that ignores all events.
#[derive(Debug)]
struct IgnoringObserver;

impl RunObserver for IgnoringObserver {
    fn observe(&self, events: &[RunEvent]) {
        std::hint::black_box(events);
    }
}

/// A scheduler with some observers.
struct Setting {
    name: &'static str,
    scheduler: Scheduler,
    times: Vec<Duration>,
    /// Processor time of the process, with its threads after the last task.
    processor: Vec<Duration>,
    _kept: Vec<Box<dyn std::any::Any>>,
}

impl Setting {
    async fn new(
        name: &'static str,
        observers: Vec<Arc<dyn RunObserver>>,
        kept: Vec<Box<dyn std::any::Any>>,
    ) -> Self {
        let config = CoreConfig { runners: RUNNERS, ..CoreConfig::default() };
        let workers = LocalRunners::new(WorkflowRegistry::default().with("nothing", nothing));
        let scheduler = Scheduler::new(config, workers).observed(RunObservers::new(observers));
        scheduler.start().await.expect("local runners start");
        Self { name, scheduler, times: Vec::new(), processor: Vec::new(), _kept: kept }
    }

    /// Executes all tasks and records the duration.
    async fn round(&mut self, round: usize) {
        let batch = i64::try_from(round).expect("few rounds");
        let tasks = vec![Task::new("nothing", ""); TASKS];
        let (start, used) = (Instant::now(), processor_time());
        self.scheduler.schedule(tasks, batch).await.expect("a fresh batch");
        let got =
            self.scheduler.get_statuses(batch, CollectOptions::default()).await.expect("it ends");
        assert_eq!(got.len(), TASKS);
        self.times.push(start.elapsed());
        drop(got);
        tokio::time::sleep(SETTLE).await;
        self.processor.push(processor_time().saturating_sub(used));
    }
}

/// Time for writers before the next round.
const SETTLE: Duration = Duration::from_millis(600);

/// Returns the processor time of this process, to a hundredth of a second.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Enabled observers.
#[derive(Default)]
struct Observers {
    trace: bool,
    history: bool,
    meters: bool,
    alarms: bool,
    dashboard: bool,
}

impl Observers {
    async fn setting(self, name: &'static str) -> Setting {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = JobConfig::default();
        config.checkpoint_root_dir = folder.path().display().to_string();
        let mut observers: Vec<Arc<dyn RunObserver>> = Vec::new();
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        if self.trace {
            config.trace.file = true;
            config.trace.otlp_endpoint = Some(collector().await);
            let tracer = Tracer::open(&config, &DropCounters::default())
                .expect("it can be written")
                .expect("it is wanted");
            observers.push(tracer);
        }
        if self.meters {
            observers.push(PrometheusExporter::new(&config, DropCounters::default()));
        }
        if self.alarms {
            let stop = CancellationToken::new();
            let (watchers, drops) = (JobObservers::default(), DropCounters::default());
            observers.push(AlarmObserver::start(&config, watchers, &drops, stop));
        }
        if self.history {
            let options = history::HistoryOptions::of(&config).expect("a history is kept");
            let history = RunHistory::open(&options).expect("it can be written");
            if self.dashboard {
                kept.push(Box::new(browse(history::live_view(Arc::clone(&history))).await));
            }
            observers.push(history);
        }
        kept.push(Box::new(folder));
        Setting::new(name, observers, kept).await
    }
}

/// Serves a dashboard and reads its events like a browser.
async fn browse(view: Arc<dyn view::JobView>) -> Dashboard {
    let token = "token";
    let secret = Some(Secret::new(token).expect("a token"));
    let listen = "127.0.0.1:0".to_owned();
    let limits = ListenerLimits::of(ListenerKind::Dashboard);
    let (tls, metrics) = (TlsOptions::off(), None);
    let options =
        rollway_dashboard::DashboardOptions { listen, limits, tls, token: secret, view, metrics };
    let dashboard = Dashboard::open(options).await.expect("a port");
    let address = dashboard.address();
    let host = address.trim_start_matches("http://");
    let host = host.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
    let mut socket = TcpStream::connect(&host).await.expect("the dashboard");
    let request = format!(
        "GET /api/events HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await.expect("it listens");
    let mut head = [0; 12];
    socket.read_exact(&mut head).await.expect("it answers");
    assert_eq!(&head, b"HTTP/1.1 200", "the token is accepted");
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while matches!(socket.read(&mut buffer).await, Ok(1..)) {}
    });
    dashboard
}

/// Collector that accepts every request.
async fn collector() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = Vec::new();
                loop {
                    let (head, length) = loop {
                        if let Some(found) = head_of(&received) {
                            break found;
                        }
                        if !matches!(socket.read_buf(&mut received).await, Ok(1..)) {
                            return;
                        }
                    };
                    while received.len() < head + length {
                        if !matches!(socket.read_buf(&mut received).await, Ok(1..)) {
                            return;
                        }
                    }
                    received.drain(..head + length);
                    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    if socket.write_all(response).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

/// Returns the lengths of head and body of a request.
fn head_of(received: &[u8]) -> Option<(usize, usize)> {
    let head = received.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    Some((head, length.trim().parse().ok()?))
}

/// Prints rate and processor time per task of every setting, and their ratio to the first.
fn report(settings: &[Setting]) {
    let rates = |setting: &Setting| median(&setting.times[WARM..], |of| TASKS as f64 / of);
    let ratio = |first: &[Duration], other: &[Duration]| {
        let pairs = first[WARM..].iter().zip(&other[WARM..]);
        let ratios = pairs.map(|(first, other)| first.as_secs_f64() / other.as_secs_f64());
        sorted(ratios.collect())
    };
    for setting in settings {
        let rate = rates(setting);
        let micros = median(&setting.processor[WARM..], |of| of * 1e6 / TASKS as f64);
        let by_clock = ratio(&settings[0].times, &setting.times);
        let by_processor = ratio(&settings[0].processor, &setting.processor);
        println!(
            "  {:<28} {rate:>9.0} tasks per second ({}), \
             {micros:.2} µs of processor time each ({})",
            setting.name,
            spread(&by_clock),
            spread(&by_processor)
        );
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(times: &[Duration], value: impl Fn(f64) -> f64) -> f64 {
    let values = sorted(times.iter().map(|time| value(time.as_secs_f64())).collect());
    values[values.len() / 2]
}

fn spread(sorted: &[f64]) -> String {
    let middle = sorted[sorted.len() / 2];
    format!("{middle:.3} of the first, {:.3} to {:.3}", sorted[0], sorted[sorted.len() - 1])
}

/// Returns whether a setting is selected on the command line; none selects all.
fn is_wanted(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|name| !name.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|prefix| name.starts_with(&prefix))
}

#[tokio::main]
async fn main() {
    let all = Observers { trace: true, history: true, meters: true, alarms: true, dashboard: true };
    let observed = [
        ("traces, file and collector", Observers { trace: true, ..Observers::default() }),
        ("meters", Observers { meters: true, ..Observers::default() }),
        ("alarms", Observers { alarms: true, ..Observers::default() }),
        ("history", Observers { history: true, ..Observers::default() }),
        ("everything, and a browser", all),
    ];
    let mut settings = Vec::new();
    if is_wanted("no observers") {
        settings.push(Setting::new("no observers", vec![], vec![]).await);
    }
    let ignoring = "ignoring observer";
    if is_wanted(ignoring) {
        settings.push(Setting::new(ignoring, vec![Arc::new(IgnoringObserver)], vec![]).await);
    }
    for (name, on) in observed.into_iter().filter(|(name, _)| is_wanted(name)) {
        settings.push(on.setting(name).await);
    }
    for round in 0..ROUNDS {
        for setting in &mut settings {
            setting.round(round).await;
        }
    }
    println!("no-op tasks in process, {RUNNERS} runners, batches of {TASKS}");
    report(&settings);
}
