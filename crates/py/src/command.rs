//! The `rollway` command of the Python package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command and returns its exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| rollway_cli::run(&arguments))
}
