//! Runs one batch of a job, for Python tests: `flows CONFIG` checks the workflows and runs the
//! first train batch and all eval tasksets with embedded models (`tiny`, `echo`). Prints statuses
//! and experiences as one line of JSON; exits with 1 on an error.

#![expect(clippy::print_stdout, reason = "the output is for the calling test")]

use std::env;
use std::error::Error;
use std::time::Duration;

use rollway::config::{Config, EngineType};
use rollway::taskset::{SelectedTask, TasksetOpener};
use rollway::tiny::{self, TinyServer};
use rollway::workflow_runtime::WorkflowRuntime;
use rollway::{CollectOptions, Scheduler, gateway_options};
use rollway_base::ServerKind;
use rollway_core::BatchType;
use rollway_experience::deserialize_many;
use rollway_gateway::gateway::Gateway;
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{MockServer, MockServerOptions};
use serde_json::{Map, Value, json};

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> Result<(), String> {
    let path = env::args().nth(1).ok_or("usage: flows CONFIG")?;
    let reply = batch(&path).await.map_err(|error| error.to_string())?;
    println!("{reply}");
    Ok(())
}

async fn batch(path: &str) -> Result<Value, Failure> {
    let config = Config::load(path)?.resolve()?.config;
    let runtime = WorkflowRuntime::from_config(&config)?;
    runtime.check(&config).await?;
    let opener = TasksetOpener::new(&config.buffer);
    let opener = if runtime.needs_prompts() { opener } else { opener.without_prompts() };
    let train = opener.train()?.next_batch(config.buffer.batch_size)?.unwrap_or_default();
    let mut evals = Vec::new();
    for set in &mut opener.evals()? {
        evals.extend(set.all().collect::<Result<Vec<SelectedTask>, _>>()?);
    }

    let (options, mut servers) = gateway_options::options(&config)?;
    let tiny = TinyServer::start(tiny::TinyServerOptions::default())?;
    let simulated = MockServer::start(MockServerOptions::default())?;
    let explorer = &config.explorer;
    let auxiliary = explorer.auxiliary_models.iter().map(|model| (model, model.name.clone()));
    let trained = (&explorer.rollout_model, Some(gateway_options::trained_model(&config)));
    for (at, (model, name)) in [trained].into_iter().chain(auxiliary).enumerate() {
        servers.push(ServerSpec {
            model: name.unwrap_or_default(),
            trained: at == 0,
            engine: ServerKind::Vllm,
            url: match model.engine_type {
                EngineType::Tiny => tiny.url(),
                _ => simulated.url(),
            },
            api_key: None,
            server_model: None,
        });
    }
    let gateway = Gateway::start(options, servers).await?;
    let workers = runtime.start_backend(&config, &gateway).await?;
    let scheduler = Scheduler::new(config.to_core(config.explorer.runner_per_model), workers);
    scheduler.start().await?;
    let mut reply = Map::new();
    for (name, kind, selected) in
        [("train", BatchType::Train, train), ("eval", BatchType::Eval, evals)]
    {
        let tasks =
            selected.iter().map(|one| runtime.encode_task(one)).collect::<Result<Vec<_>, _>>()?;
        if !tasks.is_empty() {
            scheduler.schedule(tasks, name).await?;
            reply.insert(name.to_owned(), ended(&scheduler, name, kind).await?);
        }
    }
    scheduler.stop(Duration::from_secs(5)).await?;
    Ok(reply.into())
}

async fn ended(scheduler: &Scheduler, batch: &str, kind: BatchType) -> Result<Value, Failure> {
    let collected = scheduler.get_payload_results(batch, CollectOptions::default()).await?;
    let statuses = collected.statuses.iter().map(|(_, status)| {
        let failed = status.failed_runs.nonzero().map(|(kind, count)| (kind.name(), count));
        let metrics = status.metrics(kind);
        json!({
            "completed": status.completed_runs,
            "total": status.total_runs,
            "failed": failed.collect::<std::collections::BTreeMap<_, _>>(),
            "message": status.message(),
            "metrics": metrics.iter().map(|(name, value)| (name.to_string(), value.into()))
                .collect::<Map<String, Value>>(),
        })
    });
    let mut experiences = Vec::new();
    for payload in &collected.payloads {
        experiences.extend(deserialize_many(payload.clone())?.iter().map(|one| one.to_json()));
    }
    Ok(json!({ "statuses": statuses.collect::<Vec<_>>(), "experiences": experiences }))
}
