//! Secrets that a configuration names: in an environment variable, or in a file of the job.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollway_base::atomic_file::{FileError, load_or_create_secret};
use rollway_base::{BufferKind, Secret};
use serde_json::Value;

use super::{Config, ConfigProblem};

/// Variables that hold a secret in every job: those of external trainers and of workers.
const SECRET_VARIABLES: [&str; 4] = [
    "ROLLWAY_READER_SECRET",
    "ROLLWAY_SYNCHRONIZER_SECRET",
    "ROLLWAY_WORKER_SECRET",
    "ROLLWAY_WORKER_TOKEN",
];

/// Returns the environment variables that hold secrets of the engine: those that a key `…_env` of
/// the configuration names, fixed ones, and those of buffers. Workers do not inherit them.
pub fn secret_variables(config: &Config) -> BTreeSet<String> {
    let of_buffers = BufferKind::ALL.into_iter().flat_map(|kind| kind.syntax().secret_variables);
    let fixed = SECRET_VARIABLES.iter().chain(of_buffers);
    let mut names: BTreeSet<String> = fixed.map(|name| (*name).to_owned()).collect();
    collect_named(&serde_json::to_value(config).unwrap_or_default(), &mut names);
    names
}

fn collect_named(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(name) if key.ends_with("_env") && !name.is_empty() => {
                        names.insert(name.clone());
                    }
                    other => collect_named(other, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_named(item, names)),
        _ => {}
    }
}

/// Error: the agent key is not available.
#[derive(Debug)]
pub enum AgentKeyError {
    File(FileError),
    Config(ConfigProblem),
}

/// Returns the agent key of serve mode and its file. No file: the key comes from the environment.
/// A generated key is kept across restarts of the job.
pub fn agent_key(config: &Config, job: &Path) -> Result<(Secret, Option<PathBuf>), AgentKeyError> {
    let explorer = &config.explorer;
    let given = api_key("explorer.proxy_key_env", explorer.proxy_key_env.as_deref());
    if let Some(key) = given.map_err(AgentKeyError::Config)? {
        return Ok((key, None));
    }
    let path = job.join(format!("{}_server_key.txt", explorer.name));
    Ok((load_or_create_secret(&path).map_err(AgentKeyError::File)?, Some(path)))
}

/// Returns the admin key of serve mode and its file. It is different from the agent key, and kept
/// across restarts of the job.
pub fn admin_key(config: &Config, job: &Path) -> Result<(Secret, PathBuf), FileError> {
    let path = job.join(format!("{}_server_admin_key.txt", config.explorer.name));
    Ok((load_or_create_secret(&path)?, path))
}

/// Returns the secret in the environment variable that the configuration key names. `None`: the
/// key names no variable.
pub fn api_key(key: &str, variable: Option<&str>) -> Result<Option<Secret>, ConfigProblem> {
    let Some(variable) = variable.filter(|name| !name.is_empty()) else { return Ok(None) };
    let text = std::env::var(variable).unwrap_or_default();
    Secret::new(text.trim()).map(Some).map_err(|_| {
        let message = format!("the environment variable {variable} is not set or empty");
        let hint = format!("export {variable} before the job is started, or remove the key");
        ConfigProblem::new(key, message).hint(hint)
    })
}
