//! Background writer: a full pipe or a paused terminal never blocks the job that logs to it.
//!
//! Kept instead of the non-blocking writer of `tracing-appender` for three guarantees that it
//! lacks: the queue is bounded in bytes, the number of dropped texts is written where they are
//! missing, and a flush at exit waits for queued text without closing the writer.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum size of the queue; texts that do not fit are dropped and counted.
const MAX_QUEUE_BYTES: usize = 8 << 20;

/// Maximum wait for the queue to be written when the process exits.
const EXIT_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Writer with a thread of its own. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct BackgroundWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<WriterState>,
    changed: Condvar,
    /// Formats the notice that replaces a number of dropped texts.
    dropped_notice: fn(u64) -> String,
}

#[derive(Debug, Default)]
struct WriterState {
    queue: Vec<u8>,
    is_writing: bool,
    dropped: u64,
}

impl BackgroundWriter {
    /// Starts the thread that writes to `target`.
    pub fn start(
        mut target: impl Write + Send + 'static,
        dropped_notice: fn(u64) -> String,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, dropped_notice });
        let writer = Self(Arc::clone(&shared));
        thread::spawn(move || {
            loop {
                let text = shared.take_queue();
                // A log that cannot be written is no reason to stop the job.
                let _ = target.write_all(&text).and_then(|()| target.flush());
                shared.on_written();
            }
        });
        writer
    }

    /// Waits until the queue is written, at most `EXIT_FLUSH_TIMEOUT`.
    pub fn flush_at_exit(&self) {
        let is_pending = |state: &mut WriterState| state.is_writing || !state.queue.is_empty();
        drop(self.0.changed.wait_timeout_while(self.0.lock(), EXIT_FLUSH_TIMEOUT, is_pending));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for queued text and takes all of it.
    fn take_queue(&self) -> Vec<u8> {
        let is_empty = |state: &mut WriterState| state.queue.is_empty();
        let waited = self.changed.wait_while(self.lock(), is_empty);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        std::mem::take(&mut state.queue)
    }

    fn on_written(&self) {
        self.lock().is_writing = false;
        self.changed.notify_all();
    }
}

/// Queues each text as a whole or drops it; never blocks on the target.
impl Write for BackgroundWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        if state.queue.len() + text.len() > MAX_QUEUE_BYTES {
            state.dropped += 1;
            return Ok(text.len());
        }
        if state.dropped > 0 {
            let dropped = std::mem::take(&mut state.dropped);
            state.queue.extend_from_slice((self.0.dropped_notice)(dropped).as_bytes());
        }
        state.queue.extend_from_slice(text);
        drop(state);
        self.0.changed.notify_all();
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// Target that blocks each write until the test permits it.
    struct BlockingTarget(Sender<Vec<u8>>, Receiver<()>);

    impl Write for BlockingTarget {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let _ = self.1.recv();
            let _ = self.0.send(text.to_vec());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_queue_drops_texts_and_writes_their_number() {
        let (sender, written) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let target = BlockingTarget(sender, permits);
        let mut writer = BackgroundWriter::start(target, |count| format!("{count} dropped\n"));
        writer.write_all(b"first\n").unwrap();
        let mut text = vec![b'a'; MAX_QUEUE_BYTES - 1];
        text.push(b'\n');
        // From then on the thread waits for a permit.
        while !writer.0.lock().queue.is_empty() {
            thread::yield_now();
        }
        writer.write_all(&text).unwrap();
        writer.write_all(b"second\n").unwrap();
        writer.write_all(b"third\n").unwrap();
        permit.send(()).unwrap();
        permit.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"first\n");
        assert_eq!(written.recv().unwrap().len(), MAX_QUEUE_BYTES);
        writer.write_all(b"fourth\n").unwrap();
        permit.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"2 dropped\nfourth\n");
        writer.flush_at_exit();
    }
}
