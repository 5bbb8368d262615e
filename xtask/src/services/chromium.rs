//! The browser of the tests, Chromium: the machine's own, or Debian's, unpacked below the target
//! directory with the libraries that the machine lacks.
//!
//! 117 MB are fetched and 385 MB unpacked, in about 15 seconds.

use std::env;
use std::path::{Path, PathBuf};

use super::apt::{self, Apt};
use crate::shell::{CommandFailure, Shell};

/// The browser, and fonts like those that people have: pictures are the same everywhere.
const PACKAGES: [&str; 3] = ["chromium", "fonts-inter", "fonts-jetbrains-mono"];

/// What the machine's own may be called.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Fetches a browser if the machine has none, and returns the program.
pub(crate) fn ready(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let home = shell.target.join("chromium");
    let ours = home.join("chromium");
    let found = elsewhere().into_iter().chain([ours]).find(|program| program.is_file());
    found.map_or_else(
        || {
            install(shell, &home).map_err(|failure| {
                failure.hint(
                    "the tests need Chromium; install your system's package, or set \
                     ROLLWAY_CHROMIUM to the program",
                )
            })
        },
        Ok,
    )
}

/// Returns where the machine may have a browser.
fn elsewhere() -> Vec<PathBuf> {
    let named = env::var_os("ROLLWAY_CHROMIUM").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path);
    let programs = folders.flat_map(|folder| PROGRAMS.map(|program| folder.join(program)));
    named.into_iter().chain(programs).collect()
}

fn install(shell: &Shell, home: &Path) -> Result<PathBuf, CommandFailure> {
    let root = home.join("root");
    let apt = Apt::of_machine(home)?;
    apt.unpack(shell, &PACKAGES, &root)?;
    let fonts = home.join("fonts.conf");
    apt::write(
        &fonts,
        &format!(
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

/// Returns the folders of libraries: that of the processor's kind, and those inside of it.
fn libraries(root: &Path) -> Result<Vec<String>, CommandFailure> {
    let mut all = Vec::new();
    for base in ["usr/lib", "lib"].map(|base| root.join(base)).iter().filter(|base| base.is_dir()) {
        for folder in apt::entries(base)?.into_iter().filter(|path| is_kind(path)) {
            let inner = apt::entries(&folder)?.into_iter().filter(|path| path.is_dir());
            all.extend([folder].into_iter().chain(inner).map(|path| path.display().to_string()));
        }
    }
    Ok(all)
}

/// Tells whether a folder is named after a kind of processor, such as `x86_64-linux-gnu`.
fn is_kind(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("-linux-"))
}
