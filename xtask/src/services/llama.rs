//! The real inference server of the tests, `llama-server` of llama.cpp, and a tiny model for it.
//!
//! Without one on the machine, it comes from the packages of a newer Debian, through the mirror of
//! the machine's apt, with all libraries down to the C library.

use std::fs;
use std::path::{Path, PathBuf};

use super::apt::{self, Apt};
use super::{find_program, gguf};
use crate::shell::{CommandFailure, Shell, create_folder, entries, write_file};

/// Debian releases to try, in order.
const RELEASES: [&str; 2] = ["forky", "sid"];

const PACKAGE: &str = "llama.cpp-tools";

const PROGRAM: &str = "llama-server";

#[derive(Debug)]
pub(crate) struct Llama {
    pub(crate) server: PathBuf,
    pub(crate) model: PathBuf,
}

/// Installs a server if the machine has none, and writes the model.
pub(crate) fn ready(shell: &Shell) -> Result<Llama, CommandFailure> {
    let home = shell.target.join("llama");
    create_folder(&home)?;
    let model = home.join("tiny.gguf");
    write_file(&model, gguf::tiny())?;
    let installed = Some(home.join(PROGRAM)).filter(|program| program.is_file());
    let server = match find_program("ROLLWAY_LLAMA_SERVER", &[PROGRAM]).or(installed) {
        Some(server) => server,
        None => install(shell, &home).map_err(|failure| {
            failure.hint(
                "the tests need llama.cpp's `llama-server`; install your system's package, or set \
                 ROLLWAY_LLAMA_SERVER to the program",
            )
        })?,
    };
    Ok(Llama { server, model })
}

fn install(shell: &Shell, home: &Path) -> Result<PathBuf, CommandFailure> {
    let root = home.join("root");
    let mut failed = None;
    for release in RELEASES {
        let apt = Apt::of_release(shell, home, release)?;
        match apt.unpack(shell, &[PACKAGE], &root) {
            Ok(()) => {
                let server = ready_in(shell, home, &root)?;
                apt.clean()?;
                return Ok(server);
            }
            Err(failure) => failed = Some(failure),
        }
    }
    Err(failed.unwrap_or_else(|| CommandFailure::new("no Debian release to try")))
}

/// Writes a script that starts the unpacked server.
fn ready_in(shell: &Shell, home: &Path, root: &Path) -> Result<PathBuf, CommandFailure> {
    let libraries = find(&root.join("usr/lib"), |path| path.join("libllama.so.0").exists())?;
    let backends = find(&libraries.join("ggml"), Path::is_dir)?;
    let linker = find(&libraries, is_linker)?;
    // The server looks for processor-specific code beside the running program, which is the dynamic
    // linker.
    let here = backends.join("ld.so");
    fs::copy(&linker, &here).map_err(CommandFailure::at(&here))?;

    let server = home.join(PROGRAM);
    let libraries = [libraries.clone(), libraries.join("llama")];
    let script = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' '{}' \"$@\"\n",
        here.display(),
        libraries.map(|folder| folder.display().to_string()).join(":"),
        root.join("usr/bin").join(PROGRAM).display(),
    );
    apt::script(shell, &server, &script, "--version")?;
    Ok(server)
}

fn is_linker(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-linux") && name.contains(".so.")
}

/// Returns the first matching entry of a folder.
fn find(folder: &Path, matches: fn(&Path) -> bool) -> Result<PathBuf, CommandFailure> {
    let found = entries(folder)?.into_iter().find(|path| matches(path));
    found.ok_or_else(|| {
        CommandFailure::new(format!("{}: a file of {PACKAGE} is missing", folder.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_linkers_are_recognized() {
        for (name, expected) in [
            ("ld-linux-x86-64.so.2", true),
            ("ld-linux-aarch64.so.1", true),
            ("libllama.so.0", false),
        ] {
            assert_eq!(is_linker(Path::new(name)), expected, "{name}");
        }
    }
}
