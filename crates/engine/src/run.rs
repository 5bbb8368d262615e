//! The core's types for results of runs, with payloads as bytes.

use bytes::Bytes;

pub use rollway_core::RunFailure;

pub type RunOutput = rollway_core::RunOutput<Bytes>;

pub type RunOutcome = rollway_core::RunOutcome<Bytes>;

pub type RunnerReport = rollway_core::RunnerReport<Bytes>;
