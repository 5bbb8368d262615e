//! Rules of the repository that no compiler checks, over the text of its files.
//!
//! Every check is a function from a [`Tree`] to its violations. The second test plants violations
//! of every kind, so that every check is known to fail.

mod arrows;
mod commands;
mod debt;
mod firewall;
mod language;
mod modules;
mod names;
mod plants;
mod prose;
mod sizes;
mod source;
mod tree;

use std::path::Path;

use plants::Plant;
use tree::Tree;

/// Returns one message per violation, beginning with the file.
type Check = fn(&Tree) -> Vec<String>;

const CHECKS: &[(&str, Check)] = &[
    ("arrows between crates", arrows::between_crates),
    ("closed dependencies", arrows::closed_dependencies),
    ("cycles between modules", modules::no_cycles),
    ("layers of modules", modules::layers),
    ("firewall", firewall::forbidden_words),
    ("width of lines", sizes::width_of_lines),
    ("length of files", sizes::length_of_files),
    ("size of crates", sizes::size_of_crates),
    ("heads of files", sizes::heads_of_files),
    ("vague names", names::no_vague_names),
    ("types defined twice", names::types_are_defined_once),
    ("people as subjects", language::components_are_subjects),
    ("doc comments as questions", language::doc_comments_are_statements),
    ("banned words", prose::banned),
    ("open ends", prose::open_ends),
    ("machine paths", prose::machine_paths),
    ("continuous integration", commands::continuous_integration),
    ("readme", commands::readme),
];

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = Tree::read(&root);
    assert!(tree.get("Cargo.toml").is_some(), "no repository at {}", root.display());

    if std::env::var_os("TIDY_UPDATE").is_some() {
        std::fs::write(root.join(debt::PATH), debt::render(&tree)).expect("the list is writable");
        return;
    }
    let violations: Vec<String> = CHECKS.iter().flat_map(|(_, check)| check(&tree)).collect();
    assert!(violations.is_empty(), "{} violations:\n{}\n", violations.len(), violations.join("\n"));
}

#[test]
fn every_check_finds_its_planted_violations() {
    let plants = plants::all();
    for (name, _) in CHECKS {
        let violates = |plant: &Plant| plant.check == *name && !plant.found.is_empty();
        assert!(plants.iter().any(violates), "nothing is planted for `{name}`");
    }
    for plant in &plants {
        let (name, check) =
            CHECKS.iter().find(|(name, _)| *name == plant.check).expect("a plant names its check");
        let found = check(&plant.tree);
        let agrees = found.len() == plant.found.len()
            && found.iter().zip(plant.found).all(|(f, planted)| f.starts_with(planted));
        assert!(agrees, "`{name}`\nfound: {found:#?}\nplanted: {:#?}", plant.found);
    }
}
