//! What the words after `cargo xtask` mean, and the help that says so.

use std::fmt::Write as _;

use crate::test::{STEPS, TestStep};

const COMMANDS: &[&str] =
    &["test", "bench", "chromium", "llama", "postgres", "shots", "wheel", "help"];

/// What a person asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum XtaskRequest {
    Help,
    /// The steps to run, in the order of the table and without repetition.
    Test(Vec<&'static TestStep>),
    Bench {
        filter: Option<String>,
    },
    /// The browser of the tests.
    Chromium,
    /// The inference server of the tests.
    Llama,
    /// The database server of the tests.
    Postgres,
    /// The pictures of the dashboard in the documentation.
    Shots,
    /// The Python package.
    Wheel,
}

/// Returns the request that the words make, or a message about the word that makes none.
pub(crate) fn parse(words: &[String]) -> Result<XtaskRequest, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(XtaskRequest::Help);
    }
    let Some((command, rest)) = words.split_first() else {
        return Err("a command is missing".into());
    };
    match command.as_str() {
        "help" => no_more(rest).map(|()| XtaskRequest::Help),
        "test" => steps(rest).map(XtaskRequest::Test),
        "chromium" => no_more(rest).map(|()| XtaskRequest::Chromium),
        "shots" => no_more(rest).map(|()| XtaskRequest::Shots),
        "llama" => no_more(rest).map(|()| XtaskRequest::Llama),
        "postgres" => no_more(rest).map(|()| XtaskRequest::Postgres),
        "wheel" => no_more(rest).map(|()| XtaskRequest::Wheel),
        "bench" => {
            let (filter, rest) = match rest.split_first() {
                Some((flag, _)) if flag.starts_with('-') => {
                    return Err(unknown("option", flag, []));
                }
                Some((filter, rest)) => (Some(filter.clone()), rest),
                None => (None, rest),
            };
            no_more(rest).map(|()| XtaskRequest::Bench { filter })
        }
        other => Err(unknown("command", other, COMMANDS.iter().copied())),
    }
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
cargo xtask llama           install llama.cpp's server for the tests, if the machine has none, and a
                            tiny model for it
cargo xtask postgres        install a PostgreSQL server for the tests, if the machine has none
cargo xtask shots           take the pictures of the dashboard in docs/images again
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
  ROLLWAY_POSTGRES      the folder of `initdb` and `postgres`, if they are not where one would look

Exit codes: 0 all passed, 1 something failed, 2 the command line was not understood.
",
    );
    text
}

fn steps(names: &[String]) -> Result<Vec<&'static TestStep>, String> {
    let known = || STEPS.iter().map(|step| step.name);
    if let Some(name) = names.iter().find(|name| !known().any(|step| step == *name)) {
        return Err(unknown("step of `test`", name, known()));
    }
    let wanted = |step: &&TestStep| names.is_empty() || names.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(wanted).collect())
}

fn no_more(rest: &[String]) -> Result<(), String> {
    rest.first().map_or(Ok(()), |word| Err(format!("unexpected word: {word}")))
}

fn unknown<'a>(kind: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = known.into_iter().map(|name| (distance(word, name), name)).min();
    match nearest {
        // Two slips, but never so many that nothing of the word is left.
        Some((slips, name)) if slips <= 2 && slips < word.chars().count() => {
            format!("unknown {kind}: {word}; did you mean `{name}`?")
        }
        _ => format!("unknown {kind}: {word}"),
    }
}

/// Returns how many letters must be put in, taken out, replaced or swapped with their neighbour to
/// make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
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
    fn test_without_names_means_every_step() {
        assert_eq!(step_names("test").len(), STEPS.len());
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
        assert_eq!(parse_line("bench core sim"), Err("unexpected word: sim".into()));
        assert_eq!(parse_line("bench --all"), Err("unknown option: --all".into()));
    }

    #[test]
    fn help_is_found_wherever_one_would_look() {
        for line in ["help", "--help", "-h", "test --help"] {
            assert_eq!(parse_line(line), Ok(XtaskRequest::Help), "{line}");
        }
        let help = help();
        for name in COMMANDS.iter().copied().chain(STEPS.iter().map(|step| step.name)) {
            assert!(help.contains(name), "the help does not mention {name}");
        }
    }

    #[test]
    fn slips_of_the_finger_are_answered_with_the_likely_word() {
        for (line, message) in [
            ("", "a command is missing"),
            ("tset", "unknown command: tset; did you mean `test`?"),
            ("test clipy", "unknown step of `test`: clipy; did you mean `clippy`?"),
            ("test fmt pyhton", "unknown step of `test`: pyhton; did you mean `python`?"),
            ("publish", "unknown command: publish"),
            ("x", "unknown command: x"),
            ("help me", "unexpected word: me"),
        ] {
            assert_eq!(parse_line(line), Err(message.into()), "{line}");
        }
    }
}
