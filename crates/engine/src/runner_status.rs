//! Status of every runner for people: state of the core, stage from heartbeats or
//! `RunContext::stage`, and model calls in flight.

mod status;
mod table;

pub use self::status::RunnerStatus;
pub(crate) use self::status::all;
pub(crate) use self::table::LaunchState;
pub use self::table::{RunStages, RunnerStatusTable};

/// Stage of a run whose workflow has not set one.
pub(crate) const RUNNING: &str = "running";
