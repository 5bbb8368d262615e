//! Allowed dependencies between our crates, and crates with a closed list of outside dependencies.

use crate::tree::Tree;

/// One crate of the workspace and the crates of ours that it may depend on.
struct Arrows {
    folder: &'static str,
    to: To,
}

enum To {
    Only(&'static [&'static str]),
    Anything,
}

const ARROWS: &[Arrows] = &[
    only("crates/base", &[]),
    only("crates/core", &[]),
    only("crates/sim", &["rollway-core"]),
    only("crates/experience", &["rollway-core"]),
    only("crates/protocol", &["rollway-base", "rollway-core", "rollway-experience"]),
    only("crates/conformance", &["rollway-base", "rollway-core", "rollway-protocol"]),
    only("crates/mock-server", &["rollway-base"]),
    only("crates/model-api", &["rollway-base", "rollway-core", "rollway-experience"]),
    only("crates/config", &["rollway-base", "rollway-core"]),
    only("crates/tasksets", &["rollway-base", "rollway-core", "rollway-config"]),
    only("crates/sync", &["rollway-base", "rollway-core", "rollway-config"]),
    only("crates/ledger", &["rollway-base", "rollway-core"]),
    only(
        "crates/data",
        &[
            "rollway-base",
            "rollway-core",
            "rollway-experience",
            "rollway-ledger",
            "rollway-protocol",
        ],
    ),
    only(
        "crates/gateway",
        &["rollway-base", "rollway-core", "rollway-experience", "rollway-model-api"],
    ),
    only("crates/tiny-model", &[]),
    only(
        "crates/tiny",
        &[
            "rollway-base",
            "rollway-core",
            "rollway-config",
            "rollway-experience",
            "rollway-data",
            "rollway-sync",
            "rollway-tiny-model",
        ],
    ),
    only(
        "crates/engine",
        &[
            "rollway-base",
            "rollway-config",
            "rollway-core",
            "rollway-data",
            "rollway-experience",
            "rollway-gateway",
            "rollway-ledger",
            "rollway-protocol",
        ],
    ),
    only(
        "crates/telemetry",
        &[
            "rollway-base",
            "rollway-config",
            "rollway-core",
            "rollway-engine",
            "rollway-experience",
            "rollway-gateway",
        ],
    ),
    only(
        "crates/trace",
        &[
            "rollway-base",
            "rollway-config",
            "rollway-core",
            "rollway-engine",
            "rollway-gateway",
            "rollway-telemetry",
        ],
    ),
    only(
        "crates/dashboard",
        &["rollway-base", "rollway-config", "rollway-engine", "rollway-telemetry"],
    ),
    only(
        "crates/rollway",
        &[
            "rollway-base",
            "rollway-config",
            "rollway-core",
            "rollway-dashboard",
            "rollway-data",
            "rollway-engine",
            "rollway-experience",
            "rollway-gateway",
            "rollway-mock-server",
            "rollway-protocol",
            "rollway-sync",
            "rollway-tasksets",
            "rollway-telemetry",
            "rollway-tiny",
            "rollway-tiny-model",
            "rollway-trace",
        ],
    ),
    Arrows { folder: "crates/testkit", to: To::Anything },
    Arrows { folder: "crates/py", to: To::Anything },
    Arrows { folder: "crates/cli", to: To::Anything },
    only("xtask", &[]),
];

/// Crates whose list of outside dependencies is closed: a new name here is a decision.
const CLOSED: &[(&str, &[&str])] = &[("crates/core", &[])];

const fn only(folder: &'static str, to: &'static [&'static str]) -> Arrows {
    Arrows { folder, to: To::Only(to) }
}

pub(crate) fn between_crates(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for package in &tree.packages {
        let folder = package.folder.as_str();
        let Some(arrows) = ARROWS.iter().find(|arrows| arrows.folder == folder) else {
            found.push(format!(
                "{folder}/Cargo.toml: undeclared crate; give its reason in ARCHITECTURE.md and its \
                 arrows in tidy/arrows.rs"
            ));
            continue;
        };
        let To::Only(allowed) = arrows.to else {
            continue;
        };
        for name in &package.dependencies {
            if is_ours(name) && !allowed.contains(&name.as_str()) {
                found.push(format!(
                    "{folder}/Cargo.toml: undeclared arrow to {name}; if it must be, say why in \
                     ARCHITECTURE.md and add it in tidy/arrows.rs"
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
