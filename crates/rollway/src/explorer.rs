//! The explorer: from tasks to delivered experiences, step after step, while weights change.
//!
//! `rollway_core::explore` decides, [`Explorer`] acts, watchers see every [`JobEvent`].
//!
//! ```text
//!  Plan ── orders ──► run_loop.rs ──► submit.rs    draw tasks, submit
//!   ▲                    │        ├─► finalize.rs  wait, deliver, run what is missing again
//!   └──── facts ─────────┤        ├─► evals.rs     submit and finish evaluations
//!                        │        └─► weights.rs   wait for weights, load them
//!                        └─► checkpoint.rs         what a restart needs, after every fact
//! ```
//!
//! `resources.rs` opens everything that this takes, and closes it again. `docs/explorer.md`
//! describes the loop.

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
mod trainer_watch;
mod weights;

use std::sync::Arc;

use rollway_config::{Config, Mode};
use rollway_core::sync::TensorSpec;
use rollway_data::buffer::Buffer;
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::events::RunObservers;
pub use rollway_engine::job_event::{Alarm, JobEvent, JobObserver, JobObservers};
pub use rollway_engine::live_stats::{LiveStats, StatsSample};
use rollway_gateway::gateway::Gateway;
use rollway_sync::Synchronizer;
use rollway_sync::tensor_files::NamedTensor;
use tokio_util::sync::CancellationToken;

pub use self::bench::BenchResult;
pub use self::checkpoint::{EvalScores, JobCounts};
pub(crate) use self::embedded::EmbeddedServers;
pub use self::error::ExplorerError;
pub(crate) use self::model_stack::{ModelStack, models};
use self::resources::ExplorerResources;
use self::run_loop::ExplorerLoop;
pub(crate) use self::weights::newest;
use crate::workflow_runtime::WorkflowRuntime;

type Result<T> = std::result::Result<T, ExplorerError>;

/// What an explorer is given besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct ExplorerOptions {
    /// The runners; none: those that fit what the configuration names.
    pub fleet: Option<WorkflowRuntime>,
    /// Who sees what happens.
    pub watchers: JobObservers,
    /// Who sees what happens to every run.
    pub observers: RunObservers,
    /// Where it meets the trainer; none: the synchronizer of the configuration is hosted or joined.
    pub synchronizer: Option<Synchronizer>,
    /// The operators that the pipeline may name; none: those that come with it.
    pub operators: Option<Arc<OperatorRegistry>>,
}

/// What an explorer did, all processes of its job together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExploreSummary {
    /// Steps that are finalized.
    pub steps: u64,
    /// The version of the weights that the servers have.
    pub version: u64,
    /// Whether it was stopped before everything was done: the same command goes on.
    pub stopped: bool,
    /// What it did, in numbers.
    pub counts: JobCounts,
}

/// Ends an explorer from elsewhere. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct StopHandle(CancellationToken);

impl StopHandle {
    /// Has the explorer end soon and cleanly: nothing new is begun, nothing is waited for, and the
    /// same command goes on where it was.
    pub fn stop(&self) {
        self.0.cancel();
    }

    /// Tells whether somebody has.
    pub fn is_stopped(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Explores the tasks of a job.
///
/// [`prepare`](Self::prepare) opens everything, [`explore`](Self::explore) does the work of modes
/// `explore` and `both`, [`benchmark`](Self::benchmark) that of mode `bench`, and
/// [`shutdown`](Self::shutdown) closes everything. Dropped without a shutdown it leaves what a
/// killed process leaves: the next one goes on from there.
#[derive(Debug)]
pub struct Explorer {
    world: ExplorerResources,
    state: ExplorerLoop,
    stop: StopHandle,
    pulse: LiveStats,
}

impl Explorer {
    /// Opens everything that a resolved configuration names: tasks, the embedded model, the
    /// gateway, the buffer, the ledger, the runners, the way to the trainer. Goes on where an
    /// earlier process of the job was. Needs a tokio runtime with threads.
    ///
    /// # Errors
    /// Whatever cannot be opened; what was opened before it is closed again.
    pub async fn prepare(config: &Config, options: ExplorerOptions) -> Result<Self> {
        let stop = StopHandle::default();
        let (world, state) = resources::open(&config.named(), options).await?;
        let gateway = world.gateway.as_ref().map(Gateway::handle);
        let pulse = LiveStats::new(world.coordinator.clone(), gateway, world.sink.clone());
        world.watchers.emit(&JobEvent::Ready(pulse.clone()));
        Ok(Self { world, state, stop, pulse })
    }

    /// The configuration of the job, under the name that it has.
    pub fn config(&self) -> &Config {
        &self.world.config
    }

    /// Explores until all steps are done, somebody stops it, or something fails.
    ///
    /// # Errors
    /// Whatever ends the job, with what to do about it. What was done is kept.
    pub async fn explore(&mut self) -> Result<ExploreSummary> {
        let mode = self.world.config.mode;
        if !matches!(mode, Mode::Explore | Mode::Both) {
            let what = format!("mode {mode:?} does not explore: use `explore` or `both`");
            return Err(ExplorerError::NotNow(what));
        }
        let explored = self.state.explore(&self.world, &self.stop.0).await;
        match &explored {
            Ok(explored) if explored.stopped => {}
            Ok(_) => self.world.done().await,
            Err(error) => self.world.failed(&error.to_string()).await,
        }
        explored
    }

    /// Evaluates the weights that the servers have on every eval set, under the step that the job
    /// is at.
    pub async fn eval(&mut self) -> Result<Vec<BenchResult>> {
        self.state.eval_now(&self.world).await
    }

    /// Evaluates checkpoints of the job: the latest, or each of them, and before them the weights
    /// that the servers start with if `explorer.eval_on_startup` is set.
    pub async fn benchmark(&mut self) -> Result<Vec<BenchResult>> {
        self.state.benchmark(&self.world, &self.stop.0).await
    }

    /// Takes newer weights if the trainer has any, or is about to. Returns the version that the
    /// servers have then.
    pub async fn sync_weight(&mut self) -> Result<u64> {
        self.state.sync_now(&self.world).await
    }

    /// Keeps where the explorer is. It does so by itself after everything that happens.
    pub async fn save_checkpoint(&mut self) -> Result<()> {
        self.state.save().await
    }

    /// Notes the group over which a trainer sends weights (`sync_method: nccl`): the trainer is
    /// its first member, and every server as many of the next as its model has GPUs. Servers join
    /// with the first update. Returns how many members there are.
    pub async fn setup_weight_sync_group(
        &mut self,
        master_address: &str,
        master_port: u16,
        tensors: Vec<TensorSpec>,
    ) -> Result<u32> {
        self.world.set_up_group(master_address, master_port, tensors)
    }

    /// Returns a weight of the model by its name, from where the servers loaded it.
    pub async fn get_weight(&self, name: &str) -> Result<NamedTensor> {
        self.world.weight(name).await
    }

    /// Ends what is in flight and closes everything, within a deadline. What was in flight goes on
    /// when the job is started again. A second time there is nothing to do.
    pub async fn shutdown(&mut self) -> Result<()> {
        self.stop.stop();
        self.pulse.freeze().await;
        self.world.close().await
    }

    /// Returns what ends the explorer from elsewhere.
    pub fn stopper(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns live numbers.
    pub fn live_stats(&self) -> LiveStats {
        self.pulse.clone()
    }

    /// Returns the buffer that experiences go to, for a trainer in this process; none in mode
    /// `bench`.
    pub fn buffer(&self) -> Option<Arc<dyn Buffer>> {
        self.world.sink.as_ref()?.buffer()
    }

    /// The version of the weights that the servers have.
    pub fn version(&self) -> u64 {
        self.state.version()
    }

    /// Where it meets the trainer; none in mode `bench`.
    pub fn synchronizer(&self) -> Option<&Synchronizer> {
        self.world.synchronizer.as_ref()
    }

    /// Where trainers elsewhere read the queue of this process, and the file with what they show;
    /// none if the buffer can be opened by anybody, or the trainer is in this process.
    pub fn reader(&self) -> Option<(String, &std::path::Path)> {
        self.world.offered()
    }
}

impl Drop for Explorer {
    fn drop(&mut self) {
        self.pulse.detach();
    }
}
