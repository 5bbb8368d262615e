//! Virtual environments of the Python tests and of the documentation, below the target directory.
//!
//! Recreated when the interpreter or the requirements change: leftovers could hide a missing
//! requirement.

use std::fs;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell, write_file};

/// Oldest supported Python.
const OLDEST: (u32, u32) = (3, 10);

/// Creates or reuses the environment `name` with a requirements file and returns its interpreter.
pub(crate) fn ready(
    shell: &Shell,
    name: &str,
    requirements: &str,
) -> Result<PathBuf, CommandFailure> {
    let venv = shell.target.join(name);
    let python = venv.join("bin/python");
    let stamp = venv.join("stamp.txt");

    let list = shell.root.join(requirements);
    let wanted = fs::read_to_string(&list).map_err(CommandFailure::at(&list))?;
    let wanted = format!("{}\n{wanted}", interpreter(shell)?);
    if python.exists() && fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
        return Ok(python);
    }

    shell.python().split_args("-m venv --clear").args([&venv]).run()?;
    shell.pip_install(&python).args(["-r", requirements]).run()?;
    // Invariant: the stamp is written last, so an interrupted installation starts over.
    write_file(&stamp, wanted)?;
    Ok(python)
}

/// Checks the interpreter and returns a line that identifies it.
fn interpreter(shell: &Shell) -> Result<String, CommandFailure> {
    let script = "import platform, sys; print(platform.python_version(), sys.executable)";
    let needed = format!(
        "Python {}.{} or newer is needed; set PYTHON to use another one than `python3`",
        OLDEST.0, OLDEST.1
    );
    let line = shell.python().args(["-c", script]).output();
    let line = line.map_err(|failure| failure.hint(&needed))?;
    if version(&line).is_none_or(|version| version < OLDEST) {
        return Err(CommandFailure::new(format!("unsupported interpreter: {line}")).hint(needed));
    }
    shell.python().args(["-c", "import venv, ensurepip"]).output().map_err(|failure| {
        failure.hint("the venv module is missing; Debian and Ubuntu have it in `python3-venv`")
    })?;
    Ok(line)
}

/// Parses the first two numbers of a version.
fn version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(version("3.9.18 python3") < Some(OLDEST));
        assert!(version("3.10.0rc1 python3") >= Some(OLDEST));
        assert_eq!(version("no python"), None);
    }
}
