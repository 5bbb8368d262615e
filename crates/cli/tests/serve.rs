//! Mode `serve` as a process that is killed repeatedly.

#![expect(clippy::unwrap_used, reason = "a panic fails the test and names the line")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

/// Number of finished requests after which each process is killed.
const KILL_AFTER: [u64; 12] = [1, 2, 3, 5, 8, 13, 21, 30, 7, 4, 17, 26];

/// Number of concurrent agents.
const AGENTS: u64 = 6;

/// Folder of a job and its inference server.
struct Job {
    folder: tempfile::TempDir,
    _model: MockServer,
    config: PathBuf,
}

impl Job {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = MockServerOptions {
            lengths: CompletionLengths::Uniform(2, 12),
            first_token: std::time::Duration::ZERO,
            tokens_per_second: 2000.0,
            ..MockServerOptions::new(rollway_base::ServerKind::Vllm)
        };
        let model = MockServer::start(options).unwrap();
        let config = folder.path().join("serve.yaml");
        let root = folder.path().join("jobs");
        let text = format!(
            "mode: serve
name: killed
checkpoint_root_dir: {}
explorer:
  proxy_port: 0
  service_status_check_interval: 0.05
  rollout_model: {{base_url: {}/v1}}
buffer:
  trainer_input:
    experience_buffer: {{storage_type: file, path: {}}}
data_processor: {{experience_pipeline: {{save_input: false}}}}
",
            root.display(),
            model.url(),
            folder.path().join("out.jsonl").display(),
        );
        std::fs::write(&config, text).unwrap();
        Self { folder, _model: model, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("jobs/Rollway/killed").join(name)
    }

    async fn start(&self) -> ServeProcess {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rollway"))
            .arg("run")
            .arg(&self.config)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = loop {
            let line = lines.next_line().await.unwrap().expect("a line with the address");
            if let Some((_, url)) = line.split_once(" at http") {
                break format!("http{url}");
            }
        };
        // Drain the rest, so that the process does not block on its output.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        assert_eq!(read(&self.path("explorer_server_url.txt")), url);
        let key = read(&self.path("explorer_server_key.txt"));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        ServeProcess { child, caller: Caller { client, url, key } }
    }

    /// Returns the message ids in the buffer, one list per experience.
    fn stored(&self) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(self.folder.path().join("out.jsonl")).unwrap();
        let ids = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let found = find(&line, "message_ids").unwrap_or_else(|| panic!("{line}"));
            serde_json::from_value(found).unwrap()
        };
        text.lines().map(ids).collect()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Finds a field at any depth, also in JSON inside of strings.
fn find(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Object(fields) => match fields.get(name) {
            Some(found) => Some(found.clone()),
            None => fields.values().find_map(|value| find(value, name)),
        },
        Value::String(text) => {
            let inner = serde_json::from_str::<Value>(text).ok().filter(Value::is_object)?;
            find(&inner, name)
        }
        _ => None,
    }
}

struct ServeProcess {
    child: Child,
    caller: Caller,
}

#[derive(Clone)]
struct Caller {
    client: reqwest::Client,
    url: String,
    key: String,
}

impl Caller {
    async fn post(&self, path: &str, body: &Value) -> reqwest::Result<(u16, String)> {
        let request = self.client.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Calls the model; returns the id of a response that was received completely.
    async fn chat(&self, agent: u64, number: u64) -> reqwest::Result<Option<String>> {
        let stream = number.is_multiple_of(2);
        let content = format!("{agent} says {number}");
        let body = json!({
            "messages": [{ "role": "user", "content": content }],
            "stream": stream,
            "user": agent.to_string(),
        });
        let (status, text) = self.post("/v1/chat/completions", &body).await?;
        // Responses of a process that is being killed do not count.
        if status != 200 || (stream && !text.contains("data: [DONE]")) {
            return Ok(None);
        }
        let first = text.strip_prefix("data: ").unwrap_or(&text);
        let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        Ok(Some(first["id"].as_str().unwrap().to_owned()))
    }

    /// Sends feedback for a received response; returns whether it was accepted or a duplicate.
    async fn feedback(&self, id: &str) -> reqwest::Result<Option<bool>> {
        let body = json!({ "reward": 1.0, "msg_ids": [id], "task_id": "t" });
        let (status, text) = self.post("/feedback", &body).await?;
        if status == 503 {
            return Ok(None);
        }
        let reply: Value = serde_json::from_str(&text).unwrap();
        let counts = ["accepted", "already", "unknown"].map(|name| reply[name].as_u64());
        match counts {
            [Some(1), Some(0), Some(0)] => Ok(Some(true)),
            [Some(0), Some(1), Some(0)] => Ok(Some(false)),
            _ => panic!("feedback for {id} failed with {status}: {text}"),
        }
    }
}

/// Results of the agents, over all processes.
#[derive(Default)]
struct Results {
    /// Received responses and how often their feedback was accepted.
    answered: BTreeMap<String, u64>,
    /// Responses whose feedback was acknowledged.
    acknowledged: BTreeSet<String>,
    step: u64,
}

struct Agents {
    results: Mutex<Results>,
    finished: AtomicU64,
    enough: Notify,
}

impl Agents {
    /// Calls the model, sends feedback and commits until the server is killed.
    async fn agent(self: Arc<Self>, caller: Caller, agent: u64, limit: u64) {
        for number in agent.. {
            let done = match number % 4 {
                0 | 1 => self.call_model(&caller, agent, number).await,
                2 => self.send_feedback(&caller).await,
                _ => self.commit(&caller).await,
            };
            if done.is_err() {
                return;
            }
            if self.finished.fetch_add(1, Ordering::Relaxed) + 1 >= limit {
                self.enough.notify_one();
            }
        }
    }

    async fn call_model(&self, caller: &Caller, agent: u64, number: u64) -> reqwest::Result<()> {
        if let Some(id) = caller.chat(agent, number).await? {
            let before = self.results.lock().await.answered.insert(id, 0);
            assert_eq!(before, None, "two responses with one id");
        }
        Ok(())
    }

    async fn send_feedback(&self, caller: &Caller) -> reqwest::Result<()> {
        let results = self.results.lock().await;
        let open = results.answered.keys().find(|id| !results.acknowledged.contains(*id)).cloned();
        drop(results);
        let Some(id) = open else { return Ok(()) };
        if let Some(is_accepted) = caller.feedback(&id).await? {
            let mut results = self.results.lock().await;
            *results.answered.get_mut(&id).unwrap() += u64::from(is_accepted);
            results.acknowledged.insert(id);
        }
        Ok(())
    }

    async fn commit(&self, caller: &Caller) -> reqwest::Result<()> {
        let (status, text) = caller.post("/commit", &Value::Null).await?;
        if status == 200 {
            let reply: Value = serde_json::from_str(&text).unwrap();
            let mut results = self.results.lock().await;
            results.step = results.step.max(reply["step"].as_u64().unwrap());
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_no_turn_and_counts_none_twice() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let job = Job::new();
    let results = Mutex::new(Results::default());
    let shared = Arc::new(Agents { results, finished: AtomicU64::new(0), enough: Notify::new() });
    for limit in KILL_AFTER {
        let mut process = job.start().await;
        shared.finished.store(0, Ordering::Relaxed);
        let mut agents = JoinSet::new();
        for agent in 0..AGENTS {
            agents.spawn(Arc::clone(&shared).agent(process.caller.clone(), agent, limit));
        }
        shared.enough.notified().await;
        process.child.kill().await.unwrap();
        while let Some(ended) = agents.join_next().await {
            ended.unwrap();
        }
    }

    let mut process = job.start().await;
    let answered: Vec<String> = shared.results.lock().await.answered.keys().cloned().collect();
    for id in &answered {
        // After this it has feedback, from this process or an earlier one.
        while process.caller.feedback(id).await.unwrap().is_none() {}
        assert_eq!(process.caller.feedback(id).await.unwrap(), Some(false));
    }
    let (status, text) = process.caller.post("/commit", &Value::Null).await.unwrap();
    assert_eq!(status, 200, "{text}");
    let step = serde_json::from_str::<Value>(&text).unwrap()["step"].as_u64().unwrap();
    let (_, text) = process.caller.post("/commit", &Value::Null).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["status"], "empty", "{text}");
    let pid = process.child.id().unwrap().to_string();
    assert!(StdCommand::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(process.child.wait().await.unwrap().success(), "SIGTERM ends it with exit code 0");
    assert!(!job.path("explorer_server_url.txt").exists());

    let results = shared.results.lock().await;
    assert!(results.answered.values().all(|accepted| *accepted <= 1), "{:?}", results.answered);
    assert!(step >= results.step, "step {step} after {}", results.step);
    let mut stored: Vec<String> = job.stored().into_iter().flatten().collect();
    stored.sort_unstable();
    assert_eq!(stored, answered, "each answered message is in the buffer exactly once");
    assert!(answered.len() > KILL_AFTER.len(), "too few responses: {}", answered.len());
}

#[tokio::test]
async fn new_checkpoint_is_loaded_into_the_server() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let job = Job::new();
    let process = job.start().await;
    let Caller { client, url, key } = &process.caller;
    let version = async || {
        let body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(key);
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let version = response.headers()["x-rollway-model-version"].to_str().unwrap().to_owned();
        response.text().await.unwrap();
        version
    };
    assert_eq!(version().await, "0");
    std::fs::create_dir_all(job.path("global_step_7")).unwrap();
    std::fs::write(job.path("latest_state_dict_iteration.txt"), "7").unwrap();
    // No call fails meanwhile, although it is the only server.
    while version().await != "7" {}
}

#[test]
fn input_errors_have_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("serve.yaml");
    let text = format!(
        "mode: serve
checkpoint_root_dir: {}
explorer: {{proxy_port: 0, rollout_model: {{base_url: http://127.0.0.1:9/v1}}}}
buffer: {{trainer_input: {{experience_buffer: {{storage_type: sql}}}}}}
",
        folder.path().join("jobs").display()
    );
    std::fs::write(&config, text).unwrap();
    let run = |set: &str| {
        let mut command = StdCommand::new(env!("CARGO_BIN_EXE_rollway"));
        let output = command.arg("run").arg(&config).args(set.split(' ')).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, reply) = run("explorer.rollout_model.api_key_env=ROLLWAY_NO_SUCH_KEY");
    assert_eq!(code, Some(2), "{reply}");
    assert!(reply.contains("ROLLWAY_NO_SUCH_KEY is not set"), "{reply}");
    let (code, reply) = run("explorer.rollout_model.engine_type=openai");
    assert_eq!(code, Some(2), "{reply}");
    assert!(reply.contains("return no token ids"), "{reply}");
    let (code, reply) = run("explorer.db_url=postgresql://me:secret@host/db");
    assert_eq!(code, Some(2), "{reply}");
    assert!(reply.contains("records in a SQLite") && !reply.contains("secret"), "{reply}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, reply) =
        run(&format!("explorer.proxy_port={}", listener.local_addr().unwrap().port()));
    assert_eq!(code, Some(1), "{reply}");
    assert!(
        reply.contains("cannot listen at 127.0.0.1") && reply.contains("proxy_port"),
        "{reply}"
    );
}
