//! The browser of the tests, Chromium: the machine's own, or Debian's, unpacked below the target
//! directory with missing libraries (117 MB fetched, 385 MB unpacked, about 15 seconds).

use std::path::{Path, PathBuf};

use super::apt::{self, Apt};
use super::find_program;
use crate::shell::{CommandFailure, Shell, entries, write_file};

/// The browser, and common fonts, so that screenshots are the same everywhere.
const PACKAGES: [&str; 3] = ["chromium", "fonts-inter", "fonts-jetbrains-mono"];

/// Names of the program on the PATH.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Installs a browser if the machine has none, and returns the program.
pub(crate) fn ready(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let home = shell.target.join("chromium");
    let installed = Some(home.join("chromium")).filter(|program| program.is_file());
    match find_program("ROLLWAY_CHROMIUM", &PROGRAMS).or(installed) {
        Some(program) => Ok(program),
        None => install(shell, &home).map_err(|failure| {
            failure.hint(
                "the tests need Chromium; install your system's package, or set \
                 ROLLWAY_CHROMIUM to the program",
            )
        }),
    }
}

fn install(shell: &Shell, home: &Path) -> Result<PathBuf, CommandFailure> {
    let root = home.join("root");
    let apt = Apt::of_machine(home)?;
    apt.unpack(shell, &PACKAGES, &root)?;
    let fonts = home.join("fonts.conf");
    write_file(
        &fonts,
        format!(
            "<?xml version=\"1.0\"?>\n<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">\n<fontconfig>\n\
             <dir>{0}/usr/share/fonts</dir>\n<dir>/usr/share/fonts</dir>\n\
             <cachedir>{1}/fonts</cachedir>\n</fontconfig>\n",
            root.display(),
            home.display(),
        ),
    )?;
    let program = home.join("chromium");
    let script = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH='{}'\nexport FONTCONFIG_FILE='{}'\n\
         exec '{}' \"$@\"\n",
        libraries(&root)?.join(":"),
        fonts.display(),
        root.join("usr/lib/chromium/chromium").display(),
    );
    apt::script(shell, &program, &script, "--version")?;
    apt.clean()?;
    Ok(program)
}

/// Returns the library folders: those of the processor's kind and their subfolders.
fn libraries(root: &Path) -> Result<Vec<String>, CommandFailure> {
    let mut all = Vec::new();
    for base in ["usr/lib", "lib"].map(|base| root.join(base)).iter().filter(|base| base.is_dir()) {
        for folder in entries(base)?.into_iter().filter(|path| is_kind(path)) {
            let inner = entries(&folder)?.into_iter().filter(|path| path.is_dir());
            all.extend([folder].into_iter().chain(inner).map(|path| path.display().to_string()));
        }
    }
    Ok(all)
}

/// Returns whether a folder is named after a kind of processor, such as `x86_64-linux-gnu`.
fn is_kind(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("-linux-"))
}
