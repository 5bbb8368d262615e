//! Known violations, which may only become fewer: `debt.txt` beside this file.
//!
//! A check compares its findings with the lines of its kind. A line with a number that is too high
//! is a violation too. `TIDY_UPDATE=1 cargo test -p xtask --test tidy` writes the list; the diff
//! shows whether it became shorter.

use std::collections::BTreeMap;

use crate::tree::Tree;
use crate::{language, modules, names, sizes};

pub(crate) const PATH: &str = "xtask/tests/tidy/debt.txt";

/// Maximum number of findings in a message.
const SHOWN_MAX: usize = 20;

const HEAD: &str = "\
# Known violations, which may only become fewer (debt.rs beside this file).
# cycle CRATE MODULES: top-level modules that depend on each other.
# lines CRATE COUNT: a crate above the limit, and the lines that it may have.
# names CRATE COUNT: vague names of types, files, constants and functions.
# people FOLDER COUNT: lines with a person as the subject instead of a component.
# riddles FOLDER COUNT: doc comments that begin with a question word.
# types all COUNT: type names that are defined in more than one file.
";

/// Findings by crate or folder.
pub(crate) type Findings = BTreeMap<String, Vec<String>>;

/// Returns the values of the lines of one kind by their keys.
pub(crate) fn listed<'a>(tree: &'a Tree, kind: &str) -> Vec<(&'a str, &'a str)> {
    let text = tree.get(PATH).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    lines.filter_map(|line| line.split_once(' ')).collect()
}

/// Returns the numbers of one kind by their keys.
pub(crate) fn numbers<'a>(tree: &'a Tree, kind: &str) -> BTreeMap<&'a str, usize> {
    let number = |(key, value): (&'a str, &str)| {
        (key, value.parse().unwrap_or_else(|_| panic!("{PATH}: no number: {kind} {key} {value}")))
    };
    listed(tree, kind).into_iter().map(number).collect()
}

/// Compares findings with the numbers of a kind.
pub(crate) fn compare(tree: &Tree, kind: &str, advice: &str, found: &Findings) -> Vec<String> {
    let listed = numbers(tree, kind);
    let more = found.iter().filter_map(|(folder, findings)| {
        let (count, max) = (findings.len(), listed.get(folder.as_str()).copied().unwrap_or(0));
        let shown = findings[..count.min(SHOWN_MAX)].join(", ");
        (count > max)
            .then(|| format!("{folder}: {count} {kind}, more than {max}; {advice}: {shown}"))
    });
    let fewer = listed.iter().filter_map(|(folder, max)| {
        let count = found.get(*folder).map_or(0, Vec::len);
        (count < *max).then(|| format!("{PATH}: only {count} are left: {kind} {folder} {max}"))
    });
    more.chain(fewer).collect()
}

/// Returns a list that matches the tree.
pub(crate) fn render(tree: &Tree) -> String {
    let mut lines: Vec<String> = Vec::new();
    let cycles = modules::cycles(tree).into_iter();
    lines.extend(cycles.map(|(folder, cycle)| format!("cycle {folder} {cycle}")));
    let large = sizes::large_crates(tree).into_iter();
    lines.extend(large.map(|(folder, count)| format!("lines {folder} {count}")));
    for (kind, found) in [
        ("names", names::vague(tree)),
        ("people", language::people(tree)),
        ("riddles", language::riddles(tree)),
    ] {
        let counts = found.iter().map(|(folder, it)| format!("{kind} {folder} {}", it.len()));
        lines.extend(counts);
    }
    lines.push(format!("types all {}", names::types_with_several_files(tree).len()));
    format!("{HEAD}{}\n", lines.join("\n"))
}
