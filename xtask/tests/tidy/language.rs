//! Plain language: a component is the subject of a sentence, and a doc comment begins with a noun
//! or a verb.

use crate::debt::{self, Findings};
use crate::tree::Tree;

/// First words of doc comments that describe an item by a question.
const QUESTIONS: &[&str] =
    &["What", "Which", "Who", "Whose", "Whether", "Why", "Where", "How", "When"];

const DOC_COMMENTS: &[&str] = &["///", "//!", "#:", "\"\"\""];

pub(crate) fn components_are_subjects(tree: &Tree) -> Vec<String> {
    debt::compare(tree, "people", "name the component", &people(tree))
}

pub(crate) fn doc_comments_are_statements(tree: &Tree) -> Vec<String> {
    debt::compare(tree, "riddles", "begin with a noun or a verb", &riddles(tree))
}

pub(crate) fn people(tree: &Tree) -> Findings {
    let extensions = ["rs", "py", "pyi", "md", "js", "html", "proto", "yaml", "toml"];
    lines(tree, &extensions, |line| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_person)
    })
}

pub(crate) fn riddles(tree: &Tree) -> Findings {
    lines(tree, &["rs", "py", "pyi", "js", "proto"], |line| {
        let line = line.trim_start();
        let text = DOC_COMMENTS.iter().find_map(|marker| line.strip_prefix(marker));
        let first = text.unwrap_or_default().split_whitespace().next().unwrap_or_default();
        let first = first.trim_end_matches(|c: char| !c.is_alphanumeric());
        QUESTIONS.contains(&first) && !line.contains('?')
    })
}

/// Returns whether a word is a pronoun for unnamed people.
fn is_person(word: &str) -> bool {
    let word = word.to_lowercase();
    let rest = ["some", "any", "every", "no"].iter().find_map(|start| word.strip_prefix(start));
    let relative = word.strip_prefix("who").and_then(|rest| rest.strip_suffix("ever"));
    matches!(rest, Some("body" | "one")) || matches!(relative, Some("" | "m" | "so"))
}

/// Returns the matching lines by crate or top-level folder.
fn lines(tree: &Tree, extensions: &[&str], matches: impl Fn(&str) -> bool) -> Findings {
    let mut found = Findings::new();
    for (path, number, _) in tree.lines(extensions).filter(|(.., line)| matches(line)) {
        let depth = usize::from(path.starts_with("crates/"));
        let folder = path.match_indices('/').nth(depth).map_or(path, |(end, _)| &path[..end]);
        found.entry(folder.to_owned()).or_default().push(format!("{path}:{number}"));
    }
    found
}
