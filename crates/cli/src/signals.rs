//! SIGINT, SIGTERM and SIGHUP as requests to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::CliError;

/// Stream of stop signals.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal was closed. `None`: the signal is ignored, as below `nohup`.
    hangup: Option<Signal>,
}

impl Signals {
    /// Installs the handlers; from then on the signals no longer end the process.
    pub(crate) fn new() -> Result<Self, CliError> {
        let handler = |kind| {
            signal(kind)
                .map_err(|error| CliError::Job(format!("cannot install a signal handler: {error}")))
        };
        // A handler would replace the inherited disposition.
        let hangup = (!ignores_hangup()).then(|| handler(SignalKind::hangup())).transpose()?;
        let interrupt = handler(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: handler(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Returns whether the process was started with SIGHUP ignored. False where the system does not
/// tell.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}
