//! Built-in workflows and reward functions in Rust. They call models through the gateway with the
//! key of their run, and return the turns that the gateway recorded.

mod model_client;
mod reward;
mod simple;

use rollway_engine::WorkflowRegistry;

pub use self::reward::{RewardFn, WorkflowArgumentError};
use self::simple::SimpleWorkflow;

/// Built-in workflows in Rust.
pub const NAMES: &[&str] = &[SIMPLE];

const SIMPLE: &str = "simple_workflow";

pub fn builtin() -> WorkflowRegistry {
    WorkflowRegistry::default().with(SIMPLE, SimpleWorkflow::default())
}
