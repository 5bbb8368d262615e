//! `rollway worker`: worker processes on this machine for a job on another one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rollway::supervisor::{self, JobLocator, SupervisorError, SupervisorOptions};
use rollway::workflow_runtime;
use rollway_base::error_chain;
use tokio_util::sync::CancellationToken;

use crate::signals::Signals;
use crate::{CliError, runtime};

// A doc comment here would replace the description of the command in its help.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Address of the job: tls:HOST:PORT#FINGERPRINT, HOST:PORT, or `cluster.json` in its folder
    #[arg(long, value_name = "HOST:PORT|FILE")]
    connect: String,
    /// File with the secret of the job, or its `cluster.json`; default: ROLLWAY_WORKER_SECRET
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Number of runners of each process
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    runners: u32,
    /// Number of worker processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// Python interpreter of the workers
    #[arg(long, env = "ROLLWAY_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Seconds to wait for the job to become reachable
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    connect_timeout: u64,
}

/// Keeps workers running until the job ends or a signal stops them.
pub(crate) fn run_workers(args: &WorkerArgs) -> Result<(), CliError> {
    let (program, program_args) = workflow_runtime::worker_command(args.python.clone());
    let options = SupervisorOptions {
        locator: JobLocator::from_arguments(&args.connect, args.secret_file.as_deref())?,
        program,
        args: program_args,
        processes: args.processes,
        runners: args.runners,
        connect_timeout: Duration::from_secs(args.connect_timeout),
    };
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            signals.next().await;
            errln!("stopping; attempts in flight are retried on other workers");
            stopped.cancel();
        });
        let print = Arc::new(|message: &str| errln!("{message}"));
        supervisor::run(options, stop, print).await.map_err(CliError::from)
    })
}

impl From<SupervisorError> for CliError {
    fn from(error: SupervisorError) -> Self {
        let message = error_chain(&error);
        if error.is_input() { Self::Input(message) } else { Self::Job(message) }
    }
}
