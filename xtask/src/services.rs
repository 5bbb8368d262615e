//! Programs that tests and benchmarks need: found on the machine, or installed below the target
//! directory on first use.

pub(crate) mod agents;
mod apt;
pub(crate) mod chromium;
mod gguf;
pub(crate) mod llama;
pub(crate) mod node;
pub(crate) mod postgres;
pub(crate) mod vllm;

use std::env;
use std::path::PathBuf;

/// Candidates on this machine: the value of a variable, then the folders of the PATH.
fn on_machine(variable: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    env::var_os(variable).map(PathBuf::from).into_iter().chain(folders)
}

/// Finds a program: the value of a variable, or one of some names on the PATH.
fn find_program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let mut candidates = on_machine(variable).flat_map(|base| {
        let named: Vec<PathBuf> = names.iter().map(|name| base.join(name)).collect();
        [base].into_iter().chain(named)
    });
    candidates.find(|program| program.is_file())
}
