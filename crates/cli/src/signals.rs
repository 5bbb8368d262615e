//! Ctrl-C, and what service managers send.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask the command to end.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes them from here on: they no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
