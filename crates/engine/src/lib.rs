//! Rollway's engine: the shell around the core. It acts, the core decides.
//!
//! Start with [`Scheduler`] (tasks in, results out) or [`RolloutCoordinator`] (batches with a life
//! cycle, finalized into a [`Sink`]). Both drive one `rollway_core::Core` through `driver`, and get
//! their runners from a [`Workers`]: [`Local`] for workflows in Rust, [`Children`] for workers in
//! processes of their own, in any language. [`Gated`] gives the runs of either keys to the models.

pub mod alarms;
mod children;
mod client;
pub mod cluster;
pub mod config;
mod coordinator;
pub mod dashboard;
mod descriptors;
mod driver;
mod drops;
mod durable;
mod error;
pub mod explorer;
pub mod fleet;
mod gated;
pub mod gateway;
mod handle;
pub mod history;
pub mod job;
mod lag;
mod lines;
mod local;
pub mod meters;
pub mod monitor;
pub mod observe;
mod offer;
pub mod scene;
mod scheduler;
pub mod serve;
mod sink;
mod states;
pub mod station;
pub mod synchronizer;
mod task;
pub mod taskset;
pub mod tiny;
pub mod trace;
mod track;
pub mod trainer;
mod workers;
mod workflow;
pub mod workflows;

pub use crate::children::{
    Blame, ChildOptions, Children, Ended, Launched, Launcher, Processes, Ray, RayOptions,
    RunnerStates, Ticket, Whereabouts,
};
pub use crate::client::{Answer, Client};
pub use crate::coordinator::RolloutCoordinator;
pub use crate::drops::Drops;
pub use crate::durable::{Restored, RestoredBatch};
pub use crate::error::{Error, Result};
pub use crate::gated::{CallsOf, Gated, GatewayKeys, ModelKeys};
pub use crate::lag::Lag;
pub use crate::local::{Concurrency, Local};
pub use crate::offer::OfferError;
pub use crate::scheduler::{Collect, Collected, Scheduler};
pub use crate::sink::{Delivered, Parcel, PipelineSink, Place, Sink, SinkError, Stored};
pub use crate::states::{RunnerStatus, Stages};
pub use crate::task::{Definition, Task};
pub use crate::workers::{Attempt, Command, ModelAccess, Reporter, RunEnd, Said, Workers};
pub use crate::workflow::{
    Registry, RunContext, RunError, RunModel, RunOutput, RunResult, Running, Workflow,
};
