//! Executes what the core decides: owns the driver, the runners and the events about both.
//!
//! Start with [`Scheduler`] (tasks in, results out) or [`RolloutCoordinator`] (batches with a life
//! cycle, finalized into a [`Sink`]). Both drive one `rollway_core::Core` through `driver`, and get
//! their runners from a [`RunnerBackend`]: [`LocalRunners`] for workflows in Rust, [`WorkerPool`]
//! for workers in processes of their own, in any language. [`WithModelAccess`] gives the runs of
//! either keys to the models.
//!
//! It has no scheduling rules, and knows nothing of its observers (telemetry, dashboard), of
//! tasksets, trainers and jobs.

mod batch_wait;
mod coordinator;
mod driver;
mod driver_handle;
mod error;
pub mod events;
pub mod job_event;
pub mod job_wait;
mod ledger_bridge;
pub mod live_stats;
mod loop_lag;
pub mod process;
mod reader_server;
mod run;
mod runner_status;
mod scheduler;
mod sink;
mod task;
mod task_snapshot;
mod workers;

pub use rollway_config as config;

pub use crate::coordinator::{CoreSnapshot, RolloutCoordinator};
pub use crate::error::{Error, Result};
pub use crate::ledger_bridge::{RestoreReport, RestoredBatch, ledger_options};
pub use crate::loop_lag::LoopLag;
pub use crate::reader_server::{JobReaderServer, JobReaderServerError};
pub use crate::run::{RunFailure, RunOutcome, RunOutput, RunnerReport};
pub use crate::runner_status::{RunStages, RunnerStatus, RunnerStatusTable};
pub use crate::scheduler::{BatchResults, CollectOptions, Scheduler};
pub use crate::sink::{
    BatchDelivery, BufferTarget, DeliveryResult, PipelineSink, QUARANTINED, Sink, SinkError,
    TaskPayloads, check_operators,
};
pub use crate::task::{Task, WorkflowDefinition};
pub use crate::task_snapshot::{PendingBatch, RunningTask, TaskSnapshot};
pub use crate::workers::{
    AttemptSpec, CallLookupFn, Concurrency, GatewayRunKeys, LaunchSpec, LaunchStatus,
    LaunchedProcess, Launcher, LocalLauncher, LocalRunners, ModelAccess, ProcessExit, RayLauncher,
    RayLauncherOptions, RecordedVersionsFn, Reporter, RunContext, RunFuture, RunKeyIssuer,
    RunModel, RunnerBackend, RunnerCommand, ServerWaitFn, Suspect, WithModelAccess,
    WithOutputCheck, WorkerPool, WorkerPoolOptions, Workflow, WorkflowRegistry, cluster,
    supervisor,
};
