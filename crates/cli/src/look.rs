//! `rollway view`: the dashboard of a job, whether it runs or is over.

#![expect(clippy::print_stdout, reason = "where the dashboard is, is what was asked for")]
#![expect(clippy::print_stderr, reason = "what a person should know goes to standard error")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use rollway::dashboard::{Card, Dashboard, DashboardError, Options};
use rollway::recorded_job;

use crate::signals::Signals;
use crate::{Failure, runtime};

/// What is to be looked at.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// The folder of the job
    job_dir: PathBuf,
    /// Where to listen, as `host:port`; port 0 means any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Open it in a browser, too
    #[arg(long)]
    open: bool,
}

/// Says where the dashboard of a running job is, or serves what a job has recorded until a signal
/// ends it.
pub(crate) fn look(look: &Look) -> Result<(), Failure> {
    let job = &look.job_dir;
    if !job.is_dir() {
        let words = format!("{} is no folder; name that of a job", job.display());
        return Err(Failure::Input(words));
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        if let Some(card) = served(job).await {
            println!("{}", card.address());
            eprintln!("the job is running; this is its own dashboard");
            open(look, &card.address());
            return Ok(());
        }
        let scene = recorded_job::open(job).map_err(|error| Failure::Input(error.to_string()))?;
        let options = Options { listen: look.listen.clone(), token: None, scene, metrics: None };
        let dashboard = Dashboard::open(options).await?;
        let signals = Signals::new();
        let mut signals = signals
            .map_err(|error| Failure::Job(format!("signals cannot be waited for: {error}")))?;
        println!("{}", dashboard.address());
        eprintln!("what the job has recorded; Ctrl-C ends it");
        open(look, &dashboard.address());
        signals.next().await;
        Ok(())
    })
}

/// Returns the dashboard that the job serves itself, if it does.
async fn served(job: &Path) -> Option<Card> {
    let card = Card::read(job).ok().flatten()?;
    card.is_served().await.then_some(card)
}

/// Opens an address in the person's browser. Without one, there is still the address.
fn open(look: &Look, address: &str) {
    if !look.open {
        return;
    }
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    let command = command.arg(address).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = command.stderr(Stdio::null()).spawn() {
        eprintln!("warning: no browser could be opened ({program}: {error})");
    }
}

impl From<DashboardError> for Failure {
    fn from(error: DashboardError) -> Self {
        Self::Input(error.to_string())
    }
}
