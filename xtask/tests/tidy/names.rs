//! Names of types, files and constants: vague words, and names defined twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::debt::{self, Findings};
use crate::tree::{File, Tree};

/// Words that a name must not contain.
const VAGUE: &[&str] = &[
    "said", "told", "asked", "known", "heard", "given", "taken", "place", "seat", "board", "book",
    "card", "way", "ticket", "glance", "pulse", "beat", "eyes", "hands", "lookout", "scene",
    "ahead", "eager", "usual", "farewell", "patience", "most", "words", "world",
];

/// Names that a function must not have: verbs of speech and metaphors, which no search finds.
const VAGUE_FUNCTIONS: &[&str] = &[
    "said", "told", "asked", "heard", "tell", "say", "ask", "hush", "poke", "mend", "heal", "tame",
    "survive", "survivor", "meddle", "gone", "well", "way", "think", "hunt", "evacuate", "unheard",
    "misread", "sought", "went", "lately", "ago", "known", "knows", "place", "greet", "vouch",
    "apart", "ears", "look", "take_in", "take_up", "line_up", "go_on",
];

/// Words with a meaning in one crate.
const MEANT: &[(&str, &str)] = &[("crates/sim", "world")];

/// Names of other projects.
const PROPER: &[&str] = &["TensorBoard"];

pub(crate) fn no_vague_names(tree: &Tree) -> Vec<String> {
    debt::compare(tree, "names", "name the thing instead", &vague(tree))
}

pub(crate) fn types_are_defined_once(tree: &Tree) -> Vec<String> {
    let found = types_with_several_files(tree);
    let max = debt::numbers(tree, "types").get("all").copied().unwrap_or(0);
    if found.len() <= max {
        return Vec::new();
    }
    let names: Vec<String> =
        found.iter().map(|(name, files)| format!("{name} ({})", files.len())).collect();
    let (count, names) = (found.len(), names.join(", "));
    vec![format!("{count} type names are defined in several files, more than {max}: {names}")]
}

/// Returns the vague names of each crate as `path: name`.
pub(crate) fn vague(tree: &Tree) -> Findings {
    let mut found = Findings::new();
    for file in tree.with_extension(&["rs"]) {
        let Some((folder, path)) = file.in_source() else { continue };
        let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        let defined = definitions(file, &["struct", "enum", "trait", "type", "const", "static"]);
        for name in [stem].into_iter().chain(defined) {
            if name_words(name).any(|word| is_vague(folder, &word)) {
                found.entry(folder.into()).or_default().push(format!("{path}: {name}"));
            }
        }
        for name in functions(file).filter(|name| VAGUE_FUNCTIONS.contains(name)) {
            found.entry(folder.into()).or_default().push(format!("{path}: fn {name}"));
        }
    }
    found
}

/// Returns the type names that are defined in more than one file, with the files.
pub(crate) fn types_with_several_files(tree: &Tree) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut types: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in tree.with_extension(&["rs"]).filter(|file| file.in_source().is_some()) {
        for name in definitions(file, &["struct", "enum", "trait"]) {
            types.entry(name).or_default().insert(&file.path);
        }
    }
    types.retain(|_, files| files.len() > 1);
    types
}

fn is_vague(folder: &str, word: &str) -> bool {
    VAGUE.contains(&word) && !MEANT.contains(&(folder, word))
}

/// Returns the names that a file defines with a keyword.
fn definitions<'a>(file: &'a File, keywords: &'a [&str]) -> impl Iterator<Item = &'a str> {
    file.lines().filter_map(|(_, line)| {
        let mut line = line.trim_start();
        if let Some(rest) = line.strip_prefix("pub") {
            line = match rest.strip_prefix('(') {
                Some(scope) => scope.split_once(')')?.1,
                None => rest,
            };
        }
        let (keyword, rest) = line.trim_start().split_once(' ')?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..end];
        let is_name = name.starts_with(|c: char| c.is_uppercase() || c == '_');
        (keywords.contains(&keyword) && is_name).then_some(name)
    })
}

/// Returns the names of the functions that a file defines.
fn functions(file: &File) -> impl Iterator<Item = &str> {
    file.lines().filter_map(|(_, line)| {
        let line = line.trim_start();
        let rest = match line.strip_prefix("fn ") {
            Some(rest) => rest,
            None => line.split_once(" fn ").filter(|_| !line.starts_with("//"))?.1,
        };
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// Returns the words of a name in `CamelCase`, `snake_case` or capitals, in lower case.
fn name_words(name: &str) -> impl Iterator<Item = String> {
    let name = PROPER.iter().fold(name.to_owned(), |name, proper| name.replace(proper, "_"));
    let mut split = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            split.push('_');
        }
        split.extend(c.to_lowercase());
        before = c;
    }
    split.split('_').map(str::to_owned).collect::<Vec<_>>().into_iter()
}

#[test]
fn names_are_split_into_words() {
    for (name, expected) in [
        ("RunCardFile", "run card file"),
        ("LAST_WORDS", "last words"),
        ("by_hand", "by hand"),
        ("HeartbeatTimeout", "heartbeat timeout"),
    ] {
        assert_eq!(name_words(name).collect::<Vec<_>>().join(" "), expected);
    }
}
