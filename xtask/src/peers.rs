//! Proxies that benchmarks compare with the gateway, each in its own environment, since their
//! requirements conflict. Installed on request only, since that takes minutes.

use std::env;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell, write_file};

/// A peer: the variable by which the benchmark finds its program.
struct PeerPackage {
    name: &'static str,
    package: &'static str,
    program: &'static str,
    variable: &'static str,
}

const PEERS: [PeerPackage; 3] = [
    PeerPackage {
        name: "vllm-router",
        package: "vllm-router==0.1.16",
        program: "vllm-router",
        variable: "ROLLWAY_BENCH_VLLM_ROUTER",
    },
    PeerPackage {
        name: "litellm",
        package: "litellm[proxy]==1.106.2",
        program: "litellm",
        variable: "ROLLWAY_BENCH_LITELLM",
    },
    // Its capture server is a module without a program.
    PeerPackage {
        name: "openenv",
        package: "openenv==0.10.0",
        program: "python",
        variable: "ROLLWAY_BENCH_OPENENV",
    },
];

/// Returns the programs by their variables: those that are installed, or all if they are requested.
pub(crate) fn programs(shell: &Shell) -> Result<Vec<(&'static str, PathBuf)>, CommandFailure> {
    let is_requested = env::var_os("ROLLWAY_BENCH_PEERS").is_some();
    let mut programs = Vec::new();
    for peer in &PEERS {
        let home = shell.target.join("peers").join(peer.name);
        // Written last, so that an interrupted installation starts over.
        let stamp = home.join(peer.package);
        if !stamp.exists() {
            if !is_requested {
                continue;
            }
            shell.python().split_args("-m venv --clear").args([&home]).run()?;
            shell.pip_install(&home.join("bin/python")).args([peer.package]).run()?;
            write_file(&stamp, String::new())?;
        }
        programs.push((peer.variable, home.join("bin").join(peer.program)));
    }
    Ok(programs)
}
