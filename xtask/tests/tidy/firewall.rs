//! Words that the source of the core and the simulator must not contain outside comments, so that
//! every run can be replayed.
//!
//! The lints of `crates/core/clippy.toml` ban single types and functions; this check bans whole
//! modules, however they are imported.

use crate::source::{has_word, without_comments};
use crate::tree::Tree;

const CORE: &[&str] = &["crates/core/src/"];
const CORE_AND_SIM: &[&str] = &["crates/core/src/", "crates/sim/src/"];

const CLOCK: &[&str] = &["Instant", "SystemTime"];
const THREADS: &[&str] = &["std::thread", "thread::"];
const OPERATING_SYSTEM: &[&str] =
    &["std::fs", "fs::", "std::net", "net::", "std::env", "env::", "std::io", "std::process"];

/// Folders, words and reason.
const RULES: &[(&[&str], &[&str], &str)] = &[
    (CORE_AND_SIM, CLOCK, "time is an input: `now`"),
    (CORE_AND_SIM, THREADS, "there is one owner and no thread"),
    (CORE, OPERATING_SYSTEM, "the core decides and never acts"),
    (
        CORE_AND_SIM,
        &["HashMap", "HashSet", "RandomState"],
        "the order differs from run to run; use BTreeMap and BTreeSet",
    ),
    (CORE_AND_SIM, &["rand::", "getrandom*"], "random numbers come from the seed only"),
    (CORE_AND_SIM, &["tokio*"], "nothing here waits"),
    (CORE, &["serde*"], "every boundary has its own format and conversion"),
];

/// Files that may use words all the same, with the reason.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    ("crates/sim/src/main.rs", CLOCK, "it reports the duration of the seeds"),
    ("crates/sim/src/main.rs", THREADS, "seeds are independent and use every processor"),
    ("crates/sim/src/bench.rs", CLOCK, "it measures the core in real time"),
];

pub(crate) fn forbidden_words(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let path = file.path.as_str();
        let is_excepted = |word: &str| {
            EXCEPTIONS.iter().any(|(file, words, _)| *file == path && words.contains(&word))
        };
        let applies = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
        let rules: Vec<_> = RULES.iter().filter(|(folders, ..)| applies(folders)).collect();
        if rules.is_empty() {
            continue;
        }
        for (number, line) in (1..).zip(without_comments(&file.text).lines()) {
            for (_, words, reason) in &rules {
                let hit = |word: &&&str| has_word(line, word) && !is_excepted(word);
                if let Some(word) = words.iter().find(hit) {
                    let word = word.trim_end_matches('*');
                    found.push(format!("{path}:{number}: `{word}`: {reason}"));
                }
            }
        }
    }
    found
}
