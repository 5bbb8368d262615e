//! How wide a line and how long a file may be, and what a file begins with.

use crate::tree::Tree;

const COLUMNS_MAX: usize = 100;

/// Beyond this a file does not pass; 500 lines is what we want.
const LINES_MAX: usize = 700;

/// Longer files that stay whole: the path, how many lines it may have, and why.
const EXCEPTIONS: &[(&str, usize, &str)] = &[];

pub(crate) fn width_of_lines(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs", "py"]) {
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                let path = &file.path;
                found.push(format!("{path}:{number}: {columns} columns, more than {COLUMNS_MAX}"));
            }
        }
    }
    found
}

pub(crate) fn length_of_files(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs", "py", "js"]) {
        let exception = EXCEPTIONS.iter().find(|(path, ..)| *path == file.path);
        let max = exception.map_or(LINES_MAX, |&(_, max, _)| max);
        let lines = file.text.lines().count();
        if lines > max {
            let path = &file.path;
            found.push(format!("{path}: {lines} lines, more than {max}; part it by what it owns"));
        }
    }
    found
}

pub(crate) fn heads_of_files(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let path: Vec<&str> = file.path.split('/').collect();
        let is_source = matches!(path[..], ["crates", _, "src", ..] | ["xtask", "src", ..]);
        if is_source && !file.text.starts_with("//!") {
            let path = &file.path;
            found.push(format!("{path}:1: no `//!` head that says what the file owns"));
        }
    }
    found
}
