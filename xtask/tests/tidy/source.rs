//! Text of Rust source, as far as the checks need it.

/// Returns the source without line comments. The repository has no block comments.
pub(crate) fn without_comments(source: &str) -> String {
    source.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// Returns the part of a line before a comment: before `//` outside of a string.
fn code(line: &str) -> &str {
    let is_outside = |at: usize| {
        let before = line[..at].replace("\\\"", "").replace("'\"'", "");
        before.matches('"').count().is_multiple_of(2)
    };
    let comment = line.match_indices("//").find(|(at, _)| is_outside(*at));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Returns whether a line contains a whole word. A needle that ends with `*` is a prefix.
pub(crate) fn has_word(line: &str, needle: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (needle, is_prefix) = match needle.strip_suffix('*') {
        Some(needle) => (needle, true),
        None => (needle, false),
    };
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + needle.len()..].chars().next();
        let ends = !needle.ends_with(is_word) || !after.is_some_and(is_word);
        !before.is_some_and(is_word) && (is_prefix || ends)
    })
}

#[test]
fn comments_are_removed_and_strings_are_kept() {
    for (source, expected) in [
        ("a // b\nc", "a \nc"),
        (r#"x("//", y) // z"#, r#"x("//", y) "#),
        (r#"x("\"//") // z"#, r#"x("\"//") "#),
        ("('\"', b) // \"", "('\"', b) "),
        ("&'a str // \"", "&'a str "),
    ] {
        assert_eq!(without_comments(source), expected);
    }
}

#[test]
fn words_have_edges() {
    for (line, needle, found) in [
        ("use std::time::Instant;", "Instant", true),
        ("Instants", "Instant", false),
        ("MyInstant, Instant", "Instant", true),
        ("std::fs::read", "fs::", true),
        ("self_fs::read", "fs::", false),
        ("serde_json::Value", "serde*", true),
        ("deserde", "serde*", false),
    ] {
        assert_eq!(has_word(line, needle), found, "{needle} in {line}");
    }
}
