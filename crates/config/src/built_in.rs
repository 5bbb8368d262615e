//! Names of built-in workflows and reward functions. A test of the Python package compares them
//! with those that it registers.

/// Workflows of the Python package.
pub const BUILT_IN_WORKFLOWS: &[&str] = &[
    "simple_workflow",
    "math_workflow",
    "multi_turn_workflow",
    "async_simple_workflow",
    "async_math_workflow",
    "math_boxed_workflow",
    "async_math_boxed_workflow",
];

/// Reward functions of the Python package.
pub const BUILT_IN_REWARDS: &[&str] = &[
    "exact_match",
    "contains",
    "math_reward",
    "math_boxed_reward",
    "accuracy_reward",
    "format_reward",
];
