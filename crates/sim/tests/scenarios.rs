//! Executes every scenario of `tests/scenarios`. `UPDATE_EXPECT=1` rewrites their expectations, but
//! contradictions of the core fail in any case.

mod scenario;

use std::fs;
use std::path::{Path, PathBuf};

use scenario::{ScenarioFault, ScenarioProblem, play};

/// Explains the language and lists the scenarios; no scenario itself.
const INDEX: &str = "README.txt";

#[test]
fn every_scenario_matches_its_expectations() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value != "0");
    let mut problems: Vec<ScenarioProblem> = Vec::new();
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        let played = play(&name(&path), &text);
        let blessed = |problem: &&ScenarioProblem| {
            update && matches!(problem.what, ScenarioFault::Different(_))
        };
        if played.problems.iter().any(|problem| blessed(&problem)) {
            fs::write(&path, &played.text).unwrap();
        }
        problems.extend(played.problems.into_iter().filter(|problem| !blessed(&problem)));
    }
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(
        shown.is_empty(),
        "{} problems:\n\n{}\n\nIf the new behaviour is right, UPDATE_EXPECT=1 rewrites the files.",
        shown.len(),
        shown.join("\n\n")
    );
}

#[test]
fn the_index_lists_exactly_the_scenarios() {
    let index = fs::read_to_string(folder().join(INDEX)).unwrap();
    let named: Vec<&str> =
        index.split_whitespace().filter(|word| word.ends_with(".txt") && *word != INDEX).collect();
    let there: Vec<String> = files().iter().map(|path| name(path)).collect();
    let missing: Vec<_> = there.iter().filter(|file| !named.contains(&file.as_str())).collect();
    let gone: Vec<_> =
        named.iter().filter(|file| !there.iter().any(|name| name == *file)).collect();
    assert!(missing.is_empty(), "not in {INDEX}: {missing:#?}");
    assert!(gone.is_empty(), "only in {INDEX}: {gone:#?}");
}

const RIGHT: &str = "\
A runner is started.

config runners=1
start
----
start w0

It reports that it is ready.

ready w0
----
q1: started 1 of 1
";

#[test]
fn a_wrong_expectation_is_reported_and_corrected() {
    assert_eq!(play("right", RIGHT).problems, []);

    let wrong = RIGHT.replace("q1: started 1 of 1", "q1: started 2 of 2\nstop w0");
    let played = play("wrong", &wrong);
    assert_eq!(played.text, RIGHT);
    let shown: Vec<String> = played.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        ["wrong:12: expected (-) and given (+) differ\n  \
          - q1: started 2 of 2\n  - stop w0\n  + q1: started 1 of 1"]
    );

    let silent = RIGHT.replace("q1: started 1 of 1\n", "");
    assert_eq!(play("silent", &silent).text, RIGHT);
}

#[test]
fn parse_errors_name_the_line_and_the_token() {
    for (wrong, problem) in [
        ("start w0\n", "x:3: a case without a line `----`: `start w0`"),
        ("----\nq1: x\n", "x:3: no commands above: `----`"),
        ("begin\n----\n", "x:3: no such command: `begin`"),
        ("start now\n----\n", "x:3: `start` knows no such word: `now`"),
        ("start; stop soon\n----\n", "x:3: no duration: `soon`"),
        ("config runners=many\n----\n", "x:3: no value for `runners`: `many`"),
        ("config runner=1\n----\n", "x:3: `config` knows no such word: `runner=1`"),
        ("began a0\n----\n", "x:3: no such attempt was started: `a0`"),
        ("submit 1\n----\n", "x:3: `train` or `eval` is missing after: `submit`"),
        ("submit 1 test\n----\n", "x:3: neither `train` nor `eval`: `test`"),
        ("ready runner\n----\n", "x:3: no name such as `w0`: `runner`"),
        ("abort 1 \"why\n----\n", "x:3: a quote without its end: `why`"),
        ("after 2s; at 1s\n----\n", "x:3: that is in the past: `1s`"),
        ("ready w0 as q1\n----\n", "x:3: not a request, so it has no name: `ready`"),
    ] {
        let played = play("x", &format!("Something is wrong.\n\n{wrong}"));
        let shown: Vec<String> = played.problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [problem]);
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

fn files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder of the scenarios is readable")
        .map(|entry| entry.expect("an entry of a folder is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .filter(|path| !path.ends_with(INDEX))
        .collect();
    files.sort();
    files
}
