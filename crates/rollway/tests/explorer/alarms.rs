//! An alarm ends a job whose model refuses every call; the same command resumes it.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use rollway::config::Config;
use rollway::explorer::{Alarm, JobEvent, JobObservers};
use rollway::job::{Job, JobError, OperatorRegistry, SummaryState};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::world::EventLog;

/// Starts a healthy server that refuses every call.
async fn refusing() -> String {
    let models = json!({ "object": "list", "data": [{ "id": "m", "object": "model" }] });
    let refuse = || async {
        let error = json!({ "error": { "message": "the licence has run out", "code": null } });
        (StatusCode::BAD_REQUEST, rollway_net::JsonBody(error))
    };
    let routes = Router::new()
        .route("/v1/models", get(async || rollway_net::JsonBody(models)))
        .route("/health", get(async || "well"))
        .fallback(refuse);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

fn config(folder: &str, url: &str) -> Config {
    let text = format!(
        "
mode: explore
name: job
algorithm: {{repeat_times: 2}}
buffer:
  batch_size: 50
  total_steps: 4
  explorer_input:
    taskset: {{path: {folder}/tasks.jsonl, default_workflow_type: simple_workflow, \
         default_reward_fn_type: exact_match, \
         format: {{prompt_key: question, response_key: answer}}}}
  trainer_input:
    experience_buffer: {{storage_type: sql, path: 'sqlite:///{folder}/b.db'}}
checkpoint_root_dir: {folder}
explorer:
  runner_per_model: 2
  rollout_model: {{engine_type: openai, base_url: {url}}}
alarms: {{consecutive_failures: 20, on_consecutive_failures: stop}}
monitor: {{monitor_type: none}}
"
    );
    let config = Config::from_yaml(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
    config.resolve().unwrap_or_else(|error| panic!("{error}")).config
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_end_the_job_with_an_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let row = json!({ "question": "1+1=", "answer": "2" }).to_string() + "\n";
    std::fs::write(folder.path().join("tasks.jsonl"), row.repeat(200)).unwrap();
    let config = config(folder.path().to_str().unwrap(), &refusing().await);
    // The second run resumes the job and ends the same way.
    for times in 1..=2 {
        let seen = EventLog::default();
        let watchers = JobObservers::new(vec![Arc::new(seen.clone())]);
        let operators = Arc::new(OperatorRegistry::built_in());
        let job = Job::run(config.clone(), watchers, operators, CancellationToken::new());
        let ended = Box::pin(job).await;
        let error = ended.unwrap_err();
        assert!(matches!(error, JobError::Alarm(_)) && !error.is_input(), "{error:?}");
        let message = error.to_string();
        for part in ["20 runs failed in a row", "workflow", "the licence has run out", "to resume"]
        {
            assert!(message.contains(part), "{message}");
        }
        let events = seen.events();
        let alarms: Vec<&Alarm> = events
            .iter()
            .filter_map(|event| if let JobEvent::Alarm(alarm) = event { Some(alarm) } else { None })
            .collect();
        let kinds: Vec<_> = alarms.iter().map(|alarm| (alarm.kind, alarm.raised)).collect();
        assert_eq!(kinds, [("consecutive_failures", true)]);
        drop(events);
        let path = config.clone().named().job_dir().join("summary.json");
        let summary: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(summary["state"], json!(SummaryState::Failed));
        assert_eq!(summary["alarms"], json!({ "consecutive_failures": times }));
        assert_eq!(summary["error"].as_str(), Some(&*message));
    }
}
