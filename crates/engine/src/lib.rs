//! Rollway's engine: the shell around the core. It acts, the core decides.
//!
//! Start with [`Scheduler`] (tasks in, results out) or [`RolloutCoordinator`] (batches with a life
//! cycle, finalized into a [`Sink`]). Both drive one `rollway_core::Core` through `driver`, and get
//! their runners from a [`Workers`]: [`Local`] for workflows in Rust, [`Children`] for workers in
//! processes of their own, in any language. [`Gated`] gives the runs of either keys to the models.

mod children;
mod client;
pub mod cluster;
pub mod config;
mod coordinator;
mod driver;
mod durable;
mod error;
pub mod explorer;
mod files;
pub mod fleet;
mod gated;
pub mod gateway;
mod handle;
pub mod job;
mod lines;
mod local;
pub mod monitor;
pub mod observe;
mod offer;
mod scheduler;
pub mod serve;
mod sink;
pub mod station;
mod suggest;
pub mod synchronizer;
mod task;
pub mod taskset;
pub mod tiny;
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
pub use crate::durable::{Restored, RestoredBatch};
pub use crate::error::{Error, Result};
pub use crate::files::FileError;
pub use crate::gated::{Gated, GatewayKeys, ModelKeys};
pub use crate::local::{Concurrency, Local};
pub use crate::offer::OfferError;
pub use crate::scheduler::{Collect, Collected, Scheduler};
pub use crate::sink::{Delivered, Parcel, PipelineSink, Place, Sink, SinkError, Stored};
pub use crate::task::{Definition, Task};
pub use crate::workers::{Attempt, Command, ModelAccess, Reporter, RunEnd, Said, Workers};
pub use crate::workflow::{
    Registry, RunContext, RunError, RunModel, RunOutput, RunResult, Running, Workflow,
};
