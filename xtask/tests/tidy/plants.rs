//! Small made-up repositories, with and without violations, and what each check finds in them.

use crate::tree::Tree;

pub(crate) struct Plant {
    /// The name of the check in `CHECKS`.
    pub(crate) check: &'static str,
    pub(crate) tree: Tree,
    /// How each message begins, in order.
    pub(crate) found: &'static [&'static str],
}

pub(crate) fn all() -> Vec<Plant> {
    [arrows(), closed(), firewall(), sizes(), words(), commands()].into_iter().flatten().collect()
}

fn plant(check: &'static str, files: &[(&str, &str)], found: &'static [&'static str]) -> Plant {
    Plant { check, tree: Tree::of(files), found }
}

fn arrows() -> Vec<Plant> {
    vec![
        plant(
            "arrows between crates",
            &[
                ("crates/core/Cargo.toml", "[dependencies]\nrollway-sim.workspace = true\n"),
                ("crates/cli/Cargo.toml", "[dependencies]\nrollway = { path = \"../engine\" }\n"),
                ("crates/engine/Cargo.toml", "[dependencies]\nx = { package = \"rollway-cli\" }\n"),
                ("crates/tiny/Cargo.toml", "[dependencies.rollway-core]\npath = \"../core\"\n"),
                ("xtask/Cargo.toml", "[build-dependencies]\nrollway-core.workspace = true\n"),
            ],
            &[
                "crates/core/Cargo.toml:2: an arrow from crates/core to rollway-sim",
                "crates/engine/Cargo.toml:2: an arrow from crates/engine to rollway-cli",
                "crates/tiny/Cargo.toml:1: an arrow from crates/tiny to rollway-core",
                "xtask/Cargo.toml:2: an arrow from xtask to rollway-core",
            ],
        ),
        plant(
            "arrows between crates",
            &[("crates/util/Cargo.toml", "[package]\nname = \"rollway-util\"\n")],
            &["crates/util/Cargo.toml: a crate that nobody declared"],
        ),
        plant(
            "arrows between crates",
            &[
                (
                    "Cargo.toml",
                    "[workspace.dependencies]\nrollway-core = { path = \"crates/core\" }\n",
                ),
                ("crates/core/Cargo.toml", "[dev-dependencies]\nrollway-sim = \"1\"\n"),
                (
                    "crates/sim/Cargo.toml",
                    "[dependencies]\nrollway-core.workspace = true\ntoml = \"1\"\n",
                ),
            ],
            &[],
        ),
    ]
}

fn closed() -> Vec<Plant> {
    vec![plant(
        "closed dependencies",
        &[
            ("crates/core/Cargo.toml", "[dependencies]\nsmallvec = \"1\"\n"),
            ("crates/sim/Cargo.toml", "[dependencies]\nsmallvec = \"1\"\n"),
        ],
        &["crates/core/Cargo.toml:2: smallvec is not in the closed list"],
    )]
}

fn firewall() -> Vec<Plant> {
    vec![
        plant(
            "firewall",
            &[(
                "crates/core/src/deep/clock.rs",
                "//! std::fs in prose.\n\
                 use std::time::{Duration, Instant};\n\
                 use std::{fs, thread};\n\
                 fn f() { fs::read(thread::current()); }\n\
                 let a: HashMap<u8, u8>; // tokio\n\
                 #[derive(serde::Serialize)]\n\
                 /* rand:: */ let b = rand::random();\n",
            )],
            &[
                "crates/core/src/deep/clock.rs:2: `Instant`",
                "crates/core/src/deep/clock.rs:4: `thread::`",
                "crates/core/src/deep/clock.rs:4: `fs::`",
                "crates/core/src/deep/clock.rs:5: `HashMap`",
                "crates/core/src/deep/clock.rs:6: `serde`",
                "crates/core/src/deep/clock.rs:7: `rand::`",
            ],
        ),
        plant(
            "firewall",
            &[
                (
                    "crates/sim/src/main.rs",
                    "use std::time::Instant;\nuse std::thread;\nuse std::env;\n",
                ),
                ("crates/sim/src/world.rs", "use tokio_util::X;\nlet now = SystemTime::now();\n"),
                ("crates/sim/tests/a.rs", "use std::thread;\n"),
                ("crates/core/examples/b.rs", "use std::env;\n"),
            ],
            &["crates/sim/src/world.rs:1: `tokio`", "crates/sim/src/world.rs:2: `SystemTime`"],
        ),
    ]
}

fn sizes() -> Vec<Plant> {
    let wide = &"x".repeat(101);
    let long = &"x\n".repeat(701);
    vec![
        plant(
            "width of lines",
            &[("a.md", wide), ("b.rs", wide), ("c.py", "# short\n"), ("d.py", wide)],
            &["b.rs:1: 101 columns", "d.py:1: 101 columns"],
        ),
        plant(
            "length of files",
            &[("a.md", long), ("b.rs", long), ("c.rs", "//! Short.\n"), ("d.js", long)],
            &["b.rs: 701 lines", "d.js: 701 lines"],
        ),
        plant(
            "heads of files",
            &[
                ("crates/cli/src/a.rs", "//! Owns a.\n"),
                ("crates/cli/src/b/c.rs", "use std::fmt;\n"),
                ("crates/cli/tests/d.rs", "use std::fmt;\n"),
                ("xtask/src/main.rs", "fn main() {}\n"),
            ],
            &["crates/cli/src/b/c.rs:1: no `//!` head", "xtask/src/main.rs:1: no `//!` head"],
        ),
    ]
}

fn words() -> Vec<Plant> {
    vec![
        plant(
            "banned words",
            &[
                ("a.rs", concat!("\nto", "do!()")),
                ("b.rs", concat!("unimple", "mented!()")),
                ("c.rs", concat!("let x = db", "g!(y);")),
                ("d.rs", concat!("#[ign", "ore = \"slow\"]")),
                ("e.rs", concat!("#[should_", "panic]")),
                ("f.py", concat!("break", "point()")),
                ("g.py", concat!("@pytest.mark.", "skip(reason='slow')")),
                ("h.py", concat!("@pytest.mark.", "xfail")),
                ("i.md", concat!("never `db", "g!()`")),
            ],
            &[
                "a.rs:2: ", "b.rs:1: ", "c.rs:1: ", "d.rs:1: ", "e.rs:1: ", "f.py:1: ", "g.py:1: ",
                "h.py:1: ",
            ],
        ),
        plant(
            "open ends",
            &[
                ("a.rs", concat!("// TO", "DO later\n")),
                ("b.py", concat!("# TO", "DO: drop this\n# one day\n")),
                (
                    "c.rs",
                    concat!(
                        "// TO",
                        "DO: drop this path once all workers\n// speak 2 (unblocked by 1.0)\n"
                    ),
                ),
                ("d.md", concat!("TO", "DO\n")),
            ],
            &["a.rs:1: write", "b.py:1: write"],
        ),
        plant(
            "machine paths",
            &[
                ("a.md", concat!("\nsee `/ho", "me/me/notes`\n")),
                ("b.rs", concat!("let path = \"/wo", "rk/x\";")),
                ("c.yaml", concat!("dir: /ro", "ot/x")),
                ("d.toml", concat!("dir = '/Us", "ers/me'")),
                ("e.md", concat!("docs/wo", "rk/x, ~/wo", "rk/x and ../ho", "me/x")),
            ],
            &["a.md:2: a path", "b.rs:1: a path", "c.yaml:1: a path", "d.toml:1: a path"],
        ),
    ]
}

fn commands() -> Vec<Plant> {
    vec![
        plant("continuous integration", &[], &[".ci/run: missing"]),
        plant(
            "continuous integration",
            &[(".ci/run", "#!/bin/sh\ncargo xtask test || true\n")],
            &[".ci/run: calls"],
        ),
        plant(
            "continuous integration",
            &[(".ci/run", "cd x && make\nexec cargo xtask test\n")],
            &[".ci/run: calls"],
        ),
        plant(
            "continuous integration",
            &[(".ci/run", "exec cargo xtask test fmt\n")],
            &[".ci/run: calls"],
        ),
        plant(
            "continuous integration",
            &[(
                ".ci/run",
                "#!/usr/bin/env bash\n\
                 set -euo pipefail\n\
                 cd \"$(dirname \"$0\")/..\"\n\
                 exec cargo xtask test\n",
            )],
            &[],
        ),
        plant("readme", &[], &["README.md: missing"]),
        plant(
            "readme",
            &[("README.md", "Run `cargo xtask test`.\n")],
            &[
                "README.md: no line `cargo run --release -- run examples/arithmetic.yaml`",
                "README.md: no line `cargo xtask test`",
            ],
        ),
        plant(
            "readme",
            &[(
                "README.md",
                "$ cargo run --release -- run examples/arithmetic.yaml\n\
                 cargo xtask test  # all of it\n",
            )],
            &[],
        ),
    ]
}
