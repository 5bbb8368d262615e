//! Checks whether a worker, in whatever language, keeps to the protocol.
//!
//! The kit plays the engine: it listens, has the worker started, and watches what it says. The
//! worker has to know three workflows by name: [`SUCCEED`], [`FAIL`] and [`WAIT`]. What is
//! checked is listed in [`Check`]; a worker that failed one is started afresh for the next.
//!
//! [`mod@reference`] is a worker that passes, and its flaws show that every check can fail.

mod message_log;
pub mod reference;
mod report;
mod session;
mod steps;
mod target;

use std::time::Duration;

pub use report::{Check, CheckResult, ConformanceReport};
pub use target::{ConformanceTarget, TargetEnv};

use rollway_base::Address;

/// The workflow whose every run succeeds: with some experiences in training, without in eval.
pub const SUCCEED: &str = "rollway.conformance.succeed";
/// The workflow whose every run raises.
pub const FAIL: &str = "rollway.conformance.fail";
/// The workflow whose runs never end by themselves.
pub const WAIT: &str = "rollway.conformance.wait";

/// How to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceOptions {
    /// Where to listen. A number is appended to the path of a Unix socket.
    pub address: Address,
    /// How long the worker may take to start, to answer and to end.
    pub patience: Duration,
    /// How long the worker may take to acknowledge a cancel, or to leave on request.
    pub grace: Duration,
    /// How often a heartbeat is expected.
    pub heartbeat_interval: Duration,
}

impl Default for ConformanceOptions {
    fn default() -> Self {
        Self {
            address: Address::loopback(),
            patience: Duration::from_secs(10),
            grace: Duration::from_secs(5),
            heartbeat_interval: Duration::from_millis(200),
        }
    }
}

/// Runs all checks against a worker.
pub async fn run(target: &ConformanceTarget, options: &ConformanceOptions) -> ConformanceReport {
    steps::StepRun::new(target, options).all().await
}
