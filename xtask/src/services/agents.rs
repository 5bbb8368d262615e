//! Coding agents for tests: programs in packages of npm, and one from PyPI, below the target
//! directory.

use std::path::PathBuf;

use super::node;
use crate::shell::{CommandFailure, Shell, write_file};

/// Pinned agents from npm: their packages contain programs for this platform.
const PACKAGES: [&str; 2] = ["@openai/codex@0.169.0", "opencode-ai@1.18.33"];

/// Programs below the folder of the packages.
const CODEX: &str = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";
const OPENCODE: &str = "opencode-linux-x64-baseline/bin/opencode";

/// Pinned agent from PyPI. Its client of models imports `mcp` without requiring it.
const MINI_SWE_AGENT: &str = "mini-swe-agent==2.4.6 litellm==1.106.2 mcp==2.3.0";

/// Paths of the programs.
pub(crate) struct AgentPrograms {
    pub(crate) codex: PathBuf,
    pub(crate) opencode: PathBuf,
    pub(crate) mini_swe_agent: PathBuf,
}

/// Installs missing agents.
pub(crate) fn ready(shell: &Shell) -> Result<AgentPrograms, CommandFailure> {
    let modules = node::packages(shell, "agents", &PACKAGES)?.modules;
    let venv = shell.target.join("agents-python");
    let (python, stamp) = (venv.join("bin/python"), venv.join("stamp.txt"));
    if !std::fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == MINI_SWE_AGENT) {
        shell.python().split_args("-m venv --clear").args([&venv]).run()?;
        shell.pip_install(&python).split_args(MINI_SWE_AGENT).run()?;
        // Invariant: the stamp is written last, so an interrupted installation starts over.
        write_file(&stamp, MINI_SWE_AGENT)?;
    }
    Ok(AgentPrograms {
        codex: modules.join(CODEX),
        opencode: modules.join(OPENCODE),
        mini_swe_agent: venv.join("bin/mini"),
    })
}
