//! Other proxies, if they are installed: `xtask/src/peers.rs`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use rollway_base::Secret;
use serde_json::json;

use super::children::Child;
use super::load::Target;

/// A proxy in front of a server, and how it is called.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) child: Child,
    pub(super) target: Target,
}

/// Starts the installed peers in front of a server.
pub(super) async fn start(server: &str) -> Vec<Peer> {
    let mut peers = Vec::new();
    for starter in [vllm_router, litellm, openenv] {
        if let Some((mut peer, port)) = starter(server) {
            if answers(&mut peer.child, port).await {
                peers.push(peer);
            } else {
                println!("{} did not start", peer.name);
            }
        }
    }
    peers
}

/// Waits until a program listens.
async fn answers(child: &mut Child, port: u16) -> bool {
    for _ in 0..900 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            // A router has checked its servers by then.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return true;
        }
        if !child.is_running() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    false
}

fn program(variable: &str) -> Option<(OsString, u16)> {
    let program = env::var_os(variable)?;
    let address = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr());
    Some((program, address.expect("a free port").port()))
}

fn peer(name: &'static str, command: &mut Command, port: u16, key: String) -> (Peer, u16) {
    let url = format!("http://127.0.0.1:{port}");
    let child = Child::of_program(command, json!({}));
    let target = match name {
        "litellm" => Target::peer(&url, "policy", key),
        _ => Target::peer(&url, "simulated", key),
    };
    (Peer { name, child, target }, port)
}

fn vllm_router(server: &str) -> Option<(Peer, u16)> {
    let (program, port) = program("ROLLWAY_BENCH_VLLM_ROUTER")?;
    let mut command = Command::new(program);
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--worker-urls", server])
        .args(["--policy", "round_robin", "--log-level", "error"])
        .args(["--max-concurrent-requests", "100000", "--request-timeout-secs", "3600"]);
    Some(peer("vllm-router", &mut command, port, "none".to_owned()))
}

fn litellm(server: &str) -> Option<(Peer, u16)> {
    let (program, port) = program("ROLLWAY_BENCH_LITELLM")?;
    // The process reads it within the next seconds; the folder of the system keeps it.
    let folder = tempfile::tempdir().expect("a temporary directory").keep();
    let config = folder.join("config.yaml");
    let key = format!("sk-{}", Secret::random().expect("random bytes").reveal());
    let url = format!("{server}/v1");
    let model = json!({ "model": "openai/simulated", "api_base": url, "api_key": "none" });
    let text = json!({
        "model_list": [{ "model_name": "policy", "litellm_params": model }],
        "litellm_settings": { "telemetry": false },
    });
    // JSON is YAML.
    fs::write(&config, text.to_string()).expect("a file");
    let mut command = Command::new(program);
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--config"])
        .arg(&config)
        // It requires a key.
        .env("LITELLM_MASTER_KEY", &key)
        // It would download prices.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_LOG", "ERROR");
    Some(peer("litellm", &mut command, port, key))
}

/// The capture server of OpenEnv, which records tokens as the gateway does.
fn openenv(server: &str) -> Option<(Peer, u16)> {
    let (python, port) = program("ROLLWAY_BENCH_OPENENV")?;
    let script = format!(
        "import uvicorn\n\
         from openenv.core.harness.capture.server import create_app\n\
         app = create_app(llm_url='{server}/v1', model='simulated', require_registered=False)\n\
         uvicorn.run(app, host='127.0.0.1', port={port}, log_level='error')\n"
    );
    let mut command = Command::new(python);
    command.args(["-c", &script]);
    Some(peer("openenv", &mut command, port, "bench".to_owned()))
}
