//! Scenarios: text files that script inputs to one core and show the actions that it gave.
//!
//! A file is a row of paragraphs. One with a line `----` is a case: above it commands, below it
//! what must come of them. Every other paragraph is prose and begins with a capital letter.
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
//! The commands are listed in `tests/scenarios/README.txt`. Time stands still but for `at`, `after`
//! and `reach`. After every input the core is asked to [`check`](rollway_core::Core::check) itself,
//! and what it finds fails the scenario whatever the file expects.

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

/// What came of playing a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioResult {
    /// The file as it would have to be for nothing to differ.
    pub(crate) text: String,
    /// Everything that speaks against the file or the core, in the order of lines; none: it passed.
    pub(crate) problems: Vec<ScenarioProblem>,
}

/// Something that makes a scenario fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioProblem {
    /// The name of the file.
    pub(crate) file: String,
    /// The line it is about, counted from one.
    pub(crate) line: usize,
    pub(crate) what: ScenarioFault,
}

/// Why a scenario failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioFault {
    /// The file cannot be understood; nothing after that line was played.
    Script(String),
    /// Other actions than expected, as a list of lines marked with `-` and `+`.
    Different(String),
    /// The core contradicts itself, or panicked.
    Core(String),
}

impl fmt::Display for ScenarioProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what } = self;
        match what {
            ScenarioFault::Script(words) => write!(f, "{file}:{line}: {words}"),
            ScenarioFault::Different(lines) => {
                write!(f, "{file}:{line}: expected (-) and given (+) differ\n{lines}")
            }
            ScenarioFault::Core(words) => write!(f, "{file}:{line}: the core is broken: {words}"),
        }
    }
}

/// Plays a scenario; `file` is the name under which problems are reported.
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
        let mut given = Vec::new();
        let played = world.play(&case.commands, &mut given);
        for (line, words) in world.take_broken() {
            problem(line, ScenarioFault::Core(words));
        }
        if let Err(bad) = played {
            problem(bad.line, ScenarioFault::Script(bad.to_string()));
            break;
        }
        if given != case.expected {
            let lines = diff::lines(&case.expected, &given);
            problem(case.expected_line, ScenarioFault::Different(lines));
            case.expected = given;
        }
    }
    ScenarioResult { text: paragraphs::render(&paragraphs), problems }
}
