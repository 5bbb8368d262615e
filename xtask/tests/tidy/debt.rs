//! Known violations, which may only become fewer: `debt.txt` beside this file.
//!
//! A check compares what it finds with the lines of its kind. A line that is no longer true is a
//! violation too, so that the list stays honest. `TIDY_UPDATE=1 cargo test -p xtask --test tidy`
//! writes the list anew; the diff shows whether it became shorter.

use std::collections::BTreeMap;

use crate::tree::Tree;
use crate::{modules, names, sizes};

pub(crate) const PATH: &str = "xtask/tests/tidy/debt.txt";

const HEAD: &str = "\
# Known violations, which may only become fewer (debt.rs beside this file).
# cycle CRATE MODULES: top-level modules that depend on each other.
# lines CRATE COUNT: a crate above the limit, and the lines that it may have.
# names CRATE COUNT: names of types, files and constants with a word that says nothing.
# types all COUNT: type names that are defined in more than one file.
";

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

/// Returns a list that fits the tree.
pub(crate) fn render(tree: &Tree) -> String {
    let mut lines: Vec<String> = Vec::new();
    let cycles = modules::cycles(tree).into_iter();
    lines.extend(cycles.map(|(folder, cycle)| format!("cycle {folder} {cycle}")));
    let large = sizes::large_crates(tree).into_iter();
    lines.extend(large.map(|(folder, count)| format!("lines {folder} {count}")));
    let vague = names::vague(tree).into_iter();
    lines.extend(vague.map(|(folder, names)| format!("names {folder} {}", names.len())));
    lines.push(format!("types all {}", names::types_with_several_files(tree).len()));
    format!("{HEAD}{}\n", lines.join("\n"))
}
