//! The embedded model behind a gateway, and configurations that use it.

use std::time::Duration;

use rollway::config::Config;
use rollway::taskset::{SelectedTask, TasksetOpener};
use rollway::tiny::{self, TinyServer};
use rollway::workflow_runtime::WorkflowRuntime;
use rollway::{BatchResults, CollectOptions, Scheduler, Task, gateway_options};
use rollway_base::ServerKind;
use rollway_core::FailureKind;
use rollway_gateway::gateway::Gateway;
use rollway_gateway::models::ServerSpec;
use tempfile::TempDir;

pub(crate) const ROWS: &str = r#"{"question": "12+34=", "answer": "046", "level": 1}
{"question": "50+07=", "answer": "057", "level": 2}
"#;

pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) server: TinyServer,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("sums.jsonl"), ROWS).unwrap();
        let server = TinyServer::start(tiny::TinyServerOptions::default()).unwrap();
        Self { folder, server }
    }

    /// Returns a configuration whose `explorer_input` and `explorer` have these lines.
    pub(crate) fn config(&self, input: &str, explorer: &str) -> Config {
        let path = self.folder.path().join("sums.jsonl");
        let text = format!(
            "mode: explore
algorithm: {{repeat_times: 3}}
buffer:
  batch_size: 2
  explorer_input: {{{input} taskset: {{path: {}, format: &format {{prompt_key: question, \
             response_key: answer}}, rollout_args: {{max_tokens: 5, temperature: 1.0}}}}, \
             eval_tasksets: [{{path: {}, format: *format, repeat_times: 2, \
             rollout_args: {{temperature: 0}}}}]}}
explorer: {{{explorer} rollout_model: {{engine_type: tiny}}, max_timeout: 20, max_retry_times: 0}}",
            path.display(),
            path.display(),
        );
        let config = Config::from_yaml(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
        config.resolve().unwrap_or_else(|error| panic!("{error}")).config
    }

    /// Starts a gateway for the model.
    pub(crate) async fn gateway(&self, config: &Config, engine: ServerKind) -> Gateway {
        let (mut options, mut servers) = gateway_options::options(config).unwrap();
        options.models.health_interval = Duration::from_millis(50);
        options.models.max_wait = Duration::from_millis(500);
        servers.push(ServerSpec {
            model: gateway_options::trained_model(config),
            trained: true,
            engine,
            url: self.server.url(),
            api_key: None,
            server_model: None,
        });
        Gateway::start(options, servers).await.unwrap()
    }
}

/// Returns the first train batch and all eval tasks.
pub(crate) fn selected(config: &Config) -> (Vec<SelectedTask>, Vec<SelectedTask>) {
    let opener = TasksetOpener::new(&config.buffer);
    let train = opener.train().unwrap().next_batch(config.buffer.batch_size).unwrap().unwrap();
    let mut evals = opener.evals().unwrap();
    (train, evals[0].all().collect::<Result<_, _>>().unwrap())
}

pub(crate) async fn run(
    runtime: &WorkflowRuntime,
    config: &Config,
    gateway: &Gateway,
    tasks: Vec<Task>,
) -> BatchResults {
    let workers = runtime.start_backend(config, gateway).await.unwrap();
    let scheduler = Scheduler::new(config.to_core(2), workers);
    scheduler.start().await.unwrap();
    scheduler.schedule(tasks, 7).await.unwrap();
    let collected = scheduler.get_payload_results(7, CollectOptions::default()).await.unwrap();
    scheduler.stop(Duration::from_secs(5)).await.unwrap();
    collected
}

/// Returns the number of runs that failed for a reason.
pub(crate) fn failed(collected: &BatchResults, kind: FailureKind) -> u64 {
    collected.statuses.iter().map(|(_, status)| status.failed_runs[kind]).sum()
}
