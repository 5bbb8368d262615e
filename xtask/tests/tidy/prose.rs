//! Banned words, open ends and paths of one machine.
//!
//! Assembled from parts here and in `plants.rs`, so that the checks do not find themselves.

use crate::source::has_word;
use crate::tree::Tree;

/// Extension, banned text, reason.
const BANNED: &[(&str, &str, &str)] = &[
    ("rs", concat!("to", "do!("), "finish it or leave it out"),
    ("rs", concat!("unimple", "mented!("), "finish it or leave it out"),
    ("rs", concat!("db", "g!("), "a debugging aid"),
    ("rs", concat!("#[ign", "ore"), "a test that does not run proves nothing"),
    ("rs", concat!("should_", "panic"), "it does not say where; assert what is refused"),
    ("py", concat!("break", "point("), "a debugging aid"),
    ("py", concat!("pytest.mark.", "skip("), "a test that does not run proves nothing"),
    ("py", concat!("pytest.mark.", "xfail"), "assert the wrong behaviour and say FIXME"),
];

/// Folders of a user's machine.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

const OPEN_END: &str = concat!("TO", "DO");

pub(crate) fn banned(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (extension, word, reason) in BANNED {
        for (path, number, _) in tree.lines(&[extension]).filter(|(.., line)| line.contains(word)) {
            found.push(format!("{path}:{number}: `{word}`: {reason}"));
        }
    }
    found
}

/// Finds open ends without the event that unblocks them.
pub(crate) fn open_ends(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.with_extension(&["rs", "py", "js", "toml", "yaml", "proto", "sh"]) {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if !has_word(line, OPEN_END) {
                continue;
            }
            // The sentence may continue for two lines.
            let sentence = lines[index..lines.len().min(index + 3)].join(" ");
            let names_what = sentence.contains(&format!("{OPEN_END}: "));
            if !names_what || !sentence.contains("(unblocked by ") {
                found.push(format!(
                    "{}:{}: write `{OPEN_END}: what (unblocked by which event)`",
                    file.path,
                    index + 1
                ));
            }
        }
    }
    found
}

pub(crate) fn machine_paths(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| begins_path(line, folder)) {
                found.push(format!("{}:{number}: a path of one machine: {folder}", file.path));
            }
        }
    }
    found
}

/// Returns whether a line contains a path that begins with the folder, not one through a folder of
/// that name.
fn begins_path(line: &str, folder: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~}*".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(continues))
}
