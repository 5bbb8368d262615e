//! Runner backends: where runners live, and what reaches them.
//!
//! ```text
//! driver ──► Workers (backend) ──┬─► Local: tasks of this process (local_runners)
//!    ▲                           ├─► Children: worker processes (worker_pool), placed by cluster
//!    └── Reporter ◄──────────────┴─► Gated: either, with keys to the models (model_access)
//! ```
//!
//! `supervisor` is the other side of a cluster without a launcher: it keeps the workers of one
//! machine running. `workflow` is what runners of this process execute.

mod backend;
pub mod cluster;
mod local_runners;
mod model_access;
pub mod supervisor;
mod worker_pool;
mod workflow;

pub use self::backend::{Attempt, Command, ModelAccess, Reporter, Said, Workers};
pub(crate) use self::backend::{RunnerInbox, RunnerMessage};
pub use self::local_runners::{Concurrency, Local};
pub use self::model_access::{CallsOf, Gated, GatewayKeys, ModelKeys};
pub use self::worker_pool::{
    Blame, ChildOptions, Children, Ended, Launched, Launcher, Processes, Ray, RayOptions, Ticket,
    Whereabouts,
};
pub use self::workflow::{
    Registry, RunContext, RunError, RunModel, RunOutput, RunResult, Running, Workflow,
};
