//! The `rollway` command of the Python package.

use std::ffi::OsString;
use std::path::Path;

use pyo3::prelude::*;
use rollway::config::Config;
use rollway::job::OperatorRegistry;

use crate::operator;

/// Runs the command and returns its exit code.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| rollway_cli::run(&arguments, &operators))
}

/// Returns the operators of a configuration, in Rust and in Python.
fn operators(config: &Config) -> Result<OperatorRegistry, String> {
    let folder = config.folder().unwrap_or_else(|| Path::new("")).to_owned();
    let make = Python::attach(|py| {
        let module = py.import("rollway.operators")?;
        Ok(module.call_method1("command_maker", (folder,))?.unbind())
    });
    let make = make.map_err(|error: PyErr| format!("operators cannot be loaded: {error}"))?;
    let (registry, _) =
        operator::registry(config, Vec::new(), make).map_err(|error| error.to_string())?;
    Ok(registry)
}
