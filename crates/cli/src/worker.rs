//! `rollway worker`: workers on this machine for a job on another.

#![expect(clippy::print_stderr, reason = "what happens to workers is for whoever started them")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rollway::supervisor::{self, Options, StationError, Way};
use rollway::workflow_runtime;
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
    let (program, args) = workflow_runtime::worker_command(workers.python.clone());
    let options = Options {
        way: Way::given(&workers.connect, workers.secret_file.as_deref())?,
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
        supervisor::run(options, stop, tell).await.map_err(Failure::from)
    })
}

impl From<StationError> for Failure {
    fn from(error: StationError) -> Self {
        if error.is_input() { Self::Input(error.to_string()) } else { Self::Job(error.to_string()) }
    }
}
