//! Reading Rust source as far as the checks need it: comments apart from code, words apart from
//! longer words.

/// Returns the source with every comment blanked and every line kept in its place.
pub(crate) fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, is_comment) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true)
        } else if let Some(length) = literal(rest, code.chars().next_back()) {
            (length, false)
        } else {
            (first.len_utf8(), false)
        };
        let (piece, next) = rest.split_at(length);
        if is_comment {
            code.extend(piece.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(piece);
        }
        rest = next;
    }
    code
}

/// Tells whether a line contains a word that is no part of a longer one. A needle that ends with
/// `*` stands for every word that begins so.
pub(crate) fn has_word(line: &str, needle: &str) -> bool {
    let (needle, open) = match needle.strip_suffix('*') {
        Some(needle) => (needle, true),
        None => (needle, false),
    };
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + needle.len()..].chars().next();
        let whole = !needle.ends_with(is_word) || !after.is_some_and(is_word);
        !before.is_some_and(is_word) && (open || whole)
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the block comment, which may hold others, that the text begins with.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Returns the length of the string or character that the text begins with, if it does.
fn literal(text: &str, before: Option<char>) -> Option<usize> {
    if let Some(raw) = text.strip_prefix('r').filter(|_| !before.is_some_and(is_word_but_b)) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = body.find(&close).map_or(body.len(), |at| at + close.len());
        return Some(text.len() - body.len() + end);
    }
    if let Some(body) = text.strip_prefix('"') {
        return Some(1 + escaped(body, '"').unwrap_or(body.len()));
    }
    let body = text.strip_prefix('\'')?;
    let first = body.chars().next()?;
    // A quote that no other follows at once begins a lifetime.
    if first == '\\' || body[first.len_utf8()..].starts_with('\'') {
        return escaped(body, '\'').map(|length| 1 + length);
    }
    None
}

/// A raw string may follow the `b` of a byte string, but no other letter: there `r` ends a name.
fn is_word_but_b(c: char) -> bool {
    is_word(c) && c != 'b'
}

/// Returns the length up to and with the closing quote.
fn escaped(body: &str, quote: char) -> Option<usize> {
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

#[test]
fn comments_are_blanked_and_strings_are_kept() {
    for (source, code) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */\n */ d", "a             \n    d"),
        (r#"x("//", y) // z"#, r#"x("//", y)     "#),
        (r#"x("\"//") /* z */"#, r#"x("\"//")        "#),
        ("r#\"a\" // b\"# // c", "r#\"a\" // b\"#     "),
        ("br\"//\" // c", "br\"//\"     "),
        ("('\"', b) // \"", "('\"', b)     "),
        (r"('\'', '/') // c", r"('\'', '/')     "),
        ("&'a str // \"", "&'a str     "),
        ("for\"//\"", "for\"//\""),
    ] {
        assert_eq!(without_comments(source), code);
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
