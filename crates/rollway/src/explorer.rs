//! The explorer: turns tasks into delivered experiences, step by step, while weights change.
//!
//! `rollway_core::explore` decides, [`Explorer`] acts, observers receive every [`JobEvent`].
//!
//! ```text
//!  Plan ── actions ─► run_loop.rs ──► submit.rs    select tasks, submit
//!   ▲                    │        ├─► finalize.rs  wait, deliver, rerun missing tasks
//!   └──── inputs ────────┤        ├─► evals.rs     submit and finish evaluations
//!                        │        └─► weights.rs   wait for weights, load them
//!                        └─► checkpoint.rs         state for a restart, after every input
//! ```
//!
//! `resources.rs` opens and closes the parts.

mod bench;
mod checkpoint;
mod embedded;
mod error;
mod evals;
mod finalize;
mod model_stack;
mod resources;
mod restored;
mod run_loop;
mod step_metrics;
mod submit;
mod train_metrics;
mod trainer_watch;
mod weights;

use std::sync::Arc;

use rollway_config::{Config, Mode};
use rollway_core::sync::TensorSpec;
use rollway_data::buffer::Buffer;
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::events::RunObservers;
pub use rollway_engine::job_event::{Alarm, JobEvent, JobObserver, JobObservers};
pub use rollway_engine::job_wait::{JobWait, JobWaits, WaitLimit, WaitReason, log_while};
pub use rollway_engine::live_stats::{LiveStats, StatsSample};
use rollway_gateway::gateway::Gateway;
use rollway_sync::Synchronizer;
use rollway_sync::tensor_files::NamedTensor;
use tokio_util::sync::CancellationToken;

pub use self::bench::BenchResult;
pub(crate) use self::bench::checkpoints_of;
pub use self::checkpoint::{EvalScores, JobCounts};
pub(crate) use self::embedded::EmbeddedServers;
pub use self::error::ExplorerError;
pub(crate) use self::model_stack::{ModelStack, models};
use self::resources::ExplorerResources;
pub(crate) use self::resources::check_checkpoint;
use self::run_loop::ExplorerLoop;
use self::train_metrics::TrainMetricsWatch;
pub(crate) use self::weights::newest;
use crate::workflow_runtime::WorkflowRuntime;

type Result<T> = std::result::Result<T, ExplorerError>;

/// Options of an explorer besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct ExplorerOptions {
    /// `None`: the runtime of the configured workflows.
    pub runtime: Option<WorkflowRuntime>,
    pub watchers: JobObservers,
    pub observers: RunObservers,
    /// `None`: the synchronizer of the configuration is hosted or joined.
    pub synchronizer: Option<Synchronizer>,
    /// Operators of the pipeline. `None`: the built-in ones.
    pub operators: Option<Arc<OperatorRegistry>>,
}

/// Result of an explorer, over all processes of its job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExploreSummary {
    /// Finalized steps.
    pub steps: u64,
    /// Version of the weights in the servers.
    pub version: u64,
    /// Stopped before all steps were done; the same command resumes the job.
    pub stopped: bool,
    pub counts: JobCounts,
}

/// Stops an explorer. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(CancellationToken);

impl StopHandle {
    /// Ends the explorer soon and cleanly; the same command resumes the job.
    pub fn stop(&self) {
        self.0.cancel();
    }

    pub fn is_stopped(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Explores the tasks of a job.
///
/// [`prepare`](Self::prepare) opens all parts, [`explore`](Self::explore) runs modes `explore` and
/// `both`, [`benchmark`](Self::benchmark) mode `bench`, and [`shutdown`](Self::shutdown) closes all
/// parts. Dropping it without a shutdown leaves the state of a killed process, which can be
/// resumed.
#[derive(Debug)]
pub struct Explorer {
    resources: ExplorerResources,
    state: ExplorerLoop,
    stop: StopHandle,
    stats: LiveStats,
    train_metrics: TrainMetricsWatch,
}

impl Explorer {
    /// Opens the parts of a resolved configuration: tasks, embedded model, gateway, buffer, ledger,
    /// runners, synchronizer. Resumes an earlier process of the job. Needs a multi-threaded tokio
    /// runtime.
    ///
    /// # Errors
    /// The first part that cannot be opened; those before it are closed again.
    pub async fn prepare(config: &Config, options: ExplorerOptions) -> Result<Self> {
        let stop = StopHandle::default();
        let (resources, state) = resources::open(&config.named(), options).await?;
        let gateway = resources.parts.gateway.as_ref().map(Gateway::handle);
        let (coordinator, sink) = (resources.coordinator.clone(), resources.sink.clone());
        let stats = LiveStats::new(coordinator, gateway, sink, resources.waits.clone());
        resources.watchers.emit(&JobEvent::Ready(stats.clone()));
        let (synchronizer, watchers) = (resources.synchronizer.clone(), resources.watchers.clone());
        let train_metrics = TrainMetricsWatch::start(synchronizer, watchers);
        Ok(Self { resources, state, stop, stats, train_metrics })
    }

    /// Returns the configuration with the final name of the job.
    pub fn config(&self) -> &Config {
        &self.resources.config
    }

    /// Returns the current waits of the job.
    pub(crate) fn waits(&self) -> JobWaits {
        self.resources.waits.clone()
    }

    /// Explores until all steps are done, the explorer is stopped, or a part fails.
    ///
    /// # Errors
    /// The reason for the end of the job. Finished work is kept.
    pub async fn explore(&mut self) -> Result<ExploreSummary> {
        let mode = self.resources.config.mode;
        if !matches!(mode, Mode::Explore | Mode::Both) {
            let message = format!(
                "mode `{}` does not explore: set `mode` to `explore` or `both`",
                mode.name()
            );
            return Err(ExplorerError::NotNow(message));
        }
        let explored = self.state.explore(&self.resources, &self.stop.0).await;
        match &explored {
            Ok(explored) if explored.stopped => {}
            Ok(_) => self.resources.done().await,
            Err(error) => self.resources.failed(&error.to_string()).await,
        }
        explored
    }

    /// Evaluates the current weights on every eval taskset, as part of the current step.
    pub async fn eval(&mut self) -> Result<Vec<BenchResult>> {
        self.state.eval_now(&self.resources).await
    }

    /// Evaluates the latest checkpoint or all of them; with `explorer.eval_on_startup` also the
    /// initial weights of the servers.
    pub async fn benchmark(&mut self) -> Result<Vec<BenchResult>> {
        self.state.benchmark(&self.resources, &self.stop.0).await
    }

    /// Waits for newer weights of the trainer and loads them. Returns the version in the servers.
    pub async fn sync_weight(&mut self) -> Result<u64> {
        self.state.sync_now(&self.resources).await
    }

    /// Saves the checkpoint of the explorer, which is also saved after every input of the plan.
    pub async fn save_checkpoint(&mut self) -> Result<()> {
        self.state.save().await
    }

    /// Sets the transfer group of `sync_method: nccl`: rank 0 is the trainer, each server has as
    /// many ranks as GPUs. Servers join with the first update. Returns the world size.
    pub async fn setup_weight_sync_group(
        &mut self,
        master_address: &str,
        master_port: u16,
        tensors: Vec<TensorSpec>,
    ) -> Result<u32> {
        self.resources.set_up_group(master_address, master_port, tensors)
    }

    /// Returns a tensor of the model by its name, from the weights that the servers loaded.
    pub async fn get_weight(&self, name: &str) -> Result<NamedTensor> {
        self.resources.weight(name).await
    }

    /// Closes all parts within a deadline. Batches in flight are resumed by the next start. A
    /// second call does nothing.
    pub async fn shutdown(&mut self) -> Result<()> {
        self.stop.stop();
        self.train_metrics.close().await;
        self.stats.freeze().await;
        self.resources.close().await
    }

    pub fn stopper(&self) -> StopHandle {
        self.stop.clone()
    }

    pub fn live_stats(&self) -> LiveStats {
        self.stats.clone()
    }

    /// Returns the experience buffer, for a trainer in this process. `None`: mode `bench`.
    pub fn buffer(&self) -> Option<Arc<dyn Buffer>> {
        self.resources.sink.as_ref()?.buffer()
    }

    /// Returns the version of the weights in the servers.
    pub fn version(&self) -> u64 {
        self.state.version()
    }

    /// Returns the synchronizer. `None`: mode `bench`.
    pub fn synchronizer(&self) -> Option<&Synchronizer> {
        self.resources.synchronizer.as_ref()
    }

    /// Returns the observers of the job.
    pub(crate) fn watchers(&self) -> JobObservers {
        self.resources.watchers.clone()
    }

    /// Returns the address of the reader server and the file with its secret. `None`: the buffer
    /// can be opened directly, or the trainer is in this process.
    pub fn reader(&self) -> Option<(String, &std::path::Path)> {
        self.resources.reader_server()
    }
}

impl Drop for Explorer {
    fn drop(&mut self) {
        self.stats.detach();
    }
}
