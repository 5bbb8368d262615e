//! The proxy that benchmarks compare with the gateway, in its own environment. Installed on request
//! only, since that takes long.

use std::env;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell};

const PACKAGE: &str = "litellm[proxy]==1.106.2";

/// Returns the program, if it is requested or already installed.
pub(crate) fn litellm(shell: &Shell) -> Result<Option<PathBuf>, CommandFailure> {
    let home = shell.target.join("peers");
    let program = home.join("bin/litellm");
    if program.exists() {
        return Ok(Some(program));
    }
    if env::var_os("ROLLWAY_BENCH_PEERS").is_none() {
        return Ok(None);
    }
    shell.python().split_args("-m venv --clear").args([&home]).run()?;
    shell.pip_install(&home.join("bin/python")).args([PACKAGE]).run()?;
    Ok(Some(program))
}
