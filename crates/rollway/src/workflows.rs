//! Workflows and reward functions in Rust that come with the engine, by the names that
//! configurations call them.
//!
//! They reach the models like everybody else: through the gateway, with the key of their run, and
//! what they yield is what was recorded there.

mod model_client;
mod reward;
mod simple;

use rollway_engine::WorkflowRegistry;

pub use self::reward::{RewardFn, WorkflowArgumentError};
use self::simple::SimpleWorkflow;

/// The workflows in Rust.
pub const NAMES: &[&str] = &[SIMPLE];

/// The workflows that the package for Python has.
pub(crate) const PYTHON_NAMES: &[&str] = &[SIMPLE, "math_workflow", "multi_turn_workflow"];

/// The reward functions that the package for Python has.
pub(crate) const PYTHON_REWARDS: &[&str] = &["exact_match", "contains", "math_reward"];

/// Asks the question of the row once, and has the answer judged.
const SIMPLE: &str = "simple_workflow";

/// Returns the workflows in Rust.
pub fn builtin() -> WorkflowRegistry {
    WorkflowRegistry::default().with(SIMPLE, SimpleWorkflow::default())
}
