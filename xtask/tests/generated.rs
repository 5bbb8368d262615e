//! The messages in `crates/*/proto/*.prost.inc` are what the schemas beside them generate.
//!
//! They are committed, so that building the product needs no schema compiler. After a change of a
//! schema, `UPDATE_EXPECT=1 cargo test -p xtask --test generated` writes them again.

use std::fs;
use std::path::{Path, PathBuf};

/// Folder, schemas and types whose `Debug` must not print secrets.
const SCHEMAS: &[(&str, &[&str], &[&str])] = &[
    ("crates/experience/proto", &["experience"], &[]),
    (
        "crates/protocol/proto",
        &["worker", "reader"],
        &[
            ".rollway.worker.v1.Hello",
            ".rollway.worker.v1.Welcome",
            ".rollway.worker.v1.StartAttempt",
            ".rollway.reader.v1.Hello",
        ],
    ),
];

#[test]
fn committed_messages_match_their_schemas() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (folder, names, secrets) in SCHEMAS {
        let folder = root.join(folder);
        let files = names.iter().map(|name| folder.join(format!("{name}.proto")));
        let schema = protox::compile(files, [&folder]).expect("the schema compiles");
        prost_build::Config::new()
            .out_dir(&out)
            // Payloads are slices of the buffer they arrived in, and maps have an order.
            .bytes(["."])
            .btree_map(["."])
            .disable_comments(["."])
            .skip_debug(*secrets)
            .compile_fds(schema)
            .expect("code is generated");
        for name in *names {
            let generated = fs::read_to_string(out.join(format!("rollway.{name}.v1.rs"))).unwrap();
            let path = folder.join(format!("{name}.prost.inc"));
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                fs::write(&path, &generated).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == generated, "{} is out of date", path.display());
        }
    }
}
