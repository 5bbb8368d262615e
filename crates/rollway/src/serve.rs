//! Mode `serve`: the gateway for agents elsewhere, with the pipeline and the buffer of the job
//! behind it.
//!
//! [`ServeJob`] joins the parts. `committer.rs` takes committed steps to the buffer, `weights.rs`
//! keeps the models up to date.

mod committer;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollway_base::atomic_file::{self, FileError};
use rollway_base::net::advertised_url;
use rollway_config::secrets::{AgentKeyError, agent_key};
use rollway_config::{Config, ConfigError};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::{JobReaderServer, JobReaderServerError, PipelineSink, SinkError};
use rollway_gateway::gateway::{Gateway, StartError};
use rollway_gateway::models::{Models, ServerState, ServerView};
use rollway_gateway::serve::{self, ServeMode, StoreError};
pub use rollway_sync::{CheckpointFolder, NewestWeights, WeightFinder};
use rollway_telemetry::DropCounters;
use rollway_telemetry::prometheus::PrometheusExporter;
use tokio::task::JoinSet;

use self::committer::PipelineCommitter;
use crate::explorer::{EmbeddedServers, ExplorerError, models, newest};

/// How long calls under way have to end when the server is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// After how long a model that nobody can use yet is worth a word.
const SERVER_WARNING_DELAY: Duration = Duration::from_secs(5);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeJobError {
    /// The configuration cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no pipeline or no buffer.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The pipeline or the buffer does not open.
    #[error("the experience pipeline does not open: {0}")]
    Pipeline(String),
    /// The history does not open.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The embedded model or the gateway does not start.
    #[error("{0}")]
    Gateway(String),
    /// A file that tells agents where the server is cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The buffer cannot be offered to trainers elsewhere.
    #[error(transparent)]
    Offer(#[from] JobReaderServerError),
}

impl ServeJobError {
    /// Returns why a model did not start.
    fn of(error: ExplorerError) -> Self {
        match error {
            ExplorerError::Config(error) => Self::Config(error),
            error => Self::Gateway(error.to_string()),
        }
    }
}

/// A job in mode `serve`.
#[derive(Debug)]
pub struct ServeJob {
    gateway: Gateway,
    embedded: EmbeddedServers,
    serve: ServeMode,
    sink: Arc<PipelineSink>,
    url: String,
    url_file: PathBuf,
    key_file: Option<PathBuf>,
    offered: Option<JobReaderServer>,
    tasks: JoinSet<()>,
}

impl ServeJob {
    /// Starts to serve a checked configuration. Models need not be well yet.
    pub async fn start(
        config: &Config,
        weights: Arc<dyn WeightFinder>,
    ) -> Result<Self, ServeJobError> {
        let job = config.job_dir();
        let begin = newest(&job).map_err(ServeJobError::of)?;
        let (mut options, embedded, servers) = models(config, &begin).map_err(ServeJobError::of)?;
        let (key, key_file) = agent_key(config, &job)?;
        options.admin_key = key;
        let key_file = key_file.filter(|_| config.explorer.authentication);
        let sink = Arc::new(PipelineSink::new(config, &OperatorRegistry::built_in())?);
        sink.prepare().await.map_err(ServeJobError::Pipeline)?;
        let committer =
            PipelineCommitter::new(Arc::clone(&sink), config.explorer.delivery_timeout.into());
        let serve = ServeMode::open(history(config), Arc::new(committer)).await?;
        let history = Arc::new(serve.clone());
        let started = Gateway::start_with(options, servers, Some(history)).await;
        let gateway = started.map_err(|error| ServeJobError::Gateway(in_words(&error)))?;
        gateway.handle().add_metrics(PrometheusExporter::new(config, DropCounters::default()));
        let url = advertised_url(gateway.url());
        let url_file = job.join(format!("{}_server_url.txt", config.explorer.name));
        atomic_file::write_line(&url_file, &url, false)?;
        let offered = JobReaderServer::of(config, &sink).await?;
        let mut tasks = JoinSet::new();
        let interval = config.explorer.service_status_check_interval.into();
        let models = gateway.handle().models().clone();
        tasks.spawn(resume(serve.clone()));
        tasks.spawn(warn(models.clone()));
        let patience = config.synchronizer.sync_timeout.into();
        tasks.spawn(weights::follow(models, weights, interval, patience));
        Ok(Self { gateway, embedded, serve, sink, url, url_file, key_file, offered, tasks })
    }

    /// Where agents find it, without `/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file that says so.
    pub fn url_file(&self) -> &Path {
        &self.url_file
    }

    /// The file with the key that agents show; none if they need none, or know it already.
    pub fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// Where trainers elsewhere read, and the file with the secret for it; none if the buffer can
    /// be read without the help of this process.
    pub fn reader(&self) -> Option<(String, &Path)> {
        self.offered.as_ref().map(|offered| (offered.url(), offered.secret_file()))
    }

    /// What was recorded and committed, in numbers.
    pub fn counts(&self) -> serve::ServeStoreCounts {
        self.serve.counts()
    }

    /// Stops: takes no more calls, waits for those under way, and closes everything. What waits for
    /// a commit stays for the next start.
    pub async fn stop(mut self) -> Result<(), ServeJobError> {
        self.gateway.stop(SHUTDOWN_TIMEOUT).await;
        self.embedded.stop().await;
        self.tasks.shutdown().await;
        // Who reads it should not look for a server that is gone.
        let _ = std::fs::remove_file(&self.url_file);
        drop(self.serve);
        let closed = self.sink.close().await.map_err(ServeJobError::Pipeline);
        if let Some(offered) = self.offered {
            offered.withdraw().await;
        }
        closed
    }
}

/// Finishes the step that a commit had begun when the last process ended.
async fn resume(serve: ServeMode) {
    match serve.resume().await {
        Ok(done) if done.steps > 0 => {
            tracing::info!(step = done.step, done.experiences, "a step that was begun is done");
        }
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "a step that was begun is not done"),
    }
}

/// Says so if nobody can use the trained model after a while.
async fn warn(models: Models) {
    tokio::time::sleep(SERVER_WARNING_DELAY).await;
    for model in models.view() {
        if model.trained && model.servers.iter().all(|server| server.state != ServerState::Running)
        {
            let state = |server: &ServerView| format!("{}: {:?}", server.url, server.state);
            let servers: Vec<String> = model.servers.iter().map(state).collect();
            let (model, servers) = (model.name, servers.join(", "));
            tracing::warn!(model, servers, "no server can be used yet; waiting for one");
        }
    }
}

/// Returns what is kept, and where.
fn history(config: &Config) -> serve::ServeStoreOptions {
    let bounds = &config.explorer.serve_retention;
    let chosen = config.explorer.db_url.as_deref().filter(|address| !address.is_empty());
    let path = match chosen {
        Some(address) => PathBuf::from(address.strip_prefix("sqlite:///").unwrap_or(address)),
        None => config.cache_dir().join("proxy_history.db"),
    };
    serve::ServeStoreOptions {
        max_rows: bounds.max_rows,
        max_bytes: bounds.max_bytes,
        max_age: bounds.max_age.into(),
        max_queued_bytes: bounds.max_queued_bytes,
        needs_key: config.explorer.authentication,
        ..serve::ServeStoreOptions::new(path)
    }
}

/// Says what to do about an address that is taken.
fn in_words(error: &StartError) -> String {
    match error {
        StartError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            format!(
                "{error}\nhint: set `explorer.proxy_port` to another port, or to 0 for any that \
                 is free"
            )
        }
        _ => error.to_string(),
    }
}

impl From<AgentKeyError> for ServeJobError {
    fn from(error: AgentKeyError) -> Self {
        match error {
            AgentKeyError::File(error) => Self::File(error),
            AgentKeyError::Config(problem) => Self::Config(problem.into()),
        }
    }
}
