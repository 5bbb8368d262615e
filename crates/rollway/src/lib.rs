//! Rollway for Rust programs: jobs, explorers, trainers and mode `serve`.
//!
//! Start with [`job::Job`] to run a configuration, with [`explorer::Explorer`] to control the loop,
//! or with [`Scheduler`] and [`RolloutCoordinator`] for tasks and batches alone. Rules and
//! protocols belong to the crates below, whose public interface is re-exported here.

mod client;
pub mod explorer;
mod gateway_file;
pub mod gateway_options;
pub mod job;
pub mod serve;
pub mod trainer;
pub mod workflow_runtime;
pub mod workflows;

pub use rollway_config as config;
pub use rollway_dashboard as dashboard;
pub use rollway_engine::{
    AttemptSpec, BatchDelivery, BatchResults, BufferTarget, CallLookupFn, CollectOptions,
    Concurrency, DeliveryResult, Error, GatewayRunKeys, JobReaderServerError, LaunchSpec,
    LaunchStatus, LaunchedProcess, Launcher, LocalLauncher, LocalRunners, LoopLag, ModelAccess,
    PendingBatch, PipelineSink, ProcessExit, RayLauncher, RayLauncherOptions, Reporter,
    RestoreReport, RestoredBatch, Result, RolloutCoordinator, RunContext, RunFailure, RunFuture,
    RunKeyIssuer, RunModel, RunOutcome, RunOutput, RunStages, RunnerBackend, RunnerCommand,
    RunnerReport, RunnerStatus, RunnerStatusTable, RunningTask, Scheduler, Sink, SinkError,
    Suspect, Task, TaskPayloads, TaskSnapshot, WithModelAccess, WithOutputCheck, WorkerPool,
    WorkerPoolOptions, Workflow, WorkflowDefinition, WorkflowRegistry, ledger_options,
};
pub use rollway_engine::{cluster, events, supervisor};
pub use rollway_sync as synchronizer;
pub use rollway_tasksets as taskset;
pub use rollway_telemetry::{DropCounters, alarms, history, monitors, prometheus, view};
pub use rollway_tiny as tiny;
pub use rollway_trace as trace;

pub use crate::client::{Answer, Client};
pub use crate::gateway_file::GatewayAddress;
