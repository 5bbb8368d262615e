//! Observers of a job: run history, job view, Prometheus metrics, alarms, monitors and the
//! summary.
//!
//! ```text
//! events (runs, calls) ──┬─► history ─► view (read by dashboard, `rollway top`, trace export)
//! job events ────────────┼─► prometheus, monitors, summary
//! live statistics ───────┴─► alarms ─► job events
//! ```
//!
//! Observers take no decisions. Queues are bounded; dropped items are counted in [`DropCounters`].
//! This crate knows nothing of pages, explorers, trainers and jobs.

pub mod alarms;
mod dropped;
pub mod failures;
pub mod history;
mod in_flight;
pub mod monitors;
pub mod prometheus;
mod redact;
mod staleness;
pub mod summary;
pub mod view;

pub use crate::dropped::DropCounters;
pub use crate::in_flight::TaskWorkflows;
