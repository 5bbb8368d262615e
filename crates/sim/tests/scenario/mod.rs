//! Scenarios: text files with inputs to one core and the expected actions.
//!
//! A file consists of paragraphs. A paragraph with a line `----` is a case: commands above it,
//! expected actions below it. Every other paragraph is prose and begins with a capital letter.
//!
//! ```text
//! A result that comes after its attempt was cancelled does not count.
//!
//! config runners=1
//! start; pool ready
//! ----
//! start w0
//! q1: started 1 of 1
//! ```
//!
//! `tests/scenarios/README.txt` lists the commands. Time advances only with `at`, `after` and
//! `reach`.
//! After every input the core [checks](rollway_core::Core::check) itself; a contradiction fails the
//! scenario whatever the file expects.

mod command;
mod config;
mod diff;
mod labels;
mod paragraphs;
mod render;
mod results;
mod runner;
mod tokens;
mod views;

use std::fmt;

use paragraphs::Paragraph;
use runner::ScenarioRunner;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioResult {
    /// The file with the actual actions as expectations.
    pub(crate) text: String,
    /// Problems in the order of lines; empty: the scenario passed.
    pub(crate) problems: Vec<ScenarioProblem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioProblem {
    pub(crate) file: String,
    /// Line number, counted from one.
    pub(crate) line: usize,
    pub(crate) what: ScenarioFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioFault {
    /// The file cannot be parsed; nothing after that line was executed.
    Script(String),
    /// Other actions than expected, as lines marked with `-` and `+`.
    Different(String),
    /// The core contradicts itself, or panicked.
    Core(String),
}

impl fmt::Display for ScenarioProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what } = self;
        match what {
            ScenarioFault::Script(message) => write!(f, "{file}:{line}: {message}"),
            ScenarioFault::Different(lines) => {
                write!(f, "{file}:{line}: expected (-) and given (+) differ\n{lines}")
            }
            ScenarioFault::Core(message) => {
                write!(f, "{file}:{line}: the core is broken: {message}")
            }
        }
    }
}

/// Executes a scenario; problems are reported with the name `file`.
pub(crate) fn play(file: &str, text: &str) -> ScenarioResult {
    let mut problems = Vec::new();
    let mut problem = |line, what| {
        problems.push(ScenarioProblem { file: file.to_owned(), line, what });
    };
    let mut paragraphs = match paragraphs::parse(text) {
        Ok(paragraphs) => paragraphs,
        Err(bad) => {
            problem(bad.line, ScenarioFault::Script(bad.to_string()));
            return ScenarioResult { text: text.to_owned(), problems };
        }
    };
    let mut world = ScenarioRunner::new();
    for paragraph in &mut paragraphs {
        let Paragraph::Case(case) = paragraph else {
            continue;
        };
        let played = world.play(&case.commands);
        for (line, message) in world.take_broken() {
            problem(line, ScenarioFault::Core(message));
        }
        let given = match played {
            Ok(given) => given,
            Err(bad) => {
                problem(bad.line, ScenarioFault::Script(bad.to_string()));
                break;
            }
        };
        if given != case.expected {
            let lines = diff::lines(&case.expected, &given);
            problem(case.expected_line, ScenarioFault::Different(lines));
            case.expected = given;
        }
    }
    ScenarioResult { text: paragraphs::render(&paragraphs), problems }
}
