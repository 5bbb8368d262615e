//! What is done with the dashboard in a browser: tests, pictures, measurements. All of it is in
//! `crates/dashboard/tests/pages`, in JavaScript, against a made-up job.

use std::path::Path;

use crate::services::chromium;
use crate::services::node;
use crate::shell::{Cmd, CommandFailure, Shell};

const FOLDER: &str = "crates/dashboard/tests/pages";

/// Runs the tests.
pub(crate) fn test(shell: &Shell) -> Result<(), CommandFailure> {
    // As the tests in Rust have built them.
    shell.cargo("build --workspace --examples --bins --locked").run()?;
    let node = prepared(shell, "debug")?.env("ROLLWAY_BIN", shell.target.join("debug/rollway"));
    node.words("--test --test-concurrency=1").args([format!("{FOLDER}/")]).run()
}

/// Takes the pictures of the documentation again.
pub(crate) fn shots(shell: &Shell) -> Result<(), CommandFailure> {
    shell.cargo("build --release --locked -p rollway-dashboard --example dashboard").run()?;
    prepared(shell, "release")?.args([format!("{FOLDER}/shots.mjs")]).run()
}

/// Measures how pages keep up with a large job.
pub(crate) fn bench(shell: &Shell) -> Result<(), CommandFailure> {
    shell.cargo("build --release --locked -p rollway-dashboard --example dashboard").run()?;
    prepared(shell, "release")?.args([format!("{FOLDER}/bench.mjs")]).run()
}

/// Prepares a call of Node.js that knows where everything is.
fn prepared(shell: &Shell, profile: &str) -> Result<Cmd, CommandFailure> {
    let chromium = chromium::ready(shell)?;
    let node = node::ready(shell)?;
    let examples = shell.target.join(profile).join("examples");
    let program = shell.program(Path::new(&node.program));
    Ok(program
        .env("ROLLWAY_DASHBOARD_BIN", examples.join("dashboard"))
        .env("ROLLWAY_CHROMIUM", chromium)
        .env("ROLLWAY_NODE_MODULES", node.modules))
}
