//! Width of lines, length of files and of crates, and the heads of files.

use std::collections::BTreeMap;

use crate::debt;
use crate::tree::Tree;

const COLUMNS_MAX: usize = 100;

/// Maximum number of lines of a file; the goal is 500.
const LINES_MAX: usize = 700;

/// Maximum number of lines in the `src` of a crate.
const CRATE_LINES_MAX: usize = 12_000;

pub(crate) fn width_of_lines(tree: &Tree) -> Vec<String> {
    let lines =
        tree.lines(&["rs", "py"]).map(|(path, number, line)| (path, number, line.chars().count()));
    let wide = lines.filter(|(.., columns)| *columns > COLUMNS_MAX);
    wide.map(|(path, number, columns)| {
        format!("{path}:{number}: {columns} columns, more than {COLUMNS_MAX}")
    })
    .collect()
}

pub(crate) fn length_of_files(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs", "py", "js"]) {
        let (path, lines) = (&file.path, file.text.lines().count());
        if lines > LINES_MAX {
            found.push(format!("{path}: {lines} lines, more than {LINES_MAX}; split it"));
        }
    }
    found
}

pub(crate) fn size_of_crates(tree: &Tree) -> Vec<String> {
    let (found, listed) = (large_crates(tree), debt::numbers(tree, "lines"));
    let mut violations = Vec::new();
    for (folder, lines) in &found {
        let max = listed.get(folder.as_str()).copied().unwrap_or(CRATE_LINES_MAX);
        if *lines > max {
            violations.push(format!("{folder}/src: {lines} lines, more than {max}; split it"));
        }
    }
    for (folder, max) in listed.iter().filter(|(folder, _)| !found.contains_key(**folder)) {
        let path = debt::PATH;
        violations
            .push(format!("{path}: remove the line, the limit is kept: lines {folder} {max}"));
    }
    violations
}

/// Returns the crates above the limit with their lines.
pub(crate) fn large_crates(tree: &Tree) -> BTreeMap<String, usize> {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for file in tree.with_extension(&["rs"]) {
        if let Some((folder, _)) = file.in_source() {
            *lines.entry(folder.into()).or_default() += file.text.lines().count();
        }
    }
    lines.retain(|_, count| *count > CRATE_LINES_MAX);
    lines
}

pub(crate) fn heads_of_files(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        if file.in_source().is_some() && !file.text.starts_with("//!") {
            let path = &file.path;
            found.push(format!("{path}:1: no `//!` head"));
        }
    }
    found
}
