//! Licences, sources and versions of all dependencies, by the rules of `deny.toml`. The same as
//! `cargo deny check licenses bans sources`, without a program that takes minutes to build.

use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Node, Package};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Platform whose dependencies are checked; those of others are not downloaded.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn metadata() -> Metadata {
    let options = ["--locked", "--filter-platform", PLATFORM].map(str::to_owned);
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).other_options(options);
    command.exec().expect("`cargo metadata` reads the workspace")
}

/// Returns the licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is readable");
    let (_, list) = text.split_once("\nallow = [").expect("deny.toml has a list of licences");
    let (list, _) = list.split_once(']').expect("the list ends");
    let entries = list.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once('"'));
    entries.map(|(name, _)| name.to_owned()).collect()
}

/// Tells whether a licence expression can be satisfied by allowed licences. `OR` binds weaker than
/// `AND`; an old spelling of `OR` is `/`.
fn is_satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().collect::<Vec<_>>().into_iter().peekable();
    let satisfied = any(&mut words, allowed);
    satisfied && words.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::vec::IntoIter<&'a str>>;

fn any(words: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let mut satisfied = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        satisfied |= all(words, allowed);
    }
    satisfied
}

fn all(words: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let mut satisfied = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        satisfied &= one(words, allowed);
    }
    satisfied
}

fn one(words: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let satisfied = any(words, allowed);
        return words.next() == Some(")") && satisfied;
    }
    // An exception only permits more.
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    allowed.iter().any(|name| name == word)
}

/// Returns the problems of a package from outside.
fn problems(package: &Package, allowed: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let name = format!("{} {}", package.name, package.version);
    match &package.license {
        Some(license) if is_satisfied(license, allowed) => {}
        Some(license) => found.push(format!("{name}: licence `{license}` is not allowed")),
        None => found.push(format!("{name}: no licence is given")),
    }
    let source = package.source.as_ref().map_or("no source", |source| source.repr.as_str());
    if source != REGISTRY {
        found.push(format!("{name}: from {source}, not from crates.io"));
    }
    found
}

#[test]
fn dependencies_follow_deny_toml() {
    let (metadata, allowed) = (metadata(), allowed());
    assert!(allowed.len() > 3, "{allowed:?}");
    let is_ours = |package: &&Package| metadata.workspace_members.contains(&package.id);
    let (ours, others): (Vec<_>, Vec<_>) = metadata.packages.iter().partition(is_ours);
    assert!(ours.len() > 10 && others.len() > 100, "{} of ours", ours.len());
    let mut found: Vec<String> =
        others.into_iter().flat_map(|package| problems(package, &allowed)).collect();
    for package in ours {
        let wild = package.dependencies.iter().filter(|it| it.path.is_none());
        let wild = wild.filter(|it| it.req.to_string() == "*");
        found.extend(wild.map(|it| format!("{}: {} has no version", package.name, it.name)));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Features of `serde_json` that give some keys of objects a meaning, in the whole program: JSON in
/// the text of such a key is parsed with a new limit of the depth.
#[test]
fn no_key_of_json_has_a_meaning() {
    let metadata = metadata();
    let resolve = metadata.resolve.as_ref().expect("`cargo metadata` resolves the dependencies");
    let is_json = |node: &&Node| metadata[&node.id].name.as_str() == "serde_json";
    let node = resolve.nodes.iter().find(is_json).expect("the workspace depends on serde_json");
    for feature in ["raw_value", "arbitrary_precision"] {
        let is_on = node.features.iter().any(|name| **name == *feature);
        assert!(!is_on, "`{feature}` of serde_json: `cargo tree -e features -i serde_json`");
    }
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT", "Apache-2.0", "ISC"].map(str::to_owned);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-3.0 OR MIT AND AGPL-3.0", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(is_satisfied(expression, &allowed), expected, "{expression}");
    }
}
