//! Shared setup of the engine's tests.

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::path::PathBuf;
use std::time::Duration;

use rollway_core::{CoreConfig, Supervision};
use rollway_engine::Task;

pub const SECOND: Duration = Duration::from_secs(1);

/// Configuration for four local runners on a paused clock.
pub fn local_config() -> CoreConfig {
    let max_timeout = 10 * SECOND;
    CoreConfig {
        runners: 4,
        max_timeout,
        default_timeout: 3 * max_timeout,
        ..CoreConfig::default()
    }
}

/// Configuration with short timeouts for worker processes.
pub fn process_config(runners: u32) -> CoreConfig {
    CoreConfig {
        runners,
        max_timeout: Duration::from_millis(400),
        supervision: Supervision {
            cancel_grace: Duration::from_millis(200),
            restart_backoff: Duration::from_millis(50),
            ..Supervision::default()
        },
        ..CoreConfig::default()
    }
}

pub fn tasks(workflow: &str, count: usize, runs: u32) -> Vec<Task> {
    vec![Task::new(workflow, "").repeat(runs); count]
}

/// Returns the example worker, which cargo builds beside the tests.
pub fn worker_program() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let target = test.parent().and_then(|deps| deps.parent()).expect("it lies in target");
    let program = target.join("examples/worker");
    assert!(program.exists(), "build it first: cargo build -p rollway-engine --example worker");
    program
}
