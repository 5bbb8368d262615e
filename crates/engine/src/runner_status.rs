//! What every runner does now, for people: where the core says it stands, what it says itself, and
//! the model calls that it waits for.
//!
//! ```text
//! core: state, attempt, ages ──────────────┐
//! heartbeat or RunContext::stage: stage ───┼─► RunnerStatus, those that are stuck first
//! gateway: calls under way ────────────────┘
//! ```

mod stages;
mod status;
mod table;

pub use self::stages::RunStages;
pub use self::status::RunnerStatus;
pub(crate) use self::status::all;
pub(crate) use self::table::LaunchState;
pub use self::table::RunnerStatusTable;

/// What a run is at before its workflow says anything.
pub(crate) const RUNNING: &str = "running";
