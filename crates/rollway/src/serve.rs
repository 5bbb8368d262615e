//! Mode `serve`: the gateway for agents, with the pipeline and the buffer of the job.
//!
//! [`ServeJob`] joins the parts. `committer.rs` delivers committed steps to the buffer,
//! `weights.rs` updates the models.

mod committer;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollway_base::atomic_file::{self, FileError};
use rollway_base::net::advertised_url;
use rollway_config::secrets::{AgentKeyError, admin_key, agent_key};
use rollway_config::{Config, ConfigError};
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::{JobReaderServer, JobReaderServerError, PipelineSink, SinkError};
use rollway_gateway::gateway::{Gateway, StartError};
use rollway_gateway::models::{Models, ServerState, ServerView};
use rollway_gateway::serve::{self, ServeMode, StoreError};
pub use rollway_sync::{NewestWeights, WeightFinder, served_weights};
use rollway_telemetry::DropCounters;
use rollway_telemetry::prometheus::PrometheusExporter;
use tokio::task::JoinSet;

use self::committer::PipelineCommitter;
use crate::explorer::{EmbeddedServers, ExplorerError, models, newest};

/// Maximum time for calls in flight to end at a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay before a warning about a model without usable servers.
const SERVER_WARNING_DELAY: Duration = Duration::from_secs(5);

/// Failure to start or stop mode `serve`.
#[derive(Debug, thiserror::Error)]
pub enum ServeJobError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("the experience pipeline does not open: {0}")]
    Pipeline(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Gateway(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Offer(#[from] JobReaderServerError),
}

impl ServeJobError {
    fn of(error: ExplorerError) -> Self {
        match error {
            ExplorerError::Config(error) => Self::Config(error),
            error => Self::Gateway(error.to_string()),
        }
    }
}

#[derive(Debug)]
pub struct ServeJob {
    gateway: Gateway,
    embedded: EmbeddedServers,
    serve: ServeMode,
    sink: Arc<PipelineSink>,
    url: String,
    url_file: PathBuf,
    key_file: Option<PathBuf>,
    admin_key_file: PathBuf,
    reader_server: Option<JobReaderServer>,
    tasks: JoinSet<()>,
}

impl ServeJob {
    /// Starts a checked configuration. Models need not be healthy yet. `operators` are those that
    /// the pipeline can name.
    pub async fn start(
        config: &Config,
        weights: Arc<dyn WeightFinder>,
        operators: &OperatorRegistry,
    ) -> Result<Self, ServeJobError> {
        let job = config
            .create_job_dir()
            .map_err(|error| FileError { path: config.job_dir(), message: error.to_string() })?;
        let begin = newest(&job).map_err(ServeJobError::of)?;
        let (mut options, embedded, servers) = models(config, &begin).map_err(ServeJobError::of)?;
        let (key, key_file) = agent_key(config, &job)?;
        if let Some(weakness) = key.weakness() {
            tracing::warn!(key = "explorer.proxy_key_env", "{weakness}");
        }
        options.agent_key = Some(key);
        // An embedded model has as many connections.
        options.limits.listener.is_main = embedded.is_empty();
        let (admin_key, admin_key_file) = admin_key(config, &job)?;
        options.admin_key = admin_key;
        let key_file = key_file.filter(|_| config.explorer.authentication);
        let sink = Arc::new(PipelineSink::new(config, operators)?);
        sink.prepare().await.map_err(ServeJobError::Pipeline)?;
        let committer =
            PipelineCommitter::new(Arc::clone(&sink), config.explorer.delivery_timeout.into());
        let serve = ServeMode::open(history(config), Arc::new(committer)).await?;
        let history = Arc::new(serve.clone());
        let started = Gateway::start_with(options, servers, Some(history)).await;
        let gateway = started.map_err(|error| ServeJobError::Gateway(render(&error)))?;
        gateway.handle().add_metrics(PrometheusExporter::new(config, DropCounters::default()));
        let url = advertised_url(gateway.url());
        let url_file = job.join(format!("{}_server_url.txt", config.explorer.name));
        atomic_file::write_line(&url_file, &url, false)?;
        let reader_server = JobReaderServer::of(config, &sink).await?;
        let mut tasks = JoinSet::new();
        let interval = config.explorer.service_status_check_interval.into();
        let models = gateway.handle().models().clone();
        tasks.spawn(resume(serve.clone()));
        tasks.spawn(warn(models.clone()));
        let wait_timeout = config.synchronizer.sync_timeout.into();
        let in_flight = crate::gateway_options::in_flight(config);
        tasks.spawn(weights::follow(models, weights, interval, in_flight, wait_timeout));
        Ok(Self {
            gateway,
            embedded,
            serve,
            sink,
            url,
            url_file,
            key_file,
            admin_key_file,
            reader_server,
            tasks,
        })
    }

    /// Returns the address for agents, without `/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the file with the address.
    pub fn url_file(&self) -> &Path {
        &self.url_file
    }

    /// Returns the file with the agent key. `None`: no key is needed, or the environment has it.
    pub fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// Returns the file with the admin key: servers, weights and metrics.
    pub fn admin_key_file(&self) -> &Path {
        &self.admin_key_file
    }

    /// Returns the address of the reader server and the file with its secret. `None`: the buffer
    /// can be opened directly.
    pub fn reader(&self) -> Option<(String, &Path)> {
        self.reader_server
            .as_ref()
            .map(|reader_server| (reader_server.url(), reader_server.secret_file()))
    }

    pub fn counts(&self) -> serve::ServeStoreCounts {
        self.serve.counts()
    }

    /// Refuses new calls, waits for those in flight, and closes all parts. Choices that wait for a
    /// commit are kept for the next start.
    pub async fn stop(mut self) -> Result<(), ServeJobError> {
        self.gateway.stop(SHUTDOWN_TIMEOUT).await;
        self.embedded.stop().await;
        self.tasks.shutdown().await;
        // Clients must not find the address of a stopped server.
        let _ = std::fs::remove_file(&self.url_file);
        drop(self.serve);
        let closed = self.sink.stop().await.map_err(ServeJobError::Pipeline);
        if let Some(reader_server) = self.reader_server {
            reader_server.withdraw().await;
        }
        closed
    }
}

/// Finishes a commit that was interrupted by the end of the last process.
async fn resume(serve: ServeMode) {
    match serve.resume().await {
        Ok(done) if done.steps > 0 => {
            tracing::info!(step = done.step, done.experiences, "interrupted commit finished");
        }
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "interrupted commit failed"),
    }
}

/// Warns if the trained model has no usable server after a while.
async fn warn(models: Models) {
    tokio::time::sleep(SERVER_WARNING_DELAY).await;
    for model in models.view() {
        if model.trained && model.servers.iter().all(|server| server.state != ServerState::Running)
        {
            let state = |server: &ServerView| format!("{}: {:?}", server.url, server.state);
            let servers: Vec<String> = model.servers.iter().map(state).collect();
            let (model, servers) = (model.name, servers.join(", "));
            tracing::warn!(model, servers, "no usable server yet, waiting");
        }
    }
}

/// Returns the options of the turn store.
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

/// Adds a hint if the address is in use.
fn render(error: &StartError) -> String {
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
