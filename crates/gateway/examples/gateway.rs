//! A gateway in front of given servers, for tests in other languages and for a first try by hand.
//!
//! ```text
//! gateway [--runs N] [--tool-calls RATE] [--retokenize BOOL] [--tokens-per-second N]
//!     [--health-interval SECONDS] [--adaptive BOOL] [--sampling JSON] ENGINE=URL ...
//! ```
//!
//! `ENGINE` is `vllm`, `sglang`, `llama_cpp` or `openai`; `simulated` as the URL starts such a
//! server here. The first server is the model that is trained, under the name `policy`; the others
//! are `judge-1`, `judge-2` and so on. It prints one line of JSON: where it is, its keys, and where
//! the servers are. Every line on its standard input opens another attempt and prints its keys; the
//! end of the input ends it.

#![expect(clippy::print_stdout, reason = "its output is its interface")]

use std::env;
use std::error::Error;
use std::time::Duration;

use rollway_base::Secret;
use rollway_gateway::gateway::{Gateway, GatewayOptions};
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{MockServer, MockServerOptions};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

type Failure = Box<dyn Error>;

const DEADLINE: Duration = Duration::from_secs(1);

/// Parsed arguments.
struct Arguments {
    runs: u32,
    health_interval: Option<Duration>,
    is_adaptive: Option<bool>,
    sampling: Map<String, Value>,
    simulated: MockServerOptions,
    servers: Vec<(String, String)>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = parse(env::args().skip(1))?;
    let mut simulations = Vec::new();
    let mut specs = Vec::new();
    for (number, (engine, url)) in arguments.servers.iter().enumerate() {
        let url = if url == "simulated" {
            let server = simulate(engine, &arguments.simulated)?;
            let url = server.url();
            simulations.push(server);
            url
        } else {
            url.clone()
        };
        specs.push(spec(number, engine, url)?);
    }
    let urls: Vec<String> = specs.iter().map(|spec| spec.url.clone()).collect();
    let admin_key = Secret::random()?;
    let mut options = GatewayOptions::new(admin_key.clone());
    if let Some(interval) = arguments.health_interval {
        options.models.health_interval = interval;
    }
    if let Some(is_adaptive) = arguments.is_adaptive {
        options.models.is_adaptive = is_adaptive;
    }
    options.sampling = arguments.sampling;
    let gateway = Gateway::start(options, specs).await?;
    let handle = gateway.handle();
    println!(
        "{}",
        json!({
            "url": gateway.url(),
            "admin_key": admin_key.reveal(),
            "keys": handle.open(0, 0, arguments.runs),
            "servers": urls,
        })
    );
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut attempt = 0;
    while lines.next_line().await?.is_some() {
        attempt += 1;
        println!("{}", json!({ "keys": handle.open(attempt, 0, arguments.runs) }));
    }
    gateway.stop(DEADLINE).await;
    Ok(())
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, Failure> {
    let simulated = MockServerOptions::default();
    let servers = Vec::new();
    let (health_interval, is_adaptive, sampling) = (None, None, Map::new());
    let mut arguments =
        Arguments { runs: 1, health_interval, is_adaptive, sampling, simulated, servers };
    while let Some(word) = words.next() {
        if let Some((engine, url)) = word.split_once('=') {
            arguments.servers.push((engine.to_owned(), url.to_owned()));
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--runs" => arguments.runs = value.parse()?,
            "--health-interval" => {
                let interval = Duration::try_from_secs_f64(value.parse()?)?;
                arguments.health_interval = Some(interval);
            }
            "--adaptive" => arguments.is_adaptive = Some(value.parse()?),
            "--sampling" => arguments.sampling = serde_json::from_str(&value)?,
            "--tool-calls" => arguments.simulated.tool_call_rate = value.parse()?,
            "--retokenize" => arguments.simulated.drift = value.parse()?,
            "--tokens-per-second" => arguments.simulated.tokens_per_second = value.parse()?,
            _ => return Err(format!("unknown option: {word}").into()),
        }
    }
    if arguments.servers.is_empty() { Err("name a server: vllm=URL".into()) } else { Ok(arguments) }
}

fn simulate(engine: &str, options: &MockServerOptions) -> Result<MockServer, Failure> {
    let kind = engine.parse()?;
    Ok(MockServer::start(MockServerOptions { kind, ..options.clone() })?)
}

fn spec(number: usize, engine: &str, url: String) -> Result<ServerSpec, Failure> {
    let engine = engine.parse()?;
    let trained = number == 0;
    let model = if trained { "policy".to_owned() } else { format!("judge-{number}") };
    Ok(ServerSpec::new(model, trained, engine, url))
}
