//! A campaign of kills: `kill -9` and Ctrl-C at random moments of jobs, with a release build.

use crate::services::postgres;
use crate::shell::{CommandFailure, Shell, create_folder};

/// Kills if no number is given.
pub(crate) const KILLS: u32 = 300;

pub(crate) fn run(shell: &Shell, kills: u32) -> Result<(), CommandFailure> {
    postgres::ready(shell)?;
    shell.cargo("build --release --locked -p rollway-cli").run()?;
    let folder = shell.target.join("kills");
    create_folder(&folder)?;
    let report = folder.join("report.jsonl");
    println!("the counts at every moment are in {}", report.display());
    shell
        .cargo("test --locked -p rollway-cli --test job random_kills -- --nocapture")
        .env("ROLLWAY_KILLS", kills.to_string())
        .env("ROLLWAY_KILL_PROGRAM", shell.target.join("release/rollway"))
        .env("ROLLWAY_KILL_REPORT", &report)
        .run()
}
