//! The Python package: built as a wheel, installed into the environment of the tests.

use std::fs;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell};
use crate::venv;

/// What the environment needs to build and test the package.
const REQUIREMENTS: &str = "python/requirements-test.txt";

/// Builds the wheel and returns where it is.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let python = venv::ready(shell, REQUIREMENTS)?;
    let out = shell.target.join("wheels");
    // An older wheel must not be taken for the new one.
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|cause| CommandFailure::file(&out, &cause))?;
    }
    // The builder reads the project file of the folder it runs in.
    shell
        .program(&python)
        .words("-m maturin build --release --locked --quiet --out")
        .args([&out])
        .dir("python")
        .run()?;
    let entries = fs::read_dir(&out).map_err(|cause| CommandFailure::file(&out, &cause))?;
    let wheel = entries.flatten().map(|entry| entry.path()).next();
    wheel.ok_or_else(|| CommandFailure::new("the builder made no wheel"))
}

/// Builds the wheel, installs it into the environment of the tests and returns its interpreter.
pub(crate) fn installed(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let wheel = build(shell)?;
    let python = venv::ready(shell, REQUIREMENTS)?;
    shell
        .program(&python)
        .words("-m pip install --disable-pip-version-check --quiet --force-reinstall --no-deps")
        .args([wheel])
        .run()?;
    Ok(python)
}
