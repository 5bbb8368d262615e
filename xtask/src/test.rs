//! `cargo xtask test`: the steps, in the order in which they run, and the report at the end.
//!
//! A new step is an entry of [`STEPS`] and a function below it. Cheap steps stand first, so that a
//! slip is shown soon.

use std::fmt::{self, Display};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::pages;
use crate::services::llama;
use crate::services::node;
use crate::services::postgres;
use crate::shell::{CommandFailure, Shell};
use crate::wheel;

/// One part of the test command, which can also run alone.
#[derive(Debug)]
pub(crate) struct TestStep {
    pub(crate) name: &'static str,
    /// What the step does, as a line of the help.
    pub(crate) about: &'static str,
    run: fn(&Shell) -> Result<(), CommandFailure>,
}

/// Names are unique, so they tell steps apart; addresses of functions would not.
impl PartialEq for TestStep {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

pub(crate) const STEPS: &[TestStep] = &[
    TestStep { name: "fmt", about: "check the formatting of all Rust files", run: fmt },
    TestStep { name: "clippy", about: "lint all Rust code; a warning is a failure", run: clippy },
    TestStep { name: "doc", about: "build the documentation; a warning is a failure", run: doc },
    TestStep { name: "rust", about: "run every Rust test, scenario and tidy check", run: rust },
    TestStep { name: "sim", about: "run the simulator on seeds and on its mutants", run: sim },
    TestStep {
        name: "python",
        about: "install the wheel into an environment of its own and test it there",
        run: python,
    },
    TestStep { name: "pages", about: "drive the dashboard in a real Chromium", run: pages::test },
    TestStep {
        name: "run",
        about: "run the example of the README, and a simulation",
        run: example,
    },
];

/// Runs the steps, stops at the first failure, and ends with the line `test: N passed, M failed`.
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
        let mut row =
            ReportRow { step: step.name, outcome: StepOutcome::NotRun, took: Duration::ZERO };
        if report.failure.is_none() {
            println!("\n==> {} ({} of {}): {}", step.name, index + 1, steps.len(), step.about);
            let begin = Instant::now();
            let result = (step.run)(shell);
            row.took = begin.elapsed();
            row.outcome = if result.is_ok() { StepOutcome::Passed } else { StepOutcome::Failed };
            println!("<== {}: {} in {:.1} s", step.name, row.outcome, row.took.as_secs_f64());
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
    shell.cargo(sim).words("--seeds 400").run()?;
    shell.cargo(sim).words("--mutants").run()?;
    shell.cargo(sim).words("--explorers --seeds 2000").run()?;
    shell.cargo(sim).words("--explorers --mutants").run()
}

fn python(shell: &Shell) -> Result<(), CommandFailure> {
    let python = wheel::installed(shell)?;
    // As the tests in Rust have built them: another profile would build all they need once more.
    shell.cargo("build --workspace --examples --locked").run()?;
    let llama = llama::ready(shell)?;
    let node = node::ready(shell)?;
    shell.cargo("build --release --locked -p rollway-cli").run()?;
    let example = |name| shell.target.join("debug/examples").join(name);
    shell
        .program(&python)
        // Tests of one `xdist_group` share a process: one Ray cluster, one server per module.
        .words("-m pytest python/tests -q -n 2 --dist loadgroup")
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

fn example(shell: &Shell) -> Result<(), CommandFailure> {
    let job = shell.target.join("example");
    // From its beginning, and not where the last time ended.
    match std::fs::remove_dir_all(&job) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(CommandFailure::file(&job, &error));
        }
        _ => {}
    }
    let root = format!("checkpoint_root_dir={}", job.display());
    shell.cargo("run --release --locked -- run examples/arithmetic.yaml").args([root]).run()?;
    shell.cargo("run --release --locked -- run examples/simulate.yaml").run()
}

/// Tells how to get a component of the toolchain that is not there.
fn component(shell: &Shell, command: &str, component: &str) -> Result<(), CommandFailure> {
    shell.cargo(command).words("--version").output().map(drop).map_err(|failure| {
        failure.hint(format!(
            "the toolchain lacks {component}: `rustup component add {component}` installs it"
        ))
    })
}

/// What became of each step.
#[derive(Debug)]
struct Report {
    rows: Vec<ReportRow>,
    failure: Option<(&'static str, CommandFailure)>,
}

#[derive(Debug)]
struct ReportRow {
    step: &'static str,
    outcome: StepOutcome,
    took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum StepOutcome {
    Passed,
    Failed,
    NotRun,
}

impl Report {
    /// Returns the closing line, whose form other programs read.
    fn closing(&self) -> String {
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        format!(
            "test: {} passed, {} failed",
            count(StepOutcome::Passed),
            count(StepOutcome::Failed)
        )
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10}{:>9}", "step", "seconds")?;
        for row in &self.rows {
            let seconds = match row.outcome {
                StepOutcome::Passed | StepOutcome::Failed => {
                    format!("{:.1}", row.took.as_secs_f64())
                }
                StepOutcome::NotRun => "-".into(),
            };
            writeln!(f, "{:<10}{seconds:>9}  {}", row.step, row.outcome)?;
        }
        Ok(())
    }
}

impl Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: TestStep = TestStep { name: "good", about: "passes", run: |_| Ok(()) };
    const BAD: TestStep =
        TestStep { name: "bad", about: "fails", run: |_| Err(CommandFailure::new("broken")) };

    #[test]
    fn the_first_failure_stops_the_rest_and_is_counted() {
        let report = perform(&Shell::from_env().unwrap(), &[&GOOD, &BAD, &GOOD]);
        let outcomes: Vec<_> = report.rows.iter().map(|row| row.outcome).collect();
        assert_eq!(outcomes, [StepOutcome::Passed, StepOutcome::Failed, StepOutcome::NotRun]);
        assert_eq!(report.closing(), "test: 1 passed, 1 failed");
        assert_eq!(report.failure.map(|(step, _)| step), Some("bad"));
    }

    #[test]
    fn all_passed_is_said_so() {
        let report = perform(&Shell::from_env().unwrap(), &[&GOOD, &GOOD]);
        assert_eq!(report.closing(), "test: 2 passed, 0 failed");
        assert!(report.failure.is_none());
    }

    #[test]
    fn steps_have_names_of_their_own() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }
}
