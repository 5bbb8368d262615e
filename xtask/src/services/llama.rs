//! The real inference server of the tests, `llama-server` of llama.cpp: the machine's own, or one
//! that is unpacked below the target directory; and a tiny model for it.
//!
//! It comes from the packages of a newer Debian, through the mirror that the machine's apt uses,
//! with everything they need, down to the C library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::apt::{self, Apt, create, entries};
use super::gguf;
use crate::shell::{CommandFailure, Shell};

/// The releases of Debian that are tried, in order.
const RELEASES: [&str; 2] = ["forky", "sid"];

/// The package that brings the server.
const PACKAGE: &str = "llama.cpp-tools";

const PROGRAM: &str = "llama-server";

/// A server that can be started, and what it can load.
#[derive(Debug)]
pub(crate) struct Llama {
    pub(crate) server: PathBuf,
    pub(crate) model: PathBuf,
}

/// Installs a server if the machine has none, writes the model, and returns where they are.
pub(crate) fn ready(shell: &Shell) -> Result<Llama, CommandFailure> {
    let home = shell.target.join("llama");
    create(&home)?;
    let model = home.join("tiny.gguf");
    fs::write(&model, gguf::tiny()).map_err(|cause| CommandFailure::file(&model, &cause))?;
    let ours = home.join(PROGRAM);
    let server = elsewhere().into_iter().chain([ours]).find(|program| program.is_file());
    let server = match server {
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

/// Returns where the machine may have a server.
fn elsewhere() -> Vec<PathBuf> {
    let named = env::var_os("ROLLWAY_LLAMA_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    named.into_iter().chain(folders).collect()
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
    Err(failed.unwrap_or_else(|| CommandFailure::new("there is no release to try")))
}

/// Writes a script that starts the server inside what was unpacked.
fn ready_in(shell: &Shell, home: &Path, root: &Path) -> Result<PathBuf, CommandFailure> {
    let lib = root.join("usr/lib");
    let libraries = found(&lib, "libllama.so.0")?;
    let backends = first_folder(&libraries.join("ggml"))?;
    let linker = entries(&libraries)?
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| is_linker(&name.to_string_lossy())))
        .ok_or_else(|| {
            CommandFailure::new(format!("no dynamic linker in {}", libraries.display()))
        })?;
    // The server looks for the code of each kind of processor beside the program that runs, which
    // is the dynamic linker here.
    let here = backends.join("ld.so");
    fs::copy(&linker, &here).map_err(|cause| CommandFailure::file(&here, &cause))?;

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

fn is_linker(name: &str) -> bool {
    name.starts_with("ld-linux") && name.contains(".so.")
}

/// Returns the folder below `folder` that has a file.
fn found(folder: &Path, file: &str) -> Result<PathBuf, CommandFailure> {
    let holder = entries(folder)?.into_iter().find(|inner| inner.join(file).exists());
    holder.ok_or_else(|| CommandFailure::new(format!("no {file} below {}", folder.display())))
}

fn first_folder(folder: &Path) -> Result<PathBuf, CommandFailure> {
    let first = entries(folder)?.into_iter().find(|inner| inner.is_dir());
    first.ok_or_else(|| CommandFailure::new(format!("no folder in {}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dynamic_linker_is_known_on_every_processor() {
        assert!(is_linker("ld-linux-x86-64.so.2") && is_linker("ld-linux-aarch64.so.1"));
        assert!(!is_linker("libllama.so.0"));
    }
}
