//! Parsing of the arguments of `cargo xtask`, and its help.

use std::fmt::Write as _;

use crate::kills::KILLS;
use crate::test::{STEPS, TestStep};

const COMMANDS: &[&str] = &[
    "test", "bench", "chromium", "docs", "fuzz", "kills", "llama", "postgres", "shots", "wheel",
    "help",
];

/// Seconds of each target of `fuzz` if no number is given.
const FUZZ_SECONDS: u32 = 600;

#[derive(Debug, PartialEq)]
pub(crate) enum XtaskRequest {
    Help,
    /// Steps in the order of the table, without repetition.
    Test(Vec<&'static TestStep>),
    Bench {
        filter: Option<String>,
    },
    Chromium,
    /// Documentation site.
    Docs,
    /// Coverage-guided fuzzing of one target, or of all.
    Fuzz {
        target: Option<String>,
        seconds: u32,
    },
    /// Kills at random moments of jobs.
    Kills {
        kills: u32,
    },
    Llama,
    Postgres,
    /// Screenshots of the documentation.
    Shots,
    Wheel,
}

pub(crate) fn parse(arguments: &[String]) -> Result<XtaskRequest, String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments.iter().any(|argument| ["--help", "-h"].contains(argument)) {
        return Ok(XtaskRequest::Help);
    }
    let (request, rest) = match arguments[..] {
        [] => return Err("a command is missing".into()),
        ["test", ref names @ ..] => (XtaskRequest::Test(steps(names)?), &[][..]),
        ["bench", option, ..] if option.starts_with('-') => {
            return Err(format!("unknown option: {option}"));
        }
        ["bench", filter, ref rest @ ..] => {
            (XtaskRequest::Bench { filter: Some(filter.to_owned()) }, rest)
        }
        ["bench"] => (XtaskRequest::Bench { filter: None }, &[][..]),
        ["help", ref rest @ ..] => (XtaskRequest::Help, rest),
        ["chromium", ref rest @ ..] => (XtaskRequest::Chromium, rest),
        ["docs", ref rest @ ..] => (XtaskRequest::Docs, rest),
        ["fuzz", ref rest @ ..] => fuzz(rest)?,
        ["kills", "--kills", kills, ref rest @ ..] => {
            (XtaskRequest::Kills { kills: number("--kills", kills)? }, rest)
        }
        ["kills", ref rest @ ..] => (XtaskRequest::Kills { kills: KILLS }, rest),
        ["shots", ref rest @ ..] => (XtaskRequest::Shots, rest),
        ["llama", ref rest @ ..] => (XtaskRequest::Llama, rest),
        ["postgres", ref rest @ ..] => (XtaskRequest::Postgres, rest),
        ["wheel", ref rest @ ..] => (XtaskRequest::Wheel, rest),
        [other, ..] => return Err(unknown("command", other, COMMANDS)),
    };
    rest.first().map_or(Ok(request), |extra| Err(format!("unexpected argument: {extra}")))
}

/// Parses `[TARGET] [--seconds N]`. Returns the arguments behind them, too.
fn fuzz<'a>(words: &'a [&'a str]) -> Result<(XtaskRequest, &'a [&'a str]), String> {
    let (target, rest) = match words {
        [target, rest @ ..] if !target.starts_with('-') => (Some((*target).to_owned()), rest),
        _ => (None, words),
    };
    let (seconds, rest) = match rest {
        ["--seconds", seconds, rest @ ..] => (number("--seconds", seconds)?, rest),
        _ => (FUZZ_SECONDS, rest),
    };
    Ok((XtaskRequest::Fuzz { target, seconds }, rest))
}

fn number(option: &str, text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{option} needs a positive number: {text}"))
}

/// Returns the text of `cargo xtask help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "The project's own commands.

cargo xtask test            run every step below, in this order, and stop at the first that fails
cargo xtask test STEP ...   run only these steps
cargo xtask bench [FILTER]  run the benchmarks, or those whose names contain FILTER; `python` is the
                            engine with workers in Python, next to the bare transport, `pages` the
                            dashboard in a browser
cargo xtask chromium        fetch Debian's Chromium for the tests, if the machine has none
cargo xtask docs            build the documentation site below the target directory
cargo xtask fuzz [TARGET] [--seconds N]
                            fuzz a target of crates/fuzz guided by coverage, or each of them, for N
                            seconds (600); needs a C++ compiler
cargo xtask kills [--kills N]
                            end jobs at N (300) random moments and check that nothing is lost
cargo xtask llama           install llama.cpp's server for the tests, if the machine has none, and a
                            tiny model for it
cargo xtask postgres        install a PostgreSQL server for the tests, if the machine has none
cargo xtask shots           take the screenshots of the dashboard in docs/images
cargo xtask wheel           build the Python package as a wheel below the target directory
cargo xtask help            show this text

Steps of `test`:
",
    );
    for step in STEPS {
        writeln!(text, "  {:<8}{}", step.name, step.about).expect("a string takes any text");
    }
    text.push_str(
        "
Needed: cargo with rustfmt and clippy, Python 3.10 or newer with its venv module, and Node.js 20 or
newer with npm. Everything else is built or installed below the target directory.

Environment:
  CARGO_TARGET_DIR      where to build; `target` if unset
  PYTHON                the interpreter that makes the virtual environment; `python3` if unset
  ROLLWAY_BENCH_PEERS   if set, benchmarks also measure peers, which take long to install
  ROLLWAY_CHROMIUM      the program `chromium`, if it is not on the PATH
  ROLLWAY_LLAMA_SERVER  the program `llama-server`, if it is not on the PATH
  ROLLWAY_VLLM_PYTHON   an interpreter with vLLM for `test real`; installed if unset
  ROLLWAY_POSTGRES      the folder of `initdb` and `postgres`, if they are elsewhere

Exit codes: 0 all passed, 1 something failed, 2 invalid arguments.
",
    );
    text
}

fn steps(names: &[&str]) -> Result<Vec<&'static TestStep>, String> {
    let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(unknown("step of `test`", name, &known));
    }
    let is_wanted = |step: &&TestStep| match names {
        [] => !step.is_optional,
        names => names.contains(&step.name),
    };
    Ok(STEPS.iter().filter(is_wanted).collect())
}

fn unknown(kind: &str, name: &str, known: &[&str]) -> String {
    format!("unknown {kind}: {name}; known: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<XtaskRequest, String> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    fn step_names(line: &str) -> Vec<&'static str> {
        match parse_line(line) {
            Ok(XtaskRequest::Test(steps)) => steps.iter().map(|step| step.name).collect(),
            other => panic!("not a test request: {other:?}"),
        }
    }

    #[test]
    fn test_without_names_means_every_step_that_is_not_optional() {
        let names = step_names("test");
        assert!(names.contains(&"fmt") && !names.contains(&"real"), "{names:?}");
        assert_eq!(step_names("test real"), ["real"]);
    }

    #[test]
    fn named_steps_run_once_and_in_the_order_of_the_table() {
        assert_eq!(step_names("test clippy fmt clippy"), ["fmt", "clippy"]);
    }

    #[test]
    fn bench_takes_one_filter() {
        assert_eq!(parse_line("bench"), Ok(XtaskRequest::Bench { filter: None }));
        assert_eq!(
            parse_line("bench core"),
            Ok(XtaskRequest::Bench { filter: Some("core".into()) })
        );
        assert_eq!(parse_line("bench core sim"), Err("unexpected argument: sim".into()));
        assert_eq!(parse_line("bench --all"), Err("unknown option: --all".into()));
    }

    #[test]
    fn campaigns_take_their_length() {
        let fuzz = |target: Option<&str>, seconds| {
            Ok(XtaskRequest::Fuzz { target: target.map(str::to_owned), seconds })
        };
        assert_eq!(parse_line("fuzz"), fuzz(None, 600));
        assert_eq!(parse_line("fuzz job_files"), fuzz(Some("job_files"), 600));
        assert_eq!(parse_line("fuzz --seconds 5"), fuzz(None, 5));
        assert_eq!(parse_line("fuzz job_files --seconds 5"), fuzz(Some("job_files"), 5));
        assert_eq!(
            parse_line("fuzz --seconds x"),
            Err("--seconds needs a positive number: x".into())
        );
        assert_eq!(parse_line("kills"), Ok(XtaskRequest::Kills { kills: 300 }));
        assert_eq!(parse_line("kills --kills 7"), Ok(XtaskRequest::Kills { kills: 7 }));
        assert_eq!(parse_line("kills 7"), Err("unexpected argument: 7".into()));
    }

    #[test]
    fn help_is_requested_in_several_ways() {
        for line in ["help", "--help", "-h", "test --help"] {
            assert_eq!(parse_line(line), Ok(XtaskRequest::Help), "{line}");
        }
        let help = help();
        for name in COMMANDS.iter().copied().chain(STEPS.iter().map(|step| step.name)) {
            assert!(help.contains(name), "the help does not mention {name}");
        }
    }

    #[test]
    fn invalid_arguments_are_named_with_the_known_ones() {
        for (line, message) in [
            ("", "a command is missing"),
            ("tset", "unknown command: tset; known: test, bench, "),
            ("test clipy", "unknown step of `test`: clipy; known: fmt, deny, "),
            ("help me", "unexpected argument: me"),
        ] {
            let error = parse_line(line).unwrap_err();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }
}
