//! What the gateway is compared with: a proxy from PyPI, in an environment of its own. It takes
//! long to install, so it is left out unless it is asked for.

use std::env;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell};

const PACKAGE: &str = "litellm[proxy]==1.106.2";

/// Returns the program, if it is asked for or already there.
pub(crate) fn litellm(shell: &Shell) -> Result<Option<PathBuf>, CommandFailure> {
    let home = shell.target.join("peers");
    let program = home.join("bin/litellm");
    if program.exists() {
        return Ok(Some(program));
    }
    if env::var_os("ROLLWAY_BENCH_PEERS").is_none() {
        return Ok(None);
    }
    shell.python().words("-m venv --clear").args([&home]).run()?;
    shell
        .program(&home.join("bin/python"))
        .words("-m pip install --disable-pip-version-check --quiet")
        .args([PACKAGE])
        .run()?;
    Ok(Some(program))
}
