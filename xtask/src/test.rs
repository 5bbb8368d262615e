//! `cargo xtask test`: the steps in their order, and the report.
//!
//! A new step is an entry of [`STEPS`] and a function below it. Cheap steps come first.

use std::fmt::{self, Display};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::deny;
use crate::pages;
use crate::services::agents;
use crate::services::llama;
use crate::services::node;
use crate::services::postgres;
use crate::services::vllm;
use crate::shell::{CommandFailure, Shell, create_folder, remove_folder};
use crate::venv;
use crate::wheel;

/// A step, which can also run alone.
#[derive(Debug)]
pub(crate) struct TestStep {
    pub(crate) name: &'static str,
    /// Line of the help.
    pub(crate) about: &'static str,
    /// True if it runs only when it is named.
    pub(crate) is_optional: bool,
    run: fn(&Shell) -> Result<(), CommandFailure>,
}

/// By name, which is unique; function addresses are not.
impl PartialEq for TestStep {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn step(
    name: &'static str,
    about: &'static str,
    run: fn(&Shell) -> Result<(), CommandFailure>,
) -> TestStep {
    TestStep { name, about, is_optional: false, run }
}

pub(crate) const STEPS: &[TestStep] = &[
    step("fmt", "check the formatting of all Rust files", fmt),
    step("deny", "check dependencies with cargo-deny, if it is installed", deny::test),
    step("clippy", "lint all Rust code; a warning is a failure", clippy),
    step("doc", "build the documentation; a warning is a failure", doc),
    step("rust", "run every Rust test, scenario and tidy check", rust),
    step("sim", "run the simulator on seeds and on its mutants", sim),
    step("python", "test the wheel in its own environment", python),
    step("pages", "drive the dashboard in a real Chromium", pages::test),
    step("run", "run the README's example and a simulation", example),
    TestStep {
        is_optional: true,
        ..step("real", "only if named: test with a real vLLM (6 GB), and write its table", real)
    },
    TestStep {
        is_optional: true,
        ..step("clients", "only if named: test with clients and agent frameworks", clients)
    },
    TestStep {
        is_optional: true,
        ..step("agents", "only if named: test with real coding agents (1.5 GB)", coding_agents)
    },
];

/// Runs the steps up to the first failure and ends with the line `test: N passed, M failed`.
pub(crate) fn run(shell: &Shell, steps: &[&TestStep]) -> ExitCode {
    let report = perform(shell, steps);
    println!("\n{report}");
    if let Some((step, failure)) = &report.failure {
        eprintln!("error: step `{step}`: {failure}\n  again: cargo xtask test {step}\n");
    }
    println!("{}", report.closing());
    if report.failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn perform(shell: &Shell, steps: &[&TestStep]) -> Report {
    let mut report = Report { rows: Vec::new(), failure: None };
    for (index, step) in steps.iter().enumerate() {
        let mut row = (step.name, "not run", Duration::ZERO);
        if report.failure.is_none() {
            println!("\n==> {} ({} of {}): {}", step.name, index + 1, steps.len(), step.about);
            let begin = Instant::now();
            let result = (step.run)(shell);
            row = (step.name, if result.is_ok() { PASSED } else { FAILED }, begin.elapsed());
            println!("<== {}: {} in {:.1} s", step.name, row.1, row.2.as_secs_f64());
            report.failure = result.err().map(|failure| (step.name, failure));
        }
        report.rows.push(row);
    }
    report
}

fn fmt(shell: &Shell) -> Result<(), CommandFailure> {
    component(shell, "fmt", "rustfmt")?;
    shell.cargo("fmt --all --check").run()
}

fn clippy(shell: &Shell) -> Result<(), CommandFailure> {
    component(shell, "clippy", "clippy")?;
    shell.cargo("clippy --workspace --all-targets --locked -- -D warnings").run()
}

fn doc(shell: &Shell) -> Result<(), CommandFailure> {
    shell.cargo("doc --workspace --no-deps --locked").env("RUSTDOCFLAGS", "-D warnings").run()
}

fn rust(shell: &Shell) -> Result<(), CommandFailure> {
    postgres::ready(shell)?;
    shell.cargo("test --workspace --locked").run()
}

fn sim(shell: &Shell) -> Result<(), CommandFailure> {
    let sim = "run --release --locked -p rollway-sim --";
    shell.cargo(sim).split_args("--seeds 400").run()?;
    shell.cargo(sim).split_args("--mutants").run()?;
    shell.cargo(sim).split_args("--explorers --seeds 2000").run()?;
    shell.cargo(sim).split_args("--explorers --mutants").run()
}

fn python(shell: &Shell) -> Result<(), CommandFailure> {
    let python = wheel::installed(shell)?;
    // The same profile as the Rust tests.
    shell.cargo("build --workspace --examples --locked").run()?;
    let llama = llama::ready(shell)?;
    let node = node::ready(shell)?;
    shell.cargo("build --release --locked -p rollway-cli").run()?;
    let example = |name| shell.target.join("debug/examples").join(name);
    shell
        .program(&python)
        // Tests of one `xdist_group` share a process: one Ray cluster, one server per module.
        .split_args("-m pytest python/tests -q -n 2 --dist loadgroup")
        .env("ROLLWAY_BOOTSTRAP_BIN", example("bootstrap"))
        .env("ROLLWAY_CONFORMANCE_BIN", example("conformance"))
        .env("ROLLWAY_FLOWS_BIN", example("flows"))
        .env("ROLLWAY_GATEWAY_BIN", example("gateway"))
        .env("ROLLWAY_MONITOR_BIN", example("monitor"))
        .env("ROLLWAY_LLAMA_SERVER", llama.server)
        .env("ROLLWAY_LLAMA_MODEL", llama.model)
        .env("ROLLWAY_NODE", node.program)
        .env("ROLLWAY_NODE_MODULES", node.modules)
        .env("ROLLWAY_BIN", shell.target.join("release/rollway"))
        .run()
}

/// Tests the gateway with real servers, and writes the table of the documentation.
fn real(shell: &Shell) -> Result<(), CommandFailure> {
    let vllm = vllm::ready(shell)?;
    let llama = llama::ready(shell)?;
    let python = wheel::installed(shell)?;
    // The plugin of vLLM, and trainers that need PyTorch.
    wheel::install_into(shell, &vllm)?;
    shell.cargo("build --release --locked -p rollway-gateway --example gateway").run()?;
    shell.cargo("build --release --locked -p rollway-cli").run()?;
    shell
        .program(&python)
        .split_args("-m pytest python/tests_real -q -p no:xdist")
        .env("ROLLWAY_VLLM_PYTHON", vllm)
        .env("ROLLWAY_LLAMA_SERVER", llama.server)
        .env("ROLLWAY_LLAMA_MODEL", llama.model)
        .env("ROLLWAY_GATEWAY_BIN", shell.target.join("release/examples/gateway"))
        .env("ROLLWAY_BIN", shell.target.join("release/rollway"))
        .env("ROLLWAY_SERVER_MATRIX", shell.root.join("docs/server-matrix.md"))
        .run()
}

/// Requirements that conflict are in different environments.
const CLIENTS: [(&str, &str); 3] = [
    ("clients/agents", "python/tests_clients/requirements-agents.txt"),
    ("clients/litellm", "python/tests_clients/requirements-litellm.txt"),
    ("clients/langchain", "python/tests_clients/requirements-langchain.txt"),
];

/// Tests the gateway with clients and agent frameworks, each in an environment of its own.
fn clients(shell: &Shell) -> Result<(), CommandFailure> {
    create_folder(&shell.target.join("clients"))?;
    for (name, requirements) in CLIENTS {
        venv::ready(shell, name, requirements)?;
    }
    let (llama, node) = (llama::ready(shell)?, node::ready(shell)?);
    let python = wheel::installed(shell)?;
    shell.cargo("build --workspace --example gateway --locked").run()?;
    shell
        .program(&python)
        .split_args("-m pytest python/tests_clients -q -p no:xdist")
        .env("ROLLWAY_CLIENTS", shell.target.join("clients"))
        .env("ROLLWAY_GATEWAY_BIN", shell.target.join("debug/examples/gateway"))
        .env("ROLLWAY_LLAMA_SERVER", llama.server)
        .env("ROLLWAY_LLAMA_MODEL", llama.model)
        .env("ROLLWAY_NODE", node.program)
        .env("ROLLWAY_NODE_MODULES", node.modules)
        .run()
}

/// Script that runs its arguments with the loopback interface.
const WITH_LOOPBACK: &str = r#"ip link set lo up && exec "$@""#;

/// Runs real coding agents in a network namespace that has the loopback interface only, so that no
/// request leaves the machine.
fn coding_agents(shell: &Shell) -> Result<(), CommandFailure> {
    let agents = agents::ready(shell)?;
    let python = wheel::installed(shell)?;
    shell
        .program(Path::new("unshare"))
        .split_args("--net --map-root-user -- sh -c")
        .args([WITH_LOOPBACK, "sh"])
        .args([&python])
        .split_args("-m pytest python/tests_agents -q -p no:xdist")
        .env("ROLLWAY_CODEX", agents.codex)
        .env("ROLLWAY_OPENCODE", agents.opencode)
        .env("ROLLWAY_MINI_SWE_AGENT", agents.mini_swe_agent)
        .run()
}

fn example(shell: &Shell) -> Result<(), CommandFailure> {
    let job = shell.target.join("example");
    // Start over, do not resume the last run.
    remove_folder(&job)?;
    let root = format!("checkpoint_root_dir={}", job.display());
    shell.cargo("run --release --locked -- run examples/arithmetic.yaml").args([root]).run()?;
    shell.cargo("run --release --locked -- run examples/simulate.yaml").run()
}

/// Checks that a component of the toolchain is installed.
fn component(shell: &Shell, command: &str, component: &str) -> Result<(), CommandFailure> {
    shell.cargo(command).split_args("--version").output().map(drop).map_err(|failure| {
        failure.hint(format!(
            "the toolchain lacks {component}: `rustup component add {component}` installs it"
        ))
    })
}

const PASSED: &str = "passed";
const FAILED: &str = "failed";

#[derive(Debug)]
struct Report {
    /// Step, outcome and duration.
    rows: Vec<(&'static str, &'static str, Duration)>,
    failure: Option<(&'static str, CommandFailure)>,
}

impl Report {
    /// Returns the closing line, which other programs parse.
    fn closing(&self) -> String {
        let count = |outcome| self.rows.iter().filter(|row| row.1 == outcome).count();
        format!("test: {} passed, {} failed", count(PASSED), count(FAILED))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10}{:>9}", "step", "seconds")?;
        for (step, outcome, duration) in &self.rows {
            writeln!(f, "{step:<10}{:>9.1}  {outcome}", duration.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: TestStep = step("good", "passes", |_| Ok(()));
    const BAD: TestStep = step("bad", "fails", |_| Err(CommandFailure::new("broken")));

    #[test]
    fn the_first_failure_stops_the_rest() {
        let report = perform(&Shell::from_env().unwrap(), &[&GOOD, &BAD, &GOOD]);
        let outcomes: Vec<_> = report.rows.iter().map(|row| row.1).collect();
        assert_eq!(outcomes, ["passed", "failed", "not run"]);
        assert_eq!(report.closing(), "test: 1 passed, 1 failed");
        assert_eq!(report.failure.map(|(step, _)| step), Some("bad"));
    }

    #[test]
    fn success_is_counted() {
        let report = perform(&Shell::from_env().unwrap(), &[&GOOD, &GOOD]);
        assert_eq!(report.closing(), "test: 2 passed, 0 failed");
        assert!(report.failure.is_none());
    }

    #[test]
    fn names_of_steps_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }
}
