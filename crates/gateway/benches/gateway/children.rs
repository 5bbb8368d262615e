//! Child processes of the benchmark.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rollway_base::Secret;
use serde_json::{Value, json};

/// Environment variable with the role of a child process.
pub(super) const ROLE: &str = "ROLLWAY_BENCH_ROLE";

/// A process that prints its address as JSON, and ends with its input.
pub(super) struct Child {
    process: Process,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    info: Value,
}

impl Child {
    pub(super) fn start(role: &str, words: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .env(ROLE, role)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let input = process.stdin.take();
        let output = process.stdout.take().map(BufReader::new);
        let mut child = Self { process, input, output, info: Value::Null };
        child.info = child.line();
        child
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let output = self.output.as_mut().expect("a process of ours");
        output.read_line(&mut line).expect("a process that speaks");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    /// Writes a line and returns the reply.
    pub(super) fn ask(&mut self, line: &str) -> Value {
        let input = self.input.as_mut().expect("a process of ours");
        writeln!(input, "{line}").expect("a process that listens");
        self.line()
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.info[name].as_str().expect("a text").to_owned()
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.info[name].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
    }

    /// Memory in bytes: `VmRSS` is the current, `VmHWM` the maximum.
    pub(super) fn memory(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.input.take());
        if self.output.is_none() {
            // LiteLLM does not watch its input.
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Starts LiteLLM in front of a server, if available.
pub(super) async fn litellm(server: &str) -> Option<Child> {
    let program = std::env::var_os("ROLLWAY_BENCH_LITELLM")?;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = folder.path().join("config.yaml");
    let key = format!("sk-{}", Secret::random().expect("random bytes").reveal());
    let url = format!("{server}/v1");
    let model = json!({ "model": "openai/simulated", "api_base": url, "api_key": "none" });
    let text = json!({
        "model_list": [{ "model_name": "policy", "litellm_params": model }],
        "litellm_settings": { "telemetry": false },
    });
    // JSON is YAML.
    fs::write(&config, text.to_string()).expect("a file");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr());
    let address = port.expect("a free port");
    let process = Command::new(program)
        .args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--config"])
        .arg(&config)
        // It requires a key.
        .env("LITELLM_MASTER_KEY", &key)
        // It would download prices.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_LOG", "ERROR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the peer");
    let info = json!({ "url": format!("http://{address}"), "key": key });
    let mut child = Child { process, input: None, output: None, info };
    // It does not report when it listens.
    for _ in 0..600 {
        if TcpStream::connect(address).is_ok() {
            return Some(child);
        }
        if !matches!(child.process.try_wait(), Ok(None)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("litellm did not start");
    None
}
