//! Which crate may depend on which, and which crates take nothing from outside.

use crate::tree::{File, Tree};

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
    Arrows { folder: "crates/data", to: To::Anything },
    only(
        "crates/gateway",
        &["rollway-base", "rollway-core", "rollway-experience", "rollway-model-api"],
    ),
    Arrows { folder: "crates/tiny", to: To::Anything },
    only(
        "crates/engine",
        &[
            "rollway-base",
            "rollway-config",
            "rollway-core",
            "rollway-data",
            "rollway-experience",
            "rollway-gateway",
            "rollway-protocol",
            // Before the server and the trainer of the embedded model have left the engine.
            "rollway-sync",
            "rollway-tiny",
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
    for file in &tree.files {
        let Some(folder) = crate_folder(file) else {
            continue;
        };
        let Some(arrows) = ARROWS.iter().find(|arrows| arrows.folder == folder) else {
            found.push(format!(
                "{}: a crate that nobody declared; give its reason in ARCHITECTURE.md and its \
                 arrows in tidy/arrows.rs",
                file.path
            ));
            continue;
        };
        let To::Only(allowed) = arrows.to else {
            continue;
        };
        for (line, name) in dependencies(&file.text) {
            if is_ours(&name) && !allowed.contains(&name.as_str()) {
                found.push(format!(
                    "{}:{line}: an arrow from {folder} to {name} that nobody declared; if it must \
                     be, say why in ARCHITECTURE.md and add it in tidy/arrows.rs",
                    file.path
                ));
            }
        }
    }
    found
}

pub(crate) fn closed_dependencies(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (folder, allowed) in CLOSED {
        let manifest = |file: &&File| crate_folder(file) == Some(folder);
        for file in tree.files.iter().filter(manifest) {
            for (line, name) in dependencies(&file.text) {
                if !is_ours(&name) && !allowed.contains(&name.as_str()) {
                    found.push(format!(
                        "{}:{line}: {name} is not in the closed list of what {folder} may use",
                        file.path
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

/// Returns the folder of the crate whose manifest this is.
fn crate_folder(file: &File) -> Option<&str> {
    let folder = file.path.strip_suffix("/Cargo.toml")?;
    (folder == "xtask" || folder.starts_with("crates/")).then_some(folder)
}

/// Returns the packages that a manifest depends on, to build or to run, with their lines. What only
/// its tests need makes no arrow.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut table = Table::Other;
    let mut depth = 0;
    for (number, line) in (1..).zip(manifest.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if depth == 0 && line.starts_with('[') {
            table = Table::named(line.trim_matches(['[', ']']));
            if let Table::One(name) = &table {
                found.push((number, name.clone()));
            }
            continue;
        }
        let begins_entry = depth == 0;
        depth += line.matches(['[', '{']).count();
        depth -= line.matches([']', '}']).count().min(depth);
        match (&table, line.split_once('=')) {
            (Table::All, Some((key, value))) if begins_entry => {
                let key = key.trim().split('.').next().unwrap_or_default();
                let name = renamed(value).unwrap_or(key);
                found.push((number, name.trim_matches('"').into()));
            }
            (Table::One(_), Some((key, value))) if begins_entry && key.trim() == "package" => {
                let last = found.last_mut().expect("its table has put it there");
                last.1 = value.trim().trim_matches('"').into();
            }
            (Table::All | Table::One(_) | Table::Other, _) => {}
        }
    }
    found
}

/// What a table of a manifest tells about dependencies.
enum Table {
    /// Each entry is a dependency.
    All,
    /// The table is one dependency.
    One(String),
    Other,
}

impl Table {
    fn named(header: &str) -> Self {
        let mut keys = header.rsplit('.').map(|key| key.trim().trim_matches(['"', '\'']));
        let is_table = |key: &str| key == "dependencies" || key == "build-dependencies";
        match (keys.next(), keys.next()) {
            (Some(last), _) if is_table(last) => Self::All,
            (Some(name), Some(table)) if is_table(table) => Self::One(name.into()),
            _ => Self::Other,
        }
    }
}

/// Returns the package of an entry such as `{ package = "name", version = "1" }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, after) = value.split_once("package")?;
    after.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?.split('"').next()
}

#[test]
fn manifests_are_read() {
    let manifest = r#"
[package]
name = "x"
[dependencies]
a = "1"
b.workspace = true # c = "1"
d = { package = "real-d", version = "1", features = [
  "e=f",
] }
[dependencies.g]
version = "1"
package = "real-g"
[dev-dependencies]
h = "1"
[target.'cfg(unix)'.dependencies]
i = "1"
[build-dependencies]
"j" = "1"
"#;
    let names: Vec<_> = dependencies(manifest).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["a", "b", "real-d", "real-g", "i", "j"]);
}
