//! The core's types for results of runs, with the experiences as bytes.

use bytes::Bytes;

pub use rollway_core::RunFailure;

/// Output of a run that succeeded.
pub type RunOutput = rollway_core::RunOutput<Bytes>;

/// Outcome of one run, as its runner reports it.
pub type RunOutcome = rollway_core::RunOutcome<Bytes>;

/// Report about a runner.
pub type RunnerReport = rollway_core::RunnerReport<Bytes>;
