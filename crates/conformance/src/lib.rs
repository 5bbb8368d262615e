//! Conformance kit: checks that a worker in any language follows the worker protocol.
//!
//! The kit acts as the engine: it listens, starts the worker and checks its messages. The worker
//! must provide three workflows: [`SUCCEED`], [`FAIL`] and [`WAIT`]. [`Check`] lists the checks;
//! after a failed one the worker is started again.
//!
//! [`mod@reference`] is a worker that passes; its flaws show that every check can fail.

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

/// Workflow whose runs succeed: with experiences in training, without in eval.
pub const SUCCEED: &str = "rollway.conformance.succeed";
/// Workflow whose runs raise.
pub const FAIL: &str = "rollway.conformance.fail";
/// Workflow whose runs never end by themselves.
pub const WAIT: &str = "rollway.conformance.wait";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceOptions {
    /// Address of the kit. A number is appended to the path of a Unix socket.
    pub address: Address,
    /// Maximum time for the worker to start, respond and exit.
    pub timeout: Duration,
    /// Maximum time to acknowledge a cancel or a shutdown.
    pub grace: Duration,
    pub heartbeat_interval: Duration,
}

impl Default for ConformanceOptions {
    fn default() -> Self {
        Self {
            address: Address::loopback(),
            timeout: Duration::from_secs(10),
            grace: Duration::from_secs(5),
            heartbeat_interval: Duration::from_millis(200),
        }
    }
}

/// Runs all checks against a worker.
pub async fn run(target: &ConformanceTarget, options: &ConformanceOptions) -> ConformanceReport {
    steps::StepRun::new(target, options).all().await
}
