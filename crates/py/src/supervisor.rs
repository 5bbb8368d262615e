//! Workers by hand, for machines that have only the Python package.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use rollway::supervisor::{self, JobLocator, SupervisorError, SupervisorOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::convert::seconds;
use crate::runtime;

/// Keeps worker processes running for a remote job until it ends or a signal arrives. Returns the
/// exit status and the error message.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "one argument for every option of the command")]
pub(crate) fn supervise_workers(
    py: Python<'_>,
    connect: &str,
    secret_file: Option<PathBuf>,
    program: PathBuf,
    args: Vec<String>,
    processes: u32,
    runners: u32,
    connect_timeout: f64,
) -> PyResult<(i32, Option<String>)> {
    let connect_timeout = seconds(connect_timeout)?;
    let result = match JobLocator::from_arguments(connect, secret_file.as_deref()) {
        Ok(locator) => {
            let options =
                SupervisorOptions { locator, program, args, processes, runners, connect_timeout };
            let runtime = runtime::handle(py)?;
            py.detach(|| runtime.block_on(run_supervisor(options)))
        }
        Err(error) => Err(error),
    };
    Ok(match result {
        Ok(()) => (0, None),
        Err(error) => (if error.is_input() { 2 } else { 1 }, Some(error.to_string())),
    })
}

async fn run_supervisor(options: SupervisorOptions) -> Result<(), SupervisorError> {
    let failed = |error: std::io::Error| SupervisorError::Io(error.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        print_line("stopping; attempts in flight are retried on other workers");
        stopping.cancel();
    });
    supervisor::run(options, stop, Arc::new(print_line)).await
}

fn print_line(line: &str) {
    // A closed stderr must not stop the supervisor.
    let _ = writeln!(std::io::stderr(), "{line}");
}
