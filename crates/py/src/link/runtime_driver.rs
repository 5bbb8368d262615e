//! Drives the connection on the event loop's thread, so that no other thread has to wake for a
//! message. A companion thread takes over while the loop is idle or blocked by user code.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::Inbox;
use super::outbox::LinkOutbox;

/// Maximum delay of a queued message before the companion thread sends it.
const MAX_SEND_DELAY: Duration = Duration::from_millis(5);

/// Poll interval of the companion thread otherwise; heartbeats may be late by this.
const MAX_IDLE_DELAY: Duration = Duration::from_millis(100);

/// Number of empty polls after which the companion thread polls less often.
const IDLE_POLLS: u32 = 20;

/// The runtime of the connection, used by one thread at a time.
pub(super) struct RuntimeDriver {
    runtime: Mutex<Runtime>,
    /// Number of turns of the event loop.
    turns: AtomicU64,
    companion: OnceLock<Thread>,
}

impl RuntimeDriver {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Mutex::new(Builder::new_current_thread().enable_all().build()?);
        Ok(Self { runtime, turns: AtomicU64::new(0), companion: OnceLock::new() })
    }

    /// Runs `work` on the connection. Waits briefly if the other thread uses it.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.runtime.lock().block_on(work);
        self.turns.fetch_add(1, Ordering::Release);
        done
    }

    /// As [`run`](Self::run), unless the other thread uses the connection.
    fn try_run(&self, work: impl Future<Output = ()>) {
        if let Some(runtime) = self.runtime.try_lock() {
            runtime.block_on(work);
        }
    }

    /// Makes the companion thread poll often for a while.
    pub(super) fn wake_companion(&self) {
        if let Some(companion) = self.companion.get() {
            companion.unpark();
        }
    }

    /// Starts the companion thread.
    pub(super) fn start_companion(
        self: &Arc<Self>,
        outbox: Arc<LinkOutbox>,
        inbox: Arc<Inbox>,
    ) -> io::Result<()> {
        let drive = Arc::clone(self);
        let companion = thread::Builder::new().name("rollway-link".to_owned());
        let companion = companion.spawn(move || drive.run_companion(&outbox, &inbox))?;
        let _ = self.companion.set(companion.thread().clone());
        Ok(())
    }

    fn run_companion(&self, outbox: &LinkOutbox, inbox: &Inbox) {
        let (mut seen, mut waited, mut quiet) = (0, false, 0);
        loop {
            if quiet < IDLE_POLLS {
                thread::sleep(MAX_SEND_DELAY);
            } else if outbox.end_watch() {
                thread::park_timeout(MAX_IDLE_DELAY);
            }
            let (turns, waits) = (self.turns.load(Ordering::Acquire), outbox.waits());
            let due = if waits { waited } else { quiet == IDLE_POLLS };
            if due && turns == seen {
                self.try_run(async {
                    // The receiving side notices a lost connection.
                    let _ = outbox.try_send();
                    poll_tasks().await;
                });
                inbox.wake_event_loop();
            }
            (seen, waited) = (turns, waits);
            quiet = if waits { 0 } else { IDLE_POLLS.min(quiet + 1) };
        }
    }
}

/// Yields so that pending socket reads and writes make progress.
pub(super) async fn poll_tasks() {
    // The first yield polls the socket, the second the tasks that it woke.
    yield_now().await;
    yield_now().await;
}
