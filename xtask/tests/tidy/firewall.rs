//! What the source of the core and of the simulator must not mention outside comments, so that
//! every run of theirs can be replayed.
//!
//! The lints of `crates/core/clippy.toml` ban single types and functions; this check bans whole
//! modules, however they are imported.

use crate::source::{has_word, without_comments};
use crate::tree::Tree;

struct Zone {
    folder: &'static str,
    rules: &'static [&'static Rule],
}

/// Words that are forbidden for one reason.
struct Rule {
    words: &'static [&'static str],
    why: &'static str,
}

const CLOCK: Rule =
    Rule { words: &["Instant", "SystemTime"], why: "time comes in from outside, as `now`" };
const THREADS: Rule =
    Rule { words: &["std::thread", "thread::"], why: "there is one owner and no thread" };
const OPERATING_SYSTEM: Rule = Rule {
    words: &[
        "std::fs",
        "fs::",
        "std::net",
        "net::",
        "std::env",
        "env::",
        "std::io",
        "std::process",
    ],
    why: "the core decides and never acts",
};
const ORDER: Rule = Rule {
    words: &["HashMap", "HashSet", "RandomState"],
    why: "the order differs from run to run; BTreeMap and BTreeSet keep it",
};
const RANDOMNESS: Rule =
    Rule { words: &["rand::", "getrandom*"], why: "chance comes from the seed alone" };
const RUNTIME: Rule = Rule { words: &["tokio*"], why: "nothing here waits" };
const SERIALIZATION: Rule =
    Rule { words: &["serde*"], why: "every boundary has its own format and its own conversion" };

const ZONES: &[Zone] = &[
    Zone {
        folder: "crates/core/src/",
        rules: &[
            &CLOCK,
            &THREADS,
            &OPERATING_SYSTEM,
            &ORDER,
            &RANDOMNESS,
            &RUNTIME,
            &SERIALIZATION,
        ],
    },
    Zone { folder: "crates/sim/src/", rules: &[&CLOCK, &THREADS, &ORDER, &RANDOMNESS, &RUNTIME] },
];

/// Files that may use a word all the same, each with the reason.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    ("crates/sim/src/main.rs", CLOCK.words, "it reports how long the seeds took"),
    ("crates/sim/src/main.rs", THREADS.words, "seeds are independent and use every processor"),
    ("crates/sim/src/bench.rs", CLOCK.words, "it measures the core in real time"),
];

pub(crate) fn forbidden_words(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for zone in ZONES {
        for file in tree.with_extension(&["rs"]) {
            if !file.path.starts_with(zone.folder) {
                continue;
            }
            for (number, line) in (1..).zip(without_comments(&file.text).lines()) {
                for rule in zone.rules {
                    let hit = |word: &&&str| has_word(line, word) && !excepted(&file.path, word);
                    if let Some(word) = rule.words.iter().find(hit) {
                        let word = word.trim_end_matches('*');
                        found.push(format!("{}:{number}: `{word}`: {}", file.path, rule.why));
                    }
                }
            }
        }
    }
    found
}

fn excepted(path: &str, word: &str) -> bool {
    EXCEPTIONS.iter().any(|(file, words, _)| *file == path && words.contains(&word))
}
