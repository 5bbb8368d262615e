//! Small planted repositories and the violations that each check finds in them.

use crate::debt;
use crate::tree::Tree;

pub(crate) struct Plant {
    /// Name of the check in `CHECKS`.
    pub(crate) check: &'static str,
    pub(crate) tree: Tree,
    /// Beginnings of the messages, in order.
    pub(crate) found: &'static [&'static str],
}

pub(crate) fn all() -> Vec<Plant> {
    let checks =
        [arrows(), modules(), firewall(), sizes(), names(), language(), prose(), commands()];
    checks.into_iter().flatten().collect()
}

fn plant(check: &'static str, files: &[(&str, &str)], found: &'static [&'static str]) -> Plant {
    Plant { check, tree: Tree::of(files), found }
}

fn packages(
    check: &'static str,
    packages: &[(&str, &[&str])],
    found: &'static [&'static str],
) -> Plant {
    Plant { check, tree: Tree::of_packages(packages), found }
}

fn arrows() -> Vec<Plant> {
    vec![
        packages(
            "arrows between crates",
            &[
                ("crates/cli", &["rollway"]),
                ("crates/core", &["rollway-sim"]),
                ("crates/sim", &["rollway-core", "serde"]),
                ("crates/util", &[]),
                ("xtask", &["rollway-core"]),
            ],
            &[
                "crates/core/Cargo.toml: undeclared arrow to rollway-sim",
                "crates/util/Cargo.toml: undeclared crate",
                "xtask/Cargo.toml: undeclared arrow to rollway-core",
            ],
        ),
        packages(
            "closed dependencies",
            &[("crates/core", &["smallvec"]), ("crates/sim", &["smallvec"])],
            &["crates/core/Cargo.toml: smallvec is not in the closed list"],
        ),
    ]
}

fn modules() -> Vec<Plant> {
    vec![
        plant(
            "cycles between modules",
            &[
                ("crates/a/src/lib.rs", "mod one; mod two;\n"),
                ("crates/a/src/one.rs", "use crate::{fmt, two::X};\n"),
                ("crates/a/src/two/deep.rs", "use crate::three::Y;\n"),
                ("crates/a/src/three.rs", "fn f() { crate::one::g() }\n"),
                ("crates/a/src/four.rs", "use crate::one::X; // crate::five\n"),
                ("crates/a/src/five.rs", "use crate::four::X;\n"),
                ("crates/b/src/one.rs", "use crate::two::X;\n"),
                ("crates/b/src/two.rs", "use crate::one::X;\n"),
                (debt::PATH, "cycle crates/b one two\ncycle crates/c six seven\n"),
            ],
            &[
                "crates/a/src: modules that depend on each other: one three two",
                "xtask/tests/tidy/debt.txt: remove the line, it is no longer true: cycle crates/c",
            ],
        ),
        plant(
            "layers of modules",
            &[
                ("crates/data/src/sample/file.rs", "use crate::buffer::X;\nuse crate::arrow::Y;\n"),
                ("crates/data/src/arrow.rs", ""),
                ("crates/data/src/buffer.rs", "use crate::sample::X;\n"),
                ("crates/data/src/other.rs", "use crate::sample::X;\n"),
            ],
            &[
                "crates/data/src: `other` is in no layer",
                "crates/data/src: `sample` uses `buffer` of a higher layer",
            ],
        ),
    ]
}

fn names() -> Vec<Plant> {
    vec![
        plant(
            "vague names",
            &[
                (
                    "crates/a/src/book.rs",
                    concat!(
                        "struct TensorBoardFile;\n  const MO",
                        "ST: u8 = 1;\nconst fn to",
                        "ld() {}\n"
                    ),
                ),
                ("crates/b/src/b.rs", "pub(crate) enum RunWay {}\npub type World = u8;\n"),
                ("crates/b/tests/b.rs", concat!("struct Sa", "id;\n")),
                ("crates/sim/src/world.rs", "struct World;\n"),
                (debt::PATH, "names crates/b 2\nnames crates/sim 1\n"),
            ],
            &[
                "crates/a: 3 names, more than 0; name the thing instead: book.rs: book",
                "xtask/tests/tidy/debt.txt: only 0 are left: names crates/sim 1",
            ],
        ),
        plant(
            "types defined twice",
            &[
                ("crates/a/src/a.rs", "struct State;\nstruct Once;\n"),
                ("crates/b/src/b.rs", "    pub enum State {}\ntrait Shared {}\n"),
                ("crates/b/src/c.rs", "pub(super) struct Shared(u8);\n"),
                (debt::PATH, "types all 1\n"),
            ],
            &["2 type names are defined in several files, more than 1: Shared (2), State (2)"],
        ),
    ]
}

fn language() -> Vec<Plant> {
    vec![
        plant(
            "people as subjects",
            &[
                ("crates/a/src/a.rs", concat!("// Some", "body\n// a component\n// ANY", "ONE\n")),
                ("crates/b/src/b.rs", concat!("// who", "ever\n")),
                ("docs/a.md", "Someones, nobodys and every one.\n"),
                ("README.md", concat!("Every", "one.\n")),
                (debt::PATH, "people crates/b 1\npeople docs 1\n"),
            ],
            &[
                "README.md: 1 people, more than 0; name the component: README.md:1",
                "crates/a: 2 people, more than 0; name the component: crates/a/src/a.rs:1, ",
                "xtask/tests/tidy/debt.txt: only 0 are left: people docs 1",
            ],
        ),
        plant(
            "doc comments as questions",
            &[
                ("crates/a/src/a.rs", "//! What it is.\n/// Which?\n  /// How: so.\n// Why.\n"),
                ("python/a.py", "    \"\"\"Whether it is.\"\"\"\n"),
                (debt::PATH, "riddles python 1\n"),
            ],
            &["crates/a: 2 riddles, more than 0; begin with a noun or a verb: crates/a/src/a.rs:1"],
        ),
    ]
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
                 let b = rand::random();\n",
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
    let huge = &"x\n".repeat(12_001);
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
            "size of crates",
            &[
                ("crates/a/src/a.rs", huge),
                ("crates/b/src/b.rs", huge),
                ("crates/c/src/c.rs", long),
                ("crates/c/tests/c.rs", huge),
                (debt::PATH, "lines crates/b 12001\nlines crates/c 12001\n"),
            ],
            &[
                "crates/a/src: 12001 lines, more than 12000",
                "xtask/tests/tidy/debt.txt: remove the line, the limit is kept: lines crates/c",
            ],
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

fn prose() -> Vec<Plant> {
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
    let integration =
        |script, found| plant("continuous integration", &[(".ci/run", script)], found);
    vec![
        plant("continuous integration", &[], &[".ci/run: missing"]),
        integration("#!/bin/sh\ncargo xtask test || true\n", &[".ci/run: calls"]),
        integration("cd x && make\nexec cargo xtask test\n", &[".ci/run: calls"]),
        integration("exec cargo xtask test fmt\n", &[".ci/run: calls"]),
        integration(
            "#!/usr/bin/env bash\n\
             set -euo pipefail\n\
             cd \"$(dirname \"$0\")/..\"\n\
             exec cargo xtask test\n",
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
