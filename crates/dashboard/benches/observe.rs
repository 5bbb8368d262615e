//! What it costs to be observed: no-op tasks with nobody looking, and with this or that on, in
//! turns so that all see the same machine. Ratios are of neighbours in time; their spread is told.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollway_base::Secret;
use rollway_config::Config as JobConfig;
use rollway_core::CoreConfig;
use rollway_dashboard::Dashboard;
use rollway_engine::events::{RunEvent, RunObserver, RunObservers};
use rollway_engine::job_event::JobObservers;
use rollway_engine::{
    CollectOptions, LocalRunners, RunContext, RunOutcome, RunOutput, Scheduler, Task,
    WorkflowRegistry,
};
use rollway_telemetry::alarms::AlarmObserver;
use rollway_telemetry::history::{self, RunHistory};
use rollway_telemetry::prometheus::PrometheusExporter;
use rollway_telemetry::{DropCounters, view};
use rollway_trace::Tracer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Tasks of a round.
const TASKS: usize = 100_000;

/// Rounds, the first of which are not counted: everything is warm then.
const ROUNDS: usize = 13;
const WARM: usize = 2;

/// Runners.
const RUNNERS: u32 = 8;

async fn nothing(_: RunContext) -> RunOutcome {
    Ok(RunOutput::default())
}

/// Does what it costs to be told, and nothing else.
#[derive(Debug)]
struct Deaf;

impl RunObserver for Deaf {
    fn observe(&self, seen: &[RunEvent]) {
        std::hint::black_box(seen);
    }
}

/// One way to be observed.
struct Setting {
    name: &'static str,
    scheduler: Scheduler,
    times: Vec<Duration>,
    /// Processor time of the whole process, with what threads do after the last task has ended.
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

    /// Has all tasks done, and notes how long it takes.
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

/// How long those who write things down get to do so, before the next has its turn.
const SETTLE: Duration = Duration::from_millis(600);

/// How much processor time this process has used, to a hundredth of a second.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in brackets, may have spaces.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// What may be on.
#[derive(Default)]
struct On {
    trace: bool,
    history: bool,
    meters: bool,
    alarms: bool,
    dashboard: bool,
}

impl On {
    /// Switches it on, for no-op tasks to be observed by.
    async fn setting(self, name: &'static str) -> Setting {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = JobConfig::default();
        config.checkpoint_root_dir = folder.path().display().to_string();
        let mut observers: Vec<Arc<dyn RunObserver>> = Vec::new();
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        if self.trace {
            config.trace.file = true;
            config.trace.otlp_endpoint = Some(collector().await);
            let tracer = Tracer::open(&config).expect("it can be written").expect("it is wanted");
            observers.push(tracer);
        }
        if self.meters {
            observers.push(PrometheusExporter::new(&config, DropCounters::default()));
        }
        if self.alarms {
            let stop = CancellationToken::new();
            let (watchers, drops) = (JobObservers::default(), DropCounters::default());
            observers.push(AlarmObserver::start(&config.alarms, watchers, &drops, stop));
        }
        if self.history {
            let options = history::HistoryOptions::of(&config).expect("a history is kept");
            let history = RunHistory::open(&options).expect("it can be written");
            if self.dashboard {
                kept.push(Box::new(look(history::live_view(Arc::clone(&history))).await));
            }
            observers.push(history);
        }
        kept.push(Box::new(folder));
        Setting::new(name, observers, kept).await
    }
}

/// Serves pages, and follows their events as a browser does.
async fn look(scene: Arc<dyn view::JobView>) -> Dashboard {
    let token = "token";
    let secret = Some(Secret::new(token).expect("a token"));
    let listen = "127.0.0.1:0".to_owned();
    let options =
        rollway_dashboard::DashboardOptions { listen, token: secret, scene, metrics: None };
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
    assert_eq!(&head, b"HTTP/1.1 200", "it lets the browser in");
    tokio::spawn(async move {
        let mut heard = vec![0; 1 << 16];
        while matches!(socket.read(&mut heard).await, Ok(1..)) {}
    });
    dashboard
}

/// Answers every request with success.
async fn collector() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                loop {
                    let (head, length) = loop {
                        if let Some(found) = head_of(&heard) {
                            break found;
                        }
                        if !matches!(socket.read_buf(&mut heard).await, Ok(1..)) {
                            return;
                        }
                    };
                    while heard.len() < head + length {
                        if !matches!(socket.read_buf(&mut heard).await, Ok(1..)) {
                            return;
                        }
                    }
                    heard.drain(..head + length);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    if socket.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

/// Returns how long the head of a request is, and how long its body.
fn head_of(heard: &[u8]) -> Option<(usize, usize)> {
    let head = heard.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&heard[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    Some((head, length.trim().parse().ok()?))
}

/// Prints of every setting the rate and the processor time of a task, and what part of the first
/// setting's throughput is left: by the clock, and by processor time.
fn report(settings: &[Setting]) {
    let rates = |setting: &Setting| middle(&setting.times[WARM..], |of| TASKS as f64 / of);
    let ratio = |first: &[Duration], other: &[Duration]| {
        let pairs = first[WARM..].iter().zip(&other[WARM..]);
        let ratios = pairs.map(|(first, other)| first.as_secs_f64() / other.as_secs_f64());
        sorted(ratios.collect())
    };
    for setting in settings {
        let rate = rates(setting);
        let micros = middle(&setting.processor[WARM..], |of| of * 1e6 / TASKS as f64);
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

fn middle(times: &[Duration], what: impl Fn(f64) -> f64) -> f64 {
    let values = sorted(times.iter().map(|time| what(time.as_secs_f64())).collect());
    values[values.len() / 2]
}

fn spread(sorted: &[f64]) -> String {
    let middle = sorted[sorted.len() / 2];
    format!("{middle:.3} of the first, {:.3} to {:.3}", sorted[0], sorted[sorted.len() - 1])
}

/// Tells whether a setting is wanted: all are, or those that are named.
fn is_wanted(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|word| !word.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|word| name.starts_with(&word))
}

#[tokio::main]
async fn main() {
    let all = On { trace: true, history: true, meters: true, alarms: true, dashboard: true };
    let looks = [
        ("traces, file and collector", On { trace: true, ..On::default() }),
        ("meters", On { meters: true, ..On::default() }),
        ("alarms", On { alarms: true, ..On::default() }),
        ("history", On { history: true, ..On::default() }),
        ("everything, and a browser", all),
    ];
    let mut settings = Vec::new();
    if is_wanted("nobody looks") {
        settings.push(Setting::new("nobody looks", vec![], vec![]).await);
    }
    let deaf = "told, and not listened to";
    if is_wanted(deaf) {
        settings.push(Setting::new(deaf, vec![Arc::new(Deaf)], vec![]).await);
    }
    for (name, on) in looks.into_iter().filter(|(name, _)| is_wanted(name)) {
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
