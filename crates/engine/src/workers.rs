//! Runner backends: execution of attempts in this process and in worker processes.
//!
//! ```text
//! driver ──► RunnerBackend ──┬─► LocalRunners: tasks of this process
//!    ▲                       ├─► WorkerPool: worker processes, placed by `cluster`
//!    │                       ├─► WithModelAccess: either, with keys of the gateway
//!    └── Reporter ◄──────────┴─► WithOutputCheck: any, with checked and labelled outputs
//! ```
//!
//! `supervisor` keeps manual workers of one machine running. `workflow` is the interface of
//! workflows in Rust.

mod backend;
pub mod cluster;
mod local_runners;
mod model_access;
mod output_check;
pub mod supervisor;
mod temporary_folder;
mod worker_pool;
mod workflow;

pub use self::backend::{AttemptSpec, ModelAccess, Reporter, RunnerBackend, RunnerCommand};
pub(crate) use self::backend::{RunnerInbox, RunnerMessage};
pub use self::local_runners::{Concurrency, LocalRunners};
pub use self::model_access::{
    CallLookupFn, GatewayRunKeys, RecordedVersionsFn, RunKeyIssuer, ServerWaitFn, WithModelAccess,
};
pub use self::output_check::WithOutputCheck;
pub use self::worker_pool::{
    LaunchSpec, LaunchStatus, LaunchedProcess, Launcher, LocalLauncher, ProcessExit, RayLauncher,
    RayLauncherOptions, Suspect, WorkerPool, WorkerPoolOptions,
};
pub use self::workflow::{RunContext, RunFuture, RunModel, Workflow, WorkflowRegistry};
