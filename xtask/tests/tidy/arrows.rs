//! Allowed dependencies between our crates, and crates with a closed list of outside dependencies.

use crate::tree::Tree;

/// Crates of ours that each crate may depend on; `*`: any.
const ARROWS: &str = "
    base:
    core:
    sim: core
    experience: core
    net: base
    protocol: base core experience net
    conformance: base core protocol
    mock-server: base net
    model-api: base core experience
    config: base core
    tasksets: base core config
    sync: base core config net
    ledger: base core
    data: base core experience ledger protocol
    recording: experience model-api
    gateway: base core experience model-api net recording
    tiny-model:
    tiny: base core config experience data net sync tiny-model
    engine: base config core data experience gateway ledger protocol
    telemetry: base config core engine experience gateway net
    trace: base config core engine gateway telemetry
    dashboard: base config engine net telemetry
    rollway: base config core dashboard data engine experience gateway mock-server net \
             protocol recording sync tasksets telemetry tiny tiny-model trace
    testkit: *
    fuzz: *
    py: *
    cli: *
    xtask:
";

/// Crates whose list of outside dependencies is closed: a new name here is a decision.
const CLOSED: &[(&str, &[&str])] = &[("crates/core", &[])];

pub(crate) fn between_crates(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for package in &tree.packages {
        let folder = package.folder.as_str();
        let name = folder.strip_prefix("crates/").unwrap_or(folder);
        let rows = ARROWS.lines().filter_map(|line| line.trim().split_once(':'));
        let Some((_, allowed)) = rows.into_iter().find(|(row, _)| *row == name) else {
            found.push(format!(
                "{folder}/Cargo.toml: undeclared crate; give its reason in ARCHITECTURE.md and its \
                 arrows in tidy/arrows.rs"
            ));
            continue;
        };
        let allows = |name: &str| allowed.split(' ').any(|it| it == "*" || it == name);
        for dependency in package.dependencies.iter().filter(|name| is_ours(name)) {
            if !allows(dependency.strip_prefix("rollway-").unwrap_or(dependency)) {
                found.push(format!(
                    "{folder}/Cargo.toml: undeclared arrow to {dependency}; if it is needed, give \
                     the reason in ARCHITECTURE.md and add it in tidy/arrows.rs"
                ));
            }
        }
    }
    found
}

pub(crate) fn closed_dependencies(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (folder, allowed) in CLOSED {
        for package in tree.packages.iter().filter(|package| package.folder == *folder) {
            for name in &package.dependencies {
                if !is_ours(name) && !allowed.contains(&name.as_str()) {
                    found.push(format!(
                        "{folder}/Cargo.toml: {name} is not in the closed list of dependencies"
                    ));
                }
            }
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    name == "rollway" || name == "xtask" || name.starts_with("rollway-")
}
