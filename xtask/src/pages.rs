//! Tests, screenshots and measurements of the dashboard in a browser, all in JavaScript in
//! `crates/dashboard/tests/pages`.

use crate::services::chromium;
use crate::services::node;
use crate::shell::{Cmd, CommandFailure, Shell};

const FOLDER: &str = "crates/dashboard/tests/pages";

pub(crate) fn test(shell: &Shell) -> Result<(), CommandFailure> {
    // The same profile as the Rust tests.
    shell.cargo("build --workspace --examples --bins --locked").run()?;
    let node = prepared(shell, "debug")?.env("ROLLWAY_BIN", shell.target.join("debug/rollway"));
    node.split_args("--test --test-concurrency=1").args([format!("{FOLDER}/")]).run()
}

/// Runs a script: `shots` takes the screenshots of the documentation, `bench` measures the pages
/// with a large job.
pub(crate) fn script(shell: &Shell, name: &str) -> Result<(), CommandFailure> {
    shell.cargo("build --release --locked -p rollway-dashboard --example dashboard").run()?;
    prepared(shell, "release")?.args([format!("{FOLDER}/{name}.mjs")]).run()
}

/// Prepares a call of Node.js with the paths of all programs.
fn prepared(shell: &Shell, profile: &str) -> Result<Cmd, CommandFailure> {
    let chromium = chromium::ready(shell)?;
    let node = node::ready(shell)?;
    let examples = shell.target.join(profile).join("examples");
    let program = shell.program(&node.program);
    Ok(program
        .env("ROLLWAY_DASHBOARD_BIN", examples.join("dashboard"))
        .env("ROLLWAY_CHROMIUM", chromium)
        .env("ROLLWAY_NODE_MODULES", node.modules))
}
