//! `rollway worker`: workers on this machine for a job on another.

#![expect(clippy::print_stderr, reason = "what happens to workers is for whoever started them")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rollway::cluster::{Invitation, secret_in};
use rollway::fleet;
use rollway::station::{self, Options, StationError, Way};
use rollway_wire::{Address, Secret, env};
use tokio_util::sync::CancellationToken;

use crate::signals::Signals;
use crate::{Failure, runtime};

/// Where the job is, and what is started for it.
#[derive(Debug, Args)]
pub(crate) struct Workers {
    /// Where the job is: HOST:PORT, or the `cluster.json` in its folder
    #[arg(long, value_name = "HOST:PORT|FILE")]
    connect: String,
    /// File with the secret of the job, or its `cluster.json`; else the environment has it
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// How many runners each process has
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    runners: u32,
    /// How many processes there are
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// The Python of the workers
    #[arg(long, env = "ROLLWAY_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// How many seconds to wait for a job that is not there, or not any more
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    patience: u64,
}

/// Keeps workers until the job needs no more, or a signal ends them.
pub(crate) fn work(workers: &Workers) -> Result<(), Failure> {
    let (program, args) = fleet::worker_command(workers.python.clone());
    let options = Options {
        way: way(workers)?,
        program,
        args,
        processes: workers.processes,
        runners: workers.runners,
        patience: Duration::from_secs(workers.patience),
    };
    runtime()?.block_on(async {
        let no_signals = |error| Failure::Job(format!("signals cannot be waited for: {error}"));
        let mut signals = Signals::new().map_err(no_signals)?;
        let stop = CancellationToken::new();
        let told = stop.clone();
        tokio::spawn(async move {
            signals.next().await;
            eprintln!("leaves; what is under way begins again elsewhere");
            told.cancel();
        });
        let tell = Arc::new(|words: &str| eprintln!("{words}"));
        station::run(options, stop, tell).await.map_err(Failure::from)
    })
}

impl From<StationError> for Failure {
    fn from(error: StationError) -> Self {
        if error.is_input() { Self::Input(error.to_string()) } else { Self::Job(error.to_string()) }
    }
}

/// Returns the way to the job.
fn way(workers: &Workers) -> Result<Way, Failure> {
    let given = workers.secret_file.as_deref().map(secret_in).transpose();
    let given = given.map_err(|error| Failure::Input(format!("--secret-file: {error}")))?;
    let connect = &workers.connect;
    match connect.parse::<Address>() {
        Ok(Address::Tcp(address)) => {
            let known = std::env::var(env::SECRET).ok().and_then(|text| Secret::new(text).ok());
            let Some(secret) = given.or(known) else {
                let words = format!(
                    "the secret of the job is missing; give it with --secret-file, or in {}",
                    env::SECRET
                );
                return Err(Failure::Input(words));
            };
            Ok(Way::Known(Invitation { address, secret }))
        }
        _ if connect.contains('/') || Path::new(connect).extension().is_some() => {
            Ok(Way::File(connect.into()))
        }
        _ => {
            let words = format!(
                "--connect: `{connect}` is neither HOST:PORT nor the `cluster.json` of a job"
            );
            Err(Failure::Input(words))
        }
    }
}
