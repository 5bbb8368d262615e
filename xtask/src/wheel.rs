//! The Python package: wheel, and its installation into the environment of the tests.

use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell, entries, remove_folder};
use crate::venv;

/// Requirements to build and test the package.
const REQUIREMENTS: &str = "python/requirements-test.txt";

/// Environment of the tests, below the target directory.
const VENV: &str = "venv";

/// Builds the wheel and returns its path.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let python = venv::ready(shell, VENV, REQUIREMENTS)?;
    let out = shell.target.join("wheels");
    // An older wheel must not be picked up.
    remove_folder(&out)?;
    // maturin reads the project file of its working directory.
    shell
        .program(&python)
        .split_args("-m maturin build --release --locked --quiet --out")
        .args([&out])
        .dir("python")
        .run()?;
    entries(&out)?.pop().ok_or_else(|| CommandFailure::new("maturin built no wheel"))
}

/// Builds the wheel, installs it into the environment of the tests and returns its interpreter.
pub(crate) fn installed(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    build(shell)?;
    let python = venv::ready(shell, VENV, REQUIREMENTS)?;
    install_into(shell, &python)?;
    Ok(python)
}

/// Installs the wheel that was built last into the environment of an interpreter.
pub(crate) fn install_into(shell: &Shell, python: &Path) -> Result<(), CommandFailure> {
    let wheel = entries(&shell.target.join("wheels"))?.pop();
    let wheel = wheel.ok_or_else(|| CommandFailure::new("no wheel was built"))?;
    let install = shell.pip_install(python).split_args("--force-reinstall --no-deps");
    install.args([wheel]).run()
}
