//! The virtual environment of the Python tests, kept below the target directory.
//!
//! It is made anew when the interpreter or the text of the requirements changes: what an older list
//! had installed could hide that something is missing from the new one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell};

/// The oldest Python that the package supports.
const OLDEST: (u32, u32) = (3, 10);

/// Makes or keeps the environment for a file of requirements and returns its interpreter.
pub(crate) fn ready(shell: &Shell, requirements: &str) -> Result<PathBuf, CommandFailure> {
    let venv = shell.target.join("venv");
    let python = venv.join("bin/python");
    let stamp = venv.join("stamp.txt");

    let list = shell.root.join(requirements);
    let wanted = fs::read_to_string(&list).map_err(|cause| CommandFailure::file(&list, &cause))?;
    let wanted = format!("{}\n{wanted}", interpreter(shell)?);
    if python.exists() && read(&stamp)?.as_deref() == Some(&wanted) {
        return Ok(python);
    }

    shell.python().words("-m venv --clear").args([&venv]).run()?;
    shell
        .program(&python)
        .words("-m pip install --disable-pip-version-check -r")
        .args([requirements])
        .run()?;
    // Invariant: the stamp is written last, so an interrupted installation begins again.
    fs::write(&stamp, wanted).map_err(|cause| CommandFailure::file(&stamp, &cause))?;
    Ok(python)
}

/// Checks the interpreter and returns a line that differs for another one.
fn interpreter(shell: &Shell) -> Result<String, CommandFailure> {
    let script = "import platform, sys; print(platform.python_version(), sys.executable)";
    let needed = format!(
        "Python {}.{} or newer is needed; set PYTHON to use another one than `python3`",
        OLDEST.0, OLDEST.1
    );
    let line = match shell.python().args(["-c", script]).output() {
        Ok(line) => line,
        Err(failure) => return Err(failure.hint(needed)),
    };
    if version(&line).is_none_or(|version| version < OLDEST) {
        return Err(
            CommandFailure::new(format!("the interpreter does not fit: {line}")).hint(needed)
        );
    }
    shell.python().args(["-c", "import venv, ensurepip"]).output().map_err(|failure| {
        failure.hint("the venv module is missing; Debian and Ubuntu have it in `python3-venv`")
    })?;
    Ok(line)
}

/// Reads the first two numbers of a line that begins with a version.
fn version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn read(path: &Path) -> Result<Option<String>, CommandFailure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(CommandFailure::file(path, &cause)),
    }
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
