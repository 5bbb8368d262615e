//! Observers of a job: run history, job view, Prometheus metrics, alarms, monitors and the
//! summary.
//!
//! ```text
//! events (runs, calls) ──┬─► history ─► live_job, recorded_job ─► view (what dashboards read)
//! job events ────────────┼─► prometheus, monitors, summary
//! live statistics ───────┴─► alarms ─► job events
//! ```
//!
//! Observers decide nothing and slow nothing down: queues are bounded, and what does not fit is
//! counted in [`DropCounters`]. This crate knows nothing of the dashboard's pages, of explorers,
//! trainers and jobs.

pub mod alarms;
mod dropped;
pub mod history;
mod in_flight;
pub mod live_job;
pub mod monitors;
pub mod prometheus;
pub mod recorded_job;
mod staleness;
pub mod summary;
pub mod view;

pub use crate::dropped::DropCounters;
pub use crate::in_flight::TaskWorkflows;
