//! Executes what the core decides: owns the driver, the runners and the events about both.
//!
//! Start with [`Scheduler`] (tasks in, results out) or [`RolloutCoordinator`] (batches with a life
//! cycle, finalized into a [`Sink`]). Both drive one `rollway_core::Core` through `driver`, and get
//! their runners from a [`Workers`]: [`Local`] for workflows in Rust, [`Children`] for workers in
//! processes of their own, in any language. [`Gated`] gives the runs of either keys to the models.
//!
//! It has no scheduling rules, and knows nothing of its observers (telemetry, dashboard), of
//! tasksets, trainers and jobs.

mod coordinator;
mod driver;
mod driver_handle;
mod error;
pub mod events;
pub mod job_event;
mod ledger_bridge;
pub mod live_stats;
mod loop_lag;
pub mod process;
mod reader_server;
mod run_outcome;
mod runner_status;
mod scheduler;
mod sink;
mod task;
mod workers;

pub use rollway_config as config;

pub use crate::coordinator::{Glance, RolloutCoordinator};
pub use crate::error::{Error, Result};
pub use crate::ledger_bridge::{Restored, RestoredBatch, ledger_options};
pub use crate::loop_lag::Lag;
pub use crate::reader_server::{Offer, OfferError};
pub use crate::run_outcome::RunEnd;
pub use crate::runner_status::{RunnerStates, RunnerStatus, Stages};
pub use crate::scheduler::{Collect, Collected, Scheduler};
pub use crate::sink::{Delivered, Parcel, PipelineSink, Place, Sink, SinkError, Stored};
pub use crate::task::{Definition, Task};
pub use crate::workers::{
    Attempt, Blame, CallsOf, ChildOptions, Children, Command, Concurrency, Ended, Gated,
    GatewayKeys, Launched, Launcher, Local, ModelAccess, ModelKeys, Processes, Ray, RayOptions,
    Registry, Reporter, RunContext, RunError, RunModel, RunOutput, RunResult, Running, Said,
    Ticket, Whereabouts, Workers, Workflow, cluster, supervisor,
};
