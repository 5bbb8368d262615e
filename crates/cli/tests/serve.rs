//! Mode `serve` as a process that is killed again and again, in the middle of everything.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

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

/// After how many finished requests each life ends.
const LIVES: [u64; 12] = [1, 2, 3, 5, 8, 13, 21, 30, 7, 4, 17, 26];

/// How many agents talk at once.
const AGENTS: u64 = 6;

/// A job's folder, and the server that it asks.
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

    async fn start(&self) -> Life {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rollway"))
            .arg("run")
            .arg(&self.config)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = loop {
            let line = lines.next_line().await.unwrap().expect("it says where it is");
            if let Some((_, url)) = line.split_once(" at http") {
                break format!("http{url}");
            }
        };
        // The rest is nobody's concern, but must go somewhere.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        assert_eq!(read(&self.path("explorer_server_url.txt")), url);
        let key = read(&self.path("explorer_server_key.txt"));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Life { child, caller: Caller { client, url, key } }
    }

    /// The ids of the messages in the buffer, one list for each experience.
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

/// Finds a field, wherever it is; objects may be written as texts.
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

struct Life {
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
        let response = request.body(body.to_string()).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Talks to the model; returns the id of a message that was received to its end.
    async fn chat(&self, agent: u64, number: u64) -> reqwest::Result<Option<String>> {
        let stream = number.is_multiple_of(2);
        let content = format!("{agent} says {number}");
        let body = json!({
            "messages": [{ "role": "user", "content": content }],
            "stream": stream,
            "user": agent.to_string(),
        });
        let (status, text) = self.post("/v1/chat/completions", &body).await?;
        // What a gateway that is about to die says in its last moment does not matter.
        if status != 200 || (stream && !text.contains("data: [DONE]")) {
            return Ok(None);
        }
        let first = text.strip_prefix("data: ").unwrap_or(&text);
        let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        Ok(Some(first["id"].as_str().unwrap().to_owned()))
    }

    /// Gives feedback for an answer that was received: it must be known, and counts once.
    async fn feedback(&self, id: &str) -> reqwest::Result<Option<bool>> {
        let body = json!({ "reward": 1.0, "msg_ids": [id], "task_id": "t" });
        let (status, text) = self.post("/feedback", &body).await?;
        if status == 503 {
            return Ok(None);
        }
        let said: Value = serde_json::from_str(&text).unwrap();
        let counts = ["accepted", "already", "unknown"].map(|name| said[name].as_u64());
        match counts {
            [Some(1), Some(0), Some(0)] => Ok(Some(true)),
            [Some(0), Some(1), Some(0)] => Ok(Some(false)),
            _ => panic!("{id} was answered, and its feedback came to {status}: {text}"),
        }
    }
}

/// What the agents know, over all lives.
#[derive(Default)]
struct Known {
    /// Messages that were received to the end, and how often their feedback was accepted.
    answered: BTreeMap<String, u64>,
    /// Those whose feedback was acknowledged, one way or the other.
    acknowledged: BTreeSet<String>,
    step: u64,
}

struct World {
    known: Mutex<Known>,
    finished: AtomicU64,
    enough: Notify,
}

impl World {
    /// Talks, judges and commits until the server is gone.
    async fn agent(self: Arc<Self>, caller: Caller, agent: u64, limit: u64) {
        for number in agent.. {
            let done = match number % 4 {
                0 | 1 => self.talk(&caller, agent, number).await,
                2 => self.judge(&caller).await,
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

    async fn talk(&self, caller: &Caller, agent: u64, number: u64) -> reqwest::Result<()> {
        if let Some(id) = caller.chat(agent, number).await? {
            let before = self.known.lock().await.answered.insert(id, 0);
            assert_eq!(before, None, "two answers have one id");
        }
        Ok(())
    }

    async fn judge(&self, caller: &Caller) -> reqwest::Result<()> {
        let known = self.known.lock().await;
        let open = known.answered.keys().find(|id| !known.acknowledged.contains(*id)).cloned();
        drop(known);
        let Some(id) = open else { return Ok(()) };
        if let Some(is_accepted) = caller.feedback(&id).await? {
            let mut known = self.known.lock().await;
            *known.answered.get_mut(&id).unwrap() += u64::from(is_accepted);
            known.acknowledged.insert(id);
        }
        Ok(())
    }

    async fn commit(&self, caller: &Caller) -> reqwest::Result<()> {
        let (status, text) = caller.post("/commit", &Value::Null).await?;
        if status == 200 {
            let said: Value = serde_json::from_str(&text).unwrap();
            let mut known = self.known.lock().await;
            known.step = known.step.max(said["step"].as_u64().unwrap());
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_and_counts_nothing_twice() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let job = Job::new();
    let known = Mutex::new(Known::default());
    let world = Arc::new(World { known, finished: AtomicU64::new(0), enough: Notify::new() });
    for limit in LIVES {
        let mut life = job.start().await;
        world.finished.store(0, Ordering::Relaxed);
        let mut agents = JoinSet::new();
        for agent in 0..AGENTS {
            agents.spawn(Arc::clone(&world).agent(life.caller.clone(), agent, limit));
        }
        world.enough.notified().await;
        life.child.kill().await.unwrap();
        while let Some(ended) = agents.join_next().await {
            ended.unwrap();
        }
    }

    let mut life = job.start().await;
    let answered: Vec<String> = world.known.lock().await.answered.keys().cloned().collect();
    for id in &answered {
        // It has feedback now, from this life or from another.
        while life.caller.feedback(id).await.unwrap().is_none() {}
        assert_eq!(life.caller.feedback(id).await.unwrap(), Some(false));
    }
    let (status, text) = life.caller.post("/commit", &Value::Null).await.unwrap();
    assert_eq!(status, 200, "{text}");
    let step = serde_json::from_str::<Value>(&text).unwrap()["step"].as_u64().unwrap();
    let (_, text) = life.caller.post("/commit", &Value::Null).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["status"], "empty", "{text}");
    let pid = life.child.id().unwrap().to_string();
    assert!(StdCommand::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(life.child.wait().await.unwrap().success(), "it ends well when it is asked to");
    assert!(!job.path("explorer_server_url.txt").exists());

    let known = world.known.lock().await;
    assert!(known.answered.values().all(|accepted| *accepted <= 1), "{:?}", known.answered);
    assert!(step >= known.step, "step {step} comes after {}", known.step);
    let mut stored: Vec<String> = job.stored().into_iter().flatten().collect();
    stored.sort_unstable();
    assert_eq!(stored, answered, "each answered message is in the buffer exactly once");
    assert!(answered.len() > LIVES.len(), "enough has happened: {}", answered.len());
}

#[tokio::test]
async fn new_weights_are_found_and_reach_the_server() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let job = Job::new();
    let life = job.start().await;
    let Caller { client, url, key } = &life.caller;
    let version = async || {
        let body = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(key);
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
fn mistakes_give_one_clear_message() {
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
    let (code, said) = run("explorer.rollout_model.api_key_env=ROLLWAY_NO_SUCH_KEY");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("ROLLWAY_NO_SUCH_KEY is not set"), "{said}");
    let (code, said) = run("explorer.rollout_model.engine_type=openai");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("tells no token ids"), "{said}");
    let (code, said) = run("explorer.db_url=postgresql://me:secret@host/db");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("records in SQLite") && !said.contains("secret"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = run(&format!("explorer.proxy_port={}", taken.local_addr().unwrap().port()));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot listen at 127.0.0.1") && said.contains("proxy_port"), "{said}");
}
