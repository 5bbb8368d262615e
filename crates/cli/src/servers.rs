//! `rollway servers`: lists, adds, removes and restarts the inference servers of a running job,
//! through the admin API of its gateway.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use rollway::{Client, GatewayAddress};
use rollway_base::ServerKind;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{CliError, runtime};

/// Maximum wait for a response, beyond the duration that the request itself allows.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct ServersArgs {
    #[command(subcommand)]
    action: ServersAction,
}

#[derive(Debug, Subcommand)]
enum ServersAction {
    /// List the servers with their state, weights and load
    List(JobArgs),
    /// Add a server; it gets the latest weights before it is used
    Add(AddArgs),
    /// Remove a server: it gets no new requests, and finishes those that it has
    Remove(RemoveArgs),
    /// Run the restart command of the job (`explorer.server_restart`) for a server now
    Restart(ServerArgs),
}

#[derive(Debug, Args)]
struct JobArgs {
    /// Folder of the job
    job_dir: PathBuf,
    /// Print the response of the gateway (JSON)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Folder of the job
    job_dir: PathBuf,
    /// Address of the server, such as `http://127.0.0.1:8001`
    url: String,
    /// Model that it serves; default: the trained model
    #[arg(long)]
    model: Option<String>,
    /// Kind of the server; default: that of the other servers of the model
    #[arg(long, value_parser = server_kinds())]
    engine: Option<ServerKind>,
    /// Name of the model at the server; default: its only one
    #[arg(long)]
    server_model: Option<String>,
    /// Environment variable with the key of the server
    #[arg(long)]
    api_key_env: Option<String>,
}

#[derive(Debug, Args)]
struct RemoveArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Seconds after which requests that it still has are aborted
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// Folder of the job
    job_dir: PathBuf,
    /// Address or number of the server, as `rollway servers list` shows them
    server: String,
}

pub(crate) fn servers(args: &ServersArgs) -> Result<(), CliError> {
    let runtime = runtime()?;
    runtime.block_on(async {
        match &args.action {
            ServersAction::List(args) => list(args).await,
            ServersAction::Add(args) => add(args).await,
            ServersAction::Remove(args) => remove(args).await,
            ServersAction::Restart(args) => restart(args).await,
        }
    })
}

async fn list(args: &JobArgs) -> Result<(), CliError> {
    let admin = Admin::open(&args.job_dir)?;
    let models = admin.models().await?;
    if args.json {
        outln!("{models}");
        return Ok(());
    }
    for model in array(&models["models"]) {
        let trained = if model["trained"] == true { ", trained" } else { "" };
        outln!("model {}{trained}, {} calls wait", text(&model["name"]), model["waiting"]);
        for server in array(&model["servers"]) {
            outln!("  {}", line(server));
        }
    }
    Ok(())
}

/// Returns the parser of server kinds.
fn server_kinds() -> impl TypedValueParser<Value = ServerKind> {
    PossibleValuesParser::new(ServerKind::ALL.map(ServerKind::name)).try_map(|name| name.parse())
}

/// Returns one line about a server.
fn line(server: &Value) -> String {
    let version = server["loaded_version"].as_u64();
    let version = version.map_or_else(|| "unknown".to_owned(), |version| version.to_string());
    let load = match &server["load"] {
        Value::Null => String::new(),
        load => {
            let cache = load["cache_usage"].as_f64().unwrap_or_default() * 100.0;
            let (running, waiting) = (&load["running"], &load["waiting"]);
            format!("; reports {running} running, {waiting} waiting, cache {cache:.0} %")
        }
    };
    format!(
        "{} {} {} {}; weights {version}; {} of at most {} requests in flight{load}",
        server["id"],
        text(&server["engine"]),
        text(&server["url"]),
        text(&server["reason"]),
        server["in_flight"],
        server["limit"],
    )
}

async fn add(args: &AddArgs) -> Result<(), CliError> {
    let admin = Admin::open(&args.job_dir)?;
    let models = admin.models().await?;
    let wanted = |model: &&Value| match &args.model {
        Some(name) => model["name"] == name.as_str(),
        None => model["trained"] == true,
    };
    let known = array(&models["models"]).iter().find(wanted);
    let name = args.model.as_deref().or_else(|| known?["name"].as_str());
    let name = name.ok_or_else(|| input("the job has no trained model: name one with --model"))?;
    let engine =
        args.engine.map(ServerKind::name).or_else(|| known?["servers"][0]["engine"].as_str());
    let engine = engine.ok_or_else(|| {
        input(&format!("model {name:?} has no other server: give its kind with --engine"))
    })?;
    let api_key = match &args.api_key_env {
        None => None,
        Some(variable) => Some(std::env::var(variable).map_err(|_| {
            input(&format!("--api-key-env: there is no environment variable {variable}"))
        })?),
    };
    let url = args.url.trim_end_matches('/');
    let new = json!({
        "model": name,
        "trained": known.is_some_and(|model| model["trained"] == true),
        "engine": engine,
        // Of the kind that configurations have.
        "url": url.strip_suffix("/v1").unwrap_or(url),
        "api_key": api_key,
        "server_model": args.server_model,
    });
    let added = admin.post("", &new).await?;
    outln!("server {} added; `rollway servers list` shows when it is running", added["id"]);
    Ok(())
}

async fn remove(args: &RemoveArgs) -> Result<(), CliError> {
    let seconds = Duration::try_from_secs_f64(args.timeout)
        .map_err(|error| input(&format!("--timeout {}: {error}", args.timeout)))?;
    let admin = Admin::open(&args.server.job_dir)?;
    let id = admin.find(&args.server.server).await?;
    let path = format!("/{id}?deadline_seconds={}", seconds.as_secs_f64());
    let limit = seconds.saturating_add(REQUEST_TIMEOUT);
    let removed = admin.send(AdminRequest::Delete, &path, limit).await?;
    outln!("server {id} removed; {} requests were aborted", removed["aborted"]);
    Ok(())
}

async fn restart(args: &ServerArgs) -> Result<(), CliError> {
    let admin = Admin::open(&args.job_dir)?;
    let id = admin.find(&args.server).await?;
    admin.post(&format!("/{id}/restart"), &json!({})).await?;
    outln!("the restart command of server {id} has begun; `rollway servers list` shows its state");
    Ok(())
}

enum AdminRequest<'a> {
    Get,
    Post(&'a Value),
    Delete,
}

/// Client of the admin API of a job's gateway.
struct Admin {
    client: Client,
    address: GatewayAddress,
}

impl Admin {
    /// Reads the address from the job's folder.
    fn open(job: &Path) -> Result<Self, CliError> {
        let shown = job.display();
        if !job.is_dir() {
            return Err(input(&format!("no such folder: {shown}; pass the folder of a job")));
        }
        let address = GatewayAddress::read(job).map_err(|error| {
            input(&format!("cannot read gateway.json in {shown}: {error}; check permissions"))
        })?;
        let address = address.ok_or_else(|| {
            input(&format!("{shown} has no gateway.json: the job has ended or has not started"))
        })?;
        let client = address.client().map_err(|error| input(&error))?;
        Ok(Self { client, address })
    }

    async fn models(&self) -> Result<Value, CliError> {
        self.send(AdminRequest::Get, "", REQUEST_TIMEOUT).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.send(AdminRequest::Post(body), path, REQUEST_TIMEOUT).await
    }

    /// Returns the number of a server, by its number or address.
    async fn find(&self, server: &str) -> Result<u64, CliError> {
        let models = self.models().await?;
        let address = server.trim_end_matches('/');
        let address = address.strip_suffix("/v1").unwrap_or(address);
        let all = array(&models["models"]).iter().flat_map(|model| array(&model["servers"]));
        let number = server.parse::<u64>().ok();
        let is_it = |it: &&Value| {
            it["url"].as_str() == Some(address) || number.is_some() && it["id"].as_u64() == number
        };
        let mut found = all.clone().filter(is_it);
        let first = found.next().and_then(|it| it["id"].as_u64());
        match (first, found.next()) {
            (Some(id), None) => Ok(id),
            (Some(_), Some(_)) => {
                Err(input(&format!("{server} serves several models: give the number of one")))
            }
            (None, _) => {
                let known: Vec<String> = all.map(|it| text(&it["url"]).to_owned()).collect();
                let known = known.join(", ");
                Err(input(&format!("the job has no server {server}: it has {known}")))
            }
        }
    }

    async fn send(
        &self,
        request: AdminRequest<'_>,
        path: &str,
        limit: Duration,
    ) -> Result<Value, CliError> {
        let GatewayAddress { url, key, .. } = &self.address;
        let endpoint = format!("{url}/rollway/v1/models{path}");
        let response = async {
            match request {
                AdminRequest::Get => self.client.call(&endpoint, key, None).await,
                AdminRequest::Post(body) => {
                    self.client.call(&endpoint, key, Some(body.to_string().into())).await
                }
                AdminRequest::Delete => self.client.delete(&endpoint, key).await,
            }
        };
        let sent = timeout(limit, response).await;
        let late = |_| CliError::Job(format!("no response from {url} within {limit:?}"));
        let answer = sent.map_err(late)?.map_err(|error| {
            CliError::Job(format!("{error}; a job that was killed leaves gateway.json behind"))
        })?;
        let reply: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if !(200..300).contains(&answer.status) {
            let message = text(&reply["error"]["message"]);
            return Err(CliError::Job(format!("{message} (status {})", answer.status)));
        }
        Ok(reply)
    }
}

fn input(message: &str) -> CliError {
    CliError::Input(message.to_owned())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
