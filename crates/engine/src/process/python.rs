//! The Python interpreter of a job, and the start line of the scripts that it executes.

use std::path::PathBuf;

use rollway_config::Config;

/// Environment variable that names the interpreter of jobs whose configuration names none.
pub const PYTHON: &str = "ROLLWAY_PYTHON";

/// Keeps a folder `rollway` in the working directory from being imported instead of the package.
const START: &str = "import sys; sys.path[:] = filter(None, sys.path)\n";

/// Returns the interpreter of a job.
pub fn interpreter(config: &Config) -> PathBuf {
    let named = config.explorer.python.clone().or_else(|| std::env::var(PYTHON).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".to_owned()).into()
}

/// Returns the arguments with which an interpreter executes a script.
pub fn arguments(script: &str) -> Vec<String> {
    vec!["-c".to_owned(), format!("{START}{script}")]
}
