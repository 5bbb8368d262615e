//! SIGINT and SIGTERM as requests to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::CliError;

/// Stream of stop signals.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs the handlers; from then on the signals no longer end the process.
    pub(crate) fn new() -> Result<Self, CliError> {
        let handler = |kind| {
            signal(kind)
                .map_err(|error| CliError::Job(format!("cannot install a signal handler: {error}")))
        };
        let interrupt = handler(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: handler(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
