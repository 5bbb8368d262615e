//! Configurations cross the border as JSON text; what they mean is the engine's.

use pyo3::prelude::*;
use rollway::config::{BUILT_IN_REWARDS, BUILT_IN_WORKFLOWS, Config};
use serde_json::Value;

use crate::errors;

/// Returns the default configuration.
#[pyfunction]
pub(crate) fn config_default() -> String {
    Config::default().to_value().to_string()
}

/// Returns the names of the built-in workflows and reward functions.
#[pyfunction]
pub(crate) fn built_in_names() -> (Vec<&'static str>, Vec<&'static str>) {
    (BUILT_IN_WORKFLOWS.to_vec(), BUILT_IN_REWARDS.to_vec())
}

/// Reads a YAML file; returns the configuration and its warnings.
#[pyfunction]
pub(crate) fn config_load(py: Python<'_>, path: &str) -> PyResult<(String, Vec<String>)> {
    let config = Config::load(path).map_err(|error| errors::config(py, &error))?;
    Ok(warnings_of(&config))
}

/// Reads a dictionary; returns the configuration and its warnings.
#[pyfunction]
pub(crate) fn config_read(py: Python<'_>, json: &str) -> PyResult<(String, Vec<String>)> {
    parse(py, json).map(|config| warnings_of(&config))
}

/// Checks a configuration with the rules between keys; returns its warnings.
#[pyfunction]
pub(crate) fn config_check(py: Python<'_>, json: &str) -> PyResult<Vec<String>> {
    let warnings = parse(py, json)?.check().map_err(|error| errors::config(py, &error))?;
    Ok(warnings.iter().map(ToString::to_string).collect())
}

/// Returns the configuration in a JSON text, each value checked.
pub(crate) fn parse(py: Python<'_>, json: &str) -> PyResult<Config> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| errors::plain(py, "config", &error.to_string()))?;
    Config::from_value(&value).map_err(|error| errors::config(py, &error))
}

fn warnings_of(config: &Config) -> (String, Vec<String>) {
    let warnings = config.warnings().iter().map(ToString::to_string).collect();
    (config.to_value().to_string(), warnings)
}
