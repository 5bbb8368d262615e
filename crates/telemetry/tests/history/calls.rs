//! Model calls of runs, through the gateway and a mock server.

use std::time::Duration;

use reqwest::header::HeaderMap;
use rollway_base::Secret;
use rollway_base::ServerKind;
use rollway_core::BatchType;
use rollway_engine::events::RunObservers;
use rollway_engine::{
    GatewayRunKeys, LocalRunners, RunContext, RunOutput, WithModelAccess, WorkflowRegistry,
};
use rollway_gateway::gateway::{self, Gateway};
use rollway_gateway::models::{self, ServerSpec};
use rollway_mock_server::{MockServer, MockServerOptions};
use rollway_telemetry::history::RunHistory;
use rollway_telemetry::view::{JobState, RunKey, RunState};
use serde_json::json;

use crate::help::{config, coordinator, live, options, tasks, until};

async fn start(server: &MockServer, observers: &RunObservers) -> Gateway {
    let options = gateway::GatewayOptions {
        models: models::RoutingOptions {
            health_interval: Duration::from_millis(20),
            ..models::RoutingOptions::default()
        },
        watcher: observers.of_calls(),
        ..gateway::GatewayOptions::new(Secret::random().unwrap())
    };
    let server = ServerSpec {
        model: "policy".to_owned(),
        trained: true,
        engine: ServerKind::Vllm,
        url: server.url(),
        api_key: None,
        server_model: None,
    };
    Gateway::start(options, vec![server]).await.unwrap()
}

/// Calls a model twice, then an unknown one; the second run never ends.
async fn call_models(context: RunContext) -> rollway_engine::RunOutcome {
    let model = context.model.expect("there is a gateway");
    let (url, key) = (format!("{}/chat/completions", model.base_url), model.api_key.reveal());
    let client = models::http_client(&url, HeaderMap::new(), Duration::from_secs(10))?;
    for name in ["policy", "policy", "unknown"] {
        let messages = json!([{ "role": "user", "content": "say something" }]);
        let body = json!({ "model": name, "messages": messages, "max_tokens": 5 }).to_string();
        client
            .post(&url)
            .bearer_auth(key)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await?
            .bytes()
            .await?;
    }
    if context.run.0 == 1 {
        std::future::pending::<()>().await;
    }
    Ok(RunOutput::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_belong_to_the_attempt_that_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let history = RunHistory::open(&options(folder.path())).unwrap();
    let view = live(&history);
    let server = MockServer::start(MockServerOptions::default()).unwrap();
    let observers = RunObservers::new(vec![std::sync::Arc::clone(&history) as _]);
    let gateway = start(&server, &observers).await;
    let local = LocalRunners::new(WorkflowRegistry::default().with("ask", call_models));
    let workers = WithModelAccess::new(local, GatewayRunKeys::new(&gateway));
    let coordinator = coordinator(config(2, 0), workers, &history).await;
    coordinator.submit_batch("1/q", tasks("ask", 1, 2), BatchType::Eval, None).await.unwrap();
    until(&*view, RunState::Succeeded, 1).await;

    let key = |run| RunKey { batch: "1/q".to_owned(), task: 0, run };
    let detail = view.run(&key(0)).unwrap();
    let calls = &detail.attempts[0].calls;
    let seen: Vec<_> = calls.iter().map(|call| (call.model.as_str(), call.status)).collect();
    assert_eq!(seen[..2], [("policy", Some(200)), ("policy", Some(200))]);
    assert_eq!((seen.len(), seen[2].0, seen[2].1 >= Some(400)), (3, "unknown", true), "{seen:?}");
    for call in &calls[..2] {
        assert_eq!(call.server.as_deref(), Some(server.url().as_str()));
        assert!(call.began <= call.sent.unwrap() && call.sent <= call.ended);
        assert!(call.prompt_tokens > Some(0) && call.answer_tokens > Some(0));
    }
    assert_eq!((calls[2].sent, &calls[2].server), (None, &None));
    let tokens: u64 = calls.iter().filter_map(|call| call.answer_tokens).sum();
    assert_eq!((detail.run.tokens, detail.run.turns), (Some(tokens), Some(2)));

    // Calls of an open run are listed too.
    until(&*view, RunState::Running, 1).await;
    while view.run(&key(1)).unwrap().attempts[0].calls.len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(view.runners().await[0].calls, 6);
    coordinator.abort_batch("1/q", "enough", false).await.unwrap();
    gateway.stop(Duration::ZERO).await;
    history.close(JobState::Finished, None);
    let overview = view.overview();
    assert_eq!(overview.runs.cancelled["aborted"], 1);
}
