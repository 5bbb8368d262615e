//! Processes of the coordinator and of the mock server.

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use rollway_base::{Secret, ServerKind};
use rollway_core::CoreConfig;
use rollway_engine::{
    CollectOptions, GatewayRunKeys, LocalRunners, RunContext, RunOutcome, RunOutput, Scheduler,
    Task, WithModelAccess, WorkflowRegistry,
};
use rollway_gateway::gateway::{ByteLimits, Gateway, GatewayLimits, GatewayOptions};
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Model calls of an honest run, one after the other, and their tokens.
const CALLS: u32 = 4;
const TOKENS: u32 = 32;

/// Memory that the gateway is configured for, and memory for everything else.
const REQUESTS: u64 = 512 << 20;
const RESPONSES: u64 = 128 << 20;
const RECORDED: u64 = 128 << 20;
const REST: u64 = 256 << 20;

/// Prints the URL of a mock server, and runs it until the input ends.
pub(crate) fn server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let options = MockServerOptions {
        tokens_per_second: 100.0,
        lengths: CompletionLengths::Fixed(1024),
        max_records: 0,
        ..MockServerOptions::default()
    };
    let server = MockServer::start(options).expect("a free port");
    print_line(&json!({ "url": server.url() }));
    std::io::stdin().lock().lines().for_each(drop);
}

#[tokio::main]
pub(crate) async fn run(args: &[String]) {
    let [url, runners, runs] = args else { panic!("three arguments: {args:?}") };
    let [runners, runs] =
        [runners, runs].map(|text| text.parse::<u32>().expect("a positive number"));
    let gateway = gateway(url).await;
    let (keys, mut issued) = mpsc::unbounded_channel();
    let hostile = move |context: RunContext| {
        let keys = keys.clone();
        async move {
            let model = context.model.expect("there is a gateway");
            let _ = keys.send(model.api_key.reveal().to_owned());
            std::future::pending::<RunOutcome>().await
        }
    };
    let workflows = WorkflowRegistry::default().with("honest", honest).with("hostile", hostile);
    let workers = WithModelAccess::new(LocalRunners::new(workflows), GatewayRunKeys::new(&gateway));
    // A hostile run for each honest runner.
    let config = CoreConfig { runners: 2 * runners, ..CoreConfig::default() };
    let scheduler = Scheduler::new(config, workers);
    scheduler.start().await.expect("a pool starts");
    let hostile = vec![Task::new("hostile", ""); runners as usize];
    scheduler.schedule(hostile, "hostile").await.expect("a fresh batch");
    let mut keys = Vec::new();
    for _ in 0..runners {
        keys.push(issued.recv().await.expect("every hostile run begins"));
    }
    let configured_mib = (REQUESTS + RESPONSES + RECORDED + REST) >> 20;
    print_line(&json!({ "url": gateway.url(), "keys": keys, "configured_mib": configured_mib }));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        print_line(&measure(&scheduler, &line, runs).await);
    }
    scheduler.stop(Duration::from_secs(1)).await.expect("the scheduler stops");
    gateway.stop(Duration::ZERO).await;
}

async fn gateway(url: &str) -> Gateway {
    let limits = GatewayLimits {
        request_bytes: ByteLimits { total: REQUESTS, per_run: REQUESTS / 4 },
        response_bytes: ByteLimits { total: RESPONSES, per_run: RESPONSES / 4 },
        recorded_bytes: RECORDED,
        ..GatewayLimits::default()
    };
    let options =
        GatewayOptions { limits, ..GatewayOptions::new(Secret::random().expect("random bytes")) };
    let server = ServerSpec::new("policy", true, ServerKind::Vllm, url.to_owned());
    Gateway::start(options, vec![server]).await.expect("a gateway")
}

/// Calls the model several times. Every call has to succeed.
async fn honest(context: RunContext) -> RunOutcome {
    let model = context.model.expect("there is a gateway");
    let url = format!("{}/chat/completions", model.base_url);
    let client = rollway_gateway::models::http_client(
        &url,
        http::HeaderMap::new(),
        Duration::from_secs(10),
    )?;
    for _ in 0..CALLS {
        let messages = json!([{ "role": "user", "content": "The sea is wide." }]);
        let body = json!({ "model": "policy", "messages": messages, "max_tokens": TOKENS });
        let request = client.post(&url).bearer_auth(model.api_key.reveal());
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await?;
        response.error_for_status()?.bytes().await?;
    }
    Ok(RunOutput::default())
}

/// Runs honest tasks to their end.
async fn measure(scheduler: &Scheduler, batch: &str, runs: u32) -> Value {
    let (before, start) = (scheduler.lag(), Instant::now());
    let tasks = vec![Task::new("honest", ""); runs as usize];
    scheduler.schedule(tasks, batch).await.expect("a fresh batch");
    let ended = scheduler.get_statuses(batch, CollectOptions::default()).await.expect("it ends");
    let failed = ended.iter().filter(|(_, status)| status.completed_runs == 0).count();
    let lag = scheduler.lag().since(&before);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    json!({
        "runs": ended.len(),
        "failed": failed + (runs as usize - ended.len()),
        "seconds": start.elapsed().as_secs_f64(),
        "lag_p99_ms": millis(lag.p99),
        "lag_max_ms": millis(lag.max),
        "memory_mib": peak_memory() as f64 / f64::from(1 << 20),
    })
}

/// Returns the largest resident memory of this process so far.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a process has a status") * 1024
}

fn print_line(value: &Value) {
    println!("{value}");
    std::io::stdout().flush().expect("an open standard output");
}
