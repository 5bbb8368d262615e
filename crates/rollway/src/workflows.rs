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

/// Built-in workflows of the Python package.
pub(crate) const PYTHON_NAMES: &[&str] = &[
    SIMPLE,
    "math_workflow",
    "multi_turn_workflow",
    "async_simple_workflow",
    "async_math_workflow",
    "math_boxed_workflow",
    "async_math_boxed_workflow",
];

/// Built-in reward functions of the Python package.
pub(crate) const PYTHON_REWARDS: &[&str] = &[
    "exact_match",
    "contains",
    "math_reward",
    "math_boxed_reward",
    "accuracy_reward",
    "format_reward",
];

const SIMPLE: &str = "simple_workflow";

pub fn builtin() -> WorkflowRegistry {
    WorkflowRegistry::default().with(SIMPLE, SimpleWorkflow::default())
}
